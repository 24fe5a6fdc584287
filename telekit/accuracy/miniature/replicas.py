"""What several ranks must hold alike: each parameter's copies, by group of ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from telekit.accuracy.miniature.mesh import Array, Place
from telekit.accuracy.miniature.run import Run
from telekit.accuracy.miniature.tape import Record
from telekit.errors import bad

What = Literal["parameter", "grad", "exp_avg", "exp_avg_sq"]


@dataclass(frozen=True)
class Replicas:
    """One parameter on every rank that has it.

    Attributes
    ----------
    name : str
        Of the parameter; of a tied weight the embedding's.
    groups : tuple of tuple of int
        Ranks that must hold the same.
    tensors : dict of int to ndarray
        Each rank's own, as the optimizer keeps it.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    tensors: dict[int, Array] = field(repr=False)

    @property
    def unequal(self) -> tuple[tuple[int, ...], ...]:
        """Groups whose ranks do not hold the same, to the bit (NaN equals NaN)."""
        return tuple(group for group in self.groups if not self._alike(group))

    def _alike(self, group: tuple[int, ...]) -> bool:
        first = self.tensors[group[0]]
        return all(np.array_equal(first, self.tensors[rank], equal_nan=True) for rank in group[1:])


def replicas(run: Run, what: What = "parameter", step: int = -1) -> tuple[Replicas, ...]:
    """Return every parameter's copies after (``grad``: in) an update.

    Parameters
    ----------
    run : Run
    what : {"parameter", "grad", "exp_avg", "exp_avg_sq"}
        ``grad`` is the gradient after reduction and clipping.
    step : int
        From 0; negative from the end.

    Raises
    ------
    InputError
        No such step, or its records were not kept.
    """
    last = len(run.losses)
    number = step + last if step < 0 else step
    part = "input" if what == "grad" else "output"
    found: dict[str, Replicas] = {}
    for record in run.records:
        if record.kind == "optimizer" and record.step == number and record.name.endswith(".Adam"):
            name = record.name.removeprefix("Optimizer.").removesuffix(".Adam")
            array, place = next((a, p) for key, a, p, _ in record.parts[part] if key == what)
            found[name] = _of(run, name, record, array, place)
    if not found:
        raise bad("step", step, "was not run, or its records were not kept", str(last - 1))
    first, copy = "embedding.word_embeddings.weight", "output_layer.weight"
    if run.config.tied and copy in found:
        a, b = found[first], found.pop(copy)
        groups = tuple(x + y for x, y in zip(a.groups, b.groups, strict=True))
        found[first] = Replicas(first, groups, a.tensors | b.tensors)
    return tuple(found.values())


def _of(run: Run, name: str, record: Record, array: Array, place: Place) -> Replicas:
    n = run.layout
    first = record.stage * n.dp * n.cp * n.tp
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    tensors = {}
    for inner, at in enumerate(np.ndindex(n.dp, n.cp, n.tp)):
        expert = (at[0] * n.cp + at[1]) % n.ep if place.experts else 0
        part = at[2] if place.tensor == "split" else 0
        groups[expert, part].append(first + inner)
        tensors[first + inner] = array[at]
    return Replicas(name, tuple(tuple(group) for _, group in sorted(groups.items())), tensors)
