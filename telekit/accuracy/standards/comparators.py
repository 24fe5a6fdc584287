"""Smaller comparators that people already use: checkpoints, single points of a run, rollout against training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.pairs import Array, blocks, checked, same_shape
from telekit.accuracy.standards.verdict import WARNING, Verdict, check, conclude
from telekit.errors import InputError, Problem

ROLLOUT_LIMIT = 0.01


@dataclass(frozen=True)
class SinglePoint:
    """msprobe's single-point comparison over the part that both shapes have.

    Attributes
    ----------
    same_share, within_thousandth, within_hundredth : float
        Shares of elements that are equal, and whose relative error is at most 0.001 and 0.01.
    first_difference : tuple of int or None
        Index of the first element that differs, in C order.
    max_abs_error, max_relative_error : float
        The relative one is against ``max(|a|, |b|)``, so it is symmetric. Inf where only one side is finite.
    target_shape, golden_shape, common_shape : tuple of int
        What was given, and what was compared.
    """

    same_share: float
    within_thousandth: float
    within_hundredth: float
    first_difference: tuple[int, ...] | None
    max_abs_error: float
    max_relative_error: float
    target_shape: tuple[int, ...]
    golden_shape: tuple[int, ...]
    common_shape: tuple[int, ...]


def single_point(target: Any, golden: Any) -> SinglePoint:
    """Compare two tensors of one point of a run, cut to the shape they have in common.

    Raises
    ------
    InputError
        If the numbers of dimensions differ, or nothing is in common.
    """
    a, b = checked(target, golden)
    common = tuple(min(m, n) for m, n in zip(a.shape, b.shape, strict=False))
    if a.ndim != b.ndim or 0 in common:
        rule = f"must share a non-empty corner with golden's {b.shape}"
        raise InputError([Problem("target", a.shape, rule)])
    corner = tuple(slice(n) for n in common)
    return _single(a[corner], b[corner], a.shape, b.shape)


def _single(a: Array, b: Array, target_shape: tuple[int, ...], golden_shape: tuple[int, ...]) -> SinglePoint:
    same = thousandth = hundredth = 0
    first, top, top_relative = None, 0.0, 0.0
    with np.errstate(all="ignore"):
        for part, (x, y) in blocks(a, b):
            equal = (x == y) | (np.isnan(x) & np.isnan(y))
            error = np.where(equal, 0.0, np.abs(x - y))
            error[np.isnan(error)] = np.inf
            relative = np.where(equal, 0.0, error / np.maximum(np.abs(x), np.abs(y)))
            relative[~np.isfinite(relative)] = np.inf
            same += int(np.count_nonzero(equal))
            thousandth += int(np.count_nonzero(relative <= 0.001))
            hundredth += int(np.count_nonzero(relative <= 0.01))
            top, top_relative = max(top, float(error.max())), max(top_relative, float(relative.max()))
            if first is None and not equal.all():
                first = tuple(int(i) for i in np.unravel_index(part.start + int(equal.argmin()), a.shape))
    n = a.size
    return SinglePoint(
        same / n, thousandth / n, hundredth / n, first, top, top_relative, target_shape, golden_shape, a.shape
    )


def checkpoint_row(target: Any, golden: Any) -> dict[str, Any]:
    """Return msprobe's row of a checkpoint comparison: ``l2``, ``cos``, ``numel``, ``shape``; None is not defined.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    a, b = checked(target, golden)
    same_shape(a, b)
    m = compare_arrays(a, b)
    return {"l2": m.euclidean_distance, "cos": m.cosine, "numel": a.size, "shape": list(a.shape)}


def judge_rollout(rollout: Any, actor: Any, mask: Any = None) -> Verdict:
    """Judge the log-probabilities of a rollout against those of the actor that is trained.

    Parameters
    ----------
    rollout, actor : array_like
        Natural log-probabilities, at most 0, per token.
    mask : array_like of bool, optional
        Tokens that count.

    Returns
    -------
    Verdict
        A warning when ``|exp(rollout) - exp(actor)|`` is above 0.01 for a token.

    Raises
    ------
    InputError
        If shapes differ, or a counted value is no log-probability.

    Notes
    -----
    verl's train and inference consistency: above 0.01 is abnormal.
    """
    a, b = checked(rollout, actor, names=("rollout", "actor"))
    same_shape(a, b)
    counted = np.ones(a.shape, bool) if mask is None else np.asarray(mask)
    if counted.shape != a.shape or counted.dtype != np.bool_:
        raise InputError(
            [Problem("mask", f"{counted.dtype} {counted.shape}", f"must be bool of shape {a.shape}")]
        )
    x, y = (v[counted].astype(np.float64) for v in (a, b))
    wrong = [
        Problem(n, float(v[~(v <= 0)][0]), "a log-probability is at most 0")
        for n, v in (("rollout", x), ("actor", y))
        if not (v <= 0).all()
    ]
    if wrong:
        raise InputError(wrong)
    gap = np.abs(np.exp(x) - np.exp(y))
    above = int(np.count_nonzero(gap > ROLLOUT_LIMIT))
    note = f"{above} of {gap.size} tokens above"
    value = float(gap.max(initial=0.0))
    part = check("probability gap", value, not above, f"<= {ROLLOUT_LIMIT}", level=WARNING, note=note)
    return conclude([part], "verl-rollout", "verl: |exp(logp_rollout) - exp(logp_actor)| per token, masked")
