"""Packed batches of the chapter: documents under a reader's hands, what they take, and published numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import load_cluster
from telekit.cost.packing_gain import llama_like, packing_gain, setting_of, telechat3_36b
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.balance import lower_bound
from telekit.packing.context import HOWS, split
from telekit.packing.gain import ROOM, Gain, Setting, gain, part_of
from telekit.packing.pack import Packed, by_work, concatenate
from telekit.packing.policies import BY_WORK, ORDERED, arrange
from telekit.training.config import TrainConfig
from telekit.training.documents import LengthDistribution, distribution, shares_below
from telekit.ui.tables import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REAL, CHATS = "real (WLB-LLM's)", "chats (LMSYS)"
DOCUMENTS = (REAL, CHATS, "lognormal", "short and long", "uniform", "all alike")
"""Documents that the chapter offers: two of published lengths, four made up."""
LONG = 65536
"""Tokens of a long document where there are short and long ones."""
LAYERS = 32


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


@lru_cache(maxsize=256)
def setting(
    hidden: int, seq_len: int, dp: int, pp: int = 1, micro_batches: int = 4, in_layers: bool = False
) -> Setting:
    """Make the setting of a dense model of 32 layers with Llama's proportions on H100: 1F1B, no TP, no CP.

    ``in_layers``: ranks meet in every layer, as those of an expert group do.
    """
    train = TrainConfig(seq_len=seq_len, global_batch=dp * micro_batches)
    cluster = load_cluster({"device": "h100", "devices": dp * pp})
    model = load_model(llama_like(LAYERS, hidden))
    found = setting_of(Job(model, cluster, train, ParallelConfig(pp=pp, dp=dp)))
    return replace(found, plan=replace(found.plan, meets="layer")) if in_layers else found


@lru_cache(maxsize=64)
def batch(documents: Documents, seq_len: int, samples: int, number: int = 0) -> Packed:
    """One global batch of documents laid end to end and cut into samples; ``number`` seeds the draw."""
    lengths = documents.lengths
    count = int(1.3 * samples * seq_len / lengths.mean) + 64
    drawn = lengths.sample(count, number)
    while drawn.sum() < samples * seq_len:
        count *= 2
        drawn = lengths.sample(count, number)
    return part_of(concatenate(drawn, seq_len, drop_last=True), 0, samples)


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


@lru_cache(maxsize=512)
def gained(
    documents: Documents,
    policies: tuple[str, ...],
    hidden: int,
    seq_len: int,
    dp: int,
    pp: int,
    micro_batches: int,
    in_layers: bool = False,
    batches: int = 6,
) -> Gain:
    """Compare policies on the same batches."""
    found = setting(hidden, seq_len, dp, pp, micro_batches, in_layers)
    return gain(found, documents.lengths, policies, batches)


@lru_cache(maxsize=64)
def telechat_gain(documents: Documents, policy: str, seq_len: int = 8192, batches: int = 10) -> Gain:
    """Gain of one policy in TeleChat3-36B's published layout, or the same stretched to longer sequences."""
    return packing_gain(telechat3_36b(seq_len), documents.lengths, policies=(policy,), batches=batches)


# --- tables -------------------------------------------------------------------------------------------------


def documents_by_length() -> Table:
    """Say which share of the real documents, of their tokens and of their causal pairs is shorter than a length."""
    drawn = Documents().lengths.sample(100_000)
    rows = []
    for limit in (1024, 4096, 8192, 32768, 65536):
        below = shares_below(drawn, limit)
        rows.append((f"{limit:,}", *(f"{share:.1%}" for share in below)))
    title = f"{drawn.size:,} documents drawn; mean {drawn.mean():,.0f} tokens, longest {drawn.max():,}"
    return Table(title, ("shorter than", "documents", "tokens", "causal pairs"), tuple(rows))


def context_splits(lengths: tuple[int, ...] = (4, 12), cp: int = 2) -> Table:
    """Work of context ranks under each way to split a packed sample."""
    rows = []
    for how in HOWS:
        found = split(lengths, cp, how)
        sums = (found.pairs, found.tokens, found.stretches)
        rows.append((how, *(str(x.tolist()) for x in sums), f"{found.imbalance:.3f}"))
    header = ("way", "pairs of ranks", "tokens", "stretches", "max / mean")
    return Table(f"documents {list(lengths)} over {cp} context ranks", header, tuple(rows))


def policies_compared(
    hidden: int = 4096, seq_len: int = 32768, dp: int = 64, micro_batches: int = 8, batches: int = 20
) -> Table:
    """Compare policies on the real documents: how far above the bound, and what the step gains."""
    names = ("as given", "longest-first", "karmarkar-karp", "balanced", BY_WORK)
    found = gained(Documents(), names, hidden, seq_len, dp, 1, micro_batches, batches=batches)
    rows = []
    for it in found.policies:
        above = "" if it.policy == BY_WORK else f"{100 * (it.imbalance / found.lower_bound - 1).mean():.2f}%"
        low, high = np.quantile(it.speedup, [0.05, 0.95])
        row = (f"{it.imbalance.mean():.3f}", above, f"{it.waiting_share.mean():.1%}")
        rows.append((it.policy, *row, f"{it.speedup.mean():.3f}", f"{low:.3f} to {high:.3f}"))
    rows.append(
        ("no assignment below", f"{found.lower_bound.mean():.3f}", "", "", f"{found.even.mean():.3f}", "")
    )
    header = ("policy", "max / mean", "over bound", "waiting", "speed-up", "5 to 95 % of batches")
    title = f"{batches} batches of {dp} ranks x {micro_batches} samples of {seq_len:,} tokens, hidden size {hidden:,}"
    return Table(title, header, tuple(rows))


def proved(ranks: int = 4, micro_batches: int = 4, batches: int = 5, seq_len: int = 32768) -> Table:
    """Put policies beside the integer program on batches small enough to be proved."""
    of = setting(4096, seq_len, ranks, 1, micro_batches)
    rows = []
    for number in range(batches):
        one = batch(Documents(), seq_len, ranks * micro_batches, number)
        found = {p: arranged(one, of, p) for p in ("as given", "longest-first", "balanced", "optimal")}
        work = found["as given"].sample_s
        bound = lower_bound(work, ranks, micro_batches) * ranks / work.sum()
        over = [f"{it.rank_s.max() / it.rank_s.mean():.4f}" for it in found.values()]
        rows.append((str(number), *over, f"{bound:.4f}"))
    header = ("batch", "as given", "longest-first", "balanced", "optimal", "lower bound")
    title = f"slowest rank over the mean; {ranks} ranks x {micro_batches} samples of {seq_len:,} tokens"
    return Table(title, header, tuple(rows))


def published(batches: int = 60) -> Table:
    """Put WLB-LLM's published figures beside ours; of a speed-up, also the error of what it gains."""
    from telekit.validation.packing import packing_rows

    rows = []
    for row in packing_rows(batches):
        if row.id.startswith("wlb_") and row.published is not None and row.found is not None:
            error = f"{row.found / row.published - 1:+.1%}"
            gain = "" if row.gain_error is None else f"{row.gain_error:+.0%}"
            left_open = "" if row.between is None else "{:.2f} to {:.2f}".format(*row.between)
            figures = (row.what, f"{row.published:g}", f"{row.found:.3g}", error, gain, left_open)
            rows.append((*figures, row.status))
    title = f"WLB-LLM, eight configurations, {batches} batches each; reproduced: 15 %, of a speed-up what it gains"
    header = ("figure", "published", "ours", "error", "of the gain", "by settings", "verdict")
    return Table(title, header, tuple(rows))


def telechat_runs(batches: int = 40, policy: str = "balanced") -> Table:
    """Gain in TeleChat3-36B's published layout, and the same stretched to longer sequences.

    *Balancing* moves samples between ranks, *ordering* only orders the micro-batches of each rank's pipeline.
    """
    rows = []
    for seq_len in (8192, 32768, 131072):
        layout = telechat3_36b(seq_len).layout
        found = telechat_gain(Documents(), policy, seq_len, batches)
        it, before = found[policy], found["as given"]
        low, high = np.quantile(it.speedup, [0.05, 0.95])
        ranks = (before.imbalance.mean(), it.imbalance.mean(), found.lower_bound.mean())
        gains = (it.unordered.mean(), found[ORDERED].speedup.mean(), it.speedup.mean())
        where = (f"{seq_len:,}", str(layout.dp), str(layout.cp))
        last = (f"{low:.3f} to {high:.3f}", f"{found.even.mean():.3f}")
        rows.append((*where, *(f"{x:.3f}" for x in (*ranks, *gains)), *last))
    header = (
        "sequence",
        "dp",
        "cp",
        "before",
        "after",
        "bound",
        "balancing",
        "ordering",
        "both",
        "5 to 95 %",
        "all alike",
    )
    title = (
        f"TP 8, PP 2, 4 micro-batches, {batches} batches; before, after, bound: busiest rank over the mean; "
        "then times as many tokens a second"
    )
    return Table(title, header, tuple(rows))


def other_methods() -> Table:
    """Count what becomes of the published rows of other methods, which lack what a model would need."""
    from telekit.validation.packing import packing_rows

    rows = []
    every = packing_rows()
    for name, start in (("HBP", "hbp_"), ("FlexSP", "flexsp_"), ("ChunkFlow", "chunkflow_")):
        status = [row.status for row in every if row.id.startswith(start)]
        counts = [status.count(said) for said in ("reproduced", "consistent", "input", "left out")]
        rows.append((name, str(len(status)), *map(str, counts)))
    header = ("method", "figures", "modelled", "agree with each other", "taken as given", "left out")
    return Table("published figures of other methods", header, tuple(rows))
