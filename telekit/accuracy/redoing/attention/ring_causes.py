"""What a ring of context-parallel ranks does wrong, by attention's output and by its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.attention.attention import owners
from telekit.accuracy.redoing.attention.gathered import gathered_causes
from telekit.accuracy.redoing.attention.gradients import proven_call
from telekit.accuracy.redoing.attention.ring import (
    BACKWARD_MISTAKES,
    FORWARD_MISTAKES,
    Mistake,
    Ring,
    block_outputs,
    ring_output,
    ring_pieces,
)
from telekit.accuracy.redoing.formula.formula import Proven, relative

MAX_SCORES = 1 << 20
_UNLIKE = 0.1
_MOST_RANKS = 8


def rings(n: int, case: Case) -> Iterator[tuple[str, Ring]]:
    """Return rings of as many ranks as context parallelism has, positions dealt zigzag, then in order."""
    if case.sizes.get("cp", 1) == 1:
        return
    for how, owner in reversed(list(owners(n, case))):
        ranks = int(owner.max()) + 1
        if 1 < ranks <= _MOST_RANKS:
            yield how, Ring(np.stack([np.flatnonzero(owner == r) for r in range(ranks)]))


def ring_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Try each mistake of a ring, then fit what each of its steps counts for."""
    call = proven_call(case, found)
    if call is None:
        return
    tensors = list(call.tensors)
    batch, heads, n, _ = tensors[0].shape
    groups = heads // tensors[1].shape[1]
    if batch * heads * n * n > MAX_SCORES:
        return
    tensors[1:3] = [np.repeat(x, groups, axis=1) for x in tensors[1:3]]
    if call.which is None:
        yield from _of_output(case, found, tensors, call.target)
    else:
        yield from _of_gradients(case, found, tensors, call.target, call.which, groups)


def _fits(found: Proven, left: float) -> bool:
    return left <= found.reach and left <= found.own_error / 3


def _named(found: Proven, ring: Ring, said: str, made: Callable[[Mistake], Floats], target: Floats,
           mistakes: tuple[Mistake, ...]) -> Iterator[Cause]:  # fmt: skip
    """Return the mistake that leaves least, where that is no more than rounding: of all ranks, or of some alone."""

    def by_rank(value: Floats) -> Floats:
        off = ring.dealt(np.nan_to_num(value - target, nan=np.inf))
        return np.asarray((off * off).sum(axis=tuple(range(1, off.ndim))))

    size = float(np.linalg.norm(target.ravel())) or 1.0
    right = by_rank(made(Mistake()))
    wrong = np.stack([by_rank(made(mistake)) for mistake in mistakes])
    left = np.sqrt(np.minimum(wrong, right).sum(axis=1)) / size
    at = int(np.argmin(left))
    if not _fits(found, float(left[at])):
        return
    where = np.flatnonzero(wrong[at] < right)
    whole = np.sqrt(wrong[at].sum()) / size <= found.reach
    only = "" if whole else f", at rank {where.tolist()} alone"
    text = f"{said} is the target with one change: {mistakes[at].text}{only}"
    tail = f"({left[at]:.2g} of it is left, {found.own_error:.2g} without)"
    yield Cause(mistakes[at].kind, 0.97, f"{text} {tail}")


def _of_output(case: Case, found: Proven, tensors: list[Floats], target: Floats) -> Iterator[Cause]:
    for how, ring in rings(target.shape[2], case):
        made = partial(_output, ring, tensors)
        one = list(_named(found, ring, f"attention of a ring of {how}", made, target, FORWARD_MISTAKES))
        yield from one
        if one:
            return
    moved = list(gathered_causes(case, found, tensors, target))
    yield from moved
    if moved:
        return
    for how, ring in rings(target.shape[2], case):
        blocks = block_outputs(ring, *tensors)
        if len(blocks) > target.shape[-1] // 2:
            continue
        shares = np.linalg.pinv(np.moveaxis(blocks, 0, -1)) @ target[..., None]
        value = (np.moveaxis(blocks, 0, -1) @ shares)[..., 0]
        left = relative(value, target)
        if _fits(found, left):
            total = shares[..., 0].sum(axis=-1)
            text = (
                f"for every query the target is a sum of what the blocks of keys of {how} give, with shares"
            )
            text += f" that add up to {total.min():.3g} to {total.max():.3g}: merged with other weights than"
            yield Cause(
                kinds.NORMALISATION, 0.93, f"{text} their part of the softmax ({left:.2g} of it is left)"
            )
            return


def _output(ring: Ring, tensors: list[Floats], mistake: Mistake) -> Floats:
    with np.errstate(all="ignore"):
        return np.nan_to_num(ring_output(ring, mistake, *tensors))


def _of_gradients(case: Case, found: Proven, tensors: list[Floats], target: Floats, which: int,
                  groups: int) -> Iterator[Cause]:  # fmt: skip
    of = found.formula.name
    for how, ring in rings(target.shape[2], case):

        def made(mistake: Mistake, ring: Ring = ring) -> Floats:
            parts = ring_pieces(ring, mistake, *tensors).at_home(which).sum(axis=0)
            return _grouped(ring.joined(parts), groups if which else 1)

        one = list(_named(found, ring, f"{of} of a ring of {how}", made, target, BACKWARD_MISTAKES))
        yield from one or _counted(found, ring, how, tensors, target, which, groups)
        if one:
            return


def _grouped(x: Floats, groups: int) -> Floats:
    """Add the heads of each group."""
    return np.asarray(x.reshape(x.shape[0], -1, groups, *x.shape[2:]).sum(axis=2))


def _counted(found: Proven, ring: Ring, how: str, tensors: list[Floats], target: Floats, which: int,
             groups: int) -> Iterator[Cause]:  # fmt: skip
    """Fit how often each step's gradient counts in each half of each rank's positions, also at other ranks."""
    home = ring_pieces(ring, Mistake(), *tensors).at_home(which)
    steps, ranks = home.shape[:2]
    made = [
        _grouped(home[j, r], groups if which else 1) for r in range(ranks) for j in range(steps)
    ]  # each of a rank's positions
    own = ring.dealt(target)
    halves = np.array_split(np.arange(own.shape[3]), 2)
    factors, rest = np.zeros((ranks, len(halves), ranks, steps)), 0.0
    there = np.zeros_like(factors, dtype=bool)
    for r, (h, half) in ((r, x) for r in range(ranks) for x in enumerate(halves)):
        matrix = np.stack([x[:, :, half].ravel() for x in made], axis=1)
        of = own[r][:, :, half].ravel()
        if len(of) < 4 * len(made) or not np.isfinite(matrix).all():
            return
        size = np.linalg.norm(matrix, axis=0)
        found_by, *_ = np.linalg.lstsq(matrix, of, rcond=1e-6)
        factors[r, h] = found_by.reshape(ranks, steps)
        there[r, h] = (size > 1e-3 * size.max()).reshape(ranks, steps)
        rest += float(np.sum((matrix @ found_by - of) ** 2))
    left = float(np.sqrt(rest)) / max(float(np.linalg.norm(target.ravel())), 1e-300)
    if _fits(found, left):
        yield from _said(found.formula.name, how, factors, there, left)


def _said(of: str, how: str, factors: Floats, there: Array, left: float) -> Iterator[Cause]:
    ranks = len(factors)
    own = np.eye(ranks, dtype=bool)[:, None, :, None] & there
    foreign = np.abs(np.where(own | ~there, 0.0, factors)) > _UNLIKE
    lost = own & (np.abs(factors) < _UNLIKE)
    more = own & (np.abs(factors - 1) > _UNLIKE) & ~lost
    tail = f"({left:.2g} of it is left)"
    if foreign.any():
        r, _, other, step = np.argwhere(foreign)[0]
        text = (
            f"rank {r} has what belongs to rank {other} (of step {step}): sent to another rank than its own"
        )
        yield Cause(kinds.PERMUTATION, 0.94, f"in {of} over a ring of {how} {text} {tail}")
    elif lost.any():
        where = sorted({int(s) for s in np.argwhere(lost)[:, 3]})
        whole = all(lost[..., s].sum() == own[..., s].sum() for s in where)
        part = "" if whole else f" in {lost.sum()} of {own.sum()} pieces of the ranks' positions"
        text = f"the gradients of step {where} do not count{part}: written over or never added"
        yield Cause(kinds.MISSING_TERM, 0.95, f"in {of} over a ring of {how} {text} {tail}")
    elif more.any():
        r, _, _, step = np.argwhere(more)[0]
        value = float(factors[tuple(np.argwhere(more)[0])])
        kind = kinds.EXTRA_TERM if abs(value - 2) < _UNLIKE else kinds.SCALED
        text = f"the gradients of step {step} count {value:.3g} times at rank {r}"
        yield Cause(kind, 0.94, f"in {of} over a ring of {how} {text} {tail}")
