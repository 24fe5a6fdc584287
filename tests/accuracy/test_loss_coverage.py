"""What a comparison of losses leaves out: values that are no numbers, runs that end early, columns of other things."""

import json

import numpy as np
import pytest

from telekit.accuracy.curves.curve_coverage import Columns
from telekit.accuracy.curves.curve_statistics import away, onset, trend
from telekit.accuracy.curves.judge import judge_curves
from telekit.accuracy.readers import losses
from telekit.accuracy.readers.curve import LossCurve, as_number

N = 2000
BASE = 8 * np.exp(-np.arange(N) / 500) + 2 + np.random.default_rng(0).normal(0, 0.02, N)


def curve(loss, norm=None, steps=None, name="lm loss"):
    loss = np.asarray(loss, float)
    columns = {name: loss} | ({} if norm is None else {"grad norm": np.asarray(norm, float)})
    at = np.arange(1, loss.size + 1) if steps is None else np.asarray(steps)
    return LossCurve(
        at.astype(np.int64), columns, {n: np.ones(loss.size, bool) for n in columns}, "made", "csv"
    )


def table(path, rows, head="step,loss"):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return losses(path)


# ---- gradient norms ----


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_norm_that_is_lost_at_every_step_fails(value):
    found = judge_curves(curve(BASE, np.full(N, value)), curve(BASE, np.ones(N)))
    part = found.verdict.part("gradient norm")
    assert found.result == "error" and part.result == "error" and "target alone at 2000 steps" in part.note
    assert found.verdict.part("gradient norm, epsilon bound").result == "error"
    assert found.suspect.cause == "non-finite" and "gradient norm is NaN or Inf" in found.suspect.evidence
    json.dumps(found.to_dict(), allow_nan=False)


def test_norms_lost_by_golden_or_by_both_warn_and_are_not_called_unlogged():
    ones, lost = np.ones(N), np.full(N, np.nan)
    few = np.where(np.arange(N) >= N - 5, np.nan, 1.0)
    for target, golden, said in (
        (ones, lost, "golden alone at 2000"), (lost, lost, "both at 2000"), (ones, few, "golden alone at 5"),
        (few, few, "both at 5"),
    ):  # fmt: skip
        found = judge_curves(curve(BASE, target), curve(BASE, golden))
        part = found.verdict.part("gradient norm")
        assert (found.result, part.result) == ("warning", "warning") and said in part.note
        assert found.suspect.confidence < 1
    assert judge_curves(curve(BASE, few), curve(BASE, ones)).verdict.part("gradient norm").result == "error"
    apart = LossCurve(
        np.arange(1, N + 1), {"lm loss": BASE, "grad norm": ones},
        {"lm loss": np.ones(N, bool), "grad norm": np.arange(N) % 2 == 0}, "made",
    )  # fmt: skip
    other = LossCurve(
        apart.steps, apart.columns, apart.present | {"grad norm": np.arange(N) % 2 == 1}, "made"
    )
    assert judge_curves(apart, other).verdict.part("gradient norm").result == "warning"


def test_norms_that_end_early_or_cannot_be_read_warn(tmp_path):
    golden = table(tmp_path / "g.csv", [(i, x, 1.0) for i, x in enumerate(BASE)], "step,loss,grad_norm")
    for word, said in (("", "end at step 9"), ("*****", "1990 gradient norms of target are no numbers")):
        rows = [(i, x, 1.0 if i < 10 else word) for i, x in enumerate(BASE)]
        found = judge_curves(table(tmp_path / "t.csv", rows, "step,loss,grad_norm"), golden)
        part = found.verdict.part("gradient norm")
        assert part.result == "warning" and said in part.note
    rows = [(i, x, "*") for i, x in enumerate(BASE)]
    part = judge_curves(table(tmp_path / "t.csv", rows, "step,loss,grad_norm"), golden).verdict.part(
        "gradient norm"
    )
    assert part.result == "warning" and "2000 gradient norms" in part.note


# ---- losses that are left out ----


@pytest.mark.parametrize("word", ["oops", "*****", "1,234"])
@pytest.mark.parametrize("side", ["target", "golden", "both"])
def test_losses_that_are_no_numbers_are_a_warning(tmp_path, word, side):
    whole = table(tmp_path / "g.csv", enumerate(BASE))
    rows = [(i, x if i < 10 else f'"{word}"') for i, x in enumerate(BASE)]
    broken = table(tmp_path / "t.csv", rows)
    pair = {"target": (broken, whole), "golden": (whole, broken), "both": (broken, broken)}[side]
    found = judge_curves(*pair)
    part = found.verdict.part("steps compared")
    assert found.result == part.result == "warning" and part.value == 10 and "1990 losses of" in part.note
    assert found.suspect.cause == "identical" and found.suspect.confidence == 0.5
    assert found.to_dict()["coverage"]["gaps"]


def test_one_unread_loss_is_a_warning_and_one_unread_rate_is_not(tmp_path):
    golden = table(tmp_path / "g.csv", enumerate(BASE))
    one = table(tmp_path / "t.csv", [(i, "?" if i == 1000 else x) for i, x in enumerate(BASE)])
    assert judge_curves(one, golden).result == "warning"
    rows = [(i, x, "?") for i, x in enumerate(BASE)]
    assert judge_curves(table(tmp_path / "r.csv", rows, "step,loss,rate"), golden).result == "pass"


def test_a_loss_column_without_a_number_is_not_replaced_in_silence(tmp_path):
    rows = [(i, "?", 1.0) for i in range(N)]
    curves = [table(tmp_path / f"{n}.csv", rows, "step,loss,throughput") for n in "ab"]
    assert curves[0].loss == "throughput"  # the only one that holds numbers
    part = judge_curves(*curves).verdict.part("steps compared")
    assert part.result == "warning" and "2000 losses of target" in part.note


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("400.0", 400.0), ("-nan(ind)", None), ("nan", None), ("-NaN", None), ("nan(snan)", None), ("1.#QNAN", None),
        ("-1.#IND", None), ("Infinity", np.inf), ("-inf", -np.inf), ("1.#INF", np.inf), ("+1e400", np.inf),
    ],
)  # fmt: skip
def test_words_of_c_libraries_are_nan_and_infinity(text, value):
    found = as_number(text)
    assert found is not None and (np.isnan(found) if value is None else found == value)


@pytest.mark.parametrize("text", ["", "oops", "*****", "1_0", "1,5", "None", "null", "nano", "infer", "0x1"])
def test_other_words_are_no_numbers(text):
    assert as_number(text) is None


@pytest.mark.parametrize("word", ["-nan(ind)", "Infinity", "-1.#IND"])
def test_a_loss_that_such_a_word_stands_for_is_not_finite(tmp_path, word):
    golden = table(tmp_path / "g.csv", enumerate(BASE))
    lost = table(tmp_path / "t.csv", [(i, x if i < 10 else word) for i, x in enumerate(BASE)])
    log = tmp_path / "t.log"
    log.write_text(
        "".join(f" iteration {i}/ {N} | lm loss: {x if i < 10 else word} |\n" for i, x in enumerate(BASE))
    )
    bare = tmp_path / "bare.log"
    bare.write_text(log.read_text().replace("lm loss:", "lm loss"))
    for target in (lost, losses(log), losses(bare)):
        found = judge_curves(target, golden)
        assert found.result == "error" and found.verdict.part("finite").value == N - 10


def test_golden_json_with_texts_and_nulls(tmp_path):
    path = tmp_path / "g.json"
    for word, result in (("Infinity", "error"), ("nan", "error"), (None, "warning")):
        values = {str(i): (str(x) if i < 10 else word) for i, x in enumerate(BASE[:40])}
        path.write_text(json.dumps({"lm loss": {"values": values}}))
        assert judge_curves(losses(path), curve(BASE[:40], steps=range(40))).result == result
    path.write_text(json.dumps({"lm loss": {"values": {"0": "400.0", "1": 400.0}}}))
    assert losses(path).series("lm loss")[1].tolist() == [400.0, 400.0]


# ---- runs that are compared in part ----


@pytest.mark.parametrize("steps", [slice(0, 10), slice(N - 1, N), slice(0, N // 2), slice(0, N, 3)])
def test_a_part_of_golden_is_a_warning_on_either_side(steps):
    at = np.arange(N)[steps]
    part, other = curve(BASE[steps], steps=at), curve(BASE, steps=np.arange(N))
    if steps.step:  # what logs every third step covers the run
        assert judge_curves(part, other).result == "pass" and judge_curves(other, part).result == "pass"
        return
    for pair in ((part, other), (other, part)):
        found = judge_curves(*pair)
        assert found.result == "warning" and found.passed and found.suspect.confidence < 1
        assert found.verdict.part("steps compared").value == at.size


def test_a_resumed_run_a_slightly_shorter_one_and_whole_short_ones_pass():
    assert (
        judge_curves(curve(BASE[1000:], steps=range(1000, N)), curve(BASE, steps=range(N))).result == "pass"
    )
    assert judge_curves(curve(BASE[:1900]), curve(BASE)).result == "pass"
    assert judge_curves(curve(BASE[:3]), curve(BASE[:3])).result == "pass"


def test_steps_that_hardly_meet_are_a_warning():
    ours, theirs = curve(BASE[::2], steps=range(0, N, 2)), curve(BASE[::3], steps=range(0, N, 3))
    part = judge_curves(ours, theirs).verdict.part("steps compared")
    assert part.result == "warning" and "of 667 steps between 0 and 1998 both log 334" in part.note


def test_nan_on_both_sides_is_a_warning_and_huge_is_not_called_nan():
    lost = BASE.copy()
    lost[10:] = np.nan
    found = judge_curves(curve(lost), curve(lost))
    assert (
        found.result == "warning" and "1990 steps are NaN or Inf on both sides" in found.verdict.parts[0].note
    )
    lost[10:] = 1e308
    found = judge_curves(curve(lost), curve(lost))
    assert "NaN, Inf or beyond 1e+100 on both sides" in found.verdict.messages[0]
    with pytest.raises(ValueError, match=r"1e\+100 or more: is NaN, Inf or beyond 1e\+100 in both"):
        judge_curves(curve([1e308]), curve([1e308]))


def test_a_file_that_is_not_read_whole_is_a_warning(tmp_path):
    golden = table(tmp_path / "g.csv", enumerate(BASE))
    for odd in (
        "1500,2,5\n",
        "oops,2.5\n",
        '1500,"2.5\n',
    ):  # a decimal comma, no step, a quote that never closes
        path = tmp_path / "t.csv"
        rows = [f"{i},{x}\n" for i, x in enumerate(BASE)]
        path.write_text("step,loss\n" + "".join([*rows[:1500], odd, *rows[1500:]]))
        part = judge_curves(losses(path), golden).verdict.part("steps compared")
        assert part.result == "warning"


# ---- which columns ----


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        ("loss", "lm loss", True), ("train/loss", "training loss", True), ("run a - train/loss", "loss", True),
        ("accuracy", "loss", False), ("eval/loss", "train/loss", False), ("eval/loss", "validation loss", True),
        ("accuracy", "accuracy", True), ("val_loss", "loss", False),
    ],
)  # fmt: skip
def test_columns_are_named_and_other_quantities_warned_of(one, two, alike):
    found = judge_curves(curve(BASE, name=one), curve(BASE, name=two))
    assert found.to_dict()["columns"]["target"] == {"loss": one, "grad_norm": None}
    assert found.to_dict()["columns"]["golden"]["loss"] == two
    warned = [p.note for p in found.verdict.parts if p.name == "columns"]
    assert warned == ([] if alike else [f"target's {one} beside golden's {two}"])
    asked = judge_curves(curve(BASE, name=one), curve(BASE, name=two), columns=Columns(target=one))
    assert asked.result == "pass"  # who names a column knows what it is


def test_the_loss_of_training_is_taken_before_that_of_evaluation():
    both = {"eval/loss": BASE + 1, "training/loss": BASE}
    here = {n: np.ones(N, bool) for n in both}
    assert LossCurve(np.arange(N), both, here).loss == "training/loss"


# ---- differences on end ----


@pytest.mark.parametrize("length", [20, 21, 50, 99, 100, 101, 150, 300])
def test_a_tail_that_is_off_fails_however_short(length):
    moved = BASE.copy()
    moved[-length:] += 0.3  # 14 %
    found = judge_curves(curve(moved), curve(BASE + np.random.default_rng(1).normal(0, 2e-3, N)))
    drift = found.verdict.part("drift")
    assert drift.result == "error" and f"from step {N + 1 - length} on" in drift.note
    assert found.errors.drift.since_abs == pytest.approx(0.3, abs=5e-3)
    assert found.suspect.cause in ("drift", "outliers") and found.shape != "good"


@pytest.mark.parametrize("length", [5, 20, 21, 100, 250])
def test_a_stretch_that_is_off_and_comes_back_is_seen(length):
    moved = BASE + np.random.default_rng(1).normal(0, 2e-3, N)
    moved[700 : 700 + length] += 0.3
    found = judge_curves(curve(moved), curve(BASE))
    part = found.verdict.part("outliers")
    assert part.result == ("error" if length > 20 else "warning") and part.value == length
    assert found.errors.jumps.away_first == 701 or found.errors.jumps.count
    assert found.suspect.cause == "outliers"


def test_noise_of_a_pair_is_not_a_stretch():
    rng = np.random.default_rng(2)
    for scale in (1e-4, 5e-3, 0.05):
        assert not away(rng.normal(0, scale, N), 5.0).any()
    assert onset(np.arange(N), rng.normal(0, 0.1, N), 5.0).step is None


def test_differences_of_the_smallest_numbers_have_a_trend():
    steps = np.arange(40)
    small = np.where(steps % 3, 5e-324, 0.0)
    found, scaled = trend(steps, small), trend(steps, small / 5e-324)
    assert found.mean_p == scaled.mean_p and found.slope_p == scaled.slope_p
    judged = judge_curves(curve(small), curve(np.zeros(40)))
    assert json.dumps(judged.to_dict(), allow_nan=False)
