"""What was done to an operator's right output, element by element: dropout, caps, activations, rows lost or moved.

The right output is made again from the target's own inputs. A number is said only where with it the target comes
out to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.grids import coarser_grid
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.experts.own_experts import missing_choices
from telekit.accuracy.redoing.formula.fit import plain, searched
from telekit.accuracy.redoing.formula.formula import Proven, own_side
from telekit.accuracy.redoing.formula.orders import as_rows, counts
from telekit.accuracy.redoing.formula.softmax import sigmoid
from telekit.accuracy.redoing.layers.gated import ACTIVATIONS
from telekit.accuracy.redoing.output.factors import by_columns, by_rows
from telekit.accuracy.redoing.output.moved import moved, near

MAX_ELEMENTS = 1 << 22
_LEAST = 32  # elements, or a share by chance is no share
_SAMPLE = 1 << 16


def value_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Return what makes the target of the right output, where its operator's formula is known.

    Parameters
    ----------
    case : Case
        The tensor.
    found : Proven
        Its formula, with what it makes of the target's own inputs.

    Yields
    ------
    Cause
        At most one.
    """
    t = case.target
    if t is None or t.size > MAX_ELEMENTS or t.size < _LEAST:
        return
    cause = next(done_to(found.own, t, found.reach, case), None) or next(_of_terms(case, found), None)
    if cause is not None:
        yield Cause(
            cause.kind,
            cause.confidence,
            f"of {found.formula.name}, made again from its own inputs, {cause.text}",
        )


def bare_causes(case: Case) -> Iterator[Cause]:
    """Return what makes the target of golden itself, where no formula is known and the inputs are clean."""
    t, g = case.target, case.golden
    if (
        t is None
        or g is None
        or not _LEAST <= t.size <= MAX_ELEMENTS
        or not g.any()
        or case.inputs_error > 0.02
    ):
        return
    for cause in done_to(g, t, case.noise, case) if np.isfinite(t).all() else ():
        if cause.kind not in _OF_A_FORMULA:
            yield Cause(cause.kind, 0.95 * cause.confidence, f"of golden {cause.text}")
            return


_OF_A_FORMULA = (kinds.EXTRA_TERM, kinds.NORMALISATION)
"""Said only where the right output is known: else what is too much on one side may be missing on the other."""


def done_to(own: Floats, t: Floats, reach: float, case: Case) -> Iterator[Cause]:
    """Return what turns one array into another, likeliest first; ``reach`` is the relative error of rounding."""
    size = float(np.linalg.norm(t.ravel()))
    if size == 0 or float(np.linalg.norm((t - own).ravel())) <= 2 * reach * size:
        return
    if near(own * float(np.vdot(own, t) / np.vdot(own, own)), t, reach):
        return  # one factor: that is said elsewhere, with what it may be
    yield from _zeroed(own, t, reach, case)
    yield from moved(own, t, reach, case)
    yield from _added(own, t, reach)
    if case.phase == FORWARD:
        yield from _mapped(own, t, reach)
    yield from by_columns(own, t, reach, case)
    yield from by_rows(own, t, reach)


# --- zeros -----------------------------------------------------------------------------------------------------------


def _zeroed(own: Floats, t: Floats, reach: float, case: Case) -> Iterator[Cause]:
    """Find exact zeros where there should be none, and one factor on all the rest."""
    gone = (t == 0) & (own != 0)
    share = float(gone.mean())
    if not 0 < share < 0.98:
        return
    kept = np.where(gone, 0.0, own)
    factor = float(np.vdot(kept, t) / max(float(np.vdot(kept, kept)), 1e-300))
    if not near(kept * factor, t, reach):
        return
    own_only = missing_choices(case, gone) if near(kept, t, reach) else None
    if own_only is not None:
        yield own_only
        return
    rows = as_rows(gone)
    alive = (as_rows(own) != 0).any(axis=1)
    whole = rows.all(axis=1) | ~alive
    same = abs(factor - 1) <= max(2 * reach, 1e-4)
    if same and t.ndim > 1 and np.array_equal(rows.any(axis=1) & alive, whole & alive):
        yield Cause(kinds.DROPPED, 0.95, _lost_rows(whole & alive, t.shape, case))
        return
    rate = 1 - 1 / factor if factor else 0.0
    count = float(np.sqrt(share * (1 - share) / t.size))
    if factor > 1 and not same and abs(share - rate) < 5 * count + 0.03:
        text = f"{share:.2%} of the elements are 0 and the others {factor:.4g} times as large"
        yield Cause(kinds.LOCAL, 0.96, f"{text}: dropout of {rate:.2g} left on")
    elif same:
        columns = as_rows(gone).all(axis=0)
        if columns.any() and np.array_equal(np.broadcast_to(columns, rows.shape) & (as_rows(own) != 0), rows):
            where = np.flatnonzero(columns)[:8].tolist()
            yield Cause(
                kinds.ZERO, 0.93, f"{int(columns.sum())} whole channels are 0, {where}, the rest is right"
            )
        else:
            text = f"{share:.2%} of the elements are 0, the rest is right"
            yield Cause(kinds.LOCAL, 0.93, f"{text}: masked, or dropout that does not scale what it keeps")


def _lost_rows(gone: Array, shape: tuple[int, ...], case: Case) -> str:
    at = np.flatnonzero(gone)
    where = [tuple(int(i) for i in np.unravel_index(i, shape[:-1])) for i in at[:6]]
    said = f"{at.size} whole rows (tokens) are 0, {where}{'…' if at.size > 6 else ''}, the rest is right"
    ids = next((k for k in case.inputs if k.golden is not None and k.golden.shape == shape[:-1]), None)
    if ids is None:
        return said + ": dropped or masked"
    numbers = own_side(ids).ravel()
    if (numbers != np.rint(numbers)).any():
        return said + ": dropped or masked"
    lost = np.unique(numbers[gone]).astype(int)
    if np.isin(numbers[~gone], lost).any():
        return said + ": dropped or masked, whatever their token ids"
    return (
        f"{said}: every row of the token ids {lost[:12].tolist()}, and no other{_one_per_shard(lost, case)}"
    )


def _one_per_shard(lost: Array, case: Case) -> str:
    """Say it where the ids are the last, or the first, of each piece of the vocabulary."""
    rows = next((len(k.golden) for k in case.parameters if k.golden is not None and k.golden.ndim == 2), 0)
    for n, name in counts(case):
        if not rows or rows % n:
            continue
        for what, inner in (("last", rows // n - 1), ("first", 0)):
            if lost.size and (lost % (rows // n) == inner).all():
                of = f" ({name})" if name else ""
                return f": the {what} id of a shard where the vocabulary is dealt to {n}{of} (masked out)"
    return ""


# --- functions of each element ------------------------------------------------------------------------------------


def _added(own: Floats, t: Floats, reach: float) -> Iterator[Cause]:
    """Find the same vector added to every row."""
    if t.ndim < 2 or t.size // t.shape[-1] < 8:
        return
    bias = as_rows(t - own).mean(axis=0)
    if near(own + bias, t, reach):
        text = f"with one vector added for every token, of norm {float(np.linalg.norm(bias)):.3g}: a bias too many"
        yield Cause(kinds.EXTRA_TERM, 0.93, text)


_MAPS: dict[str, Callable[[Floats], Floats]] = {
    **ACTIVATIONS,
    "quick-gelu, x times sigmoid(1.702 x),": lambda x: x * sigmoid(1.702 * x),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "the absolute value": np.abs,
    "the square": np.square,
    "rounding to whole numbers": np.rint,
}
_CAPS: dict[str, Callable[[Floats, float], Floats]] = {
    "clamped to plus and minus {:.4g}": lambda x, c: np.clip(x, -c, c),
    "clamped to at most {:.4g}": np.minimum,
    "clamped to at least -{:.4g}": lambda x, c: np.maximum(x, -c),
    "soft-capped with tanh at {:.4g}, c tanh(x / c)": lambda x, c: c * np.tanh(x / c),
}


def cap_of(made: Callable[[float], Floats], t: Floats, top: float) -> float:
    """Fit the limit with which something comes nearest to a target, up to twice ``top``."""

    def left(c: Floats) -> Floats:
        return np.array([float(np.square(made(float(c[0])) - t).sum())])

    return float(plain(searched(left, np.geomspace(top * 1e-3, 2 * top, 48), 1), left)[0])


def _mapped(own: Floats, t: Floats, reach: float) -> Iterator[Cause]:
    """Find a function of each element: a clamp, a soft cap, an activation, or any that rises."""
    for name, function in _MAPS.items():
        if near(function(own), t, reach):
            yield Cause(kinds.ACTIVATION, 0.95, f"each element goes through {name} once more")
            return
    top, some = float(np.abs(own).max()), slice(0, None, max(own.size // _SAMPLE, 1))
    x, y = own.ravel()[some], t.ravel()[some]
    for text, cap in _CAPS.items():
        c = cap_of(lambda c, cap=cap: cap(x, c), y, top)  # type: ignore[misc]
        if near(cap(own, c), t, reach) and not near(cap(own, 1.1 * c), t, 1.5 * reach):
            round_ = float(f"{c:.2g}")  # a limit that was itself rounded to the run's format
            c = round_ if abs(round_ / c - 1) < min(reach, 0.005) and near(cap(own, round_), t, reach) else c
            yield Cause(kinds.ACTIVATION, 0.96, f"each element is {text.format(c)}")
            return
    yield from _rising(x, y, reach)


def _rising(x: Floats, y: Floats, reach: float) -> Iterator[Cause]:
    """Find a target that is a rising function of the right value, of which nothing else is known."""
    if x.size < 256 or coarser_grid(y, x) is not None:  # what rounding makes rises too
        return
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    room = 4 * reach * np.sqrt(float(np.square(y).mean())) + 4 * reach * np.abs(y)
    before = np.maximum.accumulate(y)
    if (before - y <= room).all() and float(np.ptp(y)) > 50 * float(np.median(room)):
        text = (
            "each element is a rising function of the right one, and of nothing else: a cap, or an activation"
        )
        yield Cause(kinds.ACTIVATION, 0.85, text)


# --- inside a sum -------------------------------------------------------------------------------------------------


def _of_terms(case: Case, found: Proven) -> Iterator[Cause]:
    """Find something done to one term of a sum before it was added, or to an input of another operator."""
    t, formula = case.target, found.formula
    assert t is not None
    if " plus " in formula.name and len(formula.inputs) == 2:
        own = [own_side(k) for k in formula.inputs]
        size = float(np.linalg.norm(t.ravel()))
        for at in (1, 0):
            term = t - own[1 - at]
            reach = found.reach * size / max(float(np.linalg.norm(term.ravel())), 1e-300)
            for cause in _term(own[at], term, reach, case) if reach < 0.1 else ():
                yield Cause(
                    cause.kind,
                    cause.confidence,
                    f"{formula.inputs[at].name}, before it is added: {cause.text}",
                )
                return
    if case.phase == FORWARD:
        yield from _of_input(found, t)


def _of_input(found: Proven, t: Floats) -> Iterator[Cause]:
    """Find an input that went through a function, or dropout, before its operator."""
    formula, kind = found.formula, kinds.ACTIVATION
    if t.size > 4 * _SAMPLE:
        return
    own = [own_side(k) for k in formula.inputs]
    for at, x in enumerate(own):
        if at in formula.weights or x.size > _SAMPLE or formula.hands_on or not (x != np.rint(x)).any():
            continue

        def made(x: Floats, at: int = at) -> Floats:
            return formula.make(*own[:at], x, *own[at + 1 :])

        for name, function in _MAPS.items():
            if near(made(function(x)), t, found.reach):
                yield Cause(kind, 0.94, f"{formula.inputs[at].name} goes through {name} first")
                return
        top = float(np.abs(x).max())
        for text, cap in _CAPS.items():
            c = cap_of(lambda c, x=x, cap=cap, made=made: made(cap(x, c)), t, top)  # type: ignore[misc]
            if near(made(cap(x, c)), t, found.reach) and not near(
                made(cap(x, 1.1 * c)), t, 1.5 * found.reach
            ):
                yield Cause(kind, 0.94, f"{formula.inputs[at].name} is first {text.format(c)}")
                return
    if len(own) == 2 and " x w" in formula.name and formula.weights == (1,):
        yield from _dropped_input(found, own, t)


def _dropped_input(found: Proven, own: list[Floats], t: Floats) -> Iterator[Cause]:
    """Solve a product for its input, where its weight allows it, and look for elements dropped at random."""
    x, w = as_rows(own[0]), as_rows(own[1])
    matrix = w.T if "x w^T" in found.formula.name else w
    size = np.linalg.svd(matrix, compute_uv=False)
    if matrix.shape[0] > matrix.shape[1] or size[-1] < 0.01 * size[0]:
        return
    ratio = as_rows(t) @ np.linalg.pinv(matrix) / np.where(x == 0, np.inf, x)
    seen = np.abs(x) > np.median(np.abs(x))
    alive = seen & (ratio > 0.5)
    factor = float(np.median(ratio[alive])) if alive.any() else 0.0
    gone = ratio < factor / 2
    share = float(gone[seen].mean())
    value = found.formula.make((np.where(gone, 0.0, x) * factor).reshape(own[0].shape), own[1])
    rate = 1 - 1 / factor if factor else 0.0
    if factor > 1.005 and abs(share - rate) < 0.05 and near(value, t, 2 * found.reach):
        name = found.formula.inputs[0].name
        text = f"of {name} {share:.2%} of the elements count as 0, the others {factor:.4g} times"
        yield Cause(kinds.LOCAL, 0.92, f"{text}: dropout of {rate:.2g} left on before the product")


def _term(own: Floats, t: Floats, reach: float, case: Case) -> Iterator[Cause]:
    """Look as ``done_to`` does; a term that vanished in the sum's rounding is one of 0."""
    small = 2 * reach * float(np.sqrt(np.square(t).mean()))
    yield from done_to(own, np.where(np.abs(t) <= small, 0.0, t), reach, case)
