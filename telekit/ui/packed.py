"""Packed batches under a reader's hands: documents of a kind, one batch arranged on ranks, and many steps of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import load_cluster
from telekit.cost.packing_gain import llama_like, setting_of
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.gain import ROOM, Setting, part_of
from telekit.packing.pack import Packed, by_work, concatenate
from telekit.packing.policies import AS_GIVEN, BY_WORK, arrange
from telekit.packing.step import Step, order_micro_batches, run_step
from telekit.training.config import TrainConfig
from telekit.training.documents import LengthDistribution, distribution

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REAL, CHATS = "real (WLB-LLM's)", "chats (LMSYS)"
DOCUMENTS = (REAL, CHATS, "lognormal", "short and long", "uniform", "all alike")
"""Documents that the chapter offers: two of published lengths, four made up."""
LONG = 65536
"""Tokens of a long document where there are short and long ones."""
LAYERS = 32
MOST_TRIED = 1024
"""Ranks times micro-batches squared up to which orders are searched by exchanges too; beyond it the best rule is taken,
for a panel that answers at once."""


@dataclass(frozen=True)
class Documents:
    """Documents of one kind.

    Attributes
    ----------
    kind : str
        One of :data:`DOCUMENTS`.
    typical : int
        Tokens of a typical one, where they are made up: the median, the short ones, the mean, all.
    long_share : float
        Share of the documents that are long, where there are short and long ones.
    """

    kind: str = REAL
    typical: int = 2048
    long_share: float = 0.02

    @property
    def lengths(self) -> LengthDistribution:
        """Their lengths."""
        made: dict[str, tuple[str, dict[str, float]]] = {
            REAL: ("wlb-llm", {}),
            CHATS: ("lmsys-chat", {}),
            "lognormal": ("lognormal", {"median": self.typical}),
            "uniform": ("uniform", {"longest": 2 * self.typical - 1}),
            "all alike": ("constant", {"length": self.typical}),
            "short and long": (
                "bimodal",
                {"short": self.typical, "long": LONG, "long_share": self.long_share},
            ),
        }
        name, parameters = made[self.kind]
        return distribution(name, **parameters)


@dataclass(frozen=True)
class Shape:
    """A dense model of 32 layers with Llama's proportions on H100: 1F1B, no TP, no CP.

    Attributes
    ----------
    hidden, seq_len : int
        Hidden size, tokens of a sample.
    dp, pp, micro_batches : int
        Data-parallel ranks, stages, micro-batches of a rank in a step.
    in_layers : bool
        Whether ranks meet in every layer, as those of an expert group do.
    """

    hidden: int
    seq_len: int
    dp: int
    pp: int = 1
    micro_batches: int = 4
    in_layers: bool = False

    @property
    def samples(self) -> int:
        """Samples of a global batch."""
        return self.dp * self.micro_batches

    @property
    def setting(self) -> Setting:
        """The same as balancing sees it."""
        return _setting(self)

    @property
    def searched(self) -> bool:
        """Whether orders are searched by exchanges, after the rules."""
        return self.dp * self.micro_batches**2 <= MOST_TRIED


@lru_cache(maxsize=1024)
def _setting(shape: Shape) -> Setting:
    train = TrainConfig(seq_len=shape.seq_len, global_batch=shape.samples)
    cluster = load_cluster({"device": "h100", "devices": shape.dp * shape.pp})
    model = load_model(llama_like(LAYERS, shape.hidden))
    found = setting_of(Job(model, cluster, train, ParallelConfig(pp=shape.pp, dp=shape.dp)))
    return replace(found, plan=replace(found.plan, meets="layer")) if shape.in_layers else found


@lru_cache(maxsize=64)
def batch(documents: Documents, seq_len: int, samples: int, number: int = 0) -> Packed:
    """Lay documents end to end and cut them into samples; of one ``number``, fewer samples are the first of more."""
    lengths = documents.lengths
    count = int(1.1 * samples * seq_len / lengths.mean) + 64
    drawn = lengths.sample(count, number)
    while drawn.sum() < samples * seq_len:
        count *= 2
        drawn = lengths.sample(count, number)
    return part_of(concatenate(drawn, seq_len, drop_last=True), 0, samples)


# --- one batch ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arranged:
    """A global batch under one policy.

    Attributes
    ----------
    packed : Packed
        Its samples.
    rank : array (ranks, micro_batches)
        Samples of each rank, in the order it runs them.
    attention_s, rest_s : arrays (samples,)
        Seconds of attention, and of all else; both passes.
    """

    packed: Packed
    rank: Ints
    attention_s: Floats
    rest_s: Floats

    @property
    def sample_s(self) -> Floats:
        """Seconds of each sample."""
        return self.attention_s + self.rest_s

    @property
    def rank_s(self) -> Floats:
        """Seconds of each rank (ranks,)."""
        return np.asarray(self.sample_s[self.rank].sum(axis=1))

    @property
    def waiting(self) -> float:
        """Share of the time of the slowest rank that a rank waits, on average."""
        return float(1 - self.rank_s.mean() / self.rank_s.max())


def arranged(one: Packed, of: Setting, policy: str) -> Arranged:
    """Arrange a batch on ranks that meet once a step, one stage."""
    if policy == BY_WORK:
        most = int(ROOM * one.seq_len)
        one = by_work(one.lengths, most, one.samples, of.work.seconds, carry_over=True)
    attention = np.asarray(one.per_sample(np.add(*of.work.mixing_s(one.lengths))), np.float64)
    rest: Floats = of.work.token_s * one.tokens.astype(np.float64)
    rank = arrange(policy, attention + rest, of.ranks, of.micro_batches)[..., 0]
    return Arranged(one, rank, attention, rest)


# --- many steps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Global batches under one policy; arrays (batches,).

    Attributes
    ----------
    step : Step
        What ran, (batches, ranks), its micro-batches ordered where that was asked for.
    unordered_s : array
        Seconds of the step with micro-batches in the order that they came in.
    tokens : array
        Tokens of each.
    """

    step: Step
    unordered_s: Floats
    tokens: Floats

    def speedup(self, given: Steps, ordered: bool = True) -> Floats:
        """Tokens a second over those of the samples as given, (batches,)."""
        mine = self.step.step_s if ordered else self.unordered_s
        return np.asarray(given.step.step_s / mine * self.tokens / given.tokens)

    def parts(self) -> dict[str, Floats]:
        """Split each step by what a mean rank does, seconds (batches,): Step's names, and ``fixed_s``."""
        names = ("busy_s", "bubble_s", "layer_wait_s", "reduce_wait_s")
        found = {name: np.asarray(getattr(self.step, name).mean(axis=-1)) for name in names}
        return found | {"fixed_s": np.full(self.tokens.shape, self.step.plan.fixed_s)}


@lru_cache(maxsize=2048)
def steps(
    documents: Documents, policy: str, shape: Shape, batches: int, order: bool = False, kept: int = 0
) -> Steps:
    """Run the first batches of one stream of samples, the same ones for every policy, width and number of ranks.

    As :func:`telekit.packing.gain.gain` does, but all batches at once, so that a panel answers.

    Parameters
    ----------
    documents, policy, shape
        What is packed, how it is arranged, and where it runs.
    batches : int
        Global batches.
    order : bool
        Whether micro-batches are ordered too; those of samples as given never are.
    kept : int
        Samples of the stream that are drawn at least, so that calls for fewer share one draw.
    """
    size = shape.samples
    stream = batch(documents, shape.seq_len, max(batches * size, kept))
    of = shape.setting
    if policy == BY_WORK:
        forward, backward, tokens = _packed_anew(stream, of, batches)
    else:
        one_stage = replace(shape, pp=1, in_layers=False)
        chosen = _chosen(documents, policy, one_stage, batches, stream.samples)
        forward, backward = (t[chosen] for t in _times(documents, _alone(shape), stream.samples))
        tokens = np.full(batches, float(size * shape.seq_len))
    found = run_step(forward, backward, of.plan, by_part=True)
    unordered = np.asarray(found.step_s)
    if order and policy != AS_GIVEN and shape.pp > 1:
        forward, backward = ordered(forward, backward, shape)
        found = run_step(forward, backward, of.plan, by_part=True)
    return Steps(found, unordered, tokens)


@lru_cache(maxsize=64)
def even_steps(documents: Documents, shape: Shape, batches: int) -> Steps:
    """Run the same batches with samples that are all alike."""
    stream = batch(documents, shape.seq_len, batches * shape.samples)
    every = shape.setting.times_s(stream)
    whole = (batches, shape.dp, shape.micro_batches, *every[0].shape[1:])
    forward, backward = (
        np.broadcast_to(t.reshape(batches, -1, *t.shape[1:]).mean(axis=1)[:, None, None], whole)
        for t in every
    )
    found = run_step(forward, backward, shape.setting.plan, by_part=True)
    return Steps(found, np.asarray(found.step_s), np.full(batches, float(shape.samples * shape.seq_len)))


def ordered(forward: Floats, backward: Floats, shape: Shape) -> tuple[Floats, Floats]:
    """Put each rank's micro-batches in the order that its pipeline takes best.

    Seconds go in and come out as (..., ranks, micro_batches, 1, stages).
    """
    plan = shape.setting.plan
    order = order_micro_batches(forward, backward, plan, by_part=True, exchanges=shape.searched)
    at = order[..., None, None]
    return np.take_along_axis(forward, at, axis=-3), np.take_along_axis(backward, at, axis=-3)


def _alone(shape: Shape) -> Shape:
    """Keep of a shape what the time of a sample depends on."""
    return Shape(shape.hidden, shape.seq_len, 1, shape.pp, 1)


@lru_cache(maxsize=256)
def _times(documents: Documents, shape: Shape, samples: int) -> tuple[Floats, Floats]:
    """Forward and backward seconds of a stream's samples, both (samples, 1, stages)."""
    return shape.setting.times_s(batch(documents, shape.seq_len, samples))


@lru_cache(maxsize=2048)
def _chosen(documents: Documents, policy: str, shape: Shape, batches: int, samples: int) -> Ints:
    """Choose samples of each rank, (batches, ranks, micro_batches); stages share a sample's work, so one will do."""
    forward, backward = _times(documents, _alone(shape), samples)
    work = (forward + backward).sum(axis=1).mean(axis=1)
    size = shape.samples
    every = [
        first + arrange(policy, work[first : first + size], shape.dp, shape.micro_batches)[..., 0]
        for first in range(0, batches * size, size)
    ]
    return np.stack(every)


def _packed_anew(stream: Packed, of: Setting, batches: int) -> tuple[Floats, Floats, Floats]:
    """Seconds by batch, rank, micro-batch, part and stage, and tokens of each batch, packed by work."""
    forward, backward, tokens = [], [], []
    for number in range(batches):
        one = part_of(stream, number * of.samples, of.samples)
        again = by_work(one.lengths, int(ROOM * of.seq_len), of.samples, of.work.seconds, carry_over=True)
        times = of.varied_s(again, of.times_s(one))
        work = np.add(*times).sum(axis=1).mean(axis=1)
        chosen = arrange(BY_WORK, work, of.ranks, of.micro_batches)[..., 0]
        forward.append(times[0][chosen])
        backward.append(times[1][chosen])
        tokens.append(float(again.tokens.sum()))
    return np.stack(forward), np.stack(backward), np.array(tokens)


def standing(speedup: Floats) -> tuple[float, float, float]:
    """Mean of a speed-up over batches, and its 5 and 95 %."""
    low, high = np.quantile(speedup, [0.05, 0.95])
    return float(speedup.mean()), float(low), float(high)
