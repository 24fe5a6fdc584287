"""The layouts a search looks at: every product of degrees, as tables, with what each rule rejects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.layout.repairs import divisors
from telekit.layout.rules import Case, check_table
from telekit.layout.schedules import default_chunks
from telekit.layout.stages import OPTIONS, reaches
from telekit.layout.table import LayoutTable

DEGREES = ("tp", "cp", "ep", "etp", "micro_batch")
MAX_STAGES = 64
MAX_CHUNKS = 8
LONG_SEQUENCE, SHORTEST_SHARE = 8192, 2048
"""Context parallelism is searched above this length, or where there are fewer sequences than devices, down to so
many tokens a rank; elsewhere it splits attention for nothing."""


@dataclass(frozen=True)
class Shape:
    """Layouts of one pipeline shape and schedule, one row for each choice of degrees."""

    base: ParallelConfig
    table: LayoutTable

    def recomputing(self, choice: Any) -> LayoutTable:
        """Return the same rows under a recompute choice."""
        base = self.base.model_copy(update={"recompute": choice})
        return replace(
            self.table, recompute=choice, option=base.option, recompute_modules=base.recompute_modules
        )


def options(job: Job) -> dict[str, list[Any]]:
    """Values searched for each field; a field the job fixed keeps its one value."""
    devices, node, layers = job.cluster.devices, job.cluster.devices_per_node, job.model.num_layers
    moe, seq_len = job.model.moe, job.train.seq_len
    powers = [2**i for i in range(11)]
    wanted = seq_len > LONG_SEQUENCE or job.train.global_batch < devices
    found: dict[str, list[Any]] = {
        "tp": [d for d in divisors(devices) if d <= node],
        "cp": [d for d in powers if d == 1 or (wanted and seq_len // d >= SHORTEST_SHARE)],
        "pp": [d for d in divisors(devices) if d <= MAX_STAGES and reaches(layers, d)],
        "vpp": list(range(1, min(MAX_CHUNKS, layers) + 1)),
        "ep": [d for d in divisors(moe.num_experts) if d <= devices] if moe else [1],
        "etp": [d for d in (1, 2, 4, 8) if d <= node] if moe else [1],
        "micro_batch": [1, 2, 4, 8],
        "recompute": list(OPTIONS),
    }
    return found | {name: [getattr(job.layout, name)] for name in job.given if name in found}


def pipelines(job: Job) -> Iterator[ParallelConfig]:
    """Every pipeline shape that can be built from the model's layers."""
    values = options(job)
    for pp in values["pp"]:
        for schedule, vpp in _chunks(job, values["vpp"]):
            if not reaches(job.model.num_layers, pp * vpp) or (vpp > 1 and pp == 1):
                continue
            yield job.layout.model_copy(update={"pp": pp, "vpp": vpp, "schedule": schedule, "dp": 1})


def _chunks(job: Job, chunks: list[int]) -> list[tuple[str, int]]:
    """Schedules and chunks that go together: without a schedule given, 1F1B and its interleaved form."""
    if "schedule" not in job.given:
        return [("interleaved-1f1b" if v > 1 else "1f1b", v) for v in chunks]
    schedule = job.layout.schedule
    if "vpp" in job.given or schedule == "interleaved-1f1b":
        return [(schedule, v) for v in chunks]
    return [(schedule, default_chunks(schedule))]


def tables(job: Job) -> Iterator[Shape]:
    """Every table of the search: one for each pipeline shape, its rows all degrees that use every device."""
    values = options(job)
    degrees = np.array(list(product(*(values[n] for n in DEGREES))), float)
    for base in pipelines(job):
        columns = dict(zip(DEGREES, degrees.T, strict=True))
        dp = job.cluster.devices / (columns["tp"] * columns["cp"] * base.pp)
        table = LayoutTable.build(base, **columns, dp=np.maximum(dp, 1.0))
        whole = (dp == np.floor(dp)) & (("dp" not in job.given) | (dp == job.layout.dp))
        if whole.any():
            yield Shape(base, table.take(whole))


def valid_rows(job: Job, shape: Shape, rejected: Counter[str]) -> Shape:
    """Rows that break no rule; what the others broke is added to ``rejected``, once for each recompute choice."""
    valid, reasons = check_table(Case(job.model, job.cluster, job.train, shape.table))
    choices = len(options(job)["recompute"])
    rejected.update({name: count * choices for name, count in reasons.items()})
    return replace(shape, table=shape.table.take(valid))
