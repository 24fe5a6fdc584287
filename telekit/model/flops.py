"""FLOPs a token costs, each counting convention a named argument.

Sources differ in five ways, and a table of throughputs means nothing without them:

- ``attention``: ``"causal"`` counts the keys a query really meets, on average ``(s + 1) / 2`` in a sequence
  of ``s`` and as exactly for a window (NVIDIA's tables take ``s / 2``); ``"full"`` counts all ``s``, or the
  whole window, as Megatron's papers do.
- ``documents``: lengths of the documents packed into the sequence, where attention stays inside each.
- ``weights``: ``"matrices"`` counts 2 FLOPs for each number of each matrix that a token is multiplied by;
  ``"parameters"`` counts 2 for each active parameter save the input embedding (the rule ``6 N``), norms and
  biases included.
- ``recompute``: ``"selective"`` repeats the mixing of tokens (attention without its projections), ``"full"`` one
  more forward pass of the blocks, not of the head.
- ``include_head``, ``include_mtp``, ``include_router``: the output head; the multi-token-prediction modules with
  their head; the routers of experts, which Megatron-LM leaves out.

``mla`` says whether latent attention rebuilds keys and values (``"expanded"``, as training does) or works on the
latent vectors (``"absorbed"``). The backward pass costs twice the forward pass. A look-up in the embedding costs
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from telekit.errors import InputError, Problem
from telekit.model.attention_flops import AttentionCount as AttentionCount
from telekit.model.attention_flops import MlaForm, mixer_flops
from telekit.model.attention_flops import mean_keys as mean_keys
from telekit.model.config import LayerKind, ModelConfig
from telekit.model.parameters import LayerParameters, layer_parameters, mtp_layer, trunk_parameters

WeightCount = Literal["matrices", "parameters"]
Recompute = Literal["none", "selective", "full"]

LONGEST = 10**9
MOST_DOCUMENTS = 10**6


@dataclass(frozen=True)
class LayerFlops:
    """Forward FLOPs per token of one block, by component.

    ``attention_core`` is the mixing of tokens (for softmax attention the two products with keys and values); all
    the rest is products with weights.
    """

    attention_projections: float
    attention_core: float
    mlp: float
    shared_experts: float
    experts: float
    latent: float
    router: float
    norms: float
    residual: float

    @property
    def total(self) -> float:
        """The whole block."""
        return sum(float(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True)
class _Counting:
    """One set of conventions, and the sequence they count."""

    model: ModelConfig
    seq_len: int
    attention: AttentionCount
    weights: WeightCount
    documents: Sequence[int] = ()
    mla: MlaForm = "expanded"
    router: bool = True

    @property
    def matrices_only(self) -> bool:
        return self.weights == "matrices"

    def core(self, kind: LayerKind) -> float:
        return core_flops(kind, self.seq_len, self.attention, documents=self.documents, mla=self.mla)

    def layer(self, kind: LayerKind) -> LayerFlops:
        parameters = layer_parameters(self.model, kind, matrices_only=self.matrices_only)
        return _flops(parameters, self.core(kind), self.router)

    def blocks(self, recompute: Recompute = "full") -> float:
        """All blocks, or what a recompute choice repeats of them."""
        found = 0.0
        for index, layers in Counter(self.model.pattern).items() if recompute != "none" else ():
            kind = self.model.kinds[index]
            found += layers * (self.layer(kind).total if recompute == "full" else self.core(kind))
        return found

    def trunk(self) -> float:
        found = 2.0 * trunk_parameters(self.model, matrices_only=self.matrices_only).total
        return found + (
            0 if self.matrices_only else 2 * self.model.hidden_size * self.model.learned_positions
        )

    def mtp(self, include_head: bool) -> float:
        module = mtp_layer(self.model, matrices_only=self.matrices_only)
        block = _flops(module, self.core(self.model.mtp_block), self.router)
        return self.model.mtp_layers * (block.total + include_head * head_flops(self.model))

    def mtp_again(self, recompute: Recompute) -> float:
        """Count what a recompute choice repeats of the modules: not their heads."""
        if recompute == "selective":
            return self.model.mtp_layers * self.core(self.model.mtp_block)
        return self.mtp(include_head=False) if recompute == "full" else 0.0


def core_flops(kind: LayerKind, seq_len: int, attention: AttentionCount = "causal", *,
               documents: Sequence[int] = (), mla: MlaForm = "expanded") -> float:  # fmt: skip
    """Forward FLOPs per token of mixing tokens in one block, projections apart.

    With ``documents`` (their lengths, packed into the sequence) tokens meet only those of their own document.
    """
    if not documents:
        return mixer_flops(kind.attention, seq_len, attention, mla)
    lengths = Counter(documents).items()
    total = sum(count * n * mixer_flops(kind.attention, n, attention, mla) for n, count in lengths)
    return total / sum(documents)


def layer_flops(model: ModelConfig, kind: LayerKind, seq_len: int, attention: AttentionCount = "causal",
                weights: WeightCount = "matrices") -> LayerFlops:  # fmt: skip
    """Forward FLOPs per token of one block."""
    return _Counting(model, seq_len, attention, weights).layer(kind)


def head_flops(model: ModelConfig) -> int:
    """Forward FLOPs per token of the output head, tied or not."""
    return 2 * model.hidden_size * model.vocab_size


def mtp_flops(model: ModelConfig, seq_len: int, attention: AttentionCount = "causal",
              weights: WeightCount = "matrices", *, include_head: bool = True) -> float:  # fmt: skip
    """Forward FLOPs per token of all multi-token-prediction modules, each with its pass through the head."""
    return _Counting(model, seq_len, attention, weights).mtp(include_head)


def forward_flops_per_token(model: ModelConfig, seq_len: int, *, attention: AttentionCount = "causal",
                            weights: WeightCount = "matrices", include_head: bool = True,
                            include_mtp: bool = False, include_router: bool = True,
                            documents: Sequence[int] = (), mla: MlaForm = "expanded") -> float:  # fmt: skip
    """FLOPs of one forward pass, per token of a sequence of ``seq_len``.

    Raises
    ------
    InputError
        A sequence length out of bounds, documents that do not fill it, or a convention with no such name.
    """
    check_convention(seq_len, attention, weights, documents=documents, mla=mla)
    counting = _Counting(model, seq_len, attention, weights, tuple(documents), mla, include_router)
    return _forward(counting, include_head, include_mtp)


def training_flops_per_token(model: ModelConfig, seq_len: int, *, attention: AttentionCount = "causal",
                             weights: WeightCount = "matrices", recompute: Recompute = "none",
                             include_head: bool = True, include_mtp: bool = False, include_router: bool = True,
                             documents: Sequence[int] = (), mla: MlaForm = "expanded") -> float:  # fmt: skip
    """FLOPs of forward and backward pass, per token of a sequence of ``seq_len``.

    With ``recompute`` that is what the device does (for HFU); without, what the model needs (for MFU).

    Raises
    ------
    InputError
        A sequence length out of bounds, documents that do not fill it, or a convention with no such name.
    """
    check_convention(seq_len, attention, weights, recompute, documents=documents, mla=mla)
    counting = _Counting(model, seq_len, attention, weights, tuple(documents), mla, include_router)
    again = counting.blocks(recompute) + (counting.mtp_again(recompute) if include_mtp else 0.0)
    return 3 * _forward(counting, include_head, include_mtp) + again


def _forward(counting: _Counting, include_head: bool, include_mtp: bool) -> float:
    total = counting.blocks() + counting.trunk()
    if include_head:
        total += head_flops(counting.model)
    if include_mtp:
        total += counting.mtp(include_head)
    return total


def check_convention(seq_len: int, attention: str, weights: str = "matrices", recompute: str = "none", *,
                     documents: Sequence[int] = (), mla: str = "expanded") -> None:  # fmt: skip
    """Refuse a sequence length or a convention that means nothing."""
    problems = []
    if type(seq_len) is not int or not 1 <= seq_len <= LONGEST:
        rule = f"must be a whole number from 1 to {LONGEST:,}"
        problems.append(Problem("seq_len", seq_len, rule, "for example 4096"))
    named = (("attention", attention, AttentionCount), ("weights", weights, WeightCount),
             ("recompute", recompute, Recompute), ("mla", mla, MlaForm))  # fmt: skip
    for name, value, kind in named:
        if value not in get_args(kind):
            problems.append(Problem(name, value, f"must be one of {', '.join(get_args(kind))}"))
    problems += _document_problems(documents, seq_len)
    if problems:
        raise InputError(problems)


def _document_problems(documents: Sequence[int], seq_len: int) -> list[Problem]:
    if len(documents) > MOST_DOCUMENTS:
        return [Problem("documents", f"{len(documents)} of them", f"must be at most {MOST_DOCUMENTS:,}")]
    wrong = [n for n in documents if type(n) is not int or n < 1]
    if wrong:
        return [Problem("documents", wrong[0], "their lengths must be whole numbers from 1")]
    if documents and sum(documents) != seq_len:
        rule = f"must fill the sequence of {seq_len}; they hold {sum(documents)} tokens"
        return [Problem("documents", f"{len(documents)} of them", rule, "count padding as a document")]
    return []


def _flops(parameters: LayerParameters, core: float, router: bool) -> LayerFlops:
    return LayerFlops(
        attention_projections=2 * parameters.attention,
        attention_core=core,
        mlp=2 * parameters.mlp,
        shared_experts=2 * parameters.shared_experts,
        experts=2 * parameters.experts_active,
        latent=2 * parameters.latent,
        router=2 * parameters.router * router,
        norms=2 * parameters.norms,
        residual=2 * parameters.residual,
    )
