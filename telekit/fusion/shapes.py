"""The shape and dtype an operator makes of those it reads, with sizes that may be names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from telekit.fusion.ops import DTYPES, FLOATS, INTEGERS, Op, dtype_name

Dim = int | str
Shape = tuple[Dim, ...]
Operands = Sequence[tuple[Shape, str]]  # shape and dtype of each value that is read
Made = tuple[Shape, str, dict[str, Any]]  # shape, dtype, and the attributes in their settled form

MAX_RANK = 8
MAX_SIZE = 2**40


class ShapeError(Exception):
    """Shapes or dtypes that do not go together; the graph adds which node."""

    def __init__(self, value: Any, rule: str, suggestion: str = "") -> None:
        super().__init__(rule)
        self.value, self.rule, self.suggestion = value, rule, suggestion


def infer(op: Op, operands: Operands, attrs: Mapping[str, Any]) -> Made:
    """Shape, dtype and settled attributes of an operator's value.

    Raises
    ------
    ShapeError
        What does not go together and why.
    """
    unknown = sorted(set(attrs) - _ATTRS.get(op.name if op.name in _ATTRS else op.kind, frozenset()))
    if unknown:
        raise ShapeError(", ".join(unknown), "no such attribute of this operator")
    match op.kind:
        case "input":
            return _shape(attrs.get("shape", ())), _dtype(attrs.get("dtype", "fp32")), {}
        case "constant":
            value = attrs.get("value")
            if not isinstance(value, np.ndarray):
                raise ShapeError(value, "the value of a constant is an array", "use graph.constant")
            return tuple(value.shape), _dtype(dtype_name(value.dtype)), {"value": value}
        case "element":
            return _element(op, operands, attrs)
        case "broadcast":
            shape, dtype = operands[0]
            wanted = _shape(attrs.get("shape", ()))
            if broadcast(shape, wanted) != wanted:
                raise ShapeError(
                    f"{text(shape)} to {text(wanted)}", "does not stretch to this shape by NumPy's rules"
                )
            return wanted, dtype, {}
        case "reduce":
            return _reduce(operands[0], attrs)
        case "transpose":
            return _transpose(operands[0], attrs)
        case "gemm":
            return _gemm(operands)
        case _:
            return _gather(operands, attrs)


_ATTRS: dict[str, frozenset[str]] = {
    "input": frozenset(("shape", "dtype")),
    "constant": frozenset(("value",)),
    "cast": frozenset(("dtype",)),
    "broadcast": frozenset(("shape",)),
    "reduce": frozenset(("axes", "keepdims")),
    "transpose": frozenset(("axes",)),
    "gather": frozenset(("axis",)),
}


def text(shape: Shape) -> str:
    """Write a shape as ``(B, S, 128)``."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def broadcast(left: Shape, right: Shape) -> Shape:
    """Shape of two operands together; only the literal 1 is stretched.

    Raises
    ------
    ShapeError
        They do not go together.
    """
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    made = tuple(b if a == 1 else a for a, b in pairs)
    for whole, part in ((made, left), (made, right)):
        if any(p not in (1, w) for w, p in zip(whole[rank - len(part) :], part, strict=True)):
            rule = "shapes do not broadcast: from the right, sizes are equal or one of them is 1"
            raise ShapeError(f"{text(left)} with {text(right)}", rule, "insert an axis of 1, or transpose")
    return made


def _element(op: Op, operands: Operands, attrs: Mapping[str, Any]) -> Made:
    shape, dtype = operands[0]
    if op.name == "cast":
        return shape, _dtype(attrs.get("dtype")), {}
    for other, its in operands[1:]:
        if its != dtype:
            raise ShapeError(f"{dtype} with {its}", "operands have one dtype", f"cast one of them to {dtype}")
        shape = broadcast(shape, other)
    if dtype not in FLOATS:
        raise ShapeError(dtype, "arithmetic is on floats", "cast to fp32 first")
    return shape, dtype, {}


def _reduce(operand: tuple[Shape, str], attrs: Mapping[str, Any]) -> Made:
    shape, dtype = operand
    if dtype not in FLOATS:
        raise ShapeError(dtype, "reductions are of floats", "cast to fp32 first")
    given, keep = attrs.get("axes"), attrs.get("keepdims", False)
    if not isinstance(keep, bool):
        raise ShapeError(keep, "keepdims is true or false", "false")
    axes = tuple(sorted(_axes(range(len(shape)) if given is None else given, len(shape))))
    kept = tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)
    return kept, dtype, {"axes": axes, "keepdims": keep}


def _transpose(operand: tuple[Shape, str], attrs: Mapping[str, Any]) -> Made:
    shape, dtype = operand
    given = attrs.get("axes")
    axes = _axes(range(len(shape))[::-1] if given is None else given, len(shape))
    if len(axes) != len(shape):
        raise ShapeError(axes, f"names every axis once of {text(shape)}", str(tuple(range(len(shape))[::-1])))
    return tuple(shape[i] for i in axes), dtype, {"axes": axes}


def _gemm(operands: Operands) -> Made:
    (a, dtype), (b, other) = operands
    if dtype != other or dtype not in FLOATS:
        raise ShapeError(f"{dtype} with {other}", "operands are floats of one dtype", "cast one of them")
    if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
        rule = "a product is of (..., M, K) with (..., K, N)"
        raise ShapeError(f"{text(a)} with {text(b)}", rule, "transpose one of them")
    return _short((*broadcast(a[:-2], b[:-2]), a[-2], b[-1])), dtype, {}


def _gather(operands: Operands, attrs: Mapping[str, Any]) -> Made:
    (shape, dtype), (index, kind) = operands
    if kind not in INTEGERS:
        raise ShapeError(kind, "an index is of whole numbers", "int64")
    axes = _axes(attrs.get("axis", 0), len(shape))
    if len(axes) != 1:
        raise ShapeError(attrs["axis"], "a gather is along one axis", "0")
    (axis,) = axes
    return _short((*shape[:axis], *index, *shape[axis + 1 :])), dtype, {"axis": axis}


def _short(shape: Shape) -> Shape:
    if len(shape) > MAX_RANK:
        raise ShapeError(text(shape), f"a shape has at most {MAX_RANK} axes")
    return shape


def _shape(given: Any) -> Shape:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ShapeError(given, "a shape is a list of sizes", '("B", 128)')
    for size in given:
        named = isinstance(size, str) and size.isidentifier() and len(size) <= 64
        counted = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= MAX_SIZE
        if not (named or counted):
            raise ShapeError(size, f"a size is a name or a whole number from 0 to {MAX_SIZE}", "128")
    return _short(tuple(given))


def _dtype(given: Any) -> str:
    if given not in DTYPES:
        raise ShapeError(given, "no such dtype", "one of " + " ".join(DTYPES))
    return str(given)


def _axes(given: Any, rank: int) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, int) else given
    if isinstance(axes, str) or not isinstance(axes, Sequence):
        raise ShapeError(given, "axes are whole numbers", "-1")
    if any(not isinstance(i, int) or isinstance(i, bool) or not -rank <= i < rank for i in axes):
        raise ShapeError(given, f"an axis is from {-rank} to {rank - 1}" if rank else "a number has no axes")
    settled = tuple(i % rank for i in axes)
    if len(set(settled)) != len(settled):
        raise ShapeError(given, "an axis is named once", "leave one out")
    return settled
