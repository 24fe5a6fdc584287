"""A training step of unequal micro-batches: data-parallel ranks, each with its own pipeline, and where they wait.

Each data-parallel rank runs its schedule over its own micro-batches (timed by :mod:`telekit.pipeline.simulate`), then
all ranks meet at the gradient reduction. Where an expert-parallel group spans several data-parallel ranks they meet in
every layer too, so each micro-batch takes as long as the group's slowest (``meets="layer"``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from telekit.packing.ordering import order_micro_batches as order_micro_batches
from telekit.packing.plan import MEETS as MEETS
from telekit.packing.plan import Meets as Meets
from telekit.packing.plan import Plan as Plan
from telekit.packing.timing import Floats, checked_times, met, pipeline_s
from telekit.packing.timing import simulate as simulate


@dataclass(frozen=True)
class Step:
    """One step, or many at once (leading axes ...). Each rank's four times and ``fixed_s`` sum to the step's.

    Attributes
    ----------
    plan : Plan
        What ran.
    busy_s : array (..., ranks)
        Computing, the mean over a rank's stages; less what pairing passes hides.
    layer_wait_s : array (..., ranks)
        Waiting inside layers for slower ranks of the expert group; 0 where ranks meet at gradients only.
    bubble_s : array (..., ranks)
        Idle in the rank's own pipeline, the mean over its stages.
    reduce_wait_s : array (..., ranks)
        Done, waiting for the slowest rank to come to the gradient reduction.
    """

    plan: Plan
    busy_s: Floats
    layer_wait_s: Floats
    bubble_s: Floats
    reduce_wait_s: Floats

    @property
    def step_s(self) -> Any:
        """Whole step, float or array (...)."""
        return self.waiting_s[..., 0] + self.busy_s[..., 0] + self.plan.fixed_s

    @property
    def waiting_s(self) -> Floats:
        """All that a rank does not compute, shape (..., ranks); ``fixed_s`` is neither."""
        return self.layer_wait_s + self.bubble_s + self.reduce_wait_s

    @property
    def imbalance(self) -> Any:
        """Computing of the busiest rank over the mean, float or array (...)."""
        return self.busy_s.max(axis=-1) / self.busy_s.mean(axis=-1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; of one step."""
        parts = ("busy_s", "layer_wait_s", "bubble_s", "reduce_wait_s")
        return {
            "step_s": float(self.step_s),
            "fixed_s": self.plan.fixed_s,
            "imbalance": float(self.imbalance),
            "meets": self.plan.meets,
        } | {name: getattr(self, name).tolist() for name in parts}

    def text(self) -> str:
        """Say one step in lines for a person: means over ranks."""
        rows = {
            "step": float(self.step_s),
            "  computing": self.busy_s.mean(),
            "  waiting in layers for the expert group": self.layer_wait_s.mean(),
            "  idle in the own pipeline": self.bubble_s.mean(),
            "  waiting for the slowest rank": self.reduce_wait_s.mean(),
            "  the same for all": self.plan.fixed_s,
        }
        lines = [f"{name:<44}{value:.4g} s" for name, value in rows.items()]
        return "\n".join([*lines, self.plan.why])


def run_step(
    forward_s: ArrayLike, backward_s: ArrayLike, plan: Plan | None = None, by_part: bool = False
) -> Step:
    """Time a step of unequal micro-batches.

    Parameters
    ----------
    forward_s, backward_s : arrays (..., ranks, micro_batches)
        Seconds of each micro-batch's pass through one whole stage, by data-parallel rank and in the order that the
        rank runs them. A stage's chunks share its time evenly.
    plan : Plan, optional
        Pipeline and meeting; without it one stage, ranks that meet at gradients.
    by_part : bool
        Whether times have two more axes (chunks, stages) at their end, each part of the model its own.

    Raises
    ------
    InputError
        For times that are not positive, shapes that do not fit, a group that does not divide the ranks, or numbers that
        the schedule forbids.
    """
    plan = plan or Plan()
    forward, backward = checked_times(forward_s, backward_s, plan, by_part)
    finished, busy = pipeline_s(met(forward, plan), met(backward, plan), plan)
    ranks = forward.shape[-4] // finished.shape[-1]  # of one group
    finished, busy = (np.repeat(x, ranks, axis=-1) for x in (finished, busy))
    own = busy
    if plan.meets == "layer":
        own = (
            pipeline_s(forward, backward, plan)[1]
            if plan.pairs or plan.level != 1
            else (forward + backward).sum(axis=(-3, -2)).mean(axis=-1)
        )
    last = finished.max(axis=-1, keepdims=True)
    return Step(plan, own, busy - own, finished - busy, last - finished)
