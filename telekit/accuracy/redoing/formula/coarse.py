"""A product that is off by noise as a coarser format of its inputs leaves it, by its size and by where it lies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.checks.grids import NARROW
from telekit.accuracy.measures.pairs import FORMATS, Floats
from telekit.accuracy.redoing.formula.formula import Proven, own_side, relative, rounded


def coarser(case: Case, found: Proven) -> Iterator[Cause]:
    """Find a difference that is noise, of the size that inputs rounded to a coarse format leave in a product."""
    t, own = case.target, found.own
    assert t is not None
    whole = relative(own, t)
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
    coarse = {name: FORMATS[name].epsilon for name in NARROW if FORMATS[name].epsilon > 2 * case.epsilon}
    name = min(coarse, key=lambda n: abs(np.log(whole / (_NOISE * coarse[n]))), default="")
    if (
        name
        and 0.1 * coarse[name] <= whole <= 0.6 * coarse[name]
        and _spread_alike(found, inputs, t - own, name)
    ):
        text = f"{found.formula.name} is off by noise of {whole:.3g}, the size of {name}'s rounding of its inputs"
        yield Cause(kinds.WRONG_DTYPE, 0.78, text)


_NOISE = 0.25  # epsilons that rounding one or two inputs of a product leaves in it, by the norm
_APART = 0.8  # of the logarithm of rows' or columns' energies, its spread beyond what as few numbers have


def _spread_alike(found: Proven, inputs: list[Floats], d: Floats, name: str) -> bool:
    """Whether noise lies in rows and columns as rounding one of the inputs, or all, would put it."""
    which = [[at] for at in range(len(inputs))] + [list(range(len(inputs)))]
    for some in which:
        coarse = [rounded(x, name) if at in some else x for at, x in enumerate(inputs)]
        made = found.formula.make(*coarse) - found.own
        if (
            made.shape == d.shape
            and np.isfinite(made).all()
            and all(_spread(_energy(d, axis), _energy(made, axis), d.size) < _APART for axis in (0, 1))
        ):
            return True
    return False


def _energy(d: Floats, axis: int) -> Floats:
    """Return sums of squares of the rows of features, or of the features."""
    return np.asarray(np.square(d.reshape(-1, d.shape[-1])).sum(axis=1 - axis))


def _spread(of: Floats, made: Floats, size: int) -> float:
    """Spread of the logarithm of a ratio of energies, less what the number of elements in each leaves."""
    ratio = np.log(np.maximum(of, 1e-300)) - np.log(np.maximum(made, 1e-300))
    return float(np.std(ratio) - 2 * np.sqrt(len(of) / size))
