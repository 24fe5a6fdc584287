"""``telekit compare-loss``: the design's JSON fields, exit codes, and one message for bad input."""

import json

import numpy as np
import pytest

FIELDS = {"first_step", "mean", "grad_norm", "drift", "verdict", "suspect"}


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.fixture
def logs(tmp_path):
    """Write a curve as CSV: logs(name, losses, norms)."""

    def write(name, loss, norms=None, aux=None):
        head, columns = ["step", "loss"], [range(1, len(loss) + 1), loss]
        for title, values in (("grad_norm", norms), ("aux_loss", aux)):
            if values is not None:
                head.append(title)
                columns.append(values)
        rows = [",".join(head), *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(rows), encoding="utf-8")
        return path

    return write


BASE = 3 + 8 * np.exp(-np.arange(60) / 20)


def test_equal_curves_exit_0(telekit, logs):
    path = logs("a", BASE, np.ones(60))
    status, out, err = telekit("compare-loss", path, path, "--json")
    found = strict(out)
    assert (status, err) == (0, "") and found.keys() >= FIELDS
    assert found["verdict"] == "pass" and found["suspect"]["cause"] == "identical"
    assert all(found[field]["result"] == "pass" for field in ("first_step", "mean", "grad_norm", "drift"))
    assert found["first_step"]["step"] == 1 and found["mean"]["mre"] == 0


def test_a_scaled_curve_exits_1_and_names_the_group(telekit, logs):
    words = ("compare-loss", logs("t", 2 * BASE), logs("g", BASE), "--sizes", "tp=4,cp=2")
    status, out, _ = telekit(*words, "--json")
    found = strict(out)
    assert status == 1 and found["verdict"] == "error" and found["shape"] == "bad first, bad mean"
    assert found["suspect"]["cause"] == "scaling" and found["suspect"]["confidence"] == 0.95
    assert found["grad_norm"] == {
        "limit": 0.1, "result": "skip", "rule": "mean relative error <= 0.1", "note": "not logged by both"
    }  # fmt: skip
    status, out, _ = telekit(*words)
    assert status == 1 and "scaling" in out and "first step" in out


def test_infinite_errors_are_still_json(telekit, logs):
    status, out, _ = telekit(
        "compare-loss", logs("t", [1.0, "nan", 1.0]), logs("g", [0.0, 1.0, 1.0]), "--json"
    )
    found = strict(out)
    assert status == 1 and found["first_step"]["rel_error"] == "inf"
    assert found["suspect"]["cause"] == "non-finite"


def test_noise_learning_rate_0_and_subtraction(telekit, logs):
    golden, aux = logs("g", BASE), np.full(60, 0.3)
    with_aux = logs("t", BASE + aux, aux=aux)
    assert telekit("compare-loss", with_aux, golden)[0] == 1
    assert telekit("compare-loss", with_aux, golden, "--subtract-target", "aux_loss")[0] == 0
    noisy = logs("n", BASE + 0.4)
    status, out, _ = telekit("compare-loss", with_aux, golden, "--noise", noisy, "--json")
    found = strict(out)
    assert (
        status == 0 and found["self_noise"]["runs"] == 2 and found["mean"]["limit_abs"] == pytest.approx(0.4)
    )
    moved = logs("m", BASE * (1 + 0.05 * np.linspace(0, 1, 60) ** 2))
    still = logs("s", np.full(60, 11.0))
    status, out, _ = telekit("compare-loss", moved, golden, "--lr-zero", still, still, "--json")
    assert status == 1 and strict(out)["suspect"]["cause"] == "optimizer"


def test_micro_batches_explain_an_offset(telekit, logs):
    target, golden = logs("t", [3.0]), logs("g", [240 / 110])
    status, out, _ = telekit("compare-loss", target, golden, "--micro-batches", "4.0:10,2.0:100", "--json")
    assert status == 1 and strict(out)["suspect"]["cause"] == "mean of micro-batch means"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--standard", "best"), "mindformers, msprobe-guide"),
        (("--sizes", "tp"), "tp=2,tokens=4096"),
        (("--sizes", "tp=-1"), "above 0"),
        (("--micro-batches", "4.0"), "4.0:10,2.0:100"),
        (("--micro-batches", "4.0:nan"), "4.0:10,2.0:100"),
        (("--target-column", "ce"), "is not in the file"),
        (("--subtract-golden", "aux"), "is not in the file"),
        (("--noise", "nowhere.csv"), "nowhere.csv"),
        (("--layers", "0"), "layers"),
        (("--dtype", "int4"), "int4"),
    ],
)
def test_bad_input_exits_2_with_one_message(telekit, logs, options, said):
    path = logs("a", BASE, np.ones(60))
    status, out, err = telekit("compare-loss", path, path, *options, "--json")
    assert (status, out) == (2, "") and said in err and "Traceback" not in err


def test_files_that_are_no_logs_exit_2(telekit, logs, tmp_path):
    (tmp_path / "x.log").write_text("hello", encoding="utf-8")
    for wrong in (tmp_path / "x.log", tmp_path / "none.json", tmp_path):
        status, out, err = telekit("compare-loss", wrong, logs("a", BASE))
        assert (status, out) == (2, "") and err.startswith("telekit: ")


def test_columns_and_what_is_left_out_are_said_in_text_and_json(telekit, logs, tmp_path):
    odd, golden = (
        logs("t", [x if i < 10 else "*****" for i, x in enumerate(BASE)], np.ones(60)),
        logs("g", BASE),
    )
    status, out, _ = telekit("compare-loss", odd, golden, "--json")
    found = strict(out)
    assert (status, found["verdict"], found["suspect"]["confidence"]) == (0, "warning", 0.5)
    assert found["columns"] == {
        "target": {"loss": "loss", "grad_norm": "grad_norm"}, "golden": {"loss": "loss", "grad_norm": None}
    }  # fmt: skip
    assert found["coverage"]["steps"] == 10 and "50 losses of target" in found["coverage"]["gaps"][0]
    _, out, _ = telekit("compare-loss", odd, golden)
    text = " ".join(out.split())
    assert "compared at 10 steps, target beside golden: loss 'loss' beside 'loss'" in text
    assert "50 losses of target are no numbers" in text and "more; --json has them" in text
    other = tmp_path / "a.csv"
    other.write_text(golden.read_text().replace("loss", "accuracy"))
    status, out, _ = telekit("compare-loss", other, golden)
    assert status == 0 and "target's accuracy beside golden's loss" in " ".join(out.split())
