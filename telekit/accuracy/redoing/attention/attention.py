"""Attention done again from its queries, keys and values: other masks, scales, head groups, and local windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.checks.grids import NARROW
from telekit.accuracy.measures.pairs import FORMATS, Array, Floats
from telekit.accuracy.redoing.attention.scores import Scene, fitted_scores, scene_of
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side, rounded
from telekit.accuracy.redoing.formula.orders import counts, zigzags

MAX_SCORES = 1 << 24
ORDERS = {
    "batch, sequence, heads": (0, 2, 1, 3),
    "sequence, batch, heads": (1, 2, 0, 3),
    "batch, heads, sequence": (0, 1, 2, 3),
}


def fitting(q: Floats, k: Floats) -> Iterator[tuple[int, ...]]:
    """Orders of axes that make queries and keys (batch, heads, tokens, size), with a whole number of heads a group."""
    for order in ORDERS.values():
        (n, h, s, _), (m, j, r, _) = ([x.shape[i] for i in order] for x in (q, k))
        if n == m and not h % j and s == r and n * h * s * s <= MAX_SCORES:
            yield order


def _masks(n: int) -> dict[str, Array]:
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return {"causal": j <= i, "no": np.ones((n, n), bool)}


def _other_masks(mask: Array, case: Case) -> dict[str, Array]:
    """Masks that may have been taken instead, by what they are."""
    n = len(mask)
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    masks = {
        "no mask": np.ones((n, n), bool), "a causal mask": j <= i, "a mask that hides the token itself": j < i,
        "a mask that shows one token of the future": j <= i + 1, "the mask with the opposite meaning": j > i,
        "a mask of the future and itself": j >= i,
    }  # fmt: skip
    for how, shown in ring_masks(n, case):
        masks[f"attention only {how}"] = mask & shown
    masks |= block_masks(n, case)
    for width in range(1, min(n, 64)):
        masks[f"a window of {width}"] = mask & (i - j < width)
    return masks


def owners(n: int, case: Case) -> Iterator[tuple[str, Array]]:
    """Ways to deal positions to ranks: which rank has each, in order and zigzag."""
    for count, _ in counts(case, "cp"):
        if n % count == 0:
            yield f"{count} pieces", np.arange(n) // (n // count)
        if n % (2 * count) == 0:
            chunk = np.arange(n) // (n // (2 * count))
            yield f"{count} pieces dealt zigzag", np.minimum(chunk, 2 * count - 1 - chunk)


def block_masks(n: int, case: Case) -> dict[str, Array]:
    """Masks of a ring that decides for each block of keys by its ranks, or by places inside a rank."""
    masks: dict[str, Array] = {}
    for how, owner in owners(n, case):
        of_rank = owner[:, None] == owner[None, :]
        ranks, place = int(owner.max()) + 1, np.zeros(n, int)
        positions = np.stack([np.flatnonzero(owner == rank) for rank in range(ranks)])
        place[positions] = np.arange(n // ranks)
        local, before = place[None, :] <= place[:, None], owner[None, :] < owner[:, None]
        masks |= {
            f"a mask of each block of {how} as if its keys were the rank's own": local,
            f"a mask of the blocks of {how} other than a rank's own as if they began where its own do": np.where(
                of_rank, np.tri(n, dtype=bool), local
            ),
            f"over {how} a causal mask inside each rank, all keys of ranks before it and none of ranks after it":
                (of_rank & local) | before,
            f"over {how} a causal mask inside each rank, and all keys of the other ranks": (of_rank & local) | ~of_rank,
            f"over {how} all keys of a rank's own, and of the ranks before it": of_rank | before,
            f"over {how} a causal mask, but for the rank's own keys, which all show": np.tri(n, dtype=bool) | of_rank,
            f"over {how} a causal mask, but for the other ranks' keys, which all show":
                np.tri(n, dtype=bool) | ~of_rank,
        }  # fmt: skip
        for by in range(1, ranks):
            shifted = positions[(owner + by) % ranks, place][None, :] <= np.arange(n)[:, None]
            said = f"over {how} each block masked by the positions of the rank {by} after its own"
            masks |= {
                said: shifted,
                f"{said}, but for a rank's own keys": np.where(of_rank, np.tri(n, dtype=bool), shifted),
            }
    return masks


def ring_masks(n: int, case: Case) -> Iterator[tuple[str, Array]]:
    """Pairs of query and key that a ring of ranks leaves where some of its steps are not run."""
    for how, owner in owners(n, case):
        ranks = int(owner.max()) + 1
        step = (owner[:, None] - owner[None, :]) % ranks
        yield f"inside each of {how}: the keys of the other ranks do not count", step == 0
        for k in range(1, ranks if ranks > 2 else 1):
            yield f"over {how} without step {k} of the ring (the keys of the rank {k} before)", step != k


def attention(case: Case) -> Iterator[Formula]:
    """Causal attention, or without a mask, of q, k and v among the inputs."""
    g = case.golden
    assert g is not None
    if case.phase != "forward":
        return
    four = [k for k in case.inputs if k.golden is not None and k.golden.ndim == 4]
    for q, k, v in permutations(four[:4], 3):
        a, b, c = q.golden, k.golden, v.golden
        if (
            a is None
            or b is None
            or c is None
            or b.shape != c.shape
            or a.shape[-1] != b.shape[-1]
            or a.size != g.size
        ):
            continue
        for order in fitting(a, b):
            s = a.shape[order[2]]
            for name, mask in _masks(s).items():
                make = partial(attended, order, g.shape, mask, {})
                variants = partial(_formula_variants, order, g.shape, name, mask, case, (q, k, v))
                yield Formula(f"attention with {name} mask", (q, k, v), make, variants)


def attended(
    order: tuple[int, ...],
    shape: tuple[int, ...],
    mask: Array,
    how: Mapping[str, Any],
    q: Floats,
    k: Floats,
    v: Floats,
) -> Floats:
    """Attention with the heads' usual scale times ``scale``, and ``sink`` more in the denominator.

    ``scores``, ``powers`` and ``weights`` name a format that the scores, their exponentials or the softmax are rounded
    to.
    """
    q, k, v = (a.transpose(order) for a in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (
            np.tile(a, (1, groups, 1, 1)) if how.get("tile") else np.repeat(a, groups, axis=1) for a in (k, v)
        )
    scores = (q @ k.swapaxes(-1, -2)) * q.shape[-1] ** -0.5 * how.get("scale", 1.0)
    scores = rounded(scores, how["scores"]) if "scores" in how else scores
    scores = np.where(mask, scores, how.get("hidden", -np.inf))
    top = np.maximum(scores.max(axis=-1, keepdims=True), -1e30)
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True) + how.get("sink", 0.0) * np.exp(-top)
    if "linear" in how:
        p, total = np.where(mask, scores, 0.0), np.ones_like(total)
    if "power" in how:
        total = total ** how["power"]
    p = rounded(p, how["powers"]) if "powers" in how else p
    p = p / np.where(total > 0, total, 1.0)
    p = rounded(p, how["weights"]) if "weights" in how else p
    value = (p @ v).transpose(np.argsort(order))
    return np.asarray(value.reshape(shape))


def _formula_variants(
    order: tuple[int, ...],
    shape: tuple[int, ...],
    name: str,
    mask: Array,
    case: Case,
    known: tuple[Known, Known, Known],
) -> Iterator[Variant]:
    def made(other: Array | None = None, **how: Any) -> Callable[..., Floats]:
        return partial(attended, order, shape, mask if other is None else other, how)

    yield from _mask_variants(mask, name, case, made)
    yield kinds.MASK, "hidden scores set to 0, not to minus infinity", made(hidden=0.0)
    yield kinds.NORMALISATION, "one more in the softmax's denominator (an attention sink)", made(sink=1.0)
    yield kinds.NORMALISATION, "the softmax's denominator left out", made(power=0.0)
    yield kinds.NORMALISATION, "the scores themselves, without their softmax", made(linear=1.0)
    yield kinds.PERMUTATION, "key and value heads tiled, not repeated", made(tile=1.0)
    yield from _coarse_variants(case, made)
    yield kinds.SOFTMAX_SCALE, "no scale", lambda q, k, v: made(scale=q.shape[-1] ** 0.5)(q, k, v)
    yield kinds.SOFTMAX_SCALE, "the scale twice", lambda q, k, v: made(scale=q.shape[-1] ** -0.5)(q, k, v)
    yield kinds.PERMUTATION, "keys and values the wrong way round", lambda q, k, v: made()(q, v, k)
    scene, target = scene_from(order, mask, known, case)
    for kind, text, change in fitted_scores(scene, target):
        yield kind, text, partial(_of_scene, order, shape, mask, change)


def _mask_variants(
    mask: Array, name: str, case: Case, made: Callable[..., Callable[..., Floats]]
) -> Iterator[Variant]:
    n = len(mask)
    for text, other in _other_masks(mask, case).items():
        if not np.array_equal(other, mask):
            kind = kinds.MISSING_REDUCTION if text.startswith("attention only") else kinds.MASK
            yield kind, f"{text} in place of {name} mask", made(other)
    for m, _ in counts(case, "cp"):
        for text, at in zigzags(n, m):
            seen = np.arange(n)[:, None]
            said = f"a mask of keys {text} of {m} ranks"
            yield kinds.MASK, said, made(at[None, :] <= seen)
            yield kinds.MASK, f"{said}, and queries too", made(at[None, :] <= at[:, None])
            yield kinds.MASK, f"a mask of queries {text} of {m} ranks", made(at[:, None] >= seen.T)


def _coarse_variants(case: Case, made: Callable[..., Callable[..., Floats]]) -> Iterator[Variant]:
    for dtype in (d for d in NARROW if FORMATS[d].epsilon > 2 * case.epsilon):
        yield kinds.WRONG_DTYPE, f"the scores rounded to {dtype} before the softmax", made(scores=dtype)
        yield (
            kinds.WRONG_DTYPE,
            f"the scores' exponentials rounded to {dtype} before the values",
            made(powers=dtype),
        )
        yield kinds.WRONG_DTYPE, f"the softmax rounded to {dtype} before the values", made(weights=dtype)


def scene_from(
    order: tuple[int, ...], mask: Array, known: tuple[Known, Known, Known], case: Case
) -> tuple[Scene, Floats]:
    """Return queries, keys and values of the target, and its output, by batch, heads and tokens."""
    assert case.target is not None
    q, k, v = (own_side(a) for a in known)
    target = case.target.reshape(q.shape).transpose(order)
    return scene_of(q.transpose(order), k.transpose(order), v.transpose(order), mask), target


def _of_scene(
    order: tuple[int, ...],
    shape: tuple[int, ...],
    mask: Array,
    change: Callable[[Scene], Floats],
    q: Floats,
    k: Floats,
    v: Floats,
) -> Floats:
    value = change(scene_of(q.transpose(order), k.transpose(order), v.transpose(order), mask))
    return np.asarray(value.transpose(np.argsort(order)).reshape(shape))
