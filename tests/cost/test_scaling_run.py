"""A whole run: hours by hand, and published runs whose hours and step are both known."""

import math

import pytest

from telekit.cost.scaling import PARTS, Point
from telekit.cost.scaling_failures import Failures, effective_rate
from telekit.cost.scaling_run import BEYOND, whole_run
from telekit.errors import InputError
from telekit.validation.megascale import table
from telekit.validation.readings import rows
from telekit.validation.runs import published_runs


def point(step_s, devices, tokens):
    parts = dict.fromkeys(PARTS, 0.0) | {"work": 0.75 * step_s, "bubble": 0.25 * step_s}
    return Point(devices, 1, 1, 1, tokens, parts)


def test_a_run_without_failures_is_its_steps():
    run = whole_run(point(10.0, 8, 1000), 3500)
    assert run.steps == 4 and run.device_hours == pytest.approx(4 * 10 * 8 / 3600)
    assert run.days == pytest.approx(40 / 86400) and run.effective_rate == 1
    assert (
        run.hours["bubble"] == pytest.approx(run.device_hours / 4) and run.price(3.0) == 3 * run.device_hours
    )


def test_failures_stretch_it_by_the_rate():
    f = Failures(20_000.0, 600.0, 900.0, 60.0)
    plain, whole = whole_run(point(10.0, 8, 1000), 1e6), whole_run(point(10.0, 8, 1000), 1e6, f, 1800.0)
    rate = effective_rate(1800.0, f)
    assert whole.device_hours == pytest.approx(plain.device_hours / rate)
    assert whole.effective_rate == pytest.approx(rate) and set(whole.hours) == {*PARTS, *BEYOND}


def test_deepseek_v3s_hours_are_its_step_times_its_tokens():
    run = published_runs("deepseek-v3")[0]
    row = next(r for r in rows("scaling") if r["id"] == "run_deepseek_v3")
    found = whole_run(point(run.measured_step_s, 2048, run.job.train.tokens), row["train_tokens"])
    assert found.device_hours == pytest.approx(row["device_hours"], rel=0.002)


@pytest.mark.parametrize("row", table(), ids=lambda r: r["id"])
def test_megascales_days_follow_from_its_steps(row):
    tokens = row["gbs"] * row["seq_len"]
    found = whole_run(point(row["step_time_s"], row["n_gpus"], tokens), 300e9)
    assert found.days == pytest.approx(row["train_days_300B_tokens"], rel=0.007)
    assert tokens / row["step_time_s"] == pytest.approx(row["tokens_per_s_k"] * 1e3, rel=0.005)


@pytest.mark.parametrize("tokens", [0.0, math.inf, -1.0])
def test_no_tokens_are_no_run(tokens):
    with pytest.raises(InputError, match="tokens"):
        whole_run(point(1.0, 1, 1), tokens)


def test_failures_ask_for_an_interval():
    with pytest.raises(InputError, match="interval_s"):
        whole_run(point(1.0, 1, 1), 1.0, Failures(10.0))
