"""Which layers stand on which chunk of which stage.

A pipeline of ``pp`` stages with ``vpp`` chunks has ``pp * vpp`` parts of the model, in order. Looped schedules put
part ``v * pp + s`` on chunk ``v`` of stage ``s``; V-shaped ones turn around, so that chunk 1 of stage ``s`` holds part
``2 * pp - 1 - s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem
from telekit.layout.config import ParallelConfig, StageLayers
from telekit.layout.pipeline_string import LayoutPart, read_layout, write_layout
from telekit.model.config import ModelConfig

MOST_SHOWN = 16
"""Numbers of a list that a message shows."""

OPTIONS = ("none", "selective", "full")
V_SHAPED = ("zb-v", "dualpipe-v")


@dataclass(frozen=True)
class Assignment:
    """Layers by kind and recompute option: ``counts`` has shape (kinds, options, chunks, stages).

    ``embedding`` and ``head`` are the (chunk, stage) that hold the input embedding and the output head (with
    the multi-token-prediction modules).
    """

    counts: NDArray[np.int64]
    embedding: tuple[int, int]
    head: tuple[int, int]

    @property
    def layers(self) -> NDArray[np.int64]:
        """Layers of each chunk and stage, shape (chunks, stages)."""
        return np.asarray(self.counts.sum(axis=(0, 1)))


def part_positions(schedule: str, stages: int, chunks: int) -> list[tuple[int, int]]:
    """(chunk, stage) of each part of the model, first to last."""
    if schedule in V_SHAPED:
        return [(0, s) for s in range(stages)] + [(1, s) for s in reversed(range(stages))]
    return [(v, s) for v in range(chunks) for s in range(stages)]


def reaches(layers: int, parts: int) -> bool:
    """Whether the layers fill every part, the first and the last apart: embedding and head may stand alone."""
    return parts - 2 <= layers


def even_split(layers: int, parts: int) -> list[int]:
    """Layers of each part when nothing is said: equal, the surplus away from the ends, which hold more work.

    Where there are one or two layers fewer than parts, an end or both stay empty, the last one first.
    """
    base, surplus = divmod(layers, parts)
    takers = [*range(1, parts - 1), 0, parts - 1] if parts > 1 else [0]
    takes = set(takers[:surplus])
    return [base + (part in takes) for part in range(parts)]


def cells(model: ModelConfig, layout: Any) -> list[tuple[tuple[int, int], StageLayers]]:
    """List (chunk, stage) and layers of each part of the model, first to last."""
    positions = part_positions(layout.schedule, layout.pp, layout.vpp)
    if layout.stages == "auto":
        split = even_split(model.num_layers, len(positions))
        return [(at, StageLayers(layers=n)) for at, n in zip(positions, split, strict=True)]
    return [((v, s), layout.stages[v][s]) for v, s in positions]


def stages_of(text: str, pp: int, num_layers: int, mtp: int = 0) -> list[list[int]]:
    """Read a layout string as ``stages`` of a layout: layers of each chunk (outer) and stage.

    Parameters
    ----------
    text, pp
        As for :func:`telekit.layout.pipeline_string.read_layout`.
    num_layers, mtp : int
        Layers and trained MTP modules of the model.

    Raises
    ------
    InputError
        What the reader refuses; and, all at once, layers or MTP modules lost or too many, an empty part in between
        (Megatron-LM issue 1852: its pipeline then waits for ever), MTP modules away from the head.
    """
    rows = read_layout(text, pp)
    flat = [part for row in rows for part in row]
    layers, modules = sum(part.layers for part in flat), sum(part.mtp for part in flat)
    empty = [str(at) for at, part in enumerate(flat) if part == LayoutPart()][:MOST_SHOWN]
    bare = [str(at) for at, part in enumerate(flat[:-1]) if part.mtp][:MOST_SHOWN]
    broken = {
        f"places {layers} layers; the model has {num_layers}": layers != num_layers,
        f"places {modules} MTP modules; the model trains {mtp}": modules != mtp,
        f"leaves part {', '.join(empty)} of {len(flat)} (counted from 0) empty: the pipeline waits at it": empty,
        f"has MTP modules in part {', '.join(bare)}: here they stand in the last, with the head": bare,
    }
    hint = _filled_string(num_layers, pp, len(rows), mtp)
    problems = [Problem("layout string", text, rule, hint) for rule, wrong in broken.items() if wrong]
    if problems:
        raise InputError(problems)
    return [[part.layers for part in row] for row in rows]


def _filled_string(num_layers: int, pp: int, chunks: int, mtp: int) -> str:
    """Suggest a string of as many chunks, or of as many as the layers reach."""
    most = min(chunks, (num_layers + 2) // pp)
    if most < 1:
        return f"pp {num_layers + 2} at most"
    fewer = "" if most == chunks else f" (vpp {most})"
    return f"{write_layout(even_split(num_layers, pp * most), mtp)} works{fewer}"


def assign(model: ModelConfig, layout: Any) -> Assignment:
    """Return where every layer stands under a layout (one, or a table: its shape is shared).

    The layout must be valid; :mod:`telekit.layout.rules` says when it is.
    """
    placed = cells(model, layout)
    counts = np.zeros((len(model.kinds), len(OPTIONS), layout.vpp, layout.pp), dtype=np.int64)
    depth = 0
    for (chunk, stage), cell in placed:
        for option in cell.options(layout.option):
            counts[model.pattern[depth], OPTIONS.index(option), chunk, stage] += 1
            depth += 1
    return Assignment(counts, placed[0][0], placed[-1][0])


def with_counts(layout: ParallelConfig, model: ModelConfig, counts: NDArray[np.int64]) -> ParallelConfig:
    """Write counts by kind, option, chunk and stage into a layout's ``stages``.

    Within a chunk, the layers of one kind take ``full`` first, then ``selective``; the choice is written as
    counts where that says it exactly, else layer by layer.
    """
    if not isinstance(layout.recompute, tuple):  # from here on, stages say what is recomputed
        layout = layout.model_copy(update={"recompute": "none"})
    rows: list[list[StageLayers]] = [[StageLayers(layers=0)] * layout.pp for _ in range(layout.vpp)]
    depth = 0
    for chunk, stage in part_positions(layout.schedule, layout.pp, layout.vpp):
        left = counts[:, :, chunk, stage].copy()
        size = int(left.sum())
        chosen: list[str] = []
        for kind in model.pattern[depth : depth + size]:
            option = max(i for i in range(len(OPTIONS)) if left[kind, i] > 0)
            left[kind, option] -= 1
            chosen.append(OPTIONS[option])
        depth += size
        rows[chunk][stage] = _cell(tuple(chosen), layout.option)
    return layout.model_copy(update={"stages": tuple(tuple(row) for row in rows)})


def _cell(chosen: tuple[str, ...], default: str) -> StageLayers:
    plain = StageLayers(layers=len(chosen))
    if plain.options(default) == chosen:
        return plain
    some = {name: chosen.count(name) for name in ("full", "selective") if name in chosen}
    by_count = StageLayers.model_validate({"layers": len(chosen), "recompute": some})
    if by_count.options(default) == chosen:
        return by_count
    return StageLayers.model_validate({"layers": len(chosen), "recompute": chosen})
