"""What kind of fault a difference looks like: hypotheses, each tried on the elements, each with its confidence.

A hypothesis turns golden (and what is known beside it) into what the target would be if it were true. It is
believed by how much of the difference it takes away; nothing that leaves more than rounding is called certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_places import place_causes
from telekit.accuracy.causes.cause_terms import term_causes
from telekit.accuracy.causes.cause_values import (
    dtype_causes,
    overflow_causes,
    permutation_causes,
    ratio_causes,
    shape_causes,
    zero_causes,
)
from telekit.accuracy.causes.finding import Cause, ranked
from telekit.accuracy.causes.rank_causes import rank_causes
from telekit.accuracy.causes.redo import redo_causes
from telekit.accuracy.curves.ratios import name_ratio

Detector = Callable[[Case], Iterator[Cause]]
_ELEMENTS: tuple[Detector, ...] = (
    zero_causes, ratio_causes, permutation_causes, rank_causes, redo_causes, term_causes, place_causes, dtype_causes,
)  # fmt: skip


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
    found = [*shape_causes(case), *overflow_causes(case)]
    if not found and case.same_shape:
        with np.errstate(all="ignore"):
            for detector in _ELEMENTS:
                found += [c for c in detector(case) if isfinite(c.confidence)]
    elif not found:
        found += _statistics(case)
    return ranked(found)


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
