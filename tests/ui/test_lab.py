"""JupyterLab on the index: the folder of notebooks, the arguments, and one real server."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.ui import lab


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Notebooks as they lie in a wheel: inside the package."""
    source = tmp_path / "telekit" / "notebooks"
    (source / "companions").mkdir(parents=True)
    for name in ("index.ipynb", "08_plan.ipynb", "companions/other.ipynb"):
        (source / name).write_text(f"first {name}")
    (source / ".ipynb_checkpoints").mkdir()
    (source / ".ipynb_checkpoints" / "index-checkpoint.ipynb").write_text("left over")
    monkeypatch.setattr(catalog, "notebooks", lambda: source)
    monkeypatch.setattr(catalog, "__file__", str(tmp_path / "telekit" / "catalog.py"))
    monkeypatch.chdir(tmp_path)
    return source


def test_a_checkout_is_served_in_place():
    assert lab.prepare() == lab.Notebooks(catalog.notebooks())


def test_a_wheel_copies_to_a_folder_of_the_users(shipped, tmp_path):
    ready = lab.prepare()
    assert ready.folder == tmp_path / "telekit-notebooks"
    assert ready.copied == ("08_plan.ipynb", "companions/other.ipynb", "index.ipynb")
    assert (ready.folder / "companions" / "other.ipynb").read_text() == "first companions/other.ipynb"
    assert not (ready.folder / ".ipynb_checkpoints").exists()
    again = lab.prepare()
    assert (again.copied, again.updated, again.kept) == ((), (), ())


def test_what_the_user_changed_is_kept_for_ever_and_said(shipped, tmp_path):
    folder = tmp_path / "mine"
    lab.prepare(folder)
    (folder / "08_plan.ipynb").write_text("my notes")
    for version in ("second", "third"):
        for path in shipped.glob("*.ipynb"):
            path.write_text(version)
        ready = lab.prepare(folder)
        assert ready.updated == ("index.ipynb",) and ready.kept == ("08_plan.ipynb",)
        assert (folder / "08_plan.ipynb").read_text() == "my notes"
        assert (folder / "index.ipynb").read_text() == version
        assert "kept as you changed them: 08_plan.ipynb" in str(ready)


def test_a_file_that_was_there_before_is_never_overwritten(shipped, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "index.ipynb").write_text("someone else's")
    assert lab.prepare(folder).kept == ("index.ipynb",)
    (folder / lab.MANIFEST).write_text("not json")
    assert lab.prepare(folder).kept == ("index.ipynb",)
    assert (folder / "index.ipynb").read_text() == "someone else's"


def test_a_deleted_notebook_comes_back(shipped, tmp_path):
    folder = tmp_path / "mine"
    lab.prepare(folder)
    (folder / "index.ipynb").unlink()
    assert lab.prepare(folder).copied == ("index.ipynb",)


def test_a_folder_that_cannot_be_written_is_named(shipped, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"dir = .*cannot hold the notebooks.*give a folder you own"):
            lab.prepare(folder)


def test_an_install_without_notebooks_is_said(shipped):
    (shipped / "index.ipynb").unlink()
    with pytest.raises(InputError, match="install telekit again"):
        lab.prepare()


@pytest.mark.parametrize("port", [0, -1, 65536, True])
def test_impossible_ports(port):
    with pytest.raises(InputError, match=r"port = .*1 to 65535"):
        lab.launch(port=port)


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind((lab.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port = {port}: is in use"):
            lab.launch(port=port)


def test_arguments_stay_on_this_machine(tmp_path):
    given = lab.arguments(tmp_path, browser=False, port=9123)
    assert {"--ServerApp.ip=127.0.0.1", "--ServerApp.port=9123", "--ServerApp.port_retries=0"} <= set(given)
    assert {"--ServerApp.open_browser=False", "--LabApp.news_url=None"} <= set(given)
    assert not any("port" in argument for argument in lab.arguments(tmp_path, True, None))


def test_a_real_server_answers_with_the_index_and_stops(tmp_path):
    with socket.socket() as free:
        free.bind((lab.HOST, 0))
        port = free.getsockname()[1]
    folder = tmp_path / "books"
    homes = {f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    homes |= {f"JUPYTERLAB_{name}_DIR": str(tmp_path / name) for name in ("SETTINGS", "WORKSPACES")}
    code = f"""
import sys
from telekit.ui.lab import launch
sys.exit(launch({str(folder)!r}, browser=False, port={port}, say=print))
"""
    token = "for-this-test"
    server = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=os.environ | homes | {"JUPYTER_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        page = _get(server, f"http://{lab.HOST}:{port}/lab/tree/index.ipynb?token={token}")
        listing = _get(server, f"http://{lab.HOST}:{port}/api/contents?token={token}")
    finally:
        server.send_signal(signal.SIGTERM)
        output = server.communicate(timeout=30)[0]
    assert server.returncode == 0, output
    assert f"Notebooks are in {folder}" in output
    assert '"news": {"disabled": true}' in page
    shipped = {path.name for path in catalog.notebooks().glob("*.ipynb")}
    assert shipped and shipped <= {entry["name"] for entry in json.loads(listing)["content"]}


def _get(server, url, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.poll() is None, server.communicate()[0]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
        time.sleep(0.2)
    raise AssertionError(f"no answer from {url} in {seconds} s")
