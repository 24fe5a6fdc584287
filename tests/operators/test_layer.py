"""Operators against independent counts: FLOPs of the model floor, activation formulas of Korthikanti et al."""

import pytest

from telekit.layout.config import ParallelConfig
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig
from telekit.model.flops import forward_flops_per_token
from telekit.model.huggingface import load_model
from telekit.operators.layer import head_operators, layer_operators, mtp_operators
from telekit.training.config import TrainConfig

NAMES = [
    "deepseek-v3",
    "deepseek-v2-lite",
    "qwen3-235b-a22b",
    "gpt-oss-120b",
    "llama-3.1-8b",
    "gpt3-175b",
    "mixtral-8x7b",
]
TRAIN = TrainConfig(seq_len=4096, global_batch=64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "layout",
    [ParallelConfig(), ParallelConfig(tp=2, cp=2, micro_batch=3), ParallelConfig(tp=4, etp=2, ep=2)],
    ids=["1", "tp2cp2", "tp4ep2"],
)
def test_operators_do_the_models_flops_split_over_ranks(name, layout):
    model = load_model(name)
    operators = [op for kind in model.layers for op in layer_operators(model, kind, TRAIN, layout)]
    operators += head_operators(model, TRAIN, layout)
    done = sum(op.forward_flops for op in operators) * layout.tp * layout.cp
    tokens = layout.micro_batch * TRAIN.seq_len
    assert done == pytest.approx(tokens * forward_flops_per_token(model, TRAIN.seq_len), rel=1e-12)


def test_mtp_module_does_the_models_flops():
    model = load_model("deepseek-v3")
    done = sum(op.forward_flops for op in mtp_operators(model, TRAIN, ParallelConfig()))
    both = [forward_flops_per_token(model, TRAIN.seq_len, include_mtp=m) for m in (True, False)]
    assert done == pytest.approx(TRAIN.seq_len * (both[0] - both[1]), rel=1e-12)


def gpt_layer(heads=96, hidden=12288):
    attention = GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads)
    kind = LayerKind(
        name="gpt", attention=attention, mlp=FeedForward(ffn_hidden_size=4 * hidden, gated=False)
    )
    return ModelConfig(name="gpt", hidden_size=hidden, vocab_size=51200, kinds=(kind,), pattern=(0,) * 96)


@pytest.mark.parametrize("tp, sequence_parallel, shared", [(1, True, 0), (8, True, 0), (8, False, 8)])
def test_kept_activations_are_korthikantis_without_masks_and_scores(tp, sequence_parallel, shared):
    """34 sbh / t less two dropout masks (2 sbh), scores not stored; 10 sbh are not split without sequence parallelism.

    Of those 10, two masks are absent here: 8 sbh stay whole (arXiv 2205.05198, equations 2 and 4). Flash attention
    keeps one fp32 number a head and token.
    """
    model, s = gpt_layer(), 2048
    layout = ParallelConfig(tp=tp, sequence_parallel=sequence_parallel)
    train = TrainConfig(seq_len=s, global_batch=8)
    kept = sum(op.saved_bytes + op.held_bytes for op in layer_operators(model, model.kinds[0], train, layout))
    sbh = s * model.hidden_size
    assert kept == (32 - shared) * sbh / tp + shared * sbh + 4 * 96 * s / tp


def test_ma01_expert_parallelism_does_not_divide_activations():
    """Megatron-LM pull request 6782: dispatched tokens a rank are topk * s * b / tp for every EP."""
    model = load_model("deepseek-v3")
    kept = []
    for ep in (8, 64):
        operators = {
            op.name: op
            for op in layer_operators(model, model.layers[-1], TRAIN, ParallelConfig(ep=ep, dp=64))
        }
        assert operators["permute"].saved_bytes == 2 * 32768 * 7168
        assert operators["expert_activation"].saved_bytes == 2 * 32768 * 2048
        kept.append(sum(op.saved_bytes + op.held_bytes for op in operators.values()))
    assert kept[0] == kept[1]


def test_recompute_modules_free_what_they_name():
    model = load_model("deepseek-v3")
    operators = layer_operators(model, model.layers[-1], TRAIN, ParallelConfig())
    freed = {
        m: sum(op.saved_bytes for op in operators if m in op.modules)
        for m in ("mla_up_proj", "moe_act", "moe")
    }
    tokens = TRAIN.seq_len
    assert freed["moe_act"] == 2 * tokens * 8 * 2048
    assert freed["mla_up_proj"] == 2 * tokens * (128 * (192 + 192 + 128) + 1536 + 512)
    assert freed["moe"] > freed["moe_act"]
