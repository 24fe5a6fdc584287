"""What Minder must do, with seeds: alert on a lasting fault of the right machine, and on nothing else."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from telekit.diagnose.minder.detect import Rules, detect, pulls, scores
from telekit.diagnose.minder.detect import _joined as joined
from telekit.diagnose.minder.evaluate import evaluate
from telekit.diagnose.minder.generate import FAULT_KINDS, METRICS, MachineFault, draw_fault, generate
from telekit.diagnose.minder.metrics import MachineMetrics
from telekit.diagnose.minder.model import train

PAPER = Rules(top_only=True, healthy_distance=False, steadiness=1.0)
SEEDS = range(5)


@pytest.fixture(scope="module")
def model():
    healthy = [generate(16, 900, glitches_per_hour=0, seed=1000 + i).metrics for i in range(6)]
    labelled = [generate(16, 900, draw_fault(2000 + i), seed=2000 + i) for i in range(20)]
    return train(healthy, labelled)


@pytest.mark.parametrize("rules", [Rules(), PAPER], ids=["ours", "paper"])
@pytest.mark.parametrize("seed", SEEDS)
def test_slow_down_of_all_machines_is_no_alert(model, seed, rules):
    run = generate(16, 900, slow_down=(300, 0.5), glitches_per_hour=0, seed=seed)
    levels = run.metrics.filled("gpu power W").mean(axis=0)
    assert levels[400:].mean() < 0.7 * levels[:300].mean(), "the slow-down is there to be seen"
    assert not detect(model, run.metrics, rules, stride=4).alerts


@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_two_minutes_are_a_glitch_and_four_minutes_are_a_fault(model, kind, seed):
    for length_s, named in ((120, set()), (215, set()), (260, {"machine-5"})):
        fault = MachineFault(kind, 5, 300, 300 + length_s)
        run = generate(16, 900, fault, glitches_per_hour=0, seed=seed)
        report = detect(model, run.metrics, stride=2)
        assert report.machines == named
        for alert in report.alerts:
            assert alert.metric in FAULT_KINDS[kind]
            assert 280 <= alert.start_s <= 330 and alert.alert_s - alert.start_s == pytest.approx(240, abs=2)


@pytest.mark.parametrize("length_s", [230, 240])
def test_four_minutes_less_what_windows_reach_into_a_fault(model, length_s):
    found = []
    for kind in FAULT_KINDS:
        for seed in range(3):
            fault = MachineFault(kind, 5, 300, 300 + length_s)
            run = generate(16, 900, fault, glitches_per_hour=0, seed=seed)
            found.append(detect(model, run.metrics, stride=2).machines == {"machine-5"})
    assert np.mean(found) >= 0.95


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("kind", ["cpu-contention", "nic-drop"])
def test_two_glitches_with_a_pause_are_no_fault(model, kind, stride):
    """Of 12 s, a window of 8 s lies in the pause for 4: longer than candidates of one machine may pause."""
    for seed in range(2):
        twice = [MachineFault(kind, 5, 300, 420), MachineFault(kind, 5, 432, 552)]
        run = generate(16, 900, twice, glitches_per_hour=0, seed=seed)
        assert not detect(model, run.metrics, stride=stride).alerts


@pytest.mark.parametrize("most", [0, 1, 3])
def test_gaps_between_candidates_are_closed_up_to_a_length(most):
    rng = np.random.default_rng(most)
    candidate = rng.random((60, 4)) < 0.4
    expected = candidate.copy()
    for column in range(4):
        at = np.flatnonzero(candidate[:, column])
        for before, after in pairwise(at):
            if after - before - 1 <= most:
                expected[before:after, column] = True
    assert (joined(candidate, most) == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_that_stops_reporting_is_silent_not_faulty(model, seed):
    """Its last sample, repeated, would stand still while the others move."""
    run = generate(16, 900, MachineFault("nic-drop", 9, 300, 700), glitches_per_hour=0, seed=seed)
    values = run.metrics.values.copy()
    values[:, 6, 500:] = np.nan
    values[:, 3, 300:620] = np.nan
    report = detect(model, replace(run.metrics, values=values), stride=2)
    assert report.machines == {"machine-9"}
    assert "machine-6: not reporting since 500 s" in report.problems
    assert "machine-3: not reporting from 300 s to 620 s" in report.problems
    found = scores(model, replace(run.metrics, values=values), next(iter(model.metrics)))
    gone = found.begin_s > 500
    assert np.isnan(found.z_score[gone, 6]).all() and not found.candidate[gone, 6].any()


def test_without_continuity_the_glitch_is_an_alert(model):
    run = generate(16, 900, MachineFault("gpu-drop", 5, 300, 420), glitches_per_hour=0, seed=0)
    report = detect(model, run.metrics, Rules(continuity_s=60), stride=2)
    assert report.machines == {"machine-5"}


@pytest.mark.parametrize("seed", SEEDS)
def test_missing_samples(model, seed):
    fault = MachineFault("nic-drop", 7, 200, 800)
    run = generate(16, 900, fault, missing=0.05, seed=seed)
    assert np.isnan(run.metrics.values).mean() == pytest.approx(0.05, abs=0.01)
    assert detect(model, run.metrics, stride=2).machines == {"machine-7"}
    healthy = generate(16, 900, missing=0.2, seed=seed)
    assert not detect(model, healthy.metrics, stride=2).alerts


def test_a_silent_machine_is_said_and_the_rest_compared(model):
    run = generate(16, 900, MachineFault("nic-drop", 7, 200, 800), seed=1)
    values = run.metrics.values.copy()
    values[:, 2] = np.nan
    report = detect(model, replace(run.metrics, values=values), stride=2)
    assert report.machines == {"machine-7"}
    assert any("no samples of machine-2" in problem for problem in report.problems)
    values[:, 3:] = np.nan
    report = detect(model, replace(run.metrics, values=values), stride=2)
    assert not report.alerts and len(report.problems) == len(report.looked_at) == len(METRICS)


@pytest.mark.parametrize("machines", [6, 16, 32])
@pytest.mark.parametrize("seed", range(3))
def test_two_faulty_machines(model, machines, seed):
    faults = [MachineFault("gpu-drop", 1, 200, 800, 0.8), MachineFault("gpu-drop", 4, 200, 800, 0.9)]
    run = generate(machines, 900, faults, seed=seed)
    assert detect(model, run.metrics, Rules(all_metrics=True), stride=2).machines == run.faulty


def test_two_faulty_machines_of_different_kinds(model):
    faults = [MachineFault("disk-fault", 1, 200, 800), MachineFault("nvlink-error", 4, 100, 600)]
    run = generate(16, 900, faults, seed=2)
    assert detect(model, run.metrics, Rules(all_metrics=True), stride=2).machines == run.faulty
    assert len(detect(model, run.metrics, stride=2).machines) == 1, (
        "as in the paper: the first metric ends the call"
    )


def test_trained_on_glitches_it_misses_faults(model):
    """Glitches of healthy runs raise the distance that counts as usual."""
    healthy = [generate(16, 900, glitches_per_hour=8, seed=1000 + i).metrics for i in range(6)]
    labelled = [generate(16, 900, draw_fault(2000 + i), seed=2000 + i) for i in range(20)]
    runs = [generate(16, 900, draw_fault(300 + i), seed=300 + i) for i in range(30)]
    right = [evaluate(m, runs, stride=4).right for m in (model, train(healthy, labelled))]
    assert right[0] == pytest.approx(29, abs=1)
    assert right[1] == pytest.approx(26, abs=1)
    assert right[1] < right[0]


def test_continuity_raises_precision(model):
    runs = [generate(16, 900, draw_fault(300 + i), seed=300 + i) for i in range(15)]
    runs += [generate(16, 900, seed=400 + i) for i in range(15)]
    by_length = [evaluate(model, runs, Rules(continuity_s=s), stride=4) for s in (0, 60, 120, 240)]
    precision = [found.precision for found in by_length]
    assert precision == sorted(precision) and precision[-1] >= 0.93 and precision[0] < 0.5
    assert by_length[-1].recall >= 0.85
    paper = [evaluate(model, runs, replace(PAPER, continuity_s=s), stride=4).precision for s in (0, 240)]
    assert paper[0] < paper[1]


def test_a_healthy_machine_that_always_differs_a_little_is_no_alert(model):
    alerts = {"ours": 0, "paper": 0}
    for seed in range(8):
        run = generate(8, 900, glitches_per_hour=0, seed=seed).metrics
        values = run.values.copy()
        values[run.names.index("gpu memory used GB"), 3] *= 1.04
        skewed = replace(run, values=values)
        alerts["ours"] += bool(detect(model, skewed, stride=2).alerts)
        alerts["paper"] += bool(detect(model, skewed, PAPER, stride=2).alerts)
    assert alerts["ours"] == 0 and alerts["paper"] >= 2


def test_calls_name_the_machine_from_the_first_that_has_four_minutes_of_it(model):
    run = generate(16, 2400, MachineFault("pcie-downgrade", 9, 1200, 2400), glitches_per_hour=0, seed=4)
    parts = list(pulls(run.metrics))
    assert [(part.start_s, part.samples) for part in parts] == [
        (0, 900),
        (480, 900),
        (960, 900),
        (1440, 900),
        (1920, 480),
    ]
    assert [detect(model, part, stride=4).machines for part in parts] == [set(), set(), *[{"machine-9"}] * 3]


def test_scores_are_what_a_person_would_draw(model):
    run = generate(8, 300, MachineFault("cpu-contention", 2, 100, 200), glitches_per_hour=0, seed=0)
    found = scores(model, run.metrics, "cpu usage %", stride=5)
    inside = (found.begin_s >= 100) & (found.begin_s <= 190)
    assert found.distance.shape == found.z_score.shape == (len(found.begin_s), 8)
    assert found.candidate[inside, 2].all() and (found.z_score[inside].argmax(axis=1) == 2).all()


def test_metrics_that_the_model_does_not_know_are_said(model):
    run = generate(8, 300, seed=0).metrics
    more = MachineMetrics(("strange", *run.names), run.machines, np.concatenate([run.values[:1], run.values]))
    assert "strange: not known to the model" in detect(model, more, stride=8).problems


def test_progress_names_each_metric(model):
    seen = []
    report = detect(model, generate(8, 300, seed=0).metrics, stride=8, progress=seen.append)
    assert tuple(seen) == report.looked_at == tuple(model.metrics)
