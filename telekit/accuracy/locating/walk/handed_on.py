"""Inputs that are not what an earlier operator made, though golden's are to the bit: changed on the way between."""

from __future__ import annotations

from collections.abc import Callable

from telekit.accuracy.causes.case import Case, loaded
from telekit.accuracy.causes.finding import Candidate
from telekit.accuracy.compared import INPUT, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import is_float
from telekit.accuracy.locating.walk.walk import Place, Walk
from telekit.accuracy.redoing.formula.formula import relative
from telekit.accuracy.redoing.output.columns import joined


def changed_inputs(node: Node, walk: Walk, case_for: Callable[[Place], Case]) -> list[Place]:
    """Find an operator's inputs that are further from what they are copied from than adding ranks' terms rounds.

    Parameters
    ----------
    node : Node
    walk : Walk
        What went before.
    case_for : callable
        Loads what stands near a place.
    """
    found = []
    for row in node.inputs:
        error = walk.error(row)
        if not error or not is_float(row):
            continue
        place = Place(
            Candidate(node.base, node.phase, INPUT, row.name, error, 0.0, walk.epsilon), node, row, True
        )
        off = _off(row, walk.sources.get(id(row)), place, case_for)
        if off is not None and off > walk.epsilon:
            told = Candidate(node.base, node.phase, INPUT, row.name, off, walk.level, walk.epsilon)
            found.append(Place(told, node, row, True))
    return found


def _off(
    row: Compared, source: Compared | None, place: Place, case_for: Callable[[Place], Case]
) -> float | None:
    """Return how far, relative, an input is from the output, or the columns of outputs, that golden copies."""
    if source is None:
        case = case_for(place)
        whole = joined(case)
        return None if whole is None or case.target is None else relative(case.target, whole.right)
    made, given = loaded(source.target), loaded(row.target)
    return (
        relative(given, made)
        if made is not None and given is not None and made.shape == given.shape
        else None
    )
