"""Policies by name: which data-parallel rank runs which samples of a global batch, and in which micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.packing.balance import as_given, balanced, karmarkar_karp, longest_first
from telekit.packing.inputs import check_counts, checked_work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OPTIMAL_LIMIT_S = 10.0
"""Seconds that the integer program may take for one global batch."""


def _as_given(work: Floats, ranks: int, per_rank: int) -> Ints:
    return as_given(work, ranks).rank


def _longest_first(work: Floats, ranks: int, per_rank: int) -> Ints:
    return longest_first(work, ranks, per_rank=per_rank).rank


def _karmarkar_karp(work: Floats, ranks: int, per_rank: int) -> Ints:
    return karmarkar_karp(work, ranks, per_rank=per_rank).rank


def _balanced(work: Floats, ranks: int, per_rank: int) -> Ints:
    return balanced(work, ranks, per_rank=per_rank).rank


def _optimal(work: Floats, ranks: int, per_rank: int) -> Ints:
    from telekit.packing.exact import optimal

    return optimal(work, ranks, per_rank=per_rank, time_limit_s=OPTIMAL_LIMIT_S)[0].rank


def _alike(work: Floats, ranks: int, per_rank: int) -> Ints:
    """Deal out samples in falling order of work: the k-th micro-batches of all ranks are neighbours in it."""
    rank = np.empty(work.size, dtype=np.int64)
    rank[np.argsort(-work, kind="stable")] = np.arange(work.size) % ranks
    return rank


AS_GIVEN = "as given"
ORDERED = "as given, ordered"
"""Samples as given, whose micro-batches are put in the order that each rank's pipeline takes best: what ordering alone
gains. Without a pipeline it is as given."""
BY_WORK = "by work"
"""Packs the batch's documents anew, so that samples agree in work (not in tokens); the others keep samples whole."""

POLICIES: dict[str, Callable[[Floats, int, int], Ints]] = {
    AS_GIVEN: _as_given,
    ORDERED: _as_given,
    "longest-first": _longest_first,
    "karmarkar-karp": _karmarkar_karp,
    "balanced": _balanced,
    "optimal": _optimal,
    "alike": _alike,
    BY_WORK: _balanced,
}
"""Rank of each sample from (work of samples, ranks, samples a rank). ``alike`` is the best there is where ranks meet in
every layer: among all ways to line up equally many samples it makes the sum of the slowest least."""


def checked_policies(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, or name those that are no policy."""
    wrong = [
        Problem("policy", name, f"must be one of {'; '.join(POLICIES)}", "balanced works")
        for name in names
        if not isinstance(name, str) or name not in POLICIES
    ]
    if wrong or not names:
        raise InputError(wrong or [Problem("policy", "none", "name at least one", "balanced works")])
    return names


def arrange(policy: str, work: ArrayLike, ranks: int, micro_batches: int, micro_batch: int = 1) -> Ints:
    """Give each rank its micro-batches.

    Parameters
    ----------
    policy : str
        A name of :data:`POLICIES`.
    work : array (ranks * micro_batches * micro_batch,)
        Work of each sample, in any one unit.
    ranks, micro_batches, micro_batch : int
        Data-parallel ranks, micro-batches of each, samples of a micro-batch.

    Returns
    -------
    array (ranks, micro_batches, micro_batch)
        Indices of samples. ``as given`` keeps their order (``as given, ordered`` too: ordering comes later);
        ``alike`` lines up falling micro-batches; the others leave the order inside a rank as the samples came.

    Raises
    ------
    InputError
        For an unknown policy, or samples that do not fill the micro-batches.
    """
    checked_policies((policy,))
    found = checked_work(work)
    check_counts(ranks=ranks, micro_batches=micro_batches, micro_batch=micro_batch)
    per_rank = micro_batches * micro_batch
    if found.shape != (ranks * per_rank,):
        rule = (
            f"{ranks} ranks of {micro_batches} micro-batches of {micro_batch} take {ranks * per_rank} samples"
        )
        raise InputError([Problem("samples", found.size, rule)])
    rank = POLICIES[policy](found, ranks, per_rank)
    order = np.argsort(-found, kind="stable") if policy == "alike" else np.arange(found.size)
    own = order[np.argsort(rank[order], kind="stable")].reshape(ranks, per_rank)
    if micro_batch == 1 or policy in (AS_GIVEN, ORDERED, "alike"):
        return own.reshape(ranks, micro_batches, micro_batch)
    grouped = []
    for samples in own:
        inside = longest_first(found[samples], micro_batches, per_rank=micro_batch).rank
        grouped.append(samples[np.argsort(inside, kind="stable")].reshape(micro_batches, micro_batch))
    return np.stack(grouped)
