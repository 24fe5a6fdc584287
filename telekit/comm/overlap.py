"""Communication beside computation: an exact event simulation of tasks on streams, with interference.

A stream is a resource that runs one task at a time, in the order the tasks are listed (the order of launch). One
stream computes; every other one communicates (links inside a node, links between nodes, ...). While something
computes and something communicates, computing runs at ``compute_rate`` and communication at ``comm_rate`` of full
speed, since kernels of a collective hold compute units and both share memory bandwidth. Rates change only when a
task starts or ends, so that every time is exact: fractions where all inputs are whole numbers or fractions.

Every instant until the end something runs, which gives the two identities that the names below rest on::

    makespan = compute + slowdown + exposed          added = makespan - compute = slowdown + exposed
    hidden   = compute + comm - makespan = comm - added
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

from telekit.errors import InputError, Problem, bad
from telekit.timeline import chrome_trace, compile_order

COMPUTE = "compute"
"""Name of the stream that computes; all others communicate."""

Number = Any
"""An int, a float or a Fraction."""


@dataclass(frozen=True)
class Task:
    """One kernel or transfer.

    Attributes
    ----------
    name : str
        Unique name.
    stream : str
        :data:`COMPUTE`, or the name of a communication stream.
    work_s : int, float or Fraction
        Seconds it takes alone, at full speed.
    after : tuple of str
        Names of the tasks that must have ended before it starts.
    kind : str
        What it belongs to, for colours: ``forward``, ``backward``, ``input gradient``, ``weight gradient`` or
        ``recompute``.
    """

    name: str
    stream: str
    work_s: Number
    after: tuple[str, ...] = ()
    kind: str = "forward"


@dataclass(frozen=True)
class Overlap:
    """Tasks as they ran; made by :func:`simulate`.

    Attributes
    ----------
    tasks : tuple of Task
        As given.
    start_s, end_s : tuple of numbers
        When each runs, in seconds.
    compute_rate, comm_rate : number
        Share of full speed while both run.
    exposed_s : number
        Exposed communication: time in which some communication runs and no compute does. Never above ``comm_s``.
    together_s : number
        Time in which compute and some communication run at once.
    longest_chain_s : number
        Longest chain of dependencies at full speed.
    """

    tasks: tuple[Task, ...]
    start_s: tuple[Number, ...]
    end_s: tuple[Number, ...]
    compute_rate: Number
    comm_rate: Number
    exposed_s: Number
    together_s: Number
    longest_chain_s: Number

    @property
    def makespan_s(self) -> Number:
        """End of the last task."""
        return max(self.end_s, default=0)

    @property
    def work_s(self) -> dict[str, Number]:
        """Work of each stream at full speed, in the order in which streams are first named."""
        found: dict[str, Number] = {}
        for task in self.tasks:
            found[task.stream] = found.get(task.stream, 0) + as_number(task.work_s)
        return found

    @property
    def compute_s(self) -> Number:
        """Compute alone, at full speed."""
        return self.work_s.get(COMPUTE, 0)

    @property
    def comm_s(self) -> Number:
        """Total communication: work of all communication streams at full speed."""
        return sum(self.comm_by_stream)

    @property
    def comm_by_stream(self) -> list[Number]:
        """Work of each communication stream."""
        return [work for stream, work in self.work_s.items() if stream != COMPUTE]

    @property
    def slowdown_s(self) -> Number:
        """What interference adds to the time that compute runs."""
        return (1 - self.compute_rate) * self.together_s

    @property
    def added_s(self) -> Number:
        """Growth over compute alone: ``makespan_s - compute_s``, which is ``exposed_s + slowdown_s``.

        Above ``comm_s`` only where ``compute_rate + comm_rate < 1``: then running both at once is a loss.
        """
        return self.makespan_s - self.compute_s

    @property
    def serial_s(self) -> Number:
        """All tasks one after the other: no overlap at all."""
        return self.compute_s + self.comm_s

    @property
    def hidden_s(self) -> Number:
        """What overlap saves: ``serial_s - makespan_s``; negative where it costs."""
        return self.serial_s - self.makespan_s

    @property
    def efficiency(self) -> Number:
        """Share that is hidden of what could be, the lesser of compute and communication; 1 for nothing to hide."""
        most = min(self.compute_s, self.comm_s)
        return self.hidden_s / most if most else 1

    @property
    def sharing_bound_s(self) -> Number:
        """No order of the tasks ends sooner: each communication stream against compute, at the stated rates.

        Of compute C and a stream M, at most ``min(C / compute_rate, M / comm_rate)`` seconds run at once, and each
        of them saves ``compute_rate + comm_rate - 1``. At rates 1 it is the busiest stream.
        """
        c, m, alone = self.compute_rate, self.comm_rate, self.compute_s
        gain = max(c + m - 1, 0)
        streams = self.comm_by_stream
        return max((alone + comm - gain * min(alone / c, comm / m) for comm in streams), default=alone)

    @property
    def lower_bound_s(self) -> Number:
        """The greater of ``longest_chain_s`` and ``sharing_bound_s``: no order of launch ends sooner."""
        return max(self.longest_chain_s, self.sharing_bound_s)

    @property
    def streams(self) -> list[str]:
        """Streams from top to bottom: compute, then communication as first named."""
        return sorted(self.work_s, key=lambda stream: stream != COMPUTE)

    def marks(self) -> dict[str, list[Any]]:
        """Columns lane (place in ``streams``), kind, start_s, end_s, text: what a Gantt chart takes."""
        lane = {stream: i for i, stream in enumerate(self.streams)}
        return {
            "lane": [lane[task.stream] for task in self.tasks],
            "kind": [task.kind for task in self.tasks],
            "start_s": [float(start) for start in self.start_s],
            "end_s": [float(end) for end in self.end_s],
            "text": [task.name for task in self.tasks],
        }

    def to_chrome_trace(self) -> dict[str, Any]:
        """Trace for Perfetto or chrome://tracing, one track a stream."""
        lane, kind, start, end, text = self.marks().values()
        return chrome_trace(start, end, lane, text, kind, self.streams)

    def to_dict(self) -> dict[str, Any]:
        """Plain floats for JSON, the tasks' times included."""
        keys = (
            "makespan_s", "compute_s", "comm_s", "exposed_s", "slowdown_s", "added_s", "serial_s", "hidden_s",
            "efficiency", "longest_chain_s", "sharing_bound_s", "lower_bound_s", "compute_rate", "comm_rate",
        )  # fmt: skip
        rows = zip(self.tasks, self.start_s, self.end_s, strict=True)
        return {key: float(getattr(self, key)) for key in keys} | {
            "tasks": [
                {"name": task.name, "stream": task.stream, "start_s": float(start), "end_s": float(end)}
                for task, start, end in rows
            ]
        }


def rate_of_units(taken: int, total: int) -> Fraction:
    """``compute_rate`` when communication holds ``taken`` of ``total`` compute units.

    DeepSeek-V3 gives 20 of an H800's 132 SMs to communication: 28/33 (arXiv 2412.19437, 3.2.2).
    """
    if not 0 <= taken < total:
        raise bad("taken", taken, f"must be at least 0 and below the {total} units there are", "20 of 132")
    return Fraction(total - taken, total)


def rate_of_efficiency(efficiency: Number) -> Number:
    """Both rates at which one pair that starts together hides ``efficiency`` of the lesser of the two: 1 / (2 - e).

    1 is overlap without interference, 0 saves nothing. The pair then takes ``longer + (1 - e) * shorter``, whatever
    its two times: a measured efficiency (a link with one hardware queue, say) becomes a rate.
    """
    if not 0 <= efficiency <= 1:
        raise bad("efficiency", efficiency, "must be from 0 (nothing is hidden) to 1", "1")
    return 1 / (2 - as_number(efficiency))


def simulate(
    tasks: Sequence[Task], compute_rate: Number = 1, comm_rate: Number = 1, queues: int | None = None
) -> Overlap:
    """Run tasks, each as early as its stream, its dependencies and its hardware queue let it.

    Parameters
    ----------
    tasks : sequence of Task
        In the order of launch.
    compute_rate, comm_rate : number
        Share of full speed, in (0, 1], at which compute and communication run while both do. Communication streams
        do not slow each other.
    queues : int, optional
        Hardware queues (``CUDA_DEVICE_MAX_CONNECTIONS``) that the streams share in turn; without it each stream
        has its own. A queue hands out its tasks in the order of launch: what waits at its head keeps all behind
        it, of any stream, from starting.

    Returns
    -------
    Overlap

    Raises
    ------
    InputError
        For times below 0 or not finite, rates outside (0, 1], names that are double or unknown, and tasks that
        wait for each other in a circle.

    Notes
    -----
    With one communication stream lower rates never end sooner. With several they can, where ``comm_rate`` is below
    1: delaying what is not urgent may keep it from slowing what is.
    """
    tasks = tuple(tasks)
    _check(tasks, compute_rate, comm_rate, queues)
    number = {task.name: i for i, task in enumerate(tasks)}
    before = [[number[name] for name in dict.fromkeys(task.after)] for task in tasks]
    stream = list({task.stream: None for task in tasks})
    queue = {name: i % queues if queues else i for i, name in enumerate(stream)}
    held = [queue[task.stream] for task in tasks]
    _raise_circle(tasks, before, held if queues else None)
    values = [as_number(value) for value in (compute_rate, comm_rate, *(task.work_s for task in tasks))]
    if not all(isinstance(value, Fraction) for value in values):
        values = [float(value) for value in values]
    c, m, *works = values
    line = _Line([task.stream for task in tasks], held, before, works, (c, m))
    line.run()
    chain: dict[int, Number] = {}
    for i in line.ended:
        chain[i] = works[i] + max((chain[j] for j in before[i]), default=0)
    spans = tuple(line.start), tuple(line.end)
    return Overlap(tasks, *spans, c, m, line.exposed, line.together, max(chain.values(), default=0))


class _Line:
    """State of a run: what is left of each task, and whose turn it is on each stream and queue."""

    def __init__(
        self,
        streams: list[str],
        queues: list[int],
        before: list[list[int]],
        works: list[Number],
        rates: tuple[Number, Number],
    ) -> None:
        self.streams, self.queues, self.left, self.rates = streams, queues, list(works), rates
        self.waits = [len(found) for found in before]
        self.next: list[list[int]] = [[] for _ in works]
        self.by_stream: dict[str, deque[int]] = {stream: deque() for stream in streams}
        self.by_queue: dict[int, deque[int]] = {queue: deque() for queue in queues}
        for i, found in enumerate(before):
            self.by_stream[streams[i]].append(i)
            self.by_queue[queues[i]].append(i)
            for j in found:
                self.next[j].append(i)
        self.running: dict[str, int] = {}
        self.now = self.exposed = self.together = rates[0] * 0
        self.start, self.end = [self.now] * len(works), [self.now] * len(works)
        self.ended: list[int] = []

    def run(self) -> None:
        while len(self.ended) < len(self.left):
            self._launch()
            self._advance()

    def _launch(self) -> None:
        """Start all that can; a start may free its queue for the next."""
        found = True
        while found:
            found = False
            for stream, line in self.by_stream.items():
                if line and stream not in self.running and self._is_due(line[0]):
                    i = line.popleft()
                    self.by_queue[self.queues[i]].popleft()
                    self.running[stream], self.start[i], found = i, self.now, True

    def _is_due(self, i: int) -> bool:
        return not self.waits[i] and self.by_queue[self.queues[i]][0] == i

    def _advance(self) -> None:
        """Go to the next end of a task."""
        computing = COMPUTE in self.running
        both = computing and len(self.running) > 1
        rate = {stream: self.rates[stream != COMPUTE] if both else 1 for stream in self.running}
        needs = {stream: self.left[i] / rate[stream] for stream, i in self.running.items()}
        step = min(needs.values())
        self.now += step
        if both:
            self.together += step
        elif not computing:
            self.exposed += step
        for stream, i in list(self.running.items()):
            if needs[stream] > step:
                self.left[i] = max(self.left[i] - step * rate[stream], 0)
                continue
            del self.running[stream]
            self.end[i] = self.now
            self.ended.append(i)
            for j in self.next[i]:
                self.waits[j] -= 1


def as_number(value: Number) -> Number:
    """Make whole numbers fractions, so that sums and shares stay exact; other numbers floats."""
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, Real):
        return float(value)
    raise bad("time", value, "must be a number", "1.5")


def _is_number(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return isinstance(value, Rational) or math.isfinite(value)


def _check(tasks: tuple[Task, ...], compute_rate: Number, comm_rate: Number, queues: int | None) -> None:
    """Raise an error that lists all that is wrong but circles."""
    problems = []
    for field, rate in (("compute_rate", compute_rate), ("comm_rate", comm_rate)):
        if not (_is_number(rate) and 0 < rate <= 1):
            rule = "must be a share of full speed, above 0 and at most 1"
            problems.append(Problem(field, rate, rule, "1 is no interference"))
    if queues is not None and (not isinstance(queues, int) or queues < 1):
        rule = "must be a whole number of hardware queues, 1 or more"
        problems.append(Problem("queues", queues, rule, "leave it out for a queue a stream"))
    known: dict[str, int] = {}
    for task in tasks:
        known[task.name] = known.get(task.name, 0) + 1
    problems += [
        Problem("tasks", name, f"{times} tasks have this name", "give each its own")
        for name, times in known.items()
        if times > 1
    ]
    for task in tasks:
        if not (_is_number(task.work_s) and task.work_s >= 0):
            rule = "must be a finite number of seconds, 0 or more"
            problems.append(Problem(f"{task.name}.work_s", task.work_s, rule, "0 for nothing to do"))
        problems += [
            Problem(f"{task.name}.after", name, "no task has this name", f"for example {tasks[0].name}")
            for name in task.after
            if name not in known
        ]
    if problems:
        raise InputError(problems)


def _raise_circle(tasks: tuple[Task, ...], before: list[list[int]], queues: list[int] | None) -> None:
    """Raise an error for tasks that can never start, by dependencies and the orders of streams and queues."""
    edges = [(j, i) for i, found in enumerate(before) for j in found]
    if queues is not None:
        last: dict[int, int] = {}
        for i, queue in enumerate(queues):
            if queue in last:
                edges.append((last[queue], i))
            last[queue] = i
    place = {stream: n for n, stream in enumerate(dict.fromkeys(task.stream for task in tasks))}
    lanes = [place[task.stream] for task in tasks]
    compile_order(lanes, [j for j, _ in edges], [i for _, i in edges], lambda i: tasks[i].name)
