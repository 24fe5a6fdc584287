"""Charts that follow a hand, offline: a chart is drawn once, and afterwards only its rows travel.

``LiveChart`` is one chart on the page, ``Still`` the same chart without widgets. Nothing here needs the
internet: the page gets one Vega runtime a kernel, bundled by vl-convert.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import anywidget
import traitlets

from telekit.ui import style

VEGALITE_MIME = "application/vnd.vegalite.v5+json"  # what JupyterLab 4 draws itself, without a kernel
Rows = dict[str, list[dict[str, Any]]]

_HERE = Path(__file__).parent
_RUNTIME_JS = """export default { initialize() {
  const kit = (globalThis.__telekit ??= { waiting: [] });
  kit.embed = vegaEmbed;
  kit.waiting.splice(0).forEach((ready) => ready(vegaEmbed));
} }"""


@cache
def runtime() -> anywidget.AnyWidget:
    """Return the kernel's one Vega runtime (0.9 MB of JavaScript, sent to the page once)."""
    import vl_convert

    class VegaRuntime(anywidget.AnyWidget):
        """A model without a view: its module installs vega-embed on the page."""

        _esm = vl_convert.javascript_bundle(_RUNTIME_JS)
        _view_name = traitlets.Unicode(None, allow_none=True).tag(sync=True)  # type: ignore[assignment]

    return VegaRuntime()


def plain(rows: Mapping[str, Any]) -> Rows:
    """Turn each table (rows as dicts, or a DataFrame) into JSON rows.

    Raises
    ------
    ValueError
        When a value is NaN or infinite, which JSON cannot carry; the table and the column are named.
    """
    tables: Rows = {}
    for name, table in rows.items():
        records = table.to_dict("records") if hasattr(table, "to_dict") else table
        tables[name] = [
            {k: v.item() if hasattr(v, "item") else v for k, v in record.items()} for record in records
        ]
        for record in tables[name]:
            for key, value in record.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{name}.{key} is {value}: leave the row out or clip it")
    return tables


def table_names(spec: Any) -> Iterator[str]:
    """Names of the data tables a Vega-Lite specification reads."""
    if isinstance(spec, dict):
        data = spec.get("data")
        if isinstance(data, dict) and "name" in data:
            yield data["name"]
        for value in spec.values():
            yield from table_names(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from table_names(value)


class LiveChart(anywidget.AnyWidget):
    """An Altair chart over ``alt.NamedData`` tables; ``show`` replaces its rows.

    Parameters
    ----------
    chart : altair chart
        Its ``description`` is what a screen reader says.
    rows : mapping of str to rows
        The tables the chart names; others are ignored, so charts may share one mapping.
    title : str
        What the chart shows now, as a sentence; it stands above the chart.
    """

    _esm = (_HERE / "live.js").read_text(encoding="utf-8")
    _css = (_HERE / "live.css").read_text(encoding="utf-8")
    spec = traitlets.Dict().tag(sync=True)
    datasets = traitlets.Dict().tag(sync=True)
    looks = traitlets.Dict().tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    stale = traitlets.Bool(False).tag(sync=True)
    laid_out = traitlets.Int(0).tag(sync=True)

    def __init__(self, chart: alt.TopLevelMixin, rows: Mapping[str, Any], title: str = "") -> None:
        runtime()
        spec = style.dressed(chart) | {
            "autosize": {"type": "pad", "resize": True}
        }  # new rows may need new room
        self._tables = tuple(dict.fromkeys(table_names(spec)))
        looks = {ink: style.config(ink) for ink in ("light", "dark")}
        super().__init__(spec=spec, datasets=self._mine(rows), looks=looks, title=title)

    def _mine(self, rows: Mapping[str, Any]) -> Rows:
        return plain({name: rows[name] for name in self._tables})

    def show(self, rows: Mapping[str, Any], title: str | None = None, lay_out: bool = False) -> None:
        """Replace the rows, and the title where one is given.

        ``lay_out`` makes room anew for axis labels and the like: right for other rows than before, and twice
        the work, so not for a slider.
        """
        datasets = self._mine(rows)
        with self.hold_sync():
            self.datasets, self.stale = datasets, False
            self.laid_out += lay_out
            if title is not None:
                self.title = title

    def still(self, note: str = "") -> Still:
        """Return what is shown now as a picture that needs no kernel, with a note under its title."""
        return Still(self.spec, self.datasets, self.title, note)

    def __repr__(self) -> str:
        return f"<live chart: {self.title or ', '.join(self.datasets)}>"


class Still:
    """A chart without widgets: JupyterLab draws it itself, also after reopening without a kernel."""

    def __init__(
        self,
        chart: alt.TopLevelMixin | dict[str, Any],
        rows: Mapping[str, Any],
        title: str = "",
        note: str = "",
    ) -> None:
        spec = chart if isinstance(chart, dict) else style.dressed(chart)
        tables = {name: rows[name] for name in dict.fromkeys(table_names(spec))}
        self.title = title
        self.spec = spec | {"config": style.config("any"), "datasets": plain(tables)}
        if title or note:
            self.spec["title"] = {"text": title, "subtitle": note}

    def __repr__(self) -> str:
        return f"<chart: {self.title or ', '.join(self.spec['datasets'])}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):  # its own Vega view fails
            import vl_convert

            return {"image/svg+xml": vl_convert.vegalite_to_svg(self.spec), "text/plain": repr(self)}
        return {VEGALITE_MIME: self.spec, "text/plain": repr(self)}
