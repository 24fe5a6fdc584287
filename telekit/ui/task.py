"""Long work behind a button: it runs in a thread, shows how far it is, and can be stopped."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.ui.explorer import sentence

Progress = Callable[[int, int, str], None]


class Stopped(Exception):  # noqa: N818 (a wish of the reader, not an error)
    """The reader pressed Stop; raised inside the work by its progress call."""


class Task:
    """A button, a progress bar and a stop button around one long call.

    The work runs in a thread, so the kernel keeps answering: sliders move and Stop works meanwhile. Stopping
    is polite, by an exception out of the next progress call; nothing is killed. An error is written beside
    the button, never lost in a log.

    Parameters
    ----------
    work : callable
        ``work(progress)`` with ``progress(done, total, text)``; it returns the result.
    done : callable
        ``done(result)`` shows the result.
    label : str
        Text of the button.
    """

    def __init__(
        self, work: Callable[[Progress], Any], done: Callable[[Any], None], label: str = "Run"
    ) -> None:
        self._work, self._done, self._halt = work, done, threading.Event()
        self._thread: threading.Thread | None = None
        self._spoke_s = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self.button = W.Button(description=label, button_style="primary", icon="play")
        self.halt = W.Button(description="Stop", icon="stop", disabled=True, layout=W.Layout(width="90px"))
        self.bar = W.FloatProgress(min=0.0, max=1.0, layout=W.Layout(width="300px", visibility="hidden"))
        self.note = W.HTML()
        self.button.on_click(lambda _: self.start())
        self.halt.on_click(lambda _: self.stop())
        self.bar.add_class("telekit-progress")

    @property
    def running(self) -> bool:
        """True while the work runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, unless the work is running already."""
        if self.running:
            return
        self._halt.clear()
        self.result = self.error = None
        self.button.disabled, self.halt.disabled = True, False
        self.bar.value, self.bar.bar_style, self.bar.layout.visibility = 0.0, "", "visible"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the work to stop at its next progress call."""
        self._halt.set()

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait for the end and return the result (None when stopped or failed)."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.result

    def _run(self) -> None:
        begun_s = time.monotonic()
        try:
            self.result = self._work(self._progress)
            self._done(self.result)
            self._end("success", f"done in {time.monotonic() - begun_s:.1f} s")
        except Stopped:
            self._end("warning", f"stopped after {time.monotonic() - begun_s:.1f} s")
        except Exception as error:  # a thread's traceback goes to a log no reader sees
            self.error = error
            self._end("danger", "")
            self.note.value = sentence(error)

    def _progress(self, done: int, total: int, text: str = "") -> None:
        if self._halt.is_set():
            raise Stopped
        now_s = time.monotonic()
        if done < total and now_s - self._spoke_s < 0.1:  # ten messages a second do
            return
        self._spoke_s = now_s
        self.bar.value = done / total if total else 0.0
        self.note.value = f"<span class='telekit-soft'>{html.escape(text)}</span>"

    def _end(self, look: str, text: str) -> None:
        self.bar.bar_style = look
        if look == "success":
            self.bar.value = 1.0
        self.note.value = f"<span class='telekit-soft'>{html.escape(text)}</span>"
        self.button.disabled, self.halt.disabled = False, True
