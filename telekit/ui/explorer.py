"""Panels: controls wired to charts, with errors said in the panel and a still picture beside it."""

from __future__ import annotations

import html
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import altair as alt
import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.errors import InputError
from telekit.ui.live import LiveChart, Rows

AS_FIRST_DRAWN = "as first drawn; run the cell to move it"


class Panel(ABC):
    """What every panel has: controls by name, live charts, a line of text, and what it says without a kernel.

    Everything a test needs works without a browser: ``set`` moves controls as a hand would; ``values``,
    ``rows``, ``titles``, ``text`` and ``error`` say what is shown. A subclass builds ``views``, ``status`` and
    ``box``, and says in ``_follow`` what a move does.
    """

    views: tuple[LiveChart, ...]
    status: W.HTML
    box: W.VBox

    def __init__(self, title: str, controls: Mapping[str, W.Widget]) -> None:
        self.title, self.controls = title, dict(controls)
        self.error: Exception | None = None
        self._lock = threading.RLock()
        self._held = self._busy = self._due = False
        for control in self.controls.values():
            control.observe(self._moved, "value")

    @property
    def values(self) -> dict[str, Any]:
        """Values of the controls by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def rows(self) -> Rows:
        """Rows now shown, by table."""
        return {name: table for view in self.views for name, table in view.datasets.items()}

    @property
    def titles(self) -> list[str]:
        """Titles now shown, one a chart."""
        return [view.title for view in self.views]

    @property
    def text(self) -> str:
        """What the panel says beside its charts, as HTML."""
        return str(self.status.value)

    def set(self, **values: Any) -> Self:
        """Move controls, as a reader would; several at once count as one move."""
        with self._lock:
            held, self._held = self._held, True  # a control may move others in turn
            try:
                for name, value in values.items():
                    self.controls[name].value = value
            finally:
                self._held = held
            self._moved(None)
        return self

    def _moved(self, _change: Any) -> None:
        """Show the newest state, one at a time.

        A kernel hands out moves on several threads. A move that comes while another is drawn waits for it, and is
        drawn after it unless a later state already was: ``_due`` is set after a control has its new value, and
        cleared before the values are read.
        """
        self._due = True
        with self._lock:
            if self._held or self._busy:  # of this very thread: it comes back to it
                return
            self._busy = True
            try:
                while self._due:
                    self._due = False
                    self._show_or_say()
            finally:
                self._busy = False

    def _show_or_say(self) -> None:
        try:
            self._follow()
            self.error = None
        except Exception as error:  # ipywidgets sends an observer's traceback to a log no reader sees
            self.error = error
            self.status.value = sentence(error)
            for view in self.views:
                view.stale = True

    @abstractmethod
    def _follow(self) -> None:
        """Show what the controls now say; an error of it is said in the panel."""

    def __repr__(self) -> str:
        return f"<panel: {self.title or ', '.join(self.controls)}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        said = {"text/plain": repr(self), "text/html": fallback(self.title, self.text, self.rows)}
        return self.box._repr_mimebundle_(**kwargs) | said

    def _ipython_display_(self) -> None:
        """Display the panel, and beside it still pictures for readers without a kernel.

        A reopened notebook that is trusted shows «model not found» in the widget's own place, whatever else
        its bundle holds; so the pictures are outputs of their own. While the panel lives, the style sheet
        hides them.
        """
        from IPython.display import publish_display_data

        pictures = [view.still(AS_FIRST_DRAWN) for view in self.views if any(view.datasets.values())]
        for bundle in (self._repr_mimebundle_(), *(picture._repr_mimebundle_() for picture in pictures)):
            publish_display_data(bundle)  # type: ignore[no-untyped-call]


class Explorer(Panel):
    """Controls, charts, and pure functions of the controls' values, wired together.

    Parameters
    ----------
    controls : mapping of str to Widget
        Inputs by name; the names are the arguments of the functions below.
    charts : altair chart, or sequence of them
        Drawn once, over ``alt.NamedData`` tables.
    rows : callable
        ``rows(**values)`` gives every table's rows.
    readout : callable
        ``readout(**values)`` gives a few lines of HTML.
    titles : callable
        ``titles(**values)`` gives one sentence a chart: what it shows now.
    title : str
        Heading of the panel.
    """

    def __init__(
        self,
        controls: Mapping[str, W.Widget],
        charts: alt.TopLevelMixin | Sequence[alt.TopLevelMixin],
        rows: Callable[..., Mapping[str, Any]],
        readout: Callable[..., str] = lambda **_: "",
        titles: Callable[..., Sequence[str]] = lambda **_: (),
        title: str = "",
    ) -> None:
        super().__init__(title, controls)
        self._rows, self._readout, self._titles = rows, readout, titles
        self._charts = charts if isinstance(charts, Sequence) else (charts,)
        tables, text, said = self._computed()
        self.views = tuple(LiveChart(c, tables, t) for c, t in zip(self._charts, said, strict=True))
        self.status = W.HTML(text)
        self.box = panel(title, list(self.controls.values()), [self.status], list(self.views))

    def _computed(self) -> tuple[Mapping[str, Any], str, list[str]]:
        """Compute all that is shown from one reading of the controls, which may move meanwhile."""
        values = self.values
        said = list(self._titles(**values)) or [""] * len(self._charts)
        return self._rows(**values), self._readout(**values), said

    def _follow(self) -> None:
        rows, text, said = self._computed()
        for view, title in zip(self.views, said, strict=True):
            view.show(rows, title)
        self.status.value = text


def panel(title: str, controls: list[Any], *bands: list[Any]) -> W.VBox:
    """Lay out a panel: controls in rows on top, then bands of charts and text, all wrapping when narrow."""
    wrap = W.Layout(flex_flow="row wrap", align_items="flex-start", width="100%")
    for widget in (w for band in bands for w in band):
        if isinstance(widget, W.HTML):
            widget.add_class("telekit-text")
    head = [W.HTML(f"<h4>{html.escape(title)}</h4>")] if title else []
    box = W.VBox([*head, *(W.HBox(band, layout=wrap) for band in (controls, *bands))])
    box.add_class("telekit-panel")
    return box


def sentence(error: Exception) -> str:
    """Say an error to a reader: every broken rule on a line of its own."""
    lines = [str(p) for p in error.problems] if isinstance(error, InputError) else [str(error)]
    if len(lines) == 1:
        return f"<span class='telekit-bad'>{html.escape(lines[0])}</span>"
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<span class='telekit-bad'>{len(lines)} rules are broken:<ul>{items}</ul></span>"


def fallback(title: str, text: str, rows: Rows, limit: int = 24) -> str:
    """Return the panel's text and tables as plain HTML, for readers without a kernel."""
    parts = [f"<p><b>{html.escape(title)}</b> (run the cell to move it)</p>", f"<p>{text}</p>"]
    for name, table in rows.items():
        if not table:
            continue
        columns = list(table[0])
        head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row.get(c))}</td>" for c in columns) + "</tr>"
            for row in table[:limit]
        )
        more = f"<p>… {len(table) - limit} more rows</p>" if len(table) > limit else ""
        caption = f"<caption>{html.escape(name)}</caption>"
        parts.append(f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}")
    return "\n".join(parts)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))
