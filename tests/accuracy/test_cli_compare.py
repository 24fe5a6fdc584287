"""``telekit compare``: JSON alone on standard output, exit codes, files, one message for bad input."""

import csv
import json
from functools import partial

import numpy as np
import pytest


@pytest.fixture
def run(telekit):
    """Run this one command: (exit status, standard output, standard error)."""
    return partial(telekit, "compare")


@pytest.fixture
def pair(tmp_path):
    """Two files that differ by a factor in one tensor of two."""
    x = np.linspace(-1, 1, 64).reshape(8, 8)
    np.savez(tmp_path / "t.npz", a=2 * x, b=x)
    np.savez(tmp_path / "g.npz", a=x, b=x)
    return tmp_path / "t.npz", tmp_path / "g.npz"


def test_json_has_the_promised_fields_and_msprobe_s_columns(run, pair):
    status, out, err = run(*pair, "--json")
    answer = json.loads(out)
    assert (status, err) == (1, "")
    assert answer["result"] == "error" and answer["standard"] == "msprobe-documented"
    assert answer["first_divergence"]["tensor"] == "a"
    assert [row["NPU Name"] for row in answer["rows"]] == ["a", "b"]
    assert {"Cosine", "MaxAbsErr", "One Thousandth Err Ratio", "Result", "Err_message"} <= set(
        answer["rows"][0]
    )
    assert answer["rows"][0]["MaxAbsErr"] == 1.0 and answer["rows"][1]["Result"] == "pass"


def test_equal_sides_are_exit_0(run, pair):
    status, out, _ = run(pair[1], pair[1])
    assert status == 0 and out.startswith("pass by msprobe-documented")


def test_a_person_reads_where_and_why(run, pair):
    status, out, _ = run(*pair)
    assert status == 1 and "first divergence: a" in out and "scale" in out


def test_files_are_written(run, pair, tmp_path):
    table, page = tmp_path / "table.csv", tmp_path / "page.html"
    status, out, _ = run(*pair, "--csv", table, "--html", page, "--json")
    assert status == 1 and json.loads(out)["written"] == [str(table), str(page)]
    with table.open(newline="") as lines:
        assert [row["Result"] for row in csv.DictReader(lines)] == ["error", "pass"]
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_mapping_file_and_another_standard(run, pair, tmp_path):
    x = np.linspace(-1, 1, 64).reshape(8, 8)
    np.savez(tmp_path / "other.npz", c=x)
    np.savez(tmp_path / "one.npz", b=x)
    names = tmp_path / "names.yaml"
    names.write_text("c: b\n")
    words = (tmp_path / "other.npz", tmp_path / "one.npz", "--mapping", names, "--standard", "torch")
    assert run(*words)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--standard", "mine"), "must be one of msprobe"),
        (("--match", "near"), "name, order, fuzzy"),
        (("--mapping", "none.yaml"), "none.yaml"),
        (("--csv", "/nowhere/at/all.csv"), "cannot be written"),
        (("--html", "/nowhere/at/all.html"), "cannot be written"),
    ],
)  # fmt: skip
def test_bad_input_is_exit_2_with_one_message(run, pair, words, message):
    status, out, err = run(*pair, *words)
    assert (status, out) == (2, "") and message in err and "Traceback" not in err


def test_a_missing_or_hostile_file_is_exit_2(run, pair, tmp_path):
    pickle = tmp_path / "bare.pt"
    pickle.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    for wrong, message in ((tmp_path / "none.npz", "cannot be read"), (pickle, "never loaded")):
        status, out, err = run(wrong, pair[1])
        assert (status, out) == (2, "") and message in err.replace("\n", " ")
