"""Open JupyterLab on the chapter index: on this machine only, and with nothing asked of the network."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from telekit import catalog
from telekit.errors import bad

INDEX = "index.ipynb"
MANIFEST = ".telekit.json"
DEFAULT_FOLDER = "telekit-notebooks"
HOST = "127.0.0.1"
PROMPT = "telekit.ui.websocket.PromptConnection"


@dataclass(frozen=True)
class Notebooks:
    """A folder of notebooks ready to open: paths relative to it, by what was done with each."""

    folder: Path
    copied: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say in one paragraph where they are and what was kept."""
        lines = [f"Notebooks are in {self.folder}"]
        if self.copied:
            lines.append(f"copied: {len(self.copied)}")
        if self.updated:
            lines.append(f"brought up to date: {', '.join(self.updated)}")
        if self.kept:
            lines.append(f"kept as you changed them: {', '.join(self.kept)}")
        return "; ".join(lines)


def launch(
    directory: str | Path | None = None,
    browser: bool = True,
    port: int | None = None,
    say: Callable[[str], object] | None = None,
) -> int:
    """Run JupyterLab until it is stopped.

    Parameters
    ----------
    directory : str, Path or None
        Folder to hold the notebooks. None is the checkout's own folder, or ``./telekit-notebooks`` when
        telekit was installed from a wheel.
    browser : bool
        False only prints the address.
    port : int or None
        None takes the first free one from 8888 on.
    say : callable or None
        Receives one sentence on where the notebooks are.

    Returns
    -------
    int
        Exit status of JupyterLab.

    Raises
    ------
    InputError
        When the folder cannot be written, or the port is taken or impossible.
    """
    _check_port(port)
    ready = prepare(directory)
    if say is not None:
        say(str(ready))
    from jupyterlab.labapp import LabApp

    try:
        LabApp.launch_instance(arguments(ready.folder, browser, port))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def arguments(folder: Path, browser: bool, port: int | None) -> list[str]:
    """Return JupyterLab's arguments: loopback, the index in front, no news and no look for updates."""
    options = {
        "ServerApp.ip": HOST,
        "ServerApp.root_dir": str(folder),
        "ServerApp.open_browser": browser,
        "LabApp.default_url": f"/lab/tree/{INDEX}",
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.extension_manager": "readonly",
        "ServerApp.kernel_websocket_connection_class": PROMPT,
    }
    if port is not None:
        options |= {"ServerApp.port": port, "ServerApp.port_retries": 0}
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options["ServerApp.allow_root"] = True  # a container's only user; the server is on loopback
    return [f"--{name}={value}" for name, value in options.items()]


def prepare(directory: str | Path | None = None) -> Notebooks:
    """Find the notebooks, copied into a folder of the user's where one is needed.

    A file that the user changed is never overwritten: the folder keeps a list of what was last copied, and
    only a file that still equals it is brought up to date.

    Raises
    ------
    InputError
        When the folder cannot be made or written, or the install has no notebooks.
    """
    source = catalog.notebooks()
    if not (source / INDEX).is_file():
        raise bad(
            "notebooks", str(source), f"has no {INDEX}: this install is not whole", "install telekit again"
        )
    if directory is None and source.parent != Path(catalog.__file__).parent:
        return Notebooks(source)
    folder = Path(directory if directory is not None else DEFAULT_FOLDER).expanduser().absolute()
    if folder == source:
        return Notebooks(source)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _copy(source, folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise bad(
            "dir", str(folder), f"cannot hold the notebooks: {reason}", "give a folder you own"
        ) from error


def _copy(source: Path, folder: Path) -> Notebooks:
    copied: list[str] = []
    updated: list[str] = []
    kept: list[str] = []
    last = _read_manifest(folder)
    shipped = {}
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if not path.is_file() or any(part.startswith((".", "__")) for part in path.relative_to(source).parts):
            continue
        target = folder / name
        shipped[name] = _digest(path)
        there = _digest(target) if target.exists() else None
        if there == shipped[name]:
            continue
        if there is not None and there != last.get(name):
            kept.append(name)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        (copied if there is None else updated).append(name)
    # what was kept stays "changed" for every later version
    record = {name: digest for name, digest in shipped.items() if name not in kept}
    (folder / MANIFEST).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return Notebooks(folder, tuple(copied), tuple(updated), tuple(kept))


def _read_manifest(folder: Path) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if isinstance(record, dict):
            return record
    return {}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_port(port: int | None) -> None:
    if port is None:
        return
    if isinstance(port, bool) or not 1 <= port <= 65535:
        raise bad("port", port, "must be from 1 to 65535", "leave it out to take a free one")
    with socket.socket() as probe:
        # as the server itself binds: a port in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reasons = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs rights you do not have"}
            rule = reasons.get(error.errno or 0, f"cannot be used: {error.strerror}")
            raise bad("port", port, rule, "leave it out to take a free one") from error
