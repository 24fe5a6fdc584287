"""Locating after the backward: the reduction of gradients, their norm and clipping, then the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Candidate, Cause, Finding, ranked
from telekit.accuracy.causes.rank_causes import rank_causes
from telekit.accuracy.compared import BACKWARD, INPUT, OPTIMIZER, OUTPUT, Compared
from telekit.accuracy.curves.ratios import name_ratio
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import FLOOR, error_of, explained, wide
from telekit.accuracy.graph.sync import Gradient, Sync, optimizer_row, read_sync
from telekit.accuracy.locating.gradients.norm import norm_fault, reduced_rows
from telekit.accuracy.locating.walk.beside import Beside
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.updating.step_causes import Around, explain_step, later_fit, stuck_rows
from telekit.accuracy.updating.updates import narrowed, same_step

_MOST = 0.6  # of the parameters: then it is not one that is wrong
_LOOKED_AT = 96


def after_backward(
    optimizer: Sequence[Node],
    gradient_errors: dict[str, float],
    epsilon: float,
    case_for: Callable[[Compared, Node], Case],
    beside: Beside,
) -> Finding | None:
    """Look between the backward and the next step, in the order things happen; None where all is as it should be.

    Parameters
    ----------
    optimizer : sequence of Node
        Updates of one step.
    gradient_errors : dict of str to float
        By parameter: error of its gradient where the backward made it.
    case_for : callable
        Makes the case of a row, with replicas.
    beside : Beside
        The reduction of gradients, norms, sizes, the steps around.
    """
    sizes, norms = beside.sizes, beside.norms
    wrong, unclip = norm_fault(beside.graph, optimizer, beside.ranks, norms, sizes)
    if wrong is not None:
        return _made(f"optimizer.{wrong.where}", OPTIMIZER, "norm", wrong.causes, (), wrong.row, ())
    sync = read_sync(optimizer, gradient_errors)
    if sync is not None:
        found = _reduction(sync, epsilon, beside, case_for) or _clipping(sync, epsilon, sizes, norms)
        if found is not None:
            return found
    return _states(optimizer) or _updates(optimizer, epsilon, beside, unclip)


def _reduction(
    sync: Sync, epsilon: float, beside: Beside, case_for: Callable[[Compared, Node], Case]
) -> Finding | None:
    """Parameters whose gradient left the backward right and reached the optimizer wrong."""
    wrong = [g for g in sync.gradients if g.wrong(epsilon)]
    unequal = _replicas(sync, case_for, beside)
    if not wrong:
        return unequal
    alike = len(wrong) == len(sync.gradients) and _one_factor(wrong, epsilon)
    if alike and sync.reported and abs(sync.norm_ratio - 1) <= 4 * epsilon:
        return None  # gradients are as their norm says; clipping took them elsewhere
    first = max(wrong, key=lambda g: g.error / explained(epsilon, g.before or 0.0))
    if len(wrong) > _MOST * len(sync.gradients):
        first = wrong[0]
    causes = _gradient_causes(first, sync, epsilon, beside.sizes, case_for)
    n, all_ = len(wrong), len(sync.gradients)
    said = (
        f"{n} of {all_} gradients reach the optimizer wrong though the backward made them right: "
        f"{', '.join(g.name for g in wrong[:4])}{'…' if n > 4 else ''}"
    )
    where = first.name if n <= _MOST * all_ else f"all gradients, the first {first.name}"
    others = tuple(
        Candidate(g.name, BACKWARD, "gradient", g.row.name, g.error, g.before, FLOOR * epsilon)
        for g in wrong
        if g is not first
    )
    return _made(f"{where} (gradient reduction)", BACKWARD, "gradient", causes, (said,), first.row, others)


def _gradient_causes(
    first: Gradient, sync: Sync, epsilon: float, sizes: Mapping[str, float],
    case_for: Callable[[Compared, Node], Case],
) -> tuple[Cause, ...]:  # fmt: skip
    """Explain the first wrong gradient as it was before clipping."""
    base = case_for(first.row, first.node)
    undo = (
        1.0
        if not sync.clips
        else float(np.linalg.norm(first.target.ravel())) / max(_norm(base.target), 1e-300)
    )
    case = Case(
        first.target, first.golden, base.name, first.name, BACKWARD, "gradient", epsilon, first.before or 0.0, sizes,
        base.inputs, (), base.near, tuple(r * undo for r in base.replicas),
        target_dtype=base.target_dtype, golden_dtype=base.golden_dtype,
    )  # fmt: skip
    return explain(case)


def _norm(array: object) -> float:
    return float(np.linalg.norm(np.asarray(array).ravel())) if array is not None else 0.0


def _one_factor(wrong: Sequence[Gradient], epsilon: float) -> bool:
    ratios = np.array([g.ratio for g in wrong])
    return bool(np.ptp(ratios) <= max(16 * epsilon, 1e-3) * abs(float(np.median(ratios))))


def _replicas(sync: Sync, case_for: Callable[[Compared, Node], Case], beside: Beside) -> Finding | None:
    """Gradients that agree with golden where they were merged, but not on every rank."""
    reduced = reduced_rows(beside.graph)
    for g in sync.gradients:
        case = case_for(g.row, g.node)
        if len(case.replicas) < 2 or case.golden is None:
            continue
        found = [c for c in rank_causes(case) if c.kind == kinds.MISSING_REDUCTION]
        apart = (
            _clipped_apart(reduced[g.name][1], case.replicas, beside) if found and g.name in reduced else None
        )
        if apart is not None:
            return _made("optimizer.clip_grad", OPTIMIZER, "norm", (apart,), (), g.row, ())
        if found:
            said = "the first rank's gradient agrees with golden, other ranks hold something else"
            return _made(
                f"{g.name} (gradient reduction)", BACKWARD, "gradient", tuple(found), (said,), g.row, ()
            )
    return None


def _clipped_apart(row: Compared, after: Sequence[Floats], beside: Beside) -> Cause | None:
    """Say that each rank has a multiple of its own of one reduced gradient: clipping differs between them."""
    before = [a for t in beside.ranks.get((row.step, row.name), []) if (a := wide(t)) is not None]
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=True)):
        return None
    factors = []
    for a, b in zip(before, after, strict=True):
        square = float(np.vdot(a, a))
        c = float(np.vdot(a, b)) / square if square else 0.0
        if not square or float(np.linalg.norm(b - c * a)) > 1e-4 * float(np.linalg.norm(b)):
            return None
        factors.append(c)
    if np.ptp(factors) <= 1e-4 * max(factors):
        return None
    said = ", ".join(f"{c:.5g}" for c in factors[:8])
    return Cause(
        kinds.CLIPPING, 0.94, f"ranks multiply the reduced gradient by different coefficients: {said}"
    )


def _clipping(
    sync: Sync, epsilon: float, sizes: Mapping[str, float], norms: tuple[float, float] | None
) -> Finding | None:
    """Find a norm that is not the gradients', or a clip that is not the norm's."""
    reported = sync.reported or norms
    if reported is None:
        return None
    limit = explained(epsilon, max((g.before or 0.0 for g in sync.gradients), default=0.0))
    norm_ratio = reported[0] / reported[1] if reported[1] else 1.0
    off = abs(norm_ratio - 1) > limit
    left = abs(sync.clip_ratio - 1) > limit
    if (not off and not left) or not isfinite(norm_ratio):
        return None
    row = sync.gradients[0].row
    if off:
        names = name_ratio(norm_ratio, sizes, quantity="norm") if norm_ratio > 0 else ()
        said = f" ({names[0].text})" if names else ""
        text = f"gradients agree, their reported norm is {norm_ratio:.5g} times golden's{said}: it is counted wrongly"
        where = "grad_norm"
    else:
        text = f"gradients and norm agree, what clipping leaves is {sync.clip_ratio:.5g} times golden's"
        where = "clip_grad"
    cause = Cause(kinds.CLIPPING, 0.92, text)
    return _made(f"optimizer.{where}", OPTIMIZER, "norm", (cause,), (), row, ())


def _states(optimizer: Sequence[Node]) -> Finding | None:
    """States or weights that already differ when the step begins, with clean gradients."""
    for node in optimizer:
        grad = optimizer_row(node, "grad")
        for key in ("exp_avg", "exp_avg_sq", "parameter"):
            row = optimizer_row(node, key, INPUT)
            if row is None or row.step:
                continue
            error = error_of(row)
            if error and error > 0.05 and (grad is None or (error_of(grad) or 0.0) < 0.01):
                kind = kinds.DIFFERENT_WEIGHTS if key == "parameter" else kinds.OPTIMIZER_STATE
                cause = Cause(kind, 0.8, f"{row.name} is off by {error:.3g} before the step")
                return _made(node.base, OPTIMIZER, key, (cause,), (), row, ())
    return None


def _updates(
    optimizer: Sequence[Node], epsilon: float, beside: Beside, unclip: float | None
) -> Finding | None:
    """Find steps that another optimizer took."""
    sizes, later = beside.sizes, beside.later
    last = {n.base: n for n in beside.before if n.phase == OPTIMIZER}
    looked, differ = 0, []
    for node in optimizer:
        errors = [e for r in node.outputs if (e := error_of(r)) is not None]
        if not errors or optimizer_row(node, "grad") is None:
            continue
        looked += 1
        if max(errors) and (not same_step(node) or narrowed(node) or stuck_rows(node, sizes)):
            differ.append(node)
    tried = differ[:: max(1, len(differ) // _LOOKED_AT)]
    found = (
        (n, explain_step(n, Around(sizes, unclip, partial(later_fit, n, later), last.get(n.base), optimizer)))
        for n in tried
    )
    wrong = [(n, ranked(causes)) for n, causes in found if causes]
    if not wrong:
        return None
    node, likely = wrong[0]
    row = optimizer_row(node, "parameter", OUTPUT) or node.outputs[0]
    said = f"{len(wrong)} of {len(tried)} updates looked at took such a step, of {looked} in all"
    few = len(wrong) * len(differ) <= _MOST * len(tried) * looked
    where = node.base if few else f"Optimizer step of all parameters, the first {node.base}"
    others = tuple(
        Candidate(n.base, OPTIMIZER, OUTPUT, n.outputs[0].name, 0.0, None, epsilon) for n, _ in wrong[1:]
    )
    return _made(where, OPTIMIZER, OUTPUT, likely, (said,), row, others)


def _made(
    where: str, phase: str, part: str, causes: tuple[Cause, ...], said: tuple[str, ...], row: Compared,
    others: tuple[Candidate, ...],
) -> Finding:  # fmt: skip
    top = causes[0]
    evidence = (*said, *(f"{c.kind} ({c.confidence:.2f}): {c.text}" for c in causes[:3]))
    return Finding(
        where, phase, part, top.kind, round(0.95 * top.confidence, 3), evidence, top.next_dump, row.name, causes,
        others, row.step, row.rank,
    )  # fmt: skip
