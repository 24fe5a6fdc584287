"""Which operators may be one kernel of a device, and in which order kernels run.

A group is one kernel when

- :func:`telekit.fusion.kernels.plan` can write it as one loop over tiles (the rule that the encoder has too);
- its operators hang together: each is joined to the others by a value, or by a tensor both read. Operators that have
  nothing in common are launched together instead (:mod:`telekit.fusion.stacking`);
- no path leaves it and comes back: an operator outside would wait for the kernel, and the kernel for it;
- it has at most one matrix product, with what comes before and after it as prologue and epilogue;
- the operands of its smallest tile fit on chip (an operator by itself is always a kernel: its own code sees to that).

**The smallest tile** has one element of each looped axis and the whole of each held one, but at least one vector of
each operand, and at most :data:`GEMM_TILE` of the inner and the last axis of a product (the matrix unit blocks those
by itself, unless a reduction needs the row whole). Where a row that is reduced does not fit, the kernel goes over its
rows once for each reduction and once more for the result (*passes*), and holds a vector of it at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

from telekit.errors import InputError, bad
from telekit.fusion.axes import UNIT, join, phases
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion, Kernel, footprint, plan
from telekit.units import KIB, format_bytes

VECTOR_BYTES = 256
"""What a vector instruction handles at once, the least an operand of a tile takes (as on Ascend's vector unit)."""
GEMM_TILE = 128
"""Rows and columns of a product that a core works on at once: a common size, assumed."""


@dataclass(frozen=True)
class OnChip:
    """What a core has for the operands of a tile.

    Parameters
    ----------
    capacity_bytes : int
        Of one core.
    source : str
        Where the number comes from; ``assumed`` when from nowhere.
    """

    capacity_bytes: int
    source: str

    def __post_init__(self) -> None:
        if self.capacity_bytes < VECTOR_BYTES:
            rule = f"a core holds at least one vector of {VECTOR_BYTES} bytes"
            raise bad("capacity_bytes", self.capacity_bytes, rule, f"{192 * KIB}")


_CUDA = "CUDA programming guide, compute capabilities: shared memory of a block; remembered, not looked up"
_CDNA = "https://rocm.docs.amd.com/en/7.13.0-preview/reference/gpu-specs.html: LDS of a compute unit, 64 KiB"
_ASCEND = "unified buffer of a 910B vector core, 192 KiB (CANN's name: UB); remembered, not looked up"
ON_CHIP = {
    "ascend-910b": OnChip(192 * KIB, _ASCEND),
    "ascend-910c": OnChip(192 * KIB, f"two dies of a 910B: {_ASCEND}"),
    "v100": OnChip(96 * KIB, _CUDA),
    **dict.fromkeys(("a100-40gb", "a100-80gb", "a800"), OnChip(163 * KIB, _CUDA)),
    **dict.fromkeys(("h100", "h800", "h200", "b200", "b300", "gb200", "gb300"), OnChip(227 * KIB, _CUDA)),
    **dict.fromkeys(("mi300x", "mi325x"), OnChip(64 * KIB, _CDNA)),
}


def on_chip(device: str) -> OnChip:
    """Memory of one core of a device by its catalog name; speed grades share their device's.

    Raises
    ------
    InputError
        No number is known for the device: state one.
    """
    found = next((ON_CHIP[name] for name in ON_CHIP if device == name or device.startswith(f"{name}-")), None)
    if found is None:
        raise bad("device", device, "its memory on chip is not known", "give OnChip(capacity_bytes, source)")
    return found


@dataclass(frozen=True)
class Fit:
    """A group that is one kernel.

    Parameters
    ----------
    kernel : Kernel
        Its loop and instructions.
    tile_bytes : int
        What its smallest tile takes.
    passes : int
        How often it goes over its rows: 1 when a whole row that is reduced fits on chip.
    """

    kernel: Kernel
    tile_bytes: int
    passes: int


def fit(graph: Graph, group: Iterable[int], sizes: Mapping[str, int], chip: OnChip) -> Fit:
    """Say how a group fits on a device as one kernel.

    Raises
    ------
    InputError
        It is no kernel; the text says why.
    """
    kernel = plan(graph, group)
    members = sorted(set(group) & graph.live())
    _check_shape(graph, members)
    block, rows = smallest_block(kernel, sizes)
    taken = _taken(kernel, block)
    passes = 1
    if taken > chip.capacity_bytes and rows and not _gemm_axes(kernel):
        passes = 1 + max(levels(graph, members).values(), default=0)
        taken = _taken(kernel, [1 if axis in rows else size for axis, size in enumerate(block)])
    if taken > chip.capacity_bytes and len(members) > 1:
        rule = (
            f"its smallest tile takes {format_bytes(taken)}, a core holds {format_bytes(chip.capacity_bytes)}"
        )
        raise bad(kernel.label, len(members), rule, "end the group earlier", graph.name)
    return Fit(kernel, taken, passes)


def problem(graph: Graph, group: Iterable[int], sizes: Mapping[str, int], chip: OnChip) -> str:
    """Why a group is no kernel; nothing when it is one."""
    try:
        fit(graph, group, sizes, chip)
    except InputError as error:
        return error.problems[0].rule
    return ""


def ordered(graph: Graph, groups: Iterable[Iterable[int]]) -> Fusion:
    """Put groups into an order in which each finds what it reads.

    Raises
    ------
    InputError
        Groups that wait for each other.
    """
    parts = [tuple(sorted(group)) for group in groups]
    circle = cycle(graph, parts)
    if circle:
        names = " -> ".join(graph.nodes[parts[i][0]].name for i in circle)
        raise bad("groups", names, "kernels that wait for each other", "take one of them apart", graph.name)
    return Fusion(tuple(parts[i] for i in _in_order(parts, _waits(graph, parts))))


def _in_order(parts: Sequence[tuple[int, ...]], waits: Sequence[set[int]]) -> list[int]:
    """Places of groups, each after those it waits for, else by its first operator; those in a circle are left out."""
    readers: list[list[int]] = [[] for _ in parts]
    for place, before in enumerate(waits):
        for other in before:
            readers[other].append(place)
    left = [len(before) for before in waits]
    ready = [(part[0], place) for place, part in enumerate(parts) if not left[place]]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[1])
        for place in readers[order[-1]]:
            left[place] -= 1
            if not left[place]:
                heappush(ready, (parts[place][0], place))
    return order


def cycle(graph: Graph, groups: Sequence[tuple[int, ...]]) -> list[int]:
    """Places of groups that wait for each other in a circle, a shortest one; nothing when there is none."""
    waits = _waits(graph, groups)
    if len(_in_order(groups, waits)) == len(groups):
        return []
    best: list[int] = []
    for start in range(len(groups)):
        came, queue = {start: start}, [start]
        for here in queue:
            if start in waits[here]:
                path = [here]
                while path[-1] != start:
                    path.append(came[path[-1]])
                if not best or len(path) < len(best):
                    best = path
                break
            fresh = [other for other in sorted(waits[here]) if other not in came]
            came.update(dict.fromkeys(fresh, here))
            queue += fresh
    return best


def _waits(graph: Graph, groups: Sequence[tuple[int, ...]]) -> list[set[int]]:
    """For each group, the groups it reads from."""
    home = {index: place for place, group in enumerate(groups) for index in group}
    return [
        {home[s] for index in group for s in graph.nodes[index].inputs if s in home} - {place}
        for place, group in enumerate(groups)
    ]


def _check_shape(graph: Graph, members: Sequence[int]) -> None:
    name, inside = graph.nodes[members[0]].name, set(members)
    products = [graph.nodes[i].name for i in members if graph.nodes[i].kind == "gemm"]
    if len(products) > 1:
        rule = "a kernel has at most one matrix product"
        raise bad("group", ", ".join(products), rule, f"end a group before {products[1]}", graph.name)
    if not together(graph, members):
        raise bad(
            "group", name, "operators that share no value: launch them together instead", "", graph.name
        )
    after: set[int] = set()  # outside, and waiting for the group
    for node in graph.nodes[members[0] : members[-1] + 1]:
        reads_after = not after.isdisjoint(node.inputs)
        if node.index in inside:
            if reads_after:
                raise bad("group", name, "an operator outside waits for it, and it for that", "", graph.name)
        elif reads_after or not inside.isdisjoint(node.inputs):
            after.add(node.index)


def together(graph: Graph, members: Sequence[int]) -> bool:
    """Whether operators hang together, by values or by tensors they read (single numbers left out)."""
    touches: dict[int, list[int]] = {}
    for index in members:
        for source in (index, *graph.nodes[index].inputs):
            if graph.nodes[source].shape != () or source in members:
                touches.setdefault(source, []).append(index)
    reached, queue = {members[0]}, [members[0]]
    while queue:
        index = queue.pop()
        for source in (index, *graph.nodes[index].inputs):
            fresh = set(touches.pop(source, ())) - reached
            reached |= fresh
            queue += fresh
    return len(reached) == len(members)


def smallest_block(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[list[int], set[int]]:
    """How much of each axis the smallest tile has, and the axes that reductions hold."""
    whole = [int(sizes[d]) if isinstance(d, str) else d for d in kernel.axes]
    rows = {
        axis
        for instruction in kernel.body
        if instruction.op in ("sum", "mean", "max", "min")
        for axis in range(len(whole))
        if instruction.mask >> axis & 1
    }
    blocked = _gemm_axes(kernel) - rows
    block = [min(1, size) if axis in kernel.loop else size for axis, size in enumerate(whole)]
    return [min(size, GEMM_TILE) if axis in blocked else size for axis, size in enumerate(block)], rows


def _gemm_axes(kernel: Kernel) -> set[int]:
    """Axes that a product's inner and last one are."""
    found: set[int] = set()
    for instruction in kernel.body:
        if instruction.op == "matmul":
            found |= {kernel.slots[instruction.sources[0]].axes[-1], kernel.slots[instruction.dst].axes[-1]}
    return found - {UNIT}


def _taken(kernel: Kernel, block: Sequence[int]) -> int:
    return sum(max(prod(block[a] for a in axes) * size, VECTOR_BYTES) for size, axes in footprint(kernel))


def levels(graph: Graph, members: Sequence[int]) -> dict[int, int]:
    """In which pass over its rows a kernel of several passes makes each reduction; the last pass makes the rest.

    A reduction that the tile holds ends its pass: what needs it comes in the next. One that is added up from tile to
    tile ends none: it takes part in the first pass that has what it reads, which may be the last one.
    """
    steps = phases(graph, members, join(graph, members), set(leaving(graph, members)))
    level, before = dict[int, int](), dict[int, int]()
    added: list[int] = []
    for index in members:
        node = graph.nodes[index]
        before[index] = max((before.get(source, 0) for source in node.inputs), default=0)
        if index in steps.accumulating:
            added.append(index)
        elif node.kind == "reduce" and index not in steps.tail:
            before[index] += 1
            level[index] = before[index]
    depth = max(level.values(), default=0)
    return level | {index: before[index] + 1 for index in added if before[index] < depth}


def leaving(graph: Graph, members: Iterable[int]) -> list[int]:
    """Operators of a group whose values leave it."""
    inside, readers, live = set(members), graph.consumers(), graph.live()
    outputs = set(graph.outputs.values())
    return [
        i for i in sorted(inside) if i in outputs or any(r in live and r not in inside for r in readers[i])
    ]
