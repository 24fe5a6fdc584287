"""A training step of unequal micro-batches: data-parallel ranks, each with its own pipeline, and where they wait.

Each data-parallel rank runs its schedule over its own micro-batches (timed by :mod:`telekit.pipeline.simulate`), then
all ranks meet at the gradient reduction. Where an expert-parallel group spans several data-parallel ranks they meet in
every layer too, so each micro-batch takes as long as the group's slowest (``meets="layer"``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem
from telekit.pipeline.order import Order
from telekit.pipeline.registry import build
from telekit.pipeline.simulate import Simulation, run
from telekit.pipeline.times import Times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Meets = Literal["gradients", "layer"]
MEETS: tuple[Meets, ...] = ("gradients", "layer")

MOST_EXCHANGES = 1024
"""Most exchanges of two micro-batches that a round of the search for an order tries; near ones come first."""


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
    """

    stages: int = 1
    chunks: int = 1
    schedule: str = "1f1b"
    comm_s: float = 0.0
    fixed_s: float = 0.0
    meets: Meets = "gradients"
    group: int | None = None

    @classmethod
    def of(cls, layout: Any, comm_s: float = 0.0, fixed_s: float = 0.0) -> Plan:
        """Read a layout (one, not a table): an expert group larger than ``tp * cp`` spans data-parallel ranks."""
        group = max(1, layout.ep * layout.etp // (layout.tp * layout.cp))
        meets: Meets = "layer" if group > 1 else "gradients"
        schedule = layout.schedule if layout.pp > 1 else "1f1b"
        return cls(layout.pp, layout.vpp, schedule, comm_s, fixed_s, meets, group if group > 1 else None)

    @property
    def why(self) -> str:
        """Say which meeting is used, and why."""
        if self.meets == "gradients":
            return (
                "Ranks meet once a step, at the gradient reduction: a rank's own sum of work is what counts."
            )
        who = "all ranks" if self.group is None else f"the {self.group} ranks of an expert group"
        return f"Experts are exchanged among {who} in every layer: each micro-batch takes as long as the slowest one's."


@dataclass(frozen=True)
class Step:
    """One step, or many at once (leading axes ...). Each rank's four times and ``fixed_s`` sum to the step's.

    Attributes
    ----------
    plan : Plan
        What ran.
    busy_s : array (..., ranks)
        Computing, the mean over a rank's stages.
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
    forward, backward = _checked(forward_s, backward_s, plan, by_part)
    together = _grouped(forward, plan), _grouped(backward, plan)
    finished = np.asarray(makespan_s(*together, plan))
    own, met = ((f + b).sum(axis=(-3, -2)).mean(axis=-1) for f, b in ((forward, backward), together))
    last = finished.max(axis=-1, keepdims=True)
    return Step(plan, own, met - own, finished - met, last - finished)


def makespan_s(forward: Floats, backward: Floats, plan: Plan) -> Any:
    """Seconds of pipelines, shape (...), from times (..., micro_batches, chunks, stages); nothing is checked."""
    if plan.stages == 1:
        return (forward + backward).sum(axis=(-3, -2, -1))
    return simulate(forward, backward, plan).makespan_s


def simulate(forward: Floats, backward: Floats, plan: Plan) -> Simulation:
    """Every pass of pipelines, from times (..., micro_batches, chunks, stages): for a drawing of one rank."""
    order = _order(plan, forward.shape[-3])
    if forward.shape[-2] != order.chunks:  # each device holds two stages: the model is there twice
        forward, backward = (x[..., 0, order.part] for x in (forward, backward))
    return run(order, Times(forward, backward / 2, backward / 2, comm=plan.comm_s, by_micro_batch=True))


def _order(plan: Plan, micro_batches: int) -> Order:
    return build(plan.schedule, plan.stages, micro_batches, plan.chunks if plan.chunks > 1 else None)


def _grouped(times: Floats, plan: Plan) -> Floats:
    """Replace each micro-batch's time by the longest within the group that meets in its layers."""
    if plan.meets == "gradients":
        return times
    ranks, rest = times.shape[-4], times.shape[-3:]
    split = times.reshape(*times.shape[:-4], -1, plan.group or ranks, *rest)
    slowest = split.max(axis=-4, keepdims=True)
    return np.broadcast_to(slowest, split.shape).reshape(times.shape)


def _checked(forward_s: ArrayLike, backward_s: ArrayLike, plan: Plan, by_part: bool) -> tuple[Floats, Floats]:
    """Return times as (..., ranks, micro_batches, chunks, stages), or raise what is wrong with them and the plan."""
    parts = (plan.chunks, plan.stages) if by_part else ()
    problems = []
    found = []
    for name, values in (("forward_s", forward_s), ("backward_s", backward_s)):
        times = np.asarray(values, dtype=np.float64)
        found.append(times)
        if times.ndim < 2 + len(parts) or 0 in times.shape or (by_part and times.shape[-2:] != parts):
            rest = f", {plan.chunks} chunks, {plan.stages} stages" if by_part else ""
            problems.append(Problem(name, times.shape, f"its shape must end in (ranks, micro_batches{rest})"))
        elif not (np.isfinite(times).all() and (times > 0).all()):
            wrong = np.flatnonzero(~(np.isfinite(times) & (times > 0)).ravel())[0]
            where = tuple(int(i) for i in np.unravel_index(wrong, times.shape))
            problems.append(
                Problem(name, float(times.ravel()[wrong]), f"must be a positive time (at {where})")
            )
    if not problems and found[0].shape != found[1].shape:
        problems.append(
            Problem("backward_s", found[1].shape, f"must have forward_s's shape {found[0].shape}")
        )
    if plan.meets not in MEETS:
        problems.append(Problem("meets", plan.meets, f"must be one of {', '.join(MEETS)}", "gradients works"))
    if problems:
        raise InputError(problems)
    if not by_part:
        shape = (plan.chunks, plan.stages)
        found = [np.broadcast_to(x[..., None, None] / plan.chunks, (*x.shape, *shape)) for x in found]
    ranks = found[0].shape[-4]
    if plan.group is not None and (plan.group < 1 or ranks % plan.group):
        rule = f"ranks that meet in layers must divide the {ranks} data-parallel ranks"
        raise InputError([Problem("group", plan.group, rule, f"{ranks} works")])
    return found[0], found[1]


# Orders of one rank's micro-batches


def _rules(cost: Floats) -> dict[str, Ints]:
    """Orders by a few rules, each (..., micro_batches), from the time of each micro-batch (..., micro_batches)."""
    up = np.argsort(cost, axis=-1, kind="stable")
    middle = np.concatenate([up[..., ::2], up[..., 1::2][..., ::-1]], axis=-1)
    return {
        "as given": np.broadcast_to(np.arange(cost.shape[-1]), cost.shape),
        "ascending": up,
        "descending": up[..., ::-1],
        "largest in the middle": middle,
        "smallest in the middle": np.concatenate([up[..., ::-2], up[..., -2::-2][..., ::-1]], axis=-1),
    }


def order_micro_batches(
    forward_s: ArrayLike, backward_s: ArrayLike, plan: Plan, by_part: bool = False, exchanges: bool = True
) -> Ints:
    """Order each rank's micro-batches so that its pipeline, simulated, ends early.

    The best of a few rules (as given, ascending, descending, largest or smallest in the middle), then exchanges of two
    micro-batches while one helps. Never worse than as given; equal to brute force on most small cases, not all. Ranks
    that meet in layers take one order for their group.

    Parameters
    ----------
    forward_s, backward_s, plan, by_part
        As in :func:`run_step`.
    exchanges : bool
        Whether to exchange after the rules.

    Returns
    -------
    array (..., ranks, micro_batches)
        Indices: entry k is the micro-batch that runs k-th.
    """
    forward, backward = (_grouped(x, plan) for x in _checked(forward_s, backward_s, plan, by_part))
    shape = forward.shape[:-2]
    count = shape[-1]
    if plan.stages == 1 or count < 2:
        return np.broadcast_to(np.arange(count), shape).copy()
    flat = (-1, *forward.shape[-3:])
    forward, backward = forward.reshape(flat), backward.reshape(flat)
    candidates = np.stack(list(_rules((forward + backward).sum(axis=(-2, -1))).values()), axis=1)
    best, least = _best(candidates, forward, backward, plan)
    pairs = sorted(combinations(range(count), 2), key=lambda pair: pair[1] - pair[0])[:MOST_EXCHANGES]
    active = np.arange(len(best)) if exchanges else np.arange(0)
    while active.size:
        tried = np.repeat(best[active][:, None], len(pairs), axis=1)
        for k, (i, j) in enumerate(pairs):
            tried[:, k, [i, j]] = tried[:, k, [j, i]]
        found, time = _best(tried, forward[active], backward[active], plan)
        better = time < least[active] * (1 - 1e-12)
        active = active[better]
        best[active], least[active] = found[better], time[better]
    return best.reshape(shape)


def _best(candidates: Ints, forward: Floats, backward: Floats, plan: Plan) -> tuple[Ints, Floats]:
    """Pick the candidate (ranks, candidates, micro_batches) of the shortest pipeline, and its seconds, by rank."""
    ranks = np.arange(len(candidates))
    taken = ranks[:, None, None], candidates
    time = np.asarray(makespan_s(forward[taken], backward[taken], plan))
    first = time.argmin(axis=1)
    return candidates[ranks, first].copy(), time[ranks, first]


def reorder(values: ArrayLike, order: Ints) -> Any:
    """Put values (..., ranks, micro_batches) in an order that :func:`order_micro_batches` found."""
    return np.take_along_axis(np.asarray(values), order, axis=-1)
