"""What balancing gains: policies on the same global batches, each against samples as given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad
from telekit.job import Job
from telekit.packing.balance import lower_bound
from telekit.packing.inputs import counts
from telekit.packing.pack import Packed, by_work, concatenate
from telekit.packing.policies import AS_GIVEN, BY_WORK, ORDERED, arrange, checked_policies
from telekit.packing.step import Plan, order_micro_batches, run_step
from telekit.packing.work import WorkModel
from telekit.training.documents import LengthDistribution, checked_lengths

Floats = NDArray[np.float64]
Times = tuple[Floats, Floats]

USUAL = (AS_GIVEN, "longest-first", "karmarkar-karp", "balanced", BY_WORK)
"""Policies that are compared when nothing is said; ``optimal`` takes seconds for each batch."""
ROOM = 1.25
"""Tokens that a sample packed by work may hold, over those of a usual one: memory must have room. Assumed."""
MOST_SAMPLES = 2**22
"""Most samples that are compared in one call."""


@dataclass(frozen=True)
class Setting:
    """A job as balancing sees it.

    Attributes
    ----------
    work : WorkModel
        Seconds of samples on each stage.
    ranks, micro_batches, micro_batch : int
        Data-parallel ranks, micro-batches of each in a step, samples of a micro-batch.
    plan : Plan
        Pipeline, and where ranks meet.
    assumptions : tuple of str
        What was taken for granted to come here.
    """

    work: WorkModel
    ranks: int
    micro_batches: int
    micro_batch: int = 1
    plan: Plan = field(default_factory=Plan)
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job, comm_s: float = 0.0, fixed_s: float = 0.0) -> Setting:
        """Read a job with a valid layout; ``comm_s`` and ``fixed_s`` as in :class:`~telekit.packing.step.Plan`."""
        assert job.layout.dp is not None
        plan = Plan.of(job.layout, comm_s, fixed_s)
        return cls(WorkModel.of(job), job.layout.dp, job.micro_batches, job.layout.micro_batch, plan)

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""
        return self.work.seq_len

    @property
    def samples(self) -> int:
        """Samples of a global batch."""
        return self.ranks * self.micro_batches * self.micro_batch

    def times_s(self, packed: Packed) -> Times:
        """Forward and backward seconds of usual samples by part, both (samples, chunks, stages)."""
        return self.work.stages_s(packed)

    def varied_s(self, packed: Packed, usual: Times) -> Times:
        """Seconds of samples that differ in tokens, both (samples, chunks, stages); padding takes none.

        Parts share a sample's time as on average in ``usual``, what :meth:`times_s` gives of the same documents.
        """
        each = self.work.forward_s(packed.lengths), self.work.backward_s(packed.lengths)
        forward, backward = (
            packed.per_sample(seconds)[:, None, None] * (u.mean(axis=0) / u.sum(axis=1).mean())
            for seconds, u in zip(each, usual, strict=True)
        )
        return forward, backward


@dataclass(frozen=True)
class PolicyGain:
    """One policy on every batch; arrays (batches,).

    Attributes
    ----------
    policy : str
        Name.
    step_s : array
        Seconds of the step.
    speedup : array
        Tokens a second over those of the samples as given, its micro-batches ordered where that was asked for.
    unordered : array
        The same with micro-batches in the order that they came in: what the assignment gains alone.
    imbalance : array
        Work of the busiest rank over the mean.
    waiting_share : array
        Share of the step that a mean rank waits for others (in layers, or at the gradient reduction).
    """

    policy: str
    step_s: Floats
    speedup: Floats
    unordered: Floats
    imbalance: Floats
    waiting_share: Floats

    def to_dict(self) -> dict[str, Any]:
        """Means and spreads, for JSON; ``ordering`` is the factor of ordering alone, on top of the assignment."""
        low, high = np.quantile(self.speedup, [0.05, 0.95])
        return {
            "policy": self.policy,
            "speedup": float(self.speedup.mean()),
            "speedup_std": float(self.speedup.std(ddof=1)) if self.speedup.size > 1 else 0.0,
            "speedup_q05": float(low),
            "speedup_q95": float(high),
            "speedup_unordered": float(self.unordered.mean()),
            "ordering": float((self.speedup / self.unordered).mean()),
            "imbalance": float(self.imbalance.mean()),
            "waiting_share": float(self.waiting_share.mean()),
            "step_s": float(self.step_s.mean()),
        }


@dataclass(frozen=True)
class Gain:
    """Policies compared on the same batches.

    Attributes
    ----------
    policies : tuple of PolicyGain
        The samples as given first.
    lower_bound : array (batches,)
        Imbalance that no assignment of whole samples goes below.
    even : array (batches,)
        Speed-up if all samples of a batch were alike. With one stage no assignment of whole samples goes above it;
        with more a good order can, for small micro-batches at both ends fill and drain a pipeline sooner.
    batches, tokens : int
        Global batches, and tokens of one.
    assumptions : tuple of str
        What was taken for granted.
    """

    policies: tuple[PolicyGain, ...]
    lower_bound: Floats
    even: Floats
    batches: int
    tokens: int
    assumptions: tuple[str, ...]

    def __getitem__(self, policy: str) -> PolicyGain:
        """One policy by name."""
        for found in self.policies:
            if found.policy == policy:
                return found
        raise bad("policy", policy, f"was not compared: {', '.join(p.policy for p in self.policies)}")

    def rows(self) -> list[dict[str, Any]]:
        """One row a policy: means and spreads."""
        return [found.to_dict() for found in self.policies]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "policies": self.rows(),
            "imbalance_before": float(self.policies[0].imbalance.mean()),
            "lower_bound": float(self.lower_bound.mean()),
            "speedup_if_even": float(self.even.mean()),
            "batches": self.batches,
            "tokens": self.tokens,
            "assumptions": list(self.assumptions),
        }

    def text(self) -> str:
        """Say it in lines for a person."""
        head = (
            f"{'policy':<18}{'speed-up':>9}{'+-':>8}{'5 %':>8}{'95 %':>8}{'assignment':>12}{'ordering':>10}"
            f"{'imbalance':>11}{'waiting':>9}"
        )
        lines = [
            f"{r['policy']:<18}{r['speedup']:>9.4f}{r['speedup_std']:>8.4f}{r['speedup_q05']:>8.4f}"
            f"{r['speedup_q95']:>8.4f}{r['speedup_unordered']:>12.4f}{r['ordering']:>10.4f}"
            f"{r['imbalance']:>11.4f}{r['waiting_share']:>9.2%}"
            for r in self.rows()
        ]
        ends = [
            "Speed-up is that of the assignment times that of ordering micro-batches.",
            f"No assignment is below imbalance {self.lower_bound.mean():.4f}.",
            f"Samples all alike would be {self.even.mean():.4f} times as fast.",
            "Assumed:",
        ]
        return "\n".join([head, *lines, *ends, *(f"  - {line}" for line in self.assumptions)])


def gain(
    setting: Setting,
    lengths: LengthDistribution | ArrayLike,
    policies: tuple[str, ...] = USUAL,
    batches: int = 20,
    seed: int = 0,
    order: bool = True,
    room: float = ROOM,
    progress: Callable[[int, int, str], None] | None = None,
) -> Gain:
    """Compare policies on global batches of documents laid end to end.

    Parameters
    ----------
    setting : Setting
        The job.
    lengths : LengthDistribution or array (documents,)
        Where documents come from; an array must hold enough tokens.
    policies : tuple of str
        Names of :data:`telekit.packing.policies.POLICIES`.
    batches, seed : int
        Global batches, and what they are drawn with.
    order : bool
        Whether each rank's micro-batches are put in the order that its pipeline takes best. Samples as given never
        are; with more stages than one, ``as given, ordered`` is compared beside them.
    room : float
        Tokens that a sample packed ``by work`` holds at most, over ``seq_len``.
    progress : callable, optional
        Told (done, total, what).

    Raises
    ------
    InputError
        For unknown policies, no batches, too few documents, or numbers that the schedule forbids.
    """
    ordered = (ORDERED,) if order and setting.plan.stages > 1 else ()
    names = tuple(dict.fromkeys((AS_GIVEN, *ordered, *checked_policies(policies))))
    packed = _drawn(setting, lengths, batches, seed)
    size = setting.samples
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    bounds, even = [], []
    for batch in range(batches):
        one = part_of(packed, batch * size, size)
        times = setting.times_s(one)
        work = _mean_stage_s(times)
        per_rank = setting.micro_batches * setting.micro_batch
        bounds.append(lower_bound(work, setting.ranks, per_rank) * setting.ranks / work.sum())
        for name in names:
            rows[name].append(_tried(setting, name, one, times, order, room))
        alike = np.tile(times[0].mean(axis=0), (size, 1, 1)), np.tile(times[1].mean(axis=0), (size, 1, 1))
        even.append(rows[AS_GIVEN][-1][0] / _step(setting, AS_GIVEN, alike, False)[0])
        if progress:
            progress(batch + 1, batches, "batches")
    base = np.array(rows[AS_GIVEN])
    found = tuple(_gain_of(name, np.array(rows[name]), base) for name in names)
    return Gain(
        found, np.array(bounds), np.array(even), batches, size * setting.seq_len, _said(setting, order, room)
    )


def _gain_of(name: str, rows: Floats, base: Floats) -> PolicyGain:
    step, imbalance, waiting, unordered, tokens = rows.T
    speedup, alone = (base[:, 0] / s * tokens / base[:, 4] for s in (step, unordered))
    return PolicyGain(name, step, speedup, alone, imbalance, waiting)


def _mean_stage_s(times: Times) -> Floats:
    """Seconds of each sample on a stage, the mean over stages, shape (samples,)."""
    forward, backward = times
    return np.asarray((forward + backward).sum(axis=1).mean(axis=1))


def _tried(
    setting: Setting, name: str, one: Packed, times: Times, order: bool, room: float
) -> tuple[float, ...]:
    """Step, imbalance, waiting share, step unordered and tokens of one batch under one policy."""
    tokens = int(one.tokens.sum())
    if name == BY_WORK:
        most = int(setting.seq_len * room)
        again = by_work(one.lengths, most, setting.samples, setting.work.seconds, carry_over=True)
        times, tokens = setting.varied_s(again, times), int(again.tokens.sum())
    return (*_step(setting, name, times, order and name != AS_GIVEN), tokens)


def _step(setting: Setting, name: str, times: Times, order: bool) -> tuple[float, float, float, float]:
    """Step, imbalance of ranks, share of waiting for other ranks, and the step with nothing ordered."""
    work = _mean_stage_s(times)
    chosen = arrange(name, work, setting.ranks, setting.micro_batches, setting.micro_batch)
    forward, backward = (t[chosen].sum(axis=2) for t in times)
    step = run_step(forward, backward, setting.plan, by_part=True)
    unordered = float(step.step_s)
    if order and setting.plan.stages > 1:
        found = order_micro_batches(forward, backward, setting.plan, by_part=True)
        taken = np.arange(len(found))[:, None], found
        step = run_step(forward[taken], backward[taken], setting.plan, by_part=True)
    waiting = (step.layer_wait_s + step.reduce_wait_s).mean() / step.step_s
    return float(step.step_s), float(step.imbalance), float(waiting), unordered


def part_of(packed: Packed, first: int, samples: int) -> Packed:
    """Take some samples of what was packed, one after the other."""
    a, b = np.searchsorted(packed.sample, [first, first + samples])
    inside = slice(int(a), int(b))
    return Packed(
        packed.seq_len,
        packed.lengths[inside],
        packed.sample[inside] - first,
        packed.source[inside],
        samples,
        packed.left[:0],
    )


def _drawn(setting: Setting, lengths: LengthDistribution | ArrayLike, batches: int, seed: int) -> Packed:
    """Pack documents into the samples of all batches."""
    if not counts(batches) or batches * setting.samples > MOST_SAMPLES:
        rule = f"must be from 1 to {max(MOST_SAMPLES // setting.samples, 1):,} batches of {setting.samples:,} samples"
        raise bad("batches", batches, rule, "20 works")
    needed = batches * setting.samples * setting.seq_len
    if isinstance(lengths, LengthDistribution):
        count = int(needed / lengths.mean * 1.05) + 64
        drawn = lengths.sample(count, seed)
        while drawn.sum() < needed:
            count = 2 * count
            drawn = lengths.sample(count, seed)
    else:
        drawn = checked_lengths(lengths)
    packed = concatenate(drawn, setting.seq_len, drop_last=True)
    if packed.samples < batches * setting.samples:
        rule = f"fill {packed.samples:,} samples; {batches} batches take {batches * setting.samples:,}"
        fewer = packed.samples // setting.samples
        hint = f"batches {fewer} works" if fewer else "more documents, or fewer ranks and micro-batches"
        raise InputError([Problem("lengths", f"{drawn.size:,} documents", rule, hint)])
    return packed


def _said(setting: Setting, order: bool, room: float) -> tuple[str, ...]:
    said = [
        "Documents are laid end to end and cut into samples; attention stays inside a document.",
        "A policy sees one global batch and moves whole samples, so the optimizer sees the same ones. By work packs "
        f"the batch's pieces anew into samples of at most {room:g} times the tokens.",
        setting.plan.why,
    ]
    if order and setting.plan.stages > 1:
        said.append(
            "All but the samples as given also order each rank's micro-batches by its simulated pipeline; what that "
            "gains is apart, and as given, ordered has it alone."
        )
    return (*said, *setting.assumptions)
