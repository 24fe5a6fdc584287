"""The noun itself: what it holds, what it refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, MixtureOfExperts, ModelConfig
from telekit.model.huggingface import load_model

ATTENTION = GroupedQueryAttention(heads=4, kv_heads=2, head_dim=8)
DENSE = LayerKind(name="dense", attention=ATTENTION, mlp=FeedForward(ffn_hidden_size=16))
MOE = LayerKind(
    name="moe",
    attention=ATTENTION,
    mlp=MixtureOfExperts(num_experts=4, top_k=2, expert_ffn_hidden_size=8),
)


def model(**change):
    shape = {"name": "x", "hidden_size": 32, "vocab_size": 100, "kinds": (DENSE, MOE), "pattern": (0, 1, 1)}
    return ModelConfig(**shape | change)


def test_layers_runs_and_the_expert_block():
    m = model()
    assert m.num_layers == 3
    assert [layer.name for layer in m.layers] == ["dense", "moe", "moe"]
    assert m.runs == ((0, 1), (1, 2))
    assert m.moe is MOE.mlp
    assert model(kinds=(DENSE,), pattern=(0,)).moe is None
    assert load_model("deepseek-v3").runs == ((0, 3), (1, 58))
    assert load_model("gpt-oss-120b").runs == ((0, 1), (1, 1)) * 18


def test_a_model_does_not_change_and_can_be_a_key():
    m = model()
    with pytest.raises(ValidationError, match="frozen"):
        m.hidden_size = 64
    assert {m: 1}[model()] == 1


def test_a_model_survives_json():
    for name in ("deepseek-v3", "gpt-oss-120b", "telechat2-115b"):
        m = load_model(name)
        assert ModelConfig.model_validate_json(m.model_dump_json()) == m


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": (0, 2)}, {"pattern": ()}, {"kinds": ()}, {"hidden_size": 0}, {"hidden_size": 32.0},
        {"hidden_size": True}, {"hidden_size": 10**8}, {"vocab_size": "100"}, {"unknown": 1},
        {"mtp_layers": -1}, {"pattern": (0,) * 10_001},
    ],
)  # fmt: skip
def test_impossible_models_are_refused(change):
    with pytest.raises(ValidationError):
        model(**change)


def test_impossible_blocks_are_refused():
    with pytest.raises(ValidationError, match="must divide heads=4"):
        GroupedQueryAttention(heads=4, kv_heads=3, head_dim=8)
    with pytest.raises(ValidationError, match="must not exceed num_experts=4"):
        MixtureOfExperts(num_experts=4, top_k=5, expert_ffn_hidden_size=8)
