"""Model and hardware FLOPs utilisation, each publisher's convention by name.

MFU is what the model needs over what the devices could do in the same time; HFU adds the recomputing that the
devices really do. Two tables of MFU can be compared only when both counted alike: :data:`CONVENTIONS` says what each
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from telekit.errors import InputError, Problem, bad
from telekit.model.config import ModelConfig
from telekit.model.flops import AttentionCount, Recompute, WeightCount, training_flops_per_token

ConventionName = Literal["telekit", "megatron", "palm", "deepseek-causal", "deepseek-noncausal", "nvidia"]


@dataclass(frozen=True)
class Convention:
    """How a source counts the training FLOPs of a token.

    Parameters
    ----------
    attention, weights : str
        As in :mod:`telekit.model.flops`.
    include_router, include_embedding : bool
        Routers of experts; the input embedding, as if a look-up were a product (only where ``weights`` are
        "parameters").
    include_mtp : bool
        Multi-token-prediction modules, when they are trained.
    text, source : str
        In words, and where it is defined.
    """

    attention: AttentionCount
    weights: WeightCount
    include_router: bool
    include_embedding: bool
    include_mtp: bool
    text: str
    source: str


CONVENTIONS: dict[ConventionName, Convention] = {
    "telekit": Convention(
        "causal", "matrices", True, False, True,
        "every matrix a token is multiplied by, and the keys it really meets",
        "telekit.model.flops",
    ),
    "megatron": Convention(
        "full", "matrices", True, False, True,
        "72 s L h^2 (1 + s/6h + V/12hL) a sequence: all keys, no recompute",
        "Narayanan et al. 2021 (arXiv 2104.04473) equation 3; Korthikanti et al. 2022 (arXiv 2205.05198) appendix",
    ),
    "palm": Convention(
        "full", "parameters", True, True, False,
        "6 N + 12 L H Q T with N all parameters (for experts: those a token meets)",
        "Chowdhery et al. 2022 (arXiv 2204.02311) appendix B",
    ),
    "deepseek-causal": Convention(
        "causal", "matrices", False, False, False,
        "keys before the query, without MTP and router",
        "arXiv 2505.09343 Table 4",
    ),
    "deepseek-noncausal": Convention(
        "full", "matrices", False, False, False,
        "all keys, without MTP and router",
        "arXiv 2505.09343 Table 4",
    ),
    "nvidia": Convention(
        "causal", "matrices", False, False, True,
        "keys before the query (half of all), MTP where trained, no router",
        "Megatron-LM num_floating_point_operations; tables of Megatron-Bridge docs/performance-summary.md",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Utilization:
    """Shares of the peak, and the FLOPs per token they stand on."""

    mfu: float
    hfu: float
    model_flops_per_token: float
    hardware_flops_per_token: float
    convention: str
    notes: tuple[str, ...] = ()


def flops_per_token(model: ModelConfig, seq_len: int, convention: ConventionName = "telekit", *,
                    recompute: Recompute = "none", mtp: bool = False,
                    documents: Sequence[int] = ()) -> float:  # fmt: skip
    """Training FLOPs of a token as ``convention`` counts them.

    Parameters
    ----------
    model : ModelConfig
        The model.
    seq_len : int
        Tokens of a sequence.
    convention : str
        A name of :data:`CONVENTIONS`.
    recompute : {"none", "selective", "full"}
        What is computed again (for hardware FLOPs).
    mtp : bool
        Multi-token-prediction modules are trained; conventions that do not count them pass over it.
    documents : sequence of int
        Lengths of packed documents, where attention stays inside each.

    Raises
    ------
    InputError
        A convention with no such name, or what ``training_flops_per_token`` refuses.
    """
    if convention not in CONVENTIONS:
        raise bad("convention", convention, f"must be one of {', '.join(CONVENTIONS)}")
    c = CONVENTIONS[convention]
    found = training_flops_per_token(
        model, seq_len, attention=c.attention, weights=c.weights, recompute=recompute,
        include_router=c.include_router, include_mtp=mtp and c.include_mtp, documents=documents,
    )  # fmt: skip
    embedding = c.include_embedding and not model.tied_embeddings
    return found + embedding * 6 * model.hidden_size * model.vocab_size


def utilization(model: ModelConfig, seq_len: int, tokens_per_s_per_device: float, peak_flops_per_s: float,
                convention: ConventionName = "telekit", *, recompute: Recompute = "none", mtp: bool = False,
                documents: Sequence[int] = ()) -> Utilization:  # fmt: skip
    """MFU and HFU of a measured speed.

    Parameters
    ----------
    tokens_per_s_per_device : float
        Measured.
    peak_flops_per_s : float
        Of one device at the precision used: the dense peak. Data sheets often print the peak with 2:4 sparsity,
        twice as high.
    model, seq_len, convention, recompute, mtp, documents
        As in :func:`flops_per_token`.

    Raises
    ------
    InputError
        As :func:`flops_per_token`; a speed or peak that is not positive and finite.
    """
    named = (("tokens_per_s_per_device", tokens_per_s_per_device), ("peak_flops_per_s", peak_flops_per_s))
    wrong = [Problem(n, v, "must be a positive number") for n, v in named if not 0 < v < float("inf")]
    if wrong:
        raise InputError(wrong)
    needed = flops_per_token(model, seq_len, convention, mtp=mtp, documents=documents)
    done = flops_per_token(model, seq_len, convention, recompute=recompute, mtp=mtp, documents=documents)
    share = tokens_per_s_per_device / peak_flops_per_s
    notes = ("more than the peak: is the peak the dense one of this precision?",) if done * share > 1 else ()
    return Utilization(needed * share, done * share, needed, done, convention, notes)
