"""Checks of a side by itself, exact in any precision: inputs, copies of weights, the loss, what a step starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from telekit.accuracy.causes.finding import DIFFERENT_WEIGHTS, Cause, Finding, ranked
from telekit.accuracy.compared import FORWARD, OPTIMIZER, PARAMETERS, SETUP
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.locating.gradients.accumulated import own_sums
from telekit.accuracy.locating.gradients.reductions import changed_sum
from telekit.accuracy.locating.gradients.tied import tied_gradient, tied_update
from telekit.accuracy.locating.own.inputs import different_inputs, different_on_ranks
from telekit.accuracy.locating.own.loss import loss_node, redone_loss, reported_loss
from telekit.accuracy.locating.own.weights import (
    not_carried,
    other_start,
    other_weight,
    stale_use,
    unequal_weights,
    untied,
)
from telekit.accuracy.locating.walk.beside import Beside
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.locating.walk.walk import Place

_KNOWN_SHAPE = 0.7  # a cause above it says more than that the weight is another


def own_fault(graph: Sequence[Node], beside: Beside, place: Node | None, notes: list[str]) -> Finding | None:
    """Find what is wrong by the target's own tensors before, or at, the first place that is off beyond rounding.

    ``place`` is that place's node, None where there is none; ``notes`` is told of checks that failed themselves.
    """
    forward = [n for n in graph if n.phase != OPTIMIZER]
    order = {id(n): at for at, n in enumerate(graph)}
    limit = len(graph) if place is None else order[id(place)]
    first = not beside.before
    checks: tuple[Callable[[], Finding | None], ...] = (
        lambda: different_inputs(forward) or different_on_ranks(forward, beside.ranks, beside.sizes),
        lambda: unequal_weights(forward, beside.ranks, first),
        lambda: not_carried(forward, beside.before),
        lambda: untied(forward, first),
        lambda: stale_use(forward, beside.before),
        lambda: _loss(forward, place),
        lambda: reported_loss(forward, beside.losses, beside.sizes),
        lambda: own_sums(forward, beside.ranks),
        lambda: changed_sum(forward, beside.sizes) if place is None else None,
        lambda: tied_gradient(forward, beside.ranks, beside.sizes),
    )
    for check in checks:
        try:
            found = check()
        except Exception as error:  # one that trips over a shape nobody thought of takes no other with it
            notes.append(f"a check of the run by itself failed ({type(error).__name__}: {error})")
            continue
        if found is not None and _at(found, graph) <= limit:
            return found
    return None


def _at(found: Finding, graph: Sequence[Node]) -> int:
    """Place in the graph of the node that a finding names, else of its tensor's."""
    if found.phase == SETUP:
        return next((at for at, n in enumerate(graph) if n.base == found.operator), 0)
    base = found.operator.removesuffix(" input")
    own = (at for at, n in enumerate(graph) if n.base == base and n.phase == found.phase)
    return next(
        own, next((at for at, n in enumerate(graph) if any(r.name == found.tensor for r in n.rows)), 0)
    )


def _loss(graph: Sequence[Node], place: Node | None) -> Finding | None:
    """Return the loss's own fault as a finding; where a place is the loss itself its causes are joined instead."""
    found = loss_node(graph)
    redone = None if found is None or found[0] is place else redone_loss(graph)
    if redone is None:
        return None
    node, row, causes = redone
    return own_finding(node, row, FORWARD, causes)


def with_loss(place: Node, graph: Sequence[Node], causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Add to the causes of a place that is the loss what doing it again says."""
    found = loss_node(graph) if place.phase == FORWARD else None
    redone = redone_loss(graph) if found is not None and found[0] is place else None
    return causes if redone is None else ranked([*causes, *redone[2]])


def with_weights(place: Place, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Add to the causes of a weight that is off before the first step that it is another weight."""
    if place.candidate.phase != SETUP or place.row.part != PARAMETERS or causes[0].confidence >= _KNOWN_SHAPE:
        return causes
    text = other_weight(place.row)
    return ranked([*causes, Cause(DIFFERENT_WEIGHTS, _KNOWN_SHAPE, text)]) if text else causes


def start_fault(graph: Sequence[Node], beside: Beside) -> Finding | None:
    """Find weights that are not golden's before the first step, below what rounding explains elsewhere."""
    return None if beside.before else other_start(graph)


def update_fault(graph: Sequence[Node], beside: Beside) -> Finding | None:
    """Find copies of weights that an update leaves unequal, and states that were not carried from the step before."""
    optimizer = [n for n in graph if n.phase == OPTIMIZER]
    return (
        not_carried(optimizer, beside.before)
        or tied_update(graph, beside)
        or unequal_weights(optimizer, beside.ranks, False)
    )
