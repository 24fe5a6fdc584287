"""A graph of operators with symbolic sizes, built from a few lines of Python or read from records.

    graph = Graph("rms-norm")
    x, weight = graph.input("x", ("T", "H"), "bf16"), graph.input("weight", ("H",), "bf16")
    scale = ((x * x).mean(axis=-1, keepdims=True) + 1e-6).rsqrt()
    graph.output(x * scale * weight, "y")

A size is an integer, or a name that is bound when the graph runs. Shapes follow NumPy's broadcasting; two names are
the same size only if they are the same name, and only the literal 1 is stretched. Both operands of an operator have
the same dtype: a graph converts where it says ``cast`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from telekit.errors import bad
from telekit.fusion.ops import DTYPES, FLOATS, INTEGERS, OPS, Op, dtype_name, numpy_dtype
from telekit.fusion.records import MAX_NODES, read, write
from telekit.fusion.shapes import MAX_RANK, Dim, Shape, ShapeError, infer
from telekit.fusion.values import Node, Number, Value

MAX_ELEMENTS = 2**48


class Graph:
    """Operators in topological order, and the names of the values that leave.

    Parameters
    ----------
    name : str
        What it is called in messages and listings.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: dict[str, int] = {}
        self._by_name: dict[str, int] = {}
        self._scalars: dict[tuple[str, str], Value] = {}
        self._known: tuple[tuple[int, int], list[tuple[int, ...]], frozenset[int]] | None = None

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.nodes)} nodes, outputs {list(self.outputs)})"

    def input(self, name: str, shape: Sequence[Dim], dtype: str = "fp32") -> Value:
        """Declare a tensor that is given at run time.

        Raises
        ------
        InputError
            The name is taken, a size is neither a whole number from 0 nor a name, or the dtype is unknown.
        """
        return self._add("input", (), {"shape": shape, "dtype": dtype}, name)

    def constant(self, name: str, value: Any, dtype: str | None = None) -> Value:
        """Declare a tensor whose elements are part of the program (a Python float is fp32 unless ``dtype`` says)."""
        return self._add("constant", (), {"value": _array(name, value, dtype)}, name)

    def matmul(self, a: Value, b: Value) -> Value:
        """Matrix product by NumPy's rules of operands of at least two axes: (..., M, K) by (..., K, N)."""
        return self.apply("matmul", a, b)

    def gather(self, x: Value, index: Value, axis: int = 0) -> Value:
        """Rows (or slices along ``axis``) of ``x`` in the order of an integer tensor, as ``np.take`` does it.

        An index below 0 or beyond the axis is an error when the graph runs.
        """
        return self.apply("gather", x, index, axis=axis)

    def apply(self, op: str, *operands: Value | Number, name: str | None = None, **attrs: Any) -> Value:
        """Add one operator by its name; a plain number takes the dtype of the other operand.

        Raises
        ------
        InputError
            Unknown operator, wrong number of operands, shapes or dtypes that do not go together.
        """
        where = name or f"{op}_{len(self.nodes)}"
        dtype = next((v.dtype for v in operands if isinstance(v, Value)), "fp32")
        values = [v if isinstance(v, Value) else self._scalar(v, dtype) for v in operands]
        for value in values:
            if value.graph is not self:
                raise bad(where, value.name, "belongs to another graph", "declare it in this one", self.name)
        return self._add(op, tuple(v.index for v in values), attrs, name)

    def output(self, value: Value, name: str | None = None) -> None:
        """Say that a value leaves the graph, under ``name`` (its own when none is given)."""
        name = name if name is not None else value.name
        self._check_name(name, "y")
        if value.graph is not self:
            raise bad(name, value.name, "belongs to another graph", "output a value of this one", self.name)
        if name in self.outputs:
            raise bad(name, name, "an output of this name exists", f"{name}_2", self.name)
        self.outputs[name] = value.index

    @property
    def inputs(self) -> dict[str, Node]:
        """The input nodes by name, in the order they were declared."""
        return {node.name: node for node in self.nodes if node.op == "input"}

    @property
    def operators(self) -> tuple[int, ...]:
        """The nodes that do something: all but inputs and constants."""
        return tuple(node.index for node in self.nodes if node.op not in ("input", "constant"))

    def value(self, name: str) -> Value:
        """Return the value of a node by its name."""
        if name not in self._by_name:
            raise bad("name", name, "no such node", ", ".join(list(self._by_name)[:5]), self.name)
        return Value(self, self.nodes[self._by_name[name]])

    def consumers(self) -> list[tuple[int, ...]]:
        """For each node, the nodes that read its value, in order."""
        return self._readers()[1]

    def live(self) -> frozenset[int]:
        """Find the nodes that some output needs."""
        return self._readers()[2]

    def _readers(self) -> tuple[tuple[int, int], list[tuple[int, ...]], frozenset[int]]:
        """Readers and live nodes, found anew only when the graph has grown."""
        size = (len(self.nodes), len(self.outputs))
        if self._known is None or self._known[0] != size:
            found: list[list[int]] = [[] for _ in self.nodes]
            live = set(self.outputs.values())
            for node in reversed(self.nodes):
                if node.index in live:
                    live.update(node.inputs)
                for source in dict.fromkeys(node.inputs):
                    found[source].append(node.index)
            self._known = size, [tuple(readers[::-1]) for readers in found], frozenset(live)
        return self._known

    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes, in the order they first appear."""
        return tuple(dict.fromkeys(d for node in self.nodes for d in node.shape if isinstance(d, str)))

    def bind(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Concrete shape of every node.

        Raises
        ------
        InputError
            A name of a size has no value, or one that is not a whole number from 0.
        """
        missing = [name for name in self.symbols() if name not in sizes]
        if missing:
            raise bad(
                "sizes", ", ".join(missing), "every named size needs a value", f"{missing[0]}=8", self.name
            )
        for name, size in sizes.items():
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise bad(f"sizes.{name}", size, "a size is a whole number from 0", f"{name}=8", self.name)
        shapes = [
            tuple(int(sizes[d]) if isinstance(d, str) else d for d in node.shape) for node in self.nodes
        ]
        for node, shape in zip(self.nodes, shapes, strict=True):
            if prod(shape) > MAX_ELEMENTS:
                raise bad(node.name, shape, f"more than {MAX_ELEMENTS} elements", "smaller sizes", self.name)
        return shapes

    def elements(self, node: int, sizes: Mapping[str, int]) -> int:
        """How many elements the value of a node has."""
        return prod(int(sizes[d]) if isinstance(d, str) else d for d in self.nodes[node].shape)

    def node_bytes(self, node: int, sizes: Mapping[str, int]) -> int:
        """How many bytes the value of a node has."""
        return self.elements(node, sizes) * numpy_dtype(self.nodes[node].dtype).itemsize

    def node_flops(self, node: int, sizes: Mapping[str, int]) -> int:
        """FLOPs of a node: per element of its result, or of its operand for a reduction, 2MNK for a product."""
        this = self.nodes[node]
        op = OPS[this.op]
        if op.kind == "reduce":
            return op.flops * self.elements(this.inputs[0], sizes)
        inner = 1
        if op.kind == "gemm":
            last = self.nodes[this.inputs[0]].shape[-1]
            inner = int(sizes[last]) if isinstance(last, str) else last
        return op.flops * self.elements(node, sizes) * inner

    def _scalar(self, value: Any, dtype: str) -> Value:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise bad(
                "operand",
                value,
                "an operand is a value of the graph or a number",
                "graph.constant",
                self.name,
            )
        try:
            number = float(value)
        except OverflowError:
            rule = "a number is at most that of a double"
            raise bad("operand", "a whole number of that length", rule, "1e300", self.name) from None
        key = (number.hex(), dtype)
        if key not in self._scalars:
            array = _array("constant", number, dtype)
            self._scalars[key] = self._add("constant", (), {"value": array}, None)
        return self._scalars[key]

    def _check_name(self, name: Any, suggestion: str) -> None:
        printable = isinstance(name, str) and name.isprintable()
        if not printable or not 1 <= len(name.encode()) <= 200:
            rule = "a name is 1 to 200 bytes of printable UTF-8"
            raise bad("name", name if printable else repr(name), rule, suggestion, self.name)

    def _add(self, op: str, inputs: tuple[int, ...], attrs: Mapping[str, Any], name: str | None) -> Value:
        name = name if name is not None else f"{op}_{len(self.nodes)}"
        if len(self.nodes) >= MAX_NODES:
            raise bad(name, len(self.nodes), f"a graph has at most {MAX_NODES} nodes", "", self.name)
        self._check_name(name, f"{op}_0")
        if name in self._by_name:
            raise bad(name, op, "a node of this name exists", f"{name}_2", self.name)
        known = _known(op, name, len(inputs), self.name)
        operands = [(self.nodes[i].shape, self.nodes[i].dtype) for i in inputs]
        try:
            shape, dtype, kept = infer(known, operands, attrs)
        except ShapeError as error:
            raise bad(f"{name} ({op})", error.value, error.rule, error.suggestion, self.name) from None
        node = Node(len(self.nodes), name, op, inputs, kept, shape, dtype)
        self.nodes.append(node)
        self._by_name[name] = node.index
        return Value(self, node)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], name: str = "graph") -> Graph:
        """Build a graph from records in any order; :func:`telekit.fusion.records.read` says what they hold.

        Raises
        ------
        InputError
            Records that are not understood, nodes that are missing or given twice, cycles, shapes that do not fit.
        """
        graph = cls(name)
        read(graph, records)
        return graph

    def to_records(self) -> list[dict[str, Any]]:
        """Write the graph as records that ``from_records`` reads."""
        return write(self)


def _known(op: str, name: str, count: int, source: str) -> Op:
    if op not in OPS:
        raise bad(f"{name}.op", op, "no such operator", "one of " + " ".join(sorted(OPS)), source)
    if count != OPS[op].arity:
        raise bad(f"{name} ({op})", f"{count} operands", f"reads {OPS[op].arity}", "", source)
    return OPS[op]


def _array(name: str, value: Any, dtype: str | None) -> np.ndarray[Any, Any]:
    names = "one of " + " ".join(FLOATS + INTEGERS)
    if dtype is not None and dtype not in DTYPES:
        raise bad(f"{name}.dtype", dtype, "no such dtype", names)
    try:
        given = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise bad(name, value, "a constant is numbers", "1.0") from None
    if given.ndim > MAX_RANK:
        raise bad(name, given.shape, f"a shape has at most {MAX_RANK} axes", "1.0")
    if given.dtype.kind not in "iuf" and dtype_name(given.dtype) is None:
        raise bad(name, value, "a constant is numbers", "1.0")
    if dtype is None:
        plain = given.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic)
        dtype = "fp32" if plain else dtype_name(given.dtype)
    if dtype is None:
        raise bad(f"{name}.dtype", given.dtype, "no such dtype", names)
    _check_whole(name, given, dtype)
    with np.errstate(all="ignore"):
        made = np.array(given, dtype=numpy_dtype(dtype))
    made.flags.writeable = False
    return made


def _check_whole(name: str, given: np.ndarray[Any, Any], dtype: str) -> None:
    """Refuse a number that a whole dtype cannot hold."""
    if dtype not in INTEGERS or not given.size:
        return
    bounds = np.iinfo(numpy_dtype(dtype))
    for number in (given.min(), given.max()):  # a NaN is both
        if not np.isfinite(number) or not bounds.min <= int(number) <= bounds.max:
            raise bad(name, number, f"{dtype} is from {bounds.min} to {bounds.max}", "0")
    if given.dtype.kind != "i" and given.dtype.kind != "u" and (given != np.trunc(given)).any():
        raise bad(name, "a fraction", f"{dtype} is whole numbers", "1")


__all__ = ["Dim", "Graph", "Node", "Shape", "Value"]
