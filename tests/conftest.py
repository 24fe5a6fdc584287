"""Fixtures: a command run in process; for tests that need a real page, one JupyterLab server and one Chromium."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from hypothesis import settings

from telekit.cli import main
from telekit.ui.lab import PROMPT

# how long an example takes says more about the machine than about the code
settings.register_profile("telekit", deadline=None)
settings.load_profile("telekit")

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


class Lab:
    """A running JupyterLab: its address, its token, and the folder it serves (a copy, never the tree)."""

    def __init__(self, base: str, token: str, folder: Path) -> None:
        self.base, self.token, self.folder = base, token, folder


def private_environment(home: Path) -> dict[str, str]:
    """Environment in which Jupyter reads and writes nothing outside ``home``."""
    env = os.environ | {f"JUPYTER_{k}_DIR": str(home / k.lower()) for k in ("CONFIG", "DATA", "RUNTIME")}
    env |= {f"JUPYTERLAB_{k}_DIR": str(home / k.lower()) for k in ("SETTINGS", "WORKSPACES")}
    env |= {"IPYTHONDIR": str(home / "ipython")}
    quiet = home / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True)
    news = '{"fetchNews": "false", "checkForUpdates": false}'  # else a pop-up asks, and covers the page
    (quiet / "notification.jupyterlab-settings").write_text(news)
    return env


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Start JupyterLab on a free loopback port with a token and a private configuration."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "work"
    folder.mkdir()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        (folder / notebook.name).write_bytes(notebook.read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={folder}", "--allow-root", "--expose-app-in-browser"]
    command += [f"--ServerApp.kernel_websocket_connection_class={PROMPT}"]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = home / "lab.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            env=private_environment(home),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{base}/api/status?token={token}", timeout=2).close()
                break
            time.sleep(0.1)
        yield Lab(base, token, folder)
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its own session, so its kernels go with it
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(15)


@pytest.fixture(scope="session")
def chromium():
    """Return the one browser of the session; skip where there is none (the gate fails on a skip)."""
    sync = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with sync.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


class Notebook:
    """One notebook open in JupyterLab, driven over JupyterLab's own commands."""

    def __init__(self, page, lab: Lab, name: str) -> None:
        self.page, self.console, self.outside = page, [], []
        page.on("console", lambda m: self.console.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.console.append(f"{error}\n{error.stack}"))
        local = (lab.base, lab.base.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(local) else self.outside.append(r.url))
        page.goto(f"{lab.base}/lab/tree/{name}?token={lab.token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        # Run All before the session is ready opens a «Select Kernel» dialog, and its promise never ends
        page.evaluate("""async () => { const lab = window.jupyterapp; await lab.restored;
            const w = lab.shell.currentWidget; await w.context.ready; await w.sessionContext.ready; }""")
        self.idle()

    def idle(self, timeout_ms: int = 180_000) -> None:
        """Wait until the kernel is idle."""
        status = "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
        self.page.wait_for_function(f"() => {status} === 'idle'", timeout=timeout_ms)

    def command(self, name: str, timeout_ms: int = 180_000) -> None:
        """Run one of JupyterLab's commands to its end (``page.evaluate`` alone has no time limit)."""
        self.page.evaluate(
            """(name) => { window.__ran = null; window.jupyterapp.commands.execute(name)
                .then(() => window.__ran = 'ok', e => window.__ran = String(e)); }""",
            name,
        )
        self.page.wait_for_function("() => window.__ran !== null", timeout=timeout_ms)
        assert self.page.evaluate("() => window.__ran") == "ok"

    def run_all(self) -> None:
        """Run every cell, top to bottom."""
        self.command("notebook:run-all-cells")
        self.idle()

    def errors(self) -> list[str]:
        """Error outputs of all cells."""
        return self.page.evaluate("""() => window.jupyterapp.shell.currentWidget.content.widgets
            .filter(c => c.model.type === 'code').flatMap(c => c.model.outputs.toJSON())
            .filter(o => o.output_type === 'error').map(o => `${o.ename}: ${o.evalue}`)""")


@pytest.fixture(scope="module")
def open_notebook(lab, chromium):
    """Open notebooks of the served folder, each on a page of its own."""
    pages = []

    def go(name: str, width: int = 1280, height: int = 1900) -> Notebook:
        page = chromium.new_page(viewport={"width": width, "height": height})
        pages.append(page)
        return Notebook(page, lab, name)

    yield go
    for page in pages:
        page.close()


@pytest.fixture
def telekit(monkeypatch, capsys):
    """Run a command in this process: (exit status, standard output, standard error)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["telekit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run
