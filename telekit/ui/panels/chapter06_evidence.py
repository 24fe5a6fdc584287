"""Panels of chapter 6 on evidence: what the report's gain hangs on, and a reader's own measurements."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.cluster.curves import bus_factor
from telekit.comm.expert_links import ExpertLinks
from telekit.cost.dispatch_gain import steps_s
from telekit.ui import evidence as charts
from telekit.ui import known_communication as known
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_communication import GATHERED, Case
from telekit.ui.own_log import LOGS, Measured, measured
from telekit.ui.panels.apart import figures_line
from telekit.units import format_seconds

# --- the study ----------------------------------------------------------------------------------------------

EFFICIENCIES = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def study_explorer() -> Explorer:
    """Hold the frozen study's answer against the claim, and move the assumptions that matter most."""
    base = known.study().study.base
    controls: dict[str, W.Widget] = {
        "hierarchical": pick(
            "form", {"AllGather form": GATHERED, "two hops (deepep)": "deepep"}, base["hierarchical"]
        ),
        "overlap_moe_comm": pick(
            "overlapped", {"no": False, "yes, both forms": True}, base["overlap_moe_comm"]
        ),
        "expert_imbalance": slide("imbalance", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], base["expert_imbalance"]),
        "network_efficiency": slide("network gets", EFFICIENCIES[1:], base["network_efficiency"]),
        "node_efficiency": slide("node gets", EFFICIENCIES, base["node_efficiency"]),
        "gemm_efficiency": slide("GEMM gets", EFFICIENCIES[:-1], base["gemm_efficiency"]),
        "tp": pick("tensor ranks", [1, 8], base["tp"]),
        "recompute": pick("recompute", ["none", "full"], base["recompute"]),
    }
    views = [charts.tornado(), charts.spread()]
    return Explorer(controls, views, _study, _study_text, _study_titles, title="What the 15 % hang on")


@lru_cache(maxsize=1024)
def _steps(**values: Any) -> tuple[float, float]:
    return steps_s(known.study().study, **values)


def _yours(**values: Any) -> float:
    flat, hierarchical = _steps(**values)
    return flat / hierarchical - 1


def _study(**values: Any) -> Tables:
    return charts.tornado_rows(known.study(), _yours(**values))


def _study_titles(**values: Any) -> list[str]:
    found, yours = known.study(), _yours(**values)
    low, middle, high = found.interval
    first = f"At the base the gain is {found.base:.1%}, at your settings {yours:.1%}"
    if max(max(bar.gains) for bar in found.bars) < found.study.claim:
        first += f"; no input alone brings it to {found.study.claim:.0%}"
    return [
        first,
        f"Median {middle:.1%}, 90 % from {low:.1%} to {high:.1%}: {found.study.claim:.0%} is {found.verdict}",
    ]


def _study_text(**values: Any) -> str:
    found, (flat, hierarchical) = known.study(), _steps(**values)
    cells = [
        (format_seconds(flat), "step, all-to-all"),
        (format_seconds(hierarchical), "step, hierarchical"),
        (f"{_yours(**values):.1%}", "gain"),
    ]
    claim = f"{found.study.claim:.0%}"
    low, middle, high = found.interval_in_the_open
    said = (
        f"Bars, spread and base are of the frozen study ({len(found.samples):,} draws, {found.share_beyond:.0%} of "
        f"them at {claim} or more); only the orange rule is yours. Half of the draws overlap, and traffic then hides "
        "behind computing, which slows down for it, in both forms: little is left to gain. Without overlap the "
        f"median is {middle:.1%}, 90 % lie from {low:.1%} to {high:.1%} and {found.share_beyond_in_the_open:.0%} reach "
        f"{claim}. This says how far assumptions reach, not how sure a measurement is."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- a reader's own log -------------------------------------------------------------------------------------

DEVICES = ["a100-80gb", "h100", "h200", "b200", "h800", "ascend-910b"]
CASE = Case(hidden=7168, top_k=8, experts=256)
"""What the log's links are asked for: DeepSeek-V3's layer at EP 16, 4,096 tokens a rank."""
FLAGGED = 6
"""Flagged lines that are shown."""


def log_explorer() -> Explorer:
    """Fit a log that the reader pastes; show what its links change."""
    first = next(iter(LOGS))
    box = W.Textarea(
        value=LOGS[first][1](),
        description="log",
        layout=W.Layout(width="834px", height="150px"),
        continuous_update=False,
        style={"description_width": "88px"},
    )
    controls: dict[str, W.Widget] = {
        "sample": pick("fill in", list(LOGS), first, columns=2),
        "device": pick("device", DEVICES, LOGS[first][0]),
        "text": box,
    }
    views = [charts.fitted_curve(), charts.change_bars()]
    panel = Explorer(controls, views, _log, _log_text, _log_titles, title="Your own measurements")

    def fill(_change: Any) -> None:
        device, make = LOGS[controls["sample"].value]
        panel.set(device=device, text=make())

    controls["sample"].observe(fill, "value")
    return panel


def _times(device: str, links: ExpertLinks | None = None) -> dict[str, float]:
    """Time of each dispatcher, by the catalog's links or by others."""
    found = known.priced(CASE, links or known.links_of(device))
    return {name: float(it.time_s) for name, it in found.items() if name != "allgather"}


def _log(device: str, text: str, **_: Any) -> Tables:
    found = measured(device, text)
    points = [
        (row.size_bytes, float(bus_factor(row.op, float(row.ranks))) * row.size_bytes / row.time_s)
        for row in found.rows
        if row.ranks == found.ranks
    ]
    return charts.fitted_rows(points, found.band) | charts.change_rows(
        _times(device), _times(device, found.links)
    )


def _log_titles(device: str, text: str, **_: Any) -> list[str]:
    found = measured(device, text)
    first = "No three rows of one collective inside a node: there is no curve to fit"
    if found.ranks:
        curve = found.cluster.tiers[0].curves[found.op]
        first = f"{found.op}: the curve meets {curve.rows} rows with a median error of {curve.errors.fit:.1%}"
        first += f" ({found.ranks} ranks shown)"
    before, after = _times(device), _times(device, found.links)
    one, two = (min(times, key=lambda name: times[name]) for times in (before, after))
    moved = f"{two} stays quickest" if one == two else f"{two} becomes quickest, instead of {one}"
    if not found.changed:
        moved = "this log says nothing that the dispatch asks for"
    return [first, f"EP 16, top-8, hidden size {CASE.hidden:,}: {moved}"]


def _log_text(device: str, text: str, **_: Any) -> str:
    found = measured(device, text)
    cells = []
    for op, fit in found.fit.fits.items():
        name = "in_switch_bytes_per_s" if fit.curve.in_switch_bytes_per_s else "bandwidth_bytes_per_s"
        low, high = (x / 1e9 for x in fit.intervals[name])
        cells.append(
            (
                f"{getattr(fit.curve, name) / 1e9:.4g} GB/s",
                f"{op}, large messages (95 %: {low:.4g} to {high:.4g})",
            )
        )
        cells.append((format_seconds(fit.curve.start_s), "start"))
    said = [*found.changed, *found.fit.notes, "band: 90 % of refits on redrawn rows"]
    soft = f"<span class='telekit-soft'>{html.escape('; '.join(said))}.</span>"
    return f"{figures_line(cells)}{_flagged(found)}{soft}"


def _flagged(found: Measured) -> str:
    """List the lines that are not used, with what is wrong with each."""
    lines = [str(problem).removeprefix("log.txt ").removeprefix("log.csv ") for problem in found.fit.problems]
    if not lines:
        return ""
    more = f", of these {FLAGGED} are shown" if len(lines) > FLAGGED else ""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines[:FLAGGED])
    return f"<span class='telekit-bad'>{len(lines)} lines are not used{more}:<ul>{items}</ul></span>"
