"""On the way through golden's graph: which outputs are further off than their inputs and rounding explain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isinf

from telekit.accuracy.causes.case import fingerprint
from telekit.accuracy.causes.finding import Candidate
from telekit.accuracy.compared import OPTIMIZER, OUTPUT, PARAMETERS, SETUP, Compared
from telekit.accuracy.graph.nodes import Node, outputs_inside
from telekit.accuracy.graph.noise import FLOOR, error_of, explained, is_float, limit_of
from telekit.accuracy.graph.routing import alike, flipped_rows, routes
from telekit.accuracy.graph.sync import gradient_names, optimizer_row, parameter_name, update_noise


@dataclass(frozen=True)
class Place:
    """A candidate with what is needed to look at it closer."""

    candidate: Candidate
    node: Node
    row: Compared
    redone: bool = False
    """Whether the error is not to golden but to what the operator makes of the target's own inputs."""

    @property
    def strength(self) -> float:
        """How many times the limit the error is."""
        return self.candidate.error / self.candidate.limit if self.candidate.limit else inf


@dataclass
class Walk:
    """What is known on the way through the graph."""

    epsilon: float
    first_step: int
    errors: dict[int, float | None] = field(default_factory=dict)
    level: float = 0.0  # worst error of an output so far: what an input whose maker is not known may have
    made: dict[object, float] = field(default_factory=dict)  # golden's fingerprint of an output to its error
    makers: dict[object, Compared] = field(
        default_factory=dict
    )  # golden's fingerprint of an output to its row
    sources: dict[int, Compared] = field(
        default_factory=dict
    )  # by id of an input: the output that golden hands on
    chosen: set[object] = field(
        default_factory=set
    )  # golden's fingerprints of outputs that are whole numbers
    flipped: bool = False  # a token near a tie chose other experts: rounding, not a fault
    found: list[Place] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gradients: dict[str, float] = field(
        default_factory=dict
    )  # error of each parameter's gradient in this step
    weights: dict[str, float] = field(default_factory=dict)  # and of each weight after the last
    noise: dict[str, float] = field(default_factory=dict)  # what an update before the dump leaves in a weight

    earlier: dict[str, Compared] = field(default_factory=dict)  # gradients of the step before, by name
    past: list[Node] = field(default_factory=list)  # operators of the step before
    inside: dict[int, list[Compared]] = field(default_factory=dict)  # by module: outputs of those in it

    def begin(self, graph: Sequence[Node]) -> None:
        """Start a step."""
        self.inside = outputs_inside([n for n in graph if n.phase != OPTIMIZER])
        self.level, self.made, self.chosen, self.gradients, self.found = 0.0, {}, set(), {}, []
        self.makers, self.sources = {}, {}
        self.noise = self.noise or update_noise([n for n in graph if n.phase == OPTIMIZER], self.epsilon)

    def end(self, graph: Sequence[Node], optimizer: Sequence[Node]) -> None:
        """Keep what the optimizer made of the weights, where the next step starts, and this step's gradients."""
        self.past = [n for n in graph if n.phase != OPTIMIZER]
        self.earlier = {r.name: r for n in graph if "reduce" in n.base.lower() for r in n.rows}
        self.weights = {}
        for node in optimizer:
            row = optimizer_row(node, "parameter", OUTPUT)
            error = None if row is None else self.error(row)
            if error is not None:
                self.weights[parameter_name(node)] = error

    def error(self, row: Compared) -> float | None:
        """Return a row's relative error, computed once."""
        if id(row) not in self.errors:
            self.errors[id(row)] = error_of(row)
        return self.errors[id(row)]

    def worst(self, rows: Iterable[Compared]) -> float | None:
        """Return the largest error of rows; None where none is known."""
        return max((e for e in map(self.error, rows) if e is not None), default=None)

    def visit(self, node: Node) -> None:
        """Judge one operator."""
        for row in (*node.inputs, *node.parameters):
            self._judge_input(node, row)
        inputs = [*node.inputs, *node.parameters, *node.before]
        before = self.worst(r for r in inputs if self._counts(r))
        inner = self.worst(r for r in self.inside.get(id(node), ()) if is_float(r))
        if inner is not None:  # a module answers for what is between the modules inside it, not for them
            before = max(before or 0.0, inner)
        for row in node.outputs:
            self._judge_output(node, row, inputs, before)
        for row in node.outputs:
            error = self.error(row)
            if not is_float(row):
                self.chosen.add(fingerprint(row.golden))
            if error is not None and is_float(row):
                if node.kind != "gradient":  # no operator is made from a weight's gradient
                    self.level = max(self.level, min(error, 1e3))
                key = fingerprint(row.golden)
                if key is not None:
                    self.made[key], self.makers[key] = error, row
                if node.kind == "gradient":
                    name = gradient_names(node, row)
                    self.gradients[name] = max(error, self.gradients.get(name, 0.0))

    def _counts(self, row: Compared) -> bool:
        return is_float(row) or not self.flipped

    def _judge_input(self, node: Node, row: Compared) -> None:
        error = self.error(row)
        if not error:
            return
        if row.part == PARAMETERS:
            upstream = 0.0
            if node.step > self.first_step:
                known = self.weights.get(gradient_names(node, row))
                if known is None:
                    return  # the optimizer's matter
                upstream = known
            elif node.step:  # updates before the dump began
                upstream = node.step * self.noise.get(gradient_names(node, row), self.noise[""])
            limit = FLOOR * self.epsilon / 2 + 2 * upstream
        else:
            key = fingerprint(row.golden)
            if key in self.makers:
                self.sources[id(row)] = self.makers[key]
            upstream = self.made.get(key, self.level)
            limit = explained(self.epsilon, upstream)
            if not is_float(row):
                if key in self.chosen or self.flipped:
                    return  # which experts a token chose: judged where it is chosen
                upstream = limit = 0.0  # data: token ids, labels
        if error > limit and not self._excused(node, row, error):
            self._add(node, row, error, upstream, limit)

    def _judge_output(
        self, node: Node, row: Compared, inputs: Sequence[Compared], before: float | None
    ) -> None:
        error = self.error(row)
        if not error:
            return
        start = self.level if before is None else before
        if start >= 1 and error < inf:
            return
        if isinf(start):
            return
        limit = limit_of(row, inputs, start, self.epsilon)
        if not is_float(row):
            limit = 0.0 if not self.flipped else inf  # a choice is right or wrong, or a tie
        if error <= limit or self._excused(node, row, error):
            return
        self._add(node, row, error, before, limit)

    def _excused(self, node: Node, row: Compared, error: float) -> bool:
        """Whether the difference is a few tokens near a tie that chose other experts, or follows from them."""
        if not routes(node.base):
            return False
        if not self.flipped:
            rows = flipped_rows(node, row, self.epsilon, self.level)
            if rows is None:
                return False
            self.flipped = True
            what = f"{rows} tokens near a tie chose other experts in {node.base}"
            after = (
                "after the first difference, it may follow from it" if self.found else "rounding, not a fault"
            )
            self.notes.append(f"{what}: {after}")
        return isinf(error) or alike(row)

    def _add(self, node: Node, row: Compared, error: float, before: float | None, limit: float) -> None:
        phase = node.phase
        if row.part == PARAMETERS:
            phase = SETUP if node.step == self.first_step else OPTIMIZER
        part = row.part or OUTPUT
        self.found.append(Place(Candidate(node.base, phase, part, row.name, error, before, limit), node, row))
