"""Many layouts as columns, read by the same formulas as one :class:`ParallelConfig`.

A degree is a float64 column of shape (n, 1): stages are the last axis of every formula, so columns and per-stage
rows meet by broadcasting. Whatever changes the *form* of a formula (pipeline shape, schedule, recompute, flags)
is one value for the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.layout.config import Module, Option, ParallelConfig, Quantities

Column = NDArray[np.float64]
COLUMNS = ("tp", "cp", "dp", "ep", "etp", "micro_batch", "expert_imbalance")


@dataclass(frozen=True)
class LayoutTable(Quantities):
    """``n`` layouts that share pipeline shape, schedule, recompute and flags.

    Columns (``tp cp dp ep etp micro_batch expert_imbalance``) have shape (n, 1); the other fields are those
    of :class:`ParallelConfig`.
    """

    tp: Column
    cp: Column
    dp: Column
    ep: Column
    etp: Column
    micro_batch: Column
    expert_imbalance: Column
    pp: int
    vpp: int
    zero: int
    sequence_parallel: bool
    recompute: Any
    schedule: str
    dispatcher: str
    cp_comm_type: str
    tp_comm_overlap: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_moe_comm: bool
    recompute_group: int
    activation_offload: float
    optimizer_offload: float
    moe_expert_capacity_factor: float | None
    fused_experts: bool
    cuda_graphs: str
    stages: Any
    option: Option
    recompute_modules: tuple[Module, ...]

    @classmethod
    def build(cls, base: ParallelConfig, **columns: Any) -> LayoutTable:
        """Vary some degrees of ``base``; the others are repeated.

        Parameters
        ----------
        base : ParallelConfig
            Gives every field that is not varied.
        **columns : array_like
            One-dimensional values of equal length for any of the columns.
        """
        shape = np.broadcast_shapes(*(np.shape(v) for v in columns.values())) or (1,)
        filled = {
            name: np.ascontiguousarray(
                np.broadcast_to(np.asarray(columns.get(name, getattr(base, name)), float), shape)
            )[:, None]
            for name in COLUMNS
        }
        rest: dict[str, Any] = {f.name: getattr(base, f.name) for f in fields(cls) if f.name not in filled}
        return cls(**(rest | filled))

    @classmethod
    def of(cls, layouts: Sequence[ParallelConfig]) -> LayoutTable:
        """Stack layouts that differ in columns only."""
        first = layouts[0]
        return cls.build(first, **{name: [getattr(x, name) for x in layouts] for name in COLUMNS})

    def __len__(self) -> int:
        return len(self.tp)

    def distinct(self, names: tuple[str, ...]) -> tuple[LayoutTable, Any]:
        """Rows that differ in some columns (the others as in the first such row), and which of them each row is."""
        code = np.zeros(len(self), dtype=np.int64)
        for name in names:
            values = getattr(self, name)[:, 0]
            if values.min() < values.max():
                found, place = np.unique(values, return_inverse=True)
                code = code * len(found) + place
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return self.take(first), which

    def take(self, rows: Any) -> LayoutTable:
        """Return the chosen rows (indices or a boolean mask)."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        return LayoutTable(**(kept | {name: kept[name][rows] for name in COLUMNS}))

    def row(self, index: int, base: ParallelConfig) -> ParallelConfig:
        """Return one layout as a :class:`ParallelConfig`, the fields that are not columns from ``base``."""
        degrees = {name: int(getattr(self, name)[index, 0]) for name in COLUMNS[:-1]}
        return base.model_copy(update=degrees | {"expert_imbalance": float(self.expert_imbalance[index, 0])})
