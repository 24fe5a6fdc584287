"""Memory of states and activations against published sums and a plain recount."""

import pytest

from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site
from telekit.cost.memory import stage_parameters, state_bytes
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import assign
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig
from telekit.model.count import count
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig
from telekit.units import GIB

H800 = load_cluster({"device": "h800", "nodes": 256})


def site(model, layout, **train):
    return Site(model, H800, TrainConfig(**train), layout)


def total_of(found):
    return found.dense + found.expert


@pytest.mark.parametrize("zero, per_parameter", [(0, 16.0), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_zero_stages_are_the_papers(zero, per_parameter):
    """ZeRO, figure 1: 7.5 B parameters over 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    attention = GroupedQueryAttention(heads=32, kv_heads=32, head_dim=128)
    kind = LayerKind(name="gpt", attention=attention, mlp=FeedForward(ffn_hidden_size=16384, gated=False))
    model = ModelConfig(name="7.5b", hidden_size=4096, vocab_size=51200, kinds=(kind,), pattern=(0,) * 36)
    layout = ParallelConfig(dp=64, zero=zero)
    found = state_bytes(site(model, layout, grad_dtype="bf16"), assign(model, layout))
    parameters = float(total_of(stage_parameters(site(model, layout), assign(model, layout)))[0])
    assert parameters == count(model).total
    assert float(sum(found.values())[0]) == pytest.approx(parameters * per_parameter, rel=1e-12)


def test_ms04_experts_are_split_by_ep_and_etp_not_by_tp():
    """Megatron-LM issue 4050: Mixtral-8x7B on 16 devices, TP 2, EP 8: 6,440,620,032 parameters a rank, 68.6 GiB."""
    model = load_model("mixtral-8x7b")
    layout = ParallelConfig(tp=2, ep=8, etp=1, dp=8)
    here = site(model, layout)
    assert float(total_of(stage_parameters(here, assign(model, layout)))[0]) == 6_440_620_032
    held = state_bytes(here, assign(model, layout))
    assert float(sum(held.values())[0]) / GIB == pytest.approx(68.6, abs=0.05)


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "telechat3-105b-a4.7b", "llama-3.1-70b", "gpt-oss-120b", "gpt3-175b"]
)
def test_stages_hold_every_parameter_once(name):
    model = load_model(name)
    layout = ParallelConfig(pp=4, dp=2)
    held = total_of(stage_parameters(site(model, layout), assign(model, layout)))
    copied = (
        model.tied_embeddings or model.mtp_layers
    )  # PC03: the MTP module looks tokens up on the last stage
    again = model.hidden_size * model.vocab_size if copied else 0
    assert float(held.sum()) == count(model).total + count(model).mtp + again


def test_dualpipe_holds_the_mirror_stage_too():
    model, plain = load_model("deepseek-v3"), ParallelConfig(pp=16, ep=64, dp=128)
    one = total_of(stage_parameters(site(model, plain, mtp=False), assign(model, plain)))
    two_way = ParallelConfig(pp=16, ep=64, dp=128, schedule="dualpipe")
    both = total_of(stage_parameters(site(model, two_way, mtp=False), assign(model, two_way)))
    assert both.tolist() == (one + one[::-1]).tolist()


def test_mtp_copies_the_embedding_to_the_last_stage():
    """Case PC03: DeepSeek-V3's last of 16 stages, three layers, head, MTP module and an embedding copy."""
    model, layout = load_model("deepseek-v3"), ParallelConfig(pp=16, ep=64, dp=128)
    held = [
        total_of(stage_parameters(site(model, layout, mtp=mtp), assign(model, layout)))[-1]
        for mtp in (True, False)
    ]
    experts = 256 * 3 * 7168 * 2048
    assert held[0] - held[1] == count(model).mtp - experts + experts / 64 + 129280 * 7168


def test_zero_3_gathers_two_layers_at_a_time():
    from telekit.cost.step import step_cost

    model = load_model("llama-3.1-8b")
    peak = {}
    for zero in (1, 2, 3):
        here = site(model, ParallelConfig(dp=64, zero=zero), global_batch=64, grad_dtype="bf16")
        peak[zero] = step_cost(here).memory
    layer = (count(model).total - 2 * 128256 * 4096 - 4096) // 32
    total = count(model).total
    assert float(peak[3]["parameters"][0]) == 2 * total / 64 + 2 * 2 * layer
    assert float(peak[2]["gradients"][0]) == 2 * total / 64 + 2 * layer
    assert float(peak[1]["gradients"][0]) == 2 * total


@pytest.mark.parametrize("recompute", ["full", "none"])
def test_activations_in_flight_on_the_first_stage(recompute):
    """A GPT layer keeps 32 sbh + 4as, with full recompute 2 sbh; 1F1B's first stage holds pp micro-batches."""
    model = load_model("gpt3-175b")
    from telekit.cost.step import step_cost

    layout = ParallelConfig(tp=8, pp=8, dp=1, recompute=recompute)
    cost = step_cost(site(model, layout, seq_len=2048, global_batch=64))
    sbh = 2048 * 12288
    per_layer = 2 * sbh / 8 if recompute == "full" else (32 * sbh + 4 * 96 * 2048) / 8
    assert float(cost.memory["activations"][0]) == pytest.approx(8 * 12 * per_layer, rel=1e-12)
    assert float(cost.memory["activations"][-1]) == pytest.approx(12 * per_layer, rel=1e-12)
