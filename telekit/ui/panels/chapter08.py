"""Panels of chapter 8: one layout under a reader's hands, the planner, and SAPP's test case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from telekit import catalog
from telekit.cost.estimate import Estimate
from telekit.planner.stages import (
    EndLoad,
    LayerType,
    Placement,
    RecomputeOption,
    StageProblem,
    peak_memory,
    simulated_makespan,
    stage_times,
)
from telekit.ui import charts
from telekit.ui.cases import valid_estimate
from telekit.ui.explorer import Explorer
from telekit.ui.live import Still
from telekit.ui.panels.choosing import case_controls, figures, job_of, layout_controls, listed, values_of
from telekit.ui.panels.planner import PlannerPanel

MIXTRAL = {
    "model": "mixtral-8x7b",
    "cluster": {"device": "h100", "devices": 64},
    "train": {"seq_len": 4096, "global_batch": 512},
}
OBJECTIVES = {
    "first": "Not always: the steady part is shorter, but the pipeline also fills and drains, through every stage.",
    "second": "Not always: with many micro-batches the slowest stage sets the pace, and filling hardly counts.",
    "depends": "Right: the step is about the sum of all stages and m - 1 times the slowest; m decides.",
}


def layout_explorer(start: str = "deepseek-v3-h800-2048") -> Explorer:
    """Lay one model out on one cluster by hand: memory of each stage, time of each part of a step."""
    controls = case_controls(start) | layout_controls(start)
    explorer = Explorer(
        controls,
        [charts.memory_by_stage(), charts.step_breakdown()],
        lambda **values: _rows(_estimate(values)),
        lambda **values: _readout(_estimate(values)),
        lambda **values: charts.estimate_titles(_estimate(values)),
        title="Lay a model out by hand",
    )
    controls["start"].observe(lambda change: explorer.set(**values_of(change.new)), "value")
    return explorer


def planner(start: str = "deepseek-v3-h800-2048", top: int = 5, time_limit_s: float = 15.0) -> PlannerPanel:
    """Search for the layouts of a case, behind a button."""
    return PlannerPanel(start, top, time_limit_s)


def _estimate(values: Mapping[str, Any]) -> Estimate:
    return _estimated(tuple(values.items()))


@lru_cache(maxsize=8)
def _estimated(items: tuple[tuple[str, Any], ...]) -> Estimate:
    """Estimate once what one move asks for three times (rows, readout, titles)."""
    return valid_estimate(job_of(dict(items)))


def _rows(found: Estimate) -> charts.Tables:
    return charts.memory_rows(found) | charts.step_rows(found.breakdown_s or {})


def _readout(found: Estimate) -> str:
    job = found.job
    split = f"dp {job.layout.dp}, {job.micro_batches} micro-batches a step"
    return f"{figures(found)}<span class='telekit-soft'>{split}</span>{listed(found)}"


@dataclass(frozen=True)
class SappCase:
    """SAPP's test case, and what two placements of it take, in its own units (MB, and a time unit)."""

    problem: StageProblem
    placements: dict[str, Placement]

    def times(self, name: str) -> list[float]:
        """Time of one micro-batch on each stage of one placement."""
        forward, backward = stage_times(self.problem, self.placements[name])
        return [float(time) for time in (forward + backward).sum(axis=0)]

    def figures(self, name: str) -> tuple[float, float, float]:
        """Slowest stage, simulated step and fullest stage of one placement."""
        placement = self.placements[name]
        fullest = float(peak_memory(self.problem, placement).max())
        return max(self.times(name)), simulated_makespan(self.problem, placement), fullest

    def __repr__(self) -> str:
        lines = [f"{'':<34}{'slowest stage':>14}{'step':>10}{'fullest [MB]':>14}"]
        for name in self.placements:
            slowest, step, fullest = self.figures(name)
            lines.append(f"{name:<34}{slowest:>14,.0f}{step:>10,.0f}{fullest:>14,.0f}")
        return "\n".join(lines)


def sapp_case() -> SappCase:
    """Read SAPP's test case: 96 equal layers on 16 stages, and two placements of them."""
    record = catalog.record("samples", "sapp-test")
    body, coefficient = record["body"], record["body"]["recompute_coef"]
    options = (
        RecomputeOption("none", 0.0, body["activation"]),
        RecomputeOption("full", coefficient * 2.0 * body["time"], body["recomputed"]),
    )
    layers = LayerType("body", body["layers"], body["time"], 2.0 * body["time"], body["parameter"], options)
    head, tail = (
        EndLoad(record[end]["time"], 2.0 * record[end]["time"], record[end]["memory"])
        for end in ("head", "tail")
    )
    problem = StageProblem(
        (layers,),
        record["stages"],
        micro_batches=record["micro_batches"],
        head=head,
        tail=tail,
        memory_cap_bytes=record["memory_mb"],
    )
    return SappCase(problem, {name: _placement(rows) for name, rows in record["placements"].items()})


def _placement(rows: Mapping[str, list[int]]) -> Placement:
    full = tuple(rows["recomputed"])
    kept = tuple(n - f for n, f in zip(rows["layers"], full, strict=True))
    return Placement((((kept,), (full,)),))


def sapp_picture() -> Still:
    """Draw the stages of SAPP's placement and of the shorter step."""
    case = sapp_case()
    rows = [
        {"stage": stage, "time": time, "placement": name}
        for name in case.placements
        for stage, time in enumerate(case.times(name))
    ]
    (fast, long, _), (slow, short, _) = (case.figures(name) for name in case.placements)
    title = f"The slowest stage grows ({fast:,.0f} to {slow:,.0f}), the step shrinks ({long:,.0f} to {short:,.0f})"
    return Still(charts.stage_times(list(case.placements)), {"stages": rows}, title)
