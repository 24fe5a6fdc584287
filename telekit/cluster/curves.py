"""Measured curves: the time of one collective over the links of one tier, by at most six parameters.

A small message takes a start and a step for each further rank. A large one is limited by bandwidth, and NCCL moves it
by one of two ways: a low-latency protocol that spends ``low_latency_ratio`` times the bytes, or a plain one that first
takes ``ramp_s``. The quicker one is taken, over a smooth corner:

    time = start + step (n - 1) + softmin(ratio * wire / B(n), ramp + wire / B(n))

``wire`` is what nccl-tests' bus bandwidth counts, so B(n) is the bus bandwidth of large messages. Without reduction
in the switch ``B(n) = bandwidth * ((n-1)/n / (7/8))**rank_exponent``. With it, each rank sends and receives
``size * (n+1)/n`` over its link at ``in_switch`` bytes a second, wherever that beats the ring:
``B(n) = max(ring, in_switch * 2 (n-1)/(n+1))``; this is no rate of a wire. Sources: nccl-tests doc/PERFORMANCE.md for
the wire bytes; the form is chosen here by its error on counts of devices held out of the fit.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from telekit.errors import bad
from telekit.model.attention import Frozen

MEASURED = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv")
"""Collectives that a curve may stand for."""

CORNER = 6.0
"""Power of the soft minimum of the two protocols: chosen once for all devices, on held-out counts."""
RING_EXPONENT = 0.1
"""Rank exponent of the ring below an in-switch reduction; that of H100's all-gather is 0.15."""
REFERENCE_RANKS = 8

Seconds = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1, le=1e19, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


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


class CurveErrors(Frozen):
    """Median absolute relative errors of a curve; ``above_16_mb`` counts messages of 16 MiB and more.

    ``fit`` is over its own rows; ``held_out`` over the rows of ``held_out_ranks`` ranks by a curve fitted without
    them; ``left_out_pair`` is what the rule that derived the curve scores on pairs that do have rows.
    """

    fit: Share | None = None
    fit_above_16_mb: Share | None = None
    held_out_ranks: Annotated[int, Field(ge=2, le=2**20)] | None = None
    held_out: Share | None = None
    held_out_above_16_mb: Share | None = None
    left_out_pair: Share | None = None
    left_out_pair_above_16_mb: Share | None = None


class Curve(Frozen):
    """Time of one collective inside one tier.

    Parameters
    ----------
    start_s, step_s : float
        Time of an empty message on one rank, and what each further rank adds.
    bandwidth_bytes_per_s : float
        Bus bandwidth of the plain protocol on eight ranks, once its ramp is paid (by the ring, where a switch
        reduces too). Endless messages reach up to a sixth of ``low_latency_ratio**-6`` more, by the smooth corner.
    low_latency_ratio, ramp_s : float
        How much slower the low-latency protocol moves bytes, and what the plain one costs before it is faster.
    rank_exponent : float or None
        How bus bandwidth grows with (n-1)/n.
    in_switch_bytes_per_s : float or None
        Instead of the exponent: rate of the link while the switch reduces.
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
    rank_exponent: Annotated[float, Field(ge=-2, le=10, allow_inf_nan=False)] | None = None
    in_switch_bytes_per_s: Rate | None = None
    rows: Annotated[int, Field(ge=0)] = 0
    source: str = ""
    verified: bool = False
    errors: CurveErrors = Field(default_factory=CurveErrors)

    @model_validator(mode="after")
    def _one_rule_of_ranks(self) -> Curve:
        if (self.rank_exponent is None) == (self.in_switch_bytes_per_s is None):
            rule = "give rank_exponent or in_switch_bytes_per_s, one of them"
            raise bad("rank_exponent", self.rank_exponent, rule, "for example 0.4")
        return self

    def bus_bandwidth_bytes_per_s(self, op: str, ranks: Any) -> Any:
        """Bus bandwidth of the plain protocol, elementwise over ``ranks`` (two ranks talk in ``send-recv``)."""
        n = np.maximum(ranks, 2.0) if op != "send-recv" else 2.0 + 0.0 * ranks
        share = (n - 1.0) / n / ((REFERENCE_RANKS - 1.0) / REFERENCE_RANKS)
        if self.in_switch_bytes_per_s is None:
            return self.bandwidth_bytes_per_s * share**self.rank_exponent
        ring = self.bandwidth_bytes_per_s * share**RING_EXPONENT
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
        wire = bus_factor(op, ranks) * size_bytes
        transfer = wire / self.bus_bandwidth_bytes_per_s(op, ranks)
        hops = 1.0 + 0.0 * ranks if op == "send-recv" else ranks - 1.0
        moved = _soft_min(self.low_latency_ratio * transfer, self.ramp_s + transfer)
        return np.where(np.asarray(ranks) > 1, self.start_s + self.step_s * hops + moved, 0.0)[()]


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
