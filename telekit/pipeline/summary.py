"""One named schedule, simulated and said in numbers: what ``telekit pipeline`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.errors import InputError
from telekit.pipeline.order import PAIR, WEIGHT, Order
from telekit.pipeline.registry import EQUAL, Passes, build, closed_form, get, times, wrong_limit
from telekit.pipeline.simulate import Simulation, run
from telekit.pipeline.zero_bubble import WEIGHT_SHARE_OF_PAPER


@dataclass(frozen=True)
class Summary:
    """A simulated schedule with equal stages.

    Attributes
    ----------
    simulation : Simulation
        Its order, times and ends.
    passes : Passes
        Times of a stage.
    closed_form : float or None
        Makespan by formula, None where no formula is exact.
    memory_limit : float or None
        Most micro-batches of a full stage that a device may hold.
    weight_share : float
        What of a micro-batch's activations the order was made to count between the halves of a backward.
    assumptions : tuple of str
        What was taken for granted.
    """

    simulation: Simulation
    passes: Passes
    closed_form: float | None
    memory_limit: float | None
    weight_share: float
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether no device holds more than the limit."""
        peak = float(self.simulation.peak_activations.max())
        return self.memory_limit is None or peak <= self.memory_limit * (1 + 1e-9)

    @property
    def peak_activations_counted(self) -> list[float]:
        """Peaks as the order was made to count them: with ``weight_share`` between the halves of a backward."""
        order = self.simulation.order
        full = np.full(order.part.shape, order.stages / order.parts)
        held: list[float] = self.simulation.peak_held(full, self.weight_share * full).tolist()
        return held

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in the unit they were given in."""
        found, order = self.simulation, self.simulation.order
        return {
            "schedule": order.schedule,
            "stages": order.stages,
            "micro_batches": order.micro_batches,
            "chunks": order.chunks,
            "operations": order.kind.size,
            "makespan": float(found.makespan_s),
            "bubble_fraction": float(found.bubble_fraction),
            "bubble_fraction_of_ideal": float(found.bubble_fraction_of_ideal),
            "bubble_fraction_of_span": float(found.bubble_fraction_of_span),
            "busy": found.busy_s.tolist(),
            "peak_activations": found.peak_activations.tolist(),
            "weight_share": self.weight_share,
            "peak_activations_counted": self.peak_activations_counted,
            "closed_form": self.closed_form,
            "memory_limit": self.memory_limit,
            "fits": self.fits,
            "assumptions": list(self.assumptions),
        }

    def text(self) -> str:
        """Say it in lines for a person."""
        found, order = self.simulation, self.simulation.order
        rows = {
            "makespan": f"{found.makespan_s:g}",
            "  by formula": "none is exact here" if self.closed_form is None else f"{self.closed_form:g}",
            "idle / makespan": f"{found.bubble_fraction:.2%}",
            "idle / busy": f"{found.bubble_fraction_of_ideal:.2%}",
            "idle / longest span of a device": f"{found.bubble_fraction_of_span:.2%}",
            "activations held, in micro-batches": " ".join(f"{x:.4g}" for x in found.peak_activations),
        }
        if self.weight_share < 1:
            rows["  as its paper counts them"] = " ".join(f"{x:.4g}" for x in self.peak_activations_counted)
        if not self.fits:
            rows["memory limit"] = f"{self.memory_limit:g}: DOES NOT FIT"
        head = f"{order.schedule}: {order.stages} stages, {order.micro_batches} micro-batches"
        lines = [f"{name:<36}{value}" for name, value in rows.items()]
        return "\n".join([head, *lines, "Assumed:", *(f"  - {line}" for line in self.assumptions)])


def summarize(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int | None = None,
    group_size: int | None = None,
    sequence_chunks: int | None = None,
    memory_limit: float | None = None,
    passes: Passes = EQUAL,
) -> Summary:
    """Simulate a named schedule with equal stages.

    Parameters
    ----------
    name, stages, micro_batches, chunks, group_size, sequence_chunks, passes
        As in :func:`telekit.pipeline.registry.build`.
    memory_limit : float, optional
        Where the order is searched, it is searched under this limit; else only whether it fits is said.

    Raises
    ------
    InputError
        As :func:`~telekit.pipeline.registry.build`; for a limit that is not positive.
    """
    schedule = get(name)
    problems = [] if memory_limit is None else wrong_limit(memory_limit)
    if problems:
        raise InputError(problems)
    searched_for = memory_limit if "memory_limit" in schedule.options else None
    order = build(name, stages, micro_batches, chunks, group_size, sequence_chunks, searched_for, passes)
    formula = closed_form(name, stages, micro_batches, chunks, group_size, sequence_chunks, passes)
    found = run(order, times(order, passes))
    share = WEIGHT_SHARE_OF_PAPER if name == "zb-2p" and memory_limit is None else 1.0
    said = [*_assumptions(order, passes), *_counting(name, stages, memory_limit)]
    return Summary(found, passes, formula, memory_limit, share, tuple(said))


def _counting(name: str, stages: int, memory_limit: float | None) -> list[str]:
    """Say what the search of zb-2p counted: it is not the same with and without a limit."""
    if name != "zb-2p":
        return []
    share = f"{WEIGHT_SHARE_OF_PAPER:.4g} (32/74)"
    if memory_limit is None:
        return [
            f"Made for at most {2 * stages} micro-batches held as zb-2p's paper counts them: {share} of the "
            "activations stay between the two halves of the backward. In full, more may be held."
        ]
    return [
        f"Made under the limit in full; without one, zb-2p counts as its paper does, {share} between the two halves "
        "of the backward: it may then run another order, with less idle time."
    ]


def _assumptions(order: Order, passes: Passes) -> list[str]:
    work = passes.forward + passes.backward_input + passes.backward_weight
    said = [
        "All stages are equal; the backward takes "
        f"{passes.backward_input:g} for inputs and {passes.backward_weight:g} for weights.",
        f"Communication takes {passes.comm:g} between neighbouring stages and keeps no device busy.",
    ]
    if (order.kind == WEIGHT).any():
        said.append("A micro-batch counts as held, in full, until its weights' gradients are made.")
    if order.pieces > 1:
        said.append(f"The {order.pieces} pieces of a sequence take equally long.")
    pairs = int((order.kind == PAIR).sum())
    if pairs:
        both = work if passes.pair is None else passes.pair
        saved = f"{work - both:g} less than" if both < work else "as long as"
        said.append(
            f"A forward overlapped with a backward (F&B) takes {both:g}: {saved} one after the other."
        )
    elif passes.pair is not None:
        said.append("No forward is overlapped with a backward in this schedule: F&B is not used.")
    copies = np.unique(order.part).size
    if copies < order.part.size:
        said.append("Each device holds two stages: the model is held twice.")
    return said
