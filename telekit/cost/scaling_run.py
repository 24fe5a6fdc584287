"""What a whole run takes: days, device-hours and money, by what the time goes into."""

from __future__ import annotations

import math
from dataclasses import dataclass

from telekit.cost.scaling import PARTS, Point
from telekit.cost.scaling_failures import Failures, time_shares
from telekit.errors import InputError, Problem

HOUR_S, DAY_S = 3600.0, 86400.0
BEYOND = ("checkpoints", "lost", "down")
"""What a run takes beside its steps: stalls for checkpoints, work done twice, standing still after a failure."""


@dataclass(frozen=True)
class Run:
    """A whole run: ``hours`` are device-hours by part of a step, and by :data:`BEYOND`; they sum to all of it."""

    devices: int
    tokens: float
    steps: int
    hours: dict[str, float]

    @property
    def device_hours(self) -> float:
        """Hours times devices, of everything."""
        return sum(self.hours.values())

    @property
    def days(self) -> float:
        """From the first step to the end of the last."""
        return self.device_hours / self.devices * HOUR_S / DAY_S

    @property
    def effective_rate(self) -> float:
        """Time of steps that count over all time."""
        return 1 - sum(self.hours[name] for name in BEYOND) / self.device_hours

    def price(self, per_device_hour: float) -> float:
        """Cost at a price of one device-hour, in its currency."""
        return self.device_hours * per_device_hour


def whole_run(
    point: Point, tokens: float, failures: Failures | None = None, interval_s: float | None = None
) -> Run:
    """Train so many tokens at one point of a scaling curve.

    The last step counts whole. Warm-up of the batch, evaluation and restarts by hand are not in it.

    Parameters
    ----------
    point : Point
        The step.
    tokens : float
        Of the whole run.
    failures, interval_s
        How often the job fails, and how often it writes a checkpoint; None: it never fails.

    Raises
    ------
    InputError
        No tokens, or failures without an interval.
    """
    problems = [] if 0 < tokens < math.inf else [Problem("tokens", tokens, "must be above 0")]
    if failures is not None and interval_s is None:
        problems.append(Problem("interval_s", None, "say how often a checkpoint is written"))
    if problems:
        raise InputError(problems)
    steps = math.ceil(tokens / point.tokens)
    hours = {name: steps * point.devices * point.parts[name] / HOUR_S for name in PARTS}
    beyond = dict.fromkeys(BEYOND, 0.0)
    if failures is not None and interval_s is not None:
        shares = time_shares(interval_s, failures)
        useful = sum(hours.values())
        beyond = {name: useful * getattr(shares, name) / shares.useful for name in BEYOND}
    return Run(point.devices, tokens, steps, hours | beyond)
