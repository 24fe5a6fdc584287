"""Operators done again from what they were given: first as golden did, and where that agrees, with a fault in it.

No hypothesis is tried on an operator that cannot be reproduced from its dumped inputs: agreement with golden is
what makes a guess at the operator's meaning a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.redoing.attention.attention import attention
from telekit.accuracy.redoing.attention.gradients import attention_gradients
from telekit.accuracy.redoing.attention.heads import head_causes
from telekit.accuracy.redoing.attention.recovered import merged_blocks, recovered_weights
from telekit.accuracy.redoing.attention.ring_causes import ring_causes
from telekit.accuracy.redoing.attention.rotary import rotary, rotary_causes
from telekit.accuracy.redoing.experts.dropped import drop_causes
from telekit.accuracy.redoing.experts.exchange import exchanges
from telekit.accuracy.redoing.experts.grouped import grouped
from telekit.accuracy.redoing.experts.router import router_gradients, routing
from telekit.accuracy.redoing.experts.router_loss import balance_causes, router_loss_causes
from telekit.accuracy.redoing.experts.routing_weights import router_causes
from telekit.accuracy.redoing.experts.rows import row_causes
from telekit.accuracy.redoing.experts.selection import selection_causes
from telekit.accuracy.redoing.formula.coarse import coarser
from telekit.accuracy.redoing.formula.formula import Builder, Proven, changed, proven
from telekit.accuracy.redoing.formula.recomputed import recomputed_causes
from telekit.accuracy.redoing.layers.crossed import crossed_causes
from telekit.accuracy.redoing.layers.dense import embeddings, linear, sums
from telekit.accuracy.redoing.layers.gated import gated
from telekit.accuracy.redoing.layers.norm import norms
from telekit.accuracy.redoing.layers.pieces import mixed_piece_causes, token_piece_causes
from telekit.accuracy.redoing.layers.products import product_causes
from telekit.accuracy.redoing.layers.summed_pieces import summed_piece_causes
from telekit.accuracy.redoing.loss.gradient import loss_gradients
from telekit.accuracy.redoing.output.columns import column_causes
from telekit.accuracy.redoing.output.reread import reread_causes
from telekit.accuracy.redoing.output.rounding import rounding_causes, saturation_causes, underflow_causes
from telekit.accuracy.redoing.output.values import bare_causes, value_causes

FORMULAS: tuple[Builder, ...] = (
    sums, norms, gated, rotary, embeddings, attention, attention_gradients, exchanges, grouped, routing,
    router_gradients, loss_gradients, linear,
)  # fmt: skip
"""Every operator that is known as a formula."""


def kept_to(case: Case) -> Proven | None:
    """Return the formula that golden keeps to, with how the target does; None where it keeps to none."""
    return proven(case, FORMULAS)


def _by_formula(case: Case) -> Iterator[Cause]:
    """Try the operator with a fault in it, or with other inputs."""
    found = kept_to(case)
    if found is None:
        yield from bare_causes(case)
        return
    causes = list(changed(case, found))
    if found.own_error > found.limit / 2 and not any(_settled(c) for c in causes):
        causes += saturation_causes(case, found)
        causes += rounding_causes(case, found)
        causes += underflow_causes(case, found)
        causes += reread_causes(case, found)
        if found.own_error > found.reach:  # else what does nothing explains it as well
            causes += value_causes(case, found)
        for detector in (recomputed_causes, crossed_causes, head_causes, ring_causes, recovered_weights):
            causes += detector(case, found)
        causes += merged_blocks(case, found)
        if not any(c.confidence > _SETTLED for c in causes):
            causes += coarser(case, found)
    yield from causes


def _settled(cause: Cause) -> bool:
    """Whether a change of the formula is not looked behind; an order of an input may be one of the output."""
    return cause.confidence > _SETTLED and cause.kind != kinds.PERMUTATION


def _reduced(case: Case) -> Iterator[Cause]:
    """Try what a reduction's result was made from, not its input that golden hands on as it is."""
    if case.phase == BACKWARD and "reduce" in case.words:
        found = proven(case, [f for f in FORMULAS if f is not sums])
        if found is not None:
            yield from changed(case, found)


_SETTLED = 0.85
"""A change of the formula of so much confidence is not looked behind."""


REDONE: tuple[Callable[[Case], Iterator[Cause]], ...] = (
    _by_formula, _reduced, product_causes, rotary_causes, router_causes, drop_causes,
    balance_causes, selection_causes, router_loss_causes,
    token_piece_causes, mixed_piece_causes, column_causes, row_causes,
    summed_piece_causes,
)  # fmt: skip
"""Every operator that a tensor may have come from, each a detector of its own."""
