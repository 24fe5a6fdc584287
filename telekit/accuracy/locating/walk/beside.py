"""What is known beside the nodes of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.readers.named import NamedTensor

Ranks = Mapping[tuple[int | None, str], list[NamedTensor]]
"""By step and name: the target's own tensors of all ranks, before anything was merged."""


@dataclass(frozen=True)
class Beside:
    """What is known beside a step.

    Attributes
    ----------
    ranks : mapping
        The target's own tensors.
    sizes : mapping of str to float
        Of groups, and counts.
    graph, before : sequence of Node
        All nodes of the step, and of the one before (empty at the first).
    later : sequence of Node
        Updates of later steps: where one step leaves two explanations, the next may tell.
    losses, norms : (target, golden), optional
        Reported at the step.
    """

    ranks: Ranks = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)
    graph: Sequence[Node] = ()
    before: Sequence[Node] = ()
    later: Sequence[Node] = ()
    losses: tuple[float, float] | None = None
    norms: tuple[float, float] | None = None
