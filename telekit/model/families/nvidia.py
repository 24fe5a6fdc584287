"""Nemotron 3/4, Nemotron-H (Mamba-2, attention and experts in one stack), and the pruned Llama-Nemotron."""

from __future__ import annotations

import math
from typing import Any

from telekit.model.families.parts import (
    ACTIVATIONS,
    NOTHING,
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    attention_bias,
    blocks,
    experts,
    feed_forward,
    grouped_query,
    trunk,
)
from telekit.model.fields import LARGEST, MOST_LAYERS, Fields


def nemotron(f: Fields) -> Parts:
    """Nemotron-4 and Minitron: LayerNorm, squared ReLU without a gate."""
    t = trunk(f)
    f.assume(hidden_act="relu2")
    attention = grouped_query(f, t, **attention_bias(f))
    dense = feed_forward(f, gated=False, bias=f.flag("mlp_bias", False))
    return Parts(t, blocks(t, attention, dense), {"norm_bias": True})


# --- Nemotron-H -------------------------------------------------------------------------------------------

MAMBA, ATTENTION, DENSE, EXPERTS = "M", "*", "-", "E"
_WORDS = {
    "mamba": MAMBA, "linear_attention": MAMBA, "attention": ATTENTION, "full_attention": ATTENTION,
    "mlp": DENSE, "moe": EXPERTS,
}  # fmt: skip


def nemotron_h(f: Fields) -> Parts:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention, a dense block, or experts."""
    pattern = _pattern(f, "hybrid_override_pattern", "layers_block_type")
    if not pattern:
        f.refuse(
            "hybrid_override_pattern", "this field is required: the kind of each layer", "for example M-M*-"
        )
    f.assume(num_hidden_layers=max(len(pattern), 1))
    if f.clean("hybrid_override_pattern", "layers_block_type"):
        f.expect("num_hidden_layers", len(pattern), f"must be the length of the pattern, {len(pattern)}")
    t = trunk(f)
    modules = f.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    found = _layers(f, t, {*pattern, *((ATTENTION, EXPERTS) if modules else ())})
    mtp = _prediction(f, found) if modules else None
    f.skip("mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return Parts(t, [found[kind] for kind in pattern], {"mtp_layers": modules}, mtp)


def _pattern(f: Fields, text: str, words: str) -> str:
    """Kinds of layers, a letter each, from a string of letters or from a list of words; both must agree."""
    named = f.entries(words, str)
    if named == []:
        f.refuse(words, "must name each layer", f"leave it out beside {text}")
    unknown = sorted(set(named or ()) - set(_WORDS))
    if unknown:
        f.refuse(words, f"not modelled yet: layers of this type; known: {', '.join(_WORDS)}", value=unknown)
    listed = "".join(_WORDS.get(word, DENSE) for word in named or ())
    f.skip(text)
    if not f.has(text):
        return listed
    letters = f.config[text]
    if not isinstance(letters, str) or not set(letters) <= set(_WORDS.values()) or not letters:
        f.refuse(text, f"must be a text of the letters {' '.join(sorted(set(_WORDS.values())))}, one a layer")
        return listed or DENSE
    if listed and listed != letters:
        f.refuse(words, f"must say the same as {text}", "give one of them")
    if len(letters) > MOST_LAYERS:
        f.refuse(text, f"must name at most {MOST_LAYERS:,} layers")
        return DENSE
    return letters


def _layers(f: Fields, t: Trunk, kinds: set[str]) -> dict[str, Block]:
    """One block for each kind that stands in the model; the others' fields are passed over."""
    f.expect(
        "tie_word_embeddings",
        False,
        "not modelled yet: the released codes disagree on whether the head is tied",
    )
    f.expect("sliding_window", None, "not modelled yet: a window in this family")
    f.expect("mamba_proj_bias", False, "not modelled yet: the released code reads use_bias instead")
    f.expect("attention_bias", False, "not modelled yet: biases of these projections")
    f.assume(mlp_hidden_act="relu2")
    f.choice("mlp_hidden_act", ACTIVATIONS, "relu2")
    bias = f.flag("mlp_bias", False)
    makers = {MAMBA: _mamba, ATTENTION: _attention, DENSE: _dense, EXPERTS: _experts}
    if EXPERTS in kinds and bias:
        f.refuse("mlp_bias", "not modelled yet: biases in a model with experts", "write false")
    for kind in makers.keys() - kinds:
        f.skip(*_FIELDS[kind])
    f.optional("intermediate_size")
    f.count("expand", 2)  # not used: the width follows from the heads
    f.skip(*_UNREAD)
    return {kind: make(f, t) for kind, make in makers.items() if kind in kinds}


# how the state starts and is computed
_UNREAD = (
    "chunk_size",
    "mamba_expand", "mamba_hidden_act", "mamba_ssm_cache_dtype", "mamba_chunk_size", "use_mamba_kernels",
    "residual_in_fp32", "rescale_prenorm_residual", "time_step_floor", "time_step_limit", "time_step_max",
    "time_step_min", "time_step_rank", "moe_shared_expert_overlap", "norm_eps", "num_logits_to_keep",
)  # fmt: skip
_FIELDS = {
    MAMBA: ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "use_conv_bias"),
    ATTENTION: ("num_attention_heads", "num_key_value_heads", "head_dim", "attention_head_dim"),
    DENSE: (),
    EXPERTS: (
        "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size",
        "moe_shared_expert_intermediate_size", "n_shared_experts",
    ),
}  # fmt: skip


def _mamba(f: Fields, t: Trunk) -> Block:
    groups = f.first("n_groups", "mamba_n_groups")
    mixer: Raw = {
        "kind": "mamba2",
        "heads": f.count("mamba_num_heads"),
        "head_dim": f.count("mamba_head_dim"),
        "groups": f.count(groups),
        "state_size": f.count("ssm_state_size"),
        "conv_kernel": f.count(f.first("conv_kernel", "mamba_d_conv")),
        "conv_bias": f.flag(f.first("use_conv_bias", "mamba_conv_bias"), True),
        "projection_bias": f.flag("use_bias", False),
    }
    f.divides(groups, mixer["groups"], "mamba_num_heads", mixer["heads"])
    return Block(mixer, NOTHING, 1)


def _attention(f: Fields, t: Trunk) -> Block:
    width = f.first("head_dim", "attention_head_dim")
    if not f.has(width):
        f.refuse(width, "this field, or attention_head_dim, its older name, is required", "for example 128")
        return Block(NOTHING, NOTHING, 1)
    return Block(grouped_query(f, t, head_dim=width, kv_required=True, dim_required=True), NOTHING, 1)


def _dense(f: Fields, t: Trunk) -> Block:
    bias = f.flag("mlp_bias", False)
    return Block(NOTHING, {"ffn_hidden_size": f.count("intermediate_size"), "gated": False, "bias": bias}, 1)


def _experts(f: Fields, t: Trunk) -> Block:
    if f.count("n_shared_experts", 1) != 1:
        f.refuse("n_shared_experts", "not modelled yet: the released code makes one shared expert", "only 1")
    more: Raw = {
        "shared_ffn_hidden_size": f.count("moe_shared_expert_intermediate_size"),
        "latent_size": f.optional("moe_latent_size"),
        "gated": False,
        "correction_bias": True,
    }
    return Block(NOTHING, experts(f, "n_routed_experts", "moe_intermediate_size", **more), 1)


def _prediction(f: Fields, found: dict[str, Block]) -> Block:
    """Make a module of multi-token prediction: an attention layer and one of experts."""
    pattern = _pattern(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or ATTENTION + EXPERTS
    if pattern != ATTENTION + EXPERTS:
        f.refuse(
            "mtp_hybrid_override_pattern", "not modelled yet: modules of other layers", "only *E", pattern
        )
    return Block(found[ATTENTION].attention, found[EXPERTS].mlp, 2)


# --- Llama-Nemotron (neural architecture search over Llama) -------------------------------------------------

_FORMS = ("replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink")


def nemotron_nas(f: Fields) -> Parts:
    """Llama whose blocks are pruned one by one: narrower, or without attention, or without a feed-forward part."""
    t = trunk(f)
    heads, width = f.count("num_attention_heads"), f.optional("head_dim")
    if width is None:
        f.divides("num_attention_heads", heads, "hidden_size", t.hidden_size, " where head_dim is not given")
        width = f.fill("head_dim", max(t.hidden_size // heads, 1))
    f.choice("hidden_act", ACTIVATIONS, "silu")
    f.skip("intermediate_size", "num_key_value_heads")  # null: each block has its own
    attention: Raw = {"heads": heads, "head_dim": width, **attention_bias(f)}
    configs = f.entries("block_configs", dict, t.layers if f.clean("num_hidden_layers") else None)
    if configs is None and f.clean("block_configs"):
        f.refuse("block_configs", "this field is required: what each block holds")
    bias = f.flag("mlp_bias", False)
    return Parts(
        t, [_block(f.inside("block_configs", i), t, attention, bias) for i in range(len(configs or ()))]
    )


def _block(f: Fields, t: Trunk, attention: Raw, bias: bool) -> Block:
    a, m = f.inside("attention"), f.inside("ffn")
    for part in (a, m):
        for name in _FORMS:
            part.expect(name, False, "not modelled yet: this form of a block")
    mixer, mlp = NOTHING, NOTHING
    if not a.flag("no_op", False):
        group = a.count("n_heads_in_group")
        a.divides("n_heads_in_group", group, "num_attention_heads", attention["heads"])
        mixer = attention | {
            "kv_heads": max(attention["heads"] // group, 1),
            "window": a.optional("window_length"),
        }
    m.expect("gated", True, "not modelled yet: this form of a block")
    if not m.flag("no_op", False):
        m.choice("hidden_act", ACTIVATIONS, "silu")
        mlp = {"ffn_hidden_size": _width(m, t), "bias": bias}
    a.skip("n_heads_in_group", "window_length", "use_prefill_window_in_sink_attention")
    m.skip("ffn_mult", "intermediate_size", "hidden_act")
    return Block(mixer, mlp, (mixer is not NOTHING) + (mlp is not NOTHING))


def _width(f: Fields, t: Trunk) -> int:
    """Width of a feed-forward block: two thirds of a multiple of the hidden width, up to the next 256."""
    if not f.has("ffn_mult"):
        return f.count("intermediate_size")
    f.expect("intermediate_size", None, "must not stand beside ffn_mult")
    value: Any = f.config["ffn_mult"]
    if (
        type(value) not in (int, float)
        or not math.isfinite(value)
        or not 0 < value <= LARGEST / t.hidden_size
    ):
        f.refuse("ffn_mult", "must be a number over 0", "for example 5.25")
        return 256
    return max(math.ceil(int(2 * value * t.hidden_size / 3) / 256), 1) * 256


FAMILIES = {
    "nemotron": Family(nemotron, ("NemotronForCausalLM",)),
    "nemotron_h": Family(nemotron_h, ("NemotronHForCausalLM",)),
    "nemotron-nas": Family(nemotron_nas, ("DeciLMForCausalLM",)),
}
