"""Names for a constant ratio: which group's size, or which count, stands in a result once too often or too seldom.

A sum that was taken over a group twice, or not at all, leaves every element off by the same factor. The factor is
the size of the group, so that it says which group: tp, cp, dp, ep, the number of tokens or of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from telekit.errors import InputError, Problem

TOLERANCE = 0.01
LARGEST_GROUP = 64
SMALL_GROUP = 16
LARGEST_RATIO = 1e30
"""Nothing that is counted is larger."""
WORDS = {
    "tp": "the tensor-parallel size",
    "cp": "the context-parallel size",
    "dp": "the data-parallel size",
    "ep": "the expert-parallel size",
    "pp": "the pipeline-parallel size",
    "etp": "the experts' tensor-parallel size",
    "tokens": "the number of tokens",
    "micro_batches": "the number of micro-batches",
    "loss_scale": "the loss scale",
}
QUANTITIES = ("loss", "gradient", "norm", "value")


@dataclass(frozen=True)
class RatioName:
    """One explanation of a constant ratio.

    Attributes
    ----------
    what : str
        The size's name (``tp``), two of them (``tp*cp``), ``group`` for a whole number that no known size has,
        ``tokens``, ``loss_scale``, ``bits``.
    confidence : float
        0 to 1: how near the ratio is, times how common the fault is, shared among names that fit as well.
    expected : float
        The ratio this would give.
    text : str
        In words.
    """

    what: str
    confidence: float
    expected: float
    text: str


@dataclass(frozen=True)
class ConstantRatio:
    """Target as a multiple of golden: ``target = ratio * golden`` but for ``spread`` of the target's norm."""

    ratio: float
    spread: float

    def constant(self, noise: float = 0.02) -> bool:
        """Whether one factor explains all but ``noise`` of the target, and is not 1 by that measure."""
        return self.spread <= noise and self.ratio != 0 and abs(self.ratio - 1) > 3 * max(self.spread, 1e-6)


def constant_ratio(target: npt.ArrayLike, golden: npt.ArrayLike) -> ConstantRatio | None:
    """Fit ``target = ratio * golden`` by least squares; pairs with a NaN or Inf are left out.

    Parameters
    ----------
    target, golden : array_like
        Equal shapes; taken in float64.

    Returns
    -------
    ConstantRatio or None
        None where the golden or the target is all zero, or nothing is finite.
    """
    a, b = (np.asarray(x, np.float64).ravel() for x in (target, golden))
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        a, b = a[finite], b[finite]
    if not a.size or not a.any() or not b.any():
        return None
    a_scale, b_scale = float(np.abs(a).max()), float(np.abs(b).max())  # squares of tiny gradients underflow
    a, b = a / a_scale, b / b_scale
    slope = float(np.vdot(a, b) / np.vdot(b, b))
    spread = float(np.linalg.norm(a - slope * b) / np.linalg.norm(a))
    return ConstantRatio(slope * a_scale / b_scale, spread)


def name_ratio(
    ratio: float,
    sizes: Mapping[str, float] | None = None,
    *,
    quantity: str = "value",
    spread: float = 0.0,
    tolerance: float = TOLERANCE,
) -> tuple[RatioName, ...]:
    """Name a constant ratio of target over golden, best first.

    Parameters
    ----------
    ratio : float
        Target over golden.
    sizes : mapping of str to float, optional
        What is known: ``tp cp dp ep pp etp``, ``tokens``, ``micro_batches``, ``loss_scale``, or other counts under
        names of one's own. Those of 1 or less explain nothing.
    quantity : str
        ``loss``, ``gradient``, ``norm`` or ``value``. For a norm a group may have counted only part of the
        parameters several times: then the ratio lies between 1 and the size.
    spread : float
        Relative scatter of the ratio over the elements: widens the tolerance.
    tolerance : float
        How far, relative, a ratio may be from what a name expects.

    Returns
    -------
    tuple of RatioName
        Empty where the ratio is 1 within the tolerance, or nothing explains it.

    Raises
    ------
    InputError
        A ratio that is no positive number, an unknown quantity.
    """
    known = {k: float(v) for k, v in (sizes or {}).items() if math.isfinite(v) and v > 1}
    _check(ratio, quantity, tolerance)
    if not 1 / LARGEST_RATIO < ratio < LARGEST_RATIO:
        return ()
    limit = min(max(tolerance, 2 * spread), 0.1)
    if abs(math.log(ratio)) <= limit:
        return ()
    found = [n for n in map(lambda c: _near(ratio, c, limit), _candidates(known, quantity)) if n]
    found += list(_parts(ratio, known)) if quantity == "norm" and not found else []
    found += list(_unknown(ratio, limit)) if not found else []
    return _shared(found)


def _check(ratio: float, quantity: str, tolerance: float) -> None:
    problems = []
    if math.isnan(ratio):
        problems.append(Problem("ratio", ratio, "is not a number", "2.0"))
    if quantity not in QUANTITIES:
        problems.append(Problem("quantity", quantity, f"is not one of {', '.join(QUANTITIES)}", "gradient"))
    if not 0 < tolerance < 1:
        problems.append(Problem("tolerance", tolerance, "must lie between 0 and 1", str(TOLERANCE)))
    if problems:
        raise InputError(problems)


@dataclass(frozen=True)
class _Candidate:
    what: str
    expected: float
    common: float
    text: str


def _candidates(sizes: Mapping[str, float], quantity: str) -> Iterator[_Candidate]:
    for name, size in sizes.items():
        alike = ", ".join(other for other, its in sizes.items() if its == size and other != name)
        said = f"{WORDS.get(name, name)}, {size:g}" + f" (or {alike}, as large)" * bool(alike)
        yield _Candidate(name, size, 0.95, f"{said}: summed twice, or not divided by it")
        yield _Candidate(name, 1 / size, 0.95, f"1 over {said}: divided twice, or a sum over it is missing")
        if quantity == "norm":
            text = f"the root of {said}: squares counted once for each rank"
            yield _Candidate(name, math.sqrt(size), 0.8, text)
            yield _Candidate(name, 1 / math.sqrt(size), 0.8, f"1 over {text}, or ranks left out of the sum")
        if 2 < size <= SMALL_GROUP and name not in ("tokens", "loss_scale"):
            yield _Candidate(name, (size - 1) / size, 0.6, f"one of {size:g} ({name}) is left out")
            yield _Candidate(name, (size + 1) / size, 0.6, f"one of {size:g} ({name}) is counted twice")
    for (one, a), (two, b) in combinations(sizes.items(), 2):
        both = f"{one}*{two}"
        yield _Candidate(both, a * b, 0.6, f"{both}, {a * b:g}: not divided by either")
        yield _Candidate(both, 1 / (a * b), 0.6, f"1 over {both}, {a * b:g}: divided by both once too often")
    if quantity == "loss":
        yield _Candidate("bits", 1 / math.log(2), 0.5, "1 / ln 2: one loss in bits, the other in nats")
        yield _Candidate("bits", math.log(2), 0.5, "ln 2: one loss in nats, the other in bits")


def _near(ratio: float, candidate: _Candidate, limit: float) -> RatioName | None:
    """Weigh a candidate: full at its value, half at the limit, none beyond."""
    away = abs(math.log(ratio / candidate.expected))
    if away > limit:
        return None
    weight = candidate.common * (1 - 0.5 * away / limit)
    return RatioName(candidate.what, weight, candidate.expected, candidate.text)


def _parts(ratio: float, sizes: Mapping[str, float]) -> Iterator[RatioName]:
    """Explain a norm's ratio by part of the parameters being counted, or summed, ``size`` times.

    ``ratio**2 = 1 + (size - 1) * share`` where squares are counted once for each rank, and with ``size**2`` where
    the gradients themselves are ``size`` times too large; ``share`` is that part's share of the golden's squares.
    """
    square = ratio * ratio if ratio > 1 else 1 / (ratio * ratio)
    for name, size in sizes.items():
        if size > LARGEST_GROUP:
            continue
        for factor, how in ((size, "counted"), (size * size, "summed")):
            share = (square - 1) / (factor - 1)
            if 0 < share < 1:
                text = f"{share:.0%} of the squared norm {how} {size:g} times, the size of {name}: replicated weights"
                yield RatioName(name, 0.4 if how == "counted" else 0.3, ratio, text)
                break


def _unknown(ratio: float, limit: float) -> Iterator[RatioName]:
    """Name a ratio that no known size explains: a whole number, its inverse, or a large one."""
    size, inverse = (ratio, "") if ratio > 1 else (1 / ratio, "1 over ")
    whole = round(size)
    power = math.log2(size)
    if size > LARGEST_GROUP and abs(power - round(power)) < 1e-3 and power >= 8:
        text = f"{inverse}2^{round(power)}: a loss scale, or a count of tokens that is a power of two"
        yield RatioName("loss_scale", 0.4, ratio, text)
    elif size > LARGEST_GROUP:
        yield RatioName(
            "tokens", 0.3, ratio, f"{inverse}{size:.6g}: too large for a group, so a count of tokens"
        )
    elif whole >= 2 and abs(math.log(size / whole)) <= min(limit, 0.1 / whole):
        share = abs(math.log(size / whole)) / min(limit, 0.1 / whole)
        text = f"{inverse}{whole}: the size of a group (tp, cp, dp, ep), or of micro-batches; name the sizes to tell"
        common = 0.7 if whole & (whole - 1) == 0 else 0.5
        yield RatioName("group", common * (1 - 0.5 * share), float(whole) if ratio > 1 else 1 / whole, text)


def _shared(found: list[RatioName]) -> tuple[RatioName, ...]:
    """Share confidence among those that fit alike, one entry for each ``what``, best first."""
    best: dict[str, RatioName] = {}
    for name in sorted(found, key=lambda n: -n.confidence):
        best.setdefault(name.what, name)
    total = sum(n.confidence for n in best.values())
    top = max((n.confidence for n in best.values()), default=0.0)
    return tuple(
        RatioName(n.what, round(n.confidence * top / total, 3), n.expected, n.text) for n in best.values()
    )


@dataclass(frozen=True)
class MicroBatchMeans:
    """The mean over tokens beside the mean of micro-batches' means: equal only where all hold equally many tokens."""

    token_mean: float
    mean_of_means: float

    @property
    def offset(self) -> float:
        """How far the mean of means is above the mean over tokens."""
        return self.mean_of_means - self.token_mean


def micro_batch_means(means: npt.ArrayLike, tokens: npt.ArrayLike) -> MicroBatchMeans:
    """Compare the mean over tokens with the mean of micro-batches' means.

    Parameters
    ----------
    means : array_like, shape (micro-batches,)
        Mean loss of each.
    tokens : array_like, shape (micro-batches,)
        Tokens that count in each.

    Returns
    -------
    MicroBatchMeans
        ``sum(tokens * means) / sum(tokens)`` and ``mean(means)``.

    Raises
    ------
    InputError
        Lengths differ, nothing given, or a count that is negative or all zero.

    Examples
    --------
    >>> round(micro_batch_means([4.0, 2.0], [10, 100]).token_mean, 4)
    2.1818
    """
    loss, count = np.asarray(means, np.float64).ravel(), np.asarray(tokens, np.float64).ravel()
    if loss.size != count.size or not loss.size:
        raise InputError(
            [Problem("tokens", count.size, f"needs a count for each of {loss.size} micro-batches")]
        )
    if (count < 0).any() or not count.sum() > 0:
        raise InputError([Problem("tokens", count.tolist()[:5], "must be counts, not all zero", "[10, 100]")])
    return MicroBatchMeans(float(loss @ count / count.sum()), float(loss.mean()))
