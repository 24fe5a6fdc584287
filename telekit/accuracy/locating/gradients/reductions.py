"""Reduced gradients that are not the sum of what the ranks gave: another reduction, or a sum that something changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, loaded
from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.checks.grids import NARROW
from telekit.accuracy.compared import BACKWARD, OUTPUT, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.locating.gradients.norm import reduced_rows
from telekit.accuracy.locating.walk.beside import Ranks
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import FORMATS, Floats, numpy_type
from telekit.accuracy.redoing.formula.formula import relative

_SUMS = 2e-5  # relative: what a sum in float32 may be off by, in another order
_CLEAR = 1e-3  # a difference with no known shape is said from here on


def changed_sum(graph: Sequence[Node], sizes: Mapping[str, float]) -> Finding | None:
    """Find a reduced gradient that is not the sum of what went into its reduction, where golden's is, and say why.

    For a run whose rounding elsewhere hides it: the reduction itself is exact to float32.
    """
    for node, out in reduced_rows(graph).values():
        into = next(iter(node.inputs), None)
        sides = None if into is None else _sides(into, out)
        if into is None or sides is None:
            continue
        total, value = sides
        off = relative(value, total)
        if not off > _SUMS:
            continue
        case = Case(value, total, out.name, node.base, BACKWARD, OUTPUT, sizes=sizes)
        causes = explain(case)
        if off > _CLEAR or causes[0].kind != kinds.UNKNOWN:
            more = [f"it is {off:.3g} from the sum of what went into its reduction, golden's is that sum"]
            return own_finding(node, out, BACKWARD, causes, more=more)
    return None


def _sides(into: Compared, out: Compared) -> tuple[Floats, Floats] | None:
    """Return the target's sum before a reduction and what came out; None where golden's are not one and the same."""
    total, value, g_total, g_value = (
        loaded(getattr(r, s)) for s in ("target", "golden") for r in (into, out)
    )
    if total is None or value is None or g_total is None or g_value is None:
        return None
    if total.shape != value.shape or g_total.shape != g_value.shape or relative(g_value, g_total) > _SUMS:
        return None
    return (total, value) if np.isfinite(total).all() and np.isfinite(value).all() else None


def other_reduction(into: Compared, out: Compared, ranks: Ranks) -> Cause | None:
    """Find what a reduction did in place of adding what its ranks gave: a largest, a smallest, terms rounded first."""
    if _sides(into, out) is None:
        return None
    for value, terms in _groups(into, out, ranks):
        whole = relative(np.sum(terms, axis=0), value)
        if whole <= _SUMS:
            continue
        for kind, text, made in _other_reductions(terms):
            left = relative(made, value)
            if left <= max(_SUMS, whole / _TOLD) and left < whole / 3:
                said = (
                    f"of {len(terms)} ranks' gradients {text} ({left:.2g} is left, {whole:.2g} of their sum)"
                )
                return Cause(kind, 0.94, said)
    return None


_TOLD = 8  # values below a format's range are rounded otherwise: what a rounding may leave


def _groups(into: Compared, out: Compared, ranks: Ranks) -> Iterator[tuple[Floats, list[Floats]]]:
    """Yield each reduced gradient that several ranks hold alike, with what those ranks gave; the same once only."""
    given = {t.rank: loaded(t) for t in ranks.get((into.step, into.name), [])}
    groups: dict[bytes, tuple[Floats, dict[bytes, Floats]]] = {}
    for t in ranks.get((out.step, out.name), []):
        value, term = loaded(t), given.get(t.rank)
        if value is None or term is None or value.shape != term.shape or not np.isfinite([value, term]).all():
            continue
        _, terms = groups.setdefault(value.tobytes(), (value, {}))
        terms[term.tobytes()] = term
    yield from ((value, list(terms.values())) for value, terms in groups.values() if len(terms) > 1)


def _other_reductions(terms: Sequence[Floats]) -> Iterator[tuple[str, str, Floats]]:
    every = np.stack(terms)
    yield kinds.MISSING_REDUCTION, "the largest is taken, element by element, not the sum", every.max(axis=0)
    yield kinds.MISSING_REDUCTION, "the smallest is taken, element by element, not the sum", every.min(axis=0)
    largest = np.take_along_axis(every, np.abs(every).argmax(axis=0)[None], axis=0)[0]
    yield (
        kinds.MISSING_REDUCTION,
        "that of the largest size is taken, element by element, not the sum",
        largest,
    )
    yield kinds.MISSING_REDUCTION, "the product is taken, not the sum", np.prod(every, axis=0)
    top = float(np.abs(every).max())
    for name in NARROW:
        largest_scale = 2.0 ** np.floor(np.log2(FORMATS[name].maximum / top)) if top else 1.0
        for scale in (1.0, *(largest_scale / 2.0**power for power in range(_POWERS))):
            made = (every * scale).astype(np.float32).astype(numpy_type(name)).astype(np.float64) / scale
            yield kinds.WRONG_DTYPE, f"each is rounded to {name} before they are added", made.sum(axis=0)


_POWERS = 16  # of two, below the scale at which the largest element is the format's largest
