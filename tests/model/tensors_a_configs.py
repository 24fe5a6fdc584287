"""Published configurations: the keys of each model's config.json that decide its tensors, and how many it routes to.

Read from the config.json beside the checkpoint or from engines' copies of it. From memory, so that only the counts
they give vouch for them: Step-3's sizes beyond its model card, Qwen2 and its kin, GLM-4-0414, DeepSeek-V2.
"""

from __future__ import annotations

from typing import Any

_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_GLM_LATENT = _LATENT | {"qk_nope_head_dim": 192, "v_head_dim": 256}

# fmt: off
_V3 = _LATENT | {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "q_lora_rank": 1536, "num_nextn_predict_layers": 1, "topk_method": "noaux_tc",
}
_V4_FLASH = {
    "model_type": "deepseek_v4", "num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
    "vocab_size": 129280, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "num_hash_layers": 3, "hc_mult": 4, "index_n_heads": 64, "index_head_dim": 128,
    "num_nextn_predict_layers": 1, "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0],
}
_V4_PRO = _V4_FLASH | {
    "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
    "moe_intermediate_size": 3072, "n_routed_experts": 384, "compress_ratios": [128, 128] + [4, 128] * 29 + [4, 0],
}
_V2 = _LATENT | {
    "model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120, "num_attention_heads": 128,
    "intermediate_size": 12288, "vocab_size": 102400, "first_k_dense_replace": 1, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "n_shared_experts": 2, "num_experts_per_tok": 6, "q_lora_rank": 1536,
    "topk_method": "group_limited_greedy",
}
_GLM5 = _GLM_LATENT | {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "hidden_size": 6144, "num_attention_heads": 64,
    "intermediate_size": 12288, "vocab_size": 154880, "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "q_lora_rank": 2048, "index_n_heads": 32, "index_head_dim": 128, "num_nextn_predict_layers": 1,
}
_FULL = [4, 8, 12, 16, 20, 24, 27]  # Kimi-Linear's layers of latent attention, counted from 1

CONFIGS: dict[str, dict[str, Any]] = {
    "DeepSeek-V2": _V2,
    "DeepSeek-V2-Lite": _V2 | {
        "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "q_lora_rank": None, "topk_method": "greedy",
    },
    "DeepSeek-V3": _V3,
    "DeepSeek-V3.2": _V3 | {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128},
    "DeepSeek-V4-Flash": _V4_FLASH,
    "DeepSeek-V4-Pro": _V4_PRO,
    "Kimi-K2": _V3 | {
        "model_type": "kimi_k2", "num_attention_heads": 64, "vocab_size": 163840, "first_k_dense_replace": 1,
        "n_routed_experts": 384, "num_nextn_predict_layers": 0,
    },
    "Kimi-Linear-48B-A3B": _LATENT | {
        "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
        "intermediate_size": 9216, "vocab_size": 163840, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "q_lora_rank": None, "linear_attn_config": {
            "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": _FULL,
            "kda_layers": [i for i in range(1, 28) if i not in _FULL],
        },
    },
    "LongCat-Flash": _LATENT | {
        "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
        "vocab_size": 131072, "ffn_hidden_size": 12288, "q_lora_rank": 1536, "n_routed_experts": 512,
        "zero_expert_num": 256, "expert_ffn_hidden_size": 2048, "moe_topk": 12,
    },
    "GLM-4-9B-0414": {
        "model_type": "glm4", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151552,
        "attention_bias": True,
    },
    "GLM-4-32B-0414": {
        "model_type": "glm4", "num_hidden_layers": 61, "hidden_size": 6144, "num_attention_heads": 48,
        "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 23040, "vocab_size": 151552,
        "attention_bias": False,
    },
    "GLM-4.5": {
        "model_type": "glm4_moe", "num_hidden_layers": 92, "hidden_size": 5120, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151552,
        "first_k_dense_replace": 3, "moe_intermediate_size": 1536, "n_routed_experts": 160,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "attention_bias": True, "use_qk_norm": True,
        "num_nextn_predict_layers": 1,
    },
    "GLM-4.5-Air": {
        "model_type": "glm4_moe", "num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "vocab_size": 151552,
        "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 128,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "attention_bias": True, "use_qk_norm": False,
        "num_nextn_predict_layers": 1,
    },
    "GLM-4.7-Flash": _GLM_LATENT | {
        "model_type": "glm4_moe_lite", "num_hidden_layers": 47, "hidden_size": 2048, "num_attention_heads": 20,
        "intermediate_size": 10240, "vocab_size": 154880, "first_k_dense_replace": 1,
        "moe_intermediate_size": 1536, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "q_lora_rank": 768, "num_nextn_predict_layers": 1,
    },
    "GLM-5": _GLM5,
    "GLM-5.2": _GLM5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    "MiMo-7B": {
        "model_type": "mimo", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 11008, "vocab_size": 151680,
        "num_nextn_predict_layers": 1,
    },
    "MiMo-V2-Flash": {
        "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "intermediate_size": 16384,
        "vocab_size": 152576, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": None,
        "num_experts_per_tok": 8, "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0], "moe_layer_freq": [0] + [1] * 47,
    },
    "MiniMax-M2": {
        "model_type": "minimax_m2", "num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "vocab_size": 200064,
        "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True, "use_routing_bias": True,
        "use_mtp": True, "num_mtp_modules": 3, "shared_intermediate_size": 0,
    },
    "MiniMax-Text-01": {
        "model_type": "minimax_text_01", "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "vocab_size": 200064,
        "num_local_experts": 32, "num_experts_per_tok": 2, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        "shared_intermediate_size": 0,
    },
    "Qwen1.5-MoE-A2.7B": {
        "model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
    },
    "Qwen2-57B-A14B": {
        "model_type": "qwen2_moe", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 151936, "num_experts": 64,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480,
    },
    "Qwen2-7B": {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
    },
    "Qwen2-VL-2B": {
        "model_type": "qwen2_vl", "num_hidden_layers": 28, "hidden_size": 1536, "num_attention_heads": 12,
        "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen3-32B": {
        "model_type": "qwen3", "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    },
    "Qwen3-235B-A22B": {
        "model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
    },
    "Qwen3-Next-80B-A3B": {
        "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    },
    "Qwen3.5-27B": {
        "model_type": "qwen3_5", "text_config": {
            "num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 24, "num_key_value_heads": 4,
            "head_dim": 256, "intermediate_size": 17408, "vocab_size": 248320, "linear_num_value_heads": 48,
            "mtp_num_hidden_layers": 1,
        },
    },
    "Qwen3.5-35B-A3B": {
        "model_type": "qwen3_5_moe", "text_config": {
            "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "linear_num_value_heads": 32,
            "mtp_num_hidden_layers": 1,
        },
    },
    "Qwen3.5-122B-A10B": {
        "model_type": "qwen3_5_moe", "text_config": {
            "num_hidden_layers": 48, "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 2,
            "head_dim": 256, "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "linear_num_value_heads": 64,
            "mtp_num_hidden_layers": 1,
        },
    },
    "Qwen3.5-397B-A17B": {
        "model_type": "qwen3_5_moe", "text_config": {
            "num_hidden_layers": 60, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
            "head_dim": 256, "vocab_size": 248320, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "linear_num_value_heads": 64,
            "mtp_num_hidden_layers": 1,
        },
    },
    "Step-3": {
        "model_type": "step3_text", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 64,
        "head_dim": 256, "share_q_dim": 2048, "intermediate_size": 18432, "vocab_size": 128815,
        "moe_num_experts": 48, "moe_top_k": 3, "moe_intermediate_size": 5120, "share_expert_dim": 5120,
        "moe_layers_enum": ",".join(str(i) for i in range(4, 60)),
    },
    "Step-3.5-Flash": {
        "model_type": "step3p5", "num_hidden_layers": 45, "hidden_size": 4096, "num_attention_heads": 64,
        "num_attention_groups": 8, "head_dim": 128, "intermediate_size": 11264, "vocab_size": 128896,
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "moe_layers_enum": ",".join(str(i) for i in range(3, 45)), "num_nextn_predict_layers": 3,
        "use_head_wise_attn_gate": True, "use_moe_router_bias": True,
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8,
            "head_dim": 128,
        },
    },
}
# fmt: on
