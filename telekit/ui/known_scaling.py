"""Published results of chapter 10 beside ours: scaling, whole runs, speeds, failures; and what they leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from telekit import catalog
from telekit.cluster.variability import Spread, expected_largest
from telekit.cost.estimate import estimate
from telekit.cost.packing_gain import telechat3_36b
from telekit.cost.scaling import Point, at_batch, resized, scaling
from telekit.cost.scaling_failures import (
    Failures,
    best_interval_s,
    daly_interval_s,
    effective_rate,
    first_order_rate,
    job_mtbf_s,
    young_interval_s,
)
from telekit.cost.scaling_run import DAY_S, HOUR_S, whole_run
from telekit.job import Job, load_job
from telekit.model.utilization import flops_per_token
from telekit.ui.tables import Table
from telekit.units import gib
from telekit.validation import report
from telekit.validation.megascale import MEGATRON, columns, table
from telekit.validation.readings import rows
from telekit.validation.runs import PublishedRun, published_runs
from telekit.validation.scoreboard import scoreboard_path

MEGASCALE = "MegaScale"
DETECT_S, RECOVER_S = 600.0, 900.0
"""MegaScale's bounds: a fault is noticed within 10 minutes, training goes on within 15 more."""


@dataclass(frozen=True)
class Measured:
    """One published step: by which software, on how many devices."""

    method: str
    devices: int
    step_s: float
    tokens: int

    @property
    def tokens_per_s_per_device(self) -> float:
        """Speed of one device."""
        return self.tokens / (self.step_s * self.devices)


@dataclass(frozen=True)
class Curve:
    """A published scaling curve, and the job that says its first method's rows."""

    job: Job
    measured: tuple[Measured, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of devices, without those of other methods."""
        return tuple(m.devices for m in self.measured if m.method == self.measured[0].method)


def _runs(beginning: str) -> tuple[PublishedRun, ...]:
    return tuple(run for run in published_runs() if run.id.startswith(beginning))


def _of_runs(beginning: str, method: str) -> Curve:
    found = sorted(_runs(beginning), key=lambda run: run.job.cluster.devices)
    points = tuple(
        Measured(method, run.job.cluster.devices, run.measured_step_s, run.job.train.tokens) for run in found
    )
    return Curve(found[0].job, points)


def table_rows(batch: int | None = None) -> tuple[Mapping[str, Any], ...]:
    """Rows of MegaScale's table, of one global batch or of both."""
    return tuple(row for row in table() if batch in (None, row["gbs"]))


def _of_table(batch: int) -> Curve:
    points = tuple(
        Measured(row["method"], row["n_gpus"], row["step_time_s"], batch * row["seq_len"])
        for method in (MEGATRON, MEGASCALE)
        for row in table_rows(batch)
        if row["method"] == method
    )
    return Curve(resized(at_batch(gpt_175b(), batch), points[0].devices), points)


def gpt_175b() -> Job:
    """Return Megatron-LM's 175B model as MegaScale's table runs it, on 3,072 A100 at a batch of 6,144."""
    return _runs("megascale_megatron_6144_3072")[0].job


CURVES = {
    "GPT 175B, batch 6,144": lambda: _of_table(6144),
    "GPT 175B, batch 768": lambda: _of_table(768),
    "GPT 175B, batch 1,536 (2021)": lambda: _of_runs("sc21_t2_ptdp_174p6", MEGATRON),
    "GPT 530B, batch 2,240 (2021)": lambda: _of_runs("sc21_t2_ptdp_529p6", MEGATRON),
    "MT-NLG 530B, batch 1,920": lambda: _of_runs("mtnlg_", MEGATRON),
    "Llama-3 405B, batch 2,048": lambda: _of_runs("llama3_405b", "Llama 3"),
}
"""Published curves of strong scaling."""


@cache
def curve(name: str) -> Curve:
    """One of :data:`CURVES`."""
    return CURVES[name]()


@lru_cache(maxsize=4096)
def step(name: str, devices: int, batch: int | None = None, network: float = 1.0) -> Point:
    """Estimate a curve's job on so many devices, by the pipeline's closed form."""
    job = curve(name).job
    if batch is not None and batch != job.train.global_batch:
        job = at_batch(job, batch)
    return scaling(job, [devices], network=network, simulate=False).points[0]


def megatron_flops(job: Job) -> float:
    """FLOPs of one token of training as Megatron-LM counts them: all keys, no recompute."""
    return float(flops_per_token(job.model, job.train.seq_len, "megatron"))


@cache
def run_step(name: str, place: float = 1.0) -> Point:
    """Estimate the step of one of :data:`RUNS` on its devices, or on so many times as many."""
    job = run_of(name)[0].job
    return scaling(job, [round(place * job.cluster.devices)]).points[0]


# --- tables -------------------------------------------------------------------------------------------------


def megascale_table() -> Table:
    """Read MegaScale's table again: our step for Megatron-LM's rows, and both derived columns."""
    lines = []
    for row in sorted(table_rows(), key=lambda r: (r["method"] != MEGATRON, r["n_gpus"])):
        again = columns(row, gpt_175b().model)
        ours = ("", "")
        if row["method"] == MEGATRON:
            name = "GPT 175B, batch 6,144" if row["gbs"] == 6144 else "GPT 175B, batch 768"
            found = step(name, row["n_gpus"]).step_s
            ours = (f"{found:.2f}", f"{found / row['step_time_s'] - 1:+.1%}")
        cells = [f"{row['n_gpus']:,}", f"{row['gbs']:,}", f"{row['step_time_s']:g}", *ours]
        cells += [f"{row['mfu_pct']:.1f}", f"{100 * again.mfu:.1f}", f"{row['aggregate_pflops']:,.1f}"]
        off = again.published_flops_per_s / again.flops_per_s - 1
        lines.append((row["method"], *cells, f"{off:+.1%}" if again.contradicts else ""))
    head = ("method", "GPUs", "batch", "step [s]", "ours", "error", "MFU", "again", "PFLOP/s", "off by")
    title = (
        "arXiv 2402.15627 table 2. again: MFU from tokens/s, nominal FLOPs; off by: PFLOP/s over MFU x peak"
    )
    return Table(title, head, tuple(lines))


WEAK = (2240, 4480, 11200)
"""Devices of MegaScale's weak scaling, a 530B model; its batch is not published, only MFU is."""


def weak_table() -> Table:
    """Weak scaling of 530B: what a device keeps of its speed, as published and ours, at two batches a rank."""
    published = {(r["method"], r["n_gpus"]): r["mfu_pct"] for r in rows("throughput") if "530b_m" in r["id"]}
    job = _runs("mtnlg_530b_2240")[0].job
    first, replica = WEAK[0], job.layout.tp * job.layout.pp
    ours = [scaling(at_batch(job, n * first // replica), WEAK, weak=True).efficiency for n in (105, 280)]
    lines = []
    for place, devices in enumerate(WEAK):
        both = [(published[m, devices], published[m, first]) for m in ("Megatron", MEGASCALE)]
        kept = (cell for here, begin in both for cell in (f"{here:.1f}", f"{here / begin:.1%}"))
        lines.append((f"{devices:,}", *kept, *(f"{shares[place]:.1%}" for shares in ours)))
    head = ("GPUs", "Megatron MFU", "kept", "MegaScale MFU", "kept", "ours, 105 a rank", "ours, 280 a rank")
    return Table("530B, tp 8, pp 35: weak scaling; kept: over the first row", head, tuple(lines))


def scoreboard() -> dict[str, Any]:
    """Return the shipped scoreboard, as ``telekit validate --write`` stored it."""
    found: dict[str, Any] = catalog.load(scoreboard_path())
    return found


def scoreboard_table() -> Table:
    """Errors of every group, as ``telekit validate`` prints them; error and bias are of rows held out."""
    title = "estimated over measured, less 1; error: mean size, bias: mean, both of rows held out"
    return Table(title, report.HEAD, tuple(report.lines(scoreboard())))


RUNS: dict[str, tuple[str, str]] = {
    "DeepSeek-V3": ("dsv3_isca_mpft", "run_deepseek_v3"),
    "Llama-3.1-405B": ("llama3_405b_16384_8192", "run_llama_3_1_405b"),
}
"""Whole runs whose hours are published: the published step, and the row of the run."""


@cache
def run_of(name: str) -> tuple[PublishedRun, Mapping[str, Any]]:
    """Return the published step and the row of one of :data:`RUNS`."""
    step_id, row_id = RUNS[name]
    return _runs(step_id)[0], next(row for row in rows("scaling") if row["id"] == row_id)


def whole_runs() -> Table:
    """Device-hours of published runs: as published, by their published step, and ours."""
    lines = []
    for name in RUNS:
        run, row = run_of(name)
        job, tokens = run.job, row["train_tokens"]
        by_step = run.measured_step_s * tokens / job.train.tokens * job.cluster.devices / HOUR_S
        ours = whole_run(run_step(name), tokens)
        million = (f"{hours / 1e6:.3f} M" for hours in (row["device_hours"], by_step, ours.device_hours))
        ratios = (f"{by_step / row['device_hours']:.1%}", f"{ours.device_hours / row['device_hours']:.1%}")
        place = f"{job.cluster.devices:,} {row['gpu']}"
        lines.append((name, place, f"{tokens / 1e12:g} T", *million, *ratios, f"{ours.days:.0f}"))
    head = (
        "run",
        "devices",
        "tokens",
        "published",
        "by its step",
        "ours",
        "step/publ.",
        "ours/publ.",
        "days",
    )
    return Table(
        "device-hours of pre-training; neither of the last two knows of failures", head, tuple(lines)
    )


def choosing_table() -> Table:
    """Say how well estimates choose among measured plans."""
    lines = [
        (
            row["id"],
            str(row["plans"]),
            f"{row['spearman']:.2f}",
            f"{row['regret']:.1%}",
            str(len(row["odd"]) or ""),
        )
        for row in scoreboard()["planning"]
    ]
    head = ("measured plans of", "plans", "Spearman", "our choice loses", "odd")
    return Table(
        "odd: slower per sample than at the next smaller micro-batch, all else equal", head, tuple(lines)
    )


def slopes_table() -> Table:
    """Memory that a smaller EP adds, of pairs of dry runs, beside ours."""
    lines = [
        (
            row["id"],
            row["against"],
            f"{gib(row['measured_bytes']):.2f}",
            f"{gib(row['estimated_bytes']):.2f}",
            f"{row['error']:+.1%}",
        )
        for row in scoreboard()["expert_slopes"]
    ]
    head = ("dry run at EP 4", "at EP 8", "between", "ours", "error")
    return Table("memory of the fullest device, GiB", head, tuple(lines))


def gap_table() -> Table:
    """Compare the closed form of the search with the simulation of the answer, by schedule."""
    lines = [
        (
            row["schedule"],
            str(row["layouts"]),
            *(f"{row[name]:+.1%}" for name in ("least", "mean", "largest")),
        )
        for row in scoreboard()["closed_form"]
    ]
    head = ("schedule", "layouts", "least", "mean", "largest")
    return Table("closed form over simulation, less 1, of whole steps", head, tuple(lines))


LENGTHS = (4096, 8192, 16384, 32768)


def telechat_job(name: str, seq_len: int) -> Job:
    """Return TeleChat3 on as many devices as its speed was published for; layouts of its public training files."""
    if name == "TeleChat3-36B":
        job = telechat3_36b()
        return replace(job, train=job.train.model_copy(update={"seq_len": seq_len}))
    record = catalog.load(catalog.root() / "jobs" / "telechat3-105b-910b-256.json")["job"]
    longer = load_job(record | {"train": record["train"] | {"seq_len": seq_len}})
    return resized(longer, 4096, weak=True)


def telechat_speeds() -> Table:
    """Put published speeds of TeleChat3 at every length a sample may have had, beside ours."""
    lines = []
    for row in rows("scaling"):
        if row["kind"] != "speed":
            continue
        for seq_len in LENGTHS:
            found = estimate(telechat_job(row["name"], seq_len))
            published = row["samples_per_s_per_npu"] * seq_len
            ours = found.tokens_per_s_per_device or 0.0
            fits = "yes" if found.fits else f"{gib(found.peak_bytes):.0f} GiB"
            rates = (f"{published:,.0f}", f"{ours:,.0f}", f"{ours / published:.2f}")
            lines.append((row["name"], f"{row['n_gpus']:,}", f"{seq_len:,}", *rates, fits))
    head = ("model", "NPUs", "if a sample has", "published", "ours", "ours/publ.", "fits")
    title = (
        "tokens a second and NPU; 0.0633 and 0.1002 samples/s/NPU are published, how long a sample is, is not"
    )
    return Table(title, head, tuple(lines))


def slowest_table() -> Table:
    """Give the expected largest of n draws, in standard deviations above the mean."""
    spreads: tuple[Spread, ...] = ("normal", "exponential", "pareto")
    lines = [
        (f"{n:,}", *(f"{expected_largest(n, spread):.2f}" for spread in spreads))
        for n in (8, 64, 512, 4096, 12288)
    ]
    head = ("devices", "normal", "exponential tail", "heavy tail")
    return Table("the slowest of n, in standard deviations above the mean", head, tuple(lines))


def llama_mtbf_s() -> float:
    """Mean time between unexpected interruptions of one H100, of Llama 3's 54 days on 16,384 of them."""
    row = next(r for r in rows("scaling") if r["id"] == "failures_llama_3")
    return float(row["days"] * DAY_S * row["n_gpus"] / row["unexpected"])


def checkpoint_table() -> Table:
    """Best intervals between checkpoints by three formulas, and what they leave, at Llama 3's rate of failures."""
    lines = []
    for devices in (1024, 4096, 16384, 65536):
        for stall in (10.0, 60.0):
            f = Failures(job_mtbf_s(llama_mtbf_s(), devices), DETECT_S, RECOVER_S, stall)
            best = best_interval_s(f)
            said = (f"{f.mtbf_s / HOUR_S:.1f} h", f"{stall:g} s")
            three = (f"{x / 60:.1f}" for x in (best, young_interval_s(f), daly_interval_s(f)))
            rates = (effective_rate(best, f), first_order_rate(best, f), effective_rate(3600.0, f))
            lines.append((f"{devices:,}", *said, *three, *(f"{rate:.1%}" for rate in rates)))
    head = (
        "devices",
        "job's MTBF",
        "stall",
        "best [min]",
        "Young",
        "Daly",
        "useful",
        "1st order",
        "at 60 min",
    )
    hours = llama_mtbf_s() / HOUR_S
    title = (
        f"one failure in {hours:,.0f} device-hours (Llama 3); 10 min until noticed, 15 until training goes on"
    )
    return Table(title, head, tuple(lines))
