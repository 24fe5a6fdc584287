"""How a job scales: the same step on more and more devices, and what each part of it costs there.

Data parallelism grows, all else of the layout stays. **Strong** scaling keeps the global batch, so that a rank has
fewer micro-batches; **weak** scaling keeps a rank's share, so that the batch grows. Each point is the cost model's own
estimate; nothing here is fitted to a scaling curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from telekit.cluster.config import ClusterConfig, LinkTier
from telekit.cluster.variability import Spread, slowest
from telekit.cost.estimate import breakdown, estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import InputError, bad
from telekit.job import Job
from telekit.layout.stages import assign

WORK = ("compute", "recompute", "host")
INSIDE = ("tp_comm", "cp_comm", "ep_comm", "offload")
PARTS = ("work", "traffic", "bubble", "dp_comm", "optimizer", "waiting")
"""What a step is made of here: computing; traffic inside a model replica; the pipeline's bubble; gradients' and
parameters' traffic between replicas that nothing hides; the optimizer; what all wait for the slowest device."""


@dataclass(frozen=True)
class Point:
    """One number of devices; ``parts`` sum to the step, seconds by :data:`PARTS`."""

    devices: int
    dp: int
    global_batch: int
    micro_batches: int
    tokens: int
    parts: dict[str, float]

    @property
    def step_s(self) -> float:
        """Time of one step."""
        return sum(self.parts.values())

    @property
    def tokens_per_s(self) -> float:
        """Of all devices together."""
        return self.tokens / self.step_s

    @property
    def tokens_per_s_per_device(self) -> float:
        """Of one device."""
        return self.tokens_per_s / self.devices

    @property
    def cost(self) -> dict[str, float]:
        """Device-seconds that one token takes, by part."""
        return {name: self.devices * part / self.tokens for name, part in self.parts.items()}


@dataclass(frozen=True)
class Scaling:
    """A curve: points from few devices to many, compared with the first."""

    points: tuple[Point, ...]

    @cached_property
    def efficiency(self) -> tuple[float, ...]:
        """Tokens a second and device over those of the first point: 1 is linear scaling."""
        first = self.points[0].tokens_per_s_per_device
        return tuple(point.tokens_per_s_per_device / first for point in self.points)

    def added(self, index: int) -> dict[str, float]:
        """Split what a token costs more at one point than at the first: shares of its cost there, by part.

        They sum to 1 / efficiency - 1; a part that became cheaper is negative.
        """
        first, here = self.points[0].cost, self.points[index].cost
        whole = sum(first.values())
        return {name: (here[name] - first[name]) / whole for name in PARTS}


def scaling(
    job: Job,
    devices: Sequence[int],
    *,
    weak: bool = False,
    jitter: float | None = None,
    spread: Spread = "normal",
    network: float = 1.0,
    simulate: bool = True,
) -> Scaling:
    """Estimate a job on several numbers of devices.

    Parameters
    ----------
    job : Job
        Its layout stays but for ``dp``; strong scaling keeps its global batch, weak scaling what a rank has of it.
    devices : sequence of int
        From few to many; the first is what the others are compared with.
    weak : bool
        Grow the batch with the devices.
    jitter : float or None
        Standard deviation of devices' step times over their mean; None takes the device's own.
    spread : str
        Shape of that distribution (:func:`telekit.cluster.variability.expected_largest`).
    network : float
        Rate of every link beyond a node, over the cluster's.
    simulate : bool
        Simulate the pipeline, as :func:`telekit.cost.estimate.estimate` does; else take its closed form.

    Raises
    ------
    InputError
        Sizes that the layout's rules do not allow, each with what would work.
    """
    if not devices:
        raise bad("devices", list(devices), "must be at least one number", "for example [256, 512, 1024]")
    jobs = [resized(job, count, weak=weak, network=network) for count in devices]
    problems = [problem for one in jobs for problem in one.problems()]
    if problems:
        raise InputError(problems)
    return Scaling(tuple(_point(one, jitter, spread, simulate) for one in jobs))


def resized(job: Job, devices: int, *, weak: bool = False, network: float = 1.0) -> Job:
    """Put a job on another number of devices: ``dp`` follows, and under weak scaling the global batch does.

    Raises
    ------
    InputError
        Devices that are no whole number of replicas or nodes, or a network that is not faster than 0.
    """
    layout = job.layout
    replica = layout.tp * layout.cp * layout.pp
    if devices < replica or devices % replica:
        low = max(devices // replica, 1) * replica
        rule = f"must be a multiple of the {replica} devices of one replica"
        raise bad("devices", devices, rule, f"{low} or {low + replica} would work")
    cluster = with_network(job.cluster, network).model_copy(update={"devices": devices})
    cluster = ClusterConfig(**dict(cluster))  # its own rules: whole nodes, tiers that reach
    train = job.train
    if weak:
        assert layout.dp is not None
        share = train.global_batch // layout.dp
        train = train.model_copy(update={"global_batch": share * (devices // replica)})
    fixed = tuple(name for name in job.given if name != "dp")
    return Job(job.model, cluster, train, layout.model_copy(update={"dp": None}), fixed)


def with_network(cluster: ClusterConfig, factor: float) -> ClusterConfig:
    """Make every link beyond the innermost tier faster or slower by one factor; start-up times stay.

    Raises
    ------
    InputError
        A factor that is not positive.
    """
    if not factor > 0:
        raise bad("network", factor, "must be above 0", "1 leaves the links as they are")
    if factor == 1:
        return cluster
    inner, *outer = cluster.tiers
    return cluster.model_copy(update={"tiers": (inner, *(_faster(tier, factor) for tier in outer))})


def _faster(tier: LinkTier, factor: float) -> LinkTier:
    if tier.curves:
        raise bad("network", factor, f"the {tier.name} tier has measured curves, which say no other rate")
    rate = factor * tier.bandwidth_bytes_per_s
    return tier.model_copy(update={"bandwidth_bytes_per_s": rate, "ports": None})


def jittered(point: Point, jitter: float, spread: Spread = "normal") -> Point:
    """Let the devices of a point differ otherwise: what all wait for the slowest, anew; the rest of the step stays."""
    pipeline = sum(point.parts[name] for name in ("work", "traffic", "bubble"))
    late = slowest(point.devices, jitter, spread) - 1
    return replace(point, parts=point.parts | {"waiting": late * pipeline})


def _point(job: Job, jitter: float | None, spread: Spread, simulate: bool) -> Point:
    assert job.layout.dp is not None
    found = Point(
        job.cluster.devices,
        job.layout.dp,
        job.train.global_batch,
        job.micro_batches,
        job.train.tokens,
        _parts(job, simulate),
    )
    if jitter is None and spread == "normal":
        return found
    return jittered(found, job.cluster.device.kernels.jitter if jitter is None else jitter, spread)


def _parts(job: Job, simulate: bool) -> dict[str, float]:
    if simulate:
        found = estimate(job).breakdown_s
    else:
        site = Site(job.model, job.cluster, job.train, job.layout)
        cost = step_cost(site, assign(job.model, job.layout))
        found = breakdown(cost, float(cost.pipeline_s))
    assert found is not None  # the rules were checked
    work, traffic = (sum(found.get(name, 0.0) for name in names) for names in (WORK, INSIDE))
    return {"work": work, "traffic": traffic} | {name: found[name] for name in PARTS[2:]}


def at_batch(job: Job, global_batch: int) -> Job:
    """Give a job another global batch; whether it divides is checked where the job is estimated."""
    return replace(job, train=job.train.model_copy(update={"global_batch": global_batch}))
