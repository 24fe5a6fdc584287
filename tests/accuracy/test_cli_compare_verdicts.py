"""``telekit compare``: no difference leaves with exit 0, no input is written over, no text moves the terminal."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from dump_files import dump, npz

X = np.random.default_rng(16).standard_normal((8, 8)).astype(np.float32)


@pytest.fixture
def run(telekit):
    """Run this one command: (exit status, standard output, standard error)."""
    return partial(telekit, "compare")


@pytest.fixture
def excused(tmp_path):
    """Two dumps of an operator whose inputs differ too: msprobe blames neither row."""
    api = "Torch.relu.0.forward"
    sides = (("t", X, X[::-1].copy()), ("g", X[:, ::-1].copy(), X))
    return [dump(tmp_path / n, {api: ([x], [y])}, task="tensor") for n, x, y in sides]


def test_a_located_difference_is_exit_1_unless_the_named_standard_passes(run, excused):
    status, out, _ = run(*excused, "--json")
    answer = json.loads(out)
    assert (status, answer["result"], answer["located"]) == (1, "warning", True)
    assert [(r["Result"], r["Verdict"]) for r in answer["rows"]] == [("pass", "pass")] * 2
    status, out, _ = run(*excused, "--json", "--standard", "msprobe")
    answer = json.loads(out)
    assert (status, answer["result"], answer["located"]) == (0, "pass", True)
    status, out, _ = run(*excused, "--standard", "msprobe")
    assert status == 0 and "warning: the sides part" in out.replace("\n", " ")


def test_nothing_judged_is_exit_1_and_says_so(run, tmp_path):
    file = npz(tmp_path / "a.npz", w=np.arange(9))
    status, out, _ = run(file, file, "--standard", "thousandth")
    assert status == 1 and "nothing was judged" in out
    status, out, _ = run(file, file, "--standard", "thousandth", "--json")
    assert status == 1 and json.loads(out)["result"] == "skip"


def test_what_is_lost_is_in_text_and_json(run, tmp_path):
    for name in ("t", "g"):
        npz(tmp_path / name / "m.npz", w=X)
        (tmp_path / name / "x.ckpt").write_bytes(b"?")
    status, out, _ = run(tmp_path / "t", tmp_path / "g")
    assert status == 0 and out.startswith("warning") and "not compared: " in out and "x.ckpt" in out
    answer = json.loads(run(tmp_path / "t", tmp_path / "g", "--json")[1])
    assert answer["result"] == "warning" and len(answer["problems"]) == 2


def test_replicas_are_in_the_text(run, tmp_path):
    for n, x in ((0, X), (1, -X)):
        npz(tmp_path / "t" / f"rank{n}" / "m.npz", **{"norm.weight": x})
    status, out, _ = run(tmp_path / "t", npz(tmp_path / "g" / "m.npz", **{"norm.weight": X}))
    assert status == 1 and "replicas" in out and "rank 1" in out


@pytest.mark.parametrize(("factor", "status"), [(2, 1), (1, 0)])
def test_who_stops_reading_does_not_change_the_verdict(tmp_path, factor, status):
    arrays = {f"layer{i}.weight": X + i for i in range(400)}
    target = npz(tmp_path / "t.npz", **{k: factor * v for k, v in arrays.items()})
    golden = npz(tmp_path / "g.npz", **arrays)
    read, write = os.pipe()
    words = [sys.executable, "-m", "telekit.cli", "compare", target, golden, "--json"]
    with subprocess.Popen(words, stdout=write, stderr=subprocess.PIPE) as running:
        os.close(write)
        os.close(read)
        _, err = running.communicate(timeout=120)
    assert (running.returncode, err) == (status, b"")


def test_an_input_is_never_written_over(run, tmp_path):
    t, g = npz(tmp_path / "t.npz", w=X), npz(tmp_path / "f" / "g.npz", w=X)
    names = tmp_path / "names.yaml"
    names.write_text("a: b\n")
    kept = t.read_bytes(), g.read_bytes()
    for option in ("--csv", "--html"):
        for file in (t, tmp_path / "f" / ".." / "t.npz", g, names):
            status, out, err = run(t, g.parent, "--mapping", names, option, file)
            assert (status, out) == (2, "") and "is an input" in err
    assert (t.read_bytes(), g.read_bytes(), names.read_text()) == (*kept, "a: b\n")
    assert (
        run(t, t, "--csv", tmp_path / "new.csv")[0] == 0 and run(t, t, "--csv", tmp_path / "new.csv")[0] == 0
    )


def test_text_of_a_file_reaches_the_terminal_harmless(run, tmp_path):
    api = "Torch.\x1b[31mmul\nFAKE\u202e[bold].0.forward"
    sides = [dump(tmp_path / n, {api: ([X], [x])}, task="statistics") for n, x in (("t", 3 * X), ("g", X))]
    status, out, err = run(*sides)
    assert status == 1 and err == ""
    assert not {"\x1b", "\u202e"} & set(out) and "\\x1b[31mmul\\nFAKE\\u202e" in out and "[bold]" in out
    status, out, err = run(tmp_path / "no\x1b[2Jwhere.npz", sides[0])
    assert (status, out) == (2, "") and "\x1b" not in err and "no\\x1b[2Jwhere" in err


def test_messages_are_a_person_s_words(run, tmp_path):
    file = npz(tmp_path / "a.npz", w=X)
    assert "PosixPath" not in run(file, file, "--csv", "/nowhere/at/all.csv")[2]
    names = tmp_path / "names.yaml"
    for text, said in (("- a\n", "mapping = a list"), ("words\n", "mapping = text")):
        names.write_text(text)
        assert said in run(file, file, "--mapping", names)[2]
    for n in range(2):
        npz(tmp_path / "two" / f"rank{n}" / "m.npz", **{"norm.weight": X})
    out = run(tmp_path / "two", npz(tmp_path / "one.npz", **{"norm.weight": X}))[1]
    assert "step None" not in out and "merged 2 ranks" in out
