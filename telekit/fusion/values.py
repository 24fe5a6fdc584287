"""Nodes of a graph, and the values they make: write expressions with them as with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from telekit.fusion.ops import OPS
from telekit.fusion.shapes import Dim, Shape

Number = float | int


class Builder(Protocol):
    """What a value asks of its graph."""

    name: str
    nodes: list[Node]
    outputs: dict[str, int]

    def apply(self, op: str, *operands: Value | Number, name: str | None = None, **attrs: Any) -> Value:
        """Add one operator."""

    def constant(self, name: str, value: Any, dtype: str | None = None) -> Value:
        """Add a constant."""

    def output(self, value: Value, name: str | None = None) -> None:
        """Say that a value leaves."""


@dataclass(frozen=True)
class Node:
    """One operator of a graph; ``index`` is its place in topological order.

    Parameters
    ----------
    index : int
        Its place in ``graph.nodes``; its value has the same number.
    name : str
        Unique within the graph.
    op : str
        A key of :data:`telekit.fusion.ops.OPS`.
    inputs : tuple of int
        The nodes whose values it reads, in order.
    attrs : Mapping
        ``axes`` and ``keepdims`` of a reduction, ``axes`` of a transpose, ``axis`` of a gather, ``value`` of a
        constant.
    shape, dtype
        Of its value.
    """

    index: int
    name: str
    op: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]
    shape: Shape
    dtype: str

    @property
    def kind(self) -> str:
        """``element``, ``broadcast``, ``reduce``, ``transpose``, ``gemm``, ``gather``, ``input`` or ``constant``."""
        return OPS[self.op].kind


@dataclass(frozen=True, eq=False)
class Value:
    """What a node makes: write expressions with it as with an array."""

    graph: Builder = field(repr=False)
    node: Node

    @property
    def index(self) -> int:
        """Number of the node that makes it."""
        return self.node.index

    @property
    def name(self) -> str:
        """Name of the node that makes it."""
        return self.node.name

    @property
    def shape(self) -> Shape:
        """Sizes, each an integer or a name."""
        return self.node.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype (``bf16``)."""
        return self.node.dtype

    def __add__(self, other: Value | Number) -> Value:
        return self._two("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return self._two("add", other, self)

    def __sub__(self, other: Value | Number) -> Value:
        return self._two("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self._two("sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self._two("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self._two("mul", other, self)

    def __truediv__(self, other: Value | Number) -> Value:
        return self._two("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._two("div", other, self)

    def __pow__(self, other: Value | Number) -> Value:
        """Raise to a power; the exponent 2 is a square, as in NumPy's own ``**``."""
        return (
            self._one("square")
            if isinstance(other, int | float) and other == 2
            else self._two("pow", self, other)
        )

    def __neg__(self) -> Value:
        return self._one("neg")

    def __matmul__(self, other: Value) -> Value:
        return self.graph.apply("matmul", self, other)

    def exp(self) -> Value:
        """E to the power of each element."""
        return self._one("exp")

    def log(self) -> Value:
        """Natural logarithm."""
        return self._one("log")

    def sqrt(self) -> Value:
        """Square root."""
        return self._one("sqrt")

    def rsqrt(self) -> Value:
        """One over the square root."""
        return self._one("rsqrt")

    def reciprocal(self) -> Value:
        """One over each element."""
        return self._one("reciprocal")

    def square(self) -> Value:
        """Each element times itself."""
        return self._one("square")

    def tanh(self) -> Value:
        """Hyperbolic tangent."""
        return self._one("tanh")

    def sin(self) -> Value:
        """Sine."""
        return self._one("sin")

    def cos(self) -> Value:
        """Cosine."""
        return self._one("cos")

    def sigmoid(self) -> Value:
        """1 / (1 + exp(-x))."""
        return self._one("sigmoid")

    def silu(self) -> Value:
        """X / (1 + exp(-x))."""
        return self._one("silu")

    def gelu(self) -> Value:
        """GELU in its tanh form."""
        return self._one("gelu")

    def relu(self) -> Value:
        """Take the larger of x and 0."""
        return self._one("relu")

    def abs(self) -> Value:
        """Magnitude."""
        return self._one("abs")

    def maximum(self, other: Value | Number) -> Value:
        """Take the larger of two, element by element."""
        return self._two("maximum", self, other)

    def minimum(self, other: Value | Number) -> Value:
        """Take the smaller of two, element by element."""
        return self._two("minimum", self, other)

    def cast(self, dtype: str) -> Value:
        """Convert to another dtype."""
        return self.graph.apply("cast", self, dtype=dtype)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Sum over axes (all of them when none is named)."""
        return self.graph.apply("sum", self, axes=axis, keepdims=keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Mean over axes."""
        return self.graph.apply("mean", self, axes=axis, keepdims=keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Largest over axes."""
        return self.graph.apply("max", self, axes=axis, keepdims=keepdims)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Smallest over axes."""
        return self.graph.apply("min", self, axes=axis, keepdims=keepdims)

    def transpose(self, axes: Sequence[int] | None = None) -> Value:
        """Axes in another order (reversed when none is named)."""
        return self.graph.apply("transpose", self, axes=axes)

    def broadcast(self, shape: Sequence[Dim]) -> Value:
        """Stretch to a shape by NumPy's rules."""
        return self.graph.apply("broadcast", self, shape=shape)

    def _one(self, op: str) -> Value:
        return self.graph.apply(op, self)

    def _two(self, op: str, left: Value | Number, right: Value | Number) -> Value:
        return self.graph.apply(op, left, right)
