"""Reading a model: names, paths, folders, dicts; and what must be refused, with words that help."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.model.config import ModelConfig
from telekit.model.count import count
from telekit.model.huggingface import defaults_filled, from_huggingface, load_model, read_model

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip
CATALOG = {name: catalog.record("models", name)["config"] for name in catalog.names("models")}


def problems(config, **kwargs):
    with pytest.raises(InputError) as caught:
        from_huggingface(config, **kwargs)
    return {p.field: str(p) for p in caught.value.problems}


# --- where a model comes from -------------------------------------------------------------------------------


def test_a_name_a_file_a_folder_and_its_content_are_one_model(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(CATALOG["deepseek-v3"]), encoding="utf-8")
    other = tmp_path / "other.json"
    other.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte-order mark is no fault
    models = [load_model(spec) for spec in ("deepseek-v3", path, str(path), folder, str(folder), other)]
    models.append(load_model(CATALOG["deepseek-v3"]))
    assert len({model.model_copy(update={"name": "", "source": ""}) for model in models}) == 1
    assert [m.name for m in models] == ["deepseek-v3", *["my-model"] * 4, "other", "deepseek_v3"]
    assert models[1].source == str(path) and models[0].source.startswith("github:")


def test_a_model_is_itself():
    model = load_model("mixtral-8x7b")
    assert load_model(model) is model


def test_the_name_a_config_gives_itself():
    assert from_huggingface(LLAMA | {"_name_or_path": "/models/tiny-llama"}).name == "tiny-llama"
    assert from_huggingface(LLAMA, name="mine", source="here").name == "mine"


@pytest.mark.parametrize("size", ["8b", "70b", "405b"])
def test_llama_3_means_3_1(size):
    assert load_model(f"llama-3-{size}") == load_model(f"llama-3.1-{size}")


def test_a_catalog_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepseek-v3").mkdir()
    assert load_model("deepseek-v3").num_layers == 61
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(Path("deepseek-v3"))


@pytest.mark.parametrize("spec", ["deepseek-v33", "", "no/such/config.json", "x" * 5000, "a\0b"])
def test_an_unknown_name_is_refused(spec):
    with pytest.raises(InputError, match="not a name in the catalog of models, nor a path that exists"):
        load_model(spec)


def test_what_is_no_spec_is_refused():
    for spec in (None, 7, ["deepseek-v3"], 10**5000):
        with pytest.raises(InputError, match="catalog name, a path or an object"):
            load_model(spec)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama",\n  "hidden_size": }', "line 2, column 18"),
        (b"", "line 1, column 1"),
        (b'{"hidden_size": NaN}', "NaN"),
        (b'{"x": -Infinity}', "Infinity"),
        (b'{"x": "\xff"}', "UTF-8"),
        (b"[" * 200_000, "deep"),
        (b'{"x": ' * 100_000 + b"1" + b"}" * 100_000, "deep"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "digits"),
        (b" " * 10_000_001, "10,000,000"),
        (b'["llama"]', "must be a JSON object"),
        (b'"llama"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_place(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_model(path)
    assert caught.value.source == str(path) and str(caught.value).startswith(str(path))


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither a config\.json nor a folder with one"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="neither"):
        load_model("/dev/zero")


# --- fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("missing", "this field is required"),
        (None, "must be a whole number, not null"),
        (-1, "must be from 1 to 10,000,000"),
        (0, "must be from 1 to"),
        (10**8, "must be from 1 to"),
        (math.nan, "must be a whole number, not nan"),
        (math.inf, "must be a whole number, not inf"),
        (4096.0, "must be a whole number, not a fraction"),
        (True, "must be a whole number, not a truth value"),
        ("4096", "must be a whole number, not a text"),
        ([4096], "must be a whole number, not a list"),
        ({}, "must be a whole number, not an object"),
    ],
    ids=str,
)
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "intermediate_size"])
def test_a_bad_number_is_named_with_its_rule_and_a_value_that_works(field, value, rule):
    config = LLAMA | {field: value}
    if value == "missing":
        del config[field]
    told = problems(config, source="config.json")
    assert list(told) == [field]
    assert rule in told[field] and "for example" in told[field]


def test_a_number_too_long_to_print_is_told_by_its_length():
    assert "a number of 16610 bits" in problems(LLAMA | {"hidden_size": 10**5000})["hidden_size"]


NULL_MEANS_SOMETHING = {
    "num_key_value_heads", "head_dim", "q_lora_rank", "n_routed_experts", "n_shared_experts",
    "moe_layer_freq", "num_nextn_predict_layers", "decoder_sparse_step", "n_inner", "first_k_dense_replace",
    "num_hash_layers", "qk_rope_head_dim", "num_shared_experts", "shared_intermediate_size",
    "full_attention_interval", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
    "swa_v_head_dim", "moe_layer_end_index", "moe_layer_interval", "cla_share_factor", "num_shared_expert",
    "moe_latent_size", "num_mtp_layers", "sliding_window", "expand", "n_group", "topk_group",
}  # fmt: skip
MAY_BE_ZERO = {"first_k_dense_replace", "num_nextn_predict_layers", "n_shared_experts", "num_hash_layers",
               "num_shared_experts", "shared_intermediate_size", "moe_layer_start_index", "moe_layer_end_index",
               "moe_num_shared_experts", "shared_expert_intermediate_size", "num_mtp_layers",
               "num_dense_layers"}  # fmt: skip
MAY_BE_ABSENT = {"moe_latent_size", "intermediate_size"}  # where they are, the model has one part more


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("value", [None, -3, 0, 10**12, math.nan, 1.5, True, "8", [8]], ids=str)
def test_no_number_of_any_family_may_be_nonsense(name, value):
    config = CATALOG[name]
    for field in (k for k, v in config.items() if type(v) is int):
        if (value is None and field in NULL_MEANS_SOMETHING) or (value == 0 and field in MAY_BE_ZERO):
            continue
        assert field in problems(config | {field: value}), field


@pytest.mark.parametrize("name", CATALOG)
def test_a_missing_size_is_never_guessed(name):
    config = CATALOG[name]
    for field in (k for k, v in config.items() if type(v) is int or k == "n_routed_experts"):
        if config["model_type"] == "nemotron_h" and field in MAY_BE_ABSENT:
            continue
        less = {k: v for k, v in config.items() if k != field}
        try:
            model = load_model(less)
        except InputError as error:
            assert field in str(error)
        else:
            assert field in defaults_filled(less), f"{field} was filled in without a word"
            assert model.num_layers == load_model(name).num_layers


def test_all_problems_are_listed_at_once():
    told = problems(LLAMA | {"hidden_size": "64", "vocab_size": -1, "tie_word_embeddings": "no"}
                    | {"index_topk": 2048})  # fmt: skip
    assert list(told) == ["hidden_size", "vocab_size", "tie_word_embeddings", "index_topk"]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "divide num_attention_heads=4; for example 2"),
        ({"num_key_value_heads": 8}, "num_key_value_heads", "divide num_attention_heads=4; for example 4"),
        ({"hidden_size": 66}, "num_attention_heads", "divide hidden_size=66 where head_dim is not given"),
        ({"hidden_act": "softshrink"}, "hidden_act", "not modelled yet; known: "),
        ({"hidden_act": 3}, "hidden_act", "not modelled yet; known: "),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "must be true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types", "must have one entry a layer, 2 in all"),
        ({"layer_types": "full_attention"}, "layer_types", "must be a list, not a text"),
        ({"layer_types": [1, 2]}, "layer_types", "its entries must be str, not int"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types", "linear_attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window", "is required"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures", "not modelled yet"),
        ({"architectures": "LlamaForCausalLM"}, "architectures", "must be a list"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers", "must be from 1 to 10,000"),
    ],
)  # fmt: skip
def test_rules_between_fields(change, field, words):
    told = problems(LLAMA | change)
    assert list(told) == [field] and words in told[field]


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("deepseek-v3", {"num_experts_per_tok": 257}, "num_experts_per_tok"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "first_k_dense_replace"),
        ("deepseek-v3", {"moe_layer_freq": [0, 1]}, "moe_layer_freq"),
        ("deepseek-v3", {"topk_method": "softmax"}, "topk_method"),
        ("deepseek-v3", {"qk_head_dim": 64}, "qk_head_dim"),
        ("deepseek-v3", {"moe_shared_expert_intermediate_size": 4096}, "moe_shared_expert_intermediate_size"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [True]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 768}, "shared_expert_intermediate_size"),
        ("telechat2-115b", {"embed_layernorm": True}, "embed_layernorm"),
        ("telechat3-36b", {"share_ffn": True}, "share_ffn"),
        ("gpt3-175b", {"add_cross_attention": True}, "add_cross_attention"),
        ("gpt3-175b", {"n_head": 97}, "n_head"),
        ("llama-3.1-8b", {"sliding_window": 4096}, "sliding_window"),
    ],
)
def test_what_would_change_the_model_is_refused(name, change, field):
    told = problems(CATALOG[name] | change)
    assert list(told) == [field]


def test_a_product_of_fields_that_is_out_of_bounds_is_refused():
    with pytest.raises(InputError, match="shared_ffn_hidden_size"):
        from_huggingface(CATALOG["deepseek-v3"] | {"n_shared_experts": 10**6}, source="x.json")


def test_a_config_of_an_unknown_kind_gets_no_number():
    told = problems({"architectures": ["NewThingForCausalLM"], "d": 7168}, source="config.json")
    needed = {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}
    assert set(told) == needed
    for kind in ("rwkv7", 7, ["llama"], {"llama": 1}, ""):
        assert "not modelled yet" in problems(LLAMA | {"model_type": kind})["model_type"]


def test_parts_that_are_not_modelled_are_named():
    told = problems({"model_type": "new_vl", "text_config": {"model_type": "new", "linear_key_head_dim": 128},
                     "vision_config": {"depth": 27}})  # fmt: skip
    assert "not modelled yet" in told["text_config.model_type"]
    assert "linear attention" in told["text_config.linear_key_head_dim"]
    assert "sparse-attention indexer" in problems(LLAMA | {"index_topk": 2048})["index_topk"]


def test_without_a_model_type_the_class_tells_the_family():
    config = {k: v for k, v in LLAMA.items() if k != "model_type"} | {"architectures": ["LlamaForCausalLM"]}
    assert defaults_filled(config)["model_type"] == "llama"


def test_defaults_filled_are_listed_by_the_files_names():
    assert defaults_filled(LLAMA) == {
        "attention_bias": False, "head_dim": 16, "hidden_act": "silu", "mlp_bias": False,
    }  # fmt: skip
    less = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert defaults_filled(less | {"head_dim": None})["num_key_value_heads"] == 4
    assert defaults_filled("deepseek-v3") == {}
    assert defaults_filled(load_model("deepseek-v3")) == {}


HARMLESS = {
    "architectures": ["LlamaForCausalLM"], "transformers_version": "4.43.0.dev0", "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"}, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0},
    "use_cache": True, "initializer_range": 0.02, "max_position_embeddings": 131072, "bos_token_id": 1,
    "rms_norm_eps": 1e-5, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x.Y"}, "pretraining_tp": 1,
    "id2label": {"0": "LABEL_0"}, "num_beams": 1, "sliding_window": None, "pruned_heads": {},
    "tie_encoder_decoder": False, "_name_or_path": "meta/x",
}  # fmt: skip


def test_fields_that_say_nothing_about_shapes_are_passed_over():
    plain = from_huggingface(LLAMA, name="x")
    assert from_huggingface(LLAMA | HARMLESS, name="x") == plain
    assert read_model(LLAMA | HARMLESS | {"my_note": "hello"}).ignored == ("my_note",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({"layer_types", "architectures", "text_config", "model_type", "mlp_only_layers"}
                | {field for config in CATALOG.values() for field in config})  # fmt: skip


@given(
    name=st.sampled_from(sorted(CATALOG)),
    change=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=4),
)
@settings(max_examples=400, deadline=None)
def test_any_content_is_read_or_refused_never_a_crash(name, change):
    config = CATALOG[name] | change
    try:
        model = from_huggingface(config)
    except InputError as error:
        assert error.problems and all(p.field or p.field == "" for p in error.problems)
        assert len(str(error)) < 20_000
    else:
        assert isinstance(model, ModelConfig) and count(model).total > 0


# --- real files ---------------------------------------------------------------------------------------------

# text model and MTP modules, as the oracle lists them; published size in billions, and what it holds ("text" where
# the publication's own number cannot be told apart from a vision tower: the text model's twin is named)
COUNTED = {
    "MiniMaxAI__MiniMax-M2.5": (228_689_764_864, 0, 230, "total"),
    "Qwen__Qwen3-0.6B": (596_049_920, 0, 0.6, "total"),
    "Qwen__Qwen3-235B-A22B": (235_093_634_560, 0, 235, "total"),
    "Qwen__Qwen3-32B": (32_762_123_264, 0, 32.8, "total"),
    "Qwen__Qwen3-32B-FP8": (32_762_123_264, 0, 32.8, "total"),
    "Qwen__Qwen3-VL-235B-A22B-Instruct": (235_093_634_560, 0, 235, "total"),
    "Qwen__Qwen3-VL-2B-Instruct": (1_720_574_976, 0, 1.72, "text"),  # Qwen3-1.7B
    "Qwen__Qwen3.5-122B-A10B": (122_111_526_912, 2_523_679_232, 122, "total"),
    "XiaomiMiMo__MiMo-V2-Flash": (308_778_780_864, 987_820_224, 309, "total"),
    "deepseek-ai__DeepSeek-V3": (671_026_419_200, 11_610_068_224, 671, "total"),
    "deepseek-ai__DeepSeek-V3.2": (671_877_944_064, 11_624_027_648, 671, "total"),
    "deepseek-ai__DeepSeek-V4-Flash": (284_332_240_471, 6_610_048_891, 284, "total"),
    "google__gemma-4-26B-A4B": (25_233_141_790, 0, 25.2, "total"),
    "meta-llama__Llama-4-Scout-17B-16E-Instruct": (107_769_861_120, 0, 107.77, "text"),  # 109B with the tower
    "meta-llama__Meta-Llama-3.1-70B": (70_553_706_496, 0, 70.6, "total"),
    "mistralai__Mixtral-8x7B-v0.1": (46_702_792_704, 0, 46.7, "total"),
    "moonshotai__Kimi-K2.5": (
        1_026_408_232_448,
        0,
        1026.4,
        "text",
    ),  # Kimi-K2's checkpoint; the report says 1.04T
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1": (49_867_145_216, 0, 49.9, "total"),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, 0, 31.6, "total"),
    "nvidia__Nemotron-H-56B-Base-8K": (56_324_350_464, 0, 56, "total"),
    "openai__gpt-oss-120b": (116_829_156_672, 0, 116.83, "total"),
    "stepfun-ai__Step-3.7-Flash": (195_844_508_736, 743_240_448, 196, "total"),
    "zai-org__GLM-5": (743_911_218_432, 9_952_920_576, 744, "total"),
    "zai-org__GLM-5-FP8": (743_911_218_432, 9_952_920_576, 744, "total"),
}
SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
def test_real_configs_are_counted():
    files = {path.stem: path for path in (Path(SAMPLES) / "cases" / "hf_configs").glob("*.json")}
    assert set(files) >= set(COUNTED)
    for name, (total, mtp, published, _) in COUNTED.items():
        reading = read_model(files[name])
        counted = count(reading)
        assert (counted.total, counted.mtp) == (total, mtp), name
        assert counted.total / 1e9 == pytest.approx(published, rel=0.01), name


@pytest.mark.skipif(not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with cases/hf_configs")
def test_other_real_configs_are_counted_or_refused_by_name():
    for path in sorted((Path(SAMPLES) / "cases" / "hf_configs").glob("*.json")):
        try:
            assert count(path).total > 0
        except InputError as error:
            assert "not modelled yet" in str(error) and error.source == str(path)


def test_llama_4s_text_model_alone_says_whether_its_head_is_tied():
    """Llama4ForConditionalGeneration hands its text model's fields on, and ties nothing itself."""
    config = catalog.record("models", "llama-4-scout")["config"]
    text = {name: value for name, value in config["text_config"].items() if name != "tie_word_embeddings"}
    said = load_model(config | {"text_config": text, "tie_word_embeddings": True})
    assert not said.tied_embeddings
