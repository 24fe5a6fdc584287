"""SAPP's memory decomposition: memory of a layer, of the ends and of each recompute type from stages' peaks.

A 1F1B stage s of p holds ``p - s`` micro-batches, so its peak is

``peak_s = const + n_s * parameter + (p - s) * sum over types r of n_{s,r} * activation_r``

plus the head on the first stage and the tail on the last. Peaks of middle stages give linear equations; the
first and the last stage then give head and tail (mindformers, ``toolkit/pipeline_balance/utils/compute_memory``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.planner.sapp_layers import RECOMPUTE


@dataclass(frozen=True)
class LayerMemory:
    """What the peaks are made of, in their unit.

    ``activation`` is that of one layer and micro-batch by recompute type; ``constant`` is 0 when there were
    too few stages to find it. As in SAPP, the constant is not subtracted from head and tail.
    """

    head: float
    parameter: float
    activation: Mapping[str, float]
    tail: float
    constant: float


def decompose_memory(
    peaks: Mapping[int, float], layers: Sequence[int], recompute: Mapping[str, Sequence[int]]
) -> LayerMemory:
    """Solve for the memory of layers and ends.

    Parameters
    ----------
    peaks : mapping of int to float
        Peak of some stages; the first and the last must be among them. The others must be at least two more
        than the recompute types in use (NONE is one); with one more the constant is found, too.
    layers : sequence of int
        Layers of every stage.
    recompute : mapping of str to sequence of int
        Layers of every stage by type (SLCT, COMM, BOTH, FULL).

    Raises
    ------
    InputError
        When stages are missing, too few or too alike.
    """
    stages = len(layers)
    _check(peaks, layers, recompute)
    types = ["NONE", *(r for r in RECOMPUTE if any(recompute.get(r, ())))]
    counts = {r: np.asarray(recompute[r]) for r in types[1:]}
    counts["NONE"] = np.asarray(layers) - sum(counts.values())
    held = stages - np.arange(stages)
    per_layer = np.stack([np.asarray(layers), *(counts[r] * held for r in types)], axis=1).astype(np.float64)
    middle = sorted(s for s in peaks if 0 < s < stages - 1)
    with_constant = len(middle) > len(types) + 1
    rows = np.hstack([per_layer[middle], np.ones((len(middle), int(with_constant)))])
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        rule = (
            f"these stages are too alike: {rows.shape[1]} unknowns, {np.linalg.matrix_rank(rows)} equations"
        )
        raise bad("stages", middle, rule, "run another round with other offsets and recompute")
    found = np.linalg.lstsq(rows, np.array([peaks[s] for s in middle], dtype=np.float64), rcond=None)[0]
    body = found[: per_layer.shape[1]]
    last = stages - 1
    return LayerMemory(
        head=float(peaks[0] - per_layer[0] @ body),
        parameter=float(body[0]),
        activation=dict(zip(types, body[1:].tolist(), strict=True)),
        tail=float(peaks[last] - per_layer[last] @ body),
        constant=float(found[-1]) if with_constant else 0.0,
    )


def _check(peaks: Mapping[int, float], layers: Sequence[int], recompute: Mapping[str, Sequence[int]]) -> None:
    stages, problems = len(layers), []
    known = {s: p for s, p in peaks.items() if 0 <= s < stages and np.isfinite(p)}
    if len(known) < len(peaks):
        problems.append(
            Problem("peaks", sorted(set(peaks) - set(known)), f"stages are 0 to {stages - 1}, peaks finite")
        )
    if not {0, stages - 1} <= set(known):
        problems.append(
            Problem("peaks", sorted(known), f"the first and the last stage, {stages - 1}, are needed")
        )
    for r, row in recompute.items():
        if r not in RECOMPUTE or len(row) != stages:
            problems.append(
                Problem(f"recompute.{r}", len(row), f"must be one of {RECOMPUTE}, a count for each stage")
            )
    needed = 2 + sum(any(row) for row in recompute.values())
    if len(set(known) - {0, stages - 1}) < needed:
        problems.append(
            Problem("peaks", sorted(known), f"at least {needed} stages between the ends are needed")
        )
    if problems:
        raise InputError(problems)
