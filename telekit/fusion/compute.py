"""The NumPy calls behind the operators that are not ufuncs, written once for the unfused reference and the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.fusion.ops import dtype_name, numpy_dtype, wide_dtype
from telekit.fusion.shapes import Shape, text

Array = np.ndarray[Any, Any]

_UFUNC: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
_NOTHING = {"max": -np.inf, "min": np.inf}


def bind(
    wanted: Mapping[str, tuple[Shape, str]], given: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Value of each named size, from the shapes of the arrays that are given.

    Parameters
    ----------
    wanted : Mapping
        Shape and dtype of each input, by name.
    given : Mapping
        The arrays.
    sizes : Mapping
        Sizes that are known beforehand.

    Raises
    ------
    InputError
        An input is missing, unknown or of another dtype, or shapes do not agree; all of it is listed.
    """
    found = checked_sizes(sizes)
    if not isinstance(given, Mapping):
        raise bad("inputs", type(given).__name__, "inputs are arrays by name", "{'x': array}")
    problems = [
        Problem(f"inputs.{name}", "missing", "this input is required") for name in wanted if name not in given
    ]
    known = ", ".join(wanted) or "none"
    problems += [
        Problem(f"inputs.{name}", "", f"no such input: {known}") for name in given if name not in wanted
    ]
    for name, (shape, dtype) in wanted.items():
        if name not in given:
            continue
        array = given[name]
        if not isinstance(array, np.ndarray) or array.dtype != numpy_dtype(dtype):
            what = getattr(array, "dtype", type(array).__name__)
            problems.append(
                Problem(f"inputs.{name}", what, f"an array of {dtype}", f"array.astype of {dtype}")
            )
            continue
        values = [
            found.setdefault(d, n) if isinstance(d, str) else d
            for d, n in zip(shape, array.shape, strict=False)
        ]
        if tuple(values) != array.shape or array.ndim != len(shape):
            rule = f"shape is {text(shape)}" + (
                f", here {tuple(values)}" if len(values) == len(shape) else ""
            )
            problems.append(Problem(f"inputs.{name}", array.shape, rule))
    if problems:
        raise InputError(problems)
    return found


def checked_sizes(sizes: Any) -> dict[str, int]:
    """Named sizes as whole numbers.

    Raises
    ------
    InputError
        Not a mapping, or a size that is not a whole number from 0.
    """
    if not isinstance(sizes, Mapping):
        raise bad("sizes", type(sizes).__name__, "sizes are numbers by name", "{'T': 8}")
    problems = [
        Problem(f"sizes.{name}", size, "a size is a whole number from 0", f"{name}=8")
        for name, size in sizes.items()
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0
    ]
    if problems:
        raise InputError(problems)
    return {name: int(size) for name, size in sizes.items()}


def check_named(sizes: Mapping[str, int], known: Sequence[str]) -> None:
    """Refuse a size that nothing is named after.

    Raises
    ------
    InputError
        Naming it.
    """
    unknown = ", ".join(str(name) for name in sizes if name not in known)
    if unknown:
        raise bad("sizes", unknown, "no such size", ", ".join(known) or "none is named")


def reduce(op: str, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Reduce ``x`` over axes, in fp32 when it is of 16 bits; the result is not yet rounded to the dtype of ``x``.

    Raises
    ------
    InputError
        The largest or smallest of nothing.
    """
    wide = _wide(x.dtype)
    if op in _NOTHING and x.size == 0:  # NumPy refuses this even where the result has no element either
        none: Array = np.empty(
            [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes], wide
        )
        if none.size:
            raise nothing(op)
        return none
    made: Array = np.asarray(_UFUNC[op].reduce(x, axis=axes, keepdims=keepdims, dtype=wide))
    return np.asarray(made / _number(prod(x.shape[i] for i in axes), wide)) if op == "mean" else made


def nothing(op: str) -> InputError:
    """Make the error of a largest or smallest of nothing."""
    return bad(op, "no elements", f"the {op} of nothing is not defined", "a size of at least 1")


def combine(op: str) -> tuple[np.ufunc, float]:
    """How parts of a reduction are combined, and the value that changes nothing (-0.0 leaves even -0.0 as it is)."""
    return _UFUNC[op], _NOTHING.get(op, -0.0)


def finish(op: str, total: Array, count: int, dtype: str) -> Array:
    """Finish an accumulated reduction of ``count`` elements; the result is not yet rounded to ``dtype``."""
    wide = wide_dtype(dtype)
    if count == 0:
        if op in _NOTHING and total.size:
            raise nothing(op)
        total = np.zeros_like(total)
    made = total.astype(wide)
    return np.asarray(made / _number(count, wide)) if op == "mean" else made


def product(a: Array, b: Array) -> Array:
    """Matrix product, in fp32 when the operands are of 16 bits; not yet rounded to their dtype."""
    wide = _wide(a.dtype)
    made: Array = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    return made


def check_index(index: Array, size: int) -> None:
    """Refuse an index outside 0 to ``size - 1``.

    Raises
    ------
    InputError
        Naming the index.
    """
    if index.size:
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= size:
            raise bad("gather", low if low < 0 else high, f"an index is from 0 to {size - 1}", "0")


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    name = dtype_name(dtype)
    return dtype if name is None else wide_dtype(name)


def _number(count: int, dtype: np.dtype[Any]) -> Array:
    return np.array(count, dtype)


def _negative(x: Array, out: Array | None = None) -> Array:
    """Change the sign; NumPy 2.4's own loop is wrong where operand and result both have certain strides."""
    if out is None or (x.flags.c_contiguous and out.flags.c_contiguous):
        return np.asarray(np.negative(x, out))
    return np.asarray(np.multiply(x, np.array(-1, x.dtype), out))


def _maximum(x: Array, y: Array, out: Array | None = None) -> Array:
    """Take the larger of two; NumPy knows the result of this one by name only."""
    return np.asarray(np.maximum(x, y, out=out))


def _minimum(x: Array, y: Array, out: Array | None = None) -> Array:
    """Take the smaller of two, likewise."""
    return np.asarray(np.minimum(x, y, out=out))


UFUNCS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "exp", "log", "sqrt", "tanh", "absolute", "square", "reciprocal", "sin", "cos",
        "add", "subtract", "multiply", "divide", "power",
    )
} | {"negative": _negative, "maximum": _maximum, "minimum": _minimum}  # fmt: skip
"""Each element-wise call: its operands, then the array for the result."""
