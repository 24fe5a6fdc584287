"""What kind of fault a difference looks like: hypotheses, each tried on the elements, each with its confidence.

A hypothesis turns golden (and what is known beside it) into what the target would be if it were true. It is
believed by how much of the difference it takes away; nothing that leaves more than rounding is called certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_orders import permutation_causes
from telekit.accuracy.causes.cause_places import place_causes
from telekit.accuracy.causes.cause_terms import term_causes
from telekit.accuracy.causes.cause_values import (
    dtype_causes,
    overflow_causes,
    ratio_causes,
    shape_causes,
    weight_causes,
    zero_causes,
)
from telekit.accuracy.causes.finding import Cause, ranked
from telekit.accuracy.causes.rank_causes import rank_causes
from telekit.accuracy.curves.ratios import name_ratio
from telekit.accuracy.redoing.redo import REDONE

Detector = Callable[[Case], Iterator[Cause]]
_ELEMENTS: tuple[Detector, ...] = (
    weight_causes, zero_causes, ratio_causes, permutation_causes, rank_causes, *REDONE, term_causes,
    place_causes, dtype_causes,
)  # fmt: skip


_PROVEN, _GUESSED = 0.93, 0.75
"""A cause of so much confidence was made again to rounding; one of so little looks like it."""


def explain(case: Case) -> tuple[Cause, ...]:
    """Return explanations of one tensor's difference, best first; never empty.

    Parameters
    ----------
    case : Case
        The tensor with what is known beside it.

    Returns
    -------
    tuple of Cause
        ``unknown`` alone where no hypothesis takes enough of the difference away.
    """
    failed: list[str] = []
    found = _tried((shape_causes, overflow_causes), case, failed)
    if not found:
        found = _tried(_ELEMENTS if case.same_shape else (_statistics,), case, failed)
    best = ranked(found)
    if best[0].confidence >= _PROVEN:  # a guess beside it would only mislead; where it differs is a fact
        best = tuple(c for c in best if c.confidence > _GUESSED or c.kind == kinds.LOCAL)
    if not failed:
        return best
    note = f"not tried, their own failure: {'; '.join(failed)}"
    if best[0].kind == kinds.UNKNOWN:
        return (Cause(kinds.UNKNOWN, best[0].confidence, f"{best[0].text} ({note})"), *best[1:])
    return (*best, Cause(kinds.UNKNOWN, 0.0, note))


def _tried(detectors: Sequence[Detector], case: Case, failed: list[str]) -> list[Cause]:
    """Run detectors, each on its own: one that trips over a shape nobody thought of takes no other with it."""
    found: list[Cause] = []
    with_axes = _with_axes(case)
    with np.errstate(all="ignore"):
        for detector in detectors:
            of = with_axes if detector in REDONE else case
            if of is None:
                continue
            try:
                found += [c for c in detector(of) if isfinite(c.confidence)]
            except Exception as error:
                failed.append(f"{detector.__name__} ({type(error).__name__}: {error})")
    return found


def _with_axes(case: Case) -> Case | None:
    """Return what operators can be done again with: no scalar, nothing empty; None where golden itself is one."""
    if case.golden is None or not case.golden.ndim:
        return None

    def usable(known: Sequence[Known]) -> tuple[Known, ...]:
        return tuple(k for k in known if k.golden is not None and k.golden.ndim and k.golden.size)

    return replace(
        case, inputs=usable(case.inputs), parameters=usable(case.parameters), near=usable(case.near)
    )


def _statistics(case: Case) -> Iterator[Cause]:
    """Say what four statistics can tell: a factor on all of them, or nothing at all of the target."""
    s = case.summary
    if s is None:
        return
    pairs = [(s.target[k], s.golden[k]) for k in s.golden]
    known = [(t, g) for t, g in pairs if t is not None and g is not None and g]
    if known and all(t == 0 for t, _ in known):
        yield Cause(kinds.ZERO, 0.8, "every statistic of the target is 0, golden's are not")
        return
    ratios = np.array([t / g for t, g in known])
    if len(ratios) < 3:
        return
    spread = float(np.ptp(ratios) / max(abs(float(np.median(ratios))), 1e-30))
    ratio = float(np.median(ratios))
    if spread <= max(2 * case.noise, 1e-3) and abs(ratio - 1) > 3 * max(spread, case.noise):
        names = name_ratio(ratio, case.sizes, spread=spread) if ratio > 0 else ()
        said = f": {names[0].text}" if names else ""
        kind = (
            kinds.SIGN
            if abs(ratio + 1) < 0.01
            else kinds.GRADIENT_SCALING
            if case.phase == "backward"
            else kinds.SCALED
        )
        yield Cause(kind, 0.75, f"all statistics are {ratio:.4g} times golden's{said}")
