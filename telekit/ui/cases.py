"""Published runs as jobs, and answers beside what was published of them."""

from __future__ import annotations

from dataclasses import dataclass

from telekit import catalog
from telekit.cost.estimate import Estimate, estimate
from telekit.errors import InputError
from telekit.job import Job, load_job
from telekit.ui import charts
from telekit.ui.live import Still
from telekit.units import gib


def published(name: str) -> Job:
    """Return a published run as a job, by its name in ``data/jobs``."""
    return load_job(catalog.record("jobs", name)["job"])


@dataclass(frozen=True)
class Beside:
    """Estimates beside published numbers: rows of (what, estimate, published)."""

    title: str
    rows: tuple[tuple[str, float, float | None], ...]

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [
            (what, f"{mine:,.3g}", f"{theirs:,.3g}", f"{mine / theirs - 1:+.0%}")
            if theirs
            else (what, f"{mine:,.3g}", "not published", "")
            for what, mine, theirs in self.rows
        ]

    def __repr__(self) -> str:
        lines = [("", "telekit", "published", "off by"), *self._cells()]
        return "\n".join([self.title, *(f"{a:<28}{b:>9}{c:>15}{d:>8}".rstrip() for a, b, c, d in lines)])


def beside(name: str) -> Beside:
    """Estimate a published run and put the answer beside what was published of it."""
    record = catalog.record("jobs", name)
    found, said = valid_estimate(published(name)), record["published"]
    assert found.step_time_s is not None and found.model_tflops_per_device is not None
    rows = (
        ("step [s]", found.step_time_s, said.get("step_time_s")),
        ("TFLOP/s a device", found.model_tflops_per_device, said.get("model_tflops_per_device")),
        ("fullest device [GiB]", gib(found.peak_bytes), said.get("peak_gib")),
    )
    return Beside(record["title"], rows)


def valid_estimate(job: Job) -> Estimate:
    """Estimate a job.

    Raises
    ------
    InputError
        Every rule its layout breaks.
    """
    found = estimate(job)
    if found.problems:
        raise InputError(found.problems)
    return found


def memory_picture(job: Job) -> Still:
    """Draw the memory of a job's stages, without controls."""
    found = valid_estimate(job)
    return Still(charts.memory_by_stage(), charts.memory_rows(found), charts.memory_title(found))
