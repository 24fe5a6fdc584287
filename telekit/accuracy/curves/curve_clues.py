"""What causes are read from, and what a cause is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from telekit.accuracy.curves.curve_errors import CurveErrors
from telekit.accuracy.curves.curve_standards import Limit
from telekit.accuracy.curves.ratios import MicroBatchMeans
from telekit.accuracy.readers.curve import LossCurve


@dataclass(frozen=True)
class Suspect:
    """A possible cause.

    Attributes
    ----------
    cause : str
        ``identical``, ``noise``, ``non-finite``, ``scaling``, ``auxiliary loss``, ``mean of micro-batch means``,
        ``offset``, ``shifted steps``, ``other start``, ``forward``, ``backward``, ``optimizer``,
        ``optimizer state``, ``outliers``, ``drift``.
    confidence : float
        0 to 1.
    evidence : str
        What speaks for it, with numbers.
    next : str
        What to look at, or to dump, next.
    """

    cause: str
    confidence: float
    evidence: str
    next: str


@dataclass(frozen=True)
class Clues:
    """What causes are read from.

    Attributes
    ----------
    errors : CurveErrors
        Of the pair.
    first, late : Limit
        Of the first step, and of a lasting difference; raised to the self-noise.
    norm_bound : float or None
        Relative difference of the first step's gradient norm that rounding explains; None without norms.
    norm_limit : float or None
        Of the norm's mean relative error.
    target, golden : LossCurve
        For their other columns.
    plain : (Limit, Limit)
        The same two limits, not raised.
    sizes : mapping of str to float
        Sizes of groups and counts, for constant ratios.
    micro_batches : MicroBatchMeans or None
        Of the first common step.
    lr_zero : CurveErrors or None
        Of a pair of runs with learning rate 0.
    """

    errors: CurveErrors
    first: Limit
    late: Limit
    norm_bound: float | None
    norm_limit: float | None
    target: LossCurve
    golden: LossCurve
    plain: tuple[Limit, Limit]
    sizes: Mapping[str, float]
    micro_batches: MicroBatchMeans | None = None
    lr_zero: CurveErrors | None = None

    @property
    def first_passes(self) -> bool:
        """Whether the first step's loss is within its limit."""
        return self.first.passes(self.errors.first.abs_error, self.errors.first.rel_error)

    @property
    def mean_passes(self) -> bool:
        """Whether the mean over the run is within its limit."""
        mean = self.errors.mean
        return mean is not None and self.late.passes(mean.mae, mean.mre)

    @property
    def end_passes(self) -> bool:
        """Whether the last quarter, and what follows an onset, is within the lasting limit."""
        drift = self.errors.drift
        sizes = ((drift.late_abs, drift.late_rel), (drift.since_abs, drift.since_rel))
        return all(self.late.passes(abs(one), abs(two)) for one, two in sizes)

    @property
    def jumps_out(self) -> bool:
        """Whether single steps stand out beyond the lasting limit, or some on end."""
        jumps = self.errors.jumps
        single = jumps.count > 0 and not self.late.passes(jumps.largest, jumps.largest_rel)
        return single or self.excursion

    @property
    def excursion(self) -> bool:
        """Whether steps on end are out of line with the run, beyond the lasting limit."""
        jumps = self.errors.jumps
        return jumps.away > jumps.count and not self.late.passes(jumps.away_abs, jumps.away_rel)

    @property
    def first_norm(self) -> float | None:
        """Relative difference of the first common step's norm; None without norms there."""
        norm = self.errors.norm
        if (
            norm is None
            or not norm.steps.size
            or not norm.finite[0]
            or norm.steps[0] != self.errors.first.step
        ):
            return None
        return abs(float(norm.relative[0]))
