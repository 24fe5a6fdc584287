"""Scaling curves: each point is the estimate of its job; what bends them, part by part, by hand."""

import numpy as np
import pytest

from telekit.cluster.variability import slowest
from telekit.cost.estimate import estimate
from telekit.cost.scaling import PARTS, at_batch, resized, scaling, with_network
from telekit.errors import InputError
from telekit.job import load_job
from telekit.validation.runs import published_runs

DENSE = {
    "model": "llama-3.1-8b",
    "cluster": {"device": "a100-80gb", "devices": 64},
    "train": {"seq_len": 4096, "global_batch": 128},
    "layout": {"tp": 4, "pp": 2, "micro_batch": 1, "zero": 1},
}


@pytest.fixture(scope="module")
def job():
    return load_job(DENSE)


@pytest.mark.parametrize("weak", [False, True])
def test_every_point_is_the_estimate_of_that_very_job(job, weak):
    found = scaling(job, [16, 64, 128], weak=weak)
    for point in found.points:
        batch = 16 * point.dp if weak else 128
        said = DENSE | {"cluster": {"device": "a100-80gb", "devices": point.devices}}
        want = estimate(load_job(said | {"train": {"seq_len": 4096, "global_batch": batch}}))
        assert point.dp == point.devices // 8 and point.global_batch == batch
        assert point.step_s == pytest.approx(want.step_time_s, rel=1e-12)
        assert point.tokens_per_s_per_device == pytest.approx(want.tokens_per_s_per_device, rel=1e-12)
        assert sum(point.parts.values()) == pytest.approx(point.step_s) and set(point.parts) == set(PARTS)


def test_published_runs_are_points_too():
    for run in published_runs("llama-3"):
        (point,) = scaling(run.job, [run.job.cluster.devices]).points
        assert point.step_s == pytest.approx(estimate(run.job).step_time_s, rel=1e-12)


def test_the_closed_form_is_the_simulation_where_stages_are_equal():
    job = published_runs("megascale")[0].job
    exact, quick = (scaling(job, [256, 3072, 12288], simulate=how) for how in (True, False))
    assert [p.step_s for p in quick.points] == pytest.approx([p.step_s for p in exact.points], rel=0.01)


def test_experts_that_hide_are_counted_once():
    job = published_runs("deepseek-v3")[0].job
    exact, quick = (scaling(job, [2048], simulate=how).points[0] for how in (True, False))
    for part in ("work", "traffic", "dp_comm", "optimizer"):
        assert quick.parts[part] == pytest.approx(exact.parts[part], rel=1e-9)


def test_strong_scaling_shrinks_work_alone(job):
    first, second, third = scaling(job, [32, 64, 128], jitter=0.0).points
    assert second.parts["work"] == pytest.approx(first.parts["work"] / 2)
    assert second.parts["traffic"] == pytest.approx(first.parts["traffic"] / 2)
    # filling and draining stays; what unequal stages wait for goes by micro-batches
    bubble = [p.parts["bubble"] for p in (first, second, third)]
    assert bubble[0] - bubble[1] == pytest.approx(2 * (bubble[1] - bubble[2]))
    fill = 2 * bubble[1] - bubble[0]
    assert fill > 0 and fill == pytest.approx(2 * bubble[2] - bubble[1])
    assert second.parts["dp_comm"] > 0.9 * first.parts["dp_comm"]


def test_weak_scaling_changes_nothing_but_traffic_and_the_slowest(job):
    first, second = scaling(job, [32, 128], weak=True).points
    for part in ("work", "traffic", "bubble"):
        assert second.parts[part] == pytest.approx(first.parts[part], rel=1e-9)
    assert second.parts["waiting"] > first.parts["waiting"]


def test_what_is_added_sums_to_what_is_lost(job):
    found = scaling(job, [16, 32, 128], jitter=0.02)
    assert found.efficiency[0] == 1 and set(found.added(0).values()) == {0}
    for index, share in enumerate(found.efficiency):
        assert sum(found.added(index).values()) == pytest.approx(1 / share - 1, abs=1e-12)
    assert np.all(np.diff(found.efficiency) < 0)


def test_jitter_stretches_the_pipeline_by_the_slowest(job):
    calm, shaken = (scaling(job, [64], jitter=x, spread="exponential").points[0] for x in (0.0, 0.03))
    pipeline = sum(calm.parts[name] for name in ("work", "traffic", "bubble"))
    assert calm.parts["waiting"] == 0
    assert shaken.step_s - calm.step_s == pytest.approx((slowest(64, 0.03, "exponential") - 1) * pipeline)


def test_a_slower_network_moves_gradients_alone(job):
    usual, slow = (scaling(job, [64], network=x).points[0] for x in (1.0, 0.25))
    assert slow.parts["dp_comm"] > 2 * usual.parts["dp_comm"]
    assert slow.parts["work"] == usual.parts["work"] and slow.parts["traffic"] == usual.parts["traffic"]
    assert with_network(job.cluster, 1.0) is job.cluster
    rates = [tier.bandwidth_bytes_per_s for tier in with_network(job.cluster, 0.25).tiers]
    assert rates == [t.bandwidth_bytes_per_s * f for t, f in zip(job.cluster.tiers, (1, 0.25), strict=True)]


def test_a_job_comes_back_to_itself(job):
    there = resized(resized(job, 128, weak=True), 64, weak=True)
    assert (there.train, there.layout, there.cluster) == (job.train, job.layout, job.cluster)
    assert at_batch(job, 256).train.global_batch == 256


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda job: scaling(job, []), "at least one"),
        (lambda job: scaling(job, [12]), "8 or 16 would work"),
        (lambda job: scaling(job, [4]), "multiple of the 8 devices"),
        (lambda job: scaling(job, [8 * 96]), "micro_batch"),
        (lambda job: scaling(job, [64], network=0), "above 0"),
        (lambda job: scaling(job, [64], jitter=2.0), "from 0 to 1"),
    ],
)
def test_impossible_sizes_say_what_would_work(job, call, said):
    with pytest.raises(InputError, match=said):
        call(job)
