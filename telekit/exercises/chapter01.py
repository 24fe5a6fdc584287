"""Tasks of chapter 1 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from telekit import catalog
from telekit.cluster.config import load_cluster
from telekit.cost.glance import run_s
from telekit.errors import InputError
from telekit.exercises.check import Feedback, choice, design, number
from telekit.model.config import MixtureOfExperts, ModelConfig
from telekit.model.count import Count, count
from telekit.model.flops import core_flops, training_flops_per_token
from telekit.model.huggingface import from_huggingface, load_model
from telekit.model.parameters import layer_parameters, mtp_layer

BILLION, DAY_S = 1e9, 86400.0

CONVENTIONS = {
    "both": "With input embedding and head it is 5.71 B.",
    "no input": "Right: 5.13 B. The input embedding is only looked up; the head is a product, and stays.",
    "neither": "Without either it is 4.55 B.",
}

RUN = {"device": "ascend-910b", "devices": 8192}
TOKENS, MFU, DAYS, SEQ_LEN = 14.8e12, 0.35, 45.0, 4096
TOTAL_B, ACTIVE_B = (980.0, 1020.0), 35.0
LAYERS, TOP_K, RANKS, NARROWEST = (45, 60), (4, 8), 64, 1536


def mixtral_active(answer: float | None) -> Feedback:
    """Parameters that one token meets in Mixtral-8x7B, in B (1e9)."""
    counted = count("mixtral-8x7b")
    kind = load_model("mixtral-8x7b").layers[0]
    one_expert = counted.by_component["experts"] / 8
    return number(
        answer,
        counted.active / BILLION,
        rel=0.003,
        unit="B",
        hint="Two experts of three matrices in each of 32 layers, the attention, and the vocabulary twice.",
        slips={
            "that is all eight experts; a token meets two": counted.total / BILLION,
            "that is one expert a layer; a token meets two": (counted.active - one_expert) / BILLION,
            "the input embedding is missing": counted.active_without_input_embedding / BILLION,
            "an expert has three matrices, not two": (counted.active - 2 * one_expert / 3) / BILLION,
            f"keys and values have {kind.attention.kv_heads} heads, not {kind.attention.heads}": (
                (counted.active + 32 * 2 * 4096 * (4096 - 1024)) / BILLION
            ),
        },
    )


def head_share(answer: float | None) -> Feedback:
    """Share of the head in the products with weights of Qwen3-0.6B, in per cent."""
    counted, model = count("qwen3-0.6b"), load_model("qwen3-0.6b")
    head = model.hidden_size * model.vocab_size
    return number(
        answer,
        100 * head / counted.active,
        unit="%",
        hint="The head is the embedding, 151,936 by 1,024.",
        slips={
            "the matrix is tied: it counts once": 100 * head / (counted.active + head),
            "the whole has the head in it too": 100 * head / (counted.active - head),
        },
    )


def equal_length(answer: float | None) -> Feedback:
    """Sequence length at which mixing tokens costs as much as its projections, in Llama-3.1-8B, causal."""
    model = load_model("llama-3.1-8b")
    kind = model.layers[0]
    projections = 2 * layer_parameters(model, kind, matrices_only=True).attention
    per_key = core_flops(kind, 1)
    want = 2 * projections / per_key - 1  # a query meets (s + 1) / 2 keys on average
    return number(
        answer,
        want,
        unit="tokens",
        hint="One key costs 2 FLOPs for each of 32 heads of 128 numbers, once as a key and once as a value.",
        slips={
            "a query meets half of the keys on average, not all": projections / per_key,
            "keys and values have 8 heads, not 32": 4 * 4096,
            "a head is multiplied by the key and by the value": 4 * projections / per_key,
            "queries have 32 heads; only keys and values have 8": 8 * projections / per_key,
        },
    )


def active_convention(answer: str | None) -> Feedback:
    """Which convention GPT-OSS-120B's published active count follows."""
    return choice(answer, "no input", CONVENTIONS)


def mtp_share(answer: float | None) -> Feedback:
    """How much DeepSeek-V3's multi-token-prediction module adds to the FLOPs of a token, in per cent."""
    model = load_model("deepseek-v3")
    base, whole = (training_flops_per_token(model, SEQ_LEN, include_mtp=mtp) for mtp in (False, True))
    headless = training_flops_per_token(model, SEQ_LEN, include_mtp=True, include_head=False)
    bare = training_flops_per_token(model, SEQ_LEN, include_head=False)
    counted = count(model)
    return number(
        answer,
        100 * (whole / base - 1),
        rel=0.015,
        unit="%",
        hint="A block with experts, a projection of 14,336 to 7,168, and one more pass through the head.",
        slips={
            "the module has its own pass through the head": 100 * (headless - bare) / base,
            "that is its share of the stored parameters": 100 * counted.mtp / counted.total,
            "a token meets 9 of the module's 257 experts": 600 * mtp_layer(model).total / base,
        },
    )


def base() -> dict[str, Any]:
    """Return the config that the design begins with: DeepSeek-V3's own."""
    return dict(catalog.record("models", "deepseek-v3")["config"])


@dataclass(frozen=True)
class Design:
    """A reader's model, counted."""

    model: ModelConfig
    count: Count
    days: float

    @property
    def moe(self) -> MixtureOfExperts:
        """Its experts."""
        assert self.model.moe is not None
        return self.model.moe


def designed(answer: Mapping[str, Any]) -> Design:
    """Build the model that some fields of DeepSeek-V3's config make, and count it.

    Raises
    ------
    ValueError
        Fields that the config does not have, or values that make no sparse model (InputError lists those).
    """
    fields = base()
    if not isinstance(answer, Mapping):
        raise ValueError('write fields and their values, such as {"n_routed_experts": 384}')
    unknown = sorted(str(name) for name in answer if name not in fields)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no field of the base; it has {', '.join(fields)}")
    model = from_huggingface(fields | dict(answer), name="yours")
    if model.moe is None:
        raise ValueError("no layer has experts")
    cluster = load_cluster(RUN)
    peak = cluster.device.peak("bf16")
    counted = count(model, SEQ_LEN)
    time_s = run_s(counted.training_flops_per_token, TOKENS, cluster.devices, peak, MFU)
    return Design(model, counted, time_s / DAY_S)


def _total(it: Design) -> bool | str:
    found = it.count.total / BILLION
    return TOTAL_B[0] <= found <= TOTAL_B[1] or f"it has {found:,.0f} B"


def _shape(it: Design) -> bool | str:
    layers, top_k = it.model.num_layers, it.moe.top_k
    if not LAYERS[0] <= layers <= LAYERS[1]:
        return f"it has {layers} layers"
    return TOP_K[0] <= top_k <= TOP_K[1] or f"its top-k is {top_k}"


def _experts(it: Design) -> bool | str:
    if it.moe.num_experts % RANKS:
        return f"{it.moe.num_experts} experts leave {it.moe.num_experts % RANKS} over"
    width = it.moe.expert_ffn_hidden_size
    return width >= NARROWEST or f"an expert is {width:,} wide"


def _active(it: Design) -> bool | str:
    found, attention = it.count.active / BILLION, it.count.by_component["attention"] / BILLION
    experts = (it.count.by_component["experts"] - it.count.total + it.count.active) / BILLION
    said = f"one meets {found:.1f} B: attention {attention:.1f}, routed experts {experts:.1f}"
    return found <= ACTIVE_B or said


def _days(it: Design) -> bool | str:
    return it.days <= DAYS or f"it takes {it.days:.1f} days"


DEMANDS: tuple[tuple[str, Callable[[Design], bool | str]], ...] = (
    (f"It must store {TOTAL_B[0]:,.0f} to {TOTAL_B[1]:,.0f} B", _total),
    (f"It must have {LAYERS[0]} to {LAYERS[1]} layers and top-{TOP_K[0]} to top-{TOP_K[1]}", _shape),
    (f"Experts must spread over {RANKS} ranks, each at least {NARROWEST:,} wide", _experts),
    (f"A token may meet {ACTIVE_B:.0f} B", _active),
    (f"The run must take at most {DAYS:.0f} days", _days),
)


def trillion(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a sparse model of a trillion parameters that a reader designed, as changed fields of :func:`base`."""
    if answer is None:
        return design(None, (), 'Give the fields to change, such as {"n_routed_experts": 384}.')
    try:
        found = designed(answer)
    except InputError as error:
        return Feedback(False, f"It must be a model: {'; '.join(str(p) for p in error.problems)}.")
    except ValueError as error:
        return Feedback(False, f"It must be a model: {error}.")
    return design(found, DEMANDS)
