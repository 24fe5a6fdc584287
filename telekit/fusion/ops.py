"""The operators of a graph: what each is called, how many values it reads, and the NumPy calls it stands for.

An element-wise operator is a *recipe*: a short list of NumPy ufunc calls. The unfused reference and the fused machine
make the same calls in the same order, so their element-wise results are equal to the last bit. (Where NumPy's own
result depends on strides they may differ by a unit in the last place: a power of a stretched operand; exp and log of
fp64, exp and cos of fp16, of what is not contiguous. Measured with NumPy 2.4.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import pi, sqrt
from struct import pack, unpack
from typing import Any

import numpy as np

FLOATS = ("fp16", "bf16", "fp32", "fp64")
INTEGERS = ("int32", "int64")
DTYPES = FLOATS + INTEGERS
_SIXTEEN_BIT = ("fp16", "bf16")
_NUMPY = {"fp16": "f2", "fp32": "f4", "fp64": "f8", "int32": "i4", "int64": "i8"}

# In a recipe "x" and "y" are the operands, an integer is the result of an earlier call, a float is a constant.
Operand = str | int | float
Call = tuple[str, tuple[Operand, ...]]


@dataclass(frozen=True)
class Op:
    """One operator.

    Parameters
    ----------
    name : str
        As it is written in a graph.
    kind : str
        ``element``, ``broadcast``, ``reduce``, ``transpose``, ``gemm``, ``gather``, ``input`` or ``constant``.
    arity : int
        How many values it reads.
    flops : int
        FLOPs an element: of the result for element-wise operators, of the operand for reductions; a
        transcendental function counts as one; for gemm 2 per multiply-add (times K).
    calls : tuple
        The NumPy calls of an element-wise operator, last one the result.
    """

    name: str
    kind: str
    arity: int
    flops: int = 0
    calls: tuple[Call, ...] = ()


def _unary(*names: str) -> list[tuple[str, tuple[Call, ...]]]:
    return [(name, ((_UFUNC.get(name, name), ("x",)),)) for name in names]


def _binary(*names: str) -> list[tuple[str, tuple[Call, ...]]]:
    return [(name, ((_UFUNC.get(name, name), ("x", "y")),)) for name in names]


_UFUNC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power",
    "neg": "negative", "abs": "absolute",
}  # fmt: skip
_SIGMOID: tuple[Call, ...] = (("negative", ("x",)), ("exp", (0,)), ("add", (1, 1.0)))
_COMPOSED: list[tuple[str, tuple[Call, ...]]] = [
    ("rsqrt", (("sqrt", ("x",)), ("reciprocal", (0,)))),
    ("relu", (("maximum", ("x", 0.0)),)),
    ("sigmoid", (*_SIGMOID, ("reciprocal", (2,)))),
    ("silu", (*_SIGMOID, ("divide", ("x", 2)))),
    # the tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as GPT-2 and Megatron-Core compute it
    (
        "gelu",
        (
            ("square", ("x",)),
            ("multiply", (0, 0.044715)),
            ("add", (1, 1.0)),
            ("multiply", (2, "x")),
            ("multiply", (3, sqrt(2 / pi))),
            ("tanh", (4,)),
            ("add", (5, 1.0)),
            ("multiply", (6, "x")),
            ("multiply", (7, 0.5)),
        ),
    ),
]
_ELEMENT = [
    *_unary("neg", "exp", "log", "sqrt", "tanh", "abs", "square", "reciprocal", "sin", "cos"),
    *_binary("add", "sub", "mul", "div", "pow", "maximum", "minimum"),
    *_COMPOSED,
]
_BINARY = frozenset(("add", "sub", "mul", "div", "pow", "maximum", "minimum"))
REDUCTIONS = ("sum", "mean", "max", "min")

OPS: dict[str, Op] = {
    **{name: Op(name, "element", 2 if name in _BINARY else 1, len(calls), calls) for name, calls in _ELEMENT},
    **{name: Op(name, "reduce", 1, 1) for name in REDUCTIONS},
    "cast": Op("cast", "element", 1),
    "broadcast": Op("broadcast", "broadcast", 1),
    "transpose": Op("transpose", "transpose", 1),
    "matmul": Op("matmul", "gemm", 2, 2),
    "gather": Op("gather", "gather", 2),
    "input": Op("input", "input", 0),
    "constant": Op("constant", "constant", 0),
}


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name such as ``bf16``."""
    if name == "bf16":
        import ml_dtypes

        bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bf16
    return np.dtype(_NUMPY[name])


def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a NumPy dtype, None when the graph knows no such dtype."""
    return next((name for name in DTYPES if numpy_dtype(name) == dtype), None)


def wide_dtype(name: str) -> np.dtype[Any]:
    """Name the dtype in which sums and matrix products are formed: fp32 for the 16-bit floats."""
    return numpy_dtype("fp32" if name in _SIXTEEN_BIT else name)


def scalar(value: float, dtype: str) -> np.ndarray[Any, Any]:
    """Return a constant of a recipe as a 0-d array, so that it never changes the dtype of the other operand."""
    return _scalar(pack("<d", value), dtype)


@lru_cache(maxsize=4096)
def _scalar(raw: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Keep numbers by their bits: 0.0 equals -0.0 and no NaN equals itself, yet each is its own number."""
    with np.errstate(all="ignore"):
        made = np.array(unpack("<d", raw)[0]).astype(numpy_dtype(dtype))
    made.flags.writeable = False
    return made
