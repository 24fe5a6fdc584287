"""An operator as a formula of what was dumped: golden proves it, and the change that makes it give the target is named.

The target is made again from its own inputs, so what those are off by does not count: what is left is one
operator's rounding, in the measure in which golden itself keeps to the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.grids import NARROW
from telekit.accuracy.compared import BACKWARD, Compared
from telekit.accuracy.graph.noise import representable
from telekit.accuracy.measures.pairs import FORMATS, Floats, numpy_type
from telekit.accuracy.redoing.formula.orders import counts, matched, other_axes, other_orders

Make = Callable[..., Floats]
Variant = tuple[str, str, Make]
"""Class of the fault, what it is in words, and what the operator then makes of the same inputs."""
PROOF = 2.0  # epsilons within which golden must keep to a formula
SURE = 0.25  # of them: no other formula is tried
TIMES = 4.0  # a layout that sums in pieces may keep to it so much worse than golden
ONCE = 1.3  # where no layout sums in pieces
LEAST = 1e-5  # relative; below it nothing is told apart in float32
MAX_ELEMENTS = 1 << 20  # of any input, for the hypotheses that are tried by the hundred
_POOL = 40
_MANY = 1024  # elements whose rounding adds up to the same


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
    once: bool = False
    """Whether it is one sum, which is rounded at its end and nowhere before."""


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
    unsplit: bool = False
    """Whether no layout can have made that one sum in pieces: then it is rounded as golden's is."""

    @property
    def limit(self) -> float:
        """Relative error that rounding explains."""
        if self.unsplit:
            return max(LEAST, ONCE * self.golden_error)
        least = 0.0 if self.formula.exact else self.inputs_resolution / 2
        return max(LEAST, TIMES * self.golden_error, least)

    @property
    def reach(self) -> float:
        """Relative error that a hypothesis may leave: golden may have been exact where the target's sums are not."""
        return max(self.limit, self.resolution / 2)


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
    held = _held(t)
    unsplit = best[1].once and _unsplit(case, t) and held == _held(g) and best[0] <= held / 2
    return Proven(best[1], best[0], own, relative(t, own), held, max(map(_held, inputs)), unsplit)


def _unsplit(case: Case, target: Floats) -> bool:
    """Whether sizes are known, and none of them deals the inside of an operator to ranks."""
    whole = "tp" in case.sizes and all(case.sizes.get(name, 1) == 1 for name in ("tp", "cp", "etp"))
    activation = case.part == "output" and "reduce" not in case.words
    return whole and activation and target.size >= _MANY and case.epsilon > 1e-4


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
        yield from _exchanged(case, found, whole)
        yield from _counted(case, found, whole)
        return
    left, sure, kind, text = best
    said = f"{found.formula.name}, made again from the target's own inputs, is the target with one change: {text}"
    sure = sure if whole > 8 * left else 0.92 * sure
    yield Cause(kind, sure, f"{said} ({left:.2g} of it is left, {whole:.2g} without the change)")


def _exchanged(case: Case, found: Proven, whole: float) -> Iterator[Cause]:
    """Find slices (heads, experts, sequences) of the output that were made from other slices of one input."""
    t, formula = case.target, found.formula
    assert t is not None
    own = [own_side(k) for k in formula.inputs]
    for at, x in enumerate(own):
        if x.size > MAX_ELEMENTS or t.size > MAX_ELEMENTS or formula.hands_on:
            continue

        def made(value: Floats, at: int = at) -> Floats:
            return formula.make(*own[:at], value, *own[at + 1 :])

        order = matched(made, x, t, min(found.reach, whole / 3))
        if order is not None:
            said, left = order
            text = f"{formula.name} is the target's with {said} of {formula.inputs[at].name} in place of their own"
            yield Cause(kinds.PERMUTATION, 0.93, f"{text} ({left:.2g} is left of {whole:.2g})")
            return


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
            there = matrix.any(axis=0)
            left = relative(matrix @ factors, t.ravel())
            if left <= found.reach and left <= whole / 3 and np.ptp(factors[there]) > _UNLIKE:
                lost = np.flatnonzero((np.abs(factors) < _UNLIKE) & there)
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
        for kind, said, other in other_inputs(case, own[at], weight, not formula.hands_on):
            yield 0.94, kind, f"{said} {known.name}", formula.make, [*own[:at], other, *own[at + 1 :]]
        for kind, said, other in _other_values(own[at]) if real[at] else ():
            yield 0.94, kind, f"{said} {known.name}", formula.make, [*own[:at], other, *own[at + 1 :]]
    for at, by in combinations(range(len(own)), 2):
        if own[at].shape == own[by].shape:
            text = f"{formula.inputs[at].name} and {formula.inputs[by].name} in each other's place"
            swapped = list(own)
            swapped[at], swapped[by] = own[by], own[at]
            yield 0.94, kinds.PERMUTATION, text, formula.make, swapped
    yield from _rounded_inputs(case, formula, own, [at for at, r in enumerate(real) if r])


def _rounded_inputs(case: Case, formula: Formula, own: list[Floats], real: list[int]) -> Iterator[Hypothesis]:
    """Return the formula with all inputs, or one alone, rounded to a coarser format, scaled before it or not."""
    some = [(real, "its inputs")]
    some += [([at], formula.inputs[at].name) for at in real] if len(real) > 1 else []
    for name, which in product(NARROW, some):
        if FORMATS[name].epsilon <= 2 * case.epsilon:
            continue
        for scaling in SCALINGS:
            inputs = [rounded(a, name, scaling) if at in which[0] else a for at, a in enumerate(own)]
            text = f"{which[1]} rounded{f', scaled {scaling},' if scaling else ''} to {name}"
            yield 0.94, kinds.WRONG_DTYPE, text, formula.make, inputs
    for at, said in some:
        for axis, of in ((None, "tensor"), (-1, "row")):
            inputs = [in_levels(a, axis) if k in at else a for k, a in enumerate(own)]
            yield 0.94, kinds.WRONG_DTYPE, f"{said} in int8, with a scale for each {of}", formula.make, inputs


SCALINGS = ("", "to its largest", "by a power of 2")
"""What is done to a tensor before it is rounded: nothing, its largest element made the format's, or nearly."""


def rounded(x: Floats, dtype: str, scaling: str = "") -> Floats:
    """Round to a format; ``scaling`` is one of ``SCALINGS``."""
    scale = FORMATS[dtype].maximum / max(float(np.abs(x).max()), 1e-300) if scaling else 1.0
    scale = 2.0 ** np.floor(np.log2(scale)) if scaling == SCALINGS[2] else scale
    return np.asarray((x * scale).astype(np.float32).astype(numpy_type(dtype)).astype(np.float64) / scale)


def in_levels(x: Floats, axis: int | None) -> Floats:
    """Round to 127 steps up to the largest element, of the tensor or along an axis."""
    step = np.maximum(np.abs(x).max(axis=axis, keepdims=True), 1e-300) / 127
    return np.asarray(np.rint(x / step) * step)


def _other_values(own: Floats) -> Iterator[tuple[str, str, Floats]]:
    """Take an input without its values."""
    if np.ptp(own):
        yield kinds.MISSING_TERM, "zeros in place of", np.zeros_like(own)
        yield kinds.NORMALISATION, "ones in place of", np.ones_like(own)


def other_inputs(
    case: Case, own: Floats, weight: bool = False, searched: bool = False
) -> Iterator[tuple[str, str, Floats]]:
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
        yield from other_orders(case, own, axis)
    yield from other_axes(case, own)
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


def _pool(case: Case, shape: tuple[int, ...]) -> tuple[Known, ...]:
    """Tensors of a shape that stand elsewhere in the dump: weights of all operators, outputs before this one."""

    def fits(row: Compared) -> bool:
        return row.golden is not None and row.golden.shape == shape and row.golden.dtype in FORMATS

    return case.pool(fits)[:_POOL] if case.pool is not None else ()
