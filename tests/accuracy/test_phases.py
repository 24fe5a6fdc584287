"""The three phases as a checklist: what is open, what is filled, and what comes next."""

import json

import numpy as np
import pytest

from telekit.accuracy.curves.phase_items import LONG, OPEN, PHASES, PREPARATION, SHORT
from telekit.accuracy.curves.phases import RunFiles, check_phases
from telekit.accuracy.readers.curve import LossCurve

BASE = 3 + 8 * np.exp(-np.arange(1200) / 200)
ENVIRONMENT = {"HCCL_DETERMINISTIC": "true", "ASCEND_LAUNCH_BLOCKING": "1"}
SETTINGS = {"model.hidden_dropout": 0.0, "lr_warmup_iters": 0, "lr": 1e-4}
SHEETS = {
    "environment": ENVIRONMENT, "packages": {"torch": "2.6"}, "dataset": {"data": "0f"}, "weights": {"w": "1a"},
    "hyperparameters": SETTINGS, "random_calls": {"line 1": "randn"},
}  # fmt: skip


def log(path, loss, norm=None):
    norms = np.ones(len(loss)) if norm is None else norm
    rows = [f"{i},{a},{b}" for i, (a, b) in enumerate(zip(loss, norms, strict=True), 1)]
    path.write_text("\n".join(["step,loss,grad_norm", *rows]), encoding="utf-8")
    return path


def item(report, name):
    return next(i for i in report.items if i.name == name)


def test_with_nothing_given_everything_is_open():
    report = check_phases(RunFiles(), RunFiles())
    assert {i.result for i in report.items} == {OPEN} and not report.ready
    assert [report.result(phase) for phase in PHASES] == [OPEN] * 3
    assert report.next.phase == PREPARATION and all(i.how for i in report.items)
    json.dumps(report.to_dict(), allow_nan=False)


def test_each_item_says_whose_practice_it_is():
    report = check_phases(RunFiles(), RunFiles())
    assert all(i.practice.startswith(("msprobe practice", "MindFormers practice")) for i in report.items)
    assert "thresholds are not public" in report.source and "TeleChat3" in report.source


def test_two_runs_that_agree_fill_every_item(tmp_path):
    noise = np.random.default_rng(0).normal(size=(4, 1200)) * 1e-4
    still = np.full(1200, 11.0)
    golden = RunFiles(
        **SHEETS, losses=log(tmp_path / "g.csv", BASE), lr_zero=log(tmp_path / "gz.csv", still),
        noise=(log(tmp_path / "n.csv", BASE + noise[0]),),
    )  # fmt: skip
    target = RunFiles(
        **SHEETS, losses=log(tmp_path / "t.csv", BASE + noise[1]), lr_zero=log(tmp_path / "tz.csv", still + noise[2])
    )  # fmt: skip
    report = check_phases(target, golden)
    assert {i.result for i in report.items} == {"pass"} and report.ready and report.next is None
    assert [report.result(phase) for phase in PHASES] == ["pass"] * 3
    assert "2 runs differ by" in item(report, "golden's self-noise known").found


def test_a_bad_first_sheet_comes_first(tmp_path):
    other = SHEETS | {"weights": {"w": "2b"}}
    report = check_phases(RunFiles(**other), RunFiles(**SHEETS))
    assert not report.ready and report.result(PREPARATION) == "error"
    assert report.next.name == "same weights" and "w: 2b against 1a" in report.next.found


def test_an_optimizer_fault_shows_at_the_second_step(tmp_path):
    moved = BASE.copy()
    moved[1:] *= 1.02
    report = check_phases(
        RunFiles(losses=log(tmp_path / "t.csv", moved)), RunFiles(losses=log(tmp_path / "g.csv", BASE))
    )
    results = {i.name: i.result for i in report.items if i.phase == SHORT}
    assert results == {
        "step-1 loss agrees (forward)": "pass", "step-1 gradient norm agrees (backward)": "pass",
        "step-2 loss agrees (optimizer)": "error", "loss finite where golden's is": "pass",
    }  # fmt: skip
    assert report.next.name.startswith("step-2") and report.verdict.suspect.cause == "optimizer"


def test_learning_rate_0_is_judged_and_short_runs_are_said(tmp_path):
    still = np.full(500, 11.0)
    pair = [RunFiles(lr_zero=log(tmp_path / f"{n}.csv", still + off)) for n, off in (("t", 0.001), ("g", 0))]
    zero = item(check_phases(*pair), "learning rate 0 for 1,000 steps agrees")
    assert (
        zero.phase == LONG
        and zero.result == "warning"
        and zero.found.startswith("500 steps: mean error 0.001")
    )
    bad = RunFiles(lr_zero=log(tmp_path / "b.csv", still + 0.5))
    assert item(check_phases(bad, pair[1]), "learning rate 0 for 1,000 steps agrees").result == "error"


def test_determinism_and_dropout_are_read_from_the_files(tmp_path):
    env = tmp_path / "env"
    env.write_text("NCCL_ALGO=Tree\nNVTE_ALLOW_NONDETERMINISTIC_ALGO=0\n", encoding="utf-8")
    loud = RunFiles(environment=env, hyperparameters={"attention_dropout": 0.1, "lr_warmup_iters": 0})
    report = check_phases(loud, RunFiles(environment=ENVIRONMENT, hyperparameters=SETTINGS))
    fixed = item(report, "randomness fixed")
    assert fixed.result == "warning" and "NCCL_ALGO=Tree" in fixed.found
    assert "golden: HCCL_DETERMINISTIC, ASCEND_LAUNCH_BLOCKING" in fixed.found
    quiet = item(report, "dropout and warm-up off, learning rate constant")
    assert quiet.result == "warning" and quiet.found == "target attention_dropout = 0.1"


def results(report):
    return {i.name: i.result for i in report.items}


def made(loss):
    steps = np.arange(1, len(loss) + 1)
    return LossCurve(
        steps, {"lm loss": np.asarray(loss, float)}, {"lm loss": np.ones(len(loss), bool)}, "made"
    )


def test_a_loss_that_is_nan_from_step_2_on_fails_in_short_and_long():
    lost = np.r_[BASE[0], np.full(BASE.size - 1, np.nan)]
    report = check_phases(RunFiles(losses=made(lost)), RunFiles(losses=made(BASE)))
    found = results(report)
    assert found["step-1 loss agrees (forward)"] == "pass"
    assert found["step-2 loss agrees (optimizer)"] == found["loss finite where golden's is"] == "error"
    assert found["all losses finite, read and compared"] == "error" and found["long enough"] == OPEN
    assert report.result(SHORT) == report.result(LONG) == "error"
    norms = LossCurve(
        np.arange(1, 1201), {"loss": BASE, "grad norm": np.full(1200, np.nan)},
        {n: np.ones(1200, bool) for n in ("loss", "grad norm")},
    )  # fmt: skip
    fine = LossCurve(norms.steps, norms.columns | {"grad norm": np.ones(1200)}, norms.present)
    found = results(check_phases(RunFiles(losses=norms), RunFiles(losses=fine)))
    assert found["step-1 gradient norm agrees (backward)"] == found["gradient norm within 10 %"] == "error"


def test_runs_with_learning_rate_0_are_not_judged_by_the_noise_of_training():
    """Two training runs beside a run that stands still are up to 266 % apart: no limit for another still run."""
    rng = np.random.default_rng(0)
    noise = [made(BASE + rng.normal(0, 1e-3, 1200)) for _ in range(2)]
    still = np.full(1200, 10.0)
    golden = RunFiles(losses=made(BASE), lr_zero=made(still), noise=(noise[0],))
    name = "learning rate 0 for 1,000 steps agrees"
    for off, result in ((0.8, "error"), (0.0, "pass")):
        report = check_phases(RunFiles(losses=noise[1], lr_zero=made(still + off)), golden)
        assert results(report)[name] == result and report.lr_zero.mean_limit.relative == 0.01
    drifting = made(10 + 2 * np.linspace(0, 1, 1200) ** 2)
    assert results(check_phases(RunFiles(losses=noise[1], lr_zero=drifting), golden))[name] == "error"


def test_a_still_run_without_a_number_fails_and_does_not_stop_the_rest():
    lost, still = made(np.full(1200, np.nan)), made(np.full(1200, 10.0))
    name = "learning rate 0 for 1,000 steps agrees"
    for target, golden in ((lost, still), (lost, lost)):
        report = check_phases(
            RunFiles(losses=made(BASE), lr_zero=target), RunFiles(losses=made(BASE), lr_zero=golden)
        )
        assert item(report, name).result == "error" and "no such pair" not in item(report, name).found
        assert results(report)["mean loss error within its limit"] == "pass"
    report = check_phases(RunFiles(losses=lost), RunFiles(losses=lost))
    assert report.next.name == "step-1 loss agrees (forward)" and "NaN or Inf in both" in report.next.found


def test_a_target_that_ends_early_is_said_in_the_long_phase():
    report = check_phases(RunFiles(losses=made(BASE[:10])), RunFiles(losses=made(BASE)))
    found = item(report, "all losses finite, read and compared")
    assert found.result == "warning" and "10 of golden's 1200 steps" in found.found


@pytest.mark.parametrize("loud", [0.1, "0.1", "'0.1'", "1e-1", [0.0, 0.1], True, "auto"])
@pytest.mark.parametrize("side", [0, 1])
def test_dropout_on_either_side_is_seen_in_any_form(loud, side):
    settings = [{"model.hidden_dropout": 0.0, "encoder.hidden_dropout": 0.0} for _ in range(2)]
    settings[side]["model.hidden_dropout"] = loud
    report = check_phases(*(RunFiles(hyperparameters=s) for s in settings), expected=["model.hidden_dropout"])
    quiet = item(report, "dropout and warm-up off, learning rate constant")
    assert quiet.result == "warning"
    assert quiet.found == f"{('target', 'golden')[side]} model.hidden_dropout = {loud}"


@pytest.mark.parametrize("off", [0, 0.0, "0", "0.0", "0e0", None, "None", False, [0.0, 0]])
def test_dropout_that_is_off_passes_in_any_form(off):
    runs = [RunFiles(hyperparameters={"attention-dropout": off})] * 2
    assert item(check_phases(*runs), "dropout and warm-up off, learning rate constant").result == "pass"


def test_a_file_of_settings_holds_numbers(tmp_path):
    path = tmp_path / "run.env"
    path.write_text("hidden_dropout=0.1\nlr=1e-4\n", encoding="utf-8")
    report = check_phases(*[RunFiles(hyperparameters=path)] * 2)
    assert item(report, "dropout and warm-up off, learning rate constant").result == "warning"
