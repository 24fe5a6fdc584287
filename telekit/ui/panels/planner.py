"""The planning panel: pick a case, press Plan, compare the layouts found, take one away."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.cost.estimate import Estimate
from telekit.errors import InputError
from telekit.job import Job
from telekit.launch import megatron, mindformers
from telekit.layout.config import SCHEDULES
from telekit.planner.search import Plan, RankedPlan, plan
from telekit.ui import charts
from telekit.ui.cases import published, valid_estimate
from telekit.ui.controls import pick
from telekit.ui.explorer import Panel, panel
from telekit.ui.live import LiveChart
from telekit.ui.panels.choosing import case_controls, figures, job_of, values_of
from telekit.ui.task import Progress, Task
from telekit.units import format_seconds

PUBLISHED = "published"
SEARCHED = {"1F1B, interleaved": ""} | {name: name for name in SCHEDULES}
TABS = ("Job", "Megatron-LM", "MindFormers", "Integer program", "Assumptions")


class PlannerPanel(Panel):
    """Controls of a case, a search behind a button, and what it found.

    It begins with the published layout of its case, so that there is something to compare with. ``set`` moves
    controls and searches nothing; ``start`` and ``wait`` do, ``choose`` shows one plan, ``plan`` holds the answer.

    Parameters
    ----------
    start : str
        Published run to begin with, a name in ``data/jobs``.
    top : int
        Plans to show.
    time_limit_s : float
        Time for placing layers, in seconds.
    """

    def __init__(self, start: str, top: int = 5, time_limit_s: float = 15.0) -> None:
        controls = case_controls(start) | {"schedule": pick("schedule", SEARCHED, "")}
        super().__init__("Let the planner search", controls)
        self.plan: Plan | None = None
        self._top, self._time_limit_s = top, time_limit_s
        self._planned = self._asked = self.values
        self._published: Estimate | None = valid_estimate(published(start))
        self.task = Task(self._search, self._found, "Plan")
        self.choice = W.ToggleButtons(options=[PUBLISHED], description="show plan")
        self.choice.style.button_width = "auto"
        self.status, self.about = W.HTML(), W.HTML()
        self.tabs = W.Tab([W.HTML() for _ in TABS], titles=TABS, layout=W.Layout(width="100%"))
        for page in self.tabs.children:
            page.add_class("telekit-text")
        rows = self._all_rows()
        above = [LiveChart(chart, rows) for chart in (charts.plan_ranking(), charts.rejections())]
        below = [LiveChart(chart, rows) for chart in (charts.memory_by_stage(), charts.step_breakdown())]
        self.views = (*above, *below)
        self.controls["start"].observe(self._restarted, "value")
        self.choice.observe(self._chosen, "value")
        work = [self.task.button, self.task.halt, self.task.bar, self.task.note]
        bands = (work, [self.status], above, [self.choice], [self.about], below, [self.tabs])
        self.box = panel(self.title, list(self.controls.values()), *bands)
        self._show()

    @property
    def text(self) -> str:
        """What the panel says above its charts, as HTML."""
        return f"{self.status.value}{self.about.value}"

    @property
    def job(self) -> Job:
        """The case that the controls describe, its layout left open."""
        return job_of(self.values)

    def start(self) -> PlannerPanel:
        """Press the button."""
        self.task.start()
        return self

    def wait(self, timeout_s: float | None = None) -> Plan | None:
        """Wait for the search; return what it found."""
        found: Plan | None = self.task.wait(timeout_s)
        return found

    def choose(self, which: str) -> PlannerPanel:
        """Show one plan, by its rank ("1" is the best), or the published layout."""
        self.choice.value = which
        return self

    def _search(self, progress: Progress) -> Plan:
        self._asked = self.values  # the reader may move controls meanwhile
        job = job_of(self._asked)
        found = plan(job, top=self._top, time_limit_s=self._time_limit_s, progress=progress)
        _ = found.best  # raises, and says why, when nothing fits
        return found

    def _found(self, found: Plan) -> None:
        self.plan, self._planned = found, self._asked
        start = str(self._planned["start"])
        known = self._planned == self._values_of(start) | {"schedule": self._planned["schedule"]}
        self._published = valid_estimate(published(start)) if known else None
        ranks = [str(rank) for rank in range(1, len(found.plans) + 1)]
        self.choice.options = [*ranks, PUBLISHED] if known else ranks
        self.choice.value = "1"
        self._show()

    def _values_of(self, start: str) -> dict[str, Any]:
        """Return the controls' values for a published run."""
        known = values_of(start) | {"schedule": ""}
        return {name: known[name] for name in self.controls}

    def _restarted(self, change: Any) -> None:
        self.set(**self._values_of(change.new))

    def _follow(self) -> None:
        """Say at once when the case makes no sense, and fade answers that belong to another case."""
        _ = self.job  # raises, and says why, when the case is broken
        self.status.value = self._summary()
        self._fade()

    def _fade(self) -> None:
        stale = self.values != self._planned
        for view in self.views:
            view.stale = stale
        for part in (self.status, self.about, self.choice, self.tabs):
            (part.add_class if stale else part.remove_class)("telekit-stale")

    def _chosen(self, _change: Any) -> None:
        if self.choice.value is not None:
            self._show()

    @property
    def shown(self) -> RankedPlan | Estimate:
        """The plan, or the published layout, whose stages are drawn."""
        if self.choice.value == PUBLISHED and self._published is not None:
            return self._published
        assert self.plan is not None
        return self.plan.plans[int(self.choice.value) - 1]

    def _estimate(self) -> Estimate:
        return self.shown.estimate if isinstance(self.shown, RankedPlan) else self.shown

    def _all_rows(self) -> charts.Tables:
        found = self._estimate()
        plans = [(f"{i}. {charts.layout_name(p.layout)}", p.estimate) for i, p in enumerate(self._plans(), 1)]
        if self._published is not None:
            plans.append((f"published: {charts.layout_name(self._published.job.layout)}", self._published))
        rejected = self.plan.rejected if self.plan else {}
        return (
            charts.ranking_rows(plans)
            | charts.rejection_rows(rejected)
            | charts.memory_rows(found)
            | charts.step_rows(found.breakdown_s or {})
        )

    def _plans(self) -> tuple[RankedPlan, ...]:
        return self.plan.plans if self.plan else ()

    def _show(self) -> None:
        found = self._estimate()
        rows, said = self._all_rows(), self._titles(found)
        for view, title in zip(self.views, said, strict=True):
            view.show(rows, title, lay_out=True)
        self.views[1].layout.display = "" if rows["rejected"] else "none"
        self.status.value = self._summary()
        self.about.value = f"{figures(found)}{self._proof()}"
        for page, text in zip(self.tabs.children, self._pages(found), strict=True):
            page.value = text
        self._fade()

    def _titles(self, found: Estimate) -> list[str]:
        if self.plan is None:
            return ["The published layout; press Plan to compare", "", *charts.estimate_titles(found)]
        best = f"The best plan found takes {format_seconds(self.plan.best.step_time_s)} a step"
        if self._published is not None and self._published.step_time_s is not None:
            best += f"; the published layout is estimated at {format_seconds(self._published.step_time_s)}"
        rejected = self.plan.rejected
        most = max(rejected, key=lambda reason: rejected[reason], default="none")
        return [best, f"The rule that strikes out most layouts: {most}", *charts.estimate_titles(found)]

    def _summary(self) -> str:
        if self.plan is None:
            return ""
        bound = self.plan.search_bound_s
        limit = f" No layout of this search can take less than {format_seconds(bound)}." if bound else ""
        tie = (
            " The first two are a tie, as far as this model can rank."
            if self.plan.told_apart is False
            else ""
        )
        name = html.escape(str(self._planned["model"]))
        searched = f"{self.plan.searched:,} layouts searched, {self.plan.valid:,} are valid and fit"
        return f"{name}: {searched}.{limit}{tie}"

    def _proof(self) -> str:
        if not isinstance(self.shown, RankedPlan):
            return ""
        proof = self.shown.proof
        if proof.status == "unknown":
            said = "Its layers are spread evenly; nothing is proved about it"
        elif proof.status == "optimal":
            said = f"Placement of its layers: proved, no other has a shorter {proof.objective} in this model"
        else:
            gap = f", at most {proof.gap:.1%} longer than the shortest" if proof.gap else ""
            said = f"Placement of its layers: {proof.status}{gap}"
        return f"<span class='telekit-soft'>{html.escape(said)}.</span>"

    def _pages(self, found: Estimate) -> list[str]:
        program = "No integer program was solved for this layout: its layers are not placed by the planner."
        if isinstance(self.shown, RankedPlan) and self.shown.proof.status != "unknown":
            program = self.shown.program()
        wrapped = f"<pre class='telekit-wrap'>{html.escape(found.job.to_yaml())}</pre>"
        texts = [f"<pre>{html.escape(text)}</pre>" for text in (*_launch(found.job), program)]
        items = "".join(f"<li>{html.escape(line)}</li>" for line in found.assumptions)
        return [wrapped, *texts, f"<ul>{items}</ul>"]


def _launch(job: Job) -> tuple[str, str]:
    """Launch files of a job; what one cannot express is said in its place."""
    texts = []
    for write in (megatron.arguments, mindformers.config):
        try:
            texts.append(write(job))
        except InputError as error:
            texts.append(str(error))
    return texts[0], texts[1]
