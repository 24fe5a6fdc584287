"""Controls of one width, so that panels line up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

_LABEL = {"description_width": "88px"}
_WIDTH, _GAP = 274, 6  # three controls a row beside JupyterLab's side bar on a 1280 pixel screen


def _layout(columns: int = 1) -> W.Layout:
    return W.Layout(width=f"{columns * _WIDTH + (columns - 1) * (_GAP + 4)}px", margin=f"1px {_GAP}px 1px 0")


def pick(label: str, options: Sequence[Any] | Mapping[str, Any], value: Any, columns: int = 1) -> W.Dropdown:
    """Choose one of several; a mapping shows its keys and gives its values."""
    pairs = list(options.items()) if isinstance(options, Mapping) else list(options)
    return W.Dropdown(options=pairs, value=value, description=label, style=_LABEL, layout=_layout(columns))


def spoken(options: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return values beside how a slider shows them."""
    return [(f"{option:,}" if isinstance(option, int) else str(option), option) for option in options]


def slide(label: str, options: Sequence[Any], value: Any, costly: bool = False) -> W.SelectionSlider:
    """Slide along given values; a costly panel redraws when the hand lets go."""
    return W.SelectionSlider(
        options=spoken(options),
        value=value,
        description=label,
        style=_LABEL,
        layout=_layout(),
        continuous_update=not costly,
    )
