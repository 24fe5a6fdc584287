"""What optimizers keep, against sums over tensors and the memory their authors report."""

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

ATTENTION = GroupedQueryAttention(heads=16, kv_heads=16, head_dim=64, qkv_bias=True, output_bias=True)
GPT2_MEDIUM = ModelConfig(
    name="gpt2-medium", hidden_size=1024, vocab_size=50257, learned_positions=1024, tied_embeddings=True,
    norm_bias=True,
    kinds=(LayerKind(name="gpt", attention=ATTENTION, mlp=FeedForward(ffn_hidden_size=4096, gated=False, bias=True)),),
    pattern=(0,) * 24,
)  # fmt: skip


def kept(model, layout=None, **train):
    layout = layout or ParallelConfig(dp=1, zero=0)
    here = Site(model, load_cluster({"device": "h100", "nodes": 1}), TrainConfig(**train), layout)
    return float(state_bytes(here, assign(model, layout))["optimizer"][0])


def test_came_saves_what_its_authors_report():
    """README of github:yangluo7/CAME: GPT-2 medium in fp32 takes 8.77 GiB with AdamW and 7.44 GiB with CAME."""
    total = count(GPT2_MEDIUM).total
    assert total == 354_823_168
    adam, came = (kept(GPT2_MEDIUM, precision="fp32", optimizer=o) for o in ("adamw", "came"))
    assert adam == 8 * total
    assert (adam - came) / GIB == pytest.approx(8.77 - 7.44, abs=0.03)


def test_factors_are_both_sides_of_every_matrix():
    """One layer of 1024 and 4096 wide by hand: q, k, v, output, up, down; and the vocabulary."""
    sides = 24 * (4 * 2048 + 2 * 5120) + 1024 + 50257
    total = count(GPT2_MEDIUM).total
    assert kept(GPT2_MEDIUM, optimizer="adafactor") == 4 * total + 4 * sides
    assert kept(GPT2_MEDIUM, optimizer="came") == 8 * total + 8 * sides
    assert kept(GPT2_MEDIUM, optimizer="came", state_dtype="bf16") == 6 * total + 8 * sides


def test_muon_keeps_one_moment_of_matrices_and_two_of_the_rest():
    matrices = 24 * 12 * 1024**2
    total = count(GPT2_MEDIUM).total
    assert kept(GPT2_MEDIUM, optimizer="muon") == 8 * matrices + 12 * (total - matrices)


def test_muon_counts_experts_as_matrices():
    model = load_model("mixtral-8x7b")
    outside = 2 * 32000 * 4096 + 4096 + 32 * (2 * 4096 + 8 * 4096)  # vocabulary twice, norms, router
    assert kept(model, optimizer="muon") == 8 * count(model).total + 4 * outside


@pytest.mark.parametrize("train, bytes_each", [({}, 12), ({"state_dtype": "bf16"}, 8), ({"precision": "fp32"}, 8),
                                               ({"master_dtype": "bf16", "state_dtype": "bf16"}, 6)])  # fmt: skip
def test_adam_keeps_a_master_copy_and_two_moments(train, bytes_each):
    """DeepSeek-V3 keeps its moments in bf16 (arXiv 2412.19437, section 3.3.3)."""
    assert kept(GPT2_MEDIUM, **train) == bytes_each * count(GPT2_MEDIUM).total


def test_experts_states_are_split_over_their_own_replicas():
    """TP 2, EP 4 on 8 devices: dense states over 4 replicas, experts over 2."""
    model, layout = load_model("mixtral-8x7b"), ParallelConfig(tp=2, ep=4, dp=4, zero=1)
    here = Site(model, load_cluster({"device": "h100", "nodes": 1}), TrainConfig(), layout)
    held = stage_parameters(here, assign(model, layout))
    assert float(held.expert[0]) == 32 * 8 * 3 * 4096 * 14336 / 4
    assert kept(model, layout) == 12 * (float(held.dense[0]) / 4 + float(held.expert[0]) / 2)
