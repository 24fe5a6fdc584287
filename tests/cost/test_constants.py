"""Constants behind an estimate: all are there, with sources, and their effects are those of a moved record."""

import pytest

from telekit.cost.constants import constants
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import load_job
from telekit.operators.coefficients import moved, now

JOB = {
    "model": "deepseek-v3", "cluster": {"device": "h800", "devices": 512},
    "train": {"seq_len": 4096, "global_batch": 2048, "precision": "fp8"},
    "layout": {"pp": 8, "ep": 32, "recompute": "selective", "dispatcher": "deepep"},
}  # fmt: skip


def test_effects_are_those_of_a_moved_record():
    job = load_job(JOB)
    found = {one.name: one for one in constants(job)}
    device = job.cluster.device
    assert found["device.gemm_efficiency"].value == device.gemm_efficiency
    moved = device.model_copy(update={"gemm_efficiency": 1.1 * device.gemm_efficiency})
    cluster = job.cluster.model_copy(update={"device": moved})
    base, other = (
        float(step_cost(Site(job.model, c, job.train, job.layout)).step_s) for c in (job.cluster, cluster)
    )
    assert found["device.gemm_efficiency"].effect == pytest.approx(other / base - 1)
    assert found["device.gemm_efficiency"].effect < 0 < found["device.kernels.half_inner"].effect
    assert found["device.kernels.mixers.triton"].effect == 0.0  # this job has no such kernel


def test_every_constant_has_a_source_and_stands_among_the_assumptions():
    answer = estimate(load_job(JOB)).to_dict()
    names = [one["name"] for one in answer["constants"]]
    assert len(names) == len(set(names)) >= 20
    effects = [abs(one["effect_of_10_percent"]) for one in answer["constants"]]
    assert effects == sorted(effects, reverse=True)
    for one in answer["constants"]:
        assert one["source"] and any(line.startswith(one["name"] + " = ") for line in answer["assumptions"])


def test_curves_and_constants_of_the_code_are_listed():
    found = {one.name: one for one in constants(load_job(JOB))}
    wide = load_job(JOB | {"model": "llama-3.1-8b", "layout": {"tp": 8, "pp": 2, "sequence_parallel": True}})
    curve = {one.name: one for one in constants(wide)}["tiers.node.curves.all-gather.bandwidth_bytes_per_s"]
    assert curve.effect < 0 and curve.source
    for name in ("CASTS", "CAST_LAUNCHES", "GROUP_LAUNCH", "ROUTER_LAUNCHES", "SORTS", "BUCKET_PARAMETERS"):
        assert found[f"code.{name}"].effect >= 0 and found[f"code.{name}"].memory_effect == 0.0
    assert found["code.CASTS"].effect > 0
    peak = estimate(load_job(JOB)).peak_bytes
    for name in ("FRAMEWORK_BYTES", "WORKSPACE_BYTES"):
        one = found[f"code.{name}"]
        assert one.effect == 0.0 and one.memory_effect == pytest.approx(0.1 * one.value / peak)
    assert found["expert_links.sm_bytes_per_s"].effect <= 0
    assert all(
        "unused" in one.source for one in found.values() if one.name.startswith("tiers.") and not one.effect
    )


def test_a_moved_constant_is_back_afterwards():
    with moved("CASTS", 2.0):
        assert now("CASTS", 4.0) == 8.0 and now("SORTS", 1.0) == 1.0
    assert now("CASTS", 4.0) == 4.0


def test_an_answer_that_nobody_asks_for_its_constants_makes_none(monkeypatch):
    monkeypatch.setattr("telekit.cost.estimate.constants", lambda job: pytest.fail("constants were made"))
    answer = estimate(load_job(JOB))
    assert answer.fits in (True, False) and answer.step_time_interval_s
    assert "constants" not in answer.to_dict(constants=False)


def test_an_answer_carries_its_interval():
    answer = estimate(load_job(JOB))
    low, high = answer.step_time_interval_s
    assert 0 < low < answer.step_time_s * 1.2 and high > answer.step_time_s * 0.9
    assert answer.to_dict()["interval_of"]
