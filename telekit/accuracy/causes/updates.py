"""What the optimizer did, read back from weights and states before and after: lr, decay, betas, eps, corrections.

Each side's own numbers are fitted on its own tensors, so that a wrong gradient does not look like a wrong optimizer.
AdamW: ``m' = b1 m + (1 - b1) g``, ``v' = b2 v + (1 - b2) g^2``,
``p' = p - lr wd p - lr (m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import INPUT, OUTPUT
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import representable, wide
from telekit.accuracy.graph.sync import optimizer_row
from telekit.accuracy.measures.pairs import Floats

_DIFFERS = 0.004  # a fitted coefficient this far off is not the same setting
_STATES = ("grad", "parameter", "exp_avg", "exp_avg_sq")
_SAMPLE = 1 << 15  # elements of a tensor that are fitted: a few coefficients need no more
_SAME_MOMENT, _SAME_STEP = 1e-3, 2e-5  # relative: how far nine in ten elements agree where settings do
_BF16_ONLY = 16  # so many weights without a bit beyond bfloat16 are no chance
States = tuple[dict[str, Floats], dict[str, Floats]]


@dataclass(frozen=True)
class Fitted:
    """What one side's optimizer did to one parameter.

    Attributes
    ----------
    keep1, take1, keep2, take2 : float
        ``m' = keep1 m + take1 g``, ``v' = keep2 v + take2 g^2``; nan where the state before is all zero.
    decay, rate : float
        ``p' - p = -decay p - rate m' / (sqrt(v') + eps)``: decay is ``lr wd``, rate is
        ``lr sqrt(1 - b2^t) / (1 - b1^t)``.
    eps : float
        Best of a grid, on the scale of ``sqrt(v')``.
    coupled : float
        Share of the weight in ``m'``: decay that went into the gradient.
    left : tuple of float
        What each of the three fits leaves, relative.
    moved : tuple of ndarray
        Weight before and after, and the moments after: to try another eps on.
    """

    keep1: float
    take1: float
    keep2: float
    take2: float
    decay: float
    rate: float
    eps: float
    coupled: float
    left: tuple[float, float, float]
    moved: tuple[Floats, Floats, Floats, Floats]

    def left_with(self, eps: float) -> float:
        """Return what the fit of the step leaves with a given eps."""
        return float(_with_eps(*self.moved, np.array([eps]))[1][0])


Later = Callable[[], tuple[Fitted, Fitted, int] | None]


def fit(before: dict[str, Floats], after: dict[str, Floats]) -> Fitted | None:
    """Fit one side; None where a tensor is missing or the weight did not move."""
    if not all(k in before for k in _STATES) or not all(k in after for k in _STATES[1:]):
        return None
    if not all(np.isfinite(a).all() for side in (before, after) for a in side.values()):
        return None
    g, p, m, v = (before[k].ravel() for k in _STATES)
    p1, m1, v1 = (after[k].ravel() for k in _STATES[1:])
    (keep1, take1, coupled), left1 = _least([m, g, p], m1)
    plain, left_plain = _least([m, g], m1)
    if left_plain < 1e-5 or abs(coupled) * float(np.linalg.norm(p)) < 0.02 * float(np.linalg.norm(m1)):
        (keep1, take1), coupled, left1 = plain, 0.0, left_plain
    (keep2, take2), left2 = _least([v, g * g], v1)
    eps, (decay, rate), left3 = _step(p, p1, m1, v1)
    return Fitted(
        keep1, take1, keep2, take2, decay, rate, eps, coupled, (left1, left2, left3), (p, p1, m1, v1)
    )


def _least(columns: Sequence[Floats], of: Floats) -> tuple[tuple[float, ...], float]:
    """Least squares with columns brought to one scale; a column of zeros gives nan."""
    scales = [float(np.linalg.norm(c)) for c in columns]
    used = [i for i, s in enumerate(scales) if s > 0]
    norm = float(np.linalg.norm(of))
    found = [float("nan")] * len(columns)
    if not norm:
        return tuple(0.0 if i in used else found[i] for i in range(len(columns))), 0.0
    if not used:
        return tuple(found), 1.0
    matrix = np.stack([columns[i] / scales[i] for i in used], axis=1)
    if not np.isfinite(matrix).all() or not np.isfinite(norm):
        return tuple(found), 1.0
    answer, *_ = np.linalg.lstsq(matrix, of / norm, rcond=1e-9)
    for i, value in zip(used, answer, strict=True):
        found[i] = float(value) * norm / scales[i]
    return tuple(found), float(np.linalg.norm(matrix @ answer - of / norm))


def _step(p: Floats, p1: Floats, m1: Floats, v1: Floats) -> tuple[float, tuple[float, float], float]:
    """Fit the weight's change; the eps that leaves least, 0 where it makes no difference."""
    root = np.sqrt(np.maximum(v1, 0))
    typical = float(np.median(root[root > 0])) if (root > 0).any() else 1.0
    (answer,), (left,) = _with_eps(p, p1, m1, v1, np.zeros(1))
    best = 0.0, (float(answer[0]), float(answer[1])), float(left)
    centre, width = 0.0, 6.0
    for _ in range(5):
        grid = typical * 10.0 ** np.linspace(centre - width, centre + width, 25)
        answers, lefts = _with_eps(p, p1, m1, v1, grid)
        at = int(np.argmin(lefts))
        if lefts[at] < 0.98 * best[2] - 1e-7:
            best = float(grid[at]), (float(answers[at, 0]), float(answers[at, 1])), float(lefts[at])
        if not best[0]:
            break
        centre, width = float(np.log10(best[0] / typical)), width / 10
    return best


def _with_eps(p: Floats, p1: Floats, m1: Floats, v1: Floats, eps: Floats) -> tuple[Floats, Floats]:
    """Fit ``p' - p = -decay p - rate u`` for each of some eps: (k, 2) of decay and rate, (k,) of what they leave.

    Two columns in closed form, the second made orthogonal to the first: normal equations would square the condition.
    """
    with np.errstate(all="ignore"):
        u = np.where(m1 == 0, 0.0, m1 / (np.sqrt(np.maximum(v1, 0)) + eps[:, None]))
    change = p1 - p
    norm, size, sizes = float(np.linalg.norm(change)), float(np.linalg.norm(p)), np.linalg.norm(u, axis=1)
    if not norm:
        return np.zeros((eps.size, 2)), np.zeros(eps.size)
    with np.errstate(all="ignore"):
        a, b, d = -p / (size or 1.0), -u / np.where(sizes > 0, sizes, 1.0)[:, None], change / norm
        slope = b @ a
        own = b - slope[:, None] * a
        square = (own * own).sum(axis=1)
        y = np.where(square > 1e-12, own @ d / square, 0.0)
        x = float(a @ d) - slope * y
        left = np.linalg.norm(d - x[:, None] * a - y[:, None] * b, axis=1)
        answer = np.stack([x * norm / size if size else np.full(eps.size, np.nan), y * norm / sizes], axis=1)
    finite = np.isfinite(left)
    answer[~finite], left[~finite] = np.nan, 1.0
    return answer, left


def states_of(node: Node, which: str) -> States | None:
    """Read one side's tensors before and after the step, or a sample of their elements; None where shapes differ."""
    found: list[dict[str, Floats]] = []
    shapes: set[tuple[int, ...]] = set()
    for part in (INPUT, OUTPUT):
        rows = {k: optimizer_row(node, k, part) for k in _STATES}
        arrays = {k: wide(getattr(r, which)) for k, r in rows.items() if r is not None}
        shapes |= {a.shape for a in arrays.values() if a is not None}
        found.append({k: _sample(a) for k, a in arrays.items() if a is not None})
    return (found[0], found[1]) if len(shapes) == 1 else None


def _sample(array: Floats) -> Floats:
    """Take elements at places that are the same for all tensors of a size, and in no rhythm of its rows."""
    flat = array.ravel()
    return flat if flat.size <= _SAMPLE else flat[np.random.default_rng(0).integers(0, flat.size, _SAMPLE)]


def sides(node: Node) -> tuple[Fitted | None, Fitted | None]:
    """Fit target and golden of one parameter's node."""
    t, g = states_of(node, "target"), states_of(node, "golden")
    return None if t is None else fit(*t), None if g is None else fit(*g)


def same_step(node: Node) -> bool:
    """Whether both sides moved moments and weight alike, so that there is nothing to fit.

    Nine elements in ten are asked: where a gradient is next to nothing, Adam's first step takes its sign, and that is
    rounding's.
    """
    t, g = states_of(node, "target"), states_of(node, "golden")
    if t is None or g is None or any(a.keys() != b.keys() for a, b in zip(t, g, strict=True)):
        return False
    for key, limit in (("exp_avg", _SAME_MOMENT), ("exp_avg_sq", _SAME_MOMENT), ("parameter", _SAME_STEP)):
        if key in t[1]:
            a, b = t[1][key], g[1][key]
            if key == "parameter":
                if key not in t[0]:
                    return False
                a, b = a - t[0][key], b - g[0][key]
            if a.shape != b.shape or not _alike(a, b, limit):
                return False
    return "parameter" in t[1]


def _alike(a: Floats, b: Floats, limit: float) -> bool:
    there = (a != 0) | (b != 0)
    if not there.any():
        return True
    off = np.quantile(np.abs(a - b)[there], 0.9)
    return bool(off <= limit * np.median(np.abs(b[there])))


def narrowed(node: Node) -> Cause | None:
    """Say that the target keeps its weights in bfloat16 where golden keeps more: small steps are rounded away."""
    row = optimizer_row(node, "parameter", OUTPUT)
    t, g = (None, None) if row is None else (wide(row.target), wide(row.golden))
    if t is None or g is None or t.size < _BF16_ONLY or not (np.isfinite(t).all() and np.isfinite(g).all()):
        return None
    if not representable(t, "bfloat16") or representable(g, "bfloat16"):
        return None
    text = "every weight of the target is a bfloat16 after the step, golden's are not: no float32 master"
    return Cause(kinds.WRONG_DTYPE, 0.95, text)


def step_causes(t: Fitted, g: Fitted, time: int, later: Later = lambda: None) -> Iterator[Cause]:
    """Compare two fits of the same parameter.

    Parameters
    ----------
    t, g : Fitted
        Target's and golden's.
    time : int
        The step, from 1, as the bias corrections count it.
    later : callable
        Fits target, golden and gives the time of a later step of the same parameter, or None: asked where one step
        cannot tell a learning rate from a bias correction.
    """
    if _still(t) and not _still(g):
        yield Cause(
            kinds.OPTIMIZER_STATE, 0.9, "the target's states come out as they went in: they are not updated"
        )
        return
    for name, keep, take, power in (("beta1", "keep1", "take1", 1), ("beta2", "keep2", "take2", 2)):
        a, b = getattr(t, take), getattr(g, take)
        x, y = getattr(t, keep), getattr(g, keep)
        if _apart(a, b) and power == 1 and abs(t.coupled) > 0:
            continue
        if _apart(x, y) and abs(x) < 0.01 and not _apart(a, b):
            text = f"the moment before counts {x:.3g} times instead of {y:.3g} ({name}): the state was lost"
            yield Cause(kinds.OPTIMIZER_STATE, 0.9, text)
        elif _apart(a, b):
            beta = f"{name} {1 - a:.4g} instead of {1 - b:.4g}"
            scaled = np.isfinite(x) and not _apart(x, y)
            kind = kinds.ADAM_BETA if not scaled else kinds.GRADIENT_SCALING
            yield Cause(
                kind, 0.92, f"the new gradient counts {a:.5g} instead of {b:.5g} in the moment: {beta}"
            )
        elif _apart(x, y):
            yield Cause(kinds.ADAM_BETA, 0.8, f"the moment before counts {x:.4g} instead of {y:.4g} ({name})")
    if t.coupled and not g.coupled:
        yield Cause(
            kinds.WEIGHT_DECAY,
            0.93,
            f"the weight itself is in the moment ({t.coupled:.3g} of it): decay is coupled (L2)",
        )
    betas = not any(_apart(getattr(t, k), getattr(g, k)) for k in ("take1", "take2"))
    yield from _weights(t, g, time, betas, later)


def _weights(t: Fitted, g: Fitted, time: int, betas: bool, later: Later) -> Iterator[Cause]:
    """Compare the weights' change: lr, decay, eps, corrections."""
    if _other_eps(t, g, time):
        text = f"an eps of {t.eps:.3g} (before bias correction) fits the target, golden's is {g.eps:.3g}"
        yield Cause(kinds.ADAM_EPSILON, 0.93, text)
        cause = _rate(t, g, time, later)[0] if betas and _apart(t.rate, g.rate) else None
        if cause is not None and cause.kind == kinds.BIAS_CORRECTION:
            yield Cause(cause.kind, 0.95, cause.text)
        return
    if t.left[2] > 0.1 > 10 * g.left[2]:
        yield Cause(
            kinds.UNKNOWN, 0.3, f"the target's update is no AdamW step ({t.left[2]:.2g} left), golden's is"
        )
        return
    size = max(abs(g.rate), 1e-30)
    decays = abs(t.decay - g.decay) > max(0.02 * abs(g.decay), 2e-4 * size)
    both = abs(g.decay) > 1e-4 * size and abs(t.decay / g.decay - t.rate / g.rate) < 0.02
    if decays and not both:
        ratio = f"{t.decay / g.decay:.3g} times" if abs(g.decay) > 1e-4 * size else "instead of none:"
        yield Cause(
            kinds.WEIGHT_DECAY,
            0.92,
            f"the weight decays by {t.decay:.3g} a step, {ratio} golden's {g.decay:.3g}",
        )
    if betas and _apart(t.rate, g.rate):
        yield from _rate(t, g, time, later)


def _other_eps(t: Fitted, g: Fitted, time: int) -> bool:
    """Whether neither side's eps would do for the other; before bias correction, which another beta2 changes too."""
    if t.eps == g.eps or max(t.left[2], g.left[2]) > 0.1:
        return False
    whole = [
        f.eps / sqrt(max(1 - (1 - f.take2) ** time, 1e-12)) if 0 < f.take2 < 1 else f.eps for f in (t, g)
    ]
    if max(whole) < 1.5 * min(whole):
        return False
    worse = t.left_with(g.eps), g.left_with(t.eps)
    return worse[0] > max(10 * t.left[2], 2e-3) and worse[1] > max(10 * g.left[2], 2e-3)


def _rate(t: Fitted, g: Fitted, time: int, later: Later) -> tuple[Cause, ...]:
    """Name the ratio of two steps: a correction left out, another count of steps, or the learning rate."""
    ratio = t.rate / g.rate
    said = f"the step is {ratio:.4g} times golden's: "
    rate = Cause(kinds.LEARNING_RATE, 0.85, f"{said}the learning rate")
    expected = _corrections(1 - g.take1, 1 - g.take2, time)
    key = next((k for k, e in expected.items() if _near(ratio, e) and abs(e - 1) > 0.004), None)
    if key is None:
        return (rate,)
    text = key if isinstance(key, str) else f"the bias corrections count step {key} instead of {time}"
    bias = Cause(kinds.BIAS_CORRECTION, 0.93, said + text)
    second = later()
    if second is not None and _apart(1.0, expected[key]):
        then = second[0].rate / second[1].rate
        would = _corrections(1 - g.take1, 1 - g.take2, second[2])
        moved = key if isinstance(key, str) else key + second[2] - time
        of_bias = [would[k] for k in dict.fromkeys((key, moved)) if k in would]
        if _near(then, ratio) and not any(_near(then, w) for w in of_bias):
            more = f", and {then:.4g} times in step {second[2]}, where a bias correction would have changed"
            return (Cause(kinds.LEARNING_RATE, 0.93, rate.text + more),)
        if any(_near(then, w) for w in of_bias) and not _near(then, ratio):
            return (bias,)
    if not _is_round(ratio):  # what a person sets is a round number, what a correction leaves hardly is
        return (bias,)
    both = "; one step cannot tell which, the next one can"
    return (
        Cause(kinds.LEARNING_RATE, 0.62, f"{rate.text}, or {text}{both}"),
        Cause(kinds.BIAS_CORRECTION, 0.6, f"{bias.text}, or the learning rate{both}"),
    )


def _corrections(b1: float, b2: float, time: int) -> dict[str | int, float]:
    """By what is wrong with the bias corrections (a number: the step they count): the step over the right one."""
    if not (0 < b1 < 1 and 0 < b2 < 1):
        return {}
    first, second = 1 - b1**time, 1 - b2**time
    found: dict[str | int, float] = {
        "both bias corrections are left out": first / sqrt(second),
        "the first moment's bias correction is left out": first,
        "the second moment's bias correction is left out": 1 / sqrt(second),
        "the second moment's correction is not under the root": sqrt(second),
    }
    for other in range(1, 12):
        if other != time:
            found[other] = sqrt(1 - b2**other) / (1 - b1**other) * first / sqrt(second)
    return found


def _near(a: float, b: float) -> bool:
    return abs(a / b - 1) < 0.01 if b else False


def _is_round(ratio: float) -> bool:
    """Whether a ratio, or one over it, has one digit: 0.1, 0.5, 2, 3."""
    return any(
        x > 0 and abs(x / float(f"{x:.0e}") - 1) < _DIFFERS for x in (ratio, 1 / ratio if ratio else 0.0)
    )


def _apart(a: float, b: float) -> bool:
    """Whether two coefficients differ; nan on either side cannot tell."""
    return bool(np.isfinite(a) and np.isfinite(b) and abs(a - b) > _DIFFERS * max(abs(a), abs(b), 0.01))


def _still(f: Fitted) -> bool:
    return (
        abs(f.take1) < 1e-6 and abs(f.take2) < 1e-6
        if np.isfinite(f.take1) and np.isfinite(f.take2)
        else False
    )
