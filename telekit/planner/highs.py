"""HiGHS behind a pipe: it cannot hang the caller, write to its output or outlive it.

HiGHS (1.16) can loop for ever in its presolve, deaf to time limit and interrupt; it greets on standard output
from its constructor; and highspy's own way of being interrupted takes one lock for all models. In a process of
its own, which is kept for the next solve, none of this matters: a solve that overruns is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telekit.errors import TelekitError

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("highs_process.py")))
GRACE_S = 3.0
"""Time beyond the limit after which a solve is taken to hang."""
MOST_IDLE = 2

_idle: list[Process] = []
_lock = threading.Lock()


class Process:
    """One HiGHS process; ask it one thing at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ask(
        self,
        time_limit_s: float,
        model: dict[str, Any] | None = None,
        rows: list[dict[str, Any]] | None = None,
        start: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        """Load a model or add rows to the one loaded, and solve; None when HiGHS crashed or overran.

        Any exception on the way, a keyboard interrupt for one, ends the process.

        Raises
        ------
        TelekitError
            When HiGHS is not installed or refuses the model.
        """
        request: dict[str, Any] = {"time_limit_s": time_limit_s, "rows": rows or [], "start": start}
        if model is not None:
            request |= {"model": model, "options": options or {}}
        watch = threading.Timer(time_limit_s + GRACE_S, self._process.kill)
        watch.daemon = True
        watch.start()
        answer = ""
        try:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                answer = self._process.stdout.readline()
        finally:
            watch.cancel()
            if not answer.endswith("\n"):
                self.end()
        found: dict[str, Any] | None = json.loads(answer) if answer.endswith("\n") else None
        if found is not None and "error" in found:
            raise TelekitError(f"HiGHS cannot solve this: {found['error']}")
        return found

    @property
    def lives(self) -> bool:
        """Whether it can be asked, by this process."""
        return self.owner == os.getpid() and self._process.poll() is None

    def end(self) -> None:
        """Kill it and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def process() -> Iterator[Process]:
    """Borrow an idle process, or a new one; it goes back when it still lives."""
    with _lock:
        usable = [idle for idle in _idle if idle.lives]
        _idle[:] = usable[
            :-1
        ]  # one that died, or that belongs to the process this one was forked from, is left
        found = usable[-1] if usable else None
    found = found or Process()
    try:
        yield found
    except BaseException:
        found.end()
        raise
    with _lock:
        keep = found.lives and len(_idle) < MOST_IDLE
        if keep:
            _idle.append(found)
    if not keep:
        found.end()


@atexit.register
def _end_all() -> None:
    while _idle:
        last = _idle.pop()
        if last.lives:
            last.end()
