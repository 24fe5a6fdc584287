"""The second way to a parameter count: every tensor of a checkpoint, from the models' own modelling code.

``TENSORS[model_type](config)`` gives ``{name: shape}`` of the text model. What predicts further tokens is named
``mtp.``, a tied head is listed once. Buffers that training moves and checkpoints store are listed (a router's
correction bias, Gemma 4's layer_scalar); frequencies of rotary embeddings and scales of quantization are not.
"""

from collections.abc import Callable

import tensors_b_dense as dense
import tensors_b_hybrid as hybrid
import tensors_b_moe as moe
from tensors_b_parts import Config, Shapes


def wrapped(default: str, tie: bool | None) -> Callable[[Config], Shapes]:
    """List a multimodal wrapper's language model.

    ``tie``: the wrapper's own default of ``tie_word_embeddings``, which overrides the text model's; None where
    the text model holds the head and decides. Released Mistral 3 files say nothing outside and store a head.
    """

    def tensors(config: Config) -> Shapes:
        text = dict(config["text_config"])
        if tie is not None:
            text["tie_word_embeddings"] = config.get("tie_word_embeddings", tie)
        elif default == "mistral" and config.get("tie_word_embeddings") is not None:
            text["tie_word_embeddings"] = config["tie_word_embeddings"]
        return TENSORS[text.get("model_type", default)](text)

    return tensors


TENSORS: dict[str, Callable[[Config], Shapes]] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "ministral3": dense.ministral3,
    "seed_oss": dense.seed_oss,
    "ernie4_5": dense.ernie4_5,
    "PanguEmbedded": dense.pangu_embedded,
    "hunyuan_v1_dense": dense.hunyuan_v1_dense,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3_text,
    "phi3": dense.phi3,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo2,
    "exaone4": dense.exaone4,
    "cohere2": dense.cohere2,
    "nemotron": dense.nemotron,
    "nemotron-nas": dense.nemotron_nas,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "bloom": dense.bloom,
    "opt": dense.opt_family,
    "telechat": dense.telechat,
    "mixtral": moe.mixtral,
    "phimoe": moe.phimoe,
    "olmoe": moe.olmoe,
    "gpt_oss": moe.gpt_oss,
    "dbrx": moe.dbrx,
    "grok-1": moe.grok_1,
    "grok_1": moe.grok_1,
    "llama4_text": moe.llama4_text,
    "gemma4_text": moe.gemma4_text,
    "hunyuan": moe.hunyuan,
    "hunyuan_v1_moe": moe.hunyuan_v1_moe,
    "ernie4_5_moe": moe.ernie4_5_moe,
    "dots1": moe.dots1,
    "PanguProMoE": moe.pangu_pro_moe,
    "pangu_ultra_moe": moe.pangu_ultra_moe,
    "skywork_moe": moe.skywork_moe,
    "bailing_moe": hybrid.bailing_moe,
    "bailing_moe_v2": hybrid.bailing_moe,
    "bailing_moe_linear": hybrid.bailing_linear,
    "bailing_hybrid": hybrid.bailing_linear,
    "nemotron_h": hybrid.nemotron_h,
    "granitemoehybrid": hybrid.granitemoehybrid,
    "falcon_h1": hybrid.falcon_h1,
    "jamba": hybrid.jamba,
    "llama4": wrapped("llama4_text", None),
    "gemma3": wrapped("gemma3_text", True),
    "gemma4": wrapped("gemma4_text", True),
    "mistral3": wrapped("mistral", None),
}
