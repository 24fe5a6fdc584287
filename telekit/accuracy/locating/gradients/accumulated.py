"""Gradients summed over micro-batches and ranks, checked by their own terms: exact where golden's rounding is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import loaded
from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.checks.grids import FEWEST, NARROW, Grid, share_on_grid
from telekit.accuracy.compared import BACKWARD, PARAMETERS_GRAD, Compared
from telekit.accuracy.graph.nodes import Node, module_path
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import gradient_names
from telekit.accuracy.locating.gradients.norm import reduced_rows
from telekit.accuracy.locating.gradients.reductions import other_reduction
from telekit.accuracy.locating.walk.beside import Ranks
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import FORMATS, Floats

_ALL = 0.999  # of the values that a format holds
_COUNTED = 0.02  # a factor is told from one, and from nothing, by so much
_SUMS = 2e-5  # relative: what a sum in float32 may be off by, in another order


def own_sums(graph: Sequence[Node], ranks: Ranks) -> Finding | None:
    """Find a main gradient that is its micro-batches' sum in a narrower format, or a reduced one its ranks'."""
    rows = reduced_rows(graph)
    terms = _terms(graph, ranks)
    for name, (node, out) in rows.items():
        into = next(iter(node.inputs), None)
        if into is None:
            continue
        found = (
            _narrow_sum(name, into, ranks, terms)
            or _lost_terms(name, into, ranks, terms, graph)
            or _reduced(into, out)
            or other_reduction(into, out, ranks)
        )
        if found is not None:
            return own_finding(node, out, BACKWARD, (found,))
    return None


def _terms(graph: Sequence[Node], ranks: Ranks) -> dict[tuple[str, int], list[Floats]]:
    """By parameter and rank: the gradient that each micro-batch made."""
    step = next((r.step for n in graph for r in n.rows), None)
    found: dict[tuple[str, int], list[Floats]] = {}
    for (at, name), tensors in ranks.items():
        base, middle, rest = name.partition(f".{PARAMETERS_GRAD}.")
        if at != step or not middle:
            continue
        parameter = f"{module_path(base)}.{rest.partition('.')[2]}"
        for t in tensors:
            array = loaded(t)
            if array is not None and t.rank is not None:
                found.setdefault((parameter, t.rank), []).append(array)
    return found


def _narrow_sum(
    name: str, into: Compared, ranks: Ranks, terms: Mapping[tuple[str, int], list[Floats]]
) -> Cause | None:
    """Find a sum over micro-batches kept in a narrower format: the sum of its terms has digits beyond it."""
    for t in ranks.get((into.step, into.name), []):
        parts = terms.get((name, t.rank), []) if t.rank is not None else []
        kept = wide(t) if len(parts) > 1 else None
        if kept is None or any(p.shape != kept.shape for p in parts):
            continue
        total = np.sum(parts, axis=0)
        grid = _rounded_to(kept, total)
        if grid is not None:
            text = (
                f"every value of the main gradient is a {grid.dtype} in the target, the sum of its {len(parts)} "
                f"micro-batches is not (rank {t.rank}): accumulated in {grid.dtype}"
            )
            return Cause(kinds.WRONG_DTYPE, 0.94, text)
    return None


def _lost_terms(
    name: str,
    into: Compared,
    ranks: Ranks,
    terms: Mapping[tuple[str, int], list[Floats]],
    graph: Sequence[Node],
) -> Cause | None:
    """Find a main gradient in which some of its micro-batches' gradients do not count, or not once."""
    made = (r for n in graph if n.kind == "gradient" for r in n.outputs if gradient_names(n, r) == name)
    row = next(made, None)
    golden = None if row is None else (loaded(row.golden), loaded(into.golden))
    if golden is None or golden[0] is None or golden[1] is None or not _same(golden[1], golden[0]):
        return None
    for t in ranks.get((into.step, into.name), []):
        parts = terms.get((name, t.rank), []) if t.rank is not None else []
        kept = wide(t) if len(parts) > 1 else None
        if kept is None or any(p.shape != kept.shape for p in parts) or not np.isfinite([kept, *parts]).all():
            continue
        if not all(p.any() for p in parts):
            continue  # an expert that no token of a micro-batch reached
        matrix = np.stack([p.ravel() for p in parts], axis=1)
        factors, _, rank, _ = np.linalg.lstsq(matrix, kept.ravel(), rcond=1e-9)
        if (
            rank < len(parts)
            or not _same(kept, (matrix @ factors).reshape(kept.shape))
            or np.abs(factors - 1).max() < _COUNTED
        ):
            continue
        if np.ptp(factors) < _COUNTED:
            continue  # one factor on all: of which count, other checks tell
        times = [round(float(f), 2) + 0.0 for f in factors]
        text = f"of the gradients of {len(parts)} micro-batches (rank {t.rank}) the main gradient counts {times} times"
        return Cause(_kind_of(np.asarray(factors)), 0.96, f"{text}: they should all be in it once")
    return None


def _kind_of(factors: Floats) -> str:
    """Return the class of terms that count so many times: one left out, one taken several times, or scaled apart."""
    if np.abs(factors).min() < _COUNTED:
        return kinds.MISSING_TERM
    whole = np.rint(factors)
    more = bool((np.abs(factors - whole) < _COUNTED).all() and whole.min() == 1)
    return kinds.EXTRA_TERM if more else kinds.SCALED


def _reduced(into: Compared, out: Compared) -> Cause | None:
    """Compare a reduced gradient with the sum of what went into its reduction, where golden's is that sum."""
    before, after, g_before, g_after = (
        loaded(getattr(r, s)) for s in ("target", "golden") for r in (into, out)
    )
    if before is None or after is None or g_before is None or g_after is None:
        return None
    if before.shape != after.shape or g_before.shape != g_after.shape or not _same(g_after, g_before):
        return None
    grid = _rounded_to(after, before)
    if grid is None:
        return None
    text = f"every value of the reduced gradient is a {grid.dtype}, the sum over ranks is not: reduced in it"
    return Cause(kinds.WRONG_DTYPE, 0.93, text)


def _rounded_to(value: Floats, total: Floats) -> Grid | None:
    """Return the format whose rounding is all that stands between a value and the sum it should be."""
    size = float(np.linalg.norm(total.ravel()))
    off = float(np.linalg.norm((value - total).ravel()))
    if not _SUMS * size < off:
        return None
    grid = _narrower(value, total)
    return grid if grid is not None and off <= 2 * FORMATS[grid.dtype].epsilon * size else None


def _narrower(value: Floats, total: Floats) -> Grid | None:
    """Return the narrowest format that holds every value, where the sum itself has some that it does not hold.

    The sum is known here, not guessed from another run: a few of its values tell.
    """
    for dtype in NARROW:
        mine, other = share_on_grid(value, dtype), share_on_grid(total, dtype)
        if mine >= _ALL:
            return Grid(dtype, mine, other) if (1 - other) * np.count_nonzero(total) >= FEWEST else None
    return None


def _same(value: Floats, total: Floats) -> bool:
    size = float(np.linalg.norm(total.ravel()))
    return float(np.linalg.norm((value - total).ravel())) <= _SUMS * size
