"""The gradient norm and clipping of one side, checked by its own dumped gradients: exact in any precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.norms import NormName, OwnGradients, name_norm
from telekit.accuracy.compared import INPUT, OUTPUT, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import key_of, optimizer_row, parameter_name
from telekit.accuracy.locating.walk.beside import Ranks
from telekit.accuracy.measures.pairs import Floats

_SUMS = 3e-5  # relative: sums of squares in float32
_ALIKE = 1e-4  # of a gradient: what a multiple of another leaves
_ELEMENTS = 1 << 26  # of all gradients together: more are not loaded at once
_TOTAL = ("total_norm", "grad_norm", "global_norm")


@dataclass(frozen=True)
class Wrong:
    """A norm or a clipping that is not what it should be: where, why, and the row."""

    where: str
    causes: tuple[Cause, ...]
    row: Compared


@dataclass(frozen=True)
class Clipping:
    """What one side did to its gradients: coefficient by parameter, what a multiple leaves, and the reported norm."""

    coefficients: dict[str, float]
    left: dict[str, float]
    reported: float
    norms: dict[str, float]

    @property
    def coefficient(self) -> float:
        """The coefficient that most gradients were multiplied by."""
        return float(np.median(list(self.coefficients.values())))


def reduced_rows(graph: Sequence[Node]) -> dict[str, tuple[Node, Compared]]:
    """Return the reduced gradients of a step by parameter: ``Gradient.{parameter}.reduce``'s output."""
    found = {}
    for node in graph:
        tokens = node.base.split(".")
        if tokens[0].lower() == "gradient" and "reduce" in tokens and node.outputs:
            found[".".join(tokens[1 : tokens.index("reduce")])] = (node, node.outputs[0])
    return found


def norm_fault(
    graph: Sequence[Node], optimizer: Sequence[Node], ranks: Ranks, norms: tuple[float, float] | None,
    sizes: Mapping[str, float],
) -> tuple[Wrong | None, float | None]:  # fmt: skip
    """Check the target's reported norm and clipping by its own gradients.

    Returns
    -------
    Wrong or None
        None where all is as golden does it, and where nothing tells.
    float or None
        One over the coefficient that the target clipped with.
    """
    rows = reduced_rows(graph)
    total = next((r for n in optimizer for r in n.outputs if key_of(r) in _TOTAL), None)
    reported = _reported(total) or norms
    if sum(int(np.prod(r.golden.shape or ())) for _, r in rows.values() if r.golden is not None) > _ELEMENTS:
        return None, None
    whole = {side: _arrays(rows, side) for side in ("target", "golden")}
    if reported is None or not whole["golden"] or whole["target"].keys() != whole["golden"].keys():
        return None, None
    golden = OwnGradients(whole["golden"])
    if not golden.norm or abs(reported[1] / golden.norm - 1) > 1e-3:
        return None, None  # golden counts something else: nothing is known of how it should be counted
    tolerance = max(_SUMS, 4 * abs(reported[1] / golden.norm - 1))
    target = OwnGradients(whole["target"], *(_by_rank(rows, ranks, part) for part in (OUTPUT, INPUT)))
    row = total if total is not None else next(iter(rows.values()))[1]
    clipped = {side: _clipping(rows, optimizer, side, r) for side, r in zip(whole, reported, strict=True)}
    t, g = clipped["target"], clipped["golden"]
    unclip = 1 / t.coefficient if t is not None and t.coefficient > 0 else None
    found = _of_norm(reported, target, sizes, tolerance, row, _each_rank(total, ranks))
    if found is None and t is not None and g is not None:
        found = _of_clipping(t, g, row)
    return found, unclip


def _of_norm(
    reported: tuple[float, float], own: OwnGradients, sizes: Mapping[str, float], tolerance: float, row: Compared,
    each: Sequence[float],
) -> Wrong | None:  # fmt: skip
    if not own.norm or (isfinite(reported[0]) and abs(reported[0] / own.norm - 1) <= tolerance):
        return None
    names = name_norm(reported[0], own, sizes, tolerance, reported[1]) or (
        NormName("no simple mistake in counting gives that", 0.75),
    )
    said = f"the reported norm {reported[0]:.6g} is {reported[0] / own.norm:.6g} times that of the gradients it is of"
    others = f" (ranks report {', '.join(f'{x:.5g}' for x in each[:4])})" if len(set(each)) > 1 else ""
    causes = tuple(Cause(kinds.CLIPPING, n.likely, f"{said}{others}: {n.text}") for n in names[:3])
    return Wrong("grad_norm", causes, row)


def _of_clipping(t: Clipping, g: Clipping, row: Compared) -> Wrong | None:
    """Find a clipping that is not golden's rule for the target's own norm."""
    if max(g.left.values()) > _ALIKE or np.ptp(list(g.coefficients.values())) > _ALIKE * g.coefficient:
        return None
    limit = g.coefficient * g.reported if g.coefficient < 1 - _ALIKE else None
    expected = min(1.0, limit / t.reported) if limit is not None else 1.0
    if limit is None and t.reported > g.reported * (1 + 1e-3) and t.coefficient < 1:
        return None  # golden does not clip and the target, whose norm is larger, may rightly
    text = _by_value(t) or _uneven(t, expected, limit) or _other_coefficient(t, expected, limit)
    return Wrong("clip_grad", (Cause(kinds.CLIPPING, 0.93, text),), row) if text else None


def _by_value(t: Clipping) -> str:
    odd = [n for n, left in t.left.items() if left > 1e-3]
    if not odd:
        return ""
    some = f"{len(odd)} of {len(t.left)} gradients, the first {odd[0]},"
    return f"{some} are no multiple of what the reduction left: clipped by value, or changed between norm and step"


def _uneven(t: Clipping, expected: float, limit: float | None) -> str:
    """Say where weights were clipped apart from each other."""
    values = t.coefficients
    if np.ptp(list(values.values())) <= 1e-3 * max(values.values()):
        return ""
    if limit is not None and all(
        abs(c / min(1.0, limit / t.norms[n]) - 1) < 1e-3 for n, c in values.items() if t.norms[n]
    ):
        return f"each weight's gradient is clipped by its own norm to {limit:.4g}, not all by the norm of all"
    off = [n for n, c in values.items() if abs(c / expected - 1) > 1e-3]
    some = ", ".join(off[:4]) + ("…" if len(off) > 4 else "")
    free = all(abs(values[n] - 1) < 1e-3 for n in off)
    how = (
        "not clipped"
        if free
        else f"multiplied by {values[off[0]]:.5g} instead of {expected:.5g}"
        if off
        else ""
    )
    return f"{len(off)} of {len(values)} gradients are {how}: {some}" if off else ""


def _other_coefficient(t: Clipping, expected: float, limit: float | None) -> str:
    c = t.coefficient
    if abs(c / expected - 1) <= 1e-3 if expected else True:
        return ""
    said = f"gradients are multiplied by {c:.5g} where their norm {t.reported:.5g} asks for {expected:.5g}"
    if abs(c - 1) < 1e-4:
        return f"{said}: the clipping coefficient is not applied"
    if abs(c / expected**2 - 1) < 1e-3:
        return f"{said}: it is applied twice"
    if abs(c * expected - 1) < 1e-3:
        return f"{said}: they are divided by the coefficient"
    if limit is not None and abs(c * t.reported / limit - 1) < 1e-3:
        return f"{said}: a norm below the limit is scaled up to it"
    if limit is not None and abs(c * t.reported**2 / limit - 1) < 1e-3:
        return f"{said}: divided by the square of the norm"
    if limit is not None:
        return f"{said}: the limit is {c * t.reported:.4g} instead of {limit:.4g}"
    return f"{said}: golden's are left as they are"


def _reported(row: Compared | None) -> tuple[float, float] | None:
    if row is None:
        return None
    t, g = wide(row.target), wide(row.golden)
    return (
        None
        if t is None or g is None or not t.size or not g.size
        else (float(t.ravel()[0]), float(g.ravel()[0]))
    )


def _each_rank(row: Compared | None, ranks: Ranks) -> list[float]:
    if row is None:
        return []
    found = (wide(t) for t in ranks.get((row.step, row.name), []))
    return [float(a.ravel()[0]) for a in found if a is not None and a.size]


def _arrays(rows: Mapping[str, tuple[Node, Compared]], side: str) -> dict[str, Floats]:
    arrays = {name: wide(getattr(row, side)) for name, (_, row) in rows.items()}
    return {name: a for name, a in arrays.items() if a is not None}


def _by_rank(rows: Mapping[str, tuple[Node, Compared]], ranks: Ranks, part: str) -> list[dict[str, Floats]]:
    """Return what each rank holds of the gradients, before (the input) or after their reduction."""
    found: dict[int, dict[str, Floats]] = {}
    for name, (node, out) in rows.items():
        row = out if part == OUTPUT else next(iter(node.inputs), None)
        for t in ranks.get((row.step, row.name), []) if row is not None else []:
            array = wide(t)
            if array is not None and t.rank is not None:
                found.setdefault(t.rank, {})[name] = array
    return [found[r] for r in sorted(found)]


def _clipping(
    rows: Mapping[str, tuple[Node, Compared]], optimizer: Sequence[Node], side: str, reported: float
) -> Clipping | None:
    """Return by what each gradient was multiplied between its reduction and the optimizer."""
    coefficients, left, norms = {}, {}, {}
    for node in optimizer:
        row, name = optimizer_row(node, "grad"), parameter_name(node)
        if row is None or name not in rows:
            continue
        before, after = wide(getattr(rows[name][1], side)), wide(getattr(row, side))
        if before is None or after is None or before.shape != after.shape or not before.any():
            continue
        square = float(np.vdot(before, before))
        c = float(np.vdot(after, before)) / square
        size = float(np.linalg.norm(after.ravel()))
        coefficients[name], norms[name] = c, square**0.5
        left[name] = float(np.linalg.norm((after - c * before).ravel())) / size if size else 0.0
    return Clipping(coefficients, left, reported, norms) if coefficients else None
