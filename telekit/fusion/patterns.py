"""Fusion by patterns: what compilers look for first, found in a graph by shape, not by name.

- *epilogue*: a matrix product and the element-wise operators that follow it, as far as each is read in one place;
- *reduction*: a row-wise reduction with all that leads to it and uses it over the same rows (RMSNorm, softmax);
- *chain*: element-wise operators in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from telekit.fusion.graph import Graph
from telekit.fusion.legality import OnChip, cycle, problem

ROUND = 32
"""Operators that a group grows to one by one."""
MAX_TRIED = 64
"""Neighbours that are tried one by one before a group is looked at anew."""
_POINTWISE = ("element", "broadcast")


class Pattern(NamedTuple):
    """One group that a pattern found: ``name`` is ``epilogue``, ``reduction`` or ``chain``."""

    name: str
    group: tuple[int, ...]


def patterns(graph: Graph, sizes: Mapping[str, int], chip: OnChip) -> tuple[Pattern, ...]:
    """Find groups of two and more operators, none in two groups: products first, then reductions, then chains."""
    live = graph.live()
    taken: set[int] = set()
    found: list[Pattern] = []
    for name, kinds, seeds in (
        ("epilogue", _POINTWISE, ("gemm",)),
        ("reduction", (*_POINTWISE, "reduce"), ("reduce",)),
        ("chain", _POINTWISE, _POINTWISE),
    ):
        for index in graph.operators:
            if graph.nodes[index].kind in seeds and index in live and index not in taken:
                group = _grown(graph, index, kinds, name, taken, sizes, chip)
                if len(group) > 1 and not cycle(graph, _partition(graph, [*found, Pattern(name, group)])):
                    found.append(Pattern(name, group))
                    taken.update(group)
    return tuple(found)


def _partition(graph: Graph, found: list[Pattern]) -> list[tuple[int, ...]]:
    """Return the groups found, and every other operator by itself."""
    inside = {i for pattern in found for i in pattern.group}
    live = graph.live()
    return [p.group for p in found] + [(i,) for i in graph.operators if i in live and i not in inside]


def _grown(
    graph: Graph,
    seed: int,
    kinds: tuple[str, ...],
    name: str,
    taken: set[int],
    sizes: Mapping[str, int],
    chip: OnChip,
) -> tuple[int, ...]:
    """Add neighbours of the kinds wanted while the group stays one kernel.

    Up to :data:`ROUND` operators they come one by one; then all in reach together, twice as many each time, and one
    by one again where that is no kernel: so that the time for a long chain is in proportion to its length.
    """
    group, many, changed = {seed}, 1, True

    def wanted(around: set[int]) -> list[int]:
        near = _neighbours(graph, around, downward=name == "epilogue")
        return [i for i in near if i not in taken and graph.nodes[i].kind in kinds]

    while changed:
        changed = False
        if len(group) >= ROUND:
            more = set(group)
            while len(more) - len(group) < many and (near := wanted(more)):
                more.update(near)
            if len(more) > len(group) and not problem(graph, more, sizes, chip):
                group, many, changed = more, 2 * len(more), True
                continue
        for index in wanted(group)[:MAX_TRIED]:
            if not problem(graph, group | {index}, sizes, chip):
                group.add(index)
                changed = True
    return tuple(sorted(group))


def _neighbours(graph: Graph, group: set[int], downward: bool) -> Iterator[int]:
    """Operators that read from the group, and unless ``downward`` those it reads from."""
    live, readers = graph.live(), graph.consumers()
    near = {r for i in group for r in readers[i] if r in live}
    if not downward:
        near |= {
            s for i in group for s in graph.nodes[i].inputs if graph.nodes[s].op not in ("input", "constant")
        }
    yield from sorted(near - group)
