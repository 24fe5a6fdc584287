"""Step times: closed forms worked out by hand, and what must hold whatever the numbers are."""

from dataclasses import replace
from itertools import pairwise

import pytest

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.kernels import Kernels
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import Job, load_job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

H100 = {"device": "h100", "devices": 64}


def job(model="llama-3.1-8b", cluster=H100, layout=None, **train):
    return load_job({"model": model, "cluster": cluster, "train": {"seq_len": 4096, "global_batch": 256} | train,
                     "layout": layout or {}})  # fmt: skip


def faster(base: Job, **fields) -> Job:
    record = base.cluster.model_dump()
    record["device"] |= fields
    return Job(base.model, ClusterConfig.model_validate(record), base.train, base.layout)


def test_one_device_does_its_arithmetic_and_nothing_else():
    found = estimate(
        job(cluster={"device": "h100", "devices": 1}, global_batch=4, layout={"recompute": "full"})
    )
    parts = found.breakdown_s
    assert parts["bubble"] == pytest.approx(0, abs=1e-12)
    assert parts["dp_comm"] == parts["tp_comm"] == parts["cp_comm"] == 0.0
    assert found.step_time_s == pytest.approx(parts["compute"] + parts["recompute"] + parts["optimizer"])
    assert parts["waiting"] == pytest.approx(0, abs=1e-12) and parts["host"] == 0.0


@pytest.mark.parametrize(
    "layout", [{"zero": z, "overlap_grad_reduce": o} for z in range(4) for o in (True, False)]
)
def test_a_faster_device_is_never_slower(layout):
    base = job(layout=layout, seq_len=1024, global_batch=2048)
    times = [estimate(faster(base, gemm_efficiency=e)).step_time_s for e in (0.3, 0.5, 0.7, 0.9)]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(times))


@pytest.mark.parametrize(
    "schedule, vpp", [("1f1b", 1), ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1), ("gpipe", 1)]
)
def test_no_schedule_beats_the_work_of_its_stages(schedule, vpp):
    for batch in (64, 128, 512):
        found = estimate(job(layout={"pp": 4, "vpp": vpp, "schedule": schedule}, global_batch=batch))
        if found.valid:
            assert found.breakdown_s["bubble"] >= -1e-12


def test_recomputing_a_part_never_costs_more_than_recomputing_all():
    cost = {}
    for recompute in (["moe"], "full"):
        layout = {"pp": 8, "ep": 16, "overlap_moe_comm": True, "recompute": recompute}
        cost[str(recompute)] = estimate(job("deepseek-v3", {"device": "h800", "devices": 1024}, layout,
                                            global_batch=1024)).step_time_s  # fmt: skip
    assert cost["['moe']"] < cost["full"]


def test_zero_3_hides_each_call_behind_its_own_pass():
    model, train = load_model("llama-3.1-8b"), TrainConfig(seq_len=1024, global_batch=512)
    cluster = load_cluster(H100)
    plain = step_cost(Site(model, cluster, train, ParallelConfig(dp=64, zero=3, overlap_grad_reduce=False,
                                                                 overlap_param_gather=False)))  # fmt: skip
    hidden = step_cost(Site(model, cluster, train, ParallelConfig(dp=64, zero=3)))
    m = 512 / 64
    saved = float(plain.dp_comm_s - hidden.dp_comm_s)
    assert 0 < saved <= m * float((hidden.forward_s + hidden.backward_s).sum()) * (1 + 1e-12)


def test_zero_3_shows_a_layers_gather_and_a_layers_sum():
    """By hand: passes long enough hide all but one of 32 layers' calls, and give up a share of what they hide."""
    model, train = load_model("llama-3.1-8b"), TrainConfig(seq_len=8192, global_batch=512)
    cluster = load_cluster(H100)

    def shown(zero, gather, reduce):
        layout = ParallelConfig(
            dp=64, micro_batch=2, zero=zero, overlap_param_gather=gather, overlap_grad_reduce=reduce
        )
        return float(step_cost(Site(model, cluster, train, layout)).dp_comm_s)

    m, once = 512 / (64 * 2), shown(1, False, False)  # gathered once and summed once
    gather_s = shown(3, False, False) / m - once  # gathered twice and summed once
    sum_s, share = once - gather_s, cluster.device.kernels.overlap_share
    first, last = gather_s / 32, sum_s / 32
    forward = first + share * (gather_s - first)
    backward = last + share * (gather_s + sum_s - last)
    assert min(gather_s, sum_s) > 0
    assert shown(3, True, True) == pytest.approx(m * (forward + backward))


def test_embedding_and_head_pay_for_tensor_parallelism():
    """Sequence parallel: a scatter and gather at the embedding, three at the head; else one sum at each."""
    for sequence_parallel in (True, False):
        layout = {"tp": 8, "pp": 2, "stages": [[16, 16]], "sequence_parallel": sequence_parallel}
        first, last = (s.forward_s + s.backward_s for s in estimate(job(layout=layout)).stages)
        assert first != last


def test_a_job_built_by_hand_is_complete():
    base = job(layout={"pp": 4, "vpp": 2})
    again = Job(base.model, base.cluster, base.train, ParallelConfig(pp=4, vpp=2))
    assert again.layout.dp == 16 and again.layout.schedule == "interleaved-1f1b"
    assert estimate(again).step_time_s == estimate(base).step_time_s
    written = load_job(again.to_dict())
    assert written.model == again.model and written.layout == again.layout


def test_a_huge_batch_is_still_answered():
    found = estimate(job(layout={"pp": 8, "vpp": 2, "tp": 8}, global_batch=8 * 10**6))
    assert found.valid and found.step_time_s > 0


def test_data_parallel_traffic_and_update_by_hand():
    """ZeRO 1, nothing hidden: gradients scattered in fp32, parameters gathered in 16 bits, an eighth updated.

    Gradients of the eighth are read twice (norm and update), all are set to zero.
    """
    cluster = {"device": "ascend-910b", "devices": 8}  # links without a measured curve
    layout = {"overlap_grad_reduce": False, "overlap_param_gather": False}
    base = job(cluster=cluster, layout=layout, global_batch=8)
    n, device, link = 8_030_261_248, base.cluster.device, base.cluster.tiers[0]
    wire = n * (4 + 2) * 7 / 8 / (link.bandwidth_bytes_per_s * link.efficiency) + 2 * 7 * link.latency_s
    moved = n / 8 * (2 * 4 + 2 * (4 + 8) + 2) + 4 * n
    update = moved / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    parts = estimate(base).breakdown_s
    assert parts["dp_comm"] == pytest.approx(wire, rel=1e-9)
    assert parts["optimizer"] == pytest.approx(update, rel=1e-9)


def test_compute_of_one_device_by_hand():
    """Large products and attention are bound by arithmetic, the rest by memory: the sum of both, written out."""
    base = job(cluster={"device": "h100", "devices": 1}, global_batch=1)
    plain = base.cluster.device.model_copy(update={"kernels": Kernels()})  # which take nothing away
    base = replace(base, cluster=base.cluster.model_copy(update={"device": plain}))
    device, t, h, f, v, layers = base.cluster.device, 4096, 4096, 14336, 128256, 32
    products = 3 * 2 * t * (layers * (h * (h + 2048) + h * h + 3 * h * f) + h * v)
    attention = 3.5 * 2 * t * (t + 1) / 2 * 2 * h * layers
    norms = 11 * 2 * t * h * (2 * layers + 1)
    rotary = 4 * 2 * t * (h + 1024) * layers
    swiglu = (3 + 5) * 2 * t * f * layers
    loss = (2 + 8 + 2 + 4) * t * v
    embedding = 5 * 2 * t * h
    peak = device.peak("bf16")
    want = products / (peak * device.gemm_efficiency) + attention / (peak * device.attention_efficiency)
    moved = norms + rotary + swiglu + loss + embedding
    want += moved / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    assert estimate(base).breakdown_s["compute"] == pytest.approx(want, rel=1e-9)
