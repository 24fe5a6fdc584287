"""MegaScale's table of a 175B model (arXiv 2402.15627 table 2): its MFU and PFLOP/s columns, computed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from telekit.model.config import ModelConfig
from telekit.model.utilization import utilization
from telekit.validation.readings import rows
from telekit.validation.run_models import gpt

PEAK_FLOPS_PER_S = 312e12
"""A100, 16 bits, dense."""

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


def column_rows() -> tuple[ColumnRow, ...]:
    """Every open row of the table that has both columns."""
    found = []
    for row in rows("throughput"):
        if not row["id"].startswith("megascale_") or "aggregate_pflops" not in row:
            continue
        model = gpt(row["hidden"], row["heads"], row["layers"], row["vocab"], row["seq_len"])
        found.append(columns(row, model))
    return tuple(found)


def columns(row: Mapping[str, Any], model: ModelConfig) -> ColumnRow:
    """Compute both columns of one row again."""
    speed = row["tokens_per_s_k"] * 1e3 / row["n_gpus"]
    mfu = utilization(model, row["seq_len"], speed, PEAK_FLOPS_PER_S, "megatron").mfu
    total = row["mfu_pct"] / 100 * PEAK_FLOPS_PER_S * row["n_gpus"]
    return ColumnRow(
        row["id"],
        row["method"],
        row["n_gpus"],
        row["mfu_pct"] / 100,
        mfu,
        row["aggregate_pflops"] * 1e15,
        total,
    )
