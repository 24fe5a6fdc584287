"""Which ranks talk to each other: the groups of a layout, in Megatron-Core's order of ranks.

Ranks count up through tensor ranks first, then context, data and pipeline ranks; on the expert side through expert
tensor ranks, expert ranks, expert data ranks and pipeline ranks. Source: ``RankGenerator`` and
``initialize_model_parallel`` of ``megatron/core/parallel_state.py`` at 00caa53af309 of github:NVIDIA/Megatron-LM, order
``tp-cp-ep-dp-pp``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem
from telekit.layout.config import ParallelConfig

Groups = NDArray[np.int64]

MOST_RANKS = 2**16
"""Ranks of a layout whose groups are listed."""

DENSE, EXPERT = ("pp", "dp", "cp", "tp"), ("pp", "edp", "ep", "etp")


def rank_groups(layout: ParallelConfig) -> dict[str, Groups]:
    """List every group of ranks by its name.

    Parameters
    ----------
    layout : ParallelConfig
        With ``dp`` said.

    Returns
    -------
    dict of str to array of int64, shape (groups, ranks of one)
        ``tp cp dp pp``, ``dp-cp`` (over which a dense parameter's gradient is summed), and on the expert side
        ``etp ep edp``. Each rank is in one group of each name; a group's ranks ascend.

    Raises
    ------
    InputError
        ``dp`` is not said, ep * etp does not divide a stage's ranks, or there are more than :data:`MOST_RANKS`.
    """
    problems = _problems(layout)
    if problems:
        raise InputError(problems)
    assert layout.dp is not None
    edp = layout.stage_devices // (layout.ep * layout.etp)
    ranks = np.arange(layout.pp * layout.stage_devices, dtype=np.int64)
    dense = ranks.reshape(layout.pp, layout.dp, layout.cp, layout.tp)
    expert = ranks.reshape(layout.pp, edp, layout.ep, layout.etp)
    found = {name: _along(dense, DENSE, name) for name in reversed(DENSE)}
    found["dp-cp"] = _along(dense, DENSE, "dp", "cp")
    return found | {name: _along(expert, EXPERT, name) for name in ("etp", "ep", "edp")}


def _along(ranks: Groups, axes: tuple[str, ...], *names: str) -> Groups:
    """Group the ranks that differ along some axes only."""
    inner = [axes.index(name) for name in names]
    outer = [axis for axis in range(len(axes)) if axis not in inner]
    size = int(np.prod([ranks.shape[axis] for axis in inner]))
    return ranks.transpose(*outer, *inner).reshape(-1, size)


def _problems(layout: ParallelConfig) -> list[Problem]:
    if layout.dp is None:
        return [
            Problem("layout.dp", "missing", "must be said: without it there is no number of ranks", "dp 1")
        ]
    problems, total = [], layout.pp * layout.stage_devices
    if total > MOST_RANKS:
        problems.append(
            Problem("layout", f"{total} ranks", f"groups are listed for {MOST_RANKS:,} ranks at most")
        )
    if layout.stage_devices % (layout.ep * layout.etp):
        rule = f"ep * etp = {layout.ep * layout.etp} must divide the {layout.stage_devices} ranks of a stage"
        problems.append(Problem("layout.ep", layout.ep, rule, "ep 1 and etp 1 work"))
    return problems
