"""How finely to split: every choice is simulated, the quickest is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from telekit.comm.overlap import Number, Overlap, Task, simulate
from telekit.comm.overlap_plans import bucket_shares, chunked, dp_buckets
from telekit.errors import bad


@dataclass(frozen=True)
class Best:
    """The quickest of several splits.

    Attributes
    ----------
    choice : int
        The one that ends first; of equals the first tried.
    runs : dict of int to Overlap
        Every choice as it ran.
    """

    choice: int
    runs: dict[int, Overlap]

    @property
    def run(self) -> Overlap:
        """The choice as it ran."""
        return self.runs[self.choice]


def best(
    build: Callable[[int], Sequence[Task]],
    choices: Iterable[int],
    compute_rate: Number = 1,
    comm_rate: Number = 1,
) -> Best:
    """Simulate ``build(choice)`` for each choice and take the one that ends first."""
    runs = {choice: simulate(build(choice), compute_rate, comm_rate) for choice in choices}
    if not runs:
        raise bad("choices", "none", "there must be something to choose from", "(1, 2, 4, 8)")
    return Best(min(runs, key=lambda choice: runs[choice].makespan_s), runs)


def best_chunks(
    dispatch_s: Number,
    expert_s: Number,
    combine_s: Number,
    start_s: Number = 0,
    efficiency: Callable[[int], Number] = lambda chunks: 1,
    choices: Iterable[int] = (1, 2, 4, 8, 16),
    compute_rate: Number = 1,
    comm_rate: Number = 1,
    both_ways: bool = False,
) -> Best:
    """Chunks of :func:`chunked` that end first; ``efficiency`` gives the GEMM's for a number of chunks."""

    def build(n: int) -> list[Task]:
        return chunked(dispatch_s, expert_s, combine_s, n, start_s, efficiency(n), both_ways)

    return best(build, choices, compute_rate, comm_rate)


def best_bucket(
    backward_s: Number,
    reduce_s: Number,
    gradient_bytes: int,
    choices: Iterable[int],
    start_s: Number = 0,
    compute_rate: Number = 1,
    comm_rate: Number = 1,
) -> Best:
    """Bucket size in bytes of :func:`dp_buckets` that ends first: many starts against a long last bucket."""

    def build(bucket_bytes: int) -> list[Task]:
        return dp_buckets(backward_s, reduce_s, bucket_shares(gradient_bytes, bucket_bytes), start_s)

    return best(build, choices, compute_rate, comm_rate)
