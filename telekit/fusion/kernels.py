"""What one kernel is: a group of operators as one loop over tiles, its operands and its instructions.

**Axes.** Every axis of every value in a group is joined with the axis it meets in an operator; what is joined is one
axis of the kernel. Some axes are *held* (a tile has the whole of them), the tile loop runs over the others:

- the inner and last axis of a matrix product and the axis that is gathered along are held;
- a reduction whose result is used again inside the tile (softmax, RMSNorm) holds the axes it reduces;
- nothing that costs is computed twice: an axis that a reduction, a product or a value that is stored lacks is held.

**Accumulators.** A reduction whose result is not needed before the loop ends is summed up tile by tile. Operators that
read only such results run once after the loop, in the *tail*, on whole (small) arrays.

A group cannot be one kernel when two axes of one value would have to be the same axis (``y + y.transpose()`` with y
made in the group), or when the right operand of a product is computed in the group: every tile would compute it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from telekit.errors import bad
from telekit.fusion.axes import Axes, join, phases
from telekit.fusion.graph import Graph, Node
from telekit.fusion.instructions import UNIT, Instruction, Kernel, Slot, base
from telekit.fusion.ops import FLOATS, OPS, numpy_dtype
from telekit.fusion.registers import allocate

__all__ = ["Fusion", "Instruction", "Kernel", "Slot", "check_member", "footprint", "plan", "tile_bytes"]


@dataclass(frozen=True)
class Fusion:
    """A partition of a graph's operators into kernels, in the order they run.

    Parameters
    ----------
    groups : tuple of tuple of int
        Indices of nodes, inputs and constants left out. Operators that no output needs may be left out too.
    """

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def none(cls, graph: Graph) -> Fusion:
        """Every operator its own kernel."""
        return cls(tuple((i,) for i in graph.operators if i in graph.live()))

    @classmethod
    def whole(cls, graph: Graph) -> Fusion:
        """All operators one kernel."""
        return cls((tuple(i for i in graph.operators if i in graph.live()),))


def plan(graph: Graph, group: Iterable[int], tensors: Mapping[int, int] | None = None) -> Kernel:
    """Make one kernel of a group.

    Parameters
    ----------
    graph : Graph
        Where the operators are.
    group : iterable of int
        Indices of its nodes; those that no output needs are left out.
    tensors : Mapping, optional
        Number of the tensor of each node whose value lies in memory; the node's own index when none is given.

    Raises
    ------
    InputError
        The group cannot be one kernel; the text says why.
    """
    live = graph.live()
    members = sorted({i for i in group if i in live})
    for index in members:
        check_member(graph, index)
    if not members:
        raise bad(
            "group", tuple(group), "no operator that an output needs", str(graph.operators[:5]), graph.name
        )
    return _Emitter(graph, members, tensors).kernel()


def check_member(graph: Graph, index: int) -> None:
    """Refuse what is not the index of an operator.

    Raises
    ------
    InputError
        Naming it.
    """
    whole = isinstance(index, int) and 0 <= index < len(graph.nodes)
    if not whole or graph.nodes[index].op in ("input", "constant"):
        raise bad(
            "group", index, "a group names operators by their index", str(graph.operators[:5]), graph.name
        )


def tile_bytes(kernel: Kernel, sizes: Mapping[str, int], block: Sequence[int] | None = None) -> int:
    """Bytes that the operands of a tile take together: what must fit on chip.

    Parameters
    ----------
    kernel : Kernel
        As :func:`plan` made it.
    sizes : Mapping
        Value of each named size.
    block : sequence of int, optional
        How much of each axis a tile has; when none is given, the smallest tile there is: 1 of each looped axis.
    """
    if block is None:
        whole = [int(sizes[d]) if isinstance(d, str) else d for d in kernel.axes]
        block = [min(1, size) if axis in kernel.loop else size for axis, size in enumerate(whole)]
    return sum(prod(block[a] for a in axes) * size for size, axes in footprint(kernel))


def footprint(kernel: Kernel) -> list[tuple[int, Axes]]:
    """Item size and axes of what a tile occupies: each view once, each register as its widest use.

    A tensor that a ``take`` reads from is left out: only the rows it names are touched.
    """
    views: set[Slot] = set()
    registers: dict[int, Slot] = {}
    for instruction in kernel.body:
        sources = instruction.sources[1:] if instruction.op == "take" else instruction.sources
        for index in (*sources, instruction.dst):
            slot = kernel.slots[base(kernel.slots, index)]
            if slot.kind == "view":
                views.add(slot)
            elif slot.kind == "reg":
                known = registers.get(slot.ref, slot)
                registers[slot.ref] = max(
                    known, slot, key=lambda s: (len(s.axes), numpy_dtype(s.dtype).itemsize)
                )
    found = [*views, *registers.values()]
    return [(numpy_dtype(s.dtype).itemsize, tuple(a for a in s.axes if a != UNIT)) for s in found]


class _Emitter:
    """Writes the instructions of one group."""

    def __init__(self, graph: Graph, members: list[int], tensors: Mapping[int, int] | None) -> None:
        self.graph = graph
        self.members = members
        self.tensors = tensors
        self.inside = frozenset(members)
        self.readers = graph.consumers()
        outputs, live = set(graph.outputs.values()), graph.live()
        self.leaving = {
            i
            for i in members
            if i in outputs or any(r in live and r not in self.inside for r in self.readers[i])
        }
        self.joined = join(graph, members)
        self.phases = phases(graph, members, self.joined, self.leaving)
        self.slots: list[Slot] = []
        self.known: dict[tuple[Slot, str], int] = {}
        self.slot_of: dict[int, int] = {}
        self.body: list[Instruction] = []
        self.tail: list[Instruction] = []

    def kernel(self) -> Kernel:
        for index in self.members:
            node = self.graph.nodes[index]
            code = self.tail if index in self.phases.tail else self.body
            self.slot_of[index] = getattr(self, f"_{node.kind}")(node, code)
        for code in (self.body, self.tail):
            allocate(self.slots, code)
        names = [self.graph.nodes[i].name for i in (self.members[0], self.members[-1])]
        label = names[0] if names[0] == names[1] else f"{names[0]}..{names[1]}"
        return Kernel(
            label, self.joined.dims, self.phases.loop, tuple(self.slots), tuple(self.body), tuple(self.tail)
        )

    def _slot(self, slot: Slot) -> int:
        """Add a slot unless it is there already: equal views and immediates are one slot."""
        key = (
            slot,
            str(slot.value) if slot.kind == "imm" else "",
        )  # 0.0 and -0.0 are equal, and are two numbers
        number = self.known.setdefault(key, len(self.slots))
        if number == len(self.slots):
            self.slots.append(slot)
        return number

    def _tensor(self, index: int) -> int:
        return index if self.tensors is None else self.tensors[index]

    def _register(self, node: Node) -> int:
        self.slots.append(Slot("reg", node.dtype, 0, self.joined.value[node.index]))
        return len(self.slots) - 1

    def _target(self, node: Node) -> int:
        """Where a value is written: straight into its tensor when it leaves, into a register when not."""
        if node.index not in self.leaving:
            return self._register(node)
        return self._slot(Slot("view", node.dtype, self._tensor(node.index), self.joined.value[node.index]))

    def _source(self, node: Node, place: int) -> int:
        source = node.inputs[place]
        if source in self.slot_of:
            return self.slot_of[source]
        other = self.graph.nodes[source]
        if other.op == "constant" and other.shape == () and other.dtype in FLOATS:
            return self._slot(Slot("imm", other.dtype, 0, (), float(other.attrs["value"])))
        return self._slot(
            Slot("view", other.dtype, self._tensor(source), self.joined.operand[node.index, place])
        )

    def _element(self, node: Node, code: list[Instruction]) -> int:
        sources = {"xy"[place]: self._source(node, place) for place in range(len(node.inputs))}
        if node.op == "cast":
            code.append(Instruction("cast", self._target(node), (sources["x"],)))
            return code[-1].dst
        calls, made = OPS[node.op].calls, list[int]()
        for ufunc, operands in calls:
            slots = []
            for operand in operands:
                if isinstance(operand, str):
                    slots.append(sources[operand])
                elif isinstance(operand, int):
                    slots.append(made[operand])
                else:
                    slots.append(self._slot(Slot("imm", node.dtype, 0, (), operand)))
            made.append(self._target(node) if len(made) == len(calls) - 1 else self._register(node))
            code.append(Instruction(ufunc, made[-1], tuple(slots)))
        return made[-1]

    def _broadcast(self, node: Node, code: list[Instruction]) -> int:
        kinds = {self.graph.nodes[r].kind for r in self.readers[node.index] if r in self.inside}
        if node.index not in self.leaving and kinds == {"element"}:
            return self._source(node, 0)  # an element-wise reader stretches it by itself
        code.append(Instruction("copy", self._target(node), (self._source(node, 0),)))
        return code[-1].dst

    def _transpose(self, node: Node, code: list[Instruction]) -> int:
        source, order = self._source(node, 0), node.attrs["axes"]
        axes = self.slots[source].axes
        turned = tuple(axes[i] for i in order)
        if self.slots[source].kind == "alias":  # of what that one is of: no chain of aliases
            _, _, source, _, _, before = self.slots[source]
            order = tuple(before[i] for i in order)
        alias = self._slot(Slot("alias", node.dtype, source, turned, perm=order))
        if node.index not in self.leaving:
            return alias
        code.append(Instruction("copy", self._target(node), (alias,)))
        return code[-1].dst

    def _reduce(self, node: Node, code: list[Instruction]) -> int:
        source, mask = self._source(node, 0), sum(1 << axis for axis in node.attrs["axes"])
        if node.index not in self.phases.accumulating:
            code.append(Instruction(node.op, self._target(node), (source,), mask))
            return code[-1].dst
        axes = self.joined.value[node.index]
        total = self._slot(Slot("acc", node.dtype, len(self.body), axes))
        self.body.append(Instruction(f"acc_{node.op}", total, (source,), mask))
        self.tail.append(Instruction("finish", self._target(node), (total,)))
        return self.tail[-1].dst

    def _gemm(self, node: Node, code: list[Instruction]) -> int:
        right = self.graph.nodes[node.inputs[1]]
        while right.index in self.inside and right.kind == "transpose":
            right = self.graph.nodes[right.inputs[0]]
        if right.index in self.inside:
            rule = "the right operand of a product is computed in the same group: every tile would compute it again"
            raise bad(node.name, right.name, rule, f"end a group at {right.name}", self.graph.name)
        code.append(Instruction("matmul", self._target(node), (self._source(node, 0), self._source(node, 1))))
        return code[-1].dst

    def _gather(self, node: Node, code: list[Instruction]) -> int:
        sources = (self._source(node, 0), self._source(node, 1))
        code.append(Instruction("take", self._target(node), sources, node.attrs["axis"]))
        return code[-1].dst
