"""Where two runs first part: the first operator whose inputs agree within rounding and whose output does not.

Everything after it differs too; those are consequences. What is asked of a user is a dump of one step of both
runs (forward and backward of each module or API, statistics or elements), and if there are some, the parameters
around the optimizer, a few steps of losses and gradient norms, and the unmerged tensors of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, case_of, fingerprint
from telekit.accuracy.causes.causes import explain
from telekit.accuracy.causes.finding import Candidate, Cause, Finding, ranked
from telekit.accuracy.checks.replicas import by_name, unequal
from telekit.accuracy.compared import INPUT, OPTIMIZER, OUTPUT, PARAMETERS, Compared
from telekit.accuracy.graph.nodes import Node, containers, maker_of, module_path, nodes, outputs_inside
from telekit.accuracy.graph.noise import AMPLIFICATION, FLOOR, error_of, is_float, limit_of, run_epsilon
from telekit.accuracy.graph.routing import alike, flipped_rows, routes
from telekit.accuracy.graph.sync import gradient_names, optimizer_row, parameter_name
from telekit.accuracy.locating.locate_optimizer import Ranks, after_backward
from telekit.accuracy.locating.phase_hint import Hint, Pair, numbers, phase_hint
from telekit.accuracy.readers.named import NamedTensor

SETUP = "setup"
WEAK = 2.0  # an excess below this needs a known shape to be believed
_STRUCTURED = 0.6
_SMALL = frozenset(
    {kinds.SCALED, kinds.MISSING_TERM, kinds.EXTRA_TERM, kinds.PERMUTATION, kinds.ROTARY, kinds.NORM_EPSILON,
     kinds.MASK, kinds.SOFTMAX_SCALE, kinds.CHANNEL_WEIGHT, kinds.NORMALISATION, kinds.DROPPED, kinds.ONE_SHARD,
     kinds.MISSING_REDUCTION, kinds.DOUBLE_REDUCTION, kinds.GRADIENT_SCALING, kinds.SIGN, kinds.ACTIVATION}
)  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """A candidate with what is needed to look at it closer."""

    candidate: Candidate
    node: Node
    row: Compared

    @property
    def strength(self) -> float:
        return self.candidate.error / self.candidate.limit if self.candidate.limit else inf


@dataclass
class _Walk:
    """What is known on the way through the graph."""

    epsilon: float
    first_step: int
    errors: dict[int, float | None] = field(default_factory=dict)
    level: float = 0.0  # worst error of an output so far: what an input whose maker is not known may have
    made: dict[object, float] = field(default_factory=dict)  # golden's fingerprint of an output to its error
    flipped: bool = False  # a token near a tie chose other experts: rounding, not a fault
    found: list[_Place] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    gradients: dict[str, float] = field(
        default_factory=dict
    )  # error of each parameter's gradient in this step
    weights: dict[str, float] = field(default_factory=dict)  # and of each weight after the last

    inside: dict[int, list[Compared]] = field(default_factory=dict)  # by module: outputs of those in it

    def begin(self, graph: Sequence[Node]) -> None:
        """Start a step."""
        self.inside = outputs_inside([n for n in graph if n.phase != OPTIMIZER])
        self.level, self.made, self.gradients, self.found = 0.0, {}, {}, []

    def end(self, optimizer: Sequence[Node]) -> None:
        """Keep what the optimizer made of the weights: where the next step starts."""
        self.weights = {}
        for node in optimizer:
            row = optimizer_row(node, "parameter", OUTPUT)
            error = None if row is None else self.error(row)
            if error is not None:
                self.weights[parameter_name(node)] = error

    def error(self, row: Compared) -> float | None:
        if id(row) not in self.errors:
            self.errors[id(row)] = error_of(row)
        return self.errors[id(row)]

    def worst(self, rows: Iterable[Compared]) -> float | None:
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
            if error is not None and is_float(row):
                self.level = max(self.level, min(error, 1e3))
                key = fingerprint(row.golden)
                if key is not None:
                    self.made[key] = error
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
            limit = FLOOR * self.epsilon / 2 + 2 * upstream
        else:
            upstream = self.made.get(fingerprint(row.golden), self.level)
            limit = FLOOR * self.epsilon + AMPLIFICATION * upstream
            if not is_float(row) and upstream:
                return  # which experts a token chose: judged where it is chosen
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
            self.notes.append(
                f"{rows} tokens near a tie chose other experts in {node.base}: rounding, not a fault"
            )
        return isinf(error) or alike(row)

    def _add(self, node: Node, row: Compared, error: float, before: float | None, limit: float) -> None:
        phase = node.phase
        if row.part == PARAMETERS:
            phase = SETUP if node.step == self.first_step else OPTIMIZER
        part = row.part or OUTPUT
        self.found.append(
            _Place(Candidate(node.base, phase, part, row.name, error, before, limit), node, row)
        )


def locate(
    rows: Sequence[Compared],
    *,
    losses: Pair | None = None,
    norms: Pair | None = None,
    sizes: Mapping[str, float] | None = None,
    replicas: Sequence[NamedTensor] | None = None,
    settings: Mapping[str, float] | None = None,
    epsilon: float | None = None,
) -> Finding:
    """Find the first operator that went wrong, and say what kind of fault it looks like.

    Parameters
    ----------
    rows : sequence of Compared
        Of one or more steps, in any order (each has its place in golden's graph).
    losses, norms : (target, golden), optional
        Losses and gradient norms of the same steps, from the first on: sequences of float, or curves.
    sizes : mapping of str to float, optional
        ``tp cp dp ep pp etp tokens micro_batches loss_scale``: names for constant ratios.
    replicas : sequence of NamedTensor, optional
        The target's own tensors of all ranks, before anything was merged.
    settings : mapping of str to float, optional
        ``lr beta1 beta2 eps weight_decay step`` of the optimizer, where known.
    epsilon : float, optional
        Of the run's arithmetic; found from the values where left out.

    Returns
    -------
    Finding
        Its cause is ``none`` where nothing exceeds what rounding explains, ``unknown`` where a place was found and
        no explanation fits.

    Notes
    -----
    An output is judged by its inputs, as TTrace (2506.09280) and msprobe's rules do: rounding costs a few epsilons,
    amplifies by a bounded factor, and where terms cancel is measured against them.
    """
    size = dict(sizes or {})
    eps = run_epsilon(rows) if epsilon is None else epsilon
    graph = nodes(rows)
    ranks = by_name(replicas if replicas is not None else _targets(rows))
    hint = phase_hint(losses, norms, eps)
    walk = _Walk(eps, min((n.step for n in graph), default=0))
    for step in sorted({n.step for n in graph}):
        own = [n for n in graph if n.step == step]
        found = _one_step(own, walk, size, ranks, _at(norms, step - walk.first_step), hint)
        if found is not None:
            return found
    return _nothing(walk, hint, bool(rows))


def _one_step(
    graph: Sequence[Node],
    walk: _Walk,
    sizes: Mapping[str, float],
    ranks: Ranks,
    norms: tuple[float, float] | None,
    hint: Hint,
) -> Finding | None:
    """Walk through one step: forward and backward, then the reduction of gradients and the optimizer."""
    walk.begin(graph)
    for node in graph:
        if node.phase != OPTIMIZER:
            walk.visit(node)
    place, causes = _choose(walk, graph, sizes, ranks, walk.epsilon)
    early = _unequal_finding(graph, ranks, sizes, walk, place)
    if early is not None:
        return replace(early, evidence=(*early.evidence, *walk.notes, *hint.evidence))
    if place is not None:
        return _finding(place, causes, walk, hint)
    optimizer = [n for n in graph if n.phase == OPTIMIZER]

    made = [n for n in graph if n.kind == "gradient"]

    def case_for(row: Compared, node: Node) -> Case:
        return case_of(row, node, made, sizes, ranks, walk.epsilon, 0.0)

    found = after_backward(optimizer, walk.gradients, walk.epsilon, sizes, case_for, norms)
    walk.end(optimizer)
    return None if found is None else replace(found, evidence=(*found.evidence, *walk.notes, *hint.evidence))


def _at(pair: Pair | None, index: int) -> tuple[float, float] | None:
    """Values of one step of two curves."""
    if pair is None:
        return None
    t, g = (numbers(side, "norm") for side in pair)
    return (float(t[index]), float(g[index])) if 0 <= index < min(t.size, g.size) else None


def _targets(rows: Sequence[Compared]) -> list[NamedTensor]:
    return [r.target for r in rows if r.target is not None and r.target.rank is not None]


def _choose(
    walk: _Walk,
    graph: Sequence[Node],
    sizes: Mapping[str, float],
    ranks: Ranks,
    epsilon: float,
) -> tuple[_Place | None, tuple[Cause, ...]]:
    """Return the first place that holds up to a closer look, with its explanations."""
    inner = containers(graph)
    blamed = {module_path(p.node.base) for p in walk.found if p.node.base not in inner}
    small = _structured_places(walk, graph, sizes, epsilon) if epsilon > 1e-4 else []
    strong = {id(p.node): at for at, p in enumerate(walk.found)}
    order = {id(n): at for at, n in enumerate(graph)}
    places = sorted([*walk.found, *small], key=lambda p: (order[id(p.node)], id(p.node) not in strong))
    for place in places:
        path = module_path(place.node.base)
        same_phase = {module_path(p.node.base) for p in walk.found if p.node.phase == place.node.phase}
        if place.node.base in inner and any(b.startswith(path + ".") for b in blamed & same_phase):
            continue
        causes = explain(_case(place, walk, graph, sizes, ranks, epsilon))
        if place.strength >= WEAK or causes[0].confidence >= _STRUCTURED:
            return place, causes
        walk.notes.append(
            f"{place.candidate.tensor}: {place.candidate.error:.3g} is {place.strength:.1f} times what rounding "
            "explains and has no shape of a fault: not counted"
        )
    return None, ()


def _structured_places(
    walk: _Walk, graph: Sequence[Node], sizes: Mapping[str, float], epsilon: float
) -> list[_Place]:
    """Places below the limit of size whose difference has a shape that rounding never has."""
    found: list[_Place] = []
    taken, inner = {id(p.row) for p in walk.found}, containers(graph)
    for node in graph:
        if node.phase == OPTIMIZER or found or node.base in inner:
            continue
        before = walk.worst([*node.inputs, *node.parameters, *node.before])
        for row in node.outputs:
            error = walk.error(row)
            if error is None or id(row) in taken or not epsilon / 2 < error < inf or not is_float(row):
                continue
            # of a norm its own eps can be read back whatever its input is off by
            before = inf if before is None else before
            clean = before < inf and (before <= error / 8 or "norm" in node.base.lower())
            if not clean or (walk.flipped and routes(node.base)):
                continue
            place = _Place(
                Candidate(node.base, node.phase, row.part, row.name, error, before, FLOOR * epsilon),
                node,
                row,
            )
            causes = explain(_case(place, walk, graph, sizes, {}, epsilon))
            small = causes[0].kind in _SMALL and (before <= error / 8 or causes[0].kind == kinds.NORM_EPSILON)
            if small and causes[0].confidence >= 0.75:
                found.append(place)
                break
    return found


def _case(
    place: _Place,
    walk: _Walk,
    graph: Sequence[Node],
    sizes: Mapping[str, float],
    ranks: Ranks,
    epsilon: float,
) -> Case:
    node, row = place.node, place.row
    at = next(i for i, n in enumerate(graph) if n is node)
    near = [n for n in graph[max(0, at - 24) : at + 1] if n.phase != OPTIMIZER and n.step == node.step]
    if "reduce" in node.base.lower():  # what stands near a gradient's reduction are other gradients
        near = [n for n in graph if n.kind == "gradient"]
    return case_of(row, node, near, sizes, ranks, epsilon, place.candidate.inputs_error or 0.0)


def _finding(place: _Place, causes: tuple[Cause, ...], walk: _Walk, hint: Hint) -> Finding:
    c = place.candidate
    before = (
        "no input was dumped" if c.inputs_error is None else f"its inputs are off by {c.inputs_error:.3g}"
    )
    size = (
        "cannot be compared"
        if isinf(c.error)
        else f"is off by {c.error:.3g}, {c.error / walk.epsilon:.3g} epsilons"
    )
    evidence = [
        f"{c.tensor} {size}; {before}, so rounding explains at most {c.limit:.3g}",
        *(f"{cause.kind} ({cause.confidence:.2f}): {cause.text}" for cause in causes[:3]),
        *place.row.notes,
        *walk.notes,
        *hint.evidence,
    ]
    sure = min(1.0, 0.5 + 0.1 * min(place.strength, 5.0))
    if hint.phase and hint.phase != c.phase:
        evidence.append(f"the curves point at {hint.phase}, the dump at {c.phase}: the dump is believed")
        sure *= 0.9
    others = tuple(p.candidate for p in walk.found if p is not place)
    cause = causes[0]
    return Finding(
        _operator(place), c.phase, c.part, cause.kind, round(sure * cause.confidence, 3), tuple(evidence),
        cause.next_dump, c.tensor, causes, others, place.row.step, place.row.rank,
    )  # fmt: skip


def _operator(place: _Place) -> str:
    """Name the operator; for an input that nobody dumped as an output, who usually makes it."""
    if place.candidate.part != INPUT:
        return place.node.base
    maker = maker_of(place.node.base)
    return f"{place.node.base} input ({maker})" if maker else f"{place.node.base} input"


def _unequal_finding(
    graph: Sequence[Node], ranks: Ranks, sizes: Mapping[str, float], walk: _Walk, place: _Place | None
) -> Finding | None:
    """Replicas that differ, before anything that was merged does: the merged tensor is the first rank's alone."""
    for node in graph:
        if node.phase == OPTIMIZER or (place is not None and node is place.node):
            return None
        for row in node.outputs:
            group = ranks.get((row.step, row.name), [])
            t, g = row.target, row.golden
            if len(group) < 2 or t is None or g is None or any(x.shape != g.shape for x in group):
                continue
            text = unequal(group, t, g)
            if text:
                return _of_replicas(row, node, text, sizes, ranks, walk)
    return None


def _of_replicas(
    row: Compared, node: Node, text: str, sizes: Mapping[str, float], ranks: Ranks, walk: _Walk
) -> Finding:
    """Explain the rank that is furthest from golden."""
    case = case_of(row, node, [], sizes, ranks, walk.epsilon, walk.worst([*node.inputs, *node.before]) or 0.0)
    causes: tuple[Cause, ...] = (Cause(kinds.MISSING_REDUCTION, 0.95 if "golden" in text else 0.5, text),)
    rank = None
    if "golden" not in text and case.golden is not None and case.replicas:
        off = [float(abs(a - case.golden).max()) for a in case.replicas]
        rank = max(range(len(off)), key=off.__getitem__)
        found = explain(replace(case, target=case.replicas[rank], replicas=()))
        causes = ranked([*found, *causes]) if found[0].kind != kinds.UNKNOWN else causes
    evidence = [f"{row.name}: {text}", *(f"{c.kind} ({c.confidence:.2f}): {c.text}" for c in causes[:3])]
    if rank is not None:
        evidence.insert(1, f"the tensor of place {rank} in the list of ranks is furthest from golden")
    return Finding(
        node.base, node.phase, row.part, causes[0].kind, round(0.9 * causes[0].confidence, 3), tuple(evidence),
        causes[0].next_dump, row.name, causes, (), row.step, rank,
    )  # fmt: skip


def _nothing(walk: _Walk, hint: Hint, compared: bool) -> Finding:
    """Nothing in the dump: what the curves say alone."""
    if hint.phase and not walk.flipped:  # other experts for a few tokens move loss and norm too
        cause = Cause(kinds.UNKNOWN, 0.3, "the curves show a difference that this dump does not")
        nxt = f"{hint.phase} of step {hint.step}: every module's inputs and outputs"
        evidence = (*hint.evidence, *walk.notes)
        return Finding("", hint.phase, "", cause.kind, 0.3, evidence, nxt, causes=(cause,), step=hint.step)
    text = "no output is further from golden than rounding explains" if compared else "nothing was compared"
    evidence = (text, f"epsilon of the run: {walk.epsilon:.3g}", *walk.notes, *hint.evidence)
    return Finding("", "", "", kinds.NONE, 0.9 if compared else 0.0, evidence, kinds.NEXT_DUMP[kinds.NONE])
