"""Tables of chapter 9: what launches cost a published run, causes side by side, recorded traces, fitted values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from telekit import catalog
from telekit.cluster.config import ClusterConfig
from telekit.cluster.jitter import Jitter
from telekit.cluster.regimes import IdleFrequency, Monitor
from telekit.cluster.variability import slowest_of_machines
from telekit.cost.estimate import Estimate, estimate
from telekit.cost.scaling import resized
from telekit.diagnose.cluster_values import FITTED, fitted_cluster
from telekit.diagnose.diagnosis import Diagnosis, diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.faults.kinds import effects_of
from telekit.diagnose.fits import Measured, fit_idle
from telekit.diagnose.readers import read
from telekit.diagnose.trace import TraceSet
from telekit.job import Job, load_job
from telekit.ui.rank_charts import SPENT
from telekit.ui.tables import Table

CASE = "telechat3-105b-910b-256"
SIZES = (256, 4096)
HOSTS_US = (20, 30, 40, 60, 100)
GROWING = ("host", "recompute", "bubble", "dp_comm")
"""Parts of a step that change with the host's time a launch."""


@cache
def case(devices: int) -> Job:
    """Return TeleChat3-105B by its public training file, the batch grown with the devices."""
    return resized(load_job(catalog.record("jobs", CASE)["job"]), devices, weak=True)


def with_kernels(job: Job, values: Mapping[str, float]) -> Job:
    """Return the job on a cluster whose ``device.kernels`` have some measured values."""
    device = job.cluster.device
    kernels = device.kernels.model_copy(update=dict(values))
    cluster = job.cluster.model_copy(update={"device": device.model_copy(update={"kernels": kernels})})
    return replace(job, cluster=cluster)


def _step_s(found: Estimate) -> float:
    return found.step_time_s or 0.0


def launches_table() -> Table:
    """Say what the step of the case takes, by host time a launch."""
    usual = {n: _step_s(estimate(case(n))) for n in SIZES}
    lines = []
    for launch in HOSTS_US:
        found = {n: estimate(with_kernels(case(n), {"host_launch_s": launch * 1e-6})) for n in SIZES}
        parts = found[SIZES[0]].breakdown_s or {}
        steps = (f"{_step_s(found[n]):.2f} s" for n in SIZES)
        longer = f"{_step_s(found[SIZES[1]]) / usual[SIZES[1]] - 1:+.0%}"
        lines.append((f"{launch} µs", *steps, longer, *(f"{parts[name]:.2f}" for name in GROWING)))
    assumed = 1e6 * case(SIZES[0]).cluster.device.kernels.host_launch_s
    title = (
        f"TeleChat3-105B by its public file; a launch takes {assumed:.0f} µs in the catalog (assumed); "
        f"parts in s, on {SIZES[0]}"
    )
    head = ("a launch", *(f"step on {n:,}" for n in SIZES), f"longer on {SIZES[1]:,}", *GROWING)
    return Table(title, head, tuple(lines))


# --- three causes, side by side -----------------------------------------------------------------------------

STEP_S, NODES = 2.0, 512


def causes_table() -> Table:
    """Say what each cause may cost 4,096 devices; every size in it is illustrative."""
    idle = IdleFrequency(300e-6, 1.6, 3e-3)
    slowed = idle.slowdown([0.01] * 40, 400e-6)
    monitor = Monitor(15.0, 0.05)
    jitter = Jitter(0.005)
    busy = estimate(with_kernels(case(4096), {"host_launch_s": 40e-6}))
    rows = (
        ("idle mode", "each 10 ms a wait of 0.4 ms, then 3 ms at 1/1.6 the clock", slowed),
        ("busy hosts", "a launch takes 40 µs, not 20", _step_s(busy) / _step_s(estimate(case(4096)))),
        ("monitor", "50 ms every 15 s, each host at its own time", 1 + monitor.delay_s(STEP_S, NODES) / STEP_S),
        ("monitor", "the same, all hosts at once", 1 + monitor.delay_s(STEP_S, NODES, together=True) / STEP_S),
        ("jitter", "0.5 %, normal", jitter.slowest(4096)),
        ("jitter", "0.5 %, heavy tail", Jitter(0.005, "pareto").slowest(4096)),
        ("slow machines", "1 in 200 takes 10 % longer", slowest_of_machines(NODES, 0.005, 0.1)),
    )  # fmt: skip
    lines = tuple((f"{cause}: {what}", f"{factor - 1:.1%}") for cause, what, factor in rows)
    return Table("illustrative sizes, 4,096 devices on 512 hosts, a step of 2 s", ("cause", "longer"), lines)


# --- recorded traces ----------------------------------------------------------------------------------------


PREFIX = "torch_cpu_"


def recorded_files() -> list[Path]:
    """Return the traces recorded for the kit, by name."""
    return sorted((catalog.root() / "samples" / "traces").glob("*.json.gz"))


@cache
def recorded(*names: str) -> Diagnosis:
    """Diagnose recorded traces, those given together as ranks of one run."""
    return diagnose(TraceSet.of(t for path in recorded_files() if path.name in names for t in read(path)))


def recorded_table() -> Table:
    """Say where the time of the recorded traces goes: each alone, then the two ranks of one run together."""
    files = [path.name for path in recorded_files()]
    pair = [name for name in files if "_ddp_" in name]
    lines = []
    for group, said in (*(((name,), "") for name in files), (pair, ", both read")):
        found = recorded(*group)
        for summary, broken, trace in zip(found.ranks, found.run.breakdowns, found.run.traces, strict=True):
            total, wall = broken.total_s(), float(broken.wall_s.sum())
            spent = [sum(total[c] for c in names) for names in SPENT.values()]
            name = Path(summary.source).name.removesuffix(".json.gz").removeprefix(PREFIX) + said
            shown = (f"{1e3 * s:.2f}" for s in spent)
            off = f"{abs(sum(spent) / wall - 1):.1%}"
            lines.append((name, f"{len(trace):,}", f"{summary.steps}", *shown, f"{1e3 * wall:.2f}", off))
    head = ("trace", "events", "steps", "computing", "moving", "waiting", "data", "host", "wall", "off")
    return Table("recorded with torch.profiler on a CPU; ms of all steps together", head, tuple(lines))


# --- from traces to a cluster value -------------------------------------------------------------------------

PLANTED = TracedJob.of(64, steps=12, layers=1, host_launch_s=45e-6, jitter=Jitter(0.02, "exponential", 0.5))
"""A cluster whose devices and hosts differ from the catalog's, for its traces to be measured."""


@cache
def fitted() -> tuple[ClusterConfig, Measured]:
    """Measure the traces of the planted cluster; the case's cluster with what was found."""
    return fitted_cluster(generate(job=PLANTED, seed=2).traces.traces, case(SIZES[0]).cluster)


def measured() -> Measured:
    """Return all that the traces of the planted cluster show."""
    return fitted()[1]


def fitted_table() -> Table:
    """Lay what was planted beside what was measured of the traces, and beside the catalog's device."""
    found, planted, catalogued = measured(), PLANTED.jitter, case(SIZES[0]).cluster.device.kernels
    jitter, host = found.jitter, found.host
    if jitter is None or host is None:
        raise AssertionError("these traces show both")
    lines = (
        ("jitter", f"{catalogued.jitter:.2%}", f"{planted.deviation:.2%}", f"{jitter.deviation:.2%}"),
        ("its shape", "normal", planted.spread, jitter.spread),
        ("a node's share of it", "0", f"{planted.node_share:.2f}", f"{jitter.node_share:.2f}"),
        (
            "host, a launch",
            f"{1e6 * catalogued.host_launch_s:.0f} µs",
            f"{1e6 * PLANTED.host_launch_s:.0f} µs",
            f"{1e6 * host.host_launch_s:.1f} µs",
        ),
        ("idle mode", "none", "none", "none" if found.idle is None else str(found.idle)),
        ("monitor", "none", "none", "none" if found.monitor is None else str(found.monitor)),
    )
    return Table(
        f"traces of {PLANTED.ranks} ranks, {PLANTED.steps} steps",
        ("value", "catalog", "planted", "measured"),
        lines,
    )


IDLE_SEEDS = range(4)


def idle_table() -> Table:
    """Lay the idle mode that was planted in four jobs beside what their traces show of it."""
    lines = []
    for seed in IDLE_SEEDS:
        run = generate("frequency-drop-everywhere", TracedJob.of(16, steps=4), seed)
        effects, found = effects_of(run.faults, run.job), fit_idle(run.traces.traces)
        if found is None:
            raise AssertionError("these traces show it")
        lines.append(
            (
                *(f"{factor:.2f}" for factor in (run.truth().size, found.factor)),
                *(f"{1e3 * s:.1f} ms" for s in (effects.idle_window_s[0], found.window_s)),
                *(f"{1e6 * s:.0f} µs" for s in (effects.idle_s[0], found.threshold_s)),
            )
        )
    head = (
        "slower by, planted",
        "measured",
        "slow for, planted",
        "measured",
        "threshold, planted",
        "measured",
    )
    return Table("idle mode in traces of 16 ranks, 4 jobs", head, tuple(lines))


def estimated_table() -> Table:
    """Estimate the case with the catalog's device and with what was measured."""
    kernels = fitted()[0].device.kernels
    values = {name: getattr(kernels, name) for name in FITTED}
    lines = []
    for devices in SIZES:
        job = case(devices)
        for name, changed in (
            ("catalog", {}),
            ("measured: jitter", {"jitter": values["jitter"]}),
            ("measured: launch", {"host_launch_s": values["host_launch_s"]}),
            ("measured: both", values),
        ):
            one = estimate(with_kernels(job, changed))
            parts = one.breakdown_s or {}
            shown = (f"{_step_s(one):.2f} s", f"{parts['host']:.2f} s", f"{parts['waiting']:.2f} s")
            lines.append((f"{devices:,}", name, *shown, f"{_step_s(one) / _step_s(estimate(job)) - 1:+.1%}"))
    head = ("devices", "device.kernels", "step", "host", "waiting", "longer")
    return Table("TeleChat3-105B by its public file, before and after", head, tuple(lines))


def shape_table() -> Table:
    """Say what waiting for the slowest costs by the measured shape, and by the normal one that an estimate takes."""
    found = measured().jitter
    if found is None:
        raise AssertionError("these traces show it")
    normal = Jitter(found.deviation)
    lines = tuple((f"{n:,}", f"{normal.slowest(n) - 1:.1%}", f"{found.slowest(n) - 1:.1%}") for n in SIZES)
    return Table(
        "waiting for the slowest, over the mean step", ("devices", "as normal", "as measured"), lines
    )
