"""One look for every chart: a colour for each meaning, readable in JupyterLab's light and dark theme.

Colours say what a thing *is*, never which series came first: blue is arithmetic and what stays in memory all
step, orange is traffic and what comes and goes, grey is waiting and what the framework keeps. Each differs from
its neighbours for readers with protanopia, deuteranopia and tritanopia too, and stands out from a white and from
a black page (the tests measure both).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import altair as alt

Ink = Literal["light", "dark", "any"]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"

TIME = {
    "compute": "#245fa8",
    "recompute": "#8ab8e2",
    "communication": "#e08a1e",
    "waiting": "#adb3ba",
    "optimizer": "#1b8573",
}
MEMORY = {
    "parameters": "#1d5a9f",
    "optimizer": "#5c93d3",
    "gradients": "#8ab8e2",
    "activations": "#cf6a17",
    "workspace": "#e5a845",
    "logits": "#8f3f6f",
    "dispatch": "#b86f9b",
    "framework": "#b0b6bc",
}
COMPONENTS = {
    "routed experts": "#cf6a17",
    "shared experts": "#e5a845",
    "dense MLP": "#5c93d3",
    "attention": "#1d5a9f",
    "embedding": "#8f3f6f",
    "head": "#b86f9b",
    "router, norms": "#b0b6bc",
}
MODELS = {"dense": "#adb3ba", "sparse": "#5c93d3", "highlighted": "#cf6a17"}
SIZES = {
    "N: all parameters": "#8f3f6f",
    "Nₐ: what a token meets": "#e08a1e",
    "Nₘ: what it is multiplied by": "#245fa8",
}
PASSES = {
    "forward": "#245fa8",
    "backward": "#cf6a17",
    "input gradient": "#e5a845",
    "weight gradient": "#1b8573",
    "recompute": "#8ab8e2",
}
SCHEDULES = {
    "1f1b": "#b0b6bc",
    "interleaved-1f1b": "#e08a1e",
    "zb-h1": "#5c93d3",
    "zb-v": "#1d5a9f",
    "dualpipe": "#8f3f6f",
}
LIMIT = "#c8372d"

_INKS: dict[str, dict[str, str]] = {
    "light": {"text": "#24292f", "soft": "#57606a", "grid": "#e6e9ed"},
    "dark": {"text": "#e6e8eb", "soft": "#a9b1ba", "grid": "#33393f"},
    # drawn by JupyterLab itself, which colours axes by its theme; the rest must be legible on both
    "any": {"text": "", "soft": "#828a93", "grid": "rgba(128, 136, 144, 0.25)"},
}


def config(ink: Ink = "any") -> dict[str, Any]:
    """Vega-Lite configuration of the kit's look.

    Parameters
    ----------
    ink : {"light", "dark", "any"}
        Page the chart stands on; "any" leaves the axes' colour to whoever draws it.
    """
    colour = _INKS[ink]
    text = {"color": colour["text"]} if colour["text"] else {}
    labels = {"labelColor": colour["soft"], "titleColor": colour["text"]} if text else {}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
            "gridColor": colour["grid"],
            **labels,
        },
        "legend": {
            "orient": "top",
            "title": None,
            "labelFontSize": 11,
            "symbolType": "square",
            "symbolSize": 90,
            "labelLimit": 280,
            "columnPadding": 14,
            "offset": 6,
            **({"labelColor": colour["soft"]} if text else {}),
        },
        "title": {
            "anchor": "start",
            "fontSize": 13,
            "fontWeight": 600,
            "offset": 12,
            "frame": "group",
            "subtitleFontSize": 11,
            "subtitleColor": colour["soft"],
            **text,
        },
        "text": {"color": colour["soft"], "fontSize": 11},
        "style": {"ink": {"color": colour["text"] or _INKS["light"]["text"]}},  # for text on pale marks
        "range": {"category": list(TIME.values())},
    }


def scale(colours: Mapping[str, str], names: Iterable[str] | None = None) -> alt.Scale:
    """Fix the colours of ``names`` (all of ``colours`` by default), whichever rows happen to be shown."""
    chosen = list(colours if names is None else names)
    return alt.Scale(domain=chosen, range=[colours[name] for name in chosen])


def dressed(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite specification of a chart without anyone's theme, version or address in it.

    ``$schema`` is left out on purpose: the output's MIME type names the version, and a stored notebook then
    holds no web address at all.
    """
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    spec.pop("$schema", None)
    return spec
