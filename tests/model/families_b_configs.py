"""Configurations of half of the families: at toy size, and of models whose size was published.

The full ones are as released where a figure stands beside them; what is from memory is said there.
"""

from typing import Any

Config = dict[str, Any]

_TOY: Config = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "tie_word_embeddings": False,
}  # fmt: skip
_PLAIN = {k: v for k, v in _TOY.items() if k != "num_key_value_heads"}
_LING: Config = _TOY | {
    "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True,
    "moe_router_enable_expert_bias": True,
}  # fmt: skip
# fmt: off
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12}
_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_HYBRID: Config = _TOY | {
    "model_type": "nemotron_h", "num_hidden_layers": 6, "head_dim": 24, "mamba_num_heads": 8, "mamba_head_dim": 12,
    "n_groups": 2, "ssm_state_size": 10, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False,
    "mamba_proj_bias": False, "mlp_bias": False, "attention_bias": False,
}  # fmt: skip
_SPARSE_HYBRID = _HYBRID | _ROUTED | {
    "hybrid_override_pattern": "M*-EME", "n_routed_experts": 8, "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 40, "moe_latent_size": 32,
}  # fmt: skip
_GEMMA4: Config = _TOY | {
    "model_type": "gemma4_text", "num_hidden_layers": 12, "head_dim": 16, "global_head_dim": 32, "sliding_window": 16,
    "num_global_key_value_heads": 1, "attention_bias": False, "attention_k_eq_v": False, "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False, "enable_moe_block": False, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 50, "tie_word_embeddings": True,
}  # fmt: skip
_PRUNED = [
    {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 13.125, "no_op": False}},
    {"attention": {"n_heads_in_group": 4, "no_op": False, "window_length": 8},
     "ffn": {"ffn_mult": None, "no_op": True}},
    {"attention": {"n_heads_in_group": 1, "no_op": False}, "ffn": {"intermediate_size": 80, "no_op": False}},
]

TOY: dict[str, Config] = {
    "llama4": _TOY | {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 128,
                      "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
                      "attention_bias": False, "attention_chunk_size": 32, "no_rope_layer_interval": 4},
    "llama4, listed": _TOY | {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 128,
                              "num_local_experts": 4, "num_experts_per_tok": 1, "moe_layers": [0, 3]},
    "ministral3": _TOY | {"model_type": "ministral3", "head_dim": 24, "sliding_window": None},
    "gemma2": _TOY | {"model_type": "gemma2", "head_dim": 24, "sliding_window": 16, "attention_bias": False},
    "gemma3": _TOY | {"model_type": "gemma3_text", "head_dim": 24, "sliding_window": 16, "sliding_window_pattern": 3,
                      "attention_bias": False},
    "gemma3, wrapped": {"model_type": "gemma3", "vision_config": {"hidden_size": 8}, "text_config": {
        "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7, "intermediate_size": 96}},
    "gemma4, dense": _GEMMA4 | {"attention_k_eq_v": True},
    "gemma4, experts": _GEMMA4 | {"attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8,
                                  "top_k_experts": 2, "moe_intermediate_size": 24},
    "gemma4, shared": _GEMMA4 | {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 5,
                                 "use_double_wide_mlp": True},
    "gemma4, wrapped": {"model_type": "gemma4", "audio_config": {"hidden_size": 8}, "text_config": _GEMMA4},
    "mistral3": {"model_type": "mistral3", "text_config": _TOY | {"model_type": "mistral", "head_dim": 24,
                                                                   "sliding_window": None}},
    "gpt_neox": _PLAIN | {"model_type": "gpt_neox", "attention_bias": True},
    "opt": {"model_type": "opt", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "ffn_dim": 80, "max_position_embeddings": 48, "enable_bias": True,
            "do_layer_norm_before": True, "tie_word_embeddings": True},
    "bloom": {"model_type": "bloom", "vocab_size": 100, "hidden_size": 64, "n_layer": 3, "n_head": 4},
    "phi3": _TOY | {"model_type": "phi3", "sliding_window": 16},
    "phimoe": _TOY | {"model_type": "phimoe", "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True,
                      "lm_head_bias": True},
    "dbrx": {"model_type": "dbrx", "vocab_size": 100, "d_model": 64, "n_heads": 4, "n_layers": 3,
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8},
             "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "olmo2": _TOY | {"model_type": "olmo2", "attention_bias": False},
    "olmo3": _TOY | {"model_type": "olmo3", "attention_bias": False, "sliding_window": 16},
    "olmoe": _TOY | {"model_type": "olmoe", "attention_bias": False, "num_experts": 4, "num_experts_per_tok": 2},
    "grok-1": _TOY | {"model_type": "grok-1", "num_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    "hunyuan": _TOY | {"model_type": "hunyuan", "num_experts": 4, "moe_topk": 1, "num_shared_expert": 1,
                       "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2, "use_qk_norm": True,
                       "attention_bias": False},
    "hunyuan_v1_moe": _TOY | {"model_type": "hunyuan_v1_moe", "head_dim": 24, "num_experts": 4, "moe_topk": [2] * 4,
                              "moe_intermediate_size": [96] * 4, "num_shared_expert": [1] * 4, "use_cla": False,
                              "use_qk_norm": True, "use_mixed_mlp_moe": True, "attention_bias": False},
    "hunyuan_v1_dense": _TOY | {"model_type": "hunyuan_v1_dense", "head_dim": 24, "use_qk_norm": True,
                                "use_cla": False, "num_experts": 1, "attention_bias": False},
    "ernie4_5": _TOY | {"model_type": "ernie4_5", "head_dim": 24, "use_bias": False},
    "ernie4_5_moe": _TOY | {"model_type": "ernie4_5_moe", "use_bias": False, "moe_num_experts": 6, "moe_k": 2,
                            "moe_intermediate_size": 24, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                            "moe_layer_end_index": 2, "moe_layer_interval": 1, "num_nextn_predict_layers": 1},
    "dots1": _TOY | _ROUTED | {"model_type": "dots1", "head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 2,
                               "first_k_dense_replace": 1, "attention_bias": False},
    "bailing_moe": _LING | {"model_type": "bailing_moe", "use_qk_norm": False,
                            "moe_router_enable_expert_bias": False},
    "bailing_moe_v2": _LING | {"model_type": "bailing_moe_v2", "num_nextn_predict_layers": 1,
                               "moe_shared_expert_intermediate_size": 32},
    "bailing_moe_linear": _LING | {"model_type": "bailing_moe_linear", "num_hidden_layers": 8, "head_dim": 16,
                                   "layer_group_size": 3, "group_norm_size": 4},
    "bailing_hybrid": _LING | _LATENT | {
        "model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"], "num_hidden_layers": 8,
        "head_dim": 16, "num_key_value_heads": 4, "layer_group_size": 3, "num_nextn_predict_layers": 1},
    "PanguEmbedded": _TOY | {"model_type": "PanguEmbedded", "bias": True},
    "PanguProMoE": _TOY | _ROUTED | {"model_type": "PanguProMoE", "num_experts": 8, "mlp_only_layers": [],
                                     "shared_expert_intermediate_size": 40},
    "pangu_ultra_moe": _PLAIN | _ROUTED | {
        "model_type": "pangu_ultra_moe", "num_dense_layers": 1, "attention_q_lora_dim": 24,
        "attention_kv_lora_dim": 16, "attention_qk_dim": 8, "attention_qk_rope_dim": 4, "attention_v_dim": 12,
        "num_routed_experts": 8, "num_shared_experts": 1, "num_mtp_layers": 1, "sandwich_norm": True},
    "pangu_ultra_moe, DeepSeek's names": _PLAIN | _ROUTED | _LATENT | {
        "model_type": "pangu_ultra_moe", "first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_nextn_predict_layers": 1, "sandwich_norm": False},
    "skywork_moe": _TOY | {"model_type": "skywork_moe", "num_experts": [4], "num_experts_per_tok": 2,
                           "moe_2layer_gate": True},
    "nemotron": _TOY | {"model_type": "nemotron", "head_dim": 24, "attention_bias": False, "mlp_bias": False},
    "nemotron_h": _HYBRID | {"hybrid_override_pattern": "M-M*M-"},
    "nemotron_h, experts": _SPARSE_HYBRID,
    "nemotron_h, words": _SPARSE_HYBRID | {"hybrid_override_pattern": None, "layers_block_type": [
        "mamba", "attention", "linear_attention", "moe", "full_attention", "moe"], "moe_latent_size": None},
    "nemotron_h, MTP": _SPARSE_HYBRID | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
    "nemotron-nas": _PLAIN | {"model_type": "nemotron-nas", "num_key_value_heads": None, "intermediate_size": None,
                              "attention_bias": False, "mlp_bias": False, "block_configs": _PRUNED},
    "seed_oss": _TOY | {"model_type": "seed_oss", "head_dim": 24, "attention_bias": True, "attention_out_bias": False,
                        "mlp_bias": False},
    "cohere2": _TOY | {"model_type": "cohere2", "attention_bias": False, "sliding_window": 16,
                       "sliding_window_pattern": 3},
    "exaone4": _TOY | {"model_type": "exaone4", "head_dim": 24, "sliding_window": 16, "sliding_window_pattern": 4},
    "granitemoehybrid": _TOY | {
        "model_type": "granitemoehybrid", "attention_bias": False, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 40, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 10,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False,
        "layer_types": ["mamba", "mamba", "attention", "mamba"]},
}

_E: Config = {"model_type": "gemma4_text", "vocab_size": 262144, "num_attention_heads": 8, "head_dim": 256,
              "global_head_dim": 512, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
              "sliding_window": 512}
FULL: dict[str, tuple[Config, float, float]] = {  # config, published total in billions, relative tolerance
    "gemma-2-2b": ({
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
        "sliding_window": 4096}, 2.614341888, 0),
    "gemma-3-4b, text": ({  # the file says no more: 3.88B beside its vision tower, from memory
        "model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024}}, 3.88, 1e-3),
    "gemma-4-31b": ({  # model card
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "attention_k_eq_v": True, "intermediate_size": 21504, "hidden_size_per_layer_input": 0,
        "vocab_size": 262144, "sliding_window": 1024}, 30.7, 1e-3),
    "gemma-4-e2b": (_E | {  # 4.65B, with keys and values that the last layers store and do not use
        "hidden_size": 1536, "num_hidden_layers": 35, "num_key_value_heads": 1, "intermediate_size": 6144,
        "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7}, 4.65, 6e-3),
    "gpt-neox-20b": ({  # arXiv:2204.06745, section 2
        "model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "vocab_size": 50432}, 20.55456768, 0),
    "opt-175b": ({
        "model_type": "opt", "hidden_size": 12288, "num_hidden_layers": 96, "num_attention_heads": 96,
        "ffn_dim": 49152, "vocab_size": 50272, "max_position_embeddings": 2048}, 175, 5e-3),
    "bloom": ({  # model card
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
        176.247271424, 0),
    "phi-3-mini": ({  # Hugging Face's count of the checkpoint, from memory
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "sliding_window": 2047},
        3.821079552, 0),
    "olmo-2-7b": ({
        "model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100352}, 7.3, 1e-3),
    "ling-lite-1.5": ({  # model card: 16.8B
        "model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"], "hidden_size": 2048,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 5632, "moe_intermediate_size": 1408, "num_experts": 64, "num_experts_per_tok": 6,
        "num_shared_experts": 2, "vocab_size": 126464}, 16.8, 1e-3),
    "ring-mini-linear-2.0": ({  # model card: 16.4B
        "model_type": "bailing_moe_linear", "architectures": ["BailingMoeLinearV2ForCausalLM"], "head_dim": 128,
        "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512,
        "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "layer_group_size": 5, "group_norm_size": 4, "moe_router_enable_expert_bias": True, "use_qk_norm": True,
        "use_rmsnorm": True, "use_bias": False, "use_qkv_bias": False, "vocab_size": 157184}, 16.4, 3e-3),
    "openpangu-embedded-7b": ({
        "model_type": "PanguEmbedded", "bias": True, "hidden_size": 4096, "intermediate_size": 12800,
        "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "vocab_size": 153376},
        8.03, 2e-3),
    "skywork-moe": ({  # README: 146B
        "model_type": "skywork", "hidden_size": 4608, "num_hidden_layers": 52, "num_attention_heads": 36,
        "intermediate_size": 12288, "vocab_size": 65536, "num_experts": [16]}, 146, 3e-3),
    "nemotron-h-8b": ({  # arXiv:2504.03624: 8.1B
        "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "attention_head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "mamba_num_heads": 128, "mamba_head_dim": 64,
        "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "vocab_size": 131072,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}, 8.1, 2e-3),
    "seed-oss-36b": ({
        "model_type": "seed_oss", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 155136}, 36.15, 1e-3),
    "mistral-small-3.1, text": ({  # 23.57B, from memory; the head is apart though no file says so
        "model_type": "mistral3", "vision_config": {"hidden_size": 1024}, "text_config": {
            "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
            "sliding_window": None}}, 23.57, 1e-3),
    "command-r7b": ({  # 8.03B, from memory
        "model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 256000, "sliding_window": 4096,
        "layer_switch": 4, "use_gated_activation": True, "use_embedding_sharing": True}, 8.03, 1e-3),
}
# fmt: on
