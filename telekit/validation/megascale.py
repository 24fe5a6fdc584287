"""MegaScale's table of a 175B model (arXiv 2402.15627 table 2): its MFU and PFLOP/s columns, computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telekit.model.config import ModelConfig
from telekit.model.utilization import utilization
from telekit.validation.readings import Row, cluster_of, rows
from telekit.validation.run_models import gpt

DEVICE = "a100-80gb"
MEGATRON = "Megatron-LM"
CONTRADICTS = 0.01
"""Share by which a PFLOP/s cell may miss MFU times peak times devices; rounding to 0.1 point moves it by 0.3 %."""


@dataclass(frozen=True)
class ColumnRow:
    """One row of the table, computed again.

    Attributes
    ----------
    id, method : str
    devices : int
    published_mfu, mfu : float
        Shares; ours from the published tokens a second by the nominal count (all keys, no window).
    published_flops_per_s, flops_per_s : float
        Aggregate; ours is the published MFU times peak times devices.
    """

    id: str
    method: str
    devices: int
    published_mfu: float
    mfu: float
    published_flops_per_s: float
    flops_per_s: float

    @property
    def mfu_points(self) -> float:
        """What our MFU exceeds the published one by, in points."""
        return 100 * (self.mfu - self.published_mfu)

    @property
    def contradicts(self) -> bool:
        """True when the PFLOP/s cell cannot belong to its row's MFU and devices."""
        return abs(self.published_flops_per_s / self.flops_per_s - 1) > CONTRADICTS


def open_rows() -> tuple[Row, ...]:
    """Rows of the table in ``throughput.json``, which has half of them."""
    return tuple(
        row for row in rows("throughput") if row["id"].startswith("megascale_") and "aggregate_pflops" in row
    )


def table() -> tuple[Row, ...]:
    """Every row of the table; Megatron-LM under that name."""
    found = (
        row | {"method": MEGATRON if row["method"] == "Megatron" else row["method"]} for row in open_rows()
    )
    return (*found, *(row for row in rows("scaling") if row["kind"] == "strong_scaling"))


def column_rows() -> tuple[ColumnRow, ...]:
    """Both columns of every open row."""
    return tuple(
        columns(row, gpt(row["hidden"], row["heads"], row["layers"], row["vocab"], row["seq_len"]))
        for row in open_rows()
    )


def columns(row: Mapping[str, Any], model: ModelConfig) -> ColumnRow:
    """Compute both columns of one row again."""
    peak = cluster_of(DEVICE, 8).device.peak("bf16")
    speed = row["tokens_per_s_k"] * 1e3 / row["n_gpus"]
    mfu = utilization(model, row["seq_len"], speed, peak, "megatron").mfu
    total = row["mfu_pct"] / 100 * peak * row["n_gpus"]
    return ColumnRow(
        row["id"],
        row["method"],
        row["n_gpus"],
        row["mfu_pct"] / 100,
        mfu,
        row["aggregate_pflops"] * 1e15,
        total,
    )
