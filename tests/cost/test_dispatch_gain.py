"""The EP 16 study: its steps are the cost model's, its bars, samples and verdict are what they say, its inputs stay."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from telekit import catalog
from telekit.cost.dispatch_gain import IMBALANCES, Gain, gain, steps_s
from telekit.cost.dispatch_study import load_study, study_job
from telekit.cost.estimate import estimate
from telekit.errors import InputError
from telekit.job import Job, load_job

NAME = "expert-dispatch-gain"
FROZEN = "a9feab34b7c94fe84eba7f8e3037c54799ac15bc8ba2aa9726abf0c49b4c4ccf"
"""Of the record as it was written down, before there was an answer."""


@pytest.fixture(scope="module")
def study():
    return load_study(NAME)


@pytest.fixture(scope="module")
def few(study):
    """An answer with few points."""
    return gain(study, points=16)


def by_hand(dispatcher, **layout):
    """The base job, written as a user would; the 910B of 313 TFLOP/s has the base's efficiencies but one."""
    job = load_job(
        {
            "model": "telechat3-105b-a4.7b",
            "cluster": {"device": "ascend-910b-313t", "devices": 4096},
            "train": {"seq_len": 4096, "global_batch": 2048},
            "layout": {
                "tp": 8, "pp": 8, "ep": 16, "micro_batch": 1, "recompute": "full", "schedule": "1f1b",
                "dispatcher": dispatcher, "expert_imbalance": 1.1, **layout,
            },
        }
    )  # fmt: skip
    device = job.cluster.device.model_copy(
        update={
            "gemm_efficiency": 0.7, "grouped_gemm_efficiency": 0.87 * 0.7, "attention_efficiency": 0.4,
            "memory_efficiency": 0.6,
        }
    )  # fmt: skip
    node, network = (tier.model_copy(update={"efficiency": 0.7}) for tier in job.cluster.tiers)
    network = network.model_copy(update={"latency_s": 1.5e-6})
    cluster = job.cluster.model_copy(update={"device": device, "tiers": (node, network)})
    return Job(model=job.model, cluster=cluster, train=job.train, layout=job.layout)


def test_frozen_inputs_stay_as_they_were_before_the_answer():
    record = catalog.record("studies", NAME)
    kept = [record[key] for key in ("frozen", "claim", "job", "flat", "hierarchical", "inputs")]
    assert hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest() == FROZEN


def test_steps_are_those_of_two_jobs_made_by_hand(study):
    flat, hierarchical = (
        estimate(by_hand(name)).step_time_s for name in ("alltoall", "alltoall_deredundency")
    )
    assert steps_s(study) == pytest.approx((flat, hierarchical), rel=1e-12)
    other = {"tp": 1, "expert_imbalance": 1.3, "overlap_moe_comm": True}
    flat, hierarchical = (estimate(by_hand(name, **other)) for name in ("alltoall", "deepep"))
    assert flat.job.micro_batches == 4  # of the plain job: 512 replicas
    moved = study_job(study, "alltoall", tp=1)
    assert moved.train.global_batch == 8 * 2048 and moved.micro_batches == 32
    found = steps_s(study, hierarchical="deepep", micro_batches=4, **other)
    assert found == pytest.approx((flat.step_time_s, hierarchical.step_time_s), rel=1e-12)


def test_the_closed_form_is_exact_on_the_stages_of_these_jobs(study):
    """Steps are taken without simulating the pipeline; :func:`estimate` simulates it."""
    rng = np.random.default_rng(5)
    for _ in range(12):
        values = {item.name: item.at(float(rng.random())) for item in study.inputs}
        found = steps_s(study, **values)
        for step, name in zip(found, (study.flat, values["hierarchical"]), strict=True):
            assert step == pytest.approx(estimate(study_job(study, name, **values)).step_time_s, rel=1e-9)


def test_bars_are_the_gains_at_both_ends(study, few):
    assert [bar.span for bar in few.bars] == sorted((bar.span for bar in few.bars), reverse=True)
    assert {bar.input.name for bar in few.bars} == set(study.base)
    for bar in few.bars:
        for end, found in zip(bar.input.ends, bar.gains, strict=True):
            form = end if bar.input.name == "hierarchical" else study.base["hierarchical"]
            flat, other = (
                estimate(study_job(study, name, **{bar.input.name: end})).step_time_s
                for name in (study.flat, form)
            )
            assert found == pytest.approx(flat / other - 1, abs=1e-9)
    flat, other = few.steps_s
    assert few.base == pytest.approx(flat / other - 1)


def test_fixed_things_stand_where_the_job_has_them_and_move_alone(study, few):
    stand = {it.fixed.name: it.value for it in few.moved}
    assert (stand["ep"], stand["etp"], stand["pp"], stand["micro_batches"], stand["devices"]) == (
        16, 1, 8, 32, 4096,
    )  # fmt: skip
    assert stand["network_bandwidth_bytes_per_s"] == 25e9 and stand["experts_over_gemm"] == 0.87
    gains = {it.fixed.name: dict(zip(it.fixed.moved, it.gains, strict=True)) for it in few.moved}
    for ep in (32, 64):
        flat, other = (
            estimate(by_hand(name, ep=ep)).step_time_s for name in ("alltoall", "alltoall_deredundency")
        )
        assert gains["ep"][ep] == pytest.approx(flat / other - 1, abs=1e-9)
    assert gains["ep"][8] == pytest.approx(0, abs=1e-12)  # one node: both forms are one
    assert gains["etp"][8] < gains["etp"][2] < few.base
    assert (
        gains["network_bandwidth_bytes_per_s"][12.5e9]
        > few.base
        > gains["network_bandwidth_bytes_per_s"][50e9]
    )
    for it in few.moved:
        assert steps_s(study, **{it.fixed.name: it.value}) == pytest.approx(few.steps_s, rel=1e-12)


def test_samples_are_draws_of_all_inputs(study, few):
    """Plain random draws, each priced by the whole estimate, have the same mean and the same share below 2 %."""
    assert len(few.samples) == 16 * 4 * IMBALANCES and few.overlapped.mean() == 0.5
    rng, plain = np.random.default_rng(0), []
    for _ in range(60):
        values = {item.name: item.at(float(rng.random())) for item in study.inputs} | {
            "overlap_moe_comm": False
        }
        flat, other = (
            estimate(study_job(study, name, **values)).step_time_s
            for name in (study.flat, values["hierarchical"])
        )
        plain.append(flat / other - 1)
    bare = few.samples[~few.overlapped]
    error = np.std(plain) / np.sqrt(len(plain))
    assert abs(np.mean(plain) - bare.mean()) < 3 * error + 0.005
    assert few.samples[few.overlapped].mean() < bare.mean() / 2  # most hides, in both forms, at a price


def test_the_interval_is_reproducible_and_hardly_hangs_on_the_seed(study, few):
    assert np.array_equal(gain(study, points=16).samples, few.samples)
    found = [few, *(gain(study, points=16, seed=seed) for seed in (1, 2))]
    for part in ("interval", "interval_in_the_open"):
        low, middle, high = np.ptp([getattr(one, part) for one in found], axis=0)
        assert low < 0.01 and middle < 0.02 and high < 0.03  # a sixteenth of the points that are used
    assert len({one.verdict for one in found}) == 1


def test_choices_and_ranges_are_drawn_evenly(study):
    inputs = {item.name: item for item in study.inputs}
    grades = [inputs["device"].at(u) for u in (0.0, 0.3, 0.34, 0.66, 0.67, 0.999)]
    assert [grades.count(one) for one in inputs["device"].choices] == [2, 2, 2]
    assert inputs["network_efficiency"].at(0.25) == pytest.approx(0.6)
    assert inputs["network_latency_s"].at(0.5) == pytest.approx((1.5e-6 * 3e-5) ** 0.5)  # a factor of 20


@pytest.mark.parametrize(
    ("beyond", "verdict", "held"),
    [(0, "outside", False), (9, "outside", False), (10, "at the edge", False), (60, "at the edge", True),
     (99, "at the edge", True), (100, "inside", True), (500, "inside", True), (950, "at the edge", False),
     (1000, "outside", False)],
)  # fmt: skip
def test_the_verdict_is_by_the_share_beyond_the_claim(few, beyond, verdict, held):
    samples = np.where(np.arange(1000) < beyond, 0.2, 0.1)
    found = replace(few, samples=samples, overlapped=np.arange(1000) % 2 == 1)
    assert found.share_beyond == beyond / 1000
    assert found.verdict == verdict
    assert found.holds_claim == held
    assert f"15% lies {verdict}: {beyond / 1000:.1%} of the draws reach it" in found.sentence


def test_overlap_is_told_apart():
    gains, hidden = np.array([0.2, 0.1, 0.0, 0.0]), np.array([False, False, True, True])
    found = Gain(load_study(NAME), 0.0, (1.0, 1.0), (), (), gains, hidden)
    assert found.interval_in_the_open[1] == pytest.approx(0.15) and found.interval_overlapped == (0, 0, 0)
    assert (found.share_beyond, found.share_beyond_in_the_open) == (0.25, 0.5)


def test_plain_data_has_all_of_it(few):
    found = json.loads(json.dumps(few.to_dict(), allow_nan=False))
    assert found["gain"] == few.base and found["interval"]["p95"] == few.interval[2]
    assert found["interval_without_overlap"]["p50"] == few.interval_in_the_open[1]
    assert found["interval_with_overlap"]["p50"] == few.interval_overlapped[1]
    assert found["sentence"] == few.sentence and "after the answer" in found["fixed_note"]
    assert [it["name"] for it in found["inputs"]] == [bar.input.name for bar in few.bars]
    assert all(len(it["moved"]) == len(it["gains"]) and it["why"] for it in found["fixed"])


def test_what_is_asked_wrongly_is_refused(study):
    with pytest.raises(InputError, match="not an input of expert-dispatch-gain"):
        steps_s(study, colour="red")
    with pytest.raises(InputError, match="ep"):
        steps_s(study, ep=7)
    for points in (0, 3, 2**17):
        with pytest.raises(InputError, match="power of 2"):
            gain(study, points=points)
