"""DeepSeek, and TeleChat3, whose expert models are DeepSeek-V3's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from telekit.model.families.llama import llama
from telekit.model.families.parts import (
    ACTIVATIONS,
    Block,
    Family,
    Parts,
    Raw,
    Trunk,
    expert_groups,
    experts,
    feed_forward,
    fixed,
    layer_types,
    sparse_layers,
    sparse_types,
    trunk,
)
from telekit.model.fields import MOST_LAYERS, Fields

NO_BIAS = "not modelled yet: biases in these blocks"


def deepseek_v2(f: Fields) -> Parts:
    """DeepSeek-V2: latent attention, routed and shared experts after the first dense blocks."""
    return latent_model(f, router="greedy")


def deepseek_v3(f: Fields) -> Parts:
    """DeepSeek-V3: as V2, with a load-balancing bias for each expert and MTP modules."""
    return latent_model(f)


def deepseek_v32(f: Fields) -> Parts:
    """DeepSeek-V3.2: as V3, with an indexer in each layer that chooses the keys."""
    return latent_model(f, sparse_latent, dense_first=3)


def latent_model(f: Fields, mixers: Callable[[Fields, Trunk], list[Raw]] | None = None, *,
                 router: str = "noaux_tc", dense_first: int | None = None) -> Parts:  # fmt: skip
    """Read latent attention with routed and shared experts; ``mixers`` makes each layer's attention."""
    t = trunk(f)
    f.expect("mlp_bias", False, NO_BIAS)
    f.expect("use_mla", True, "not modelled yet: these models without latent attention")
    f.expect("lm_head", True, "not modelled yet: these models without an output head")
    attention = mixers(f, t) if mixers else [latent_attention(f)] * t.layers
    mtp = mtp_count(f)
    moe, sparse = routed_and_shared(f, t, router, dense_first=dense_first, ahead=mtp)
    dense = feed_forward(f)
    blocks = [Block(a, moe if moe and i in sparse else dense) for i, a in enumerate(attention)]
    own = Block(attention[-1], mtp_mlp(f, t, mtp, dense, moe, sparse))
    return Parts(t, blocks, {"mtp_layers": mtp}, own if mtp else None)


def mtp_mlp(f: Fields, t: Trunk, mtp: int, dense: Raw, moe: Raw | None, sparse: frozenset[int]) -> Raw:
    """Feed-forward block of the MTP modules: that of the layers numbered on from the last."""
    places = range(t.layers, t.layers + mtp)
    if 0 < len(sparse.intersection(places)) < mtp:
        f.refuse("moe_layer_freq", "not modelled yet: MTP modules that differ", "for example 1")
    return moe if moe and sparse.intersection(places) else dense


def latent_attention(f: Fields, *, needs_q_lora: bool = False, q_lora_key: bool = True) -> Raw:
    """Multi-head latent attention; a null ``q_lora_rank`` is one dense query projection."""
    dims = {name: f.count(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    query = dims["qk_nope_head_dim"] + dims["qk_rope_head_dim"]
    f.expect("qk_head_dim", query, "must be qk_nope_head_dim + qk_rope_head_dim")
    f.optional("head_dim")  # some files repeat one of the widths here; the attention does not use it
    heads = f.count("num_attention_heads")
    f.count("num_key_value_heads", heads)  # every head has its own keys and values
    rank = f.count("q_lora_rank") if needs_q_lora else f.optional("q_lora_rank", key_required=q_lora_key)
    return {
        "kind": "mla",
        "heads": heads,
        "q_lora_rank": rank,
        "kv_lora_rank": f.count("kv_lora_rank"),
        "bias": f.flag("attention_bias", False),
        **dims,
    }


def sparse_latent(f: Fields, t: Trunk) -> list[Raw]:
    """Latent attention with an indexer in every layer."""
    words = ("indexed_attention", "deepseek_sparse_attention")  # of transformers since 5.24, and before
    layer_types(f, t, words, lambda _: words[0])
    return [latent_attention(f, needs_q_lora=True) | {"indexer": indexer(f)}] * t.layers


def indexer(f: Fields) -> Raw:
    """Lightning indexer."""
    return {
        "heads": f.count("index_n_heads"),
        "head_dim": f.count("index_head_dim"),
        "top_k": f.count("index_topk"),
    }


def mtp_count(f: Fields, name: str = "num_nextn_predict_layers", default: int = 0) -> int:
    """Multi-token-prediction modules."""
    return f.count(name, default, least=0, most=MOST_LAYERS)


def routed_and_shared(f: Fields, t: Trunk, router: str, *, count: str = "n_routed_experts",
                      top_k: str = "num_experts_per_tok", shared: str = "n_shared_experts",
                      dense_first: int | None = None,
                      ahead: int = 0) -> tuple[Raw | None, frozenset[int]]:  # fmt: skip
    """Experts, and the layers that have them, ``ahead`` MTP modules behind the last included.

    ``dense_first`` is how many dense layers the family's class puts first where nothing says it; such classes
    read ``mlp_layer_types`` too.
    """
    if f.optional(count, key_required=True) is None:
        return None, frozenset()
    moe = experts(f, count, "moe_intermediate_size", top_k=top_k)
    width = (f.optional(shared, key_required=True, least=0) or 0) * moe["expert_ffn_hidden_size"]
    f.expect("moe_shared_expert_intermediate_size", width, f"must be {shared} * moe_intermediate_size")
    chosen = f.choice("topk_method", ("greedy", "group_limited_greedy", "noaux_tc"), router)
    if chosen == "greedy":
        f.skip("n_group", "topk_group")  # it looks at all experts, whatever groups the file names
    else:
        moe |= expert_groups(f, moe, count, top_k)
    place = ("first_k_dense_replace", "moe_layer_freq")
    if dense_first is None:
        sparse = sparse_layers(f, t, *place, ahead=ahead)
    else:
        sparse = sparse_types(f, t, *place, dense_first, ahead)
    return moe | {"shared_ffn_hidden_size": width, "correction_bias": chosen == "noaux_tc"}, sparse


# --- DeepSeek-V4 --------------------------------------------------------------------------------------------

WINDOW, CHOSEN, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: WINDOW, 4: CHOSEN, 128: HEAVY}


def deepseek_v4(f: Fields) -> Parts:
    """DeepSeek-V4: windows and compressed blocks, several residual streams, experts in every layer."""
    t = trunk(f)
    mtp = mtp_count(f, default=1)
    for name in ("attention_bias", "mlp_bias"):
        f.expect(name, False, NO_BIAS)
    fixed(f, "num_key_value_heads", 1, "these models have one key, which is also the value")
    fixed(f, "n_shared_experts", 1, "these models have one shared expert")
    f.count("qk_rope_head_dim", 64)  # a part of head_dim
    f.expect("topk_method", "noaux_tc", "these models have a load-balancing bias for each expert")
    f.choice("hidden_act", ACTIVATIONS, "silu")
    f.skip("expert_dtype", "compress_rope_theta", "hc_sinkhorn_iters")
    kinds = _v4_kinds(f, t, mtp)
    mixers = _v4_mixers(f, kinds)
    moe = experts(f, f.first("n_routed_experts", "num_local_experts"), "moe_intermediate_size")
    moe |= {"shared_ffn_hidden_size": moe["expert_ffn_hidden_size"], "correction_bias": True}
    hashed, looked_up = _v4_hashed(f, t), moe | {"correction_bias": False}
    blocks = [Block(mixers[kinds[i]], looked_up if i in hashed else moe) for i in range(t.layers)]
    extra = {"mtp_layers": mtp, "residual_streams": f.count("hc_mult", least=2)}
    return Parts(t, blocks, extra, Block(mixers[kinds[-1]], moe) if mtp else None)


def _v4_kinds(f: Fields, t: Trunk, mtp: int) -> list[str]:
    """Attention of each layer, and last that of the MTP modules."""

    def default(i: int) -> str:
        return HEAVY if i < 2 or i % 2 == 0 else CHOSEN

    if not f.has("layer_types") and not f.has("compress_ratios"):
        f.fill("layer_types", f"{HEAVY} in the first two and every second layer, {CHOSEN} between")
    if f.has("layer_types") or not f.has("compress_ratios"):
        f.skip("compress_ratios")
        return [*layer_types(f, t, RATIOS.values(), default), WINDOW]
    ratios = f.entries("compress_ratios", int) or []
    unknown = sorted(set(ratios) - set(RATIOS))
    if unknown:
        f.refuse("compress_ratios", "not modelled yet: this ratio; known: 0, 4, 128", value=unknown[0])
    elif len(ratios) not in (t.layers, t.layers + mtp):
        rule = f"must have one entry a layer, {t.layers} in all, or one for each MTP module besides"
        f.refuse("compress_ratios", rule, value=f"{len(ratios)} entries")
    elif len(set(ratios[t.layers :])) > 1:
        f.refuse(
            "compress_ratios", "not modelled yet: MTP modules that differ", value=str(ratios[t.layers :])
        )
    else:
        kinds = [RATIOS[ratio] for ratio in ratios]
        return [*kinds[: t.layers], kinds[t.layers] if len(kinds) > t.layers else WINDOW]
    return [WINDOW] * (t.layers + 1)


def _v4_mixers(f: Fields, kinds: Sequence[str]) -> Mapping[str, Raw]:
    heads, width, groups = f.count("num_attention_heads"), f.count("head_dim"), f.count("o_groups")
    f.divides("o_groups", groups, "num_attention_heads * head_dim", heads * width)
    base = {
        "kind": "compressed",
        "heads": heads,
        "head_dim": width,
        "q_lora_rank": f.count("q_lora_rank"),
        "output_groups": groups,
        "output_lora_rank": f.count("o_lora_rank"),
        "window": f.count("sliding_window"),
        "compress_ratio": 0,
    }
    rates, given = f.inside("compress_rates"), f.has("compress_rates")
    short = f.optional("compress_rate_csa") or rates.count(CHOSEN, None if given else 4)
    long = f.optional("compress_rate_hca") or rates.count(HEAVY, None if given else 128)
    found = {WINDOW: base, HEAVY: base | {"compress_ratio": long}}
    if CHOSEN in kinds:
        found[CHOSEN] = base | {"compress_ratio": short, "overlap": True, "indexer": indexer(f)}
    for name in ("index_n_heads", "index_head_dim", "index_topk"):
        f.optional(name)
    return found


def _v4_hashed(f: Fields, t: Trunk) -> frozenset[int]:
    """Layers whose experts are looked up by the token."""
    if not f.has("mlp_layer_types"):
        return frozenset(range(f.count("num_hash_layers", 3, least=0)))
    f.optional("num_hash_layers", least=0)
    kinds = layer_types(f, t, ("hash_moe", "moe"), lambda _: "moe", "mlp_layer_types")
    return frozenset(i for i, kind in enumerate(kinds) if kind == "hash_moe")


def telechat3(f: Fields) -> Parts:
    """TeleChat3: the dense models are Llama's, those with experts DeepSeek-V3's."""
    f.expect("share_ffn", False, "not modelled yet: weights shared between layers")
    return deepseek_v3(f) if f.has("kv_lora_rank") or f.has("n_routed_experts") else llama(f)


# the released TeleChat3-105B is loaded by DeepSeek-V3's class
_TELECHAT3 = (
    "Telechat3ForCausalLM",
    "TeleChat3ForCausalLM",
    "TeleChat3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
)

FAMILIES = {
    "deepseek_v2": Family(deepseek_v2, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(deepseek_v3, ("DeepseekV3ForCausalLM",)),
    "deepseek_v32": Family(deepseek_v32, ("DeepseekV32ForCausalLM",)),
    "deepseek_v4": Family(deepseek_v4, ("DeepseekV4ForCausalLM",)),
    "telechat3": Family(telechat3, _TELECHAT3),
    "telechat3_moe": Family(telechat3, _TELECHAT3),
}
