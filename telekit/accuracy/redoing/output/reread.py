"""Bytes of one format read as those of another of the same width, in an input of an operator or in its output."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import FORMATS, Floats, numpy_type
from telekit.accuracy.redoing.formula.formula import MAX_ELEMENTS, Proven, own_side

PAIRS = (
    ("float8_e5m2", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2"),
    ("bfloat16", "float16"), ("float16", "bfloat16"),
)  # fmt: skip
"""Formats of one width: what was written, and what it is read as."""
_FLIPPED = 0.06  # of an output: what elements leave that stood between two values of fp8
_LEFT = 0.2  # of the difference


def reread(x: Floats, written: str, read: str, scale: Floats | float = 1.0) -> Floats:
    """Divide by a scale, write in one format, read the bytes in another, and multiply with the scale."""
    held = (x / scale).astype(np.float32).astype(numpy_type(written))
    width = np.dtype(f"u{np.dtype(numpy_type(written)).itemsize}")
    return np.asarray(held.view(width).view(numpy_type(read)).astype(np.float64) * scale)


def _scales(x: Floats, written: str) -> Iterator[tuple[str, Floats | float]]:
    """Scales that casts to a format use: none; the largest of the tensor, a row or a column to the format's largest.

    Or a power of two near it: an odd one and an even one, as the exponent's last bit becomes the mantissa's first.
    """
    yield "", 1.0
    if not written.startswith("float8"):
        return
    most = FORMATS[written].maximum
    for axis, of in ((None, "the tensor"), (-1, "each row"), (0, "each column")):
        top = np.abs(x).max(axis=axis, keepdims=True)
        top = np.where(top > 0, top, 1.0)
        for less in (0, 1):
            yield f", scaled by the largest of {of}", 2.0**less * top / most
            yield (
                f", scaled by a power of 2 for {of}",
                2.0 ** (np.floor(np.log2(top)) - np.floor(np.log2(most)) + less),
            )


def reread_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Say with which input, or the output, reread in another format the operator gives the target."""
    t, formula = case.target, found.formula
    assert t is not None
    own = [own_side(k) for k in formula.inputs]
    if max(t.size, *(a.size for a in own)) > MAX_ELEMENTS or _fitted(found.own, t)[0] <= 2 * found.reach:
        return  # too many, or a multiple of what is right
    best: tuple[float, str] | None = None
    for (written, read), at in ((pair, at) for pair in PAIRS for at in (*range(len(own)), None)):
        x = found.own if at is None else own[at]
        if x.ndim < 2 or not (x != np.rint(x)).any():
            continue
        reach = max(found.reach, _FLIPPED) if at is None else found.reach
        what = "its output" if at is None else formula.inputs[at].name
        for said, scale in _scales(x, written):
            with np.errstate(all="ignore"):
                other = reread(x, written, read, scale)
            if not np.isfinite(other).all():
                continue
            value = other if at is None else formula.make(*own[:at], other, *own[at + 1 :])
            left, factor = _fitted(value, t)
            if left <= min(reach, _LEFT * found.own_error, _LEFT) and (best is None or left < 0.8 * best[0]):
                times = f", times {factor:.4g}" if abs(factor - 1) > reach else ""
                best = left, f"the bytes of {what}, {written}{said}, read as {read}{times}"
    if best is not None:
        text = f"{formula.name} is the target's with {best[1]} ({best[0]:.2g} of it is left)"
        yield Cause(kinds.WRONG_DTYPE, 0.96, text)


def _fitted(value: Floats, t: Floats) -> tuple[float, float]:
    """Return what a multiple of a value leaves of the target, relative to it, and which multiple."""
    square, size = float(np.vdot(value, value)), float(np.linalg.norm(t.ravel()))
    if not square or not size or value.shape != t.shape or not np.isfinite(square):
        return np.inf, 1.0
    factor = float(np.vdot(value, t)) / square
    return float(np.linalg.norm((factor * value - t).ravel())) / size, factor
