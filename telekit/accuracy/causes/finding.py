"""What locating answers: where it first went wrong, what kind of fault it looks like, how sure that is, what next."""

from __future__ import annotations

from dataclasses import dataclass

SCALED = "constant ratio"
SIGN = "sign flipped"
MISSING_REDUCTION = "missing reduction"
DOUBLE_REDUCTION = "double reduction"
GRADIENT_SCALING = "gradient scaling"
PERMUTATION = "permutation"
DUPLICATED = "duplicated or wrongly ordered shards"
MISSING_TERM = "missing term"
EXTRA_TERM = "extra term"
MASK = "mask"
ROTARY = "rotary position"
SOFTMAX_SCALE = "softmax scale"
NORM_EPSILON = "normalisation epsilon"
NORMALISATION = "normalisation"
CHANNEL_WEIGHT = "channel weight"
ROUTER = "router selection"
DROPPED = "dropped tokens"
ONE_SHARD = "one shard wrong"
LOCAL = "confined to some positions"
OVERFLOW = "overflow"
WRONG_DTYPE = "wrong dtype"
ZERO = "all zero"
SHAPE = "shape"
NON_DETERMINISM = "non-determinism"
NEAR_ZERO = "near-zero noise"
STALE = "stale value"
ACTIVATION = "activation function"
DIFFERENT_WEIGHTS = "different weights"
DIFFERENT_INPUTS = "different inputs"
LEARNING_RATE = "learning rate"
WEIGHT_DECAY = "weight decay"
BIAS_CORRECTION = "Adam bias correction"
ADAM_BETA = "Adam beta"
ADAM_EPSILON = "Adam epsilon"
OPTIMIZER_STATE = "stale optimizer state"
CLIPPING = "gradient clipping"
LOSS_TERM = "loss term"
UNKNOWN = "unknown"
NONE = "none"

NEXT_DUMP = {
    SCALED: "the tensors just before and after the reduction or the scale, of every rank of the group",
    SIGN: "the operator's inputs and the sign convention of its backward",
    MISSING_REDUCTION: "this tensor on every rank of the group, before and after the collective",
    DOUBLE_REDUCTION: "this tensor on every rank of the group, before and after each collective",
    GRADIENT_SCALING: "the main gradient of every rank before reduction, after it, and the loss scale or token count",
    PERMUTATION: "the weight (or activation) of every rank with its shard order; tensor mode, statistics cannot see it",
    DUPLICATED: "the inputs and output of the gather on every rank of the group",
    MISSING_TERM: "each term of the sum on its own: bias, residual, shared part",
    EXTRA_TERM: "each term of the sum on its own: bias, residual, shared part",
    MASK: "the attention mask and the scores before the softmax; check what true means in it",
    ROTARY: "the rotary cos and sin tables and the position ids",
    SOFTMAX_SCALE: "the scores before the softmax and the scale argument",
    NORM_EPSILON: "the mean square (or variance) inside the norm and its eps argument",
    NORMALISATION: "the denominator of the normalisation, and over which axis it is taken",
    CHANNEL_WEIGHT: "the weight that multiplies the channels, as the operator sees it",
    ROUTER: "router logits, chosen experts and their weights for each token",
    DROPPED: "the dispatcher's token counts by expert, the capacity, and the combined output before weighting",
    ONE_SHARD: "this operator on the rank that owns the shard, with its weight",
    LOCAL: "the rows named, with the mask, the positions and the token ids there",
    OVERFLOW: "the operator's inputs at the step before; level L2 if it is fused. A dump that hides the NaN "
    "synchronises the device: absence under dump is not absence",
    WRONG_DTYPE: "the dtypes inside the operator: its accumulation and its casts",
    ZERO: "whether the operator ran at all, and what it should have received",
    SHAPE: "the tensors on every rank with the layout that wrote them",
    NON_DETERMINISM: "the same step twice with deterministic mode on, md5 summaries",
    NEAR_ZERO: "nothing: judge by scale, not by relative error",
    STALE: "the buffer before the step: whether it was zeroed or refreshed",
    ACTIVATION: "the input of the activation and which halves it takes as gate and as value",
    DIFFERENT_WEIGHTS: "the checkpoints both sides loaded",
    DIFFERENT_INPUTS: "the batch: token ids, labels, masks, position ids",
    LEARNING_RATE: "the learning rate of each parameter group at this step",
    WEIGHT_DECAY: "the weight decay of each parameter group, and whether it is decoupled",
    BIAS_CORRECTION: "exp_avg, exp_avg_sq and the step count inside the optimizer",
    ADAM_BETA: "exp_avg and exp_avg_sq before and after the step",
    ADAM_EPSILON: "exp_avg_sq and the denominator, elementwise",
    OPTIMIZER_STATE: "exp_avg, exp_avg_sq and the step count before the step (after a resume: from the checkpoint)",
    CLIPPING: "the squared norm by parameter and rank as the clipping counts it",
    LOSS_TERM: "each part of the loss on its own: lm, auxiliary, z-loss",
    UNKNOWN: "the operators around it one level deeper (L1 or L2), in tensor mode",
    NONE: "nothing",
}


@dataclass(frozen=True)
class Cause:
    """One explanation.

    Attributes
    ----------
    kind : str
        The class of the fault, one of this module's names.
    confidence : float
        0 to 1: how much of the difference it explains, times how seldom something else looks the same.
    text : str
        What was seen, with numbers.
    """

    kind: str
    confidence: float
    text: str

    @property
    def next_dump(self) -> str:
        """What would settle it."""
        return NEXT_DUMP.get(self.kind, NEXT_DUMP[UNKNOWN])


@dataclass(frozen=True)
class Candidate:
    """A place where inputs are clean and an output is not.

    Attributes
    ----------
    operator, phase, part, tensor : str
        Where.
    error : float
        Of the output: norm of the difference over golden's norm; inf where it cannot be compared.
    inputs_error : float or None
        The worst of its inputs; None where no input was dumped.
    limit : float
        What rounding explains at most, given the inputs.
    """

    operator: str
    phase: str
    part: str
    tensor: str
    error: float
    inputs_error: float | None
    limit: float


@dataclass(frozen=True)
class Finding:
    """Where the first difference beyond rounding arises, and what it looks like.

    Attributes
    ----------
    operator : str
        Operator or module; empty where nothing was found, or where only the phase is known.
    phase : str
        ``forward``, ``backward``, ``optimizer``, ``setup`` (weights or inputs differ before anything ran), or empty.
    part, tensor : str
        Which of its tensors.
    cause : str
        The likeliest class (``Cause.kind``); ``none`` where nothing is wrong, ``unknown`` where it cannot be named.
    confidence : float
        0 to 1, of place and cause together.
    evidence : tuple of str
        What was seen, in the order it was used.
    next_dump : str
        What to dump to be sure.
    causes : tuple of Cause
        All explanations, best first.
    candidates : tuple of Candidate
        Other places of that kind, in graph order: mostly consequences.
    step, rank : int or None
        Where they are known.
    """

    operator: str
    phase: str
    part: str
    cause: str
    confidence: float
    evidence: tuple[str, ...]
    next_dump: str
    tensor: str = ""
    causes: tuple[Cause, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    step: int | None = None
    rank: int | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing beyond rounding was found."""
        return self.cause == NONE


def ranked(causes: list[Cause]) -> tuple[Cause, ...]:
    """Best first, one for each kind; ``unknown`` alone where there is none."""
    best: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda c: -c.confidence):
        best.setdefault(cause.kind, cause)
    return tuple(best.values()) or (Cause(UNKNOWN, 0.1, "no known kind of fault explains the difference"),)
