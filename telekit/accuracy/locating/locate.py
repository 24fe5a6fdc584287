"""Where two runs first part: the first operator whose inputs agree within rounding and whose output does not.

Everything after it differs too; those are consequences. What is asked of a user is a dump of one step of both
runs (forward and backward of each module or API, statistics or elements), and if there are some, the parameters
around the optimizer, a few steps of losses and gradient norms, and the unmerged tensors of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isinf

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known, case_of, elsewhere, known_rows
from telekit.accuracy.causes.finding import Candidate, Cause, Finding, ranked
from telekit.accuracy.checks.replicas import by_name, unequal
from telekit.accuracy.compared import BACKWARD, FORWARD, INPUT, OPTIMIZER, Compared
from telekit.accuracy.curves.ratios import name_ratio
from telekit.accuracy.graph.nodes import Node, containers, maker_of, module_path, nodes
from telekit.accuracy.graph.noise import is_float, run_epsilon
from telekit.accuracy.graph.routing import routes
from telekit.accuracy.graph.sync import gradient_names
from telekit.accuracy.locating.gradients.optimizer import after_backward
from telekit.accuracy.locating.own.checks import own_fault, start_fault, update_fault, with_loss, with_weights
from telekit.accuracy.locating.phase_hint import Hint, Pair, balance_ratio, numbers, phase_hint
from telekit.accuracy.locating.walk.beside import Beside, Ranks
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.locating.walk.handed_on import changed_inputs
from telekit.accuracy.locating.walk.walk import Place, Walk
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.redoing.redo import kept_to

WEAK = 2.0  # an excess below this needs a known shape to be believed
_STRUCTURED = 0.6
_EXPLAINED = 0.75


def locate(
    rows: Sequence[Compared],
    *,
    losses: Pair | None = None,
    norms: Pair | None = None,
    sizes: Mapping[str, float] | None = None,
    replicas: Sequence[NamedTensor] | None = None,
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
    walk = Walk(eps, min((n.step for n in graph), default=0))
    before: Sequence[Node] = ()
    for step in sorted({n.step for n in graph}):
        own = [n for n in graph if n.step == step]
        later = [n for n in graph if n.step > step and n.phase == OPTIMIZER]
        at = step - walk.first_step
        beside = Beside(ranks, size, own, before, later, _at(losses, at, "loss"), _at(norms, at))
        with np.errstate(all="ignore"):  # NaN and Inf are what some faults make
            found = _one_step(walk, hint, beside)
        if found is not None:
            return found
        before = own
    return _balance(graph, walk, balance_ratio(losses), size) or _nothing(walk, hint, bool(rows))


def _one_step(walk: Walk, hint: Hint, beside: Beside) -> Finding | None:
    """Walk through one step: forward and backward, then the reduction of gradients and the optimizer."""
    graph, sizes, ranks = beside.graph, beside.sizes, beside.ranks
    walk.begin(graph)
    for node in graph:
        if node.phase != OPTIMIZER:
            walk.visit(node)
    place, causes = _choose(walk, graph, sizes, ranks)
    own = own_fault(graph, beside, None if place is None else place.node, walk.notes)
    if own is not None:
        return replace(own, evidence=(*own.evidence, *walk.notes, *hint.beside(own.phase)))
    if place is not None:
        causes = with_weights(place, with_loss(place.node, graph, causes))
    early = _unequal_finding(graph, ranks, sizes, walk, place)
    if early is not None:
        return replace(early, evidence=(*early.evidence, *walk.notes, *hint.beside(early.phase)))
    if place is not None:
        return _finding(place, causes, walk, hint)
    optimizer = [n for n in graph if n.phase == OPTIMIZER]

    made = [n for n in graph if n.kind == "gradient"]

    def case_for(row: Compared, node: Node) -> Case:
        return case_of(row, node, made, sizes, ranks, walk.epsilon, 0.0)

    found = (
        start_fault(graph, beside)
        or after_backward(optimizer, walk.gradients, walk.epsilon, case_for, beside)
        or update_fault(graph, beside)
    )
    walk.end(graph, optimizer)
    return (
        None
        if found is None
        else replace(found, evidence=(*found.evidence, *walk.notes, *hint.beside(found.phase)))
    )


def _at(pair: Pair | None, index: int, which: str = "norm") -> tuple[float, float] | None:
    """Values of one step of two curves."""
    if pair is None:
        return None
    t, g = (numbers(side, which) for side in pair)
    return (float(t[index]), float(g[index])) if 0 <= index < min(t.size, g.size) else None


def _targets(rows: Sequence[Compared]) -> list[NamedTensor]:
    return [r.target for r in rows if r.target is not None and r.target.rank is not None]


def _choose(
    walk: Walk, graph: Sequence[Node], sizes: Mapping[str, float], ranks: Ranks
) -> tuple[Place | None, tuple[Cause, ...]]:
    """Return the first place that holds up to a closer look, with its explanations."""
    inner = containers(graph)
    blamed = {module_path(p.node.base) for p in walk.found if p.node.base not in inner}
    redone, right = _redone_places(walk, graph, sizes) if walk.epsilon > 1e-4 else ([], set())
    strong = {id(p.node): at for at, p in enumerate(walk.found)}
    order = {id(n): at for at, n in enumerate(graph)}
    places = sorted([*walk.found, *redone], key=lambda p: (order[id(p.node)], id(p.node) not in strong))
    for place in places:
        if id(place.row) in right and place.row.part != INPUT:
            walk.notes.append(
                f"{place.candidate.tensor}: what its operator makes of its own inputs, so not to blame"
            )
            continue
        path = module_path(place.node.base)
        same_phase = {module_path(p.node.base) for p in walk.found if p.node.phase == place.node.phase}
        if place.node.base in inner and any(b.startswith(path + ".") for b in blamed & same_phase):
            continue
        causes = explain(_case(place, walk, graph, sizes, ranks))
        sure = _EXPLAINED if place.redone else _STRUCTURED
        if place.strength >= WEAK or causes[0].confidence >= sure:
            return place, causes
        walk.notes.append(
            f"{place.candidate.tensor}: {place.candidate.error:.3g} is {place.strength:.1f} times what rounding "
            "explains and has no shape of a fault: not counted"
        )
    return None, ()


def _redone_places(
    walk: Walk, graph: Sequence[Node], sizes: Mapping[str, float]
) -> tuple[list[Place], set[int]]:
    """Find outputs that are not what their operator makes of the target's own inputs; rows that are, by id.

    What the inputs are off by does not count here, so these limits hold where those of size are wide.
    """
    found: list[Place] = []
    right: set[int] = set()
    inner = containers(graph)
    for node in graph:
        if node.phase == OPTIMIZER or node.base in inner or "reduce" in node.base.lower():
            continue
        found += changed_inputs(node, walk, lambda p: _case(p, walk, graph, sizes, {}, reach=_REACH))
        before = walk.worst([*node.inputs, *node.parameters, *node.before])
        for row in node.outputs:
            error = walk.error(row)
            if not error or isinf(error) or not is_float(row) or (walk.flipped and routes(node.base)):
                continue
            bare = Place(Candidate(node.base, node.phase, row.part, row.name, error, before, 0.0), node, row)
            made = kept_to(_case(bare, walk, graph, sizes, {}, reach=1))
            if made is None or made.formula.hands_on:
                continue
            if made.own_error <= made.limit:
                right.add(id(row))
            elif len(found) < _MOST_REDONE:
                told = replace(bare.candidate, error=made.own_error, limit=made.limit)
                found.append(replace(bare, candidate=told, redone=True))
    return found, right


_MOST_REDONE = 8
_REACH = 24
"""So many operators before a place are looked at."""


def _case(
    place: Place,
    walk: Walk,
    graph: Sequence[Node],
    sizes: Mapping[str, float],
    ranks: Ranks,
    reach: int = _REACH,
) -> Case:
    node, row = place.node, place.row
    at = next(i for i, n in enumerate(graph) if n is node)
    near = [n for n in graph[max(0, at - reach) : at + 1] if n.phase != OPTIMIZER]
    extra: tuple[Known, ...] = ()
    if "reduce" in node.base.lower():  # what stands near a gradient's reduction are other gradients
        near = [n for n in graph if n.kind == "gradient"]
        made = [n for n in near if any(f".{gradient_names(n, r)}." in f"{node.base}." for r in n.outputs)]
        node = replace(node, before=[*node.before, *(r for n in made for r in n.before)])
        extra = known_rows([walk.earlier[row.name]], EARLIER) if row.name in walk.earlier else ()
    if id(row) in walk.sources:
        node = replace(node, before=[*node.before, walk.sources[id(row)]])
    case = case_of(row, node, near, sizes, ranks, walk.epsilon, place.candidate.inputs_error or 0.0)
    pool = elsewhere(row, graph[: at + 1], [n for n in graph if n.phase != OPTIMIZER], walk.past)
    return replace(case, phase=place.candidate.phase, near=(*case.near, *extra), pool=pool)


def _finding(place: Place, causes: tuple[Cause, ...], walk: Walk, hint: Hint) -> Finding:
    c = place.candidate
    before = (
        "no input was dumped" if c.inputs_error is None else f"its inputs are off by {c.inputs_error:.3g}"
    )
    size = (
        "cannot be compared"
        if isinf(c.error)
        else f"is off by {c.error:.3g}, {c.error / walk.epsilon:.3g} epsilons"
    )
    said = f"{c.tensor} {size}; {before}, so rounding explains at most {c.limit:.3g}"
    if place.redone and c.part == INPUT:
        said = (
            f"{c.tensor} is off by {c.error:.3g} from the output that it is in golden, to the bit: changed between "
            "two operators"
        )
    elif place.redone:
        said = (
            f"{c.tensor} is off by {c.error:.3g} from what its operator makes of its own inputs; golden keeps to that "
            f"so well that rounding explains at most {c.limit:.3g}"
        )
    evidence = [
        said,
        *(f"{cause.kind} ({cause.confidence:.2f}): {cause.text}" for cause in causes[:3]),
        *place.row.notes,
        *walk.notes,
        *hint.beside(c.phase),
    ]
    sure = min(1.0, 0.5 + 0.1 * min(place.strength, 5.0))
    if hint.against(c.phase):
        evidence.append(f"the curves point at {hint.phase}, the dump at {c.phase}: the dump is believed")
        sure *= 0.9
    others = tuple(p.candidate for p in walk.found if p is not place)
    cause = causes[0]
    return Finding(
        _operator(place), c.phase, c.part, cause.kind, round(sure * cause.confidence, 3), tuple(evidence),
        cause.next_dump, c.tensor, causes, others, place.row.step, place.row.rank,
    )  # fmt: skip


def _operator(place: Place) -> str:
    """Name the operator; for an input that nobody dumped as an output, who usually makes it."""
    if place.candidate.part != INPUT:
        return place.node.base
    maker = maker_of(place.node.base) if place.node.phase == FORWARD else ""
    return f"{place.node.base} input ({maker})" if maker else f"{place.node.base} input"


def _unequal_finding(
    graph: Sequence[Node], ranks: Ranks, sizes: Mapping[str, float], walk: Walk, place: Place | None
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
    row: Compared, node: Node, text: str, sizes: Mapping[str, float], ranks: Ranks, walk: Walk
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


def _balance(
    graph: Sequence[Node], walk: Walk, ratio: float | None, sizes: Mapping[str, float]
) -> Finding | None:
    """Nothing in the dump, but the logged load-balancing loss is a multiple of golden's: its gradient is as well.

    Beside the language model's gradient it may be below rounding. Which router cannot be told: the backward's first.
    """
    if ratio is None or abs(ratio - 1) < 0.25 or walk.flipped:
        return None
    routers = [
        n for n in graph if n.phase == BACKWARD and any(w in n.base.lower() for w in ("router", "gating"))
    ]
    names = name_ratio(ratio, sizes) if ratio > 0 else ()
    said = f": {names[0].text}" if names else ""
    text = f"the logged load-balancing loss is {ratio:.4g} times golden's in every step{said}"
    cause = Cause(kinds.LOSS_TERM, 0.75, text)
    evidence = (text, "no tensor of the dump is further from golden than rounding explains", *walk.notes)
    first = routers[0] if routers else None
    return Finding(
        first.base if first else "", BACKWARD, "", cause.kind, 0.75 if first else 0.5, evidence, cause.next_dump,
        causes=(cause,), step=first.step if first else None,
    )  # fmt: skip


def _nothing(walk: Walk, hint: Hint, compared: bool) -> Finding:
    """Nothing in the dump: what the curves say alone."""
    if hint.phase and not walk.flipped:  # other experts for a few tokens move loss and norm too
        cause = Cause(kinds.UNKNOWN, 0.3, "the curves show a difference that this dump does not")
        nxt = f"{hint.phase} of step {hint.step}: every module's inputs and outputs"
        evidence = (*hint.evidence, *walk.notes)
        return Finding("", hint.phase, "", cause.kind, 0.3, evidence, nxt, causes=(cause,), step=hint.step)
    text = "no output is further from golden than rounding explains" if compared else "nothing was compared"
    evidence = (text, f"epsilon of the run: {walk.epsilon:.3g}", *walk.notes, *hint.evidence)
    return Finding("", "", "", kinds.NONE, 0.9 if compared else 0.0, evidence, kinds.NEXT_DUMP[kinds.NONE])
