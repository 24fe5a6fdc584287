"""Design problems about layouts: the reader's layout is estimated, and compared with what the planner finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from telekit.cost.estimate import Estimate, estimate
from telekit.errors import InputError
from telekit.exercises.check import Feedback, design
from telekit.job import Job, load_job
from telekit.units import format_seconds, gib


def layout(
    answer: Mapping[str, Any] | None, job: Job, within: float = 1.1, time_limit_s: float = 5.0
) -> Feedback:
    """Check a layout that a reader designed for a job.

    Parameters
    ----------
    answer : mapping or None
        Fields of a layout, by the names of a job's ``layout`` section.
    job : Job
        Model, cluster and training; its own layout does not matter.
    within : float
        The step may take so many times as long as the planner's best.
    time_limit_s : float
        Time the planner may take; it runs only when the layout is valid and fits.
    """

    def fits(found: Estimate) -> bool | str:
        over = gib(found.peak_bytes - found.capacity_bytes)
        return found.fits or f"the fullest device misses {over:.1f} GiB"

    def fast(found: Estimate) -> bool | str:
        from telekit.planner.search import plan

        best = plan(job, top=1, time_limit_s=time_limit_s).best.step_time_s
        assert found.step_time_s is not None
        ratio = found.step_time_s / best
        said = f"a step takes {format_seconds(found.step_time_s)}, {ratio:.2f} times the planner's best"
        return ratio <= within or said

    if answer is None:
        return design(None, (), 'Give a layout, such as {"tp": 8, "pp": 4, "micro_batch": 1}.')
    try:
        found = estimated(answer, job)
    except InputError as error:
        return Feedback(False, f"It must be valid: {'; '.join(str(p) for p in error.problems)}.")
    return design(
        found, (("It must fit", fits), (f"It must come within {within - 1:.0%} of the planner", fast))
    )


def estimated(answer: Mapping[str, Any], job: Job) -> Estimate:
    """Estimate a job under another layout.

    Raises
    ------
    InputError
        Every rule the layout breaks.
    """
    sections = {name: section for name, section in job.to_dict().items() if name != "layout"}
    found = estimate(load_job(sections | {"layout": dict(answer)}))
    if found.problems:
        raise InputError(found.problems)
    return found
