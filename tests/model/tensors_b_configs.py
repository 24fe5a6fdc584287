"""Published configurations: the keys of each model's config.json that decide its tensors, and how many it routes to.

Read from config.json files or from engines' copies of them; what a config leaves out is its class's default. From
memory, and not read again: Ling-1T, Ring-flash-linear-2.0, Nemotron-4-340B, Gemma 3 and the dense Gemma 4, OLMo 2,
the vocabularies of Skywork-MoE and BLOOM, and whether Hunyuan's and ERNIE-4.5-300B's heads are tied.
"""

from typing import Any

_LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
_PLE = {
    "model_type": "gemma4_text", "vocab_size": 262144, "num_attention_heads": 8, "head_dim": 256,
    "global_head_dim": 512, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
}  # fmt: skip
_LING = {
    "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "vocab_size": 157184, "head_dim": 128,
    "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "use_qk_norm": True, "use_bias": False,
    "use_qkv_bias": False, "moe_router_enable_expert_bias": True, "num_nextn_predict_layers": 1,
}  # fmt: skip
_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

# fmt: off
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-2-7B": {"model_type": "llama"},
    "Llama-3.1-8B": _LLAMA | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336,
    },
    "Llama-3.1-70B": _LLAMA | {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
    },
    "Llama-3.1-405B": _LLAMA | {
        "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128, "intermediate_size": 53248,
    },
    "Llama-4-Scout": {"model_type": "llama4_text"},
    "Llama-4-Maverick": {
        "model_type": "llama4_text", "interleave_moe_layer_step": 2, "num_local_experts": 128,
    },
    "Mistral-7B": {"model_type": "mistral"},
    "Mixtral-8x7B": {"model_type": "mixtral"},
    "Gemma-2-2B": {"model_type": "gemma2"},
    "Gemma-3-27B": {
        "model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 262208,
        },
    },
    "Gemma-4-26B-A4B": {
        "model_type": "gemma4", "text_config": {
            "model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16,
            "num_key_value_heads": 8, "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512,
            "attention_k_eq_v": True, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_experts": 128,
            "top_k_experts": 8, "enable_moe_block": True, "hidden_size_per_layer_input": 0,
        },
    },
    "Gemma-4-31B": {
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "attention_k_eq_v": True, "intermediate_size": 21504, "hidden_size_per_layer_input": 0,
    },
    "Gemma-4-E2B": _PLE | {
        "hidden_size": 1536, "num_hidden_layers": 35, "num_key_value_heads": 1, "intermediate_size": 6144,
        "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    },
    "Gemma-4-E4B": _PLE | {
        "hidden_size": 2560, "num_hidden_layers": 42, "num_key_value_heads": 2, "intermediate_size": 10240,
        "num_kv_shared_layers": 18, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
    },
    "GPT-2": {"model_type": "gpt2"},
    "GPT-3 175B": {
        "model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "n_positions": 2048, "vocab_size": 51200,
    },
    "GPT-NeoX-20B": {"model_type": "gpt_neox"},
    "OPT-175B": {
        "model_type": "opt", "hidden_size": 12288, "num_hidden_layers": 96, "num_attention_heads": 96,
        "ffn_dim": 49152, "vocab_size": 50272,
    },
    "BLOOM": {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880},
    "Phi-3-mini": {"model_type": "phi3"},
    "Phi-3.5-MoE": {"model_type": "phimoe", "attention_bias": True, "lm_head_bias": True},
    "DBRX": {
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "OLMoE-1B-7B": {"model_type": "olmoe", "intermediate_size": 1024},
    "OLMo-2-7B": {"model_type": "olmo2", "vocab_size": 100352},
    "Grok-1": {"model_type": "grok-1"},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "Hunyuan-Large": {
        "model_type": "hunyuan", "hidden_size": 6400, "num_hidden_layers": 64, "num_attention_heads": 80,
        "num_key_value_heads": 8, "intermediate_size": 18304, "vocab_size": 129024, "num_experts": 16, "moe_topk": 1,
        "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": True,
        "cla_share_factor": 2, "tie_word_embeddings": True,
    },
    "Hunyuan-A13B": {
        "model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 128167, "num_experts": 64,
        "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "tie_word_embeddings": True,
    },
    "ERNIE-4.5-21B-A3B": {"model_type": "ernie4_5_moe", "moe_k": 6, "num_nextn_predict_layers": 1},
    "ERNIE-4.5-300B-A47B": {
        "model_type": "ernie4_5_moe", "hidden_size": 8192, "num_hidden_layers": 54, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "moe_intermediate_size": 3584, "moe_num_experts": 64,
        "moe_k": 8, "moe_num_shared_experts": 0, "moe_layer_start_index": 3, "moe_layer_end_index": 53,
        "tie_word_embeddings": False,
    },
    "dots.llm1": {
        "model_type": "dots1", "hidden_size": 4096, "num_hidden_layers": 62, "intermediate_size": 10944,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 152064, "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6,
    },
    "Ling-lite-1.5": {
        "model_type": "bailing_moe", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 1408, "moe_intermediate_size": 1408, "num_experts": 64,
        "num_experts_per_tok": 6, "num_shared_experts": 2, "first_k_dense_replace": 0, "vocab_size": 126464,
    },
    "Ling-mini-2.0": _LING | {
        "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "first_k_dense_replace": 1,
    },
    "Ling-flash-2.0": _LING | {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 4,
        "intermediate_size": 9216, "moe_intermediate_size": 1024, "first_k_dense_replace": 1,
    },
    "Ling-1T": _LING | {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "first_k_dense_replace": 4,
    },
    "Ring-flash-linear-2.0": _LING | {
        "model_type": "bailing_moe_linear", "architectures": [], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "first_k_dense_replace": 1, "layer_group_size": 8, "group_norm_size": 8, "num_nextn_predict_layers": 0,
    },
    "openPangu-Embedded-7B": {
        "model_type": "PanguEmbedded", "bias": True, "hidden_size": 4096, "intermediate_size": 12800,
        "num_attention_heads": 32, "num_hidden_layers": 34, "num_key_value_heads": 8, "vocab_size": 153376,
    },
    "Pangu Pro MoE": {"model_type": "PanguProMoE", "num_experts_per_tok": 8},
    "Pangu Ultra MoE": {
        "model_type": "pangu_ultra_moe", "sandwich_norm": True, "num_experts_per_tok": 8, "num_mtp_layers": 1,
    },
    "Skywork-MoE": {
        "model_type": "skywork_moe", "hidden_size": 4608, "num_hidden_layers": 52, "num_attention_heads": 36,
        "intermediate_size": 12288, "vocab_size": 65536, "num_experts": [16],
    },
    "TeleChat2-7B": {
        "model_type": "telechat", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "ffn_hidden_size": 12288,
        "vocab_size": 131072,
    },
    "TeleChat2-35B": {
        "model_type": "telechat", "hidden_size": 6144, "n_layer": 64, "n_head": 48, "ffn_hidden_size": 20480,
        "vocab_size": 131072,
    },
    "Nemotron-4-340B": {
        "model_type": "nemotron", "hidden_size": 18432, "num_hidden_layers": 96, "num_attention_heads": 96,
        "num_key_value_heads": 8, "intermediate_size": 73728, "vocab_size": 256000,
    },
    "Nemotron-H-8B": {
        "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "attention_head_dim": 128,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    },
    "Nemotron-3-Nano-30B-A3B": {
        "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "hybrid_override_pattern": _NANO, "mamba_num_heads": 64,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
    },
    "Nemotron-3-Super-120B-A12B": {  # 40 Mamba, 40 expert and 8 attention blocks; their order does not matter here
        "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
        "layers_block_type": ["mamba", "moe"] * 40 + ["attention"] * 8, "n_routed_experts": 512,
        "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
        "moe_shared_expert_intermediate_size": 5376, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
    },
    "Jamba-v0.1": {"model_type": "jamba"},
    "Seed-OSS-36B": {"model_type": "seed_oss", "hidden_size": 5120},
}
# fmt: on
