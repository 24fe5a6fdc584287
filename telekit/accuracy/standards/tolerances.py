"""Element tolerances of the libraries: ``|actual - expected| <= atol + rtol * |expected|``, and whether it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.accuracy.measures.pairs import (
    blocks,
    checked,
    dtype_name,
    exact_distance,
    flat,
    same_shape,
    whole_numbers,
)
from telekit.errors import InputError, Problem


@dataclass(frozen=True)
class Library:
    """One library's tolerances.

    Attributes
    ----------
    table : dict of str to (float, float)
        ``(rtol, atol)`` by type; ``*`` is for all others.
    equal_nan : bool
        Whether NaN equals NaN.
    by_size : bool
        Whether both are multiplied by the number of elements.
    """

    source: str
    table: dict[str, tuple[float, float]]
    equal_nan: bool = False
    by_size: bool = False


_TORCH = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
    "*": (0.0, 0.0),
}
_TE = _TORCH | {
    "float8_e4m3fn": (0.125, 0.0675),
    "float8_e5m2": (0.25, 0.125),
    "float4_e2m1fn": (0.25, 0.125),
}
_JAX = {
    "float8_e4m3fn": 1e-1,
    "float8_e5m2": 1e-1,
    "bfloat16": 1e-2,
    "float16": 1e-3,
    "float32": 1e-6,
    "float64": 1e-15,
    "complex64": 1e-6,
    "complex128": 1e-15,
    "*": 0.0,
}
_JAX_GRADIENTS = {"bfloat16": 1e-1, "float16": 1e-2, "float32": 2e-3, "float64": 1e-5}
_TF = {
    "float16": 10 * 2.0**-10,
    "bfloat16": 10 * 2.0**-7,
    "float32": 10 * 2.0**-23,
    "float64": 10 * 2.0**-52,
}


def _both(table: dict[str, float]) -> dict[str, tuple[float, float]]:
    return {dtype: (value, value) for dtype, value in table.items()}


LIBRARIES = {
    "torch": Library("torch.testing.assert_close", _TORCH),
    "numpy-allclose": Library("numpy.allclose", {"*": (1e-5, 1e-8)}),
    "numpy-assert": Library("numpy.testing.assert_allclose", {"*": (1e-7, 0.0)}, equal_nan=True),
    "jax": Library("jax test_util.assertAllClose", _both(_JAX), equal_nan=True),
    "jax-gradient": Library("jax test_util.check_grads", _both(_JAX_GRADIENTS), equal_nan=True, by_size=True),
    "jax-check-close": Library("jax public_test_util.check_close", _both(_JAX), equal_nan=True, by_size=True),
    "tensorflow": Library("tf.debugging.assert_near, 10 epsilon", _both(_TF)),
    "transformer-engine": Library("TransformerEngine tests, dtype_tols", _TE),
    "transformer-engine-tf32": Library(
        "TransformerEngine distributed tests in TF32 take fp16's pair (PR 1831)",
        _TE | {"float32": _TORCH["float16"]},
    ),
}


def tolerance(library: str, *dtypes: str) -> tuple[float, float]:
    """Return ``(rtol, atol)`` of a library for one type, or the looser of several.

    Raises
    ------
    InputError
        If the library is not known, or has no tolerance for a type.
    """
    if library not in LIBRARIES:
        raise InputError([Problem("library", library, f"must be one of {', '.join(LIBRARIES)}")])
    table = LIBRARIES[library].table
    missing = [d for d in dtypes if d not in table and "*" not in table]
    if missing or not dtypes:
        hint = f"dtype= one of {', '.join(table)}"
        raise InputError([Problem("dtype", ", ".join(missing), f"{library} has no tolerance for it", hint)])
    rows = [table.get(d, table.get("*", (0.0, 0.0))) for d in dtypes]
    return max(r[0] for r in rows), max(r[1] for r in rows)


@dataclass(frozen=True)
class Closeness:
    """How many elements lie outside a tolerance, and the worst of them.

    ``worst_excess`` is the largest of ``|a - e| - (atol + rtol * |e|)`` among those outside, at ``worst_place``;
    Inf where only one side is NaN or Inf. Both are None when all are inside.
    """

    outside: int
    share: float
    rtol: float
    atol: float
    worst_excess: float | None
    worst_place: tuple[int, ...] | None
    elements: int


def closeness(actual: Any, expected: Any, rtol: float, atol: float, *, equal_nan: bool = False) -> Closeness:
    """Count the elements outside ``|actual - expected| <= atol + rtol * |expected|``.

    Parameters
    ----------
    actual, expected : array_like
        Of one shape, real or complex; not symmetric: the tolerance grows with ``expected``.
    rtol, atol : float
        At least 0.
    equal_nan : bool
        Whether NaN equals NaN.

    Raises
    ------
    InputError
        If the shapes differ, or a tolerance is negative or NaN.
    """
    a, b = checked(actual, expected, names=("actual", "expected"), complex_too=True)
    same_shape(a, b)
    wrong = [
        Problem(n, v, "must be 0 or more", "1e-5") for n, v in (("rtol", rtol), ("atol", atol)) if not v >= 0
    ]
    if wrong:
        raise InputError(wrong)
    outside, worst, place = 0, -np.inf, None
    exact = (flat(a), flat(b)) if whole_numbers(a, b) else None  # float64 cannot tell 2**53 from 2**53 + 1
    with np.errstate(all="ignore"):
        for part, (x, y) in blocks(a, b):
            error = np.abs(x - y) if exact is None else exact_distance(exact[0][part], exact[1][part])
            equal = x == y if exact is None else error == 0
            if equal_nan:
                equal |= np.isnan(x) & np.isnan(y)
            excess = error - (atol + rtol * np.abs(y))
            excess[~(np.isfinite(x) & np.isfinite(y))] = np.inf
            bad = (excess > 0) & ~equal
            count = int(np.count_nonzero(bad))
            outside += count
            if count and (top := float(excess[bad].max())) > worst:
                index = part.start + int(np.argmax(np.where(bad, excess, -np.inf)))
                worst, place = top, tuple(int(i) for i in np.unravel_index(index, a.shape))
    return Closeness(
        outside, outside / max(a.size, 1), rtol, atol, worst if place is not None else None, place, a.size
    )


def library_closeness(actual: Any, expected: Any, library: str, dtype: str = "") -> Closeness:
    """Judge closeness with a library's own tolerances for the two types, or for ``dtype``.

    Raises
    ------
    InputError
        As `tolerance` and `closeness`.
    """
    a, b = checked(actual, expected, names=("actual", "expected"), complex_too=True)
    rtol, atol = tolerance(library, *((dtype,) if dtype else (dtype_name(a), dtype_name(b))))
    own = LIBRARIES[library]
    factor = a.size if own.by_size else 1
    return closeness(a, b, rtol * factor, atol * factor, equal_nan=own.equal_nan)
