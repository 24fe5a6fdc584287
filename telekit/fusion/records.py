"""A graph from and to records, the door for files: in any order, and nothing is trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from telekit.errors import InputError, Problem, bad
from telekit.fusion.ops import FLOATS
from telekit.fusion.values import Builder, Node, Value

MAX_NODES = 10_000
_FIELDS = frozenset(("name", "op", "inputs", "shape", "dtype", "value", "axes", "axis", "keepdims"))


def read(graph: Builder, records: Iterable[Mapping[str, Any]]) -> None:
    """Fill an empty graph from records.

    Parameters
    ----------
    graph : Graph
        It is filled; what was added before an error stays.
    records : iterable of Mapping
        Each has ``name`` and ``op``, ``inputs`` (names of nodes) where the operator reads any, and its attributes:
        ``shape`` and ``dtype`` of an input, ``value`` and ``dtype`` of a constant, ``axes``, ``keepdims``, ``axis``,
        ``dtype`` of a cast, ``shape`` of a broadcast. A record whose ``op`` is ``output`` says that its one input
        leaves the graph under its ``name``.

    Raises
    ------
    InputError
        A record that is not understood, a node that is missing or given twice, a cycle, shapes that do not go together.
    """
    name = graph.name
    if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
        raise bad("records", type(records).__name__, "a graph is a list of records", "[{...}, ...]", name)
    nodes, outputs, problems = _sorted_out(list(islice(records, 2 * MAX_NODES + 1)))
    for record in [*nodes.values(), *outputs]:
        problems += [
            Problem(f"{record['name']}.inputs", source, "no such node", ", ".join(list(nodes)[:5]))
            for source in record.get("inputs", ())
            if source not in nodes
        ]
    if problems:
        raise InputError(problems, name)
    made = dict[str, Value]()
    for key in _in_order(nodes, name):
        made[key] = _add(graph, nodes[key], [made[source] for source in nodes[key].get("inputs", ())])
    for record in outputs:
        graph.output(made[record["inputs"][0]], record["name"])


def write(graph: Builder) -> list[dict[str, Any]]:
    """Write records that :func:`read` makes the same graph of."""
    names = {name: node.name for name, index in graph.outputs.items() for node in [graph.nodes[index]]}
    outputs = [{"name": name, "op": "output", "inputs": [source]} for name, source in names.items()]
    return [_record(graph, node) for node in graph.nodes] + outputs


def _record(graph: Builder, node: Node) -> dict[str, Any]:
    record: dict[str, Any] = {"name": node.name, "op": node.op}
    if node.inputs:
        record["inputs"] = [graph.nodes[i].name for i in node.inputs]
    for key, value in node.attrs.items():
        record[key] = list(value) if isinstance(value, tuple) else value
    if node.op == "constant":
        array = node.attrs["value"]
        record |= {
            "value": array.astype("f8" if node.dtype in FLOATS else array.dtype).tolist(),
            "dtype": node.dtype,
        }
    if node.op in ("input", "broadcast"):
        record["shape"] = list(node.shape)
    if node.op in ("input", "cast"):
        record["dtype"] = node.dtype
    return record


def _sorted_out(records: list[Any]) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]], list[Problem]]:
    nodes: dict[str, dict[str, Any]] = {}
    outputs: list[dict[str, Any]] = []
    problems: list[Problem] = []
    if len(records) > 2 * MAX_NODES:
        return nodes, outputs, [Problem("records", len(records), f"at most {MAX_NODES} nodes")]
    for i, record in enumerate(records):
        found = _faults(i, record)
        if not found and record["op"] != "output" and record["name"] in nodes:
            found = [Problem(f"records[{i}].name", record["name"], "a node of this name exists")]
        problems += found
        if found:
            continue
        if record["op"] == "output":
            outputs.append(dict(record))
        else:
            nodes[record["name"]] = dict(record)
    return nodes, outputs, problems


def _faults(i: int, record: Any) -> list[Problem]:
    where = f"records[{i}]"
    if not isinstance(record, Mapping):
        return [
            Problem(where, record, "a record is a mapping", '{"name": "y", "op": "exp", "inputs": ["x"]}')
        ]
    found = [Problem(f"{where}.{key}", record[key], "no such field") for key in record if key not in _FIELDS]
    for key in ("name", "op"):
        if not isinstance(record.get(key), str):
            found.append(
                Problem(f"{where}.{key}", record.get(key, "missing"), "this field is required, as text")
            )
    inputs = record.get("inputs", [])
    if not isinstance(inputs, list | tuple) or not all(isinstance(source, str) for source in inputs):
        found.append(Problem(f"{where}.inputs", inputs, "a list of names of nodes", '["x"]'))
    elif record.get("op") == "output" and len(inputs) != 1:
        found.append(Problem(f"{where}.inputs", inputs, "an output has one input", '["x"]'))
    return found


def _in_order(nodes: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """Sort topologically; a list that is in order already stays as it is."""
    place = {key: i for i, key in enumerate(nodes)}
    sorter = TopologicalSorter({key: record.get("inputs", ()) for key, record in nodes.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        around = " -> ".join(error.args[1])
        rule = "operators that wait for each other: a cycle"
        raise bad("records", around, rule, "leave one edge out", name) from None
    order: list[str] = []
    ready: list[tuple[int, str]] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            heappush(ready, (place[key], key))
        order.append(heappop(ready)[1])
        sorter.done(order[-1])
    return order


def _add(graph: Builder, record: Mapping[str, Any], inputs: list[Value]) -> Value:
    attrs = {key: value for key, value in record.items() if key not in ("name", "op", "inputs")}
    name = record["name"]
    if record["op"] == "constant" and not inputs:
        extra = sorted(set(attrs) - {"value", "dtype"})
        if extra or "value" not in attrs:
            raise bad(
                f"{name} (constant)", ", ".join(extra) or "missing", "a constant has a value and a dtype"
            )
        return graph.constant(name, attrs["value"], attrs.get("dtype"))
    return graph.apply(record["op"], *inputs, name=name, **attrs)
