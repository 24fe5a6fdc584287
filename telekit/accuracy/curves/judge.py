"""Judge one loss curve against another: a verdict in parts, and a suspect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from telekit.accuracy.curves import curve_rules as rules
from telekit.accuracy.curves.curve_clues import Clues, Suspect
from telekit.accuracy.curves.curve_coverage import Columns
from telekit.accuracy.curves.curve_errors import CurveErrors, measure
from telekit.accuracy.curves.curve_rules import BOUND, DRIFT, FINITE, FIRST, MEAN, NORM
from telekit.accuracy.curves.curve_standards import MINDFORMERS_FIRST, CurveStandard, Limit, curve_standard
from telekit.accuracy.curves.curve_suspects import suspects
from telekit.accuracy.curves.ratios import MicroBatchMeans
from telekit.accuracy.readers.curve import LossCurve
from telekit.accuracy.standards.depth import LAYERS, depth_bound
from telekit.accuracy.standards.verdict import ERROR, SKIP, Verdict, conclude

GOOD, BAD_OTHER, BAD_FIRST, BAD_MEAN, BAD_BOTH, FEW, LATE, LOST = (
    "good",
    "good loss, another rule fails",
    "bad first, good mean",
    "good first, bad mean",
    "bad first, bad mean",
    "few outliers",
    "good mean, bad end",
    "not finite",
)


@dataclass(frozen=True)
class CurveVerdict:
    """What one standard says of a pair of curves.

    Attributes
    ----------
    verdict : Verdict
        The result and its parts.
    errors : CurveErrors
        What was measured.
    first_limit, mean_limit : Limit or None
        As judged: raised to the golden's self-noise where that is bigger.
    norm_limit : float or None
        Likewise.
    suspects : tuple of Suspect
        Possible causes, the likeliest first; never empty.
    shape : str
        How it fails: ``bad first, good mean``, ``good first, bad mean``, ``bad first, bad mean``, ``few outliers``,
        ``good mean, bad end``, ``not finite``, ``good loss, another rule fails``; or ``good``.
    """

    verdict: Verdict
    errors: CurveErrors
    first_limit: Limit | None
    mean_limit: Limit | None
    norm_limit: float | None
    suspects: tuple[Suspect, ...]
    shape: str

    @property
    def result(self) -> str:
        """Return pass, warning, error or skip: the worst of the parts."""
        return self.verdict.result

    @property
    def passed(self) -> bool:
        """Whether no part failed; a warning does not fail."""
        return self.verdict.passed

    @property
    def suspect(self) -> Suspect:
        """The likeliest cause."""
        return self.suspects[0]

    @property
    def columns(self) -> dict[str, dict[str, str | None]]:
        """Which columns are compared, of loss and gradient norm; None where a file has no such."""
        names = self.errors.names
        return {
            "target": {"loss": names.target, "grad_norm": names.target_norm},
            "golden": {"loss": names.golden, "grad_norm": names.golden_norm},
        }

    @property
    def coverage(self) -> dict[str, Any]:
        """How many steps are compared, and why not more."""
        found = self.errors.coverage
        return {"steps": found.steps, "gaps": [*found.gaps, *found.norm_gaps]}

    @property
    def first_step(self) -> dict[str, Any]:
        """The first common step: losses, errors, limits and result."""
        return _plain(asdict(self.errors.first) | _limits(self.first_limit) | self._part(FIRST))

    @property
    def mean(self) -> dict[str, Any]:
        """Errors over the run: mean, signed mean and largest, with limits and result."""
        found = {} if self.errors.mean is None else asdict(self.errors.mean)
        return _plain(found | _limits(self.mean_limit) | self._part(MEAN))

    @property
    def grad_norm(self) -> dict[str, Any]:
        """Relative errors of the gradient's norm, with limits and result; only ``result`` where it is not logged."""
        out: dict[str, Any] = {"limit": self.norm_limit} | self._part(NORM)
        norm = self.errors.norm
        if norm is None or not norm.at.size:
            return _plain(out)
        share = np.abs(norm.relative)
        worst = int(share.argmax())
        out |= {
            "steps": int(share.size),
            "first_step": int(norm.at[0]),
            "first_rel_error": float(share[0]),
            "mre": norm.mre,
            "max_rel": float(share[worst]),
            "max_rel_step": int(norm.at[worst]),
        }
        bound = [p for p in self.verdict.parts if p.name == BOUND]
        return _plain(
            out | ({"epsilon_bound": {"rule": bound[0].rule, "result": bound[0].result}} if bound else {})
        )

    @property
    def drift(self) -> dict[str, Any]:
        """What the difference does over the steps: its test, its end, its onset, outliers and spikes."""
        drift, jumps = self.errors.drift, self.errors.jumps
        own = (
            {}
            if drift.trend is None
            else asdict(drift.trend) | {"of": drift.of, "significant": drift.trend.significant}
        )
        return _plain(
            {
                "late_error": drift.late_abs,
                "late_rel_error": drift.late_rel,
                "trend": own,
                "onset": asdict(drift.onset),
                "outliers": {
                    "count": jumps.count, "steps": jumps.outliers, "largest": jumps.largest,
                    "largest_rel": jumps.largest_rel,
                },
                "spikes": {
                    "target_only": jumps.target_spikes, "golden_only": jumps.golden_spikes, "both": jumps.common_spikes,
                },
            }
            | self._part(DRIFT)
        )  # fmt: skip

    @property
    def self_noise(self) -> dict[str, Any] | None:
        """How far runs of the golden are apart; None without them."""
        noise = self.errors.noise
        if noise is None:
            return None
        names = ("runs", "steps", "first_abs", "first_rel", "mae", "mre", "norm_mre")
        return _plain({name: getattr(noise, name) for name in names})

    def _part(self, name: str) -> dict[str, Any]:
        part = next((p for p in self.verdict.parts if p.name == name), None)
        if part is None:
            return {"result": SKIP, "rule": "", "note": "no rule of this standard"}
        return {"result": part.result, "rule": part.rule, "note": part.note}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, fit for strict JSON."""
        return {
            "verdict": self.result,
            "shape": self.shape,
            "standard": self.verdict.standard,
            "source": self.verdict.source,
            "columns": self.columns,
            "coverage": self.coverage,
            "first_step": self.first_step,
            "mean": self.mean,
            "grad_norm": self.grad_norm,
            "drift": self.drift,
            "self_noise": self.self_noise,
            "suspect": asdict(self.suspect),
            "suspects": [asdict(s) for s in self.suspects],
            "parts": [_plain(asdict(p)) for p in self.verdict.parts],
            "notes": list(self.verdict.messages),
        }


def _limits(limit: Limit | None) -> dict[str, Any]:
    if limit is None:
        return {"limit_abs": None, "limit_rel": None}
    return {"limit_abs": limit.absolute, "limit_rel": limit.relative}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _strict(value) for key, value in values.items()}


def _strict(value: Any) -> Any:
    """Return plain data; what is not finite becomes None (NaN) or the text inf."""
    if isinstance(value, dict):
        return _plain(value)
    if isinstance(value, (tuple, list)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def judge_curves(
    target: LossCurve,
    golden: LossCurve,
    *,
    noise: LossCurve | Sequence[LossCurve] | None = None,
    standard: str | CurveStandard = "mindformers",
    columns: Columns | None = None,
    sizes: Mapping[str, float] | None = None,
    micro_batches: MicroBatchMeans | None = None,
    lr_zero: tuple[LossCurve, LossCurve] | None = None,
    dtype: str = "bfloat16",
    layers: int = LAYERS,
) -> CurveVerdict:
    """Judge a loss curve against a golden one, over the steps that both have.

    Parameters
    ----------
    target, golden : LossCurve
        As ``telekit.accuracy.readers.losses`` reads them.
    noise : LossCurve or sequence of LossCurve, optional
        Further runs of the golden's own setup. Where two such runs differ by more than a limit, that is the limit.
    standard : str or CurveStandard
        A name of ``CURVE_STANDARDS``.
    columns : Columns, optional
        Which columns to compare, where the files do not use a usual name, and what to subtract first.
    sizes : mapping of str to float, optional
        ``tp cp dp ep tokens micro_batches`` …, to name a constant ratio.
    micro_batches : MicroBatchMeans, optional
        Of the first common step, to name a constant offset.
    lr_zero : (LossCurve, LossCurve), optional
        Target and golden once more with learning rate 0, to tell an update's fault from the forward pass's.
    dtype, layers : str, int
        Arithmetic and depth for the bound on the first gradient norm (``depth_bound``).

    Returns
    -------
    CurveVerdict

    Raises
    ------
    InputError
        No loss column, no common step, an unknown standard.
    """
    chosen = curve_standard(standard)
    runs = () if noise is None else (noise,) if isinstance(noise, LossCurve) else tuple(noise)
    errors = measure(target, golden, runs, columns)
    first, mean, norm, late = _limits_with_noise(chosen, errors)
    bound = None if errors.norm is None else depth_bound(0, dtype, layers=layers)
    zero = None if lr_zero is None else measure(*lr_zero, columns=columns)
    start = first or MINDFORMERS_FIRST
    plain = start if chosen.first is None else chosen.first, chosen.drift
    clues = Clues(errors, start, late, bound, norm, target, golden, plain, sizes or {}, micro_batches, zero)
    parts = [*rules.finite(errors), *rules.columns_part(errors), *rules.covered(errors)]
    parts += [rules.first_part(errors, first)] if first else []
    parts += [rules.mean_part(errors, mean)] if mean else []
    parts += (
        []
        if norm is None
        else rules.norm_parts(errors, norm, clues.first_norm, bound, f"{dtype} over {layers} layers")
    )
    if chosen.no_drift:
        parts += [rules.drift_part(errors, late), rules.outlier_part(errors, late), rules.spike_part(errors)]
    parts += rules.every_step(target, golden, errors, chosen)
    parts += [rules.length(errors, chosen)] if chosen.min_steps > 1 else []
    notes = [*errors.notes, *(str(note) for curve in (target, golden, *runs) for note in curve.notes)]
    if not chosen.verified:
        notes.append(f"{chosen.name}: the limit is remembered, not re-read at its source")
    verdict = conclude(parts, chosen.name, chosen.source, notes)
    return CurveVerdict(verdict, errors, first, mean, norm, suspects(clues), _shape(clues, verdict))


def _limits_with_noise(
    standard: CurveStandard, errors: CurveErrors
) -> tuple[Limit | None, Limit | None, float | None, Limit]:
    """Return the limits of first step, mean, norm and drift: the golden's self-noise where that is bigger."""
    first, mean, norm, late, noise = (
        standard.first,
        standard.mean,
        standard.norm,
        standard.drift,
        errors.noise,
    )
    if noise is None:
        return first, mean, norm, late
    if norm is not None and noise.norm_mre is not None:
        norm = max(norm, noise.norm_mre)
    return (
        first and first.raised(noise.first_abs, noise.first_rel), mean and mean.raised(noise.mae, noise.mre), norm,
        late.raised(noise.mae, noise.mre),
    )  # fmt: skip


def _shape(clues: Clues, verdict: Verdict) -> str:
    """Name the failure's shape by first step, mean, end and outliers."""
    errors, results = clues.errors, {p.name: p.result for p in verdict.parts}
    if results.get(FINITE) == ERROR or errors.mean is None:
        return LOST
    first, mean, late = clues.first_passes, clues.mean_passes, clues.end_passes
    if first and late and clues.jumps_out:
        return FEW
    if first and mean:
        return LATE if not late else GOOD if verdict.passed else BAD_OTHER
    return BAD_FIRST if mean else BAD_MEAN if first else BAD_BOTH
