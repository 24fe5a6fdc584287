"""What each switch of a job does to its step: in the direction it must, and by sums by hand where they are short."""

from dataclasses import replace

import pytest

from telekit.cluster.kernels import Kernels
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site, layer_cost
from telekit.cost.step import distinct_stages, step_cost
from telekit.job import load_job
from telekit.layout.stages import assign
from telekit.operators.layer import layer_operators
from telekit.operators.shapes import CASTS

MOE = {"model": "qwen3-235b-a22b", "cluster": {"device": "gb200", "devices": 256}}


def job(layout=None, base=MOE, **train):
    layout = {"pp": 4, "ep": 32} | (layout or {})
    return load_job(base | {"train": {"seq_len": 4096, "global_batch": 1024} | train, "layout": layout})


def step_s(*args, **train):
    return estimate(job(*args, **train)).step_time_s


def test_lower_precision_is_quicker_and_its_casts_are_counted():
    large = {
        "model": "llama-3.1-70b",
        "cluster": {"device": "gb200", "devices": 64},
    }  # products that are worth it
    wide, low, lowest = (
        step_s({"pp": 4, "ep": 1, "cuda_graphs": "full"}, large, precision=name)
        for name in ("bf16", "fp8", "fp4")
    )
    assert lowest < low < wide
    found = {
        recipe: layer_operators(it.model, it.model.kinds[0], it.train, it.layout)
        for recipe in CASTS if recipe != "fp4" for it in [job(precision="fp8", fp8_recipe=recipe)]
    }  # fmt: skip
    for recipe, operators in found.items():
        ops = {op.name: op for op in operators}
        rows = 4096 * 4096  # tokens of a rank by the model's width: the input of the first projection
        assert ops["qkv_projection"].forward_cast_bytes == CASTS[recipe] * rows
        assert ops["router"].forward_cast_bytes == 0  # it stays in 16 bits


def test_fused_experts_and_graphs_take_work_away():
    base = step_s(precision="fp8", fp8_recipe="mxfp8")
    fused = step_s({"fused_experts": True}, precision="fp8", fp8_recipe="mxfp8")
    assert fused < base
    none, partial, full = (
        estimate(job({"cuda_graphs": name, "micro_batch": 1})).breakdown_s["host"]
        for name in ("none", "partial", "full")
    )
    assert full == 0 <= partial <= none


def test_the_host_bounds_small_passes_by_hand():
    """One small layer: the host's launches, each at its cost, are longer than the device's work."""
    small = load_job({"model": "gpt2-xl", "cluster": {"device": "a100-80gb", "devices": 1},
                      "train": {"seq_len": 128, "global_batch": 1}, "layout": {}})  # fmt: skip
    slow = small.cluster.device.model_copy(
        update={"kernels": Kernels(host_launch_s=1e-3, backward_launches=2.0)}
    )
    site = Site(small.model, small.cluster.model_copy(update={"device": slow}), small.train, small.layout)
    cost = layer_cost(small.model.kinds[0], site)
    operators = layer_operators(small.model, small.model.kinds[0], small.train, small.layout)
    launches = sum(op.launches for op in operators)
    assert float(cost.forward.total_s) == pytest.approx(1e-3 * launches)
    assert float(cost.backward.total_s) == pytest.approx(2e-3 * launches)


def test_tensor_parallel_overlap_leaves_one_piece():
    plain, pieces = (
        estimate(job({"tp": 4, "ep": 32, "tp_comm_overlap": on})).breakdown_s["tp_comm"]
        for on in (False, True)
    )
    assert 0 < pieces < plain


def test_overlapped_expert_traffic_costs_computing_its_units():
    """Hidden traffic leaves its share behind; no overlap shows it whole."""
    layout = {"dispatcher": "hybridep"}
    shown = estimate(job(layout)).breakdown_s["ep_comm"]
    hidden = estimate(job(layout | {"overlap_moe_comm": True})).breakdown_s["ep_comm"]
    share = job().cluster.device.kernels.overlap_share
    assert hidden == pytest.approx(share * shown, rel=1e-6)


def test_offload_costs_what_the_link_cannot_hide():
    some, all_ = (estimate(job({"activation_offload": x})).breakdown_s for x in (0.01, 1.0))
    assert some["offload"] <= 1e-12 < all_["offload"]
    held, away = (estimate(job({"optimizer_offload": x})).breakdown_s["optimizer"] for x in (0.0, 1.0))
    assert away > held


def test_unfused_attention_writes_its_scores():
    dense = {"model": "gpt3-175b", "cluster": {"device": "a100-80gb", "devices": 64}}
    layout = {"tp": 8, "pp": 8, "ep": 1}
    flash, unfused = (
        step_s(layout, dense, attention_kernel=name, seq_len=2048) for name in ("flash", "unfused")
    )
    assert flash < unfused < 1.5 * flash
    it = job(layout, dense, attention_kernel="unfused", seq_len=2048)
    ops = {op.name: op for op in layer_operators(it.model, it.model.kinds[0], it.train, it.layout)}
    pairs = 2048 * 2048 * 96 / 8
    assert ops["softmax"].forward_bytes == 4 * pairs
    assert ops["attention_scores"].forward_flops == ops["attention_values"].forward_flops == 2 * pairs * 128


def test_stages_alike_are_costed_once():
    found = job({"pp": 8, "stages": [[11, 12, 12, 12, 12, 12, 12, 11]]})
    assert list(distinct_stages(assign(found.model, found.layout), "1f1b")) == [0, 1, 7]
    cost = step_cost(Site(found.model, found.cluster, found.train, found.layout))
    jitter = found.cluster.device.model_copy(
        update={"kernels": found.cluster.device.kernels.model_copy(update={"jitter": 0.0})}
    )
    still = replace(found, cluster=found.cluster.model_copy(update={"device": jitter}))
    assert (
        step_cost(Site(still.model, still.cluster, still.train, still.layout)).waiting_s == 0 < cost.waiting_s
    )
