"""Two arrays as blocks of float64, small enough to stay in cache; what may be compared, and what is refused."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem

# BLAS starts threads for a dot product above 10,000 elements; shorter rows keep one tensor on one core.
ROW = 8192
# Two float64 blocks are 4 MB: they stay in the last-level cache, and numpy's cost per call stays small.
BLOCK = 32 * ROW
KEPT = 128  # blocks between two releases of mapped pages: 128 MB of float32

Floats = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A floating-point format: stored mantissa bits, exponent of the smallest normal, largest finite value."""

    mantissa: int
    min_exponent: int
    maximum: float

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next value."""
        return 2.0**-self.mantissa


FORMATS = {
    "float64": Format(52, -1022, float(np.finfo(np.float64).max)),
    "float32": Format(23, -126, float(np.finfo(np.float32).max)),
    "float16": Format(10, -14, 65504.0),
    "bfloat16": Format(7, -126, float.fromhex("0x1.fep127")),
    "float8_e4m3fn": Format(3, -6, 448.0),
    "float8_e5m2": Format(2, -14, 57344.0),
    "float4_e2m1fn": Format(1, 0, 6.0),
}
ACCEPTED_TOGETHER = frozenset({"float16", "bfloat16", "float32"})
_SMALL = ("bfloat16", "float8_", "float6_", "float4_", "int4", "uint4", "int2", "uint2")


def dtype_name(array: Array) -> str:
    """Name of the element type, whatever the byte order."""
    return array.dtype.newbyteorder("=").name


def format_of(dtype: str) -> Format:
    """Return the format of a floating dtype.

    Raises
    ------
    InputError
        If it is not one of ``FORMATS``.
    """
    if dtype not in FORMATS:
        problem = Problem("dtype", dtype, "not a known floating format", f"one of {', '.join(FORMATS)}")
        raise InputError([problem])
    return FORMATS[dtype]


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Return NumPy's or ``ml_dtypes``' own type of one of ``FORMATS``."""
    if dtype in ("float16", "float32", "float64"):
        return np.dtype(dtype)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
    return found


def checked(
    *arrays: Any, names: tuple[str, ...] = ("target", "golden"), complex_too: bool = False
) -> list[Array]:
    """Return the inputs as arrays of numbers.

    Parameters
    ----------
    *arrays : array_like
        Of bool, integers, floats up to 64 bits, or an ``ml_dtypes`` type.
    names : tuple of str
        What to call them in an error.
    complex_too : bool
        Whether complex numbers are allowed.

    Raises
    ------
    InputError
        For every input that is masked, not numeric, or wider than 64 bits.
    """
    problems, found = [], []
    for name, value in zip(names, arrays, strict=True):
        rule = ""
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            problems.append(Problem(name, type(value).__name__, f"cannot be read as an array: {error}"))
            continue
        if isinstance(value, np.ma.MaskedArray):
            rule = "a masked array has no agreed comparison; fill it or select the valid part first"
        elif not _numeric(array, complex_too):
            rule = "must hold real numbers of at most 64 bits; view a complex array as pairs of floats"
        if rule:
            problems.append(Problem(name, f"{type(value).__name__} of {array.dtype}", rule))
        found.append(array)
    if problems:
        raise InputError(problems)
    return found


def _numeric(array: Array, complex_too: bool) -> bool:
    dtype = array.dtype
    if dtype.kind == "c":
        return complex_too and dtype.itemsize <= 16
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or dtype.name.startswith(_SMALL)


def native(array: Array) -> Array:
    """Return the same values in this machine's byte order; a view where they already are."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def whole_numbers(*arrays: Array) -> bool:
    """Whether all hold integers or bools, whose differences can be taken exactly."""
    return all(a.dtype.kind in "biu" or a.dtype.name.startswith(("int", "uint")) for a in arrays)


def exact_distance(target: Array, golden: Array) -> Floats:
    """Return ``|target - golden|`` of whole numbers, exact before it is rounded to float64 and 0 only where equal.

    float64 cannot tell 2**53 from 2**53 + 1. The types may differ in width, sign and byte order.
    """
    own = [native(a) for a in (target, golden)]
    wide = [a if a.dtype == np.uint64 else a.astype(np.int64) for a in own]
    larger = [w.view(np.uint64) for w in wide]
    below = [w < 0 if w.dtype == np.int64 else np.zeros(w.shape, bool) for w in wide]
    top, low = np.maximum(*larger), np.minimum(*larger)
    found: Floats = np.where(below[0] == below[1], top - low, 0).astype(np.float64)
    apart = below[0] != below[1]
    if apart.any():  # one is negative: its size and the other's are added
        sizes = [np.where(b, (~w) + np.uint64(1), w) for b, w in zip(below, larger, strict=True)]
        found[apart] = sizes[0][apart].astype(np.float64) + sizes[1][apart].astype(np.float64)
    return found


def same_shape(target: Array, golden: Array) -> None:
    """Raise InputError unless the shapes are equal."""
    if target.shape != golden.shape:
        raise InputError([Problem("target", target.shape, f"must have golden's shape {golden.shape}")])


def on_grid(values: Floats, dtype: str) -> Array:
    """Of each value, whether it has no more digits than a format's mantissa, whatever its range."""
    return np.asarray(values == to_grid(values, dtype))


def to_grid(values: Floats, dtype: str) -> Floats:
    """Round to the digits of a format's mantissa, to nearest, whatever its range."""
    mantissa, exponent = np.frexp(values)
    digits = 2.0 ** (FORMATS[dtype].mantissa + 1)
    return np.asarray(np.ldexp(np.rint(mantissa * digits) / digits, exponent))


def flat(array: Array) -> Array:
    """One dimension, in C order; a view where the array allows it."""
    return array.reshape(-1)


def blocks(*arrays: Array) -> Iterator[tuple[slice, list[Any]]]:
    """Yield slices of arrays of one shape, and those parts as float64 (complex128 for complex)."""
    rows = [flat(a) for a in arrays]
    for nth, start in enumerate(range(0, rows[0].size, BLOCK)):
        part = slice(start, min(start + BLOCK, rows[0].size))
        with np.errstate(invalid="ignore"):  # a signalling NaN complains when it is cast
            wide = [r[part].astype(np.complex128 if r.dtype.kind == "c" else np.float64) for r in rows]
        yield part, wide
        if nth % KEPT == KEPT - 1:
            release(*rows)


def release(*arrays: Array) -> None:
    """Let go of the pages of mapped files that arrays are views of; they come back when touched again.

    A pass over a file larger than the memory then holds no more of it than it looks at. Other arrays stay as they are.
    """
    for array in arrays:
        base = array
        while isinstance(base, np.ndarray):
            base = base.base  # type: ignore[assignment]
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                base.madvise(mmap.MADV_DONTNEED)


def relative_epsilon(target: Array, golden: Array) -> float:
    """Epsilon of the two types promoted to float32 or wider: what msprobe adds where golden is zero."""
    own = [a.dtype.newbyteorder("=") for a in (target, golden)]
    wide = [d for d in own if not d.name.startswith(_SMALL)]  # of those numpy knows no common type
    return float(np.finfo(np.result_type(np.float32, *wide)).eps)
