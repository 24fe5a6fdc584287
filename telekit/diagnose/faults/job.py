"""The training job whose traces are generated: its layout, its work, how its machines differ and its clocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.jitter import Jitter
from telekit.errors import InputError, Problem
from telekit.layout.config import ParallelConfig
from telekit.layout.groups import rank_groups

MOST_RANKS = 4096
_LAYOUTS = {
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 2, 8),
    64: (4, 2, 8),
    128: (4, 4, 8),
    256: (4, 4, 16),
    512: (8, 4, 16),
    1024: (8, 4, 32),
}


@dataclass(frozen=True)
class TracedJob:
    """A Mixture-of-Experts job in 1F1B with tensor, pipeline, data and expert parallel groups.

    Parameters
    ----------
    ranks, tp, pp, ep : int
        Devices and degrees; data parallelism follows. Ranks are in Megatron-Core's order.
    devices_per_node : int
        Consecutive ranks of one host.
    layers, micro_batches, steps : int
        Layers of a stage, micro-batches of a step, and steps traced.
    kernel_scale : float
        Device time of every kernel, over that of an ordinary one (a layer's forward pass takes 0.7 ms).
    host_launch_s : float
        Host time to issue one operator.
    device_launch_s : float
        Between the end of a launch call and the start of its kernel on an idle stream.
    queue_depth : int
        Launches that the host may be ahead of its device.
    data_s : float
        Host time to fetch a batch.
    inside_bytes_per_s, network_bytes_per_s : float
        What a device moves one way inside its node (tensor groups) and over its own network port (all others).
    jitter : Jitter
        How the time of a device's step lies around its mean.
    kernel_jitter, host_jitter, link_jitter : float
        Standard deviation over the mean of one kernel, one launch and one transfer.
    clock_offset_s, clock_drift : float
        Standard deviation of the ranks' clocks: offset, and seconds a second.
    """

    ranks: int = 16
    tp: int = 2
    pp: int = 2
    ep: int = 4
    devices_per_node: int = 8
    layers: int = 2
    micro_batches: int = 4
    steps: int = 6
    kernel_scale: float = 1.0
    host_launch_s: float = 24e-6
    device_launch_s: float = 4e-6
    queue_depth: int = 1024
    data_s: float = 4e-4
    inside_bytes_per_s: float = 200e9
    network_bytes_per_s: float = 40e9
    jitter: Jitter = field(default_factory=lambda: Jitter(0.004))
    kernel_jitter: float = 0.01
    host_jitter: float = 0.15
    link_jitter: float = 0.03
    clock_offset_s: float = 2e-3
    clock_drift: float = 5e-6

    def __post_init__(self) -> None:
        """Check that the degrees fit.

        Raises
        ------
        InputError
            All broken rules.
        """
        counts = (
            "ranks",
            "tp",
            "pp",
            "ep",
            "devices_per_node",
            "layers",
            "micro_batches",
            "steps",
            "queue_depth",
        )
        problems = [_low(name, getattr(self, name), 1) for name in counts if getattr(self, name) < 1]
        positive = (
            "kernel_scale",
            "host_launch_s",
            "device_launch_s",
            "inside_bytes_per_s",
            "network_bytes_per_s",
        )
        problems += [_low(name, getattr(self, name), 1e-9) for name in positive if getattr(self, name) <= 0]
        free = ("data_s", "kernel_jitter", "host_jitter", "link_jitter", "clock_offset_s", "clock_drift")
        problems += [_low(name, getattr(self, name), 0) for name in free if getattr(self, name) < 0]
        if not problems:
            problems = self._degree_problems()
        if problems:
            raise InputError(problems)

    def _degree_problems(self) -> list[Problem]:
        found = []
        if self.ranks > MOST_RANKS:
            found.append(Problem("job.ranks", self.ranks, f"must be at most {MOST_RANKS:,}"))
        for name, product in (("tp * pp", self.tp * self.pp), ("pp * ep", self.pp * self.ep)):
            if self.ranks % product:
                found.append(
                    Problem(
                        "job.ranks", self.ranks, f"must be a multiple of {name} = {product}", str(product)
                    )
                )
        if self.micro_batches < self.pp:
            rule = f"1F1B needs at least as many as stages, {self.pp}"
            found.append(Problem("job.micro_batches", self.micro_batches, rule, str(self.pp)))
        return found

    @classmethod
    def of(cls, ranks: int, **changes: Any) -> TracedJob:
        """Return a usual job of so many ranks: a power of two from 8 to 1024.

        Raises
        ------
        InputError
            No usual layout has so many ranks (give ``tp``, ``pp`` and ``ep`` yourself).
        """
        if ranks not in _LAYOUTS:
            raise InputError(
                [
                    Problem(
                        "ranks", ranks, f"usual layouts have {sorted(_LAYOUTS)} ranks", "give tp, pp and ep"
                    )
                ]
            )
        tp, pp, ep = _LAYOUTS[ranks]
        return replace(cls(ranks=ranks, tp=tp, pp=pp, ep=ep), **changes)

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.ranks // self.pp

    @property
    def nodes(self) -> int:
        """Hosts; the last may have fewer devices."""
        return -(-self.ranks // self.devices_per_node)

    def node_of(self) -> NDArray[np.int64]:
        """Host of each rank."""
        return np.arange(self.ranks) // self.devices_per_node

    def groups(self) -> dict[str, NDArray[np.int64]]:
        """List groups of ranks by kind (``tp dp ep edp``), one row a group, in Megatron-Core's order."""
        layout = ParallelConfig(tp=self.tp, pp=self.pp, dp=self.stage_ranks // self.tp, ep=self.ep)
        found = rank_groups(layout)
        return {name: found[name] for name in ("tp", "dp", "ep", "edp")}


def _low(name: str, value: Any, least: float) -> Problem:
    return Problem(f"job.{name}", value, f"must be at least {least:g}", f"{least:g}")
