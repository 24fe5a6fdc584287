"""Transfers of the newer kinds of layers: what is gathered before a mixer, what experts exchange, what is not there."""

import pytest

from telekit.layout.config import DISPATCHERS, ParallelConfig
from telekit.model.huggingface import load_model
from telekit.operators.transfers import layer_transfers
from telekit.training.config import TrainConfig

S = 4096
TRAIN = TrainConfig(seq_len=S, global_batch=64)


def transfers(name, kind, **layout):
    model = load_model(name)
    spec = next(k for k in model.kinds if kind in (k.attention.kind, k.mlp.kind))
    return {t.name: t for t in layer_transfers(model, spec, TRAIN, ParallelConfig(**layout))}


@pytest.mark.parametrize(
    "name, kind, width",
    [
        ("llama-3.1-8b", "gqa", 4096),
        ("deepseek-v3", "mla", 1536 + 512 + 64),
        # the indexer has the block's input and the queries' bottleneck gathered once more
        ("deepseek-v3.2", "mla", 1536 + 512 + 64 + 7168 + 1536),
        ("qwen3-next-80b-a3b", "gated-delta", 2048),
        ("kimi-linear-48b-a3b", "kda", 2304 + 2 * 128),
        ("nemotron-h-56b", "mamba2", 8192),
        ("deepseek-v4-flash", "compressed", 1024 + 512),  # its first layers have a window only
    ],
)
def test_tensor_parallelism_gathers_what_its_ranks_read(name, kind, width):
    found = transfers(name, kind, tp=2)
    assert found["attention_all_gather"].size_bytes == 2 * S * width
    assert found["attention_backward_scatter"].size_bytes == 2 * S * width


def test_compressed_blocks_are_gathered_too():
    """One key of 512 a 4 tokens, one of 128 for the indexer, and its 64 weights a token."""
    model = load_model("deepseek-v4-flash")
    kind = next(k for k in model.kinds if k.attention.indexer)
    found = {t.name: t for t in layer_transfers(model, kind, TRAIN, ParallelConfig(tp=2))}
    assert found["attention_all_gather"].size_bytes == 2 * S * (1024 + 512 + (512 + 128) / 4 + 64)


def test_experts_exchange_latent_vectors():
    """Nemotron 3 Super: 1,024 numbers a token, not 4,096; the copies are the dispatcher's business."""
    for dispatcher in DISPATCHERS:
        found = transfers("nemotron-3-super-120b-a12b", "moe", ep=8, dispatcher=dispatcher)
        assert found["dispatch"].size_bytes == found["combine"].size_bytes == 2 * S * 1024
        for item in (found["dispatch"], found["combine"]):
            assert (item.expert.dispatcher, item.expert.tokens, item.expert.row_bytes) == (
                dispatcher,
                S,
                2048,
            )
            assert (item.expert.experts, item.expert.top_k, item.expert.groups) == (512, 22, 1)


def test_gradients_go_the_other_way_and_recomputing_repeats_the_way_there():
    """The gradient of a combine is a dispatch: fp8 with its scales; every call but those of gradients is repeated."""
    model = load_model("deepseek-v3")
    spec = next(k for k in model.kinds if k.mlp.kind == "moe")
    train = TrainConfig(seq_len=S, global_batch=64, precision="fp8")
    found = {
        t.name: t for t in layer_transfers(model, spec, train, ParallelConfig(ep=8, tp=2, etp=2)) if t.expert
    }
    fp8, bf16 = 7168 * (1 + 4 / 128), 7168 * 2
    for name, way, row, calls in (
        ("dispatch", "dispatch", fp8, (1, 0)),
        ("combine_backward", "dispatch", fp8, (0, 1)),
        ("combine", "combine", bf16, (1, 0)),
        ("dispatch_backward", "combine", bf16, (0, 1)),
        ("expert_tp_gather", "dispatch", fp8, (1, 1)),
        ("expert_tp_scatter", "combine", bf16, (1, 1)),
    ):
        item = found.pop(name)
        assert (item.expert.way, item.expert.row_bytes, item.expert.tokens) == (way, row, S / 2)
        assert (item.forward_calls, item.backward_calls) == calls
        assert item.modules == (("moe",) if calls[0] else ())
        assert (item.expert.groups, item.expert.group_limit) == (8, 4)
    assert not found


def test_a_half_that_is_not_there_sends_nothing():
    experts = transfers("nemotron-3-nano-30b-a3b", "moe", tp=2, ep=2)
    assert not any(name.startswith(("attention", "ring", "mlp")) for name in experts)
    mamba = transfers("nemotron-h-56b", "mamba2", tp=2)
    assert not any(name.startswith(("mlp", "dispatch", "expert")) for name in mamba)
