"""Operators done again from what they were given: first as golden did, and where that agrees, with a fault in it.

No hypothesis is tried on an operator that cannot be reproduced from its dumped inputs: agreement with golden is
what makes a guess at the operator's meaning a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_values import agrees, taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.causes.redo_attention import attention_causes, attention_gradient_causes
from telekit.accuracy.causes.redo_rotary import rotary_causes
from telekit.accuracy.causes.redo_router import (
    balance_causes,
    drop_causes,
    router_causes,
    weight_gradient_causes,
)
from telekit.accuracy.measures.pairs import Array, Floats

_PIECES = 12
_MOST_ONES = 1 << 26


def counts(case: Case) -> list[tuple[int, str]]:
    """Into how many pieces something may be split: known sizes, else 2, 4 and 8."""
    named: dict[int, list[str]] = {}
    for name, size in case.sizes.items():
        if 1 < size <= 64 and name not in ("tokens", "loss_scale"):
            named.setdefault(int(size), []).append(name)
    known = [(size, " or ".join(names)) for size, names in named.items()]
    return (known or [(2, ""), (4, ""), (8, "")])[:_PIECES]


def _matrices(case: Case) -> Iterator[tuple[str, Known, Known, Floats, Floats]]:
    """Pairs whose product is golden, as (rows, inner) and (inner, columns)."""
    g = case.golden
    assert g is not None
    if g.ndim < 2:
        return
    flat = g.reshape(-1, g.shape[-1])
    known = [*case.inputs, *case.parameters]
    for x, w in product(known, known):
        if x is w or x.golden is None or w.golden is None or x.golden.ndim < 2 or w.golden.ndim < 2:
            continue
        a, b = x.golden.reshape(-1, x.golden.shape[-1]), w.golden.reshape(-1, w.golden.shape[-1])
        options = (("x w^T", a, b.T), ("x w", a, b), ("x^T y", a.T, b))
        for how, left, right in options:
            fits = left.shape[1] == right.shape[0] and (left.shape[0], right.shape[1]) == flat.shape
            if fits and left.size * right.shape[1] <= 1 << 31:
                yield how, x, w, left, right
    yield from _looked_up(case, flat)


def _looked_up(case: Case, golden: Floats) -> Iterator[tuple[str, Known, Known, Floats, Floats]]:
    """Gradients of an embedding as a product: one column of ones and zeros for each row of the table."""
    if case.phase != "backward" or "embed" not in case.words:
        return
    rows = len(golden)
    ids = [
        (k.name, k.golden)
        for k in case.inputs
        if k.golden is not None and k.golden.ndim > 1 and _ids(k.golden, rows)
    ]
    for (name, x), y in product([*ids, *_read_back(case, golden)], case.inputs):
        if y.golden is None or y.golden.shape != (*x.shape, golden.shape[1]) or y.name == name:
            continue
        if x.size * rows <= _MOST_ONES:
            ones = (x[..., None] == np.arange(rows)).astype(np.float64)
            yield (
                "x^T y",
                Known(name, None, ones),
                y,
                ones.reshape(-1, rows).T,
                y.golden.reshape(-1, golden.shape[1]),
            )


def _read_back(case: Case, golden: Floats) -> Iterator[tuple[str, Floats]]:
    """Token ids where they were not dumped: which row of the table each of the embedding's outputs is."""
    for table, out in product(case.parameters, case.inputs):
        if (
            table.golden is None
            or out.golden is None
            or table.golden.shape != golden.shape
            or out.golden.ndim < 3
        ):
            continue
        place = {row.tobytes(): i for i, row in enumerate(table.golden)}
        flat = out.golden.reshape(-1, out.golden.shape[-1])
        found = np.array([place.get(row.tobytes(), -1) for row in flat], np.float64)
        if found.min() >= 0:
            yield out.name, found.reshape(out.golden.shape[:-1])


def _linear(case: Case) -> Iterator[Cause]:
    """Try a product of which only a part of the inner dimension was summed, or whose weight was used otherwise."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if g.ndim == 0:
        return
    flat = g.reshape(-1, g.shape[-1])
    for how, x, w, left, right in _matrices(case):
        rest = flat - left @ right
        bias = rest.mean(axis=0) if not agrees(left @ right, flat, case) else np.zeros(flat.shape[1])
        if not agrees(left @ right + bias, flat, case):
            continue
        names = f"{x.name} and {w.name}"
        square = right.shape[0] == right.shape[1]
        if square and taken_away(case, (left @ right.T + bias).reshape(g.shape)) > 0.9:
            text = f"the target is the product of {names} with the weight transposed"
            yield Cause(kinds.PERMUTATION, 0.93, text)
        yield from _scattered(case, how, left, right, bias, names)
        yield from _sums(case, how, x, left, right, bias, names)
        return


def _scattered(
    case: Case, how: str, left: Floats, right: Floats, bias: Floats, names: str
) -> Iterator[Cause]:
    """Try each piece of the tokens made from one rank's part of the inner dimension: scattered, never summed."""
    g = case.golden
    assert g is not None
    if how == "x^T y":
        return
    rows = np.arange(len(left)).reshape(g.shape[:-1])
    for (n, name), axis in product(counts(case), range(rows.ndim)):
        if rows.shape[axis] % n or left.shape[1] % n:
            continue
        value = np.zeros((len(left), right.shape[1]))
        inner = np.split(np.arange(left.shape[1]), n)
        for own, part in zip(np.split(rows, n, axis=axis), inner, strict=True):
            at = own.ravel()
            value[at] = left[np.ix_(at, part)] @ right[part] + bias
        share = taken_away(case, value.reshape(g.shape))
        if share > 0.85:
            of = f" ({name})" if name else ""
            text = f"each of {n} pieces of axis {axis} is one rank's own part{of} of the product of {names}"
            yield Cause(kinds.MISSING_REDUCTION, 0.96 * share, f"{text}: scattered without being summed")
            return


def _sums(
    case: Case, how: str, x: Known, left: Floats, right: Floats, bias: Floats, names: str
) -> Iterator[Cause]:
    """Find with which factor each rank's part of the inner dimension counts in the target."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    for n, name in counts(case):
        for pieces in _inner(how, x, left.shape[1], n):
            parts = np.stack([(left[:, p] @ right[p]).ravel() for p in pieces], axis=1)
            if not np.isfinite(parts).all() or not np.isfinite(t).all():
                continue  # LAPACK would print its complaint
            factors, *_ = np.linalg.lstsq(parts, (t.reshape(-1, t.shape[-1]) - bias).ravel(), rcond=1e-9)
            share = taken_away(case, ((parts @ factors).reshape(-1, t.shape[-1]) + bias).reshape(g.shape))
            if share < 0.85 or np.ptp(factors) < 0.05:
                continue
            of = f" ({name})" if name else ""
            times = (np.round(factors, 3) + 0.0).tolist()
            said = f"inside the product of {names}, the parts of {n}{of} count {times} times"
            if (np.abs(factors) >= 0.03).all():
                yield Cause(kinds.ONE_SHARD, 0.9 * share, f"{said}: one rank's part is scaled")
            elif (
                case.part == "input" and "reduce" in case.words
            ):  # no rank was added yet: micro-batches alone are
                yield Cause(
                    kinds.MISSING_TERM, 0.94 * share, f"{said}: the sum over micro-batches misses some"
                )
            else:
                text = f"{said}: the sum over them is missing, or a part of it"
                yield Cause(kinds.MISSING_REDUCTION, 0.94 * share, text)
            return


def _inner(how: str, x: Known, size: int, n: int) -> Iterator[list[Array]]:
    """Ways to deal the inner dimension to n ranks: aligned pieces; of tokens also along each axis, and zigzag."""
    index = np.arange(size)
    if size % n == 0:
        yield np.split(index, n)
    if how != "x^T y" or x.golden is None or x.golden.ndim < 3:
        return
    grid = index.reshape(x.golden.shape[:-1])
    if len(grid) % n == 0:  # sequences dealt in turn
        yield [grid[k::n].ravel() for k in range(n)]
    for axis in range(1, grid.ndim):
        if grid.shape[axis] % n == 0:
            yield [part.ravel() for part in np.split(grid, n, axis=axis)]
        if grid.shape[axis] % (2 * n) == 0:  # context parallel deals positions zigzag
            parts = np.split(grid, 2 * n, axis=axis)
            yield [np.concatenate([parts[k].ravel(), parts[2 * n - 1 - k].ravel()]) for k in range(n)]


def _norm(case: Case) -> Iterator[Cause]:
    """RMSNorm or LayerNorm with another eps, without its weight, or the one for the other."""
    g = case.golden
    assert g is not None
    if case.phase != "forward":
        return
    weights = [k for k in case.parameters if k.golden is not None and k.golden.shape == g.shape[-1:]]
    for x, w in product(case.inputs, [*weights, None]):
        if x.golden is None or x.golden.shape != g.shape:
            continue
        weight = np.ones(g.shape[-1]) if w is None or w.golden is None else w.golden
        for centred in (False, True):
            eps = _epsilon_of(x.golden, weight, g, centred)
            if eps is None or not agrees(_normed(x.golden, weight, eps, centred), g, case):
                continue
            # from the target's own input, so that what the input is off by does not count
            own = x.golden if x.target is None or x.target.shape != g.shape else x.target
            yield from _other_epsilon(case, own, weight, eps, centred)
            yield from _other_norm(case, x.golden, weight, eps, centred)
            return


def _other_epsilon(case: Case, x: Floats, weight: Floats, eps: float, centred: bool) -> Iterator[Cause]:
    """Try the eps that fits the target best."""
    t = case.target
    assert t is not None
    other = _epsilon_of(x, weight, t, centred)
    if other is None:
        return
    norm = float(np.linalg.norm(t.ravel()))
    whole, left = (float(np.linalg.norm((t - _normed(x, weight, e, centred)).ravel())) for e in (eps, other))
    share = 1 - left / whole if whole > 0.4 * case.epsilon * norm else 0.0
    share = min(1.0, share + 0.4) if share > 0.4 else 0.0
    if share > 0.8:
        text = f"{_norm_name(centred)} with eps {other:.3g} gives the target, with {eps:.3g} golden"
        yield Cause(kinds.NORM_EPSILON, 0.96 * share, text)


def _other_norm(case: Case, x: Floats, weight: Floats, eps: float, centred: bool) -> Iterator[Cause]:
    """Try the other norm, and the same one with its weight used otherwise."""
    what = _norm_name(centred)
    for text, value in (
        ("the other of RMSNorm and LayerNorm", _normed(x, weight, eps, not centred)),
        (f"{what} with a weight of 1 + w", _normed(x, 1 + weight, eps, centred)),
        (f"{what} without its weight", _normed(x, np.ones_like(weight), eps, centred)),
    ):
        share = taken_away(case, value)
        if share > 0.8:
            kind = kinds.CHANNEL_WEIGHT if "weight" in text else kinds.NORMALISATION
            yield Cause(kind, 0.93 * share, f"{text} gives the target")


def _norm_name(centred: bool) -> str:
    return "LayerNorm" if centred else "RMSNorm"


def _normed(x: Floats, weight: Floats, eps: float, centred: bool) -> Floats:
    centre = x - x.mean(axis=-1, keepdims=True) if centred else x
    return np.asarray(centre / np.sqrt((centre * centre).mean(axis=-1, keepdims=True) + eps) * weight)


def _epsilon_of(x: Floats, weight: Floats, out: Floats, centred: bool) -> float | None:
    """Fit the eps with which a norm gives an output: each row says one, the smallest rows say it best."""
    centre = x - x.mean(axis=-1, keepdims=True) if centred else x
    top = centre * weight
    dot, square = (top * out).sum(axis=-1).ravel(), (top * top).sum(axis=-1).ravel()
    power = (centre * centre).mean(axis=-1).ravel()
    with np.errstate(all="ignore"):
        scale = np.where(square > 0, dot / square, np.nan)
        eps = 1 / (scale * scale) - power
    good = np.isfinite(eps)
    if not good.any():
        return None
    weights = 1 / np.maximum(power[good], 1e-30)
    return max(float((eps[good] * weights).sum() / weights.sum()), 0.0)


def _gated(case: Case) -> Iterator[Cause]:
    """SwiGLU with its halves the wrong way round, joined by shards, or with another activation."""
    g = case.golden
    assert g is not None
    for x in case.inputs:
        if (
            case.phase != "forward"
            or x.golden is None
            or x.golden.shape[-1] != 2 * g.shape[-1]
            or x.golden.shape[:-1] != g.shape[:-1]
        ):
            continue
        a, b = np.split(x.golden, 2, axis=-1)
        used = next((name for name, act in _ACTIVATIONS.items() if agrees(act(a) * b, g, case)), None)
        if used is None:
            continue
        for kind, text, value in (*_other_gates(used, a, b), *_other_halves(used, x.golden, case)):
            share = taken_away(case, value)
            if share > 0.8:
                yield Cause(kind, 0.95 * share, f"SwiGLU done again: {text}")
        return


def _other_gates(used: str, a: Floats, b: Floats) -> Iterator[tuple[str, str, Floats]]:
    """SwiGLU of gate and up with another activation, or with something left out: kind, what, value."""
    act = _ACTIVATIONS[used]
    for name, other in _ACTIVATIONS.items():
        if name != used:
            yield kinds.ACTIVATION, f"{name} instead of {used}", other(a) * b
    yield kinds.PERMUTATION, "gate and up are taken the wrong way round", a * act(b)
    yield kinds.ACTIVATION, "the sigmoid is not multiplied by its argument", b / (1 + np.exp(-a))
    yield kinds.ACTIVATION, "the activation is left out of the gate", a * b
    yield kinds.ACTIVATION, "the gate is left out", b
    yield kinds.ACTIVATION, "up is left out", act(a)


def _other_halves(used: str, x: Floats, case: Case) -> Iterator[tuple[str, str, Floats]]:
    """SwiGLU with gate and up found elsewhere in its input: kind, what, value."""
    act = _ACTIVATIONS[used]
    yield kinds.PERMUTATION, "gate and up are read interleaved", act(x[..., 0::2]) * x[..., 1::2]
    for n, name in counts(case):
        if x.shape[-1] % (2 * n):
            continue
        parts = [np.split(p, 2, axis=-1) for p in np.split(x, n, axis=-1)]
        text = f"gate and up are split inside each of {n} shards {name}: re-sharded without interleaving"
        yield kinds.PERMUTATION, text, np.concatenate([act(p) * q for p, q in parts], axis=-1)


def _silu(x: Floats) -> Floats:
    return np.asarray(x / (1 + np.exp(-x)))


def _gelu(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _relu(x: Floats) -> Floats:
    return np.asarray(np.maximum(x, 0))


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "relu": _relu}


def _embedding_gradient(case: Case) -> Iterator[Cause]:
    """Rows of tokens that occur more than once: counted once, or twice as often."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if case.phase != "backward" or g.ndim != 2 or "embed" not in case.words:
        return
    error = np.linalg.norm(t - g, axis=1)
    scale = np.linalg.norm(g, axis=1)
    used = scale > 0
    bad = error > 0.05 * np.maximum(scale, 1e-30)
    ids = next(
        (
            k.golden.astype(int).ravel()
            for k in case.inputs
            if k.golden is not None and _ids(k.golden, len(g))
        ),
        None,
    )
    if ids is None or not bad.any():
        return
    times = np.bincount(ids, minlength=len(g))
    if not (bad & (times <= 1)).any() and (used & (times == 1)).any():
        yield Cause(
            kinds.DUPLICATED,
            0.85,
            "only tokens that occur more than once are wrong: the last write wins, or they are added twice",
        )


def _ids(array: Floats, rows: int) -> bool:
    return bool(
        array.size > 1 and (array == np.rint(array)).all() and array.min() >= 0 and array.max() < rows
    )


REDONE: tuple[Callable[[Case], Iterator[Cause]], ...] = (
    _linear, _norm, _gated, rotary_causes, attention_causes, attention_gradient_causes, router_causes, drop_causes,
    balance_causes, weight_gradient_causes, _embedding_gradient,
)  # fmt: skip
"""Every operator that a tensor may have come from, each a detector of its own."""
