"""A comparison as one HTML file: linked charts over the graph and a table that follows them; it opens offline."""

from __future__ import annotations

import json
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

import altair as alt

from telekit.accuracy.compare import Comparison
from telekit.accuracy.compared import Compared
from telekit.accuracy.comparing.judged import operator_of
from telekit.accuracy.comparing.names import read_call
from telekit.accuracy.comparing.table import CHECKSUMS, STATISTICS, TENSOR, row_of
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Verdict
from telekit.ui import style
from telekit.ui.live import plain

VERDICTS = {PASS: "#5c93d3", WARNING: "#e5a845", ERROR: style.LIMIT, SKIP: "#b0b6bc"}
"""Colours of results; not msprobe's, whose pass cannot be told from a white page."""
MOST_ROWS = 20_000
"""Rows of a report: all that do not pass, and as many of the others as fit, evenly taken."""
SMALLEST = 1e-9
"""Smaller errors, and none, are drawn here: the axis is logarithmic."""
_WIDTH = 860
_SHAPES = {"forward": "circle", "backward": "triangle-down", "optimizer": "square", "": "diamond"}
_HERE = Path(__file__).parent


def error_of(row: Compared) -> tuple[float | None, str]:
    """Return the one number that is drawn of a row, and what it is; None where nothing was compared.

    Norm of the difference over golden's norm where elements were compared (the largest error where that norm is
    zero), relative difference of the norms where only statistics were.
    """
    if row.metrics is not None:
        if row.metrics.relative_norm_error is not None:
            return row.metrics.relative_norm_error, "norm of the difference / golden's norm"
        return row.metrics.max_abs_error, "largest absolute error (golden is zero)"
    if row.summary is not None and row.summary.relative["Norm"] is not None:
        return row.summary.relative["Norm"], "relative difference of the norms"
    if row.identical is not None and row.matched:
        return (0.0 if row.identical else 1.0), "equal (0) or not (1)"
    return None, "not compared"


def report_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Make the report's table, at most `MOST_ROWS` rows, in graph order."""
    pairs = list(zip(comparison.rows, comparison.verdicts, strict=True))
    kept = [i for i, (_, v) in enumerate(pairs) if v.result in (ERROR, WARNING)][:MOST_ROWS]
    others = [i for i, (_, v) in enumerate(pairs) if v.result not in (ERROR, WARNING)]
    room = MOST_ROWS - len(kept)
    thinned = others[:: max(1, -(-len(others) // room))] if room else []
    places = sorted([*kept, *thinned])
    return [_row(i, *pairs[i], comparison.mode) for i in places]


def _row(place: int, row: Compared, verdict: Verdict, mode: str) -> dict[str, Any]:
    error, what = error_of(row)
    known = error is not None and isfinite(error)
    cells = row_of(row, verdict, mode)
    wanted = (*TENSOR, *STATISTICS, *CHECKSUMS, "NPU Dtype", "NPU Tensor Shape")
    shown = {k: v for k, v in cells.items() if k in wanted and v not in ("N/A", "None", "unsupported")}
    t, g = row.target, row.golden
    return {
        "place": place, "name": row.name, "target": t.name if t else "", "golden": g.name if g else "",
        "operator": _operator(row),
        "phase": row.phase, "part": row.part or "tensor", "result": verdict.result,
        "error": error if known else None, "drawn": max(error, SMALLEST) if known and error is not None else None,
        "measure": what, "why": "; ".join(cells["Err_message"]), "step": row.step, "rank": row.rank,
        "figures": ", ".join(f"{k} {_short(v)}" for k, v in shown.items()),
    }  # fmt: skip


def _operator(row: Compared) -> str:
    """Return an API's short name, a module's class, a plain tensor's last word."""
    words = read_call(row.api).base.split(".") if row.api else row.name.split(".")
    return words[-1] if not row.api or words[0] in ("Module", "Cell") else operator_of(row.api)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def report_chart() -> alt.VConcatChart:
    """Draw error by graph order, and counts by operator; a brush on the first filters the second and the table.

    All read the dataset ``rows``, which is `report_rows` and whether each is bad. A click on a result in the legend's
    bars keeps that result alone.
    """
    brush = alt.selection_interval(name="brush", encodings=["x"])
    chosen = alt.selection_point(name="chosen", fields=["result"])
    return alt.vconcat(
        _points(brush, chosen), alt.hconcat(_results(brush, chosen), _operators(brush, chosen))
    )


def _colour() -> alt.Color:
    return alt.Color("result:N", scale=style.scale(VERDICTS), legend=alt.Legend(title=None, orient="top"))


def _points(brush: alt.Parameter, chosen: alt.Parameter) -> alt.Chart:
    """Draw every row's error at its place."""
    drawn: alt.Chart = (
        alt.Chart(alt.NamedData("rows"), description="Error of every tensor in the order of golden's graph")
        .mark_point(filled=True, size=40, opacity=0.8)
        .encode(
            x=alt.X("place:Q", title="place in golden's graph (drag to select)", scale=alt.Scale(zero=False)),
            y=alt.Y("drawn:Q", title="error", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e")),
            color=_colour(),
            shape=alt.Shape(
                "phase:N", scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values())), legend=None
            ),
            opacity=alt.condition(chosen, alt.value(0.85), alt.value(0.08)),
            tooltip=["name:N", "result:N", "error:Q", "measure:N", "why:N"],
        )
        .transform_filter("isValid(datum.drawn)")
        .add_params(brush)
        .properties(width=_WIDTH, height=240)
    )
    return drawn


def _results(brush: alt.Parameter, chosen: alt.Parameter) -> alt.Chart:
    """Count the brushed rows by result; a click on a bar chooses."""
    drawn: alt.Chart = (
        alt.Chart(alt.NamedData("rows"), description="Tensors by result")
        .mark_bar()
        .encode(
            x=alt.X("count():Q", title="tensors selected (click one to keep it)"),
            y=alt.Y("result:N", title=None, scale=alt.Scale(domain=list(VERDICTS))),
            color=_colour(),
            opacity=alt.condition(chosen, alt.value(1), alt.value(0.3)),
        )
        .transform_filter(brush)
        .add_params(chosen)
        .properties(width=_WIDTH // 3, height=150)
    )
    return drawn


def _operators(brush: alt.Parameter, chosen: alt.Parameter) -> alt.Chart:
    """Count the brushed rows of the chosen results by operator, the worst twelve."""
    drawn: alt.Chart = (
        alt.Chart(alt.NamedData("rows"), description="Tensors by operator and result")
        .transform_filter(brush)
        .transform_filter(chosen)
        .transform_joinaggregate(bad="sum(isbad)", groupby=["operator"])
        .transform_window(
            rank="dense_rank()", sort=[alt.SortField("bad", order="descending"), alt.SortField("operator")]
        )
        .transform_filter("datum.rank <= 12")
        .mark_bar()
        .encode(
            x=alt.X("count():Q", title="tensors selected"),
            y=alt.Y(
                "operator:N", title=None, sort=alt.EncodingSortField("isbad", op="sum", order="descending")
            ),
            color=_colour(),
            tooltip=["operator:N", "result:N", "count():Q"],
        )
        .properties(width=_WIDTH // 2, height=150)
    )
    return drawn


def write_report(comparison: Comparison, path: str | Path) -> Path:
    """Write the report: one file, nothing loaded from outside.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    import vl_convert

    rows = report_rows(comparison)
    chart = style.dressed(report_chart()) | {"config": style.config("light")}
    chart["datasets"] = plain({"rows": [r | {"isbad": int(r["result"] in (ERROR, WARNING))} for r in rows]})
    script = vl_convert.javascript_bundle((_HERE / "accuracy_report.js").read_text(encoding="utf-8"))
    page = (_HERE / "accuracy_report.html").read_text(encoding="utf-8")
    filled = {
        "TITLE": escape(
            f"{comparison.result}: {Path(comparison.target).name} against {Path(comparison.golden).name}"
        ),
        "HEADING": escape(comparison.result + ": target against golden"),
        "SUMMARY": _summary(comparison, len(rows)),
        "SPEC": _embedded(chart),
        "SCRIPT": script.replace("</script", "<\\/script"),
    }
    for name, text in filled.items():
        page = page.replace(f"<!--{name}-->", text, 1)
    Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")
    return Path(path)


def _embedded(value: Any) -> str:
    """Return JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c")


def _summary(comparison: Comparison, shown: int) -> str:
    counts = ", ".join(f"{n} {name}" for name, n in comparison.counts.items() if n) or "no rows"
    lines = [
        f"<p><b class='{comparison.result}'>{comparison.result}</b> by {escape(comparison.standard)} "
        f"({comparison.mode} mode): {counts}</p>",
        f"<p>target {escape(comparison.target)}<br>golden {escape(comparison.golden)}</p>",
    ]
    first = comparison.first_divergence
    if first is not None:
        where = " ".join(w for w in (first.operator, first.phase, first.part) if w)
        said = "".join(f"<li>{escape(text)}</li>" for text in first.evidence)
        lines.append(
            f"<h2>First divergence</h2><p><code>{escape(where)}</code>: {escape(first.cause)}, confidence "
            f"{first.confidence:.2f}</p><ul>{said}</ul><p>To be sure, dump: {escape(first.next_dump)}</p>"
        )
    if shown < len(comparison.rows):
        lines.append(
            f"<p>{shown:,} of {len(comparison.rows):,} rows: all that do not pass, and a part of the others</p>"
        )
    for title, texts in (("Notes", comparison.notes), ("Not read", [str(p) for p in comparison.problems])):
        if texts:
            items = "".join(f"<li>{escape(text)}</li>" for text in texts[:200])
            lines.append(f"<details open><summary>{title} ({len(texts)})</summary><ul>{items}</ul></details>")
    return "\n".join(lines)
