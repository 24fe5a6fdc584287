"""The figures of two tensors by msprobe's rules: what it compares, what it refuses first, what it calls them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import ACCEPTED_TOGETHER, Array, checked, dtype_name, relative_epsilon
from telekit.accuracy.measures.sums import Side, Sums, pair_sums

COMPARED, SHAPES_DIFFER, POSITIONS_DIFFER, EMPTY = "compared", "shapes differ", "positions differ", "empty"
MSPROBE_ZERO = float(np.finfo(np.float64).eps)  # a norm up to this is zero to msprobe
_ROUNDED_ABOVE = 0.9999


@dataclass(frozen=True)
class Statistics:
    """Figures of one tensor, over its finite values; None where it has none.

    ``nan`` and ``infinite`` count the others.
    """

    maximum: float | None
    minimum: float | None
    mean: float | None
    l2norm: float | None
    nan: int = 0
    infinite: int = 0

    @property
    def finite(self) -> bool:
        """Whether every value is finite."""
        return self.nan == self.infinite == 0


@dataclass(frozen=True)
class Metrics:
    """The comparison of one tensor with its golden.

    Every figure is float64 whatever the tensors' types, and None where it is not defined; ``messages`` say why.

    Attributes
    ----------
    status : str
        ``compared``, ``shapes differ``, ``positions differ`` (of NaN or Inf) or ``empty``. Only the first has
        figures.
    cosine, euclidean_distance, max_abs_error, max_relative_error : float or None
        msprobe's ``Cosine`` (not rounded), ``EucDist``, ``MaxAbsErr``, ``MaxRelativeErr``.
    one_thousandth_ratio, five_thousandths_ratio : float or None
        Share of elements with a relative error below 0.001 and below 0.005.
    max_abs_place, max_relative_place : tuple of int or None
        Index of the element with the largest error (the first of equals).
    target, golden : Statistics or None
        Figures of each side; None where shapes differ.
    elements : int
        Elements of the target.
    opposite_infinities : int
        Places where both are infinite with opposite signs: msprobe does not look at the sign.
    direction : float or None
        The cosine whatever the size of the norms, where ``cosine`` takes those up to 2.2e-16 for zero; None where
        one is exactly zero, and for one element.
    """

    status: str
    target_shape: tuple[int, ...]
    golden_shape: tuple[int, ...]
    target_dtype: str
    golden_dtype: str
    elements: int
    cosine: float | None = None
    euclidean_distance: float | None = None
    max_abs_error: float | None = None
    max_relative_error: float | None = None
    one_thousandth_ratio: float | None = None
    five_thousandths_ratio: float | None = None
    max_abs_place: tuple[int, ...] | None = None
    max_relative_place: tuple[int, ...] | None = None
    target: Statistics | None = None
    golden: Statistics | None = None
    opposite_infinities: int = 0
    direction: float | None = None
    messages: tuple[str, ...] = ()

    @property
    def dtypes(self) -> str:
        """``same``, ``accepted`` (both of fp16, bf16, fp32) or ``different``."""
        if self.target_dtype == self.golden_dtype:
            return "same"
        return "accepted" if {self.target_dtype, self.golden_dtype} <= ACCEPTED_TOGETHER else "different"

    @property
    def identical(self) -> bool:
        """Whether every value is equal (NaN to NaN, Inf to Inf of the same sign; -0.0 to 0.0)."""
        return self.status == EMPTY or (self.max_abs_error == 0 and self.opposite_infinities == 0)

    @property
    def norm_ratio(self) -> float | None:
        """Target's norm over golden's: what the cosine cannot see."""
        if self.target is None or self.golden is None or not self.golden.l2norm:
            return None
        return None if self.target.l2norm is None else self.target.l2norm / self.golden.l2norm

    @property
    def relative_norm_error(self) -> float | None:
        """Norm of the difference over golden's norm, as TTrace takes it."""
        distance = self.max_abs_error if not self.target_shape else self.euclidean_distance
        if distance is None or self.golden is None or not self.golden.l2norm:
            return None
        return distance / self.golden.l2norm

    def columns(self) -> dict[str, Any]:
        """Return msprobe's columns of tensor mode, in its order; undefined ones read ``N/A`` or ``unsupported``."""
        missing = {SHAPES_DIFFER: "shape unmatched", EMPTY: "None"}.get(self.status, "N/A")
        scalar = self.status == COMPARED and not self.target_shape
        absent = "unsupported" if scalar else missing
        cosine = self.cosine
        if cosine is not None and cosine > _ROUNDED_ABOVE:
            cosine = round(cosine, 6)
        one = "unsupported" if self.status == COMPARED and self.elements == 1 else absent
        if self.status == COMPARED and cosine is None and self.elements > 1:
            one = "Nan"
        row = {
            "Cosine": one if cosine is None else cosine,
            "EucDist": _or(self.euclidean_distance, absent),
            "MaxAbsErr": _or(self.max_abs_error, missing),
            "MaxRelativeErr": _or(self.max_relative_error, missing),
            "One Thousandth Err Ratio": _or(self.one_thousandth_ratio, absent),
            "Five Thousandths Err Ratio": _or(self.five_thousandths_ratio, absent),
        }
        for name, side in (("NPU", self.target), ("Bench", self.golden)):
            for label, key in (
                ("max", "maximum"),
                ("min", "minimum"),
                ("mean", "mean"),
                ("l2norm", "l2norm"),
            ):
                row[f"{name} {label}"] = _or(getattr(side, key, None), "N/A")
        return row


def _or(value: float | None, otherwise: str) -> float | str:
    return otherwise if value is None else value


def compare_arrays(target: Any, golden: Any) -> Metrics:
    """Compare a tensor with its golden.

    Both are read once, in blocks that stay in cache, so that memory beyond the arrays is a few MB.
    The checks come in msprobe's order: shape, then empty, then scalar, then NaN and Inf. Where NaN and Inf
    stand at the same places, these are set to zero on both sides and count as equal elements. Where golden is
    zero, the epsilon of the two types promoted to at least float32 is added to both before dividing (without
    the rounding of that sum, which is below 2**-53 of it).

    Parameters
    ----------
    target, golden : array_like
        Real numbers of any type up to 64 bits, or an ``ml_dtypes`` type; bool counts as 0 and 1.

    Returns
    -------
    Metrics
        See there; shapes that differ are an answer, not an error.

    Raises
    ------
    InputError
        If an input does not hold real numbers, or is masked.

    Notes
    -----
    Rules of msprobe at commit 8ff00da3, ``python/msprobe/core/compare/npy_compare.py``.

    Examples
    --------
    >>> round(compare_arrays([1, 2, 3, 4.005], [1.0, 2, 3, 4]).max_relative_error, 9)
    0.00125
    """
    a, b = checked(target, golden)
    head: dict[str, Any] = {
        "target_shape": a.shape,
        "golden_shape": b.shape,
        "target_dtype": dtype_name(a),
        "golden_dtype": dtype_name(b),
        "elements": a.size,
    }
    messages = [] if head["target_dtype"] == head["golden_dtype"] else [_dtype_message(head)]
    if a.shape != b.shape:
        text = f"shapes differ: target {a.shape}, golden {b.shape}"
        return Metrics(SHAPES_DIFFER, **head, messages=(text, *messages))
    if a.size == 0:
        empty = Statistics(None, None, None, None)
        return Metrics(
            EMPTY,
            **head,
            target=empty,
            golden=empty,
            messages=("both are empty: nothing to compare", *messages),
        )
    sums = pair_sums(a, b, relative_epsilon(a, b))
    head |= {"target": _statistics(sums.target, a.size), "golden": _statistics(sums.golden, a.size)}
    head["opposite_infinities"] = sums.opposite_infinities
    if not sums.positions_match:
        text = "NaN or Inf stand at different places: nothing else is compared"
        return Metrics(POSITIONS_DIFFER, **head, messages=(text, *messages))
    return _compared(sums, a, head, messages)


def _compared(sums: Sums, array: Array, head: dict[str, Any], messages: list[str]) -> Metrics:
    special = head["target"].nan + head["target"].infinite
    if special:
        messages.append(f"{special} NaN or Inf at the same places on both sides: not compared")
    if sums.opposite_infinities:
        messages.append(f"{sums.opposite_infinities} infinities have opposite signs")
    figures: dict[str, Any] = {"max_abs_error": sums.max_abs, "max_relative_error": sums.max_relative}
    if array.ndim == 0:
        messages.append("a scalar: only the absolute and the relative error are defined")
    else:
        figures |= {
            "cosine": _cosine(sums, array.size, messages),
            "direction": sums.cosine
            if array.size > 1 and sums.target.squares and sums.golden.squares
            else None,
            "euclidean_distance": sums.distance,
            "one_thousandth_ratio": sums.below_one / array.size,
            "five_thousandths_ratio": sums.below_five / array.size,
        }
    for key, index in (("abs", sums.max_abs_index), ("relative", sums.max_relative_index)):
        figures[f"max_{key}_place"] = tuple(int(i) for i in np.unravel_index(index, array.shape))
    return Metrics(COMPARED, **head, **figures, messages=tuple(messages))


def _cosine(sums: Sums, size: int, messages: list[str]) -> float | None:
    """By msprobe's guards; what it leaves undefined is None with a message."""
    if size == 1:
        messages.append("one element: no cosine")
        return None
    zero = [side.norm <= MSPROBE_ZERO for side in (sums.target, sums.golden)]
    if all(zero):
        messages.append("both norms are zero: the cosine is not defined, msprobe writes 1.0")
        return 1.0
    if any(zero):
        messages.append(f"{'target' if zero[0] else 'golden'} is all zeros: no cosine")
        return None
    return sums.cosine


def _dtype_message(head: dict[str, Any]) -> str:
    return f"types differ: target {head['target_dtype']}, golden {head['golden_dtype']}"


def _statistics(side: Side, size: int) -> Statistics:
    finite = size - side.nan - side.infinite
    if not finite:
        return Statistics(None, None, None, None, side.nan, side.infinite)
    return Statistics(side.maximum, side.minimum, side.total / finite, side.norm, side.nan, side.infinite)
