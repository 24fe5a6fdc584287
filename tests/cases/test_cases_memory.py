"""Faults that public tools had in memory, each with its right answer (recomputed, or the maintainers')."""

from __future__ import annotations

import numpy as np
import pytest

from telekit import count
from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site
from telekit.cost.memory import layer_held, stage_parameters, state_bytes
from telekit.cost.states import cast_bytes, parameter_bytes
from telekit.cost.step import step_cost
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import assign
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig
from telekit.units import GIB, format_bytes


def here(model, layout, device="h100", **train):
    return Site(model, load_cluster({"device": device, "nodes": 8}), TrainConfig(**train), layout)


def gpt(hidden, layers, vocab=51200, **more):
    attention = GroupedQueryAttention(heads=16, kv_heads=16, head_dim=hidden // 16)
    kind = LayerKind(
        name="gpt", attention=attention, mlp=FeedForward(ffn_hidden_size=4 * hidden, gated=False)
    )
    return ModelConfig(
        name="gpt", hidden_size=hidden, vocab_size=vocab, kinds=(kind,), pattern=(0,) * layers, **more
    )


def memory(site):
    found = step_cost(site).memory
    return {name: np.broadcast_to(value, (site.layout.pp,)) for name, value in found.items()}


@pytest.mark.parametrize("zero, gib", [(0, 112.96), (1, 47.07)])
def test_ms01_18_bytes_a_parameter_or_7_5_with_the_distributed_optimizer(zero, gib):
    """Megatron-LM issue 654: bf16 parameters, fp32 gradients, Adam: 2 + 4 + 12, or 6 + 12 / 8."""
    model, layout = load_model("llama-2-7b"), ParallelConfig(dp=8, zero=zero)
    found = state_bytes(here(model, layout), assign(model, layout))
    assert float(sum(found.values())[0]) / GIB == pytest.approx(gib, abs=0.005)


def test_ms02_zero_3_with_offload_is_in_gib_and_leaves_nothing_out():
    """DeepSpeed issue 4527: 0.49, 3.66 and 29.01 GiB are 4 G, 4 G + 2 P / 4 and 4 G + 18 P / 4."""
    largest, parameters = 131e6, 6805e6
    for rest, gib in ((0, 0.49), (2, 3.66), (18, 29.01)):
        assert (4 * largest + rest * parameters / 4) / GIB == pytest.approx(gib, abs=0.005)
    model, layout = load_model("llama-2-7b"), ParallelConfig(dp=4, zero=3, optimizer_offload=1.0)
    found = memory(here(model, layout, global_batch=4))
    layer = float(layer_held(model, 0, layout).dense)
    assert found["optimizer"][0] == 0.0
    assert (
        found["parameters"][0] == 2 * count(model).total / 4 + 4 * layer
    )  # live gathered parameters are in it
    assert found["activations"][0] > 0 and found["framework"][0] == 2 * GIB


def test_ms06_the_most_loaded_stage_is_found_not_the_mean():
    """Megatron-Bridge pull request 5077: 8 equal layers as [1, 2, 2, 3]."""
    layout = ParallelConfig.model_validate({"pp": 4, "dp": 1, "stages": [[1, 2, 2, 3]]})
    model = gpt(1024, 8)
    held = stage_parameters(here(model, layout), assign(model, layout)).dense
    layer = (count(model).total - 2 * 51200 * 1024 - 1024) / 8
    assert held.tolist() == [layer + 51200 * 1024, 2 * layer, 2 * layer, 3 * layer + 51200 * 1024 + 1024]
    peaks = step_cost(here(model, layout, global_batch=8)).peak_bytes
    assert int(np.argmax(peaks)) == 3


@pytest.mark.parametrize(
    "device, train, bytes_each",
    [("h100", {}, 4), ("h100", {"fp8_recipe": "delayed"}, 4), ("h100", {"fp8_param_gather": True}, 2),
     ("b200", {"fp8_param_gather": True, "fp8_recipe": "tensorwise"}, 1),
     ("b200", {"fp8_param_gather": True, "fp8_recipe": "mxfp8"}, 2)],
)  # fmt: skip
def test_ms08_fp8_weights_are_copies_beside_the_16_bit_ones(device, train, bytes_each):
    """Transformer Engine issue 1261: 2 + 1 + 1 bytes by default; stored in fp8: 2, on Blackwell with one scale 1."""
    model, layout = load_model("llama-2-7b"), ParallelConfig(dp=1, zero=0)
    site = here(model, layout, device, precision="fp8", **train)
    held = layer_held(model, 0, layout)
    outside = held.dense - held.linear  # two norms
    assert outside == 2 * 4096
    assert parameter_bytes(site, held).dense == bytes_each * held.linear + 2 * outside
    assert cast_bytes(site) in (1.0, 2.0)


def test_ms10_one_unit_everywhere():
    """torchtune pull request 1348: 83e9 bytes are 77.30 GiB of 80 GiB, which are 85.90 GB."""
    assert pytest.approx(77.30, abs=0.005) == 83e9 / GIB
    assert format_bytes(83e9) == "77.30 GiB"
    assert load_cluster({"device": "h100", "nodes": 1}).device.memory_bytes == 80 * GIB == 85_899_345_920


def test_ms11_llama_70b_in_16_bits():
    """accelerate issue 3379: 131.42 GiB or 141.11 GB, of 70,553,706,496 parameters."""
    model, layout = load_model("llama-3.1-70b"), ParallelConfig(dp=1, zero=0)
    found = float(state_bytes(here(model, layout), assign(model, layout))["parameters"][0])
    assert found == 2 * 70_553_706_496
    assert (found / GIB, found / 1e9) == (pytest.approx(131.42, abs=0.005), pytest.approx(141.11, abs=0.005))


def test_ms14_end_stages_carry_the_vocabulary():
    """DeepSpeed issue 1378: the first stage 46 % and the last 53 % above a middle one; the tied head is a copy."""
    model, layout = gpt(4096, 16, tied_embeddings=True), ParallelConfig(pp=8, dp=1, zero=0)
    found = sum(state_bytes(here(model, layout), assign(model, layout)).values())
    assert found[0] - found[1] == 18 * 51200 * 4096
    assert found[-1] - found[1] == 18 * (51200 * 4096 + 4096)
    assert set(found[1:-1].tolist()) == {found[1]}


def uniform(in_flight, layers, group):
    """Peak in units of s b h of a stage of a GPT whose layers are recomputed in groups, with its stream's gradient."""
    layout = ParallelConfig(
        pp=in_flight, dp=1, recompute="full", recompute_group=group, micro_batch=1, sequence_parallel=False
    )
    model = gpt(1024, layers * in_flight, vocab=64)
    site = here(model, layout, seq_len=2048, global_batch=4 * in_flight, attention_kernel="unfused")
    found, unit = memory(site), 2048 * 1024
    held = found["activations"][0]
    from telekit.cost.layers import layer_cost
    from telekit.cost.memory import recomputed_bytes

    cost = layer_cost(model.kinds[0], site)
    scores = 5 * 16 * 2048**2 * group  # the case leaves attention's scores out
    again = recomputed_bytes(site, cost, 2) - scores + 2 * unit
    return (held + again) / unit


@pytest.mark.parametrize(
    "in_flight, layers, peaks", [(1, 32, {1: 98, 2: 100, 4: 152}), (8, 8, {1: 162, 2: 132, 4: 168})]
)
def test_ma03_larger_groups_do_not_always_save(in_flight, layers, peaks):
    """Megatron-LM issue 1226: in flight x ceil(L / g) x 2 + g x 34, best at 1 here and at 2 there."""
    assert {group: uniform(in_flight, layers, group) for group in peaks} == peaks


def held_by_stage(pp, micro_batches):
    """Micro-batches that each stage holds, by its activations over those of the last one."""
    model, layout = gpt(1024, 2 * pp), ParallelConfig(pp=pp, dp=1)
    found = memory(here(model, layout, global_batch=micro_batches))["activations"]
    return (found / found[-1]).tolist()


def test_ma06_in_flight_is_min_of_micro_batches_and_stages_to_go():
    """DeepSpeed issue 2800: [4, 3, 2, 1] of 8 micro-batches, not 5 on stage 0."""
    assert held_by_stage(4, 8) == [4, 3, 2, 1]
    assert held_by_stage(4, 3) == [3, 3, 2, 1]


def test_ma07_the_first_stage_holds_most_though_stages_are_equal():
    """DeepSpeed issue 4477: 8 A on stage 0 down to 1 A on stage 7."""
    assert held_by_stage(8, 32) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_ma12_fp32_logits_are_the_last_stages_peak():
    """ISEEKYAN/Megatron-LM pull request 132: 8192 tokens of 151,936: 4.637 GiB in fp32; 0.580 GiB for 1024 tokens."""
    assert pytest.approx(4.637, abs=0.0005) == 4 * 8192 * 151936 / GIB
    assert pytest.approx(0.580, abs=0.0005) == 4 * 1024 * 151936 / GIB
    model = gpt(1024, 8, vocab=151936)
    for tp in (1, 4):
        layout = ParallelConfig(pp=4, tp=tp, dp=1, sequence_parallel=False)
        sites = [
            here(model, layout, seq_len=8192, global_batch=8, cross_entropy_fusion=f) for f in ("none", "te")
        ]
        plain, fused = (memory(site)["logits"] for site in sites)
        assert (plain - fused).tolist() == [
            0,
            0,
            0,
            4 * 8192 * 151936 / tp,
        ]  # the fp32 softmax, on the last stage


def test_ma13_16_bit_logits_of_one_sample():
    """fms-fsdp pull request 152: 131,072 x 4096 in bf16 are 1.000 GiB."""
    model, layout = gpt(1024, 8, vocab=131072), ParallelConfig(pp=4, dp=1)
    found = memory(here(model, layout, seq_len=4096, global_batch=8, cross_entropy_fusion="te"))["logits"][-1]
    assert found - 3 * 2 * 4096 * 1024 == GIB
