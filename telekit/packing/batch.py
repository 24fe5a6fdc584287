"""One global batch, packed and balanced: what ``telekit pack`` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, bad
from telekit.layout.repairs import nearest_divisor
from telekit.packing.balance import lower_bound
from telekit.packing.context import How, split
from telekit.packing.gain import ROOM, Setting, part_of
from telekit.packing.inputs import check_counts
from telekit.packing.pack import Packed, best_fit, by_work, concatenate, first_fit, next_fit
from telekit.packing.policies import AS_GIVEN, BY_WORK, arrange, checked_policies
from telekit.packing.step import Step, order_micro_batches, run_step
from telekit.training.documents import MAX_LENGTH, checked_lengths

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PACKERS: dict[str, Callable[[ArrayLike, int], Packed]] = {
    "concatenate": lambda lengths, seq_len: concatenate(lengths, seq_len, drop_last=True),
    "best-fit": best_fit,
    "first-fit": first_fit,
    "next-fit": next_fit,
}
"""How documents become samples; concatenating cuts them, the others keep what fits a sample whole."""
SPLIT: How = "per-sequence"
"""How context ranks share a sample where no job says what things cost."""


@dataclass(frozen=True)
class Batch:
    """A balanced global batch.

    Attributes
    ----------
    policy : str
        A name of :data:`telekit.packing.policies.POLICIES`.
    packed : Packed
        The samples that are assigned.
    assignment : array (ranks, micro_batches, micro_batch)
        Samples of each micro-batch of each data-parallel rank, in the order they run.
    imbalance_before, imbalance_after, lower_bound : float
        Work of the busiest rank over the mean: of the samples as they came, of these, and what no assignment of these
        goes below.
    samples_left, documents_left : int
        Samples beyond one global batch, and documents that found no room (by work).
    unit : str
        What work was counted in.
    before, after : Step or None
        The steps, where a job says what things cost.
    assumptions : tuple of str
        What was taken for granted.
    tokens : (int, int)
        Of the samples as they came, and of these; they differ where documents are left.
    """

    policy: str
    packed: Packed
    assignment: Ints
    imbalance_before: float
    imbalance_after: float
    lower_bound: float
    samples_left: int
    documents_left: int
    unit: str
    before: Step | None
    after: Step | None
    assumptions: tuple[str, ...]
    tokens: tuple[int, int]

    @property
    def speedup(self) -> float | None:
        """Tokens a second over those of the samples as they came; None without a job."""
        if self.before is None or self.after is None:
            return None
        return float(self.before.step_s / self.after.step_s) * self.tokens[1] / self.tokens[0]

    @property
    def in_layers(self) -> bool:
        """Whether ranks meet in every layer, so that a rank's sum of work says little of the step."""
        return self.after is not None and self.after.plan.meets == "layer"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {
            "policy": self.policy,
            "imbalance_before": self.imbalance_before,
            "imbalance_after": self.imbalance_after,
            "lower_bound": self.lower_bound,
            "work_unit": self.unit,
            "samples": self.packed.samples,
            "samples_left": self.samples_left,
            "tokens_before": self.tokens[0],
            "tokens_after": self.tokens[1],
            "documents_left": self.documents_left,
            "padding_share": 0.0 if self.policy == BY_WORK else self.packed.padding_share,
            "assignment": self.assignment.tolist(),
            "documents": [
                np.unique(self.packed.source[self.packed.sample == i]).tolist()
                for i in range(self.packed.samples)
            ],
            "assumptions": list(self.assumptions),
        }
        if self.before and self.after:
            found |= {
                "step_before": self.before.to_dict(),
                "step_after": self.after.to_dict(),
                "speedup": self.speedup,
            }
        return found

    def text(self) -> str:
        """Say it in lines for a person."""
        ranks, micro_batches, micro_batch = self.assignment.shape
        most = "up to " if self.policy == BY_WORK else ""
        lines = [
            f"{self.packed.samples} samples of {most}{self.packed.seq_len:,} tokens on {ranks} ranks of "
            f"{micro_batches} micro-batches of {micro_batch}",
            f"left over             {self.samples_left} samples, {self.documents_left} documents",
            f"imbalance before      {self.imbalance_before:.4f}",
            f"imbalance after       {self.imbalance_after:.4f}  ({self.policy})",
            f"lower bound           {self.lower_bound:.4f}  (of a rank's sum of work over the mean, in any assignment)",
            *self._steps(),
        ]
        rows = [
            " ".join("+".join(map(str, micro.tolist())) for micro in rank) for rank in self.assignment[:16]
        ]
        lines += [f"rank {i:<4} runs samples {row}" for i, row in enumerate(rows)]
        if ranks > len(rows):
            lines.append(f"... {ranks - len(rows)} more ranks (--json has them)")
        return "\n".join([*lines, "Assumed:", *(f"  - {line}" for line in self.assumptions)])

    def _steps(self) -> list[str]:
        """Say what the steps take, by tokens where documents are left, and what they depend on."""
        if self.before is None or self.after is None:
            return []
        before, after = float(self.before.step_s), float(self.after.step_s)
        lines = [f"step                  {before:.4g} s -> {after:.4g} s"]
        if self.tokens[0] != self.tokens[1]:
            lines.append(f"tokens                {self.tokens[0]:,} -> {self.tokens[1]:,}")
        lines.append(f"tokens a second       {self.speedup:.4f} times")
        if self.in_layers:
            waits = [float(s.layer_wait_s.mean() / s.step_s) for s in (self.before, self.after)]
            lines += [
                f"waiting in layers     {waits[0]:.2%} -> {waits[1]:.2%} of the step, a mean rank",
                "Ranks meet in every layer: the step follows the slowest of each micro-batch; imbalance and bound are "
                "of ranks' sums, and do not bound it.",
            ]
        return lines


def balance_batch(
    lengths: ArrayLike,
    seq_len: int,
    ranks: int,
    micro_batches: int,
    cp: int = 1,
    policy: str | None = None,
    packer: str = "concatenate",
    cut: bool = False,
    setting: Setting | None = None,
) -> Batch:
    """Pack documents and balance the first global batch of samples.

    Parameters
    ----------
    lengths : array (documents,)
        Tokens of each document.
    seq_len : int
        Tokens of a sample.
    ranks, micro_batches : int
        Data-parallel ranks, micro-batches of each.
    cp : int
        Context ranks; without a job the busiest one's pairs count, of a sample split per sequence. ``2 * cp`` divides
        the sample.
    policy : str, optional
        A name of :data:`~telekit.packing.policies.POLICIES`; ``alike`` where the job's ranks meet in every layer,
        else ``balanced``, when nothing is said.
    packer : str
        A name of :data:`PACKERS`.
    cut : bool
        Whether documents longer than a sample are cut, and not refused.
    setting : Setting, optional
        A job; without it work is counted in causal pairs.

    Raises
    ------
    InputError
        For lengths, counts and names that do not work, and for fewer samples than the ranks take.
    """
    policy = _usual(setting) if policy is None else checked_policies((policy,))[0]
    if packer not in PACKERS:
        raise bad("pack", packer, f"must be one of {', '.join(PACKERS)}")
    checked_counts(seq_len=seq_len, dp=ranks, micro_batches=micro_batches, cp=cp)
    check_context(int(seq_len), int(cp))
    shape = ranks, micro_batches, setting.micro_batch if setting else 1
    one, samples_left = _first_batch(lengths, seq_len, shape, packer, cut)
    times = _times(one, cp, setting)
    work = sum(t.sum(axis=1).mean(axis=1) for t in times)
    before = arrange(AS_GIVEN, work, *shape)
    imbalance_before, step_before = _run(times, before, setting)
    again, own = (one, times) if policy != BY_WORK else _packed_by_work(one, cp, setting, times)
    work = sum(t.sum(axis=1).mean(axis=1) for t in own)
    bound = lower_bound(work, ranks, shape[1] * shape[2]) * ranks / float(work.sum())
    after = arrange(policy, work, *shape)
    if setting and policy != AS_GIVEN:
        forward, backward = (t[after].sum(axis=2) for t in own)
        order = order_micro_batches(forward, backward, setting.plan, by_part=True)
        after = np.take_along_axis(after, order[..., None], axis=1)
    imbalance_after, step_after = _run(own, after, setting)
    unit = "seconds" if setting else "causal pairs" + (" of the busiest context rank" if cp > 1 else "")
    return Batch(
        policy, again, after, imbalance_before, imbalance_after, bound, samples_left, again.left.size,
        unit, step_before, step_after, _said(policy, packer, cp, setting),
        (int(one.tokens.sum()), int(again.tokens.sum())),
    )  # fmt: skip


def _first_batch(
    lengths: ArrayLike, seq_len: int, shape: tuple[int, int, int], packer: str, cut: bool
) -> tuple[Packed, int]:
    """Pack documents; return the samples of one global batch, and how many are left."""
    found = checked_lengths(lengths)
    if not cut and (found > seq_len).any():
        raise _too_long(found, seq_len)
    every = PACKERS[packer](found, seq_len)
    ranks, micro_batches, micro_batch = shape
    each = micro_batches * micro_batch
    size = ranks * each
    if every.samples < size:
        rule = f"{ranks} ranks of {micro_batches} micro-batches of {micro_batch} take {size}; the documents fill fewer"
        fewer = every.samples // each
        hint = f"dp {fewer} works" if fewer else "more documents, or fewer micro-batches"
        raise bad("samples", every.samples, rule, hint)
    return part_of(every, 0, size), every.samples - size


def _run(times: tuple[Floats, Floats], chosen: Ints, setting: Setting | None) -> tuple[float, Step | None]:
    forward, backward = (t[chosen].sum(axis=2) for t in times)
    if setting is None:
        loads = forward.sum(axis=(1, 2, 3))
        return float(loads.max() / loads.mean()), None
    step = run_step(forward, backward, setting.plan, by_part=True)
    return float(step.imbalance), step


def _times(one: Packed, cp: int, setting: Setting | None) -> tuple[Floats, Floats]:
    """Forward and backward seconds of each sample by part; without a job pairs, and no backward."""
    if setting:
        return setting.times_s(one)
    pairs = np.array([split(row, cp, SPLIT).pairs.max() * cp if row.size else 0 for row in one.rows()], float)
    return pairs[:, None, None], np.zeros((one.samples, 1, 1))


def _packed_by_work(
    one: Packed, cp: int, setting: Setting | None, times: tuple[Floats, Floats]
) -> tuple[Packed, tuple[Floats, Floats]]:
    """Pack a batch's pieces anew; their sources stay the documents they came from."""
    most = int(one.seq_len * ROOM)
    work_of = setting.work.seconds if setting else lambda n: n * (n + 1) // 2
    found = by_work(one.lengths, most, one.samples, work_of, carry_over=True)
    again = Packed(
        most, found.lengths, found.sample, one.source[found.source], found.samples, one.source[found.left]
    )
    return again, setting.varied_s(again, times) if setting else _times(again, cp, None)


def checked_counts(**counts: int) -> None:
    """Raise an InputError of all counts that are none."""
    check_counts(MAX_LENGTH, **counts)


def check_context(seq_len: int, cp: int) -> None:
    """Refuse context ranks that do not cut a sample into two equal pieces each: a job's rule."""
    if cp > 1 and seq_len % (2 * cp):
        works = nearest_divisor(seq_len // 2, cp) if seq_len % 2 == 0 else 1
        rule = f"2 * cp must divide the sample ({seq_len} tokens) so that causal work is shared evenly"
        raise bad("cp", cp, rule, f"cp {works} works")


def _usual(setting: Setting | None) -> str:
    """Policy when nothing is said."""
    return "alike" if setting and setting.plan.meets == "layer" else "balanced"


def _too_long(lengths: Ints, seq_len: int) -> InputError:
    """Name the first document that a sample has no room for, and how many there are."""
    long = np.flatnonzero(lengths > seq_len)
    rule = f"is longer than a sample of {seq_len:,} tokens ({long.size:,} of {lengths.size:,} documents are)"
    hint = f"seq_len {int(lengths.max()):,} has room for all, or let them be cut (cut=True, --cut)"
    return bad(f"lengths[{long[0]}]", int(lengths[long[0]]), rule, hint)


def _said(policy: str, packer: str, cp: int, setting: Setting | None) -> tuple[str, ...]:
    said = [f"Documents become samples by {packer}; one global batch of them is balanced."]
    if policy == BY_WORK:
        said.append(
            f"By work packs that batch's pieces anew, into samples of up to {ROOM:g} times the tokens."
        )
    if setting:
        said += [setting.plan.why, *setting.assumptions]
    else:
        said.append("No job: work is counted in causal pairs, which is attention alone.")
        if cp > 1:
            said.append(f"A sample takes as long as its busiest of {cp} context ranks, split {SPLIT}.")
    return tuple(said)
