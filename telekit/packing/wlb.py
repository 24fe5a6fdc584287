"""WLB-LLM's three schemes on a stream of documents: how fast each runs, and how far apart its micro-batches are.

- ``plain-4d``: documents laid end to end and cut; context ranks split each sample whole (per sequence).
- ``fixed-4d``: the pieces of one global batch packed anew into samples of the same length, longest first to the one of
  least work; what finds no room is cut. Split per sequence.
- ``wlb-llm``: samples of any length up to a cap, alike in work; the longest documents wait until there is one for each
  micro-batch (outlier delay); each sample is split per sequence or per document, whichever its slowest rank likes more.

Source: arXiv 2503.17924. What the paper's published rows leave open is an argument here, with its default said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.packing.context import How, TileCost, choose, split, triangle
from telekit.packing.gain import Setting, part_of
from telekit.packing.pack import Packed, by_work, concatenate
from telekit.packing.step import run_step

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCHEMES = ("plain-4d", "fixed-4d", "wlb-llm")
LEVELS = (0.25, 0.5)
"""Shares of the context from which a document is an outlier, a queue each. Assumed: the rows do not say."""
CAP = 2.0
"""Most tokens of a variable-length sample, over the context. Assumed: the rows do not say what memory allowed."""
TILE = 128
"""Queries and keys of a tile of the attention kernel (flash attention's on H100)."""


@dataclass
class OutlierDelay:
    """Queues in which long documents wait until there is one for each micro-batch.

    Attributes
    ----------
    thresholds : tuple of int
        Lengths from which documents wait in the first, second, ... queue; rising.
    micro_batches : int
        A queue releases multiples of so many documents.
    """

    thresholds: tuple[int, ...]
    micro_batches: int
    waiting: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = [[] for _ in self.thresholds]

    def take(self, lengths: Ints) -> Ints:
        """Let documents in (documents,); return those to be packed now."""
        level = np.searchsorted(self.thresholds, lengths, side="right")
        for k, queue in enumerate(self.waiting, 1):
            queue += lengths[level == k].tolist()
        now = [lengths[level == 0]]
        for queue in self.waiting:
            ready = len(queue) // self.micro_batches * self.micro_batches
            now.append(np.array(queue[:ready], dtype=np.int64))
            del queue[:ready]
        return np.concatenate(now)

    @property
    def tokens(self) -> int:
        """Tokens that wait."""
        return sum(map(sum, self.waiting))


@dataclass(frozen=True)
class SchemeRun:
    """One scheme over all global batches; arrays (batches,).

    Attributes
    ----------
    scheme : str
        A name of :data:`SCHEMES`.
    step_s, tokens : array
        Seconds and tokens of each step.
    pairs_imbalance, work_imbalance : array
        Causal pairs, and seconds of work spread evenly over context ranks, of the largest micro-batch over the mean.
    longest : int
        Tokens of the longest sample.
    """

    scheme: str
    step_s: Floats
    tokens: Floats
    pairs_imbalance: Floats
    work_imbalance: Floats
    longest: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all steps over their time."""
        return float(self.tokens.sum() / self.step_s.sum())


def compare(
    setting: Setting,
    cp: int,
    lengths: Ints,
    batches: int,
    levels: tuple[float, ...] = LEVELS,
    cap: float = CAP,
) -> dict[str, SchemeRun]:
    """Run the schemes on the same documents.

    Parameters
    ----------
    setting : Setting
        The job; its attention is full and causal, and a micro-batch is one sample.
    cp : int
        Context-parallel ranks.
    lengths : array (documents,)
        Documents in the order they come, enough for all batches.
    batches : int
        Global batches.
    levels, cap
        As :data:`LEVELS` and :data:`CAP`.
    """
    packed = concatenate(lengths, setting.seq_len, drop_last=True)
    runs = {name: _Runner(setting, cp, packed) for name in SCHEMES}
    thresholds = tuple(int(share * setting.seq_len) for share in levels)
    delay, rest = OutlierDelay(thresholds, setting.samples), np.zeros(0, dtype=np.int64)
    for batch in range(batches):
        one = part_of(packed, batch * setting.samples, setting.samples)
        runs["plain-4d"].add(one.rows())
        runs["fixed-4d"].add(fixed_length(one, runs["fixed-4d"].work_of))
        ready = np.concatenate([rest, delay.take(one.lengths)])
        varied = by_work(
            ready, int(cap * setting.seq_len), setting.samples, runs["wlb-llm"].work_of, carry_over=True
        )
        rest = ready[varied.left]
        runs["wlb-llm"].add(varied.rows(), adaptive=True)
    return {name: runner.result(name) for name, runner in runs.items()}


def fixed_length(one: Packed, work_of: Any) -> list[Ints]:
    """Pack the pieces of full samples anew into as many full samples, alike in work; what finds no room is cut.

    Parameters
    ----------
    one : Packed
        Samples without padding.
    work_of : callable
        Work of pieces (pieces,).

    Returns
    -------
    list of arrays
        Pieces of each sample.
    """
    again = by_work(one.lengths, one.seq_len, one.samples, work_of, carry_over=True)
    rows = [row.tolist() for row in again.rows()]
    room = again.padding.tolist()
    for length in one.lengths[again.left].tolist():
        while length:
            widest = int(np.argmax(room))
            taken = min(length, room[widest])
            rows[widest].append(taken)
            room[widest] -= taken
            length -= taken
    return [np.array(row, dtype=np.int64) for row in rows]


class _Runner:
    """Times global batches of one scheme, and collects what they took."""

    def __init__(self, setting: Setting, cp: int, usual: Packed) -> None:
        self.setting, self.cp = setting, cp
        whole = np.array([setting.seq_len])
        pairs = int(triangle(whole)[0])
        mixing = setting.work.mixing_s(usual.lengths)
        self.token_s = []  # of a token, by part (chunks, stages): all but attention
        self.pair_s = []  # of a pair on one context rank: attention, the mean over stages
        for times, one, mixed in zip(
            setting.times_s(usual), setting.work.mixing_s(whole), mixing, strict=True
        ):
            self.pair_s.append(float(one[0]) / pairs * cp)
            attention = mixed.sum() / times.shape[1]
            self.token_s.append((times.sum(axis=0) - attention) / usual.tokens.sum())
        self.rows: list[tuple[float, ...]] = []
        self.longest = 0

    def work_of(self, lengths: Ints) -> Floats:
        """Seconds of documents (pieces,) on a mean stage, both passes, spread evenly over context ranks."""
        token = sum(float(x.sum(axis=0).mean()) for x in self.token_s)
        return np.asarray(token * lengths + sum(self.pair_s) / self.cp * triangle(lengths))

    def add(self, samples: list[Ints], adaptive: bool = False) -> None:
        """Time one step of these samples, one a micro-batch."""
        tokens = np.array([int(row.sum()) for row in samples])
        pairs = np.array([int(triangle(row).sum()) for row in samples], dtype=np.float64)
        work = np.array([self.work_of(row).sum() for row in samples])
        busiest = np.array([self._pairs(row, adaptive) for row in samples])
        ranks, micro_batches = self.setting.ranks, self.setting.micro_batches
        forward, backward = (
            (tokens[:, None, None] * token + (busiest * pair)[:, None, None] / len(token)).reshape(
                ranks, micro_batches, *token.shape
            )
            for token, pair in zip(self.token_s, self.pair_s, strict=True)
        )
        step = run_step(forward, backward, self.setting.plan, by_part=True)
        spread = pairs.max() / pairs.mean(), work.max() / work.mean()
        self.rows.append((step.step_s, float(tokens.sum()), *spread))
        self.longest = max(self.longest, int(tokens.max()))

    def _pairs(self, row: Ints, adaptive: bool) -> float:
        """Pairs in the tiles of the busiest context rank, masked ones included."""
        cost = TileCost(TILE)
        how: How = choose(row, self.cp, cost) if adaptive and self.cp > 1 else "per-sequence"
        return float(cost(split(row, self.cp, how)).max())

    def result(self, name: str) -> SchemeRun:
        """All steps."""
        step, tokens, pairs, work = np.array(self.rows).T
        return SchemeRun(name, step, tokens, pairs, work, self.longest)
