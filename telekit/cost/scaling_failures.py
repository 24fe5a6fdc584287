"""What failures and checkpoints leave of a long run: a renewal process, exact, and its first-order forms.

Work goes on in cycles of ``interval``: useful steps, and a stall in which a checkpoint is written. Failures come at
random with a mean time between them (exponential, none while the job is down); a failure costs all work since the last
checkpoint, and then the time to notice and to start again. A cycle of length c ends when c passes without a failure, so
it takes (M + D + R)(exp(c/M) - 1) on average (Daly 2006, doi 10.1016/j.future.2004.11.016, equation 13 with restarts
that do not fail).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from telekit.errors import InputError, Problem, bad


@dataclass(frozen=True)
class Failures:
    """How often a job fails, and what that costs; seconds.

    Parameters
    ----------
    mtbf_s : float
        Mean time between failures of the *whole job* while it runs (M).
    detect_s, recover_s : float
        From a failure until it is noticed (D), and from there until training goes on (R).
    stall_s : float
        Training stands still so long for each checkpoint (w).
    """

    mtbf_s: float
    detect_s: float = 0.0
    recover_s: float = 0.0
    stall_s: float = 0.0

    def __post_init__(self) -> None:
        problems = [] if 0 < self.mtbf_s < math.inf else [Problem("mtbf_s", self.mtbf_s, "must be above 0")]
        for name in ("detect_s", "recover_s", "stall_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                problems.append(Problem(name, value, "must be 0 or more"))
        if problems:
            raise InputError(problems)

    @property
    def down_s(self) -> float:
        """Time that a failure costs besides lost work."""
        return self.detect_s + self.recover_s


@dataclass(frozen=True)
class TimeShares:
    """Where the wall time of a long run goes; shares that sum to 1."""

    useful: float
    checkpoints: float
    lost: float
    down: float


def job_mtbf_s(device_mtbf_s: float, devices: int) -> float:
    """Mean time between failures of a job whose devices each fail independently, at random: that of one over all."""
    if devices < 1 or not device_mtbf_s > 0:
        raise bad("device_mtbf_s", device_mtbf_s, "must be above 0, of at least one device")
    return device_mtbf_s / devices


def time_shares(interval_s: float, failures: Failures) -> TimeShares:
    """Split the wall time of a run that writes a checkpoint every ``interval_s``, its stall included.

    ``useful`` is the effective training time rate. All of it exact for the process of this module.

    Raises
    ------
    InputError
        An interval that is not longer than the stall, or a thousand times the time between failures.
    """
    _check(interval_s, failures)
    m = failures.mtbf_s
    failed = math.expm1(interval_s / m)  # failures of a cycle, on average
    whole = (m + failures.down_s) * failed
    return TimeShares(
        (interval_s - failures.stall_s) / whole,
        failures.stall_s / whole,
        (m * failed - interval_s) / whole,
        failures.down_s * failed / whole,
    )


def effective_rate(interval_s: float, failures: Failures) -> float:
    """Give the useful share of the wall time (MegaScale's effective training time rate), exact."""
    return time_shares(interval_s, failures).useful


def first_order_rate(interval_s: float, failures: Failures) -> float:
    """Give the useful share to first order in c/M: (1 - w/c)(M - c/2)/(M + D + R).

    Too small by about (c/M)^2 / 12 of it; of no use once the interval nears the time between failures.
    """
    _check(interval_s, failures)
    m, c = failures.mtbf_s, interval_s
    return (1 - failures.stall_s / c) * (m - c / 2) / (m + failures.down_s)


def _check(interval_s: float, failures: Failures) -> None:
    if not failures.stall_s < interval_s:
        rule = f"must be longer than the stall of {failures.stall_s:g} s that it contains"
        raise bad("interval_s", interval_s, rule, f"{2 * failures.stall_s or 1:g} would work")
    if interval_s > 500 * failures.mtbf_s:
        rule = f"must not exceed 500 times the time between failures, {failures.mtbf_s:g} s: it never ends"
        raise bad("interval_s", interval_s, rule)


def best_interval_s(failures: Failures) -> float:
    """Interval, its stall included, that leaves most useful time: c/M = x with x + exp(-x) - 1 = w/M.

    Neither noticing nor restarting moves it. Infinite nowhere: 0 where checkpoints cost nothing.
    """
    ratio = failures.stall_s / failures.mtbf_s
    low, high = 0.0, ratio + 1.0 + math.sqrt(2 * ratio)
    for _ in range(200):  # x + exp(-x) - 1 grows with x
        middle = (low + high) / 2
        low, high = (middle, high) if middle + math.expm1(-middle) < ratio else (low, middle)
    return failures.mtbf_s * high


def young_interval_s(failures: Failures) -> float:
    """Young's interval with the stall: sqrt(2 w M) of work, and w (Young 1974, doi 10.1145/361147.361115)."""
    return math.sqrt(2 * failures.stall_s * failures.mtbf_s) + failures.stall_s


def daly_interval_s(failures: Failures) -> float:
    """Daly's higher order: work of sqrt(2wM) (1 + sqrt(w/2M)/3 + w/18M) - w, and the stall; M where w is 2M or more."""
    w, m = failures.stall_s, failures.mtbf_s
    if w >= 2 * m:
        return m + w
    return math.sqrt(2 * w * m) * (1 + math.sqrt(w / (2 * m)) / 3 + w / (18 * m))
