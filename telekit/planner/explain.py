"""What a plan rests on, in words and in symbols: the integer program of this very case."""

from __future__ import annotations

from dataclasses import replace

from telekit.job import Job
from telekit.planner.integer_program import bottleneck_program
from telekit.planner.placing import stage_problem
from telekit.planner.stage_problem import by_kind


def program_text(job: Job, rows: int = 12) -> str:
    """Write out the integer program that puts this job's layers and recompute onto its stages.

    Parameters
    ----------
    job : Job
        Its layout's stages are what the program decides, so they are left open.
    rows : int
        At most so many rows of each group; the others are counted.
    """
    open_layout = job.layout.model_copy(update={"stages": "auto"})
    return bottleneck_program(by_kind(stage_problem(replace(job, layout=open_layout)))).text(rows)
