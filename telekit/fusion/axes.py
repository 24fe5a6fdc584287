"""The axes of a kernel: which of its values' axes are one, which are looped over, and what runs after the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from telekit.errors import bad
from telekit.fusion.graph import Graph, Node
from telekit.fusion.instructions import UNIT, Axes
from telekit.fusion.shapes import Dim, text

__all__ = ["MAX_AXES", "UNIT", "Axes", "Joined", "Phases", "join", "phases"]

MAX_AXES = 250

Key = tuple[int, int]  # a node and the place of one of its operands


class Joined(NamedTuple):
    """Axes of each member's value, of each operand as its reader sees it, and the size of each axis."""

    value: dict[int, Axes]
    operand: dict[Key, Axes]
    dims: tuple[Dim, ...]


class Phases(NamedTuple):
    """The axes looped over, outermost first; the reductions that accumulate; what runs after the loop."""

    loop: Axes
    accumulating: frozenset[int]
    tail: frozenset[int]


class _Union:
    """Axes that are joined with one another."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.dims: list[Dim] = []

    def fresh(self, node: Node) -> Axes:
        """One new axis for each axis of a node's value."""
        first = len(self.parent)
        made = tuple(UNIT if size == 1 else first + i for i, size in enumerate(node.shape))
        self.parent += range(first, first + len(made))
        self.dims += node.shape
        return made

    def find(self, axis: int) -> int:
        parent = self.parent
        while parent[axis] != axis:
            parent[axis] = axis = parent[parent[axis]]
        return axis

    def join(self, left: int, right: int) -> None:
        if left != UNIT and right != UNIT:
            self.parent[self.find(left)] = self.find(right)

    def clash(self, values: Iterator[tuple[int, Axes]]) -> int | None:
        """Return the first node with a value of which two axes became one."""
        for index, axes in values:
            if len(axes) > 1:
                roots = [self.find(axis) for axis in axes if axis != UNIT]
                if len(set(roots)) < len(roots):
                    return index
        return None


def join(graph: Graph, members: Sequence[int]) -> Joined:
    """Join the axes of a group.

    Raises
    ------
    InputError
        Two axes of one value would be the same axis, or there are too many.
    """
    union = _Union()
    value: dict[int, Axes] = {}
    operand: dict[Key, Axes] = {}
    outside: dict[int, list[Axes]] = {}
    for index in members:
        node = graph.nodes[index]
        value[index] = union.fresh(node)
        for place, source in enumerate(node.inputs):
            if source not in value:
                operand[index, place] = union.fresh(graph.nodes[source])
                outside.setdefault(source, []).append(operand[index, place])
            else:
                operand[index, place] = value[source]
        for left, right in meeting(node, value[index], [operand[index, p] for p in range(len(node.inputs))]):
            union.join(left, right)

    def values() -> Iterator[tuple[int, Axes]]:
        yield from value.items()
        yield from ((index, axes) for (index, _), axes in operand.items())

    where = union.clash(values())
    if where is not None:
        rule = "two axes of one value would be the same axis of the tile loop"
        raise bad(
            graph.nodes[where].name,
            text(graph.nodes[where].shape),
            rule,
            "end the group before it",
            graph.name,
        )
    for uses in outside.values():  # a tensor that is read twice is read in one tile, where that is possible
        for other in uses[1:]:
            before = union.parent.copy()
            for left, right in zip(uses[0], other, strict=True):
                union.join(left, right)
            if union.parent != before and union.clash(values()) is not None:
                union.parent = before
    return _numbered(graph, union, value, operand)


def _numbered(graph: Graph, union: _Union, value: dict[int, Axes], operand: dict[Key, Axes]) -> Joined:
    number: dict[int, int] = {UNIT: UNIT}
    known: dict[Axes, Axes] = {}

    def renamed(axes: Axes) -> Axes:
        if axes not in known:
            roots = [axis if axis == UNIT else union.find(axis) for axis in axes]
            known[axes] = tuple([number.setdefault(root, len(number) - 1) for root in roots])
        return known[axes]

    new_value = {index: renamed(axes) for index, axes in value.items()}
    new_operand = {key: renamed(axes) for key, axes in operand.items()}
    if len(number) - 1 > MAX_AXES:
        raise bad(
            "group", len(number) - 1, f"a kernel has at most {MAX_AXES} axes", "smaller groups", graph.name
        )
    return Joined(new_value, new_operand, tuple(union.dims[root] for root in number if root != UNIT))


def meeting(node: Node, value: Axes, operands: list[Axes]) -> Iterator[tuple[int, int]]:
    """Pairs of axes, of a value and of what it is made from, that are the same."""
    match node.kind:
        case "element" | "broadcast":
            for axes in operands:
                if axes:
                    yield from zip(axes, value[len(value) - len(axes) :], strict=True)
        case "reduce":
            reduced = node.attrs["axes"]
            kept = [i for i in range(len(operands[0])) if i not in reduced]
            places = kept if node.attrs["keepdims"] else range(len(kept))
            yield from ((operands[0][i], value[place]) for i, place in zip(kept, places, strict=True))
        case "transpose":
            yield from ((operands[0][i], value[place]) for place, i in enumerate(node.attrs["axes"]))
        case "gemm":
            a, b = operands
            yield from ((a[-2], value[-2]), (b[-1], value[-1]), (a[-1], b[-2]))
            for batch in (a[:-2], b[:-2]):
                yield from zip(batch, value[len(value) - 2 - len(batch) : -2], strict=True)
        case "gather":
            (x, index), axis = operands, node.attrs["axis"]
            yield from zip(x[:axis], value[:axis], strict=True)
            yield from zip(index, value[axis : axis + len(index)], strict=True)
            yield from zip(x[axis + 1 :], value[axis + len(index) :], strict=True)


def phases(graph: Graph, members: Sequence[int], joined: Joined, leaving: set[int]) -> Phases:
    """Decide what is held, what accumulates and what waits for the end of the loop."""
    held = _held(graph, members, joined)
    reduced = {
        index: {joined.operand[index, 0][i] for i in graph.nodes[index].attrs["axes"]} - {UNIT}
        for index in members
        if graph.nodes[index].kind == "reduce"
    }
    candidates = set(reduced)
    while True:
        settled = {index for index in candidates if reduced[index] <= held}
        candidates -= settled
        tail, wrong = _tail(graph, members, joined, candidates)
        if not settled and not wrong:
            break
        candidates -= wrong
        held.update(*(reduced[index] for index in wrong))
    accumulating = frozenset(index for index in candidates if graph.nodes[index].inputs[0] not in tail)
    once = [joined.operand[index, 0] for index in members if index in accumulating]
    costly = ("reduce", "gemm", "gather")
    once += [
        joined.value[index]
        for index in members
        if index not in tail and (index in leaving or graph.nodes[index].kind in costly)
    ]
    loop = tuple(axis for axis in once[0] if axis != UNIT and axis not in held)
    for axes in once[1:]:
        loop = tuple(axis for axis in loop if axis in axes)
    return Phases(loop, accumulating, frozenset(tail - accumulating))


def _held(graph: Graph, members: Sequence[int], joined: Joined) -> set[int]:
    held: set[int] = set()
    for index in members:
        node = graph.nodes[index]
        if node.kind == "gemm":
            held |= {joined.operand[index, 0][-1], joined.value[index][-1]}
        elif node.kind == "gather":
            held.add(joined.operand[index, 0][node.attrs["axis"]])
    return held - {UNIT}


def _tail(
    graph: Graph, members: Sequence[int], joined: Joined, candidates: set[int]
) -> tuple[set[int], set[int]]:
    """Find what depends on the candidates (they too), and the candidates with a dependant that cannot wait."""
    roots: dict[int, frozenset[int]] = {}  # the candidates each waiting node depends on
    wrong: set[int] = set()
    inside = set(members)
    for index in members:
        node = graph.nodes[index]
        above = frozenset[int]().union(*(roots[source] for source in node.inputs if source in roots))
        if index in candidates:
            if above:
                roots[index] = above
            else:
                roots[index] = frozenset((index,))
            continue
        if not above:
            continue
        roots[index] = above
        sizes = {axis for root in above for axis in joined.value[root]}
        alone = all(source in roots for source in node.inputs if source in inside)
        small = set(joined.value[index]) <= sizes | {UNIT}
        if not (alone and small and node.kind in ("element", "broadcast", "transpose", "reduce")):
            wrong |= above
    return set(roots), wrong
