"""Six sheets of two runs: what is alike, what is not, and what may differ."""

import json

import numpy as np
import pytest

from telekit.accuracy.curves.config_check import SHEETS, check_sheet
from telekit.errors import InputError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_settings_of_any_usual_form_are_alike(tmp_path):
    nested = {"model": {"layers": 2, "dropout": 0.0}, "lr": 1e-4}
    one = write(tmp_path / "a.json", json.dumps(nested))
    two = write(tmp_path / "b.yaml", "model:\n  layers: 2\n  dropout: 0.0\nlr: 0.0001\n")
    for golden in (two, {"model.layers": 2, "model.dropout": 0.0, "lr": 1e-4}):
        found = check_sheet("hyperparameters", one, golden)
        assert (found.result, found.compared, found.different) == ("pass", 3, 0)


def test_a_difference_is_listed_unless_it_is_expected(tmp_path):
    ours, theirs = {"tp": 1, "lr": 1e-4, "eps": 1e-8}, {"tp": 2, "lr": 2e-4}
    found = check_sheet("hyperparameters", ours, theirs, expected=["tp"])
    assert found.result == "error" and found.different == 3
    assert {(d.name, d.result) for d in found.differences} == {
        ("lr", "error"),
        ("eps", "error"),
        ("tp", "pass"),
    }
    assert "lr: 0.0001 against 0.0002" in str(found)
    assert check_sheet("hyperparameters", {"tp": 1}, {"tp": 2}, expected=["tp"]).result == "pass"


def test_environment_and_packages_warn(tmp_path):
    one = write(tmp_path / "env1", "export HCCL_DETERMINISTIC=true\nA=1=2\n# comment\n")
    two = write(tmp_path / "env2", "HCCL_DETERMINISTIC=false\nA=1=2\n")
    found = check_sheet("environment", one, two)
    assert (found.result, found.compared, found.different) == ("warning", 2, 1)
    ours = write(tmp_path / "p1", "numpy==2.1.0\nTorch_NPU==2.5.1  # pinned\n-e .\n")
    theirs = write(tmp_path / "p2", "numpy==2.1.0\ntorch-npu==2.6.0\n")
    found = check_sheet("packages", ours, theirs)
    (difference,) = found.differences
    assert found.result == "warning" and difference.name == "torch-npu"
    assert (difference.target, difference.golden) == ("2.5.1", "2.6.0")


def test_data_by_bytes_and_random_calls_by_lines(tmp_path):
    for side, last in (("a", b"x"), ("b", b"y")):
        (tmp_path / side / "deep").mkdir(parents=True)
        (tmp_path / side / "0.bin").write_bytes(b"same")
        (tmp_path / side / "deep" / "1.bin").write_bytes(last)
    found = check_sheet("dataset", tmp_path / "a", tmp_path / "b")
    assert found.result == "error" and [d.name for d in found.differences] == ["deep/1.bin"]
    assert check_sheet("dataset", tmp_path / "a" / "0.bin", tmp_path / "b" / "0.bin").result == "pass"
    one, two = write(tmp_path / "r1", "dropout\nrandn\n"), write(tmp_path / "r2", "dropout\n")
    assert check_sheet("random calls", one, two).result == "warning"


def test_weights_by_value(tmp_path):
    w, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float16)
    np.savez(tmp_path / "a.npz", w=w, b=b)
    np.savez(tmp_path / "b.npz", w=w, b=b.astype(np.float32))
    same = check_sheet("weights", tmp_path / "a.npz", tmp_path / "b.npz")
    assert (same.result, same.compared) == ("pass", 2)
    np.savez(tmp_path / "c.npz", w=w + np.float32(0.5), extra=b)
    found = check_sheet("weights", tmp_path / "c.npz", tmp_path / "a.npz")
    assert found.result == "error" and {d.name for d in found.differences} == {"w", "extra", "b"}
    assert any("apart by 0.5" in str(d.target) for d in found.differences)


def test_what_is_missing_or_wrong():
    assert check_sheet("weights", None, None).note == "not given for both"
    assert check_sheet("dataset", "x", None).result == "skip"
    assert check_sheet("environment", {}, {}).result == "skip"
    with pytest.raises(InputError, match="random calls"):
        check_sheet("moods", {}, {})
    assert len(SHEETS) == 6


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "just words\n"])
def test_a_file_without_settings_is_refused(tmp_path, text):
    with pytest.raises(InputError):
        check_sheet("hyperparameters", write(tmp_path / "x.yaml", text), {"a": 1})
