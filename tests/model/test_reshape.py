"""Models in another shape: against the same change made in a config file, which is read and counted apart."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.model.config import FeedForward, MixtureOfExperts
from telekit.model.count import count
from telekit.model.huggingface import from_huggingface, load_model
from telekit.model.reshape import Shape, reshape, shape_of

FIELDS = {
    "deepseek-v3": {
        "layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "dense_layers": "first_k_dense_replace",
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "width": "moe_intermediate_size",
    },
    "qwen3-235b-a22b": {
        "layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "width": "moe_intermediate_size",
    },
    "llama-3.1-8b": {
        "layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "width": "intermediate_size",
    },
}
VALUES = {"layers": 80, "hidden_size": 5120, "dense_layers": 1, "experts": 96, "top_k": 3, "width": 1280}


def sizes(model):
    found = count(model)
    return found.total, found.active, found.mtp, found.by_component, found.training_flops_per_token


@pytest.mark.parametrize("name", catalog.names("models"))
def test_its_own_shape_changes_nothing(name):
    model = load_model(name)
    assert sizes(reshape(model, shape_of(model))) == sizes(model)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in FIELDS for field in FIELDS[name]])
def test_a_change_is_that_of_the_config_file(name, field):
    model, config = load_model(name), dict(catalog.record("models", name)["config"])
    value = VALUES[field]
    if name == "llama-3.1-8b":  # the file's heads would follow the hidden size, here they stay
        config["head_dim"] = 128
    expected = from_huggingface(config | {FIELDS[name][field]: value})
    assert sizes(reshape(model, replace(shape_of(model), **{field: value}))) == sizes(expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(0, 90), st.integers(1, 400), st.integers(1, 400), st.integers(1, 4000))
def test_any_shape_is_the_one_asked_for(layers, dense, experts, top_k, width):
    model = load_model("deepseek-v3")
    asked = replace(
        shape_of(model), layers=layers, dense_layers=dense, experts=experts, top_k=top_k, width=width
    )
    if dense > layers or top_k > experts:
        with pytest.raises(InputError):
            reshape(model, asked)
        return
    found = reshape(model, asked)
    if dense < layers:
        assert shape_of(found) == asked
    else:
        assert found.moe is None and found.num_layers == layers


def test_a_first_dense_layer_is_as_wide_as_what_a_token_meets():
    model = load_model("qwen3-235b-a22b")
    found = reshape(model, replace(shape_of(model), dense_layers=2))
    assert [layer.mlp for layer in found.layers[:3]] == [
        FeedForward(ffn_hidden_size=8 * 1536), FeedForward(ffn_hidden_size=8 * 1536), model.moe,
    ]  # fmt: skip
    assert all(layer.attention == model.layers[0].attention for layer in found.layers)


def test_layers_that_alternate_go_on_alternating():
    model = load_model("gpt-oss-20b")
    windows = [layer.attention.window for layer in reshape(model, replace(shape_of(model), layers=30)).layers]
    assert windows == [model.layers[i % 2].attention.window for i in range(30)]


def test_half_blocks_of_a_hybrid_model_stay():
    model = load_model("nemotron-3-nano-30b-a3b")
    found = reshape(model, replace(shape_of(model), experts=64))
    assert [layer.mlp.kind for layer in found.layers] == [layer.mlp.kind for layer in model.layers]
    assert {
        m.num_experts for m in (layer.mlp for layer in found.layers) if isinstance(m, MixtureOfExperts)
    } == {64}


def test_all_that_is_wrong_is_said():
    model = load_model("mixtral-8x7b")
    with pytest.raises(InputError) as refused:
        reshape(model, Shape(layers=0, hidden_size=0, dense_layers=1, experts=4, top_k=5, width=0))
    assert {p.field for p in refused.value.problems} == {
        "layers",
        "hidden_size",
        "dense_layers",
        "top_k",
        "width",
    }


@pytest.mark.parametrize("field", ["experts", "top_k", "dense_layers"])
def test_a_model_without_experts_gets_none(field):
    model = load_model("llama-3.1-8b")
    assert asdict(shape_of(model))[field] == 0
    with pytest.raises(InputError, match="has none"):
        reshape(model, replace(shape_of(model), **{field: 2}))
