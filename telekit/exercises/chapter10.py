"""Tasks of chapter 10 and what they are checked against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.cluster.variability import slowest_of_machines
from telekit.cost.scaling import at_batch, scaling
from telekit.cost.scaling_failures import Failures, best_interval_s, job_mtbf_s, young_interval_s
from telekit.cost.scaling_run import HOUR_S, Run, whole_run
from telekit.errors import InputError
from telekit.exercises.check import Feedback, design, number
from telekit.validation.runs import published_runs

MINUTE_S = 60.0
TOKENS, DAYS, LARGEST_BATCH = 300e9, 10.0, 3072
DEVICE_MTBF_S, DOWN_S, STALL_S = 50_000 * HOUR_S, 25 * MINUTE_S, 30.0
"""The task's failures: of one device, until training goes on, and the stall of a checkpoint."""
DEVICES, BATCHES = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288), (768, 1536, 3072, 6144)
WITHIN = 1.01


def kept_speed(answer: float | None) -> Feedback:
    """Speed of a device at 12,288 over that at 3,072, of Megatron-LM's rows, in per cent."""
    want = 100 * (1466.8 / 12288) / (433.6 / 3072)
    return number(
        answer,
        want,
        unit="%",
        hint="Tokens a second of one device, there over here.",
        slips={
            "all devices together; there are four times as many": 400 * want / 100,
            "that is the gain in speed, of a possible 300 %": 100 * (1466.8 / 433.6 - 1),
            "that is what is lost": 100 - want,
            "upside down": 1e4 / want,
        },
    )


def bubble_of_a_large_batch(answer: float | None) -> Feedback:
    """Idle time of one step of four times the batch, less than that of four steps, in per cent."""
    steps = 4
    want = 100 * (1 - 1 / steps)
    return number(
        answer,
        want,
        unit="%",
        hint="A step idles (p - 1)/v times one micro-batch's time, however many micro-batches it has. How many steps?",
        slips={
            "that is what the paper says; it follows neither from times nor from shares": 87.5,
            "its own formulas give that, but 4(p-1)/(vm) is of one step, (p-1)/(4vm) of one four times as long": (
                100 * (1 - 1 / steps**2)
            ),
            "that is what is left": 100 / steps,
        },
    )


def slow_machines(answer: float | None) -> Feedback:
    """Longer step of 64 machines of which each is 10 % slower with a chance of 0.5 %, in per cent."""
    machines, share, slower = 64, 0.005, 0.1
    return number(
        answer,
        100 * (slowest_of_machines(machines, share, slower) - 1),
        unit="%",
        hint="All wait for the slowest. How likely is it that none of 64 is slow?",
        slips={
            "only where one is slow for certain": 100 * slower,
            "the mean of all machines; but they wait for the slowest": 100 * share * slower,
            "that is the chance that one is slow": 100 * (1 - (1 - share) ** machines),
            "two slow machines are not twice as slow as one": 100 * machines * share * slower,
        },
    )


def time_to_recover(answer: float | None) -> Feedback:
    """Longest time down after a failure for 90 % useful time: one failure in 3.09 h, 30 min a checkpoint, no stall."""
    mtbf, interval, rate = 54 * 24 * 60 / 419, 30.0, 0.9
    want = interval / (rate * math.expm1(interval / mtbf)) - mtbf
    return number(
        answer,
        want,
        rel=0.02,
        unit="minutes",
        hint="Solve the rate for the time down; work in minutes.",
        slips={
            "a failure also costs the work since the last checkpoint": mtbf / rate - mtbf,
            "a tenth of the time between failures leaves nothing for work that is lost": mtbf * (1 - rate),
            "that is to first order; this near the edge its error counts": (mtbf - interval / 2) / rate
            - mtbf,
        },
    )


def best_interval(answer: float | None) -> Feedback:
    """Best interval for a stall of 2 minutes and a failure in 4 hours; Young's rule is near enough."""
    failures = Failures(4 * HOUR_S, stall_s=2 * MINUTE_S)
    m, w = failures.mtbf_s / MINUTE_S, failures.stall_s / MINUTE_S
    assert young_interval_s(failures) / MINUTE_S == math.sqrt(2 * w * m) + w  # what rel lets pass
    return number(
        answer,
        best_interval_s(failures) / MINUTE_S,
        rel=0.045,
        unit="minutes",
        hint="Young: the square root of 2 w M.",
        slips={
            "half a cycle is lost on average, so there is a 2 under the root": math.sqrt(w * m),
            "minutes and hours under one root": math.sqrt(2 * w * m / 60),
            "half of the work is lost on average, not all of it": 2 * math.sqrt(w * m),
        },
    )


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A reader's run, priced."""

    devices: int
    global_batch: int
    interval_min: float
    run: Run


@cache
def planned(devices: int, global_batch: int, interval_min: float | None = None) -> Plan:
    """Price a plan; None takes the best interval.

    Raises
    ------
    InputError
        A batch that does not go onto so many devices, or an interval that the stall fills.
    """
    job = next(run.job for run in published_runs("megascale") if run.id == "megascale_megatron_6144_3072")
    point = scaling(at_batch(job, global_batch), [devices], simulate=False).points[0]
    failures = Failures(job_mtbf_s(DEVICE_MTBF_S, devices), recover_s=DOWN_S, stall_s=STALL_S)
    interval = best_interval_s(failures) if interval_min is None else interval_min * MINUTE_S
    return Plan(devices, global_batch, interval / MINUTE_S, whole_run(point, TOKENS, failures, interval))


@cache
def cheapest() -> Plan:
    """Return the plan of fewest device-hours that keeps both limits."""
    found = []
    for devices in DEVICES:
        for batch in BATCHES:
            try:
                plan = planned(devices, batch)
            except InputError:
                continue
            if batch <= LARGEST_BATCH and plan.run.days <= DAYS:
                found.append(plan)
    return min(found, key=lambda plan: plan.run.device_hours)


def run_plan(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a plan of a whole run: devices, batch, interval between checkpoints."""

    def small(plan: Plan) -> bool | str:
        return plan.global_batch <= LARGEST_BATCH or f"a step takes {plan.global_batch:,} sequences"

    def timely(plan: Plan) -> bool | str:
        run = plan.run
        return run.days <= DAYS or f"it takes {run.days:.1f} days, {run.effective_rate:.1%} of them useful"

    def cheap(plan: Plan) -> bool | str:
        ratio = plan.run.device_hours / cheapest().run.device_hours
        return ratio <= WITHIN or f"it takes {ratio:.3f} times the device-hours of the cheapest"

    fields = ("devices", "global_batch", "interval_min")
    if answer is None:
        return design(None, (), 'Such as {"devices": 1024, "global_batch": 768, "interval_min": 60}.')
    if not isinstance(answer, Mapping) or set(answer) != set(fields):
        return Feedback(False, "Write devices, global_batch and interval_min.")
    for name, options in (("devices", DEVICES), ("global_batch", BATCHES)):
        if isinstance(answer[name], bool) or answer[name] not in options:
            return Feedback(False, f"{name} is one of {', '.join(f'{option:,}' for option in options)}.")
    minutes = answer["interval_min"]
    if isinstance(minutes, bool) or not isinstance(minutes, (int, float)) or not 0 < minutes < 1e5:
        return Feedback(False, "interval_min is a number of minutes above 0.")
    try:
        plan = planned(answer["devices"], answer["global_batch"], float(minutes))
    except InputError as error:
        return Feedback(False, f"It must run: {'; '.join(str(p) for p in error.problems)}.")
    return design(
        plan,
        (
            (f"A batch of at most {LARGEST_BATCH:,} sequences", small),
            (f"Done within {DAYS:g} days", timely),
            (f"Within {WITHIN - 1:.0%} of the fewest device-hours", cheap),
        ),
    )
