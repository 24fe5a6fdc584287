"""Errors by dtype, size and order, one rounding against a threshold, and standards side by side on the same data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from telekit.accuracy.measures.pairs import format_of
from telekit.accuracy.numerics.emulate import Precision
from telekit.accuracy.numerics.harness import Outcome, Trial, judge_outcome, precision_for, run_trial
from telekit.accuracy.numerics.operator_cases import Operator, Shape, operator
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.numerics.rounding_model import expected_sum, one_rounding
from telekit.accuracy.standards.verdict import Verdict
from telekit.errors import bad


@dataclass(frozen=True)
class OneRounding:
    """What rounding alone does to relative errors.

    Attributes
    ----------
    epsilon : float
        Distance from 1 to the next value of the format.
    largest, mean : float
        Relative errors of normal values: the largest possible, ``u / (1 + u)`` with ``u = epsilon / 2``, and the mean
        over the values tried.
    threshold, share_below : float
        And the share of them below the threshold.
    epsilons_hidden : float
        The threshold in epsilons: errors up to it pass unseen.
    """

    dtype: str
    epsilon: float
    largest: float
    mean: float
    threshold: float
    share_below: float
    epsilons_hidden: float


def rounding_against(
    dtype: str, threshold: float = 1e-3, *, elements: int = 1 << 16, seed: int = 0
) -> OneRounding:
    """Round values uniform in [1, 2) once, and hold their relative errors against a threshold.

    Why 1e-3 is right for one dtype and wrong for another: a perfect bf16 result is mostly above it, a perfect fp16
    one always below, and in fp32 it lets errors of thousands of epsilons through.

    Parameters
    ----------
    dtype : str
        A floating format.
    threshold : float
        Of the relative error, above 0.
    elements, seed : int
        Values tried.

    Raises
    ------
    InputError
        If the format is not known or a number is not above 0.
    """
    if not threshold > 0:
        raise bad("threshold", threshold, "must be above 0", "1e-3")
    if elements < 1:
        raise bad("elements", elements, "must be at least 1", "65536")
    epsilon = format_of(dtype).epsilon
    x = np.random.default_rng(seed).uniform(1, 2, elements)
    error = np.abs(rounded(x, dtype) - x) / x
    largest = epsilon / 2 / (1 + epsilon / 2)
    below = float(np.mean(error < threshold))
    return OneRounding(dtype, epsilon, largest, float(error.mean()), threshold, below, threshold / epsilon)


@dataclass(frozen=True)
class ErrorPoint:
    """Errors of one output against fp64.

    Attributes
    ----------
    terms : int
        Terms of the operator's longest sum; 0 if it has none.
    relative : float
        Norm of the error over the norm of the golden; NaN if a side is not finite.
    epsilons : float
        The same in epsilons of the dtype.
    max_abs, max_relative : float
        Over elements; the relative one where golden is not zero.
    expected : float or None
        Of a sum of products with signs at random: see `expected_error`. None for operators that are no such sum, and
        for the order ``native``, which promises none.
    """

    operator: str
    output: str
    dtype: str
    order: str
    terms: int
    relative: float
    epsilons: float
    max_abs: float
    max_relative: float
    expected: float | None


def error_sweep(
    of: str | Operator,
    *,
    dtypes: Iterable[str] = ("bfloat16",),
    orders: Iterable[str] = ("sequential",),
    sizes: Sequence[int] = (),
    shape: Shape | None = None,
    values: str = "normal",
    precision: Precision | None = None,
    seed: int = 0,
) -> tuple[ErrorPoint, ...]:
    """Run an operator over dtypes, orders of summation and lengths of its longest sum.

    Parameters
    ----------
    of : str or Operator
        Which.
    dtypes, orders : iterable of str
        Tried in all combinations.
    sizes : sequence of int
        Lengths of the longest sum (``terms`` of the operator); its default if empty.
    shape : mapping, optional
        Other dimensions.
    values : str
        Range of values.
    precision : Precision, optional
        As in `telekit.accuracy.numerics.harness.run`; the order is replaced. ``Precision(d, d, d)`` runs
        operation by operation in the dtype.
    seed : int
        Of the inputs: the same for all points of a size.

    Raises
    ------
    InputError
        If a name is not known, or sizes are given for an operator without a sum.
    """
    chosen = operator(of)
    if sizes and not chosen.terms:
        raise bad("sizes", tuple(sizes), f"{chosen.name} has no sum; give a shape")
    orders = tuple(orders)
    points: list[ErrorPoint] = []
    for dtype in dtypes:
        for size in sizes or (0,):
            whole = chosen.complete({**(shape or {}), **({chosen.terms: size} if size else {})})
            for order in orders:
                own = replace(precision_for(precision, dtype), order=order)
                outcome = run_trial(chosen, Trial(0, whole, values, seed), own, device=own)
                points += _points(outcome, own, whole.get(chosen.terms, 0))
    return tuple(points)


def _points(outcome: Outcome, p: Precision, terms: int) -> list[ErrorPoint]:
    found = []
    for output, golden in outcome.golden.items():
        if golden.dtype.kind in "iub":
            continue
        with np.errstate(all="ignore"):
            error = np.abs(outcome.target[output].astype(np.float64) - golden)
            relative = float(np.linalg.norm(error) / np.linalg.norm(golden))
            each = (error / np.abs(golden))[golden != 0]
        found.append(
            ErrorPoint(
                outcome.operator,
                output,
                p.dtype,
                p.order,
                terms,
                relative,
                relative / format_of(p.dtype).epsilon,
                float(error.max(initial=0.0)),
                float(each.max(initial=0.0)),
                expected_error(p, terms) if outcome.operator == "matmul" and p.order != "native" else None,
            )
        )
    return found


def expected_error(precision: Precision, terms: int) -> float:
    """Return the expected relative error of a matrix product of ``terms`` terms, signs at random, against fp64.

    Raises
    ------
    InputError
        If the order is ``native``, or ``terms`` is below 1.
    """
    p = precision
    bits = format_of(p.dtype).mantissa + 1
    inexact = 2 * bits > format_of(p.accumulate).mantissa + 1
    summed = expected_sum(terms, p.accumulate, p.order, block=p.block, parts=p.parts, rounded_terms=inexact)
    coarser = [d for d in {p.compute, p.dtype} if format_of(d).mantissa < format_of(p.accumulate).mantissa]
    stored = max((one_rounding(d) for d in coarser), default=0.0)
    return float(np.hypot(summed, stored))


def side_by_side(
    of: str | Operator,
    standards: Iterable[str],
    *,
    dtype: str = "bfloat16",
    precision: Precision | None = None,
    device: Precision | None = None,
    shape: Shape | None = None,
    values: str = "normal",
    seed: int = 0,
    disturb: float = 0.0,
) -> dict[str, dict[str, Verdict]]:
    """Judge one result by several standards: verdicts by standard, then output.

    Parameters
    ----------
    disturb : float
        A fault: every floating output is too large by this part, before it is rounded to the dtype again. Shows what a
        standard lets through.
    of, standards, dtype, precision, device, shape, values, seed
        As in `telekit.accuracy.numerics.harness.run`.
    """
    chosen = operator(of)
    own = precision_for(precision, dtype)
    trial = Trial(0, chosen.complete(shape), values, seed)
    outcome = run_trial(chosen, trial, own, device=device)
    if disturb:
        target = {
            n: x if x.dtype.kind in "iub" else rounded(x.astype(np.float64) * (1 + disturb), dtype)
            for n, x in outcome.target.items()
        }
        outcome = replace(outcome, target=target)
    return {name: judge_outcome(outcome, name) for name in standards}
