"""How a data-parallel rank runs its micro-batches, and where ranks meet: what a step of unequal ones depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from telekit.errors import InputError, Problem
from telekit.packing.inputs import counts
from telekit.pipeline.registry import EVERY

Meets = Literal["gradients", "layer"]
MEETS: tuple[Meets, ...] = ("gradients", "layer")


@dataclass(frozen=True)
class Plan:
    """How a data-parallel rank runs its micro-batches, and where ranks meet.

    Attributes
    ----------
    stages, chunks : int
        Pipeline stages, model parts a stage holds.
    schedule : str
        A name of :data:`telekit.pipeline.registry.EVERY`; with one stage there is nothing to schedule.
    comm_s : float
        Seconds from a stage to the next; no device is busy with it.
    fixed_s : float
        Seconds of a step that micro-batches do not change: gradient reduction that nothing hides, the optimizer.
    meets : str
        ``gradients``: ranks wait for each other once a step. ``layer``: ranks of a group wait in every layer.
    group : int or None
        Data-parallel ranks, one after the other, that meet in every layer; None: all of them.
    weight_share : float or array (chunks, stages)
        Part of a backward pass that computes weights' gradients, for schedules that move it.
    pair_share : float or array (chunks, stages)
        Time of a forward and a backward pass run as one block over their sum, for schedules that pair them.
    level : float
        Factor on the pipeline's time: a closed form over the simulation, both of equal micro-batches. With it equal
        ones take what the closed form says, and unequal ones as much more as the simulation says.

    Both shares are those of usual micro-batches, and are taken for all.

    Raises
    ------
    InputError
        Naming all that is out of range.
    """

    stages: int = 1
    chunks: int = 1
    schedule: str = "1f1b"
    comm_s: float = 0.0
    fixed_s: float = 0.0
    meets: Meets = "gradients"
    group: int | None = None
    weight_share: ArrayLike = 0.5
    pair_share: ArrayLike = 1.0
    level: float = 1.0

    def __post_init__(self) -> None:
        problems = _wrong_counts(self) + _wrong_numbers(self)
        for name, known in (("schedule", EVERY), ("meets", MEETS)):
            if not isinstance(value := getattr(self, name), str) or value not in known:
                problems.append(
                    Problem(name, value, f"must be one of {', '.join(known)}", f"{next(iter(known))} works")
                )
        if problems:
            raise InputError(problems)

    @classmethod
    def of(cls, layout: Any, comm_s: float = 0.0, fixed_s: float = 0.0) -> Plan:
        """Read a layout (one, not a table): an expert group larger than ``tp * cp`` spans data-parallel ranks."""
        group = max(1, layout.ep * layout.etp // (layout.tp * layout.cp))
        meets: Meets = "layer" if group > 1 else "gradients"
        schedule = layout.schedule if layout.pp > 1 else "1f1b"
        return cls(layout.pp, layout.vpp, schedule, comm_s, fixed_s, meets, group if group > 1 else None)

    @property
    def pairs(self) -> bool:
        """Whether pairing a forward with a backward saves time."""
        return bool((np.asarray(self.pair_share) != 1).any())

    @property
    def why(self) -> str:
        """Say which meeting is used, and why."""
        if self.meets == "gradients":
            return (
                "Ranks meet once a step, at the gradient reduction: a rank's own sum of work is what counts."
            )
        who = "all ranks" if self.group is None else f"the {self.group} ranks of an expert group"
        return f"Experts are exchanged among {who} in every layer: each micro-batch takes as long as the slowest one's."


def _wrong_counts(plan: Plan) -> list[Problem]:
    return [
        Problem(name, value, "must be a whole number from 1", "1 works")
        for name in ("stages", "chunks", "group")
        if not counts(value := getattr(plan, name)) and not (name == "group" and value is None)
    ]


def _wrong_numbers(plan: Plan) -> list[Problem]:
    """Name times that are no times, and shares that are none."""
    found = []
    for name, low, high, rule in (
        ("comm_s", 0.0, np.inf, "must be a time of 0 or more"),
        ("fixed_s", 0.0, np.inf, "must be a time of 0 or more"),
        ("weight_share", 1e-9, 1.0, "must be above 0 and below 1"),
        ("pair_share", 1e-9, 1.0 + 1e-12, "must be above 0 and at most 1"),
        ("level", 1e-9, np.inf, "must be a positive factor"),
    ):
        value = getattr(plan, name)
        try:
            number = np.asarray(value)
            good = number.dtype.kind in "iuf" and bool(((number >= low) & (number < high)).all())
        except (TypeError, ValueError):
            good = False
        single = not name.endswith("share")
        if not good or (single and number.ndim) or number.ndim not in (0, 2):
            found.append(Problem(name, value, rule, f"{getattr(Plan, name)} works"))
    return found
