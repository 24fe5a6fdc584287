"""Charts as files: SVG and PNG for a paper, HTML for a page that opens without a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from telekit.errors import bad
from telekit.ui.live import LiveChart, Still

WRITERS = ("svg", "png", "html")


def save(
    chart: alt.TopLevelMixin | LiveChart | Still,
    path: str | Path,
    rows: Mapping[str, Any] | None = None,
    title: str = "",
) -> Path:
    """Write a chart to ``path``; its suffix says how.

    Parameters
    ----------
    chart : altair chart, LiveChart or Still
        A live chart is written as it is shown now.
    path : str or Path
        Ends in .svg, .png (twice the screen's resolution, on white) or .html (one file, nothing loaded from outside).
    rows, title : mapping, str
        Tables and title, when ``chart`` is an altair chart.

    Raises
    ------
    InputError
        When the suffix is none of these.
    """
    import vl_convert

    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in WRITERS:
        raise bad("path", str(path), f"the suffix must be one of {', '.join(WRITERS)}", f"{target.stem}.svg")
    if isinstance(chart, LiveChart):
        still = chart.still()
    else:
        still = chart if isinstance(chart, Still) else Still(chart, rows or {}, title)
    match kind:
        case "svg":
            target.write_text(vl_convert.vegalite_to_svg(still.spec), encoding="utf-8")
        case "png":  # on no page, vl-convert darkens colours that let it through
            target.write_bytes(vl_convert.vegalite_to_png(still.spec | {"background": "white"}, scale=2.0))
        case _:
            target.write_text(vl_convert.vegalite_to_html(still.spec, bundle=True), encoding="utf-8")
    return target
