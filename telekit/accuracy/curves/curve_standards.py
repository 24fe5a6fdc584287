"""Standards for loss curves: what each limits, and who says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from telekit.errors import bad

LOSS_METRIC = "loss"


@dataclass(frozen=True)
class Limit:
    """An error passes below ``absolute``, or below ``relative``; None where the standard has no such limit.

    ``inclusive``: an error of exactly the limit passes.
    """

    absolute: float | None = None
    relative: float | None = None
    inclusive: bool = False

    def passes(self, absolute: float, relative: float) -> bool:
        """Whether either error is within its limit; a NaN is not."""
        pairs = ((absolute, self.absolute), (relative, self.relative))
        return any(
            limit is not None and (error < limit or (self.inclusive and error == limit))
            for error, limit in pairs
        )

    def raised(self, absolute: float, relative: float) -> Limit:
        """Return the limit where noise is bigger: then the noise is the limit, and noise itself passes."""
        one = self.absolute is not None and absolute >= self.absolute
        two = self.relative is not None and relative >= self.relative
        if not one and not two:
            return self
        return Limit(absolute if one else self.absolute, relative if two else self.relative, inclusive=True)

    def __str__(self) -> str:
        """``< 0.005 or < 0.5 %``."""
        sign = "<=" if self.inclusive else "<"
        parts = [] if self.absolute is None else [f"{sign} {self.absolute:.6g}"]
        parts += [] if self.relative is None else [f"{sign} {self.relative * 100:.6g} %"]
        return " or ".join(parts)


@dataclass(frozen=True)
class EveryStep:
    """A rule for each step of one metric.

    Attributes
    ----------
    relative, absolute : float
        A step passes if ``|target - golden| <= absolute + relative * |golden|``; both 0: exactly equal.
    bad_steps : bool
        Whether ``allowed_bad_steps`` steps may fail.
    steady : bool
        Only the median of the steady steps is judged (``STEADY``): for times.
    smoothing : float
        Weight of the past in an exponential moving average of both curves, taken first; 0 for none.
    strict : bool
        ``<`` instead of ``<=``.
    """

    relative: float = 0.0
    absolute: float = 0.0
    bad_steps: bool = False
    steady: bool = False
    smoothing: float = 0.0
    strict: bool = False

    def __str__(self) -> str:
        """In words."""
        if not self.relative and not self.absolute:
            return "every step equal"
        sign = "<" if self.strict else "<="
        size = f"{self.relative * 100:g} %" if self.relative else f"{self.absolute:g}"
        what = "median of the steady steps" if self.steady else "every step"
        return f"{what} {sign} {size}" + (" but for the allowed bad steps" if self.bad_steps else "")


def allowed_bad_steps(steps: int) -> int:
    """Return how many steps Megatron-LM's approximate tests let fail: 1 in 100, at least 1, at most 50."""
    return min(max(steps // 100, 1), 50)


def steady(last_step: int) -> range:
    """Return the steps whose median time Megatron-LM's tests judge."""
    return range(5, 21) if last_step <= 25 else range(30, 46)


@dataclass(frozen=True)
class CurveStandard:
    """Limits on a pair of loss curves.

    Attributes
    ----------
    first, mean : Limit or None
        On the loss of the first common step, and on the mean over the common steps (mean absolute, mean relative).
    norm : float or None
        Largest mean relative error of the gradient's global norm.
    every : mapping of str to EveryStep
        By metric; ``loss`` is the loss whatever the file calls it. A metric that both files lack is left out.
    no_drift : bool
        Whether the error must stay around 0.
    min_steps, steps : int
        How many steps the standard asks for at least, and by default.
    verified : bool
        False where the number is remembered, not re-read at its source.
    """

    name: str
    source: str
    first: Limit | None = None
    mean: Limit | None = None
    norm: float | None = None
    every: Mapping[str, EveryStep] = field(default_factory=dict)
    no_drift: bool = False
    min_steps: int = 1
    steps: int = 1
    verified: bool = True

    @property
    def drift(self) -> Limit:
        """Beyond which a lasting difference counts: the mean's limit, MindFormers' where there is none."""
        return self.mean or MINDFORMERS_MEAN


MINDFORMERS_FIRST, MINDFORMERS_MEAN = Limit(0.005, 0.005), Limit(0.01, 0.01)
MEGATRON = "NVIDIA/Megatron-LM d98e8a64, tests/functional_tests/python_test_utils"
_APPROXIMATE = {
    LOSS_METRIC: EveryStep(relative=0.05, bad_steps=True),
    "mtp_1 loss": EveryStep(relative=0.05, bad_steps=True),
    "num-zeros": EveryStep(relative=0.20, bad_steps=True),
}
_COST = {
    "mem-allocated-bytes": EveryStep(relative=0.05, bad_steps=True),
    "mem-max-allocated-bytes": EveryStep(relative=0.05, bad_steps=True),
    "iteration-time": EveryStep(relative=0.05, steady=True),
}
_EXACT = {name: EveryStep() for name in _APPROXIMATE}
_MINDFORMERS = CurveStandard(
    "mindformers",
    "mindspore-ai/docs, MindFormers precision_optimization.md",
    first=MINDFORMERS_FIRST,
    mean=MINDFORMERS_MEAN,
    norm=0.10,
    no_drift=True,
    min_steps=1000,
    steps=5000,
)
_ALL = (
    _MINDFORMERS,
    CurveStandard(
        "msprobe-guide",
        "Ascend/msprobe, training accuracy guide: first step or long-run mean relative error > 1 % is misaligned",
        first=Limit(None, 0.01, inclusive=True),
        mean=Limit(None, 0.01, inclusive=True),
    ),
    CurveStandard(
        "megatron-deterministic",
        f"{MEGATRON}: common.py, DeterministicTest, lm loss and num-zeros",
        every=_EXACT,
    ),
    CurveStandard(
        "megatron-approximate",
        f"{MEGATRON}: common.py, ApproximateTest, lm loss and num-zeros",
        every=_APPROXIMATE,
    ),
    CurveStandard(
        "megatron-approximate-with-cost",
        f"{MEGATRON}: the same, with memory and iteration time",
        every=_APPROXIMATE | _COST,
    ),
    CurveStandard(
        "deepseek-fp8",
        "DeepSeek-V3, arXiv 2412.19437: FP8 against BF16, relative loss error below 0.25 % (from memory; there of "
        "curves smoothed by a moving average of 0.9)",
        every={LOSS_METRIC: EveryStep(relative=0.0025, smoothing=0.9, strict=True)},
        verified=False,
    ),
    CurveStandard(
        "mindformers-checker",
        "mindspore-lab/mindformers, TrainingChecker: loss_error 1e-3 at every step",
        every={LOSS_METRIC: EveryStep(absolute=1e-3)},
    ),
)
CURVE_STANDARDS = {s.name: s for s in _ALL}


def curve_standard(name: str | CurveStandard) -> CurveStandard:
    """Return a standard by name, or one of one's own as it is.

    Raises
    ------
    InputError
        No standard of that name; all are named.
    """
    if isinstance(name, CurveStandard):
        return name
    if name not in CURVE_STANDARDS:
        raise bad("standard", name, "is no standard for loss curves", f"one of {', '.join(CURVE_STANDARDS)}")
    return CURVE_STANDARDS[name]
