"""Faults that public tools had in counting parameters, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import pytest

from telekit import count
from telekit.cost.memory import end_held
from telekit.errors import InputError
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import from_huggingface
from telekit.model.parameters import layer_parameters, mtp_parameters
from telekit.training.config import TrainConfig

LLAMA_2_7B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008,
    "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_0_6B = {
    "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip


def test_pc01_the_first_layers_of_deepseek_v3_are_dense():
    found = count("deepseek-v3")
    assert found.total == 671_026_419_200
    assert found.active == 37_552_297_472
    assert found.active_without_input_embedding == 36_625_618_432


def test_pc02_deepseek_v2_lite_has_one_dense_query_projection_and_says_which_active_it_counts():
    found = count("deepseek-v2-lite")
    assert (found.total, found.active) == (15_706_484_224, 2_661_150_208)
    assert found.active_without_input_embedding == 2_451_435_008
    assert found.active_without_input_embedding - found.by_component["head"] == 2_241_719_808
    assert "input embedding and head included" in found.convention


def test_pc03_a_prediction_module_is_counted_apart_and_its_copies_are_not_parameters():
    found = count("deepseek-v3")
    assert found.mtp == 11_610_068_224
    copies = found.by_component["embedding"] + found.by_component["head"]
    assert found.total + found.mtp + copies == 684_489_845_504  # what the hub's files hold


def test_pc04_the_text_model_is_taken_out_of_a_wrapper_and_it_is_said():
    found = count({"model_type": "x", "text_config": LLAMA_2_7B, "vision_config": {"depth": 2}})
    assert found.total == 6_738_415_616
    assert found.vision is None
    assert any("text_config" in note for note in found.notes)
    assert any("not counted: vision_config" in note for note in found.notes)


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config"])
def test_pc04_wherever_a_wrapper_keeps_it(place):
    found = count({"model_type": "x", place: LLAMA_2_7B | {"model_type": "llama"}})
    assert (found.total, found.vision) == (6_738_415_616, 0)


def test_pc04_faults_inside_a_wrapper_are_told_by_their_place():
    wrong = {"model_type": "x", "text_config": LLAMA_2_7B | {"hidden_size": "big", "vocab_size": None}}
    with pytest.raises(InputError) as caught:
        count(wrong)
    assert {p.field for p in caught.value.problems} == {"text_config.hidden_size", "text_config.vocab_size"}


def test_pc04_a_wrapper_says_whether_embeddings_are_tied_and_may_not_contradict():
    text = QWEN3_0_6B | {"tie_word_embeddings": None}
    assert count({"text_config": text, "tie_word_embeddings": True}).total == 596_049_920
    with pytest.raises(InputError, match="tie_word_embeddings"):
        count({"text_config": QWEN3_0_6B, "tie_word_embeddings": False})
    with pytest.raises(InputError, match="only text model"):
        count({"text_config": QWEN3_0_6B, "llm_config": QWEN3_0_6B})


def test_pc07_missing_fields_are_listed_and_no_number_is_given():
    with pytest.raises(InputError) as caught:
        count({"architectures": ["NewThingForCausalLM"], "d": 7168})
    told = {p.field for p in caught.value.problems}
    assert {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"} <= told


def test_pc09_head_dim_need_not_be_hidden_over_heads():
    assert count(QWEN3_0_6B).total == 596_049_920


def test_pc11_experts_are_many_and_the_head_is_its_own():
    found = count("mixtral-8x7b")
    assert (found.total, found.active) == (46_702_792_704, 12_879_925_248)


def test_pc17_a_block_has_two_norms_and_they_are_whole_on_each_tensor_rank():
    model = from_huggingface(LLAMA_2_7B | {"model_type": "llama"})
    assert count(model).total == 6_738_415_616
    assert count(model).total - 32 * 4096 == 6_738_284_544  # what one norm a layer would give
    assert layer_parameters(model, model.kinds[0]).norms == 2 * 4096


def test_pc18_the_final_norm_is_whole_on_the_last_stage():
    model = from_huggingface(LLAMA_2_7B | {"model_type": "llama"})
    for pp in (1, 4):
        first, last = end_held(model, TrainConfig(seq_len=4096, global_batch=8), ParallelConfig(pp=pp, dp=1))
        assert first.dense == 32000 * 4096
        assert last.dense == 32000 * 4096 + 4096


def test_mtp_of_a_model_without_modules_is_nothing():
    assert mtp_parameters(from_huggingface(QWEN3_0_6B)) == 0
