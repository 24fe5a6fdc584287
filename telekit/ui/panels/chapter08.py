"""Panels of chapter 8: one layout under a reader's hands, the planner, and SAPP's test case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from telekit import catalog
from telekit.cost.estimate import Estimate
from telekit.planner.sapp import Balance, balance, evaluate_sapp
from telekit.planner.stages import stage_times
from telekit.ui import charts
from telekit.ui.cases import valid_estimate
from telekit.ui.explorer import Explorer
from telekit.ui.live import Still
from telekit.ui.panels.choosing import case_controls, figures, job_of, layout_controls, listed, values_of
from telekit.ui.panels.planner import PlannerPanel


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
    """Placements of SAPP's test case, and what they take, in its own units (MB, and a time unit)."""

    placements: dict[str, Balance]

    def __repr__(self) -> str:
        lines = [f"{'':<34}{'step':>10}  no other plan is below"]
        for name, found in self.placements.items():
            proved = f"{found.proof.bound:,.0f}" if found.proof and found.proof.bound else "not its question"
            lines.append(f"{name:<34}{found.makespan:>10,.0f}  {proved}")
        return "\n".join(lines)


@cache
def sapp_case() -> SappCase:
    """Read SAPP's test case (96 equal layers on 16 stages), its published plan, and place it by the step."""
    layers, given = catalog.record("samples", "sapp-test"), catalog.record("samples", "sapp-test-plan")
    stages, micro_batches = given["stages"], given["micro_batches"]
    return SappCase(
        {
            "SAPP: the fastest slowest stage": evaluate_sapp(layers, given["plan"], micro_batches),
            "by simulation: the shortest step": balance(
                layers, stages, micro_batches, memory_mb=given["memory_mb"], time_limit_s=20.0
            ),
        }
    )


def sapp_picture() -> Still:
    """Draw the stages of SAPP's placement and of the shorter step."""
    placements = sapp_case().placements
    rows = []
    for name, found in placements.items():
        forward, backward = stage_times(found.problem, found.placement)
        times = (forward + backward).sum(axis=0)
        rows += [{"stage": i, "time": float(time), "placement": name} for i, time in enumerate(times)]
    old, new = placements.values()
    title = (
        f"The slowest stage grows ({old.bottleneck:,.0f} to {new.bottleneck:,.0f}), "
        f"the step shrinks ({old.makespan:,.0f} to {new.makespan:,.0f})"
    )
    return Still(charts.stage_times(list(placements)), {"stages": rows}, title)
