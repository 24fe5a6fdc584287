"""What hierarchical expert traffic gains end to end over a global all-to-all, what that hangs on, and its interval.

A study is a record of ``data/studies``: a job, two dispatchers, and inputs that the answer could hang on, each with its
range and where that comes from, written down before the answer was computed. Nothing here is fitted to the claim. What
else it could hang on is held fixed, was listed afterwards, and is no part of the interval; what moving it does is said.

Overlap, where it is on, is the cost model's: expert traffic hides behind the computing of its pass, which takes
longer meanwhile, in both forms alike. So little is left to gain there, and gains are told with and without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cost.dispatch_study import FORM, OVERLAP, UNEVEN, Fixed, Input, Study, standing, study_job
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import InputError, bad
from telekit.layout.table import LayoutTable

Floats = NDArray[np.float64]

POINTS = 256
"""Sobol points; with these the quantiles move by about half a point of gain between seeds, and seldom by more."""
IMBALANCES = 8
"""Imbalances of every point, which cost one pass together; besides it goes through all overlaps and forms."""
INSIDE, EDGE = 0.10, 0.01
"""Share of the draws beyond the claim, on its side, from which it lies inside, and from which at the edge."""
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Bar:
    """One bar of the tornado: the gain at both ends of one input, all others at their base."""

    input: Input
    gains: tuple[float, float]

    @property
    def span(self) -> float:
        """How far it moves the answer."""
        return abs(self.gains[1] - self.gains[0])


@dataclass(frozen=True)
class Moved:
    """The gain with one fixed thing moved, all inputs at their base; ``value`` is where it stands."""

    fixed: Fixed
    value: Any
    gains: tuple[float, ...]


@dataclass(frozen=True)
class Gain:
    """The answer of a study. Gains are of throughput: flat step time over hierarchical, less 1.

    ``samples`` are gains with every input drawn from its range at once; their quantiles say how far the assumptions
    reach, not how sure a measurement is. ``overlapped`` marks those that hide expert traffic behind computing.
    """

    study: Study
    base: float
    steps_s: tuple[float, float]
    bars: tuple[Bar, ...]
    moved: tuple[Moved, ...]
    samples: Floats
    overlapped: NDArray[np.bool_]

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """5 %, 50 % and 95 % quantiles of the samples."""
        return _quantiles(self.samples)

    @cached_property
    def interval_in_the_open(self) -> tuple[float, float, float]:
        """The same of the samples without overlap, where all expert traffic counts."""
        return _quantiles(self.samples[~self.overlapped])

    @cached_property
    def interval_overlapped(self) -> tuple[float, float, float]:
        """The same of the samples with overlap, where all but the longest traffic hides in both forms."""
        return _quantiles(self.samples[self.overlapped])

    @property
    def share_beyond(self) -> float:
        """Share of the samples that reach the claim."""
        return _share(self.samples, self.study.claim)

    @property
    def share_beyond_in_the_open(self) -> float:
        """The same of the samples without overlap."""
        return _share(self.samples[~self.overlapped], self.study.claim)

    @property
    def holds_claim(self) -> bool:
        """Whether the claim lies inside the interval."""
        return self.interval[0] <= self.study.claim <= self.interval[2]

    @property
    def verdict(self) -> str:
        """Where the claim lies, by the share of the draws beyond it: inside, at the edge (which is no yes), outside."""
        beyond = min(self.share_beyond, 1.0 - self.share_beyond)
        if beyond < EDGE:
            return "outside"
        return "at the edge" if beyond < INSIDE else "inside"

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        low, _, high = self.interval
        return (
            f"{self.study.claim:.0%} lies {self.verdict}: {self.share_beyond:.1%} of the draws reach it "
            f"({self.share_beyond_in_the_open:.1%} of those without overlap), 5 to 95 % of them are "
            f"{low:.1%} to {high:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "study": self.study.name,
            "gain": self.base,
            "interval": _named(self.interval),
            "claim": self.study.claim,
            "claim_inside": self.holds_claim,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "share_beyond_claim": self.share_beyond,
            "share_beyond_claim_without_overlap": self.share_beyond_in_the_open,
            "interval_without_overlap": _named(self.interval_in_the_open),
            "interval_with_overlap": _named(self.interval_overlapped),
            "step_time_s": {"flat": self.steps_s[0], "hierarchical": self.steps_s[1]},
            "inputs": [
                {"name": bar.input.name, "base": bar.input.base, "ends": bar.input.ends, "gains": bar.gains}
                | {"says": bar.input.says, "source": bar.input.source}
                for bar in self.bars
            ],
            "fixed_note": self.study.fixed_note,
            "fixed": [
                {"name": it.fixed.name, "value": it.value, "moved": it.fixed.moved, "gains": it.gains}
                | {"says": it.fixed.says, "why": it.fixed.why}
                for it in self.moved
            ],
        }


def _steps(study: Study, dispatcher: str, imbalances: list[float], values: Mapping[str, Any]) -> Floats:
    """Step times under some imbalances, shape (n,): :func:`telekit.cost.estimate`'s.

    The pipeline is timed by 1F1B's closed form, which is exact on the stages of these jobs.
    """
    job = study_job(study, dispatcher, **values)
    if problems := job.problems():
        raise InputError(problems)
    table = LayoutTable.build(job.layout, expert_imbalance=imbalances)
    found: Floats = step_cost(Site(job.model, job.cluster, job.train, table)).step_s
    return found


def steps_s(study: Study, **values: Any) -> tuple[float, float]:
    """Step time with the global all-to-all and with the hierarchical form, seconds.

    Raises
    ------
    InputError
        For a name that the study does not have, or a layout that breaks a rule.
    """
    v = study.base | values
    flat, hierarchical = (_steps(study, name, [v[UNEVEN]], values)[0] for name in (study.flat, v[FORM]))
    return float(flat), float(hierarchical)


def gain(study: Study, points: int = POINTS, seed: int = 0) -> Gain:
    """Answer a study: the gain at the base, a bar for each input, and the spread when all move at once.

    Parameters
    ----------
    study : Study
        From :func:`telekit.cost.dispatch_study.load_study`.
    points : int
        Sobol points, a power of 2; each gives 32 samples.
    seed : int
        Of the scrambling of Sobol's points.

    Raises
    ------
    InputError
        For a number of points that is no power of 2, or above 2 ** 16.
    """
    if not 1 <= points <= 2**16 or points & (points - 1):
        raise bad("points", points, "must be a power of 2, at most 65,536", f"{POINTS} is usual")
    base = steps_s(study)
    ends = {item: tuple(_gain(study, **{item.name: end}) for end in item.ends) for item in study.inputs}
    bars = sorted((Bar(item, (low, high)) for item, (low, high) in ends.items()), key=lambda bar: -bar.span)
    at = standing(study)
    moved = tuple(
        Moved(item, at[item.name], tuple(_gain(study, **{item.name: x}) for x in item.moved))
        for item in study.fixed
    )
    samples, overlapped = _samples(study, points, seed)
    return Gain(study, base[0] / base[1] - 1, base, tuple(bars), moved, samples, overlapped)


def _samples(study: Study, points: int, seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Gains at scrambled Sobol points, and which of them overlap; every choice of overlap and form at every point."""
    from scipy.stats import qmc

    inputs = {item.name: item for item in study.inputs}
    drawn = [item for item in study.inputs if item.name not in (OVERLAP, FORM)]
    shares = qmc.Sobol(len(drawn), seed=seed).random_base2(points.bit_length() - 1)
    gains, hidden = [], []
    for point in shares:
        share = dict(zip([item.name for item in drawn], point.tolist(), strict=True))
        uneven = [inputs[UNEVEN].at((share[UNEVEN] + k) / IMBALANCES) for k in range(IMBALANCES)]
        values = {item.name: item.at(share[item.name]) for item in drawn}
        for overlap in inputs[OVERLAP].choices:
            values[OVERLAP] = overlap
            flat = _steps(study, study.flat, uneven, values)
            gains += [flat / _steps(study, form, uneven, values) - 1 for form in inputs[FORM].choices]
            hidden += [np.full(IMBALANCES, overlap)] * len(inputs[FORM].choices)
    return np.concatenate(gains), np.concatenate(hidden)


def _gain(study: Study, **values: Any) -> float:
    flat, hierarchical = steps_s(study, **values)
    return flat / hierarchical - 1


def _quantiles(samples: Floats) -> tuple[float, float, float]:
    low, middle, high = np.quantile(samples, QUANTILES).tolist()
    return low, middle, high


def _named(quantiles: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("p5", "p50", "p95"), quantiles, strict=True))


def _share(samples: Floats, least: float) -> float:
    return float(np.mean(samples >= least))
