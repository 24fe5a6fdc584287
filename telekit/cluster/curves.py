"""Measured curves: the time of one collective over the links of one tier, by at most six parameters.

A small message takes a start and a step for each further rank. A large one is limited by bandwidth, and NCCL moves it
by one of two ways: a low-latency protocol that spends ``low_latency_ratio`` times the bytes, or a plain one that first
takes ``ramp_s``. The quicker one is taken, over a smooth corner:

    time = start + step * hops(n) + wire / B(n) + softmin((ratio - 1) * wire / B(n), ramp)

``wire`` is what nccl-tests' bus bandwidth counts, so B(n) is the bus bandwidth of endless messages, and a ratio of 1
leaves a start and a bandwidth: ``B(n) = bandwidth * ((n-1)/n / (7/8))**rank_exponent``. Where the switch reduces, each
rank sends and receives ``size * (n+1)/n`` over its link at a share of the bandwidth, wherever that beats the ring:
``B(n) = max(ring, in_switch_share * bandwidth * 2 (n-1)/(n+1))``; this is no rate of a wire. The share is no parameter
but a constant of a generation, as NCCL's own choice of algorithms takes it.

``hops`` is n - 1 as far as was measured. Beyond, where libraries know trees (all-reduce, broadcast), each doubling
adds what the last measured one did. A curve of a tier between nodes counts whole nodes (``unit_ranks``), and of an
all-to-all the bytes that leave the node. Sources: nccl-tests doc/PERFORMANCE.md for the wire bytes; the form is
chosen here by its error on counts of devices held out of the fit.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from telekit.errors import bad
from telekit.model.attention import Frozen

MEASURED = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv")
"""Collectives that a curve may stand for."""

TREES = ("all-reduce", "broadcast")
"""Collectives for which NCCL and HCCL have algorithms of logarithmically many steps."""

CORNER = 4.0
"""Power of the soft minimum of the two protocols: chosen once for all devices, on held-out counts."""
REFERENCE_RANKS = 8

Seconds = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1, le=1e19, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Ranks = Annotated[int, Field(ge=2, le=2**20)]


def bus_factor(op: str, ranks: Any) -> Any:
    """Bytes that busbw counts per byte of buffer: nccl-tests' factor, elementwise (1 rank: 0 or 1).

    Raises
    ------
    InputError
        For a collective with no such factor.
    """
    if op == "all-reduce":
        return 2.0 * (ranks - 1.0) / ranks
    if op in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1.0) / ranks
    if op in ("broadcast", "send-recv"):
        return 1.0 + 0.0 * ranks
    raise bad("op", op, "no bus bandwidth is defined for it", f"known: {', '.join(MEASURED)}")


class HeldOut(Frozen):
    """Errors on the rows of ``ranks`` ranks by a curve fitted without them."""

    ranks: Ranks
    error: Share
    error_above_16_mb: Share | None = None


class CurveErrors(Frozen):
    """Median absolute relative errors of a curve; ``above_16_mb`` counts messages of 16 MiB and more.

    ``fit`` is over its own rows; ``held_out`` leaves out one count of ranks after the other; ``left_out_pair`` is
    what the rule that derived the curve scores on pairs that do have rows.
    """

    fit: Share | None = None
    fit_above_16_mb: Share | None = None
    held_out: Annotated[tuple[HeldOut, ...], Field(strict=False)] = ()
    left_out_pair: Share | None = None
    left_out_pair_above_16_mb: Share | None = None


class Curve(Frozen):
    """Time of one collective inside one tier.

    Parameters
    ----------
    start_s, step_s : float
        Time of an empty message on one rank, and what each further rank adds.
    bandwidth_bytes_per_s : float
        Bus bandwidth of endless messages on eight ranks (by the ring, where a switch reduces too).
    low_latency_ratio, ramp_s : float
        How much slower the low-latency protocol moves bytes, and what the plain one costs before it is faster.
    rank_exponent : float
        How bus bandwidth grows with (n-1)/n.
    in_switch_share : float or None
        Rate of the link while the switch reduces, over the bandwidth; None where it does not. Not fitted.
    unit_ranks : int
        Ranks of a node, for a tier between nodes: hops count nodes, an all-to-all's wire what leaves a node.
    ranks : tuple of int
        Group sizes that were measured, by those whose rows it was derived from too.
    rows : int
        Measurements behind it; 0 for a derived curve.
    source, verified : str, bool
        Where the measurements stand, or the rule that derived it (then not verified).
    errors : CurveErrors
        How far off it was.
    """

    start_s: Seconds
    step_s: Seconds
    bandwidth_bytes_per_s: Rate
    low_latency_ratio: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]
    ramp_s: Seconds
    rank_exponent: Annotated[float, Field(ge=-2, le=10, allow_inf_nan=False)]
    in_switch_share: Annotated[float, Field(ge=0.01, le=2, allow_inf_nan=False)] | None = None
    unit_ranks: Annotated[int, Field(ge=1, le=2**20)] = 1
    ranks: Annotated[tuple[Ranks, ...], Field(strict=False)] = ()
    rows: Annotated[int, Field(ge=0)] = 0
    source: str = ""
    verified: bool = False
    errors: CurveErrors = Field(default_factory=CurveErrors)

    @model_validator(mode="after")
    def _ranks_are_groups(self) -> Curve:
        if list(self.ranks) != sorted(set(self.ranks)) or (
            self.ranks and self.ranks[-1] < 2 * self.unit_ranks > 2
        ):
            rule = "group sizes must rise, the largest of two units of unit_ranks at least"
            raise bad("ranks", list(self.ranks), rule, "for example [2, 4, 8]")
        return self

    @property
    def in_switch_bytes_per_s(self) -> float | None:
        """Rate of the link while the switch reduces; None where it does not."""
        return None if self.in_switch_share is None else self.in_switch_share * self.bandwidth_bytes_per_s

    def bus_bandwidth_bytes_per_s(self, op: str, ranks: Any) -> Any:
        """Bus bandwidth of endless messages, elementwise over ``ranks`` (two ranks talk in ``send-recv``)."""
        n = np.maximum(ranks, 2.0) if op != "send-recv" else 2.0 + 0.0 * ranks
        share = (n - 1.0) / n / ((REFERENCE_RANKS - 1.0) / REFERENCE_RANKS)
        ring = self.bandwidth_bytes_per_s * share**self.rank_exponent
        if self.in_switch_bytes_per_s is None:
            return ring
        return np.maximum(ring, in_switch_bus_bandwidth(self.in_switch_bytes_per_s, n))

    def time_s(self, op: str, size_bytes: Any, ranks: Any) -> Any:
        """Time of one collective, elementwise.

        Parameters
        ----------
        op : str
            Its name; says which bytes are on the wire.
        size_bytes, ranks : float or array
            Whole buffer as nccl-tests counts it, and ranks of the group; they broadcast.

        Returns
        -------
        float or array
            Seconds; 0 for one rank. Never falls as ``size_bytes`` grows; nor as ``ranks`` grows, unless the switch
            reduces or ``rank_exponent`` is above 1 (a mesh, where more ranks have more links; 0 for broadcast).

        Raises
        ------
        InputError
            For a collective with no such name.
        """
        plain = self.wire_share(op, ranks) * size_bytes / self.bus_bandwidth_bytes_per_s(op, ranks)
        time = self.start_s + self.step_s * self._hops(op, ranks) + plain + self.protocol_s(plain)
        return np.where(np.asarray(ranks) > 1, time, 0.0)[()]

    def protocol_s(self, plain_s: Any) -> Any:
        """Time that the quicker protocol adds to that of the bytes, on these links or on others of the library."""
        return _soft_min((self.low_latency_ratio - 1.0) * plain_s, self.ramp_s)

    def wire_share(self, op: str, ranks: Any) -> Any:
        """Bytes over the wire per byte of buffer: as busbw counts, of an all-to-all between nodes what leaves one."""
        if op == "all-to-all" and self.unit_ranks > 1:
            return np.maximum(1.0 - self.unit_ranks / ranks, 0.0)
        return bus_factor(op, ranks)

    def outside(self, op: str, ranks: int) -> str:
        """Say that a group lies outside the measured ones; nothing where it lies among them, or none is known."""
        if not self.ranks or op == "send-recv" or self.ranks[0] <= ranks <= self.ranks[-1]:
            return ""
        measured = ", ".join(str(n) for n in self.ranks)
        return f"{ranks} ranks lie outside the measured {measured}: the time is extrapolated"

    def _hops(self, op: str, ranks: Any) -> Any:
        """Count steps after the first: units less one, and no straight line beyond the measured ones for trees."""
        if op == "send-recv":
            return 1.0 + 0.0 * ranks
        units = np.maximum(ranks / self.unit_ranks, 1.0)
        if op not in TREES:
            return units - 1.0
        most = self.ranks[-1] / self.unit_ranks if self.ranks else REFERENCE_RANKS
        beyond = (most - 1.0) + most / 2.0 * np.log2(np.maximum(units / most, 1.0))
        return np.minimum(units - 1.0, beyond)


def in_switch_bus_bandwidth(link_bytes_per_s: Any, ranks: Any) -> Any:
    """Bus bandwidth that an all-reduce shows when the switch reduces (NVLS, SHARP): up to twice the wire's.

    Each rank sends its buffer once and its share of the result once more, (n+1)/n of the buffer, where a ring
    sends 2(n-1)/n of it.
    """
    return link_bytes_per_s * 2.0 * (ranks - 1.0) / (ranks + 1.0)


def _soft_min(a: Any, b: Any) -> Any:
    """Return the smaller of two times, rounded where they cross (never above either)."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    ratio = low / np.where(high > 0, high, 1.0)
    return low / (1.0 + ratio**CORNER) ** (1.0 / CORNER)
