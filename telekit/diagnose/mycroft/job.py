"""The training job that Mycroft watches: its ranks, its sizes, and its groups."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem
from telekit.layout.config import ParallelConfig
from telekit.layout.groups import rank_groups

TP, PP, DP = range(3)
KIND_NAMES = ("tp", "pp", "dp")
MOST_RANKS = 512
MOST_OPERATIONS = 2_000_000


@dataclass(frozen=True)
class RingJob:
    """A job small enough to simulate; the sizes are illustrative, with steps of about 1.3 s.

    Parameters
    ----------
    tp, pp, dp : int
        Ranks of each group; their product is at most :data:`MOST_RANKS`.
    micro_batches, iterations : int
        Micro-batches of a step (1F1B), and steps.
    forward_s, backward_s : float
        One micro-batch on one stage, seconds.
    tp_bytes, pp_bytes, dp_bytes : float
        Buffer of one call of each kind.
    tp_bytes_per_s, rdma_bytes_per_s, copy_bytes_per_s : float
        Links between tensor ranks, network card (pp and dp), and the copy out of the device.
    latency_s : float
        Delivery of a chunk.
    ring_chunks, send_chunks : int
        Chunks of one step of a ring, and of one send between stages.
    jitter : float
        Spread (sigma of the logarithm) of compute and wire times.

    Raises
    ------
    InputError
        A size is impossible, or the job too large to simulate.
    """

    tp: int = 2
    pp: int = 2
    dp: int = 4
    micro_batches: int = 4
    iterations: int = 20
    forward_s: float = 0.07
    backward_s: float = 0.14
    tp_bytes: float = 0.4e9
    pp_bytes: float = 64e6
    dp_bytes: float = 4e9
    tp_bytes_per_s: float = 150e9
    rdma_bytes_per_s: float = 25e9
    copy_bytes_per_s: float = 100e9
    latency_s: float = 20e-6
    ring_chunks: int = 2
    send_chunks: int = 4
    jitter: float = 0.03

    def __post_init__(self) -> None:
        problems = list(filter(None, (self._problem(each.name, each.default) for each in fields(self))))
        if not problems and not 2 <= self.ranks <= MOST_RANKS:
            problems = [Problem("job", f"{self.ranks} ranks", f"tp * pp * dp must be from 2 to {MOST_RANKS}")]
        if not problems and self.operations > MOST_OPERATIONS:
            rule = f"makes more than {MOST_OPERATIONS:,} operations; fewer iterations or ranks work"
            problems = [Problem("job.iterations", self.iterations, rule)]
        if problems:
            raise InputError(problems)

    def _problem(self, name: str, default: Any) -> Problem | None:
        value = getattr(self, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, int):
            rule, holds = "an integer from 1 to 10,000", type(value) is int and 1 <= value <= 10_000
        elif name == "jitter":
            rule, holds = "a number from 0 to 1", number and 0 <= value <= 1
        else:
            rule, holds = "a positive number", number and 0 < value < float("inf")
        return None if holds else Problem(f"job.{name}", value, f"must be {rule}", f"{default:g} works")

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tp * self.pp * self.dp

    @property
    def operations(self) -> int:
        """About how many operations a simulation has."""
        rings = 2 * self.micro_batches * 2 * (self.tp - 1) + 2 * (self.dp - 1)
        sends = 2 * self.micro_batches * self.send_chunks * (self.pp > 1)
        return self.ranks * self.iterations * 3 * (rings * self.ring_chunks + sends)


def groups_of(job: RingJob) -> dict[str, NDArray[np.int64]]:
    """Rank groups ``tp pp dp`` in Megatron-Core's order, each of shape (groups, ranks of one)."""
    found = rank_groups(ParallelConfig(tp=job.tp, pp=job.pp, dp=job.dp))
    return {name: found[name] for name in KIND_NAMES}
