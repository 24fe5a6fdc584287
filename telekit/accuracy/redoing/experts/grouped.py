"""Formulas of grouped linear layers: each expert's rows by its own weight, and the gradients of both.

Which expert's weight made each row is read from the values, golden's and the target's: a weight of another expert, of
the same rank or of another, and offsets that are some rows off, are the same question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from functools import partial
from itertools import permutations, product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side

_WORDS = ("expert", "grouped")
_ALIKE = 0.98  # of the rows of an expert
_LOST = 0.3  # a row counts less: not at all
_ZERO = 1e-3  # of an expert's gradient


def grouped(case: Case) -> Iterator[Formula]:
    """Each expert's rows by its own weight, and the gradients; which rows are whose is read from golden's forward."""
    g, t = case.golden, case.target
    assert g is not None
    if not any(w in case.words for w in _WORDS) or case.part == "input":
        return
    deep = [k for k in case.inputs if k.golden is not None and k.golden.ndim == 2]
    for w, x in product(case.parameters, deep):
        a, b = x.golden, w.golden
        if a is None or b is None or b.ndim != 3 or a.shape[1] != b.shape[2]:
            continue
        wide = (len(a), b.shape[1])
        if case.phase == FORWARD:
            if g.shape == wide:
                of = owners(a, b, g)
                variants = partial(_rows_variants, _grouped, of, own_side(x), own_side(w), t)
                yield Formula(
                    "each expert's rows by its weight",
                    (x, w),
                    partial(_grouped, of),
                    variants,
                    (1,),
                    once=True,
                )
            continue
        outer = [k for k in deep if k.golden is not None and k.golden.shape == wide]
        for out, up in permutations(outer, 2):
            assert out.golden is not None
            yield from _back(owners(a, b, out.golden), up, x, w, case)


def owners(x: Floats, w: Floats, out: Floats) -> Array:
    """Which expert's weight makes each row of the output of its input."""
    errors = np.stack([((x @ e.T - out) ** 2).sum(axis=1) for e in w])
    return np.asarray(np.argmin(errors, axis=0))


def _grouped(of: Array, x: Floats, w: Floats) -> Floats:
    out = np.zeros((len(x), w.shape[1]))
    for e in range(len(w)):
        out[of == e] = x[of == e] @ w[e].T
    return out


def _rows_variants(
    make: Callable[..., Floats], of: Array, x: Floats, w: Floats, target: Floats | None
) -> Iterator[Variant]:
    """Say whose weight each of the target's rows was made with, where not its own expert's."""
    if target is not None and target.shape == (len(x), w.shape[1]):
        used = owners(x, w, target)
        if (used != of).any():
            yield (*_other_experts(of, used, len(w)), partial(make, used))


def _other_experts(of: Array, used: Array, experts: int) -> tuple[str, str]:
    """Return class and words of rows that were taken for other experts'."""
    there = np.unique(of)
    most = np.array([np.bincount(used[of == e], minlength=experts).argmax() for e in there])
    whole = np.arange(experts)
    whole[there] = most
    if np.mean(whole[of] == used) < _ALIKE:
        wrong = used != of
        at = np.flatnonzero(wrong)
        return kinds.LOCAL, (
            f"{at.size} of {of.size} rows ({at[:8].tolist()}{'…' if at.size > 8 else ''}) with another expert's weight "
            "than the rest of their own: the experts' offsets are off"
        )
    kind, text = _order(there, most, experts)
    return kind, f"the weight of {text}"


def _order(of: Array, used: Array, experts: int) -> tuple[str, str]:
    """Return class and words of a map from experts to those used in their place."""

    def signed(by: int, size: int) -> int:
        return by if by <= size // 2 else by - size

    by = np.unique((used - of) % experts)
    if by.size == 1:
        return kinds.PERMUTATION, f"the expert {signed(int(by[0]), experts):+d} of all {experts}"
    if np.unique(used).size == 1:
        return kinds.DUPLICATED, f"expert {used[0]} for all"
    for ranks in range(2, experts):
        own = experts // ranks
        if experts % ranks or own < 2 or (used // own != of // own).any():
            continue
        inside = np.unique((used - of) % own)
        if inside.size == 1:
            return kinds.PERMUTATION, f"the expert {signed(int(inside[0]), own):+d} of the {own} of its rank"
        if np.unique(used % own).size == 1:
            return kinds.DUPLICATED, f"expert {used[0] % own} of the {own} of each rank for all"
    same = np.unique(used).size == used.size
    kind = kinds.PERMUTATION if same else kinds.DUPLICATED
    return kind, f"experts {used[:16].tolist()} in place of {of[:16].tolist()}"


def _back(of: Array, up: Known, x: Known, w: Known, case: Case) -> Iterator[Formula]:
    """Gradients of the rows and of the weights."""
    g, t = case.golden, case.target
    assert g is not None and x.golden is not None and w.golden is not None
    if g.shape == x.golden.shape:
        variants = partial(_rows_variants, _rows_back, of, own_side(up), own_side(w).swapaxes(-1, -2), t)
        yield Formula(
            "the gradient of each expert's rows", (up, w), partial(_rows_back, of), variants, (1,), once=True
        )
    elif g.shape == w.golden.shape:
        n = len(w.golden)
        made = partial(_weight_back, of, n)
        replicas = {int(n) for name, n in case.sizes.items() if name != "tokens" and n > 1}
        weights = partial(_weight_variants, of, n, own_side(up), own_side(x), t, replicas)
        yield Formula("the gradient of each expert's weight", (up, x), made, weights)


def _rows_back(of: Array, up: Floats, w: Floats) -> Floats:
    return _grouped(of, up, w.swapaxes(-1, -2))


def _weight_back(of: Array, experts: int, up: Floats, x: Floats) -> Floats:
    return np.stack([up[of == e].T @ x[of == e] for e in range(experts)])


def _weight_variants(
    of: Array, experts: int, up: Floats, x: Floats, target: Floats | None, replicas: Set[int]
) -> Iterator[Variant]:
    """Offsets that are a row off, gradients at another expert's place, and none at all.

    Rows that are all of a replica's (of so many as there may be) were never summed: that is a reduction's.
    """
    for by in (1, -1):
        near = of[np.clip(np.arange(of.size) + by, 0, of.size - 1)]
        yield kinds.LOCAL, f"experts' first rows {by:+d} off", partial(_weight_back, near, experts)
    yield (
        kinds.DUPLICATED,
        "all rows in every expert's gradient",
        lambda up, x: np.stack([up.T @ x] * experts),
    )
    made = _weight_back(of, experts, up, x).reshape(experts, -1)
    if target is None or target.size != made.size:
        return
    t = target.reshape(experts, -1)
    squares = (made * made).sum(axis=1)
    lost = ((t * t).sum(axis=1) <= _ZERO**2 * squares) & (squares > 0)
    if lost.any():
        text = f"no gradient for experts {np.flatnonzero(lost).tolist()}"
        kept = ~lost[:, None, None]
        yield kinds.ZERO, text, lambda up, x: _weight_back(of, experts, up, x) * kept
    counts = _counts(of, experts, up, x, target)
    out = counts < _LOST
    whole = any(_one_replicas(of, out, n) for n in replicas)
    if out.any() and not whole and np.abs(counts - ~out).max() < _LOST:
        text = f"{int(out.sum())} of {of.size} rows do not count{_which(of, out)}"
        yield kinds.MISSING_TERM, text, lambda up, x: _weight_back(of, experts, up * ~out[:, None], x)
    used = (squares[None, :] - 2 * t @ made.T).argmin(axis=1)
    there = np.unique(of)
    if (used[there] != there).any():
        kind, text = _order(there, used[there], experts)
        yield kind, f"the gradient of {text}", lambda up, x: _weight_back(of, experts, up, x)[used]


def _one_replicas(of: Array, out: Array, count: int) -> bool:
    """Whether all rows of one of so many replicas are left out: in each expert a run of rows, in all an equal part."""
    runs = all(np.abs(np.diff(out[of == e].astype(int))).sum() <= 2 for e in np.unique(of))
    return bool(out.sum() * count == out.size * (count - 1) or out.sum() * count == out.size) and runs


def _counts(of: Array, experts: int, up: Floats, x: Floats, target: Floats) -> Floats:
    """Fit how many times each row counts in its expert's gradient."""
    counts = np.ones(of.size)
    for e in range(experts):
        at = np.flatnonzero(of == e)
        a, b = up[at], x[at]
        gram = (a @ a.T) * (b @ b.T)
        found, *_ = np.linalg.lstsq(gram, ((a @ target[e]) * b).sum(axis=1), rcond=1e-9)
        counts[at] = found
    return counts


def _which(of: Array, out: Array) -> str:
    """Say that they are the first or the last of each expert."""
    ends = np.flatnonzero(np.diff(of)) + 1
    first, last = np.concatenate([[0], ends]), np.concatenate([ends, [of.size]]) - 1
    for where, name in ((first, "first"), (last, "last")):
        if np.isin(where, np.flatnonzero(out)).all():
            return f", the {name} of each expert among them"
    return ""
