"""What a file leaves open: which default is taken, that it is told, and that it is the one transformers takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.huggingface import load_model, read_model

CATALOG = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}
BASE = {
    "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "intermediate_size": 96, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SMALL = {
    "qwen2": BASE,
    "qwen3": BASE | {"head_dim": 16},
    "qwen2_moe": BASE | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": BASE | EXPERTS,
    "llama4_text": BASE | {
        "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1},
    "exaone4": BASE,
}  # fmt: skip
FULL, WINDOW = "full_attention", "sliding_attention"


def keys_seen(config):
    """Window or chunk of each layer, 0 for full attention."""
    return [layer.attention.window or layer.attention.chunk or 0 for layer in load_model(config).layers]


def refused(config):
    with pytest.raises(InputError) as caught:
        read_model(config)
    return {p.field: str(p) for p in caught.value.problems}


# --- windows: each row is what transformers 5.24's configuration class makes of the file ---------------------

USED = {"use_sliding_window": True, "max_window_layers": 3}
W, C = 4096, 8192


@pytest.mark.parametrize(
    ("family", "change", "layers"),
    [
        ("qwen2", USED, [0, 0, 0, W, W, W, W, W]),
        ("qwen3", USED, [0, 0, 0, W, W, W, W, W]),
        ("qwen2_moe", USED, [W, 0, W, 0, 0, 0, 0, 0]),
        ("qwen3_moe", {"use_sliding_window": True}, [W] * 8),
        ("qwen2", USED | {"layer_types": [WINDOW, FULL] * 4}, [W, 0] * 4),
        ("qwen2", USED | {"sliding_window": 512}, [0, 0, 0, 512, 512, 512, 512, 512]),
        ("qwen2", USED | {"sliding_window": None}, [0] * 8),
        ("qwen2", {"sliding_window": 512, "max_window_layers": 3}, [0] * 8),
        ("qwen2_moe", {"sliding_window": 0, "use_sliding_window": False}, [0] * 8),
        ("llama4_text", {}, [C, C, C, 0] * 2),
        ("llama4_text", {"attention_chunk_size": 512}, [512, 512, 512, 0] * 2),
        ("llama4_text", {"attention_chunk_size": None}, [0] * 8),
        ("llama4_text", {"no_rope_layers": [1, 0] * 4}, [C, 0] * 4),
        ("exaone4", {}, [W, W, W, 0] * 2),
        ("exaone4", {"sliding_window": None}, [0] * 8),
        ("exaone4", {"layer_types": [FULL] * 8}, [0] * 8),
    ],
)
def test_the_window_of_each_layer_is_the_one_its_class_takes(family, change, layers):
    assert keys_seen({"model_type": family} | SMALL[family] | change) == layers


@pytest.mark.parametrize(
    ("family", "change", "name", "value"),
    [
        ("qwen2", USED, "sliding_window", 4096),
        ("qwen3", USED, "sliding_window", 4096),
        ("qwen2_moe", USED, "sliding_window", 4096),
        ("qwen3_moe", USED, "sliding_window", 4096),
        ("exaone4", {}, "sliding_window", 4096),
        ("llama4_text", {}, "attention_chunk_size", 8192),
    ],
)
def test_a_window_that_was_filled_in_counts_as_if_given_and_is_told(family, change, name, value):
    config = {"model_type": family} | SMALL[family] | change
    found, given = count(config, seq_len=65536), count(config | {name: value}, seq_len=65536)
    assert found.defaults[name] == value and any(f"{name} = {value}" in note for note in found.notes)
    assert found.training_flops_per_token == given.training_flops_per_token
    assert (
        found.training_flops_per_token < count(config | {name: 65536}, seq_len=65536).training_flops_per_token
    )


@pytest.mark.parametrize(
    ("family", "change", "field"),
    [
        ("qwen2_moe", USED | {"sliding_window": None}, "sliding_window"),
        ("qwen2", {"sliding_window": 512, "layer_types": [WINDOW] * 8}, "layer_types"),
        ("qwen3", {"sliding_window": 512, "use_sliding_window": False, "layer_types": [WINDOW] * 8}, "layer_types"),
        ("qwen3_moe", {"use_sliding_window": True, "layer_types": [WINDOW, FULL] * 4}, "layer_types"),
        ("llama4_text", {"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 8},
         "attention_chunk_size"),
    ],
)  # fmt: skip
def test_windows_that_contradict_one_another_are_refused(family, change, field):
    assert list(refused({"model_type": family} | SMALL[family] | change)) == [field]


def test_the_flops_of_a_filled_in_window_by_hand():
    config = {"model_type": "qwen2"} | BASE | USED
    window, seq = 4096, 65536
    full, mean = (seq + 1) / 2, (window * (window + 1) / 2 + (seq - window) * window) / seq
    saved = count(config | {"use_sliding_window": False}, seq).forward_flops_per_token
    saved -= count(config, seq).forward_flops_per_token
    assert saved == pytest.approx(
        5 * 4 * (4 * 16) * (full - mean), rel=1e-9
    )  # five layers, two products of 64 numbers


# --- heads of Step's windowed layers -------------------------------------------------------------------------

STEP = CATALOG["step-3.5-flash"]
FLAT = {k: v for k, v in STEP.items() if k != "attention_other_setting"}


def test_heads_of_windowed_layers_that_the_file_does_not_say_are_told():
    found = count(FLAT)
    windowed = sum(kind == WINDOW for kind in STEP["layer_types"][: STEP["num_hidden_layers"]])
    a_head = 4096 * (2 * 128 + 1)  # its columns of q, of the gate, its rows of o
    assert count(STEP).total - found.total == windowed * (96 - 64) * a_head
    assert found.defaults["num_sliding_attention_heads"] == 64
    assert any("how many heads the windowed layers have: 64" in note for note in found.notes)
    assert not any("windowed" in note for note in count(STEP).notes)
    assert not any("windowed" in note for note in count(FLAT | {"num_sliding_attention_heads": 64}).notes)


@pytest.mark.skipif(not os.environ.get("TELEKIT_SAMPLES"), reason="TELEKIT_SAMPLES is not set")
def test_the_flattened_step_3_7_says_that_its_heads_were_filled_in():
    file = Path(os.environ["TELEKIT_SAMPLES"], "cases/hf_configs/stepfun-ai__Step-3.7-Flash.json")
    found = count(file)
    assert found.defaults["num_sliding_attention_heads"] == 64
    assert any("heads the windowed layers have" in note for note in found.notes)


# --- what else is told ---------------------------------------------------------------------------------------


def test_defaults_and_fields_passed_over_are_in_the_answer():
    found = count(BASE | {"model_type": "llama", "my_note": "hello", "num_key_value_heads": None})
    assert found.defaults == {
        "attention_bias": False,
        "head_dim": 16,
        "mlp_bias": False,
        "num_key_value_heads": 4,
    }
    assert found.ignored == ("my_note",)
    assert found.notes == ("not said by the file, and taken as: num_key_value_heads = 4",)
    assert count("deepseek-v3").defaults == {} and count("deepseek-v3").notes == ()
    plain = found.to_dict()
    assert (plain["defaults"], plain["ignored"]) == (dict(found.defaults), ["my_note"])


def test_activations_of_pruned_blocks_are_no_default_that_matters():
    assert count("llama-3.3-nemotron-super-49b").defaults == {"head_dim": 128}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CATALOG["mimo-v2-flash"], "num_nextn_predict_layers = 3"),
        (CATALOG["qwen3-next-80b-a3b"], "num_nextn_predict_layers = 1"),
        (CATALOG["dots.llm1"], "sliding_window = 4096, max_window_layers = 62"),
        ({"model_type": "llava", "text_config": BASE}, "model_type = llama"),
        ({"model_type": "gemma3", "text_config": BASE | {"head_dim": 16, "tie_word_embeddings": True}},
         "model_type = gemma3_text"),
        ({"architectures": ["LlamaForCausalLM"]} | BASE, "model_type = llama"),
        ({k: v for k, v in FLAT.items() if k not in ("layer_types", "num_nextn_predict_layers")},
         "layer_types = full_attention everywhere"),
    ],
)  # fmt: skip
def test_what_shapes_the_model_and_was_filled_in_is_in_a_note(config, words):
    assert any(words in note for note in count(config).notes)


def test_an_attention_that_is_not_modelled_and_changes_no_tensor_is_told():
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    for family in ("qwen2", "qwen3", "qwen3_moe"):
        plain = {"model_type": family} | SMALL[family]
        found = count(plain | {"dual_chunk_attention_config": chunks})
        assert found.total == count(plain).total
        assert any("dual_chunk_attention_config" in note for note in found.notes)
    assert "dual_chunk_attention_config" in refused(plain | {"dual_chunk_attention_config": [1]})


MIMO = CATALOG["mimo-v2-flash"]


@pytest.mark.parametrize(
    ("window", "before", "seen", "told"),
    [(128, None, 128, False), (128, 128, 128, True), (129, 128, 129, False), (None, 128, 129, False)],
)
def test_the_window_of_mimo_v2_by_its_two_names(window, before, seen, told):
    config = MIMO | {"sliding_window": window, "sliding_window_size": before}
    assert {layer.attention.window for layer in load_model(config).layers} == {None, seen}
    assert any("windows are of 128 keys" in note for note in count(config).notes) == told
    assert "sliding_window_size" in refused(MIMO | {"sliding_window": 128, "sliding_window_size": 129})
