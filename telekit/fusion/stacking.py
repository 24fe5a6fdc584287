"""Fusion side by side: independent kernels that are alike go out in one launch (horizontal fusion).

Each keeps its own loop over tiles; some cores run the tiles of one, some of another, so neither bytes nor on-chip
memory change, only launches. Kernels at the same distance from the start never wait for each other, and stacking by
distance cannot make a circle.
"""

from __future__ import annotations

from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion

MAX_STACK = 64
"""Kernels that one launch holds: its arguments must fit the launch's buffer. Assumed."""


def stacked(graph: Graph, fusion: Fusion) -> tuple[tuple[int, ...], ...]:
    """Places of kernels by launch, in an order in which they can go out.

    Parameters
    ----------
    graph : Graph
        What runs.
    fusion : Fusion
        Its kernels, in the order they run.

    Returns
    -------
    tuple of tuple of int
        Each kernel in one launch; a launch of several holds kernels of the same operators on the same shapes.
    """
    home = {i: place for place, group in enumerate(fusion.groups) for i in group}
    distance: list[int] = []
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, group in enumerate(fusion.groups):
        before = {home[s] for i in group for s in graph.nodes[i].inputs if s in home} - {place}
        distance.append(1 + max((distance[b] for b in before), default=-1))
        alike.setdefault((distance[place], _signature(graph, group)), []).append(place)
    launches = [
        tuple(places[first : first + MAX_STACK])
        for places in alike.values()
        for first in range(0, len(places), MAX_STACK)
    ]
    return tuple(sorted(launches, key=lambda launch: (distance[launch[0]], launch)))


def _signature(graph: Graph, group: tuple[int, ...]) -> tuple[object, ...]:
    """Return what two kernels must share to go out together: operators, how they are wired, shapes and dtypes."""
    place = {index: i for i, index in enumerate(group)}
    outside: dict[int, int] = {}
    rows: list[object] = []
    for index in group:
        node = graph.nodes[index]
        wires = [place[s] if s in place else -1 - outside.setdefault(s, len(outside)) for s in node.inputs]
        shapes = [(graph.nodes[s].shape, graph.nodes[s].dtype) for s in node.inputs]
        attrs = tuple((k, str(v)) for k, v in sorted(node.attrs.items()))
        rows.append((node.op, tuple(wires), tuple(shapes), node.shape, node.dtype, attrs))
    return tuple(rows)
