"""A finding of a row that is wrong by its own side's tensors: no limit of rounding, no other candidates."""

from __future__ import annotations

from collections.abc import Sequence

from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.compared import OUTPUT, Compared
from telekit.accuracy.graph.nodes import Node

_PLACE = 0.97  # what is wrong by itself is wrong there


def own_finding(
    node: Node,
    row: Compared,
    phase: str,
    causes: Sequence[Cause],
    *,
    input_of: bool = False,
    more: Sequence[str] = (),
) -> Finding:
    """Make a finding of causes, best first.

    Parameters
    ----------
    node, row : Node, Compared
        The operator and its tensor.
    phase : str
    causes : sequence of Cause
    input_of : bool
        Whether it is what the operator was given that is wrong.
    more : sequence of str
        Further evidence.
    """
    top = causes[0]
    said = (
        f"{row.name}: {top.text}",
        *(f"{c.kind} ({c.confidence:.2f}): {c.text}" for c in causes[:3]),
        *more,
    )
    return Finding(
        f"{node.base} input" if input_of else node.base, phase, row.part or OUTPUT, top.kind,
        round(_PLACE * top.confidence, 3), said, top.next_dump, row.name, tuple(causes), (), row.step, row.rank,
    )  # fmt: skip
