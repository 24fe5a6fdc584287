"""The event simulation: hosts issue ahead of their devices, streams run in order, collectives wait for the last member.

All ranks of a stage issue the same operators, so that one pass over the program times every rank of the stage at once
(arrays over ranks); stages meet in point-to-point and global operations. Nothing is approximated by that: each rank
has its own host clock, streams and delays.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.faults.effects import Effects, Stall
from telekit.diagnose.faults.job import TracedJob
from telekit.diagnose.faults.program import Op, stage_program

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STREAMS = {
    "compute": "7",
    "tp": "20",
    "ep": "24",
    "dp": "28",
    "edp": "32",
    "pp-": "36",
    "pp+": "40",
    "world": "44",
}
"""Streams of a device by what runs on them; a stage has one to the stage before and one to that after."""
_GAP_S = 6e-7  # between two kernels of a stream
_JOIN_S = 1e-6  # between the end on one stream and the start on another that waits for it
_LATENCY_S = {"tp": 6e-6, "ep": 14e-6, "dp": 20e-6, "edp": 20e-6, "pp": 10e-6, "world": 30e-6}
_ON_THE_WAY = {
    "all-reduce": 2.0,
    "all-gather": 1.0,
    "reduce-scatter": 1.0,
    "all-to-all": 1.0,
    "send-recv": 1.0,
}


class Record(NamedTuple):
    """One kind of event of all ranks of a stage; times are beside it."""

    kind: str
    name: str
    lane: str
    step: int
    correlation: int
    op: Op | None
    sequence: int


@dataclass
class Recording:
    """Events of a stage in the order of its program; each time is an array over its ranks.

    A start that is not a number: that rank has no such event.
    """

    records: list[Record] = field(default_factory=list)
    start_s: list[Floats] = field(default_factory=list)
    end_s: list[Floats] = field(default_factory=list)

    def add(self, record: Record, start: Floats, end: Floats) -> None:
        """Add an event of every rank."""
        self.records.append(record)
        self.start_s.append(start)
        self.end_s.append(end)


class Meeting:
    """Where stages meet: each says when it is ready, the last one fixes the end for all."""

    def __init__(self) -> None:
        self.ready: dict[tuple[object, ...], dict[int, Floats]] = {}
        self.end: dict[tuple[object, ...], Floats] = {}


class StageRun:
    """All ranks of one pipeline stage, through all steps."""

    def __init__(
        self,
        job: TracedJob,
        effects: Effects,
        stage: int,
        meeting: Meeting,
        seed: np.random.SeedSequence,
        base_compute: Floats,
    ) -> None:
        self.job, self.effects, self.stage, self.meeting = job, effects, stage, meeting
        self.chance = np.random.default_rng(seed)
        size = job.stage_ranks
        self.own = slice(stage * size, (stage + 1) * size)
        self.compute = base_compute[:, self.own] * effects.compute[:, self.own]
        self.members = {
            kind: rows[(rows[:, 0] >= self.own.start) & (rows[:, 0] < self.own.stop)] - self.own.start
            for kind, rows in job.groups().items()
        }
        self.host = self.chance.uniform(0, 2e-4, size)  # started by hand: not at the same instant
        self.free = {stream: np.zeros(size) for stream in STREAMS}
        self.busy_until = np.full(size, -np.inf)  # computing, for the idle mode
        self.slow_until = np.full(size, -np.inf)
        self.issued: list[Floats] = []
        self.sequence = dict.fromkeys((*self.members, "pp-", "pp+", "world"), 0)
        self.recording = Recording()
        self.correlation = 0
        self.zeros = np.zeros(size)

    def run(self) -> Iterator[bool]:
        """Go through all steps; yields while it waits for another stage."""
        program = stage_program(self.job, self.stage)
        for step in range(self.job.steps):
            begin, at = self.host.copy(), len(self.recording.records)
            stalls: dict[int, list[Stall]] = {}
            for stall in self.effects.stalls:
                if stall.step == step and stall.seconds[self.own].any():
                    stalls.setdefault(int(stall.place * (len(program) - 1)), []).append(stall)
            for index, op in enumerate(program):
                for stall in stalls.get(index, ()):
                    self._stall(stall, step, op)
                if op.what in ("collective", "exchange"):
                    yield from self._communicate(op, step)
                else:
                    getattr(self, f"_{op.what}")(op, step)
            mark = Record("host", f"ProfilerStep#{step}", "main", step, -1, None, -1)
            self.recording.records.insert(at, mark)
            self.recording.start_s.insert(at, begin)
            self.recording.end_s.insert(at, self.host.copy())

    def _note(self, kind: str, name: str, lane: str, step: int, start: Floats, end: Floats,
              op: Op | None = None, sequence: int = -1, correlation: int = -1) -> None:  # fmt: skip
        self.recording.add(Record(kind, name, lane, step, correlation, op, sequence), start, end)

    def _stall(self, stall: Stall, step: int, op: Op) -> None:
        """Let hosts stand still, in silence or inside calls that wait for the device."""
        seconds, lane = stall.seconds[self.own], "autograd" if op.backward else "main"
        hit = seconds > 0
        for call in stall.calls:
            start = self.host
            waits = np.where(hit, np.maximum.reduce(list(self.free.values())), -np.inf)
            self.host = np.maximum(start, waits) + seconds / len(stall.calls)
            self._note("host", call, lane, step, np.where(hit, start, np.nan), self.host)
        if not stall.calls:
            self.host = self.host + seconds

    def _host_time(self, step: int, weight: float = 1.0) -> Floats:
        """Host time of one operator: its usual time, now and then more, longer in a monitor's bursts."""
        effects, own = self.effects, self.own
        time = (
            self.chance.lognormal(0.0, self.job.host_jitter, len(self.host)) * self.job.host_launch_s * weight
        )
        time *= effects.host[step, own]
        phase = (self.host - effects.burst_phase_s[own]) % effects.burst_period_s[own]
        return np.asarray(np.where(phase < effects.burst_s[own], time * effects.burst_factor[own], time))

    def _launch(self, op: Op, step: int, call: str, weight: float = 1.0) -> Floats:
        """Issue one operator; return when its kernel may start."""
        begin = self.host
        depth = self.job.queue_depth  # a launch waits inside the call where the queue is full
        full = self.issued[-depth] if len(self.issued) >= depth else self.zeros
        time = self._host_time(step, weight)
        call_at = begin + 0.55 * time
        self.host = np.maximum(call_at, full) + 0.4 * time
        lane = "autograd" if op.backward else "main"
        self.correlation += 1
        self._note("host", op.host, lane, step, begin, self.host + 0.05 * time, op=op if op.group else None)
        self._note("launch", call, lane, step, call_at, self.host, correlation=self.correlation)
        launched, self.host = self.host, self.host + 0.05 * time
        return launched + self.job.device_launch_s

    def _compute(self, op: Op, step: int) -> None:
        ready = self._launch(op, step, "cudaLaunchKernel")
        start = np.maximum(ready, self.free["compute"] + _GAP_S)
        time = op.seconds * self.compute[step]
        time *= 1 + self.job.kernel_jitter * self.chance.standard_normal(len(time)).clip(-3, 5)
        if op.part == "expert":
            time *= self.effects.expert[step, self.own]
        time *= self._idle_factor(start)
        self._run("kernel", op, step, start, start + time)

    def _idle_factor(self, start: Floats) -> Floats:
        """Return how much longer kernels take: a device that idled too long runs slowly for a while."""
        effects, own = self.effects, self.own
        idled = start - self.busy_until > effects.idle_s[own]
        idled &= np.isfinite(self.busy_until)
        self.slow_until = np.where(idled, start + effects.idle_window_s[own], self.slow_until)
        return np.asarray(np.where(start < self.slow_until, effects.idle_factor[own], 1.0))

    def _run(self, kind: str, op: Op, step: int, start: Floats, end: Floats) -> None:
        self.free["compute"] = end
        if kind == "kernel":
            self.busy_until = end
        self.issued.append(end)
        self._note(kind, op.kernel, STREAMS["compute"], step, start, end,
                   op=op if op.bytes else None, correlation=self.correlation)  # fmt: skip

    def _copy(self, op: Op, step: int) -> None:
        ready = self._launch(op, step, "cudaMemcpyAsync")
        start = np.maximum(ready, self.free["compute"] + _GAP_S)
        self._run("copy", op, step, start, start + op.seconds)

    def _join(self, op: Op, step: int) -> None:
        self.free["compute"] = np.maximum(self.free["compute"], self.free[op.group] + _JOIN_S)

    def _data(self, op: Op, step: int) -> None:
        begin = self.host
        usual = op.seconds * self.chance.lognormal(0.0, 0.2, len(begin))
        self.host = begin + usual + self.effects.data_s[step, self.own]
        self._note("data", op.host, "main", step, begin, self.host)

    def _checkpoint(self, op: Op, step: int) -> None:
        seconds = self.effects.checkpoint_s[step, self.own]
        if seconds.any():
            begin = self.host
            self.host = begin + seconds
            self._note("host", op.host, "main", step, np.where(seconds > 0, begin, np.nan), self.host)

    def _sync(self, op: Op, step: int) -> None:
        begin = self.host
        self.host = np.maximum(begin + 2e-6, self.free["compute"] + 3e-6)
        self._note("wait", op.host, "main", step, begin, self.host)

    def _communicate(self, op: Op, step: int) -> Iterator[bool]:
        """Run a collective or point-to-point operation: its kernel runs from its own start to the common end."""
        stream = ("pp+" if op.peer > 0 else "pp-") if op.what == "exchange" else op.group
        ready = self._launch(op, step, "cudaLaunchKernelExC", 1.6)
        correlation = self.correlation
        start = np.maximum(np.maximum(ready, self.free[stream] + _GAP_S), self.free["compute"] + _JOIN_S)
        sequence = self.sequence[stream]
        self.sequence[stream] += 1
        if op.group in ("pp", "world"):
            end = yield from self._meet(op, step, sequence, start)
        else:
            end = self._together(op, step, start)
        self.free[stream] = end
        if op.waits:
            self.free["compute"] = np.maximum(self.free["compute"], end + _JOIN_S)
        self.issued.append(end)
        self._note("communication", op.kernel, STREAMS[stream], step, start, end, op=op,
                   sequence=sequence, correlation=correlation)  # fmt: skip

    def _together(self, op: Op, step: int, start: Floats) -> Floats:
        """End of a collective of groups inside the stage, for each member."""
        rows = self.members[op.group]
        slow = self.effects.link[step, self.own][rows].max(1) if op.group != "tp" else np.ones(len(rows))
        last = start[rows].max(1) + slow * self._transfer_s(op, rows.shape[1], len(rows))
        end = np.empty(len(start))
        end[rows] = last[:, None]
        return end

    def _transfer_s(self, op: Op, members: int, count: int) -> Floats:
        """Time of transfers once all members are there, the links as they should be."""
        job = self.job
        rate = job.inside_bytes_per_s if op.group == "tp" else job.network_bytes_per_s
        share = (members - 1) / members if op.what == "collective" else 1.0
        usual = _LATENCY_S[op.group] + _ON_THE_WAY[op.operation] * share * op.bytes / rate
        noise = 1 + job.link_jitter * self.chance.standard_normal(count).clip(-3, 6)
        return np.asarray(usual * noise)

    def _meet(self, op: Op, step: int, sequence: int, start: Floats) -> Generator[bool, None, Floats]:
        """Meet the other stages: the neighbour, or all of them."""
        stages = range(self.job.pp) if op.group == "world" else sorted((self.stage, self.stage + op.peer))
        key = (op.group, stages[0], sequence)
        there = self.meeting.ready.setdefault(key, {})
        there[self.stage] = start
        while key not in self.meeting.end:
            if len(there) == len(stages):
                self.meeting.end[key] = self._met(op, step, list(stages), there)
                break
            yield False
        return self.meeting.end[key]

    def _met(self, op: Op, step: int, stages: list[int], there: dict[int, Floats]) -> Floats:
        size, effects = self.job.stage_ranks, self.effects
        if op.group == "world":
            last = max(float(ready.max()) for ready in there.values())
            slow = effects.link[step].max()  # of four bytes: hardly felt
            return np.full(size, last + _LATENCY_S["world"] * (1 + 0.05 * (slow - 1)))
        ports = [effects.link[step, s * size : (s + 1) * size] for s in stages]
        slow = np.maximum(ports[0], ports[1]) * effects.pair[step, stages[0] * size : (stages[0] + 1) * size]
        return np.maximum(there[stages[0]], there[stages[1]]) + slow * self._transfer_s(op, 2, size)


def simulate(job: TracedJob, effects: Effects, seed: int) -> list[Recording]:
    """Run the job; return the events of each stage, by one common clock, in seconds."""
    chances = np.random.SeedSequence(seed).spawn(job.pp + 1)
    jitter = job.jitter.draw(np.random.default_rng(chances[-1]), job.steps, job.ranks)
    meeting = Meeting()
    stages = [StageRun(job, effects, s, meeting, chances[s], jitter) for s in range(job.pp)]
    running = {s: stage.run() for s, stage in enumerate(stages)}
    while running:
        for stage in list(running):
            for _ in running[stage]:
                break
            else:
                del running[stage]
    return [stage.recording for stage in stages]
