"""What becomes of a field that no adapter read: it says nothing of shapes, it repeats another, or it is refused."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from telekit.errors import Problem

# Fields that say nothing about shapes, by name or by the way such names are made.
_HARMLESS = re.compile(
    r"_.*|.*_token_ids?|.*(dropout|dropout_prob|pdrop|(?<![a-z])eps|epsilon|coeff?|alpha|penalty)|(torch_)?dtype|"
    r"architectures|model_type|auto_map|transformers_version|tokenizer_class|attn_implementation|"
    r"(rope|rotary|quantization|initializer|summary|scale_attn|skip_bias)_.*|"
    r"output_(attentions|hidden_states|scores|router_logits)|(original_)?max_position_embeddings|"
    r"(partial_rotary|routed_scaling)_factor|max_window_layers|initial_context_length|reorder_and_upcast_attn|"
    r"n_ctx|(n|max)_positions|n_group|topk_group|norm_topk_prob|router_jitter_noise|bias_dropout_fusion|flash_attn|"
    r"use_cache|cache_implementation|attention_softmax_in_fp32|use_flash_attention.*|use_flash_attn|ep_size|"
    r"pretraining_tp|swiglu_limit|scoring_func|seq_aux|\w+_loss(_\w+)?_(factor|coef|weight|lambda)|enable_lm_head_fp32"
)

# What transformers' base class writes into files: of generating text, of labels, of the form of an answer.
_GENERATION = re.compile(
    r"(bad_words|encoder_no_repeat|no_repeat_ngram|begin_suppress|suppress|forced_\w+)_\w+|do_sample|early_stopping|"
    r"num_(beams|beam_groups|return_sequences|labels|logits_to_keep|assistant_\w+)|(max|min)(_new)?_length|"
    r"top_[kp]|typical_p|temperature|return_dict(_in_generate)?|remove_invalid_values|exponential_decay_\w+|"
    r"id2label|label2id|finetuning_task|problem_type|task_specific_params|prefix|torchscript|use_bfloat16|"
    r"tf_legacy_loss|chunk_size_feed_forward|is_decoder"
)

# ... and of these that they are not there.
_OFF = re.compile(r"is_encoder_decoder|tie_encoder_decoder|add_cross_attention")

# A number under a name that counts parts of a model is never passed over, whatever stands before the word.
_COUNTS = re.compile(r"(.*_)?(layers|heads|experts|mtp|nextn)(_.*)?")
_NO_COUNT = re.compile(r"max_window_layers|.*_loss(_.*)?")

# Words that, in a field nobody read, mean that it may change the model's shape.
_SHAPING = re.compile(
    r"(num|n|total)_.*|"
    r"(.*_)?(size|dims?|rank|heads?|layers?|experts?|interval|pattern|types?|freq|step|bias|norm|window|proj|"
    r"configs?|index|mtp|nextn|predict|modules|lora|conv|ssm|state|mamba|linear|sparse|attention|attn|mlp|ffn|"
    r"hash|groups?|streams|mult|ratios?|tied?|cross|shared?|hidden|inner|embd|embed|embeddings?|width|depth|kv|"
    r"blocks?|router|moe|qk|query|key|value|gates?|gated|projections?|sinks?|mla|encoder|positions|codebooks|memory|"
    r"registers|recurrence|loops|adapters?|engram|gating|d_model|d_ff|dff)(_.*)?"
)

# Parts that few families have, by the fields that only models with them use: words for one that nobody read.
_FOREIGN = (
    (r"(text|llm|language)_config", "a text model nested in a multimodal wrapper"),
    (r"(vision|audio)_config", "a vision or audio tower"),
    (r"is_encoder_decoder|add_cross_attention|cross_attention_.*", "an encoder, or attention to one"),
    (r"hybrid_override_pattern|layers_block_type|mamba_.*|ssm_.*", "state-space layers"),
    (r"linear_.*|full_attention_interval", "linear attention"),
    (r"index_.*", "a sparse-attention indexer"),
    (r"block_configs|per_layer_config", "layers of different widths"),
    (r".*mtp.*", "multi-token prediction of this form"),
    (r"hc_mult|.*residual_streams", "several residual streams"),
    (r"compress_ratios", "compressed attention"),
    (r"hybrid_layer_pattern|swa_.*heads|attention_chunk_size", "attention layers of several forms"),
    (r"share_(ffn|attention)|num_kv_shared_layers", "weights shared between layers"),
)

# Names of one thing in files of different makers.
_SAME = (
    ("hidden_size", "d_model", "n_embd", "n_embed"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"),
    ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
)


def objection(name: str, value: Any, config: Mapping[str, Any], read: Container[str]) -> str | None:
    """Rule that a field breaks which nobody read; empty where it may be passed over; None where without a word.

    Parameters
    ----------
    name, value : str, object
        The field.
    config : mapping
        The file.
    read : container of str
        Fields that an adapter did read.
    """
    twin = _twin(name, config, read)
    if value and twin:
        same = type(value) is type(config[twin]) and value == config[twin]
        return None if same else f"must equal {twin} (another name of the same thing)"
    harmless = _is_harmless(name, value)
    if value and (_counts_parts(name, value) or (not harmless and _SHAPING.fullmatch(name.lower()))):
        return f"not modelled yet: {part_of(name) or 'a field that may change the shape of the model'}"
    return None if harmless else ""


def _twin(name: str, config: Mapping[str, Any], read: Container[str]) -> str:
    """Name of the same thing that was read."""
    group = next((names for names in _SAME if name in names), ())
    return next((n for n in group if n != name and n in read and config.get(n) is not None), "")


def _counts_parts(name: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
    return number and bool(_COUNTS.fullmatch(name.lower())) and not _NO_COUNT.fullmatch(name)


def _is_harmless(name: str, value: Any) -> bool:
    """Whether a field says nothing of shapes: by its name, or because it is empty or off."""
    if value is None or value in ("", [], {}) or (not value and _OFF.fullmatch(name)):
        return True
    return bool(_HARMLESS.fullmatch(name) or _GENERATION.fullmatch(name))


def part_of(name: str) -> str:
    """Words for the part of a model that a field belongs to; empty for one that tells nothing."""
    return next((words for pattern, words in _FOREIGN if re.fullmatch(pattern, name)), "")


def foreign_parts(config: Mapping[str, Any], prefix: str = "") -> list[Problem]:
    """One problem for each part of a config that no family here has, named by its first field."""
    found: dict[str, Problem] = {}
    for name, value in config.items():
        words = part_of(str(name))
        if value and words and words not in found:
            found[words] = Problem(f"{prefix}{name}", printable(value), f"not modelled yet: {words}")
    nested = config.get("text_config")
    inner = foreign_parts(nested, "text_config.") if isinstance(nested, Mapping) and not prefix else []
    return [*found.values(), *inner]


def printable(value: Any) -> Any:
    """Return the value, or a short word for one that is too large to print."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    if isinstance(value, list | tuple):
        flat = len(value) <= 8 and not any(isinstance(entry, Mapping | list | tuple) for entry in value)
        return [printable(entry) for entry in value] if flat else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number of {value.bit_length()} bits"
    return value
