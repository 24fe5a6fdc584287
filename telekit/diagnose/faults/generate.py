"""Traces with their truth: one call from a kind of fault and a seed to the traces of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from telekit.cluster.jitter import Jitter
from telekit.cluster.variability import Spread
from telekit.diagnose.faults.job import TracedJob
from telekit.diagnose.faults.kinds import HEALTHY, Fault, Truth, draw_fault, effects_of, truth_of
from telekit.diagnose.faults.machine import simulate
from telekit.diagnose.faults.traces import build_traces
from telekit.diagnose.trace import TraceSet
from telekit.errors import bad


@dataclass(frozen=True, eq=False)
class LabelledTraces:
    """A run's traces and what is wrong with it.

    Parameters
    ----------
    job : TracedJob
        What ran.
    faults : tuple of Fault
        What was put in.
    traces : TraceSet
        One trace a rank.
    seed : int
        Chance of the run.
    """

    job: TracedJob
    faults: tuple[Fault, ...]
    traces: TraceSet
    seed: int

    @property
    def truths(self) -> tuple[Truth, ...]:
        """What is true, one a fault."""
        return tuple(truth_of(fault, self.job) for fault in self.faults)

    def truth(self) -> Truth:
        """Return what is true of the run: of its one fault, or that it is healthy.

        Raises
        ------
        InputError
            It has several faults (see ``truths``).
        """
        if len(self.faults) > 1:
            raise bad("faults", len(self.faults), "several faults have several truths", "read truths")
        return self.truths[0] if self.faults else Truth()

    def write(self, folder: str | Path, compress: bool = True) -> list[Path]:
        """Write one Kineto file a rank, as ``telekit diagnose`` reads them; return the paths."""
        from telekit.diagnose.faults.kineto import write_kineto

        return [write_kineto(trace, folder, compress) for trace in self.traces]


def generate(
    fault: str | Fault | Sequence[Fault] = HEALTHY, job: TracedJob | int = 16, seed: int = 0
) -> LabelledTraces:
    """Simulate a job with a fault and return the traces of all its ranks.

    Parameters
    ----------
    fault : str, Fault or sequence of Fault
        A kind (:data:`telekit.diagnose.faults.kinds.FAULT_KINDS`, or ``healthy``), of which one is drawn; or faults.
    job : TracedJob or int
        What runs, or how many ranks a usual job has (:meth:`TracedJob.of`).
    seed : int
        Chance of the run and of what is drawn: the same seed gives the same traces.

    Raises
    ------
    InputError
        A kind, job or fault that does not exist.
    """
    job = TracedJob.of(job) if isinstance(job, int) else job
    if isinstance(fault, str):
        faults: tuple[Fault, ...] = () if fault == HEALTHY else (draw_fault(fault, job, seed),)
    else:
        faults = (fault,) if isinstance(fault, Fault) else tuple(fault)
    effects = effects_of(faults, job)
    traces = build_traces(job, simulate(job, effects, seed), effects, seed)
    return LabelledTraces(job, faults, traces, seed)


def draw_job(ranks: int, seed: int, steps: int = 6) -> TracedJob:
    """Draw a job of so many ranks: jobs differ in work, in their hosts, in how machines vary, and in their clocks.

    Raises
    ------
    InputError
        No usual layout has so many ranks.
    """
    chance = np.random.default_rng([seed, ranks])
    spreads: tuple[Spread, ...] = ("normal", "exponential", "pareto")
    jitter = Jitter(
        deviation=float(chance.uniform(0.002, 0.012)),
        spread=spreads[int(chance.integers(len(spreads)))],
        node_share=float(chance.choice([0.0, 0.3, 0.6])),
    )
    usual = TracedJob.of(ranks)
    return TracedJob.of(
        ranks,
        steps=steps,
        layers=int(chance.integers(1, 4)),
        micro_batches=usual.pp * int(chance.integers(1, 3)),
        kernel_scale=float(chance.uniform(0.8, 1.5)),
        host_launch_s=float(chance.uniform(10e-6, 30e-6)),
        data_s=float(chance.uniform(1e-4, 6e-4)),
        jitter=jitter,
        link_jitter=float(chance.uniform(0.01, 0.06)),
        clock_offset_s=float(10 ** chance.uniform(-4, 0)),
        clock_drift=float(10 ** chance.uniform(-6.5, -4.5)),
    )
