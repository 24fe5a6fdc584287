"""From the simulation's events to one trace a rank, each by its own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.faults.effects import Effects
from telekit.diagnose.faults.job import TracedJob
from telekit.diagnose.faults.machine import STREAMS, Record, Recording
from telekit.diagnose.trace import KIND, OPERATION, Group, Lane, Trace, TraceSet

Floats = NDArray[np.float64]

DEVICE_NAME = "NVIDIA H100 80GB HBM3"
EPOCH_NS = 1_750_000_000_000_000_000
"""When the generated runs begin, on a true clock."""
RECORDED_S = 5e3
"""What has not ended by then, as in a run that hangs, is not recorded: profilers write whole events only."""
_THREADS = {"main": 0, "autograd": 1}
_ABOUT = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "edp": "EXPERT_DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "world": "default_pg",
}


@dataclass(frozen=True, eq=False)
class Clocks:
    """Clocks of ranks: at a true time ``t`` they show ``t * (1 + drift) + offset``, from ``jump_at`` on ``jump`` more.

    Attributes
    ----------
    offset_s, drift, jump_s, jump_at_s : (ranks,) arrays
        Seconds, and seconds a second.
    """

    offset_s: Floats
    drift: Floats
    jump_s: Floats
    jump_at_s: Floats

    @classmethod
    def draw(cls, job: TracedJob, effects: Effects, middle_s: Floats, seed: int) -> Clocks:
        """Draw clocks; ranks of one node share theirs, as they do in truth.

        ``middle_s`` (steps, ranks) is the true time at the middle of each step.
        """
        chance = np.random.default_rng([seed, 1])
        node = job.node_of()
        offset = chance.normal(0.0, job.clock_offset_s, job.nodes)[node]
        drift = chance.normal(0.0, job.clock_drift, job.nodes)[node]
        at = middle_s[np.maximum(effects.jump_step, 0), np.arange(job.ranks)]
        return cls(offset, drift, effects.jump_s, np.where(effects.jump_step >= 0, at, np.inf))

    def shown(self, true_s: Floats, rank: int) -> Floats:
        """Return what a rank's clock shows at true times."""
        plain = true_s * (1 + self.drift[rank]) + self.offset_s[rank]
        return np.asarray(np.where(true_s >= self.jump_at_s[rank], plain + self.jump_s[rank], plain))


def build_traces(job: TracedJob, recordings: list[Recording], effects: Effects, seed: int) -> TraceSet:
    """Make one trace a rank."""
    times = [(np.array(r.start_s), np.array(r.end_s)) for r in recordings]
    middle = np.concatenate([_middles(r, *t) for r, t in zip(recordings, times, strict=True)], axis=1)
    clocks = Clocks.draw(job, effects, middle, seed)
    groups = _Groups(job)
    traces = []
    for stage, (recording, (start, end)) in enumerate(zip(recordings, times, strict=True)):
        static = _static(recording.records)
        begin, finish = np.ascontiguousarray(start.T), np.ascontiguousarray(end.T)
        for local in range(job.stage_ranks):
            rank = stage * job.stage_ranks + local
            traces.append(_trace(job, rank, static, begin[local], finish[local], clocks, groups))
    return TraceSet.of(traces, notes=("generated, not recorded",))


def _middles(recording: Recording, start: Floats, end: Floats) -> Floats:
    """Middle of each step: (steps, ranks of the stage)."""
    marks = [i for i, r in enumerate(recording.records) if r.name.startswith("ProfilerStep#")]
    return np.asarray((start[marks] + end[marks]) / 2)


class _Groups:
    """Process groups by kind and rank, numbered as PyTorch numbers them."""

    def __init__(self, job: TracedJob) -> None:
        self.job = job
        world = Group("0", job.ranks, tuple(range(job.ranks)), _ABOUT["world"])
        self._of: dict[str, list[Group]] = {"world": [world] * job.ranks}
        kinds = dict(job.groups())
        if job.pp > 1:
            kinds["pp"] = np.arange(job.ranks).reshape(job.pp, -1).T
        number = 1
        for kind, rows in kinds.items():
            self._of[kind] = [world] * job.ranks
            for row in rows.tolist():
                group = Group(str(number), len(row), tuple(row), _ABOUT[kind])
                number += 1
                for rank in row:
                    self._of[kind][rank] = group
        self.kinds = tuple(self._of)

    def of(self, rank: int) -> tuple[Group, ...]:
        """Return groups of a rank, in the order of ``kinds``."""
        return tuple(groups[rank] for groups in self._of.values())


@dataclass(frozen=True, eq=False)
class _Static:
    """Columns that are the same for all ranks of a stage; ``peer`` counts stages, 0 for none."""

    columns: dict[str, Any]
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    peer: NDArray[np.int64]
    group: tuple[str, ...]


def _static(records: list[Record]) -> _Static:
    names: dict[str, int] = {}
    lanes: dict[str, int] = {}
    kind = np.array([KIND[r.kind] for r in records], np.int8)
    ops = [r.op for r in records]
    columns = {
        "name": np.array([names.setdefault(r.name, len(names)) for r in records], np.int32),
        "kind": kind,
        "lane": np.array([lanes.setdefault(r.lane, len(lanes)) for r in records], np.int32),
        "correlation": np.array([r.correlation for r in records], np.int64),
        "step": np.array([r.step for r in records], np.int32),
        "bytes": np.array([op.bytes if op else 0 for op in ops], np.int64),
        "sequence": np.array([r.sequence for r in records], np.int64),
        "operation": np.array([OPERATION[op.operation] if op else 0 for op in ops], np.int8),
    }
    peer = np.array(
        [op.peer if op and r.kind == "communication" else 0 for r, op in zip(records, ops, strict=True)]
    )
    return _Static(columns, tuple(names), tuple(lanes), peer, tuple(op.group if op else "" for op in ops))


def _trace(job: TracedJob, rank: int, static: _Static, start: Floats, end: Floats, clocks: Clocks,
           groups: _Groups) -> Trace:  # fmt: skip
    """One rank's trace, by its clock, from its first event on."""
    there = np.flatnonzero(~np.isnan(start) & (end < RECORDED_S))
    shown, until = (np.rint(clocks.shown(t[there], rank) * 1e9) for t in (start, end))  # whole nanoseconds
    until = np.maximum(
        until, shown
    )  # where the clock jumps back inside an event, a profiler writes no length
    order = np.lexsort((-until, shown))
    there, shown, until = there[order], shown[order], until[order]
    zero_ns = int(shown[0])
    peers = static.peer[there]
    kinds = {kind: i for i, kind in enumerate(groups.kinds)}
    group = np.array([kinds.get(g, -1) for g in static.group], np.int32)[there]
    return Trace(
        start_s=(shown - shown[0]) / 1e9,
        end_s=(until - shown[0]) / 1e9,
        group=group,
        peer=np.where(peers, rank + peers * job.stage_ranks, -1).astype(np.int32),
        **{name: column[there] for name, column in static.columns.items()},
        names=static.names,
        lanes=tuple(_lane(lane, rank, job) for lane in static.lanes),
        groups=groups.of(rank),
        rank=rank,
        world_size=job.ranks,
        device=DEVICE_NAME,
        source=f"generated rank {rank}",
        base_ns=EPOCH_NS + zero_ns,
    )


def _lane(lane: str, rank: int, job: TracedJob) -> Lane:
    """Lane of a stream's number or a thread's name."""
    if lane in STREAMS.values():
        return Lane(str(rank % job.devices_per_node), lane, True, f"stream {lane}")
    process = 4000 + rank % job.devices_per_node
    return Lane(str(process), str(process + _THREADS[lane]), False, f"python {lane}")
