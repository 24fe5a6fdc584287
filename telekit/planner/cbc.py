"""CBC as a second opinion: a process fed from files that have no name, so none can stay behind.

PuLP hands CBC files in the temporary folder by a command line cut at spaces. Here the files are unlinked as
soon as they are open and CBC reads them as ``/dev/fd/N``: a space in the folder's name does no harm, and an
interrupted or killed solve leaves nothing. Where ``/dev/fd`` does not exist (Windows) they lie in a folder
that is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
_GRACE_S = 5.0
_PROBE_S = 20.0


@lru_cache(maxsize=1)
def executable() -> str | None:
    """Path of a CBC that runs here: the one bundled with PuLP, else one on the path; None without one."""
    from pulp.apis import coin_api

    for path in (coin_api.pulp_cbc_path, shutil.which("cbc")):
        if path and _runs(str(path)):
            return str(path)
    return None


def _runs(path: str) -> bool:
    with contextlib.suppress(OSError):
        # A wheel unpacked without permissions: PuLP, too, sets this bit.
        if Path(path).is_file() and not os.access(path, os.X_OK):
            Path(path).chmod(0o755)
    try:
        done = subprocess.run(
            [path, "-quit"], capture_output=True, stdin=subprocess.DEVNULL, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def available() -> bool:
    """Whether CBC can run on this machine (asked once)."""
    return executable() is not None


def run(
    problem: Any, time_limit_s: float, gap: float, presolve: bool = True
) -> tuple[Status, dict[str, float], float | None]:
    """Solve a minimisation without constant; return status, values by name and CBC's own bound.

    ``status`` is ``optimal``, ``feasible``, ``infeasible``, ``unbounded`` or ``unknown``; values are empty
    unless a solution was found, and the bound is None unless CBC's log states it.
    """
    import pulp

    path = executable()
    if path is None:
        return "unknown", {}, None
    with _scratch() as (model, answer):
        variables, names, rows, _ = problem.writeMPS(model.path, rename=1)
        model.rewind()
        log = _call(path, model, answer, time_limit_s, gap, presolve)
        answer.rewind()
        if log is None or not Path(answer.path).read_text().strip():
            return "unknown", {}, None
        answer.rewind()
        state, values, *_ = pulp.COIN_CMD(path=path).readsol_MPS(answer.path, problem, variables, names, rows)
    return _read(log, state, dict(values))


def _read(log: str, state: int, values: dict[str, float]) -> tuple[Status, dict[str, float], float | None]:
    """Status from CBC's own words, because PuLP's number says 1 for proved and for stopped alike."""
    bound = _number(r"^Lower bound:\s+(\S+)", log)
    if re.search(r"^Result - Optimal solution found\s*$", log, re.M):
        return "optimal", values, _number(r"^Objective value:\s+(\S+)", log) if bound is None else bound
    if re.search(r"^Result - .*within gap tolerance", log, re.M):
        return "feasible", values, bound
    if re.search(r"^Result - (Problem proven|.*)infeasible", log, re.M) or state == -1:
        return "infeasible", {}, None
    if state == -2:
        return "unbounded", {}, None
    if re.search(r"^Result - Stopped", log, re.M):
        return ("feasible", values, bound) if state == 1 else ("unknown", {}, bound)
    return ("optimal", values, bound) if state == 1 else ("unknown", {}, None)


def _number(pattern: str, log: str) -> float | None:
    found = re.findall(pattern, log, re.M)
    with contextlib.suppress(ValueError, IndexError):
        return float(found[-1])
    return None


def _call(
    path: str, model: _File, answer: _File, time_limit_s: float, gap: float, presolve: bool
) -> str | None:
    """CBC's log, or None when it failed or did not stop; the process never outlives the call."""
    command = [path, model.path, "-sec", f"{time_limit_s:g}", "-timeMode", "elapsed", "-ratio", f"{gap:g}"]
    command += ["-increment", "1e-9"] if gap == 0 else []
    command += [] if presolve else ["-presolve", "off", "-preprocess", "off"]
    command += ["-solve", "-printingOptions", "all", "-solution", answer.path]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[f.number for f in (model, answer) if f.number is not None],
    )
    try:
        log, _ = process.communicate(timeout=time_limit_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return log if process.returncode == 0 else None


class _File:
    """A file for CBC, by a path without spaces."""

    def __init__(self, path: str, number: int | None = None) -> None:
        self.path = path
        self.number = number

    def rewind(self) -> None:
        """Start again from the front: on macOS every opening of ``/dev/fd/N`` shares one position."""
        if self.number is not None:
            os.lseek(self.number, 0, os.SEEK_SET)


def _has_nameless_files() -> bool:
    return os.name == "posix" and Path("/dev/fd").is_dir()


@contextlib.contextmanager
def _scratch() -> Iterator[tuple[_File, _File]]:
    """Two files, the model and the answer, gone in every case."""
    if _has_nameless_files():
        with tempfile.TemporaryFile() as model, tempfile.TemporaryFile() as answer:
            yield tuple(_File(f"/dev/fd/{f.fileno()}", f.fileno()) for f in (model, answer))  # type: ignore[misc]
    else:
        with tempfile.TemporaryDirectory(prefix="telekit", dir=_folder()) as folder:
            yield _File(str(Path(folder) / "model.mps")), _File(str(Path(folder) / "answer.sol"))


def _folder() -> str | None:
    """Use the current folder when the temporary one has a space in its name."""
    return "." if " " in tempfile.gettempdir() and " " not in str(Path.cwd()) else None
