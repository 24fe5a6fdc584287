"""What every rank of a job does, as operations in an order: compute, chunks of flows, and calls.

A call is one rank's part in one collective. All-reduces of tensor and data ranks run as rings: 2 (k - 1) steps, in each
of which a rank sends what it received in the step before, cut into ``ring_chunks``. Stages send to their neighbours.
Each chunk of a flow is copied out of the device (then it counts as GPU ready), put on the wire by the network card
(transmitted; not before the receiver has entered the call) and delivered (done).

Left out: bandwidth that flows share, buffer slots that hold a sender back, and the many small tensor-parallel
all-reduces of a micro-batch, which are one call here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.mycroft.job import DP, KIND_NAMES, PP, TP, RingJob, groups_of
from telekit.pipeline.order import FORWARD
from telekit.pipeline.schedules import order as pipeline_order
from telekit.timeline import CompiledOrder, compile_order

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MARK, COMPUTE, COPY, TRANSMIT, DELIVER = range(5)


class Calls(NamedTuple):
    """One row a call, by iteration, then rank, then turn in the rank's program.

    Attributes
    ----------
    rank, kind, meeting : arrays (calls,)
        Who, which kind of group (TP, PP, DP), and which collective it is a part of.
    blocking : array (calls,)
        0 for a send between stages, which its sender does not wait for.
    start, end : arrays (calls,)
        The operations whose ends are the call's start and end.
    flow : array (calls,)
        The flow it is about: its own outgoing one, or for a receiving stage the incoming one.
    size_bytes : array (calls,)
        Its buffer.
    """

    rank: Ints
    kind: Ints
    meeting: Ints
    blocking: Ints
    start: Ints
    end: Ints
    flow: Ints
    size_bytes: Ints


class Flows(NamedTuple):
    """One row a flow: what one rank sends another in one collective.

    Attributes
    ----------
    source, target, kind, chunks : arrays (flows,)
        Sending rank, receiving rank, kind of group, and number of chunks.
    operations : array (flows, most chunks, 3)
        Copy, transmission and delivery of each chunk; -1 where a flow has fewer chunks.
    """

    source: Ints
    target: Ints
    kind: Ints
    chunks: Ints
    operations: Ints


@dataclass(frozen=True)
class Program:
    """What all ranks do, ready to be timed.

    Attributes
    ----------
    order : CompiledOrder
        Operations and what they wait for.
    duration_s, role, rank, kind, chunk : arrays (operations,)
        Seconds without jitter or fault; MARK to DELIVER; whose; of which kind of group (-1 none); which chunk.
    calls : Calls
        What ranks wait in.
    flows : Flows
        What they send.
    """

    order: CompiledOrder
    duration_s: Floats
    role: Ints
    rank: Ints
    kind: Ints
    chunk: Ints
    calls: Calls
    flows: Flows


class _Operation(NamedTuple):
    seconds: float
    role: int
    rank: int
    kind: int = -1
    chunk: int = 0
    engine: int = -1


@lru_cache(maxsize=8)
def program(job: RingJob) -> Program:
    """Write out a job's operations: one step, then a copy of it for each iteration."""
    step = _Step(job)
    size, times = len(step.operations), np.arange(job.iterations)[:, None]
    seconds, *columns = (np.tile(np.array(c), job.iterations) for c in zip(*step.operations, strict=True))
    role, rank, kind, chunk, engine = columns
    edges = np.array(step.edges).T
    before, after = ((edge + times * size).ravel() for edge in edges)
    ends, begins = ((np.array(ids) + times[1:] * size) for ids in (step.last, step.begins))
    before = np.concatenate([before, (ends - size).ravel()])
    after = np.concatenate([after, begins.ravel()])
    order = compile_order(engine, before, after)
    return Program(order, seconds, role, rank, kind, chunk, _calls(step, times), _flows(step, times))


def _calls(step: _Step, times: Ints) -> Calls:
    """Repeat the calls of a step, each iteration's with its own operations, meetings and flows."""
    columns = np.array(step.calls, dtype=np.int64).reshape(-1, 8).T
    operations, meetings, flows = len(step.operations), len(step.meetings), len(step.flows)
    strides = (0, 0, meetings, 0, operations, operations, flows, 0)
    return Calls(*((column + times * by).ravel() for column, by in zip(columns, strides, strict=True)))


def _flows(step: _Step, times: Ints) -> Flows:
    source, target, kind, made = zip(*step.flows, strict=True)
    most, repeats = max(len(chunks) for chunks in made), times.size
    operations = np.full((len(made), most, 3), -1)
    for row, chunks in enumerate(made):
        operations[row, : len(chunks)] = chunks
    all_of = np.where(operations < 0, -1, operations + times[:, :, None, None] * len(step.operations))
    sizes = [len(chunks) for chunks in made]
    sources, targets, kinds, chunks = (np.tile(np.array(c), repeats) for c in (source, target, kind, sizes))
    return Flows(sources, targets, kinds, chunks, all_of.reshape(-1, most, 3))


class _Step:
    """One step. Ranks are written one after the other; what waits for other ranks is tied afterwards."""

    def __init__(self, job: RingJob) -> None:
        self.job = job
        self.operations: list[_Operation] = []
        self.edges: list[tuple[int, int]] = []
        self.calls: list[list[int]] = []  # columns of Calls
        self.flows: list[tuple[int, int, int, list[tuple[int, int, int]]]] = []
        self.begins: list[int] = []  # first operation of each rank
        self.last: list[int] = []  # what each rank's program has come to
        self.meetings: dict[tuple[int, ...], int] = {}
        self.entered: dict[tuple[int, int], int] = {}  # meeting and rank: what the rank has done before it
        self.left: dict[tuple[int, int], int] = {}  # meeting and rank that waits in it: the call's end
        self.sent: dict[tuple[int, int], int] = {}  # meeting and rank that sends in it: the flow
        self._write()
        self._tie()

    def _write(self) -> None:
        job, groups = self.job, groups_of(self.job)
        peers = [{rank: g for g in groups[name].tolist() for rank in g} for name in KIND_NAMES]
        order = pipeline_order("1f1b", job.pp, job.micro_batches)
        turns = list(zip(order.device.tolist(), order.kind.tolist(), order.micro_batch.tolist(), strict=True))
        for rank in range(job.ranks):
            self.last.append(self._add(0.0, MARK, rank))
            self.begins.append(self.last[rank])
            stage = peers[PP][rank].index(rank)
            for _, kind, batch in (turn for turn in turns if turn[0] == stage):
                self._pass(rank, peers[PP][rank], peers[TP][rank], kind == FORWARD, batch)
            if job.dp > 1:
                self._ring(rank, DP, peers[DP][rank], 0)

    def _pass(self, rank: int, line: list[int], ring: list[int], ahead: bool, batch: int) -> None:
        """Receive from one neighbour, compute, reduce over tensor ranks, send to the other neighbour."""
        job, way, turn = self.job, 1 if ahead else -1, batch * 2 + ahead
        stage = line.index(rank)
        if 0 <= stage - way < job.pp:
            self._receive(rank, line[stage - way], turn)
        work = self._add(job.forward_s if ahead else job.backward_s, COMPUTE, rank)
        self.edges.append((self.last[rank], work))
        self.last[rank] = work
        if job.tp > 1:
            self._ring(rank, TP, ring, turn)
        if 0 <= stage + way < job.pp:
            self._send(rank, line[stage + way], turn)

    def _add(
        self, seconds: float, role: int, rank: int, kind: int = -1, chunk: int = 0, lane: int = 0
    ) -> int:
        """Append an operation. Chunks hold their rank's engine of that role, kind and direction in turn."""
        engine = ((rank * len(KIND_NAMES) + kind) * 2 + lane) * 3 + role - COPY if role >= COPY else -1
        self.operations.append(_Operation(seconds, role, rank, kind, chunk, engine))
        return len(self.operations) - 1

    def _flow(self, meeting: int, rank: int, target: int, kind: int, chunks: int, chunk_bytes: float) -> int:
        """Append the chunks of a flow, each copied, then transmitted, then delivered."""
        job, made = self.job, []
        wire_bytes_per_s = job.tp_bytes_per_s if kind == TP else job.rdma_bytes_per_s
        seconds = (chunk_bytes / job.copy_bytes_per_s, chunk_bytes / wire_bytes_per_s, job.latency_s)
        for chunk in range(chunks):
            copy, transmit, deliver = (
                self._add(each, role, rank, kind, chunk, int(target > rank))
                for each, role in zip(seconds, (COPY, TRANSMIT, DELIVER), strict=True)
            )
            self.edges += [(self.last[rank], copy), (copy, transmit), (transmit, deliver)]
            made.append((copy, transmit, deliver))
        self.sent[meeting, rank] = len(self.flows)
        self.flows.append((rank, target, kind, made))
        return made[-1][-1]

    def _enter(self, rank: int, *key: int) -> int:
        meeting = self.meetings.setdefault(key, len(self.meetings))
        self.entered[meeting, rank] = self.last[rank]
        return meeting

    def _call(self, meeting: int, rank: int, kind: int, size_bytes: float, sent: int = -1) -> None:
        """Note a call; one that its rank waits in ends with a mark of its own."""
        end = sent
        if kind != PP or sent < 0:
            end = self._add(0.0, MARK, rank)
            if sent >= 0:
                self.edges.append((sent, end))
            self.left[meeting, rank] = end
        blocking = int(end != sent)
        flow = self.sent.get((meeting, rank), -1)
        self.calls.append([rank, kind, meeting, blocking, self.last[rank], end, flow, int(size_bytes)])
        self.last[rank] = end if blocking else self.last[rank]

    def _ring(self, rank: int, kind: int, peers: list[int], turn: int) -> None:
        count, chunks = len(peers), self.job.ring_chunks
        size_bytes = self.job.tp_bytes if kind == TP else self.job.dp_bytes
        meeting = self._enter(rank, kind, peers[0], turn)
        target = peers[(peers.index(rank) + 1) % count]
        sent = self._flow(meeting, rank, target, kind, 2 * (count - 1) * chunks, size_bytes / count / chunks)
        self._call(meeting, rank, kind, size_bytes, sent)

    def _send(self, rank: int, target: int, turn: int) -> None:
        meeting, chunks = self._enter(rank, PP, rank, target, turn), self.job.send_chunks
        sent = self._flow(meeting, rank, target, PP, chunks, self.job.pp_bytes / chunks)
        self._call(meeting, rank, PP, self.job.pp_bytes, sent)

    def _receive(self, rank: int, source: int, turn: int) -> None:
        self._call(self._enter(rank, PP, source, rank, turn), rank, PP, self.job.pp_bytes)

    def _tie(self) -> None:
        """Tie what waits for other ranks: receivers that must be there, a ring's steps, ends of calls."""
        ahead, incoming = self.job.ring_chunks, dict[tuple[int, int], int]()
        for (meeting, _), flow in self.sent.items():
            _, target, _, chunks = self.flows[flow]
            incoming[meeting, target] = flow
            self.edges.append((self.entered[meeting, target], chunks[0][1]))
            self.edges.append((chunks[-1][2], self.left[meeting, target]))
        for (meeting, rank), flow in self.sent.items():
            _, _, kind, own = self.flows[flow]
            if kind != PP:
                came = self.flows[incoming[meeting, rank]][3]
                self.edges += [(came[j - ahead][2], own[j][0]) for j in range(ahead, len(own))]
        for call in self.calls:
            if call[6] < 0:
                call[6] = incoming[call[2], call[0]]
