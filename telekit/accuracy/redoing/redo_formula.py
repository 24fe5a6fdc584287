"""An operator as a formula of what was dumped: golden proves it, and the change that makes it give the target is named.

The target is made again from its own inputs, so what those are off by does not count: what is left is one
operator's rounding, in the measure in which golden itself keeps to the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD, Compared
from telekit.accuracy.graph.noise import representable
from telekit.accuracy.measures.pairs import FORMATS, Array, Floats, numpy_type

Make = Callable[..., Floats]
Variant = tuple[str, str, Make]
"""Class of the fault, what it is in words, and what the operator then makes of the same inputs."""
PROOF = 2.0  # epsilons within which golden must keep to a formula
SURE = 0.25  # of them: no other formula is tried
TIMES = 4.0  # a layout that sums in pieces may keep to it so much worse than golden
LEAST = 1e-5  # relative; below it nothing is told apart in float32
MAX_ELEMENTS = 1 << 20  # of any input, for the hypotheses that are tried by the hundred
_PIECES = 12
_POOL = 40


@dataclass(frozen=True)
class Formula:
    """What an operator's output is of its inputs, and what it would be with a fault in it."""

    name: str
    inputs: tuple[Known, ...]
    make: Make
    variants: Callable[[], Iterable[Variant]] = tuple
    weights: tuple[int, ...] = ()
    """Which of the inputs are weights."""
    exact: bool = False
    """Whether no input can be a sum of ranks' terms, rounded when it was dumped, which golden's is not."""
    hands_on: bool = False
    """Whether nothing is done to the input: then no other tensor is tried in its place."""


Builder = Callable[[Case], Iterator[Formula]]


@dataclass(frozen=True)
class Proven:
    """A formula that golden keeps to, and how the target does.

    ``golden_error`` and ``own_error`` are relative: of each side's output to the formula of its own inputs;
    ``resolution`` and ``inputs_resolution`` are epsilons of the formats that the target's values are held in.
    """

    formula: Formula
    golden_error: float
    own: Floats
    own_error: float
    resolution: float
    inputs_resolution: float

    @property
    def limit(self) -> float:
        """Relative error that rounding explains."""
        least = 0.0 if self.formula.exact else self.inputs_resolution / 2
        return max(LEAST, TIMES * self.golden_error, least)

    @property
    def reach(self) -> float:
        """Relative error that a hypothesis may leave: golden may have been exact where the target's sums are not."""
        return max(self.limit, self.resolution / 2)


def counts(case: Case) -> list[tuple[int, str]]:
    """Into how many pieces something may be split: known sizes, else 2, 4 and 8."""
    named: dict[int, list[str]] = {}
    for name, size in case.sizes.items():
        if 1 < size <= 64 and name not in ("tokens", "loss_scale"):
            named.setdefault(int(size), []).append(name)
    known = [(size, " or ".join(names)) for size, names in named.items()]
    return (known or [(2, ""), (4, ""), (8, "")])[:_PIECES]


def own_side(known: Known) -> Floats:
    """Elements of the target's side; golden's where the target has none of that shape."""
    t, g = known.target, known.golden
    assert g is not None
    return t if t is not None and t.shape == g.shape and bool(np.isfinite(t).all()) else g


def relative(value: Floats, of: Floats) -> float:
    """Norm of a difference over the norm of what is right."""
    size = float(np.linalg.norm(of.ravel()))
    apart = float(np.linalg.norm((value - of).ravel()))
    return apart / size if size else float(apart > 0)


def proven(case: Case, builders: Iterable[Builder]) -> Proven | None:
    """Return the formula that golden keeps to best; None where it keeps to none."""
    t, g = case.target, case.golden
    if t is None or g is None or t.shape != g.shape or not g.any() or not np.isfinite(t).all():
        return None
    best: tuple[float, Formula] | None = None
    for formula in _formulas(case, builders):
        value = formula.make(*(k.golden for k in formula.inputs))
        if value.shape != g.shape or not np.isfinite(value).all():
            continue
        error = relative(value, g)
        if error <= max(PROOF * case.epsilon, LEAST) and (best is None or error < 0.9 * best[0]):
            best = (error, formula)
            if error <= max(SURE * case.epsilon, SURE * LEAST):
                break
    if best is None:
        return None
    inputs = [own_side(k) for k in best[1].inputs]
    own = best[1].make(*inputs)
    if not np.isfinite(own).all():
        return None
    return Proven(best[1], best[0], own, relative(t, own), _held(t), max(map(_held, inputs)))


def _formulas(case: Case, builders: Iterable[Builder]) -> Iterator[Formula]:
    """Return what may be; a builder that trips over a shape nobody thought of takes no other with it."""
    for builder in builders:
        try:
            yield from builder(case)
        except (ValueError, IndexError):
            continue


def _held(values: Floats) -> float:
    """Epsilon of the coarsest usual format that holds all of a sample."""
    sample = values.ravel()[:4096]
    fits = (FORMATS[name].epsilon for name in ("bfloat16", "float16") if representable(sample, name))
    return next(fits, FORMATS["float32"].epsilon)


def changed(case: Case, found: Proven) -> Iterator[Cause]:
    """Return the change of the formula, or of its inputs, that gives the target to rounding."""
    t = case.target
    assert t is not None
    whole = relative(found.own, t)
    if whole <= found.limit / 2:
        return
    best: tuple[float, float, str, str] | None = None
    for sure, kind, text, make, inputs in _hypotheses(case, found):
        try:
            value = make(*inputs)
        except (ValueError, IndexError):  # not a change that these shapes allow
            continue
        if value.shape != t.shape or not np.isfinite(value).all():
            continue
        left, where = _left(case, found, value)
        if left <= found.reach and left <= whole / 3 and (best is None or left < best[0] / 2):
            best = (left, sure, kind, text + where)
    if best is None:
        yield from _counted(case, found, whole)
        yield from _coarser(case, found, whole)
        return
    left, sure, kind, text = best
    said = f"{found.formula.name}, made again from the target's own inputs, is the target with one change: {text}"
    sure = sure if whole > 8 * left else 0.92 * sure
    yield Cause(kind, sure, f"{said} ({left:.2g} of it is left, {whole:.2g} without the change)")


def _counted(case: Case, found: Proven, whole: float) -> Iterator[Cause]:
    """Find with which factor each index of an axis that was summed over counts in a gradient."""
    t, formula = case.target, found.formula
    assert t is not None
    if case.phase != BACKWARD or (case.part == "output" and "reduce" not in case.words):
        return
    own = [own_side(k) for k in formula.inputs]
    for at, x in enumerate(own):
        for axis in range(x.ndim - 1):
            n = x.shape[axis]
            if not 1 < n <= _MOST_INDICES or x.size > MAX_ELEMENTS or t.size < 2 * n:
                continue
            shape = [n if a == axis else 1 for a in range(x.ndim)]
            parts = [
                formula.make(*own[:at], x * row.reshape(shape), *own[at + 1 :]).ravel() for row in np.eye(n)
            ]
            matrix = np.stack(parts, axis=1)
            if not np.isfinite(matrix).all() or relative(matrix.sum(axis=1), found.own.ravel()) > LEAST:
                continue  # not linear in it
            factors, *_ = np.linalg.lstsq(matrix, t.ravel(), rcond=1e-9)
            left = relative(matrix @ factors, t.ravel())
            if left <= found.reach and left <= whole / 3 and np.ptp(factors) > _UNLIKE:
                lost = np.flatnonzero(np.abs(factors) < _UNLIKE)
                kind = kinds.MISSING_TERM if lost.size else kinds.SCALED
                what = (
                    f"{lost.tolist()} do not count"
                    if lost.size
                    else f"count {factors.round(2).tolist()} times"
                )
                text = f"of axis {axis} of {formula.inputs[at].name} the indices {what}"
                yield Cause(kind, 0.93, f"in {formula.name} {text} ({left:.2g} is left of {whole:.2g})")
                return


_MOST_INDICES = 64
_UNLIKE = 0.1  # a factor is told from another, and from nothing, by so much


def _coarser(case: Case, found: Proven, whole: float) -> Iterator[Cause]:
    """Find a difference that is noise, of the size that inputs rounded to a coarse format leave in a product."""
    t, own = case.target, found.own
    assert t is not None
    d = (t - own).reshape(-1, t.shape[-1])
    if d.shape[0] < 8 or d.shape[1] < 8:
        return
    if d.shape[0] > d.shape[1]:
        d = d.T
    gram = d @ d.T
    rank = float(np.trace(gram)) ** 2 / max(float((gram * gram).sum()), 1e-300)  # of noise: nearly all
    lean = abs(float(np.vdot(t - own, own))) / max(
        float(np.linalg.norm(t - own) * np.linalg.norm(own)), 1e-300
    )
    inputs = [own_side(k) for k in found.formula.inputs]
    deep = min(len(gram), *(min(a.shape[-1], a.size // a.shape[-1]) for a in inputs))
    if rank < 0.25 * deep or lean > 0.2 or np.count_nonzero(d) < 0.5 * d.size:
        return
    for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16"):
        epsilon = FORMATS[name].epsilon
        if epsilon > 2 * case.epsilon and 0.1 * epsilon <= whole <= 0.6 * epsilon:
            text = f"{found.formula.name} is off by noise of {whole:.3g}, the size of {name}'s rounding of its inputs"
            yield Cause(kinds.WRONG_DTYPE, 0.78, text)
            return


def _left(case: Case, found: Proven, value: Floats) -> tuple[float, str]:
    """Return what a hypothesis leaves; also where only a piece of an axis, one rank's, is made by it."""
    t, own = case.target, found.own
    assert t is not None
    size = float(np.linalg.norm(t.ravel())) or 1.0
    left = float(np.linalg.norm((t - value).ravel())) / size
    if left <= found.reach:
        return left, ""
    of_value, of_own = (t - value) ** 2, (t - own) ** 2
    for axis in range(t.ndim):
        others = tuple(a for a in range(t.ndim) if a != axis)
        a, b = of_value.sum(axis=others), of_own.sum(axis=others)
        for n, _ in counts(case):
            if t.shape[axis] % n or t.shape[axis] < n:
                continue
            pieces = np.minimum(p := a.reshape(n, -1).sum(axis=1), q := b.reshape(n, -1).sum(axis=1))
            rest = float(np.sqrt(pieces.sum())) / size
            which = np.flatnonzero(p < q).tolist()
            if which and rest <= found.reach:
                return rest, f", in piece {which} of {n} of axis {axis} alone"
    return left, ""


Hypothesis = tuple[float, str, str, Make, list[Floats]]
"""How sure it is where it fits, class, words, and what to make of which inputs."""


def _hypotheses(case: Case, found: Proven) -> Iterator[Hypothesis]:
    """Return variants of the formula, then of each of its inputs; all from the target's own inputs."""
    formula = found.formula
    own = [own_side(k) for k in formula.inputs]
    for kind, text, make in formula.variants():
        yield 0.98, kind, text, make, own
    if max(a.size for a in own) > MAX_ELEMENTS:
        return
    real = [bool((a != np.rint(a)).any()) for a in own]
    for at, known in enumerate(formula.inputs):
        weight = at in formula.weights
        for kind, said, other in _other_inputs(case, own[at], weight, not formula.hands_on):
            yield 0.94, kind, f"{said} {known.name}", formula.make, [*own[:at], other, *own[at + 1 :]]
        for kind, said, other in _other_values(own[at]) if real[at] else ():
            yield 0.94, kind, f"{said} {known.name}", formula.make, [*own[:at], other, *own[at + 1 :]]
    for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"):
        for scaled in (False, True) if FORMATS[name].epsilon > 2 * case.epsilon else ():
            text = f"its inputs rounded{', scaled,' if scaled else ''} to {name}"
            inputs = [rounded(a, name, scaled) if r else a for a, r in zip(own, real, strict=True)]
            yield 0.94, kinds.WRONG_DTYPE, text, formula.make, inputs


def rounded(x: Floats, dtype: str, scaled: bool = False) -> Floats:
    """Round to a format, where it is asked for after scaling the largest element to the format's largest."""
    scale = FORMATS[dtype].maximum / max(float(np.abs(x).max()), 1e-300) if scaled else 1.0
    return np.asarray((x * scale).astype(np.float32).astype(numpy_type(dtype)).astype(np.float64) / scale)


def _other_values(own: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Take an input without its values."""
    if np.ptp(own):
        yield kinds.MISSING_TERM, "zeros in place of", np.zeros_like(own)
        yield kinds.NORMALISATION, "ones in place of", np.ones_like(own)


def _other_inputs(case: Case, own: Floats, weight: bool, searched: bool) -> Iterator[tuple[str, str, Floats]]:
    """Take an input in another order, without a piece, of another micro-batch, or another tensor altogether."""
    n = int(case.sizes.get("micro_batches", 1))
    if not weight and n > 1 and own.shape[0] % n == 0:
        blocks = np.split(own, n)
        yield kinds.STALE, "the first micro-batch's part in place of all of", np.concatenate([blocks[0]] * n)
        yield kinds.STALE, "the last micro-batch's part in place of all of", np.concatenate([blocks[-1]] * n)
        yield (
            kinds.STALE,
            "the micro-batch before in",
            np.concatenate([blocks[max(i - 1, 0)] for i in range(n)]),
        )
        yield kinds.STALE, "other micro-batches' parts in", np.concatenate([blocks[i - 1] for i in range(n)])
    for axis in range(own.ndim):
        yield from _other_order(case, own, axis)
    for other in _pool(case, own.shape) if searched else ():
        value = own_side(other)
        if not np.array_equal(value, own):
            yield _kind_of(other, weight, own), f"{other.name} in place of", value


def _kind_of(other: Known, weight: bool, own: Floats) -> str:
    if other.name.endswith(EARLIER):
        return kinds.STALE
    if not weight:
        return kinds.DIFFERENT_INPUTS
    return kinds.CHANNEL_WEIGHT if own.ndim == 1 else kinds.DIFFERENT_WEIGHTS


def _other_order(case: Case, own: Floats, axis: int) -> Iterator[tuple[str, str, Floats]]:
    """Pieces of an axis in another order, or one of them missing."""
    size = own.shape[axis]
    for n, name in counts(case):
        of = f" ({name})" if name else ""
        if size % n or size < 2 * n:
            continue
        pieces = np.arange(size).reshape(n, -1)
        for text, order in _orders(n):
            at = pieces[order].ravel()
            yield kinds.PERMUTATION, f"{n} pieces{of} of axis {axis} {text} in", np.take(own, at, axis=axis)
        for k in range(n if n <= 8 else 0):
            keep = np.isin(np.arange(size), pieces[k], invert=True)
            shaped = keep.reshape([-1 if a == axis else 1 for a in range(own.ndim)])
            yield kinds.MISSING_TERM, f"without piece {k} of {n}{of} of axis {axis}", own * shaped
            yield kinds.MISSING_REDUCTION, f"with piece {k} of {n}{of} of axis {axis} alone", own * ~shaped
        for text, at in zigzags(size, n):
            yield kinds.PERMUTATION, f"axis {axis} {text} of {n} ranks{of} in", np.take(own, at, axis=axis)
    if 2 < size <= 1 << 14:
        yield kinds.PERMUTATION, f"axis {axis} reversed in", np.flip(own, axis=axis)
        for by in (1, -1):
            yield kinds.PERMUTATION, f"axis {axis} shifted by {by:+d} in", np.roll(own, by, axis=axis)


def _orders(n: int) -> Iterator[tuple[str, Array]]:
    if n > 2:
        yield "in reverse order", np.arange(n)[::-1]
        yield "one place on", np.roll(np.arange(n), 1)
        yield "one place back", np.roll(np.arange(n), -1)
    else:
        yield "in reverse order", np.array([1, 0])


def zigzags(size: int, n: int) -> Iterator[tuple[str, Array]]:
    """Orders of positions under context parallelism: dealt zigzag and not put back, and the reverse."""
    if n < 2 or size % (2 * n):
        return
    parts = np.arange(size).reshape(2 * n, -1)
    dealt = np.concatenate([np.concatenate([parts[r], parts[2 * n - 1 - r]]) for r in range(n)])
    yield "in the zigzag order", dealt
    yield "put back from a zigzag order it never had", np.argsort(dealt)


def _pool(case: Case, shape: tuple[int, ...]) -> tuple[Known, ...]:
    """Tensors of a shape that stand elsewhere in the dump: weights of all operators, outputs before this one."""

    def fits(row: Compared) -> bool:
        return row.golden is not None and row.golden.shape == shape and row.golden.dtype in FORMATS

    return case.pool(fits)[:_POOL] if case.pool is not None else ()
