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
    ours = write(tmp_path / "p1", "numpy==2.1.0\nTorch_NPU==2.5.1  # pinned\n# a remark\n-e .\n")
    theirs = write(tmp_path / "p2", "numpy==2.1.0\ntorch-npu==2.6.0\n-e .\n")
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


def test_packages_from_addresses_and_editable_ones_are_compared(tmp_path):
    text = "numpy==2.0\nMegatron_Core @ git+https://x/y@{0}\n-e git+https://a/b@{0}#egg=msprobe\n"
    text += "torch 2.{0}\n-e /src/{0}\n"
    one, two = (write(tmp_path / n, text.format(n)) for n in ("1111", "2222"))
    assert check_sheet("packages", one, one).result == "pass"
    found = check_sheet("packages", one, two)
    assert found.result == "warning" and found.compared == 6
    names = {d.name: (d.target, d.golden) for d in found.differences}
    assert names["megatron-core"] == ("git+https://x/y@1111", "git+https://x/y@2222")
    assert names["msprobe"][0] == "git+https://a/b@1111#egg=msprobe" and names["torch"] == (
        "2.1111",
        "2.2222",
    )
    assert {"-e /src/1111", "-e /src/2222"} < set(names)
    assert check_sheet("packages", {"a": "2.10"}, {"a": "2.1"}).result == "warning"  # versions are no numbers


def test_settings_are_alike_as_numbers_and_as_texts(tmp_path):
    env = write(tmp_path / "a.env", "lr=1e-4\nflash=true\nname=x\nseed=none\n")
    given = write(tmp_path / "b.yaml", "lr: 0.0001\nflash: true\nname: x\nseed: null\n")
    assert check_sheet("hyperparameters", env, given).result == "pass"
    for one, two in (
        ("1e-4", 2e-4),
        ("true", False),
        ("x", 1),
        ("0", None),
        ([1, 2], [2, 1]),
        ("2.10", "2.1"),
    ):
        assert check_sheet("hyperparameters", {"a": one}, {"a": two}).result == "error", (one, two)
    assert check_sheet("hyperparameters", {"a": float("nan")}, {"a": float("nan")}).result == "pass"


def test_data_behind_links_is_read_and_what_is_not_read_is_said(tmp_path):
    for side in "ab":
        folder = tmp_path / side
        folder.mkdir()
        (tmp_path / f"{side}.bin").write_bytes(side.encode())
        (folder / "train.bin").symlink_to(tmp_path / f"{side}.bin")
    found = check_sheet("dataset", tmp_path / "a", tmp_path / "b")
    assert found.result == "error" and [d.name for d in found.differences] == ["train.bin"]
    assert check_sheet("dataset", tmp_path / "a", tmp_path / "a").result == "pass"
    for name, to in (("gone", "nowhere"), ("more", tmp_path / "b")):
        link = tmp_path / "a" / name
        link.symlink_to(to)
        same = check_sheet("dataset", tmp_path / "a", tmp_path / "a")
        assert same.result == "warning" and "not read" in str(same)
        link.unlink()


def test_weights_that_are_not_read_whole_do_not_pass(tmp_path):
    for side in "ab":
        (tmp_path / side).mkdir()
        np.savez(tmp_path / side / "m.npz", w=np.ones(4))
    assert check_sheet("weights", tmp_path / "a", tmp_path / "b").result == "pass"
    for side in "ab":
        (tmp_path / side / "x.safetensors").write_bytes(bytes(range(40)))
    found = check_sheet("weights", tmp_path / "a", tmp_path / "b")
    assert found.result == "warning" and "2 problems in reading" in str(found)


def test_complex_weights_are_compared_and_stop_nothing(tmp_path):
    for name, z in (("a", [1 + 2j]), ("b", [1 + 2j]), ("c", [1 - 2j])):
        np.savez(tmp_path / f"{name}.npz", z=np.array(z), w=np.ones(2))
    assert check_sheet("weights", tmp_path / "a.npz", tmp_path / "b.npz").result == "pass"
    found = check_sheet("weights", tmp_path / "a.npz", tmp_path / "c.npz")
    assert found.result == "error" and [d.name for d in found.differences] == ["z"]
