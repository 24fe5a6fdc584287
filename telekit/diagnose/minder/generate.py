"""Labelled metrics of a training job's machines, with faults, glitches and slow-downs of all; all of it illustrative.

All machines do the same at the same time: computing and communicating in turn, so that their metrics swing together. A
faulty machine differs in the metrics of its kind, and slows the others down with it. A glitch is a difference that
passes: it is no fault. Which metrics a kind moves, and by how much, are assumptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.minder.metrics import MachineMetrics
from telekit.errors import InputError, Problem

Floats = NDArray[np.float64]


class Metric(NamedTuple):
    """A metric's top, and its level while the job computes and while it communicates, as shares of the top."""

    top: float
    computing: float
    communicating: float


METRICS = {
    "cpu usage %": Metric(100, 0.35, 0.25),
    "gpu duty cycle %": Metric(100, 0.95, 0.60),
    "gpu power W": Metric(700, 0.85, 0.40),
    "gpu graphics activity %": Metric(100, 0.90, 0.35),
    "gpu tensor activity %": Metric(100, 0.60, 0.05),
    "gpu memory used GB": Metric(80, 0.85, 0.85),
    "nvlink GB/s": Metric(400, 0.60, 0.20),
    "pfc tx packets/s": Metric(50_000, 0.02, 0.05),
    "rdma GB/s": Metric(50, 0.10, 0.70),
    "disk usage %": Metric(100, 0.30, 0.30),
}

# What a kind of fault does at full severity: a metric's value times the first, plus the second times its top.
FAULT_KINDS: dict[str, dict[str, tuple[float, float]]] = {
    "gpu-ecc": {"gpu duty cycle %": (0.4, 0), "gpu power W": (0.5, 0), "gpu memory used GB": (0.5, 0)},
    "pcie-downgrade": {"pfc tx packets/s": (1, 0.7), "rdma GB/s": (0.4, 0)},
    "nic-drop": {"rdma GB/s": (0.05, 0), "pfc tx packets/s": (1, 0.4), "cpu usage %": (0.5, 0)},
    "nvlink-error": {"nvlink GB/s": (0.2, 0), "gpu tensor activity %": (0.5, 0)},
    "gpu-drop": {"gpu duty cycle %": (0.3, 0), "gpu graphics activity %": (0.3, 0), "gpu power W": (0.4, 0)},
    "hung-process": {"gpu tensor activity %": (0, 0), "gpu power W": (0.4, 0), "cpu usage %": (1, 0.3)},
    "cpu-contention": {"cpu usage %": (1, 0.5)},
    "thermal-throttle": {"gpu power W": (0.5, 0), "gpu graphics activity %": (0.7, 0)},
    "disk-fault": {"disk usage %": (1, 0.6), "cpu usage %": (1, 0.25)},
}


@dataclass(frozen=True)
class MachineFault:
    """One machine's fault.

    Parameters
    ----------
    kind : str
        One of :data:`FAULT_KINDS`.
    machine : int
        Which machine.
    start_s, end_s : float
        From when to when.
    severity : float
        From 0 (nothing) to 1.
    """

    kind: str
    machine: int
    start_s: float
    end_s: float
    severity: float = 1.0


@dataclass(frozen=True)
class MachineRun:
    """Metrics and the truth about them."""

    metrics: MachineMetrics
    faults: tuple[MachineFault, ...] = ()

    @property
    def faulty(self) -> frozenset[str]:
        """Names of the faulty machines."""
        return frozenset(self.metrics.machines[fault.machine] for fault in self.faults)


def generate(
    machines: int = 16,
    duration_s: int = 900,
    faults: MachineFault | Iterable[MachineFault] = (),
    *,
    glitches_per_hour: float = 8.0,
    longest_glitch_s: float = 120.0,
    slow_down: tuple[float, float] | None = None,
    missing: float = 0.0,
    seed: int = 0,
) -> MachineRun:
    """Make a run's metrics, one sample a second.

    Parameters
    ----------
    machines, duration_s : int
        How many, and how long.
    faults : MachineFault or iterable of MachineFault
        What is wrong.
    glitches_per_hour, longest_glitch_s : float
        Differences of one machine in one metric that pass: how many in the whole job, and how long at most.
    slow_down : (float, float), optional
        From which second on all machines work at which share of their usual level: not a machine's fault.
    missing : float
        Share of the samples that is missing, in gaps of about 5 s.
    seed : int
        Of everything drawn.

    Returns
    -------
    MachineRun

    Raises
    ------
    InputError
        A fault of no machine or kind, or sizes out of range.
    """
    wanted = (faults,) if isinstance(faults, MachineFault) else tuple(faults)
    _check(machines, duration_s, missing, wanted)
    rng = np.random.default_rng(seed)
    pace = np.ones(duration_s)
    if slow_down:
        pace[max(int(slow_down[0]), 0) :] *= slow_down[1]
    for fault in wanted:
        pace[_span(fault.start_s, fault.end_s, duration_s)] *= 1 - 0.4 * fault.severity
    values = _healthy(machines, pace, rng)
    for fault in wanted:
        _apply(fault, values, rng)
    for _ in range(rng.poisson(glitches_per_hour * duration_s / 3600)):
        _glitch(values, longest_glitch_s, rng)
    values = np.clip(values, 0.0, 1.5) * np.array([metric.top for metric in METRICS.values()])[:, None, None]
    if missing:
        values[_gaps(values.shape, missing, rng)] = np.nan
    names = tuple(f"machine-{number}" for number in range(machines))
    return MachineRun(MachineMetrics(tuple(METRICS), names, values), wanted)


def draw_fault(
    seed: int, machines: int = 16, duration_s: int = 900, kinds: Sequence[str] = ()
) -> MachineFault:
    """Draw a fault that lasts 5 to 10 minutes, within the run."""
    rng = np.random.default_rng([seed, 1])
    kind = str(rng.choice(list(kinds or FAULT_KINDS)))
    length_s = min(float(rng.uniform(300, 600)), 0.9 * duration_s)
    start_s = float(rng.uniform(0, duration_s - length_s))
    severity = float(rng.uniform(0.6, 1.0))
    return MachineFault(kind, int(rng.integers(machines)), start_s, start_s + length_s, severity)


def _check(machines: int, duration_s: int, missing: float, faults: tuple[MachineFault, ...]) -> None:
    problems = []
    if not 1 <= machines <= 4096:
        problems.append(Problem("machines", machines, "must be from 1 to 4096", "16 works"))
    if not 10 <= duration_s <= 86_400 or machines * duration_s > 2**23:
        problems.append(Problem("duration_s", duration_s, "must be from 10 s to a day, and fit", "900 works"))
    if not 0 <= missing < 1:
        problems.append(Problem("missing", missing, "must be a share from 0 to below 1", "0.05 works"))
    for fault in faults:
        if fault.kind not in FAULT_KINDS:
            problems.append(Problem("fault.kind", fault.kind, f"must be one of {', '.join(FAULT_KINDS)}"))
        if not 0 <= fault.machine < machines:
            problems.append(Problem("fault.machine", fault.machine, f"must be from 0 to {machines - 1}"))
    if problems:
        raise InputError(problems)


def _healthy(machines: int, pace: Floats, rng: np.random.Generator) -> Floats:
    """Levels of healthy machines, as shares of each metric's top, shape (metrics, machines, samples)."""
    period_s, share = rng.uniform(5, 20), rng.uniform(0.5, 0.8)
    lag_s = rng.normal(0.0, 0.1, (machines, 1))
    turn = (np.cumsum(pace) - lag_s) / period_s % 1.0
    computing = np.clip((share - turn) * period_s + 0.5, 0, 1) * np.clip(turn * period_s + 0.5, 0, 1)
    found = np.empty((len(METRICS), machines, pace.size))
    for row, metric in enumerate(METRICS.values()):
        level = metric.communicating + (metric.computing - metric.communicating) * computing
        moved = level * (pace if metric.computing != metric.communicating else 1.0)
        own = 1 + rng.normal(0.0, 0.01, (machines, 1))
        found[row] = (
            moved * own + _wander(computing.shape, 0.01, 20, rng) + rng.normal(0, 0.01, computing.shape)
        )
    return found


def _wander(shape: tuple[int, int], spread: float, memory_s: float, rng: np.random.Generator) -> Floats:
    """Noise that remembers: an autoregressive process of order 1."""
    from scipy.signal import lfilter

    keep = float(np.exp(-1 / memory_s))
    drawn = rng.normal(0.0, spread * np.sqrt(1 - keep**2), shape)
    drawn[:, 0] /= np.sqrt(1 - keep**2)
    return np.asarray(lfilter([1.0], [1.0, -keep], drawn, axis=-1))


def _apply(fault: MachineFault, values: Floats, rng: np.random.Generator) -> None:
    """Move a fault's metrics, each with a chance of 4 in 5, at least one, by an amount that wavers."""
    effects = FAULT_KINDS[fault.kind]
    moved = rng.random(len(effects)) < 0.8
    moved[rng.integers(len(effects))] = True
    span = _span(fault.start_s, fault.end_s, values.shape[2])
    strength = fault.severity * (1 + _wander((1, values.shape[2]), 0.1, 10, rng)[0, span])
    for (name, (times, plus)), here in zip(effects.items(), moved, strict=True):
        if here:
            row = list(METRICS).index(name)
            part = values[row, fault.machine, span]
            values[row, fault.machine, span] = part * (1 + (times - 1) * strength) + plus * strength


def _glitch(values: Floats, longest_s: float, rng: np.random.Generator) -> None:
    row, machine = rng.integers(values.shape[0]), rng.integers(values.shape[1])
    start_s, size = rng.uniform(0, values.shape[2]), rng.uniform(0.2, 0.6)
    span = _span(start_s, start_s + rng.uniform(5, max(longest_s, 5)), values.shape[2])
    sign = -1 if values[row, machine].mean() > 0.5 else 1
    values[row, machine, span] += sign * size


def _gaps(
    shape: tuple[int, ...], missing: float, rng: np.random.Generator, length: int = 5
) -> NDArray[np.bool_]:
    starts: NDArray[np.bool_] = rng.random(shape) < 1 - (1 - missing) ** (1 / length)
    gone = np.array(starts)
    for later in range(1, length):
        gone[..., later:] |= starts[..., :-later]
    return gone


def _span(start_s: float, end_s: float, samples: int) -> slice:
    return slice(min(max(round(start_s), 0), samples), min(max(round(end_s), 0), samples))
