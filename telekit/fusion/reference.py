"""The unfused run: one operator after the other, each result whole in memory, as a person writes it in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from telekit.fusion.compute import UFUNCS, Array, bind, check_index, check_named, product, reduce
from telekit.fusion.graph import Graph, Node
from telekit.fusion.ops import OPS, numpy_dtype, scalar


def run_unfused(
    graph: Graph,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    buffers: dict[int, Array] | None = None,
) -> dict[str, Array]:
    """Run a graph operator by operator.

    Parameters
    ----------
    graph : Graph
        What to compute; operators that no output needs are not run.
    inputs : Mapping
        Array of each input, of its dtype; any strides.
    sizes : Mapping, optional
        Named sizes that no input shows.
    buffers : dict, optional
        Where results of element-wise operators are kept from one call to the next (by number of the call): the
        baseline with ``out=`` in place of fresh arrays. Results are then valid until the next call.

    Returns
    -------
    dict
        Array of each output, by name.

    Raises
    ------
    InputError
        Inputs that do not fit; an index out of bounds; the largest of nothing.
    """
    wanted = {name: (node.shape, node.dtype) for name, node in graph.inputs.items()}
    found = bind(wanted, inputs, {} if sizes is None else sizes)
    check_named(found, graph.symbols())
    shapes = graph.bind(found)
    live = graph.live()
    last = {source: node.index for node in graph.nodes if node.index in live for source in node.inputs}
    kept = set(graph.outputs.values())
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op == "input":
                values[node.index] = inputs[node.name]
            elif node.index in live:
                values[node.index] = _apply(
                    node, [values[i] for i in node.inputs], shapes[node.index], buffers
                )
            for source in set(node.inputs):
                if last.get(source) == node.index and source not in kept:
                    del values[source]  # as a person's expression would: a temporary lives until it is read
    return {name: values[index] for name, index in graph.outputs.items()}


def _apply(
    node: Node, operands: list[Array], shape: tuple[int, ...], buffers: dict[int, Array] | None
) -> Array:
    dtype = numpy_dtype(node.dtype)
    match node.kind:
        case "constant":
            value: Array = node.attrs["value"]
            return value
        case "element" if node.op == "cast":
            return operands[0].astype(dtype)
        case "element":
            return _element(node, operands, shape, buffers)
        case "broadcast":
            return np.broadcast_to(operands[0], shape).copy()
        case "reduce":
            return reduce(node.op, operands[0], node.attrs["axes"], node.attrs["keepdims"]).astype(
                dtype, copy=False
            )
        case "transpose":
            return np.ascontiguousarray(operands[0].transpose(node.attrs["axes"])).reshape(shape)
        case "gemm":
            return product(operands[0], operands[1]).astype(dtype, copy=False)
        case _:
            axis = node.attrs["axis"]
            if not prod(shape):
                return np.empty(shape, dtype)  # as the machine: rows of nothing are not looked for
            check_index(operands[1], operands[0].shape[axis])
            return np.asarray(np.take(operands[0], operands[1], axis=axis))


def _element(
    node: Node, operands: list[Array], shape: tuple[int, ...], buffers: dict[int, Array] | None
) -> Array:
    calls = OPS[node.op].calls
    made: list[Array] = []
    for place, (ufunc, names) in enumerate(calls):
        sources = [
            made[name] if isinstance(name, int) else operands["xy".index(name)] if isinstance(name, str)
            else scalar(name, node.dtype)
            for name in names
        ]  # fmt: skip
        out = None
        if buffers is not None:
            key = node.index * 16 + place
            if key not in buffers or buffers[key].shape != shape:
                buffers[key] = np.empty(shape, numpy_dtype(node.dtype))
            out = buffers[key]
        made.append(np.asarray(UFUNCS[ufunc](*sources, out=out)))
    return made[-1]
