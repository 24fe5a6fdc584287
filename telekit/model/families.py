"""The model families: how each one's ``config.json`` names the parts that all of them share.

A family is one short function from :class:`~telekit.model.fields.Fields` to :class:`Parts`, and a line in
:data:`FAMILIES`. Absent fields follow the family's configuration class in Hugging Face transformers, where
that class derives them from others or turns something off; sizes that it would guess are required here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from telekit.model.config import (
    FeedForward,
    GroupedQueryAttention,
    LayerKind,
    MixtureOfExperts,
    ModelConfig,
    MultiHeadLatentAttention,
)
from telekit.model.fields import MOST_LAYERS, Fields

ACTIVATIONS = (
    "silu", "swish", "swiglu", "fusedswiglu", "gelu", "gelu_new", "gelu_fast", "gelu_python",
    "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "tanh",
)  # fmt: skip

Window = int | None
Raw = dict[str, Any]


@dataclass(frozen=True)
class Trunk:
    """What every decoder has: blocks, width, vocabulary, and whether the head is the embedding."""

    layers: int
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool


@dataclass(frozen=True)
class Parts:
    """What an adapter read: plain values, each checked, not yet built.

    ``sparse`` names the layers whose feed-forward block is ``moe``; the others have ``dense``. ``windows``
    has one entry a layer, or is empty where no layer has a window. ``extra`` are further fields of the model.
    """

    trunk: Trunk
    attention: Raw
    dense: Raw | None = None
    moe: Raw | None = None
    sparse: frozenset[int] = frozenset()
    windows: Sequence[Window] = ()
    extra: Raw | None = None

    def build(self, name: str, source: str) -> ModelConfig:
        """Make the model: one kind for each distinct block, in the order they appear."""
        windows = self.windows or [None] * self.trunk.layers
        shapes: dict[tuple[Window, bool], int] = {}
        pattern = [shapes.setdefault((w, i in self.sparse), len(shapes)) for i, w in enumerate(windows)]
        return ModelConfig(
            name=name,
            source=source,
            hidden_size=self.trunk.hidden_size,
            vocab_size=self.trunk.vocab_size,
            kinds=tuple(self._kind(window, sparse) for window, sparse in shapes),
            pattern=tuple(pattern),
            tied_embeddings=self.trunk.tied_embeddings,
            **(self.extra or {}),
        )

    def _kind(self, window: Window, sparse: bool) -> LayerKind:
        attention: GroupedQueryAttention | MultiHeadLatentAttention
        if "kv_lora_rank" in self.attention:
            attention = MultiHeadLatentAttention(**self.attention)
        else:
            attention = GroupedQueryAttention(**self.attention, window=window)
        mlp = MixtureOfExperts(**(self.moe or {})) if sparse else FeedForward(**(self.dense or {}))
        name = ("moe" if sparse else "dense") + ("-window" if window else "")
        return LayerKind(name=name, attention=attention, mlp=mlp)


@dataclass(frozen=True)
class Family:
    """One family: its adapter, and the classes that its ``architectures`` may name."""

    read: Callable[[Fields], Parts]
    architectures: tuple[str, ...]


# --- parts that families share ------------------------------------------------------------------------------


def trunk(f: Fields, *, layers: str = "num_hidden_layers", hidden: str = "hidden_size",
          tied: bool | None = False) -> Trunk:  # fmt: skip
    """Blocks, width, vocabulary; ``tied`` is the family's default (None: the file must say)."""
    return Trunk(
        f.count(layers, most=MOST_LAYERS),
        f.count(hidden),
        f.count("vocab_size"),
        f.flag("tie_word_embeddings", tied),
    )


def grouped_query(f: Fields, t: Trunk, *, heads: str = "num_attention_heads", hidden: str = "hidden_size",
                  kv_required: bool = False, dim_required: bool = False, **more: Any) -> Raw:  # fmt: skip
    """Query heads and key/value heads; null key/value heads are as many as query heads.

    An absent ``head_dim`` is ``hidden_size / num_attention_heads``, unless the family's class defaults to something
    else (``dim_required``): there null is no answer either.
    """
    count = f.count(heads)
    kv_heads = f.optional("num_key_value_heads", key_required=kv_required)
    if kv_heads is None:
        kv_heads = f.fill("num_key_value_heads", count)
    f.divides("num_key_value_heads", kv_heads, heads, count)
    head_dim = f.count("head_dim") if dim_required else f.optional("head_dim")
    if head_dim is None:
        f.divides(heads, count, hidden, t.hidden_size, " where head_dim is not given")
        head_dim = f.fill("head_dim", max(t.hidden_size // count, 1))
    return {"heads": count, "kv_heads": kv_heads, "head_dim": head_dim, **more}


def feed_forward(f: Fields, width: str = "intermediate_size", **more: Any) -> Raw:
    """Gated dense block."""
    f.choice("hidden_act", ACTIVATIONS, "silu")
    return {"ffn_hidden_size": f.count(width), **more}


def experts(f: Fields, count: str, width: str, *, top_k: str = "num_experts_per_tok", **more: Any) -> Raw:
    """Routed experts."""
    number, chosen = f.count(count), f.count(top_k)
    if f.clean(count, top_k) and chosen > number:
        f.refuse(top_k, f"must not exceed {count}={number}", f"for example {number}")
    return {"num_experts": number, "top_k": chosen, "expert_ffn_hidden_size": f.count(width), **more}


def layer_windows(f: Fields, t: Trunk, sliding: Callable[[int], bool] | None = None) -> tuple[Window, ...]:
    """Window of each layer from ``layer_types``; where that is absent, ``sliding`` says which have one."""
    kinds = f.entries("layer_types", str, t.layers if f.clean("num_hidden_layers") else None)
    unknown = sorted(set(kinds or ()) - {"full_attention", "sliding_attention"})
    if unknown:
        f.refuse("layer_types", "not modelled yet: layers of this type", value=", ".join(unknown))
    if kinds is not None:
        has_window = [kind == "sliding_attention" for kind in kinds]
    else:
        has_window = [sliding(i) if sliding else False for i in range(t.layers)]
    window = f.optional("sliding_window") if sliding or any(has_window) else None
    if not any(has_window):
        return ()
    if window is None:
        window = f.count("sliding_window")  # says that it is missing
    return tuple(window if has else None for has in has_window)


# --- families -----------------------------------------------------------------------------------------------


def llama(f: Fields) -> Parts:
    """Llama 1 to 3: RMSNorm, SwiGLU, grouped queries; biases only where the file says so."""
    t = trunk(f)
    bias = f.flag("attention_bias", False)
    attention = grouped_query(f, t, qkv_bias=bias, output_bias=bias)
    dense = feed_forward(f, bias=f.flag("mlp_bias", False))
    return Parts(t, attention, dense, windows=layer_windows(f, t))


def mistral(f: Fields) -> Parts:
    """Mistral: Llama without biases, every layer with the same window; a null window is full attention."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True)
    windowed = f.optional("sliding_window", key_required=True) is not None
    return Parts(t, attention, feed_forward(f), windows=layer_windows(f, t, lambda _: windowed))


def mixtral(f: Fields) -> Parts:
    """Mixtral: Mistral whose every block has experts."""
    t = trunk(f)
    attention = grouped_query(f, t, kv_required=True)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    moe = experts(f, f.first("num_local_experts", "num_experts"), "intermediate_size")
    windowed = f.optional("sliding_window") is not None
    windows = layer_windows(f, t, lambda _: windowed)
    return Parts(t, attention, moe=moe, sparse=frozenset(range(t.layers)), windows=windows)


def qwen3(f: Fields) -> Parts:
    """Qwen3 dense: norms on queries and keys of each head; windows from ``max_window_layers`` on."""
    t = trunk(f)
    attention = _qwen3_attention(f, t, dim_required=True)
    windowed = _qwen3_windowed(f)
    first = f.count("max_window_layers", least=0) if windowed else 0
    windows = layer_windows(f, t, lambda i: windowed and i >= first)
    return Parts(t, attention, feed_forward(f), windows=windows)


def qwen3_moe(f: Fields) -> Parts:
    """Qwen3 with experts in every ``decoder_sparse_step``-th block that ``mlp_only_layers`` does not name."""
    t = trunk(f)
    attention = _qwen3_attention(f, t, dim_required=False)
    moe = experts(f, f.first("num_experts", "num_local_experts"), "moe_intermediate_size")
    step, only = f.count("decoder_sparse_step", 1), f.entries("mlp_only_layers", int) or []
    if f.clean("num_hidden_layers") and any(not 0 <= i < t.layers for i in only):
        f.refuse("mlp_only_layers", f"its entries must be layers, from 0 to {t.layers - 1}", "for example []")
    sparse = frozenset(range(step - 1, t.layers, step)) - frozenset(only)
    dense = feed_forward(f)
    windowed = _qwen3_windowed(f)
    windows = layer_windows(f, t, lambda _: windowed)
    return Parts(t, attention, dense, moe, sparse, windows)


def _qwen3_windowed(f: Fields) -> bool:
    window, used = f.optional("sliding_window"), f.flag("use_sliding_window", False)
    return used and window is not None


def _qwen3_attention(f: Fields, t: Trunk, *, dim_required: bool) -> Raw:
    # the class of the dense models has head_dim 128 by default, that of the others derives it
    bias = f.flag("attention_bias", False)
    more: Raw = {"qkv_bias": bias, "output_bias": bias, "qk_norm": "head"}
    return grouped_query(f, t, kv_required=True, dim_required=dim_required, **more)


def deepseek_v2(f: Fields) -> Parts:
    """DeepSeek-V2: latent attention, routed and shared experts after the first dense blocks."""
    return _latent(f, default_router="greedy")


def deepseek_v3(f: Fields) -> Parts:
    """DeepSeek-V3: as V2, with a load-balancing bias for each expert and MTP modules."""
    return _latent(f, default_router="noaux_tc")


def _latent(f: Fields, default_router: str) -> Parts:
    t = trunk(f)
    f.expect("attention_bias", False, "not modelled yet: biases in latent attention")
    f.expect("mlp_bias", False, "not modelled yet: biases in these feed-forward blocks")
    dims = {name: f.count(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    query = dims["qk_nope_head_dim"] + dims["qk_rope_head_dim"]
    f.expect("qk_head_dim", query, "must be qk_nope_head_dim + qk_rope_head_dim")
    f.optional("head_dim")  # some files repeat one of the widths here; the attention does not use it
    heads = f.count("num_attention_heads")
    f.count("num_key_value_heads", heads)  # every head has its own keys and values
    attention = {
        "heads": heads,
        "q_lora_rank": f.optional("q_lora_rank", key_required=True),
        "kv_lora_rank": f.count("kv_lora_rank"),
        **dims,
    }
    moe, sparse = _routed_and_shared(f, t, default_router)
    dense = feed_forward(f)
    extra = {"mtp_layers": f.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)}
    return Parts(t, attention, dense, moe, sparse, extra=extra)


def _routed_and_shared(f: Fields, t: Trunk, default_router: str) -> tuple[Raw | None, frozenset[int]]:
    if f.optional("n_routed_experts", key_required=True) is None:
        return None, frozenset()
    moe = experts(f, "n_routed_experts", "moe_intermediate_size")
    shared = f.optional("n_shared_experts", key_required=True, least=0) or 0
    width = shared * moe["expert_ffn_hidden_size"]
    f.expect("moe_shared_expert_intermediate_size", width, "must be n_shared_experts * moe_intermediate_size")
    router = f.choice("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), default_router)
    first, freq = f.count("first_k_dense_replace", least=0), f.count("moe_layer_freq", 1)
    if f.clean("first_k_dense_replace", "num_hidden_layers") and first > t.layers:
        f.refuse("first_k_dense_replace", f"must not exceed num_hidden_layers={t.layers}", "for example 1")
    sparse = frozenset(i for i in range(t.layers) if i >= first and i % freq == 0)
    return moe | {"shared_ffn_hidden_size": width, "correction_bias": router == "noaux_tc"}, sparse


def telechat2(f: Fields) -> Parts:
    """TeleChat and TeleChat2: Llama under GPT names, with a bias on the last matrix of attention and MLP."""
    hidden = f.first("hidden_size", "n_embed")
    t = trunk(f, layers="n_layer", hidden=hidden, tied=None)
    f.expect("embed_layernorm", False, "not modelled yet: a norm of the embedding")
    attention = grouped_query(f, t, heads="n_head", hidden=hidden, output_bias=True)
    return Parts(t, attention, feed_forward(f, "ffn_hidden_size", down_bias=True))


def telechat3(f: Fields) -> Parts:
    """TeleChat3: the dense models are Llama's, those with experts DeepSeek-V3's."""
    f.expect("share_ffn", False, "not modelled yet: weights shared between layers")
    return deepseek_v3(f) if f.has("kv_lora_rank") or f.has("n_routed_experts") else llama(f)


def gpt2(f: Fields) -> Parts:
    """GPT-2 and GPT-3: LayerNorm, learned positions, no gate in the MLP, biases everywhere."""
    t = trunk(f, layers="n_layer", hidden="n_embd", tied=True)
    heads = f.count("n_head")
    f.divides("n_head", heads, "n_embd", t.hidden_size)
    attention = {"heads": heads, "kv_heads": heads, "head_dim": max(t.hidden_size // heads, 1)}
    width = f.optional("n_inner")
    if width is None:
        width = f.fill("n_inner", 4 * t.hidden_size)
    f.choice("activation_function", ACTIVATIONS, "gelu_new")
    dense = {"ffn_hidden_size": width, "gated": False, "bias": True}
    extra = {"norm_bias": True, "learned_positions": f.count("n_positions")}
    return Parts(t, attention | {"qkv_bias": True, "output_bias": True}, dense, extra=extra)


def gpt_oss(f: Fields) -> Parts:
    """gpt-oss: every second layer has a window, sinks in the softmax, biases in router and experts."""
    t = trunk(f)
    bias = f.flag("attention_bias", True)
    more: Raw = {"qkv_bias": bias, "output_bias": bias, "sinks": True}
    attention = grouped_query(f, t, kv_required=True, dim_required=True, **more)
    f.choice("hidden_act", ACTIVATIONS, "silu")
    count = f.first("num_local_experts", "num_experts")
    top_k = f.first("num_experts_per_tok", "experts_per_token")
    moe = experts(f, count, "intermediate_size", top_k=top_k, expert_bias=True, router_bias=True)
    windows = layer_windows(f, t, lambda i: i % 2 == 0)
    return Parts(t, attention, moe=moe, sparse=frozenset(range(t.layers)), windows=windows)


# the released TeleChat3-105B is loaded by DeepSeek-V3's class
_TELECHAT3 = (
    "Telechat3ForCausalLM",
    "TeleChat3ForCausalLM",
    "TeleChat3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
)

FAMILIES: dict[str, Family] = {
    "llama": Family(llama, ("LlamaForCausalLM", "LLaMAForCausalLM")),
    "mistral": Family(mistral, ("MistralForCausalLM",)),
    "mixtral": Family(mixtral, ("MixtralForCausalLM",)),
    "qwen3": Family(qwen3, ("Qwen3ForCausalLM",)),
    "qwen3_moe": Family(qwen3_moe, ("Qwen3MoeForCausalLM",)),
    "deepseek_v2": Family(deepseek_v2, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(deepseek_v3, ("DeepseekV3ForCausalLM",)),
    "telechat": Family(telechat2, ("TelechatForCausalLM", "TeleChatForCausalLM", "TeleChat2ForCausalLM")),
    "telechat3": Family(telechat3, _TELECHAT3),
    "telechat3_moe": Family(telechat3, _TELECHAT3),
    "gpt2": Family(gpt2, ("GPT2LMHeadModel",)),
    "gpt_oss": Family(gpt_oss, ("GptOssForCausalLM",)),
}
"""Adapters by ``model_type``."""


def by_architecture(architectures: Iterable[str]) -> str | None:
    """Return the ``model_type`` of the first family that names one of these classes."""
    wanted = set(architectures)
    found = (kind for kind, family in FAMILIES.items() if wanted.intersection(family.architectures))
    return next(found, None)
