"""Causes that another tensor explains: a bias, a residual or a shared part that is missing or counted twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known
from telekit.accuracy.causes.cause_values import ratio_names, taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats

_TIED = ("embed", "output_layer", "lm_head", "wte")


def term_causes(case: Case) -> Iterator[Cause]:
    """Try whether the difference is a multiple of something known, or the same for every token."""
    yield from _same_for_tokens(case)
    yield from _multiple(case)
    yield from _replaced(case)


def _same_for_tokens(case: Case) -> Iterator[Cause]:
    """Find a row vector added to all rows: a bias."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if t.ndim < 2 or t.size // t.shape[-1] < 3:
        return
    mean = (t - g).reshape(-1, t.shape[-1]).mean(axis=0)
    share = taken_away(case, g + mean)
    if not share:
        return
    for k in (*case.parameters, *case.near):
        b = k.golden
        if b is None or b.size != mean.size or not b.any() or b.ndim > 1:
            continue
        c, close = _fit(mean, b.ravel())
        if close > 0.97:
            yield Cause(
                _kind(c),
                0.95 * share,
                f"the difference is {c:.3g} times {k.name} for every token{_times(c, case)}",
            )
            return
    yield Cause(
        kinds.MISSING_TERM,
        0.7 * share,
        "the difference is the same vector for every token: a bias or another constant term",
    )


def _multiple(case: Case) -> Iterator[Cause]:
    t, g = case.target, case.golden
    assert t is not None and g is not None
    d = (t - g).ravel()
    best: tuple[float, float, Known] | None = None
    for k in (*case.inputs, *case.parameters, *case.near):
        for side in (k.golden, k.target):
            if (
                side is None
                or side.size != d.size
                or d.size < 4
                or not side.any()
                or not np.isfinite(side).all()
            ):
                continue
            if abs(_fit(g.ravel(), side.ravel())[1]) > 0.999:
                continue  # golden itself: a factor, not a term
            c, close = _fit(d, side.ravel())
            share = taken_away(case, g + (c * side).reshape(g.shape))
            if share and abs(close) > 0.9 and abs(c) > 1e-3 and (best is None or share > best[0] + 0.02):
                best = (share, c, k)
    if best is not None:
        share, c, k = best
        sure = 0.95 if min(abs(c - n) for n in (-1.0, 1.0, -0.5, 0.5)) < 0.05 else 0.8
        text = f"target less golden is {c:.4g} times {k.name}{_times(c, case)}"
        if _copies(case, k):
            text += "; the copies of a tied weight must hold the sum of their gradients"
            yield Cause(kinds.MISSING_REDUCTION if c < 0 else kinds.DUPLICATED, 0.96 * share, text)
        kind = kinds.STALE if k.name.endswith(EARLIER) and c > 0 else _kind(c)
        yield Cause(kind, sure * share, text)


def _copies(case: Case, known: Known) -> bool:
    """Whether two gradients are those of an embedding and of an output layer that shares its weight."""
    both = [any(w in n.lower() for w in _TIED) for n in (case.name, known.name)]
    return all(both) and case.phase == BACKWARD and not _same_weight(case, known)


def _same_weight(case: Case, known: Known) -> bool:
    """Whether both names are of one module."""
    return any(w in case.name.lower() and w in known.name.lower() for w in _TIED)


def _replaced(case: Case) -> Iterator[Cause]:
    """Try whether the target is one of its inputs: the operator, or all other terms of the sum, were left out."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    for k in (*case.inputs, *case.near):
        for side in (k.golden, k.target):
            if (
                side is None
                or side.shape != t.shape
                or not side.any()
                or k.golden is None
                or k.golden.size != g.size
            ):
                continue
            if abs(_fit(g.ravel(), k.golden.ravel())[1]) > 0.999:
                continue  # the same tensor under another name
            share = taken_away(case, side)
            if share > 0.9:
                yield _instead(case, k, share)
                return


def _instead(case: Case, k: Known, share: float) -> Cause:
    """Say what it means that the target is another tensor."""
    text = f"target equals {k.name}"
    if k.name.endswith(EARLIER):
        return Cause(kinds.STALE, 0.93 * share, f"{text}: not yet written anew, or read too early")
    if _beside(case, k):
        text = f"{text}, another output of the same call: they stand in each other's place"
        return Cause(kinds.PERMUTATION, 0.92 * share, text)
    if _of_another(case, k):
        return Cause(
            kinds.DIFFERENT_INPUTS, 0.93 * share, f"{text}: another parameter's gradient stands in its place"
        )
    text = f"{text}: what should have been done to it, or added, was left out"
    return Cause(kinds.MISSING_TERM, 0.85 * share, text)


def _of_another(case: Case, known: Known) -> bool:
    """Whether a reduced gradient is compared with the gradient of another parameter."""
    kind, _, rest = case.operator.partition(".")
    module = rest.partition(".reduce")[0].rpartition(".")[0]
    return kind.lower() == "gradient" and ".reduce" in rest and f".{module}." not in f".{known.name}."


def _beside(case: Case, known: Known) -> bool:
    """Whether a tensor is another output of the same call."""
    own, _, key = case.name.rpartition(".")
    return key.isdecimal() and known.name.rpartition(".")[0] == own and ".output" in own


def _fit(values: Floats, of: Floats) -> tuple[float, float]:
    """Return the factor and the cosine between two flat arrays."""
    square = float(np.vdot(of, of))
    norm = float(np.linalg.norm(values)) * square**0.5
    dot = float(np.vdot(values, of))
    return (dot / square if square else 0.0), (dot / norm if norm else 0.0)


def _kind(factor: float) -> str:
    return kinds.MISSING_TERM if factor < 0 else kinds.EXTRA_TERM


def _times(factor: float, case: Case) -> str:
    """Say it where the factor is a size less one: the term was added once for each rank."""
    if abs(factor + 1) < 0.05:
        return ": it is missing"
    names = [n for n, s in case.summed.items() if s > 1 and abs(factor - (s - 1)) < 0.02 * s]
    if names:
        return f": it is counted {case.summed[names[0]]:g} times, once for each rank of {' or '.join(names)}"
    part = ratio_names(case, 1 + factor) if -0.999 < factor < 0 else ()
    if part and part[0].confidence > 0.3:
        return f": it counts {1 + factor:.3g} times ({part[0].text})"
    return ": it is counted twice" if abs(factor - 1) < 0.05 else ""
