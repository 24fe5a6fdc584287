"""An operator whose input saturates, or whose output is rounded otherwise than to the nearest value of its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import FORMATS, Floats
from telekit.accuracy.redoing.formula.formula import MAX_ELEMENTS, Proven, own_side, relative, rounded

_STEPS, _ROUNDS = 17, 4
_LOWEST = 2.0**-7  # of an input's largest: it is not looked for below
_SATURATED = 0.3  # of the difference: what saturation alone may leave, the format's rounding
_ROUNDED = 0.1  # relative: the most that the coarsest format's rounding of what is not cut off leaves
_CLIPPED = 1e-4  # of the elements, at least
_ONE_WAY = 0.97  # of the differences: all towards zero
_FEWEST = 256


def saturation_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Try each input cut off at a largest value, found by how little that leaves, and as a format does it."""
    t = case.target
    assert t is not None
    own = [own_side(k) for k in found.formula.inputs]
    whole = found.own_error
    if whole <= found.limit or sum(a.size for a in own) > MAX_ELEMENTS:
        return
    for at, known in enumerate(found.formula.inputs):
        x = own[at]
        if not (x != np.rint(x)).any():
            continue

        def left(value: Floats, at: int = at) -> float:
            return relative(found.formula.make(*own[:at], value, *own[at + 1 :]), t)

        top = float(np.abs(x).max())
        c, rest = _searched(lambda c, x=x: left(np.clip(x, -c, c)), _LOWEST * top, top)  # type: ignore[misc]
        share = float(np.mean(np.abs(x) > c))
        if share < _CLIPPED or rest > min(_SATURATED * whole, _ROUNDED):
            continue
        text = f"{known.name} saturates at {c:.4g}, {c / top:.2g} of its largest value ({share:.1%} of its elements)"
        for name in ("float8_e4m3fn", "float8_e5m2"):
            near = _searched(lambda c, n=name, x=x: left(_held(x, n, c)), 0.97 * c, 1.03 * c)  # type: ignore[misc]
            if near[1] < rest / 2:
                rest, text = near[1], f"{text}, as {name} with a scale for that"
        said = f"of {found.formula.name}, made again from the target's own inputs"
        tells = f"({rest:.2g} of it is left, {whole:.2g} without): a scale too small, or a format's range"
        yield Cause(kinds.OVERFLOW, 0.93, f"{said}, {text} {tells}")
        return


def _held(x: Floats, name: str, top: float) -> Floats:
    """Round to a format with a scale that brings ``top`` to its largest value; what is above saturates."""
    cut = np.clip(x, -top, top)
    scale = FORMATS[name].maximum / top
    return rounded(cut * scale, name) / scale


def _searched(left: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return where a function of a positive number is least, on grids that close in, and its value there."""
    best = (high, left(high))
    for _ in range(_ROUNDS):
        grid = np.geomspace(low, high, _STEPS)
        values = [left(float(c)) for c in grid]
        at = int(np.argmin(values))
        if values[at] < best[1]:
            best = (float(grid[at]), values[at])
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, _STEPS - 1)])
    return best


def rounding_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Say that an output is right but for its rounding: cut off, or rounded more often than once."""
    t = case.target
    assert t is not None
    if not found.unsplit or not found.limit < found.own_error <= 2 * found.resolution:
        return
    d, size = (t - found.own).ravel(), np.abs(found.own).ravel()
    ulp = found.resolution * 2.0 ** np.floor(np.log2(np.where(size > 0, size, 1.0)))
    clear = np.abs(d) > ulp / 64
    if clear.sum() < _FEWEST:
        return
    ratio = found.own_error / max(found.golden_error, 1e-300)
    said = f"{found.formula.name} is right but for its last digit, {ratio:.2f} times as far off as golden's rounding"
    towards = float(np.mean(np.sign(d[clear]) == -np.sign(found.own.ravel()[clear])))
    if towards >= _ONE_WAY:
        text = f"{said}: {towards:.0%} of the values are nearer to zero: cut off, not rounded to the nearest"
        yield Cause(kinds.WRONG_DTYPE, 0.93, text)
    elif float(np.abs(d / ulp).max()) < 1:
        text = f"{said}, up to a whole digit and never more: rounded at random, not to the nearest"
        yield Cause(kinds.WRONG_DTYPE, 0.85, text)
    else:
        text = f"{said}: a sum that is rounded to the narrow format as it grows, not once at its end"
        yield Cause(kinds.WRONG_DTYPE, 0.8, text)


def underflow_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Find an output on one step throughout, off by no more than half of it: too small for its format."""
    t = case.target
    assert t is not None
    sizes = np.abs(t[t != 0])
    if sizes.size < _FEWEST or found.own_error <= found.limit:
        return
    step = 2.0 ** np.floor(np.log2(float(sizes.min())))
    made = found.own[found.own != 0] / step
    whole = (t / step == np.rint(t / step)).all() and float(np.mean(made == np.rint(made))) < _ROUNDED
    room = step / 2 + 2 * found.resolution * np.abs(t) + found.reach * np.abs(found.own).max()
    lost = float(np.mean((t == 0) & (found.own != 0)))
    if whole and found.reach * np.abs(found.own).max() < step / 4 and (np.abs(t - found.own) <= room).all():
        text = f"every value of {found.formula.name} is a multiple of 2^{int(np.log2(step))}, made again it is off by"
        said = f"{text} half of that at most, and {lost:.1%} of the values are 0: they underflow, as float16's small"
        yield Cause(kinds.WRONG_DTYPE, 0.95, f"{said} ones do with a loss scale too small for them")
