"""Attention where no change of its formula fits: weights and biases read back, blocks of keys merged otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.cause_values import taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.attention import attended, owners, scene_from
from telekit.accuracy.redoing.attention.bias import fitted_biases
from telekit.accuracy.redoing.attention.scores import weight_causes_of
from telekit.accuracy.redoing.formula.formula import Proven, own_side, relative


def recovered_weights(case: Case, found: Proven) -> Iterator[Cause]:
    """Where no change of the formula fits: what the softmax's weights must have been."""
    made = found.formula.make
    if not isinstance(made, partial) or made.func is not attended or case.target is None:
        return
    order, _, mask, _ = made.args
    scene, target = scene_from(order, mask, found.formula.inputs[:3], case)  # type: ignore[arg-type]
    for kind, text, change in fitted_biases(scene, target):
        left = relative(change(scene), target)
        if left <= found.reach and left <= found.own_error / 3:
            said = f"with {text} attention of the target's own inputs is the target ({left:.2g} is left)"
            yield Cause(kind, 0.95, said)
            return
    yield from weight_causes_of(scene, target, found.reach)


def merged_blocks(case: Case, found: Proven) -> Iterator[Cause]:
    """Try blocks of keys merged with fixed shares, one for each pair of ranks, not with those of the softmax."""
    made, t = found.formula.make, case.target
    if not isinstance(made, partial) or made.func is not attended or t is None:
        return
    order, shape, mask, _ = made.args
    tensors = [own_side(k) for k in found.formula.inputs]
    for how, owner in owners(len(mask), case):
        ranks = range(int(owner.max()) + 1)
        blocks = [attended(order, shape, mask & (owner == r)[None, :], {}, *tensors) for r in ranks]
        of_query = np.broadcast_to(owner[:, None], [tensors[0].shape[i] for i in order])
        value, shares = _merged(blocks, of_query.transpose(np.argsort(order)).reshape(shape), t)
        share = taken_away(case, value)
        if share > 0.85:
            fixed = shares.round(2).tolist()
            text = f"keys of {how} are merged with the same shares for every query of a rank, {fixed}"
            said = f"{text}: not weighed by their part of the softmax"
            yield Cause(kinds.NORMALISATION, 0.95 * share, said)
            return


def _merged(blocks: list[Floats], of_query: Array, target: Floats) -> tuple[Floats, Floats]:
    """Fit each rank's shares of the blocks to the outputs of its queries; return the sum, and the shares by rank."""
    value, shares = np.zeros_like(target), np.zeros((len(blocks), len(blocks)))
    for r, own in enumerate(shares):
        at = of_query == r
        own[:], *_ = np.linalg.lstsq(np.stack([b[at] for b in blocks], axis=1), target[at], rcond=1e-9)
        value[at] = sum(s * b[at] for s, b in zip(own, blocks, strict=True))
    return value, shares
