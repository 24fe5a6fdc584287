"""Batches of indices for one data-parallel rank, balanced inside each global batch: a drop-in batch sampler.

It takes the place of a distributed sampler and torch's BatchSampler together:

    loader = DataLoader(dataset, batch_sampler=BalancedBatchSampler(len(dataset), work, 4, replicas=8, rank=rank))

All ranks draw the same order from the same seed and balance it alike, so that they agree without a word. Each global
batch holds the samples that it would hold unbalanced; only who computes them changes. torch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad
from telekit.packing.balance import Assignment, balanced
from telekit.packing.inputs import checked_work

Int = NDArray[np.int64]


_COUNTS = {"samples": 1, "batch_size": 1, "replicas": 1, "micro_batches": 1, "rank": 0, "seed": 0}


class Policy(Protocol):
    """Who computes which sample: `telekit.packing.balance` has several."""

    def __call__(self, work: ArrayLike, ranks: int, per_rank: int, /) -> Assignment:
        """Assign every rank exactly ``per_rank`` of the samples."""
        ...


class BalancedBatchSampler:
    """Lists of indices for this rank, one a micro-batch.

    Parameters
    ----------
    samples : int
        Samples of the data set.
    work : callable or (samples,) array
        Work of each sample, in any one unit. A callable takes indices (n,) and gives their work (n,).
    batch_size : int
        Samples of a micro-batch on one rank.
    replicas, rank : int
        Data-parallel ranks, and which of them this one is.
    micro_batches : int
        Micro-batches of one optimizer step; a global batch has ``batch_size * replicas * micro_batches`` samples. On
        every rank they come heaviest first, so that the ranks' n-th ones are about alike too.
    shuffle : bool
        Draw a new order every epoch (`set_epoch`).
    seed : int
        Seed of the order; the same on all ranks.
    drop_last : bool
        Leave out the last global batch when it is not full. Otherwise ranks share it as evenly as can be, and as many
        lists on each. Where one list would stay empty, samples of the epoch's start fill it, as torch's
        DistributedSampler does.
    policy : callable
        Who computes what: `telekit.packing.balance.balanced` by default.

    Raises
    ------
    InputError
        A count that is none, a rank that is not there, work of another length, or no full batch with ``drop_last``.
    """

    def __init__(
        self,
        samples: int,
        work: Callable[[Int], ArrayLike] | ArrayLike,
        batch_size: int,
        replicas: int = 1,
        rank: int = 0,
        micro_batches: int = 1,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        policy: Policy = balanced,
    ) -> None:
        self.samples, self.batch_size, self.micro_batches = samples, batch_size, micro_batches
        self.replicas, self.rank = replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        problems = self._problems()
        if problems:
            raise InputError(problems)
        if not callable(work):
            work = checked_work(work)
            if work.shape != (samples,):
                rule = f"must have one entry for each of {samples} samples"
                raise bad("work", f"shape {work.shape}", rule)
        for name in _COUNTS:
            setattr(self, name, int(getattr(self, name)))  # numpy's are no JSON
        self.epoch = 0
        self._work = work if callable(work) else work.__getitem__
        self._policy = policy
        self._done = 0  # lists of this epoch given out
        self._start = 0  # lists to skip when the epoch is gone through next
        if not len(self):
            rule = f"a global batch has {self.global_batch} samples, and of {samples} none is full"
            raise bad("drop_last", drop_last, rule, "drop_last=False, or fewer replicas or micro_batches")

    def _problems(self) -> list[Problem]:
        problems = [
            Problem(name, getattr(self, name), f"must be a whole number of {least} or more")
            for name, least in _COUNTS.items()
            if _no_int(getattr(self, name), least)
        ]
        if not problems and self.rank >= self.replicas:
            rule = f"must be one of the {self.replicas} replicas, counted from 0"
            problems.append(Problem("rank", self.rank, rule))
        return problems

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.batch_size * self.replicas * self.micro_batches

    def __len__(self) -> int:
        """Count the lists of a whole epoch on this rank, the same on all."""
        full, rest = divmod(self.samples, self.global_batch)
        last = 0 if self.drop_last else -(-rest // (self.replicas * self.batch_size))
        return full * self.micro_batches + last

    def __iter__(self) -> Iterator[list[int]]:
        """Go through the epoch, from where `load_state_dict` left it."""
        self._done, self._start = self._start, 0
        return self._lists(*divmod(self._done, self.micro_batches))

    def _lists(self, step: int, skip: int) -> Iterator[list[int]]:
        order = self._order()
        for i in range(step, -(-len(self) // self.micro_batches)):
            drawn = order[i * self.global_batch : (i + 1) * self.global_batch]
            for batch in self._mine(drawn, order)[skip:]:
                self._done += 1
                yield batch.tolist()
            skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch: its order is drawn anew, and it starts at its beginning."""
        if _no_int(epoch, 0):
            raise bad("epoch", epoch, "must be a whole number of 0 or more")
        if epoch != self.epoch:
            self._start = self._done = 0
        self.epoch = int(epoch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on from here.

        Parameters
        ----------
        consumed : int, optional
            Lists of this epoch that were trained on; those given out by default. Worker processes draw ahead of the
            training, so with them say how many were used.
        """
        done: int = self._done if consumed is None else consumed
        if _no_int(done, 0) or done > len(self):
            raise bad("consumed", consumed, f"must be a whole number from 0 to {len(self)}")
        return {**self._fixed(), "epoch": self.epoch, "done": int(done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; any rank's state serves every rank.

        Raises
        ------
        InputError
            The state is of another data set, batch, seed or number of replicas: its lists would not be these.
        """
        if not isinstance(state, dict):
            raise bad("state", state, "must be what state_dict gave")
        fixed = self._fixed()
        problems = [
            Problem(
                key, state.get(key, "missing"), f"this sampler has {value}", "resume with the same settings"
            )
            for key, value in fixed.items()
            if state.get(key) != value
        ]
        done, epoch = state.get("done"), state.get("epoch")
        if _no_int(done, 0) or int(done or 0) > len(self):
            problems.append(Problem("done", done, f"must be a whole number from 0 to {len(self)}"))
        if _no_int(epoch, 0):
            problems.append(Problem("epoch", epoch, "must be a whole number of 0 or more"))
        if problems:
            raise InputError(problems)
        self.epoch = int(epoch or 0)
        self._done = self._start = int(done or 0)

    def _fixed(self) -> dict[str, Any]:
        names = ("samples", "batch_size", "replicas", "micro_batches", "shuffle", "seed", "drop_last")
        return {name: getattr(self, name) for name in names}

    def _order(self) -> Int:
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.samples).astype(np.int64)

    def _mine(self, drawn: Int, order: Int) -> list[Int]:
        """Make the lists of this rank for one global batch."""
        lists = -(-len(drawn) // (self.replicas * self.batch_size))
        if len(drawn) // self.replicas < lists:  # a rank would be left with an empty list
            short = -len(drawn) % self.replicas
            drawn = np.concatenate((drawn, np.resize(order, short)))
        work = checked_work(self._work(drawn))
        if work.shape != drawn.shape:
            raise bad("work", f"shape {work.shape}", f"must have one entry for each of {len(drawn)} indices")
        each, rest = divmod(len(drawn), self.replicas)
        rank = _dealt(work, self.replicas) if rest else self._policy(work, self.replicas, each).rank
        own = np.flatnonzero(rank == self.rank)
        own = own[np.argsort(-work[own], kind="stable")]
        sizes = even_counts(len(own), lists)
        return np.split(drawn[own], np.cumsum(sizes)[:-1])


def even_counts(samples: int, parts: int) -> Int:
    """Count the samples of each part (parts,): no two differ by more than one, and the first take what is over.

    Parts of ``ceil(samples / parts)`` each would leave the last ones short, or empty.
    """
    each, rest = divmod(samples, parts)
    return each + (np.arange(parts, dtype=np.int64) < rest)


def _dealt(work: NDArray[np.float64], ranks: int) -> Int:
    """Rank of each sample, dealt out by falling work there and back: counts differ by one at most."""
    there_and_back = np.concatenate((np.arange(ranks), np.arange(ranks)[::-1]))
    rank = np.empty(len(work), np.int64)
    rank[np.argsort(-work, kind="stable")] = np.resize(there_and_back, len(work))
    return rank


def _no_int(value: Any, least: int) -> bool:
    return isinstance(value, bool) or not isinstance(value, int | np.integer) or bool(value < least)
