"""Network ports of a device: a bond of several is one link, and its ports are easily read as one or counted twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from telekit.errors import bad
from telekit.model.attention import Frozen

BITS = 8.0
"""Bits of a byte: ports are sold in bits a second, collectives move bytes."""

CLOSE = 0.01
"""Relative difference up to which a stated bandwidth agrees with that of the ports."""


class Ports(Frozen):
    """The network card behind one link.

    Parameters
    ----------
    count : int
        Ports that carry one card's traffic side by side (a bond of two: 2).
    bits_per_s : float
        Of one port, one way: 400e9 for "400G".
    devices : int
        Devices that share the card.
    """

    count: Annotated[int, Field(ge=1, le=64)] = 1
    bits_per_s: Annotated[float, Field(ge=1e8, le=1e14, allow_inf_nan=False)]
    devices: Annotated[int, Field(ge=1, le=1024)] = 1

    @property
    def card_bytes_per_s(self) -> float:
        """One way, of the whole card."""
        return self.count * self.bits_per_s / BITS

    @property
    def device_bytes_per_s(self) -> float:
        """One way, of each device while all that share the card send."""
        return self.card_bytes_per_s / self.devices


def with_bandwidth(tier: Any) -> Any:
    """Fill in a tier's bandwidth from its ports, where only those are said; other input passes as it is."""
    if not isinstance(tier, Mapping) or "bandwidth_bytes_per_s" in tier or tier.get("ports") is None:
        return tier
    try:
        found = Ports.model_validate(tier["ports"]).device_bytes_per_s
    except ValidationError:  # the field's own check says why, with its whole path
        found = 1.0
    return dict(tier) | {"bandwidth_bytes_per_s": found}


def check_bandwidth(bandwidth_bytes_per_s: float, ports: Ports) -> None:
    """Refuse a bandwidth that is not the ports'.

    Raises
    ------
    InputError
        Naming what the difference looks like: one port of a bond, both ways at once, bits for bytes.
    """
    right = ports.device_bytes_per_s
    if abs(bandwidth_bytes_per_s - right) <= CLOSE * right:
        return
    mistakes = {
        "that is one port of the bond": right / ports.count,
        "that is both ways together": 2 * right,
        "that is bits, not bytes": BITS * right,
        "that is the whole card, which devices share": ports.card_bytes_per_s,
    }
    like = [text for text, value in mistakes.items() if abs(bandwidth_bytes_per_s - value) <= CLOSE * value]
    shared = f", shared by {ports.devices} devices," if ports.devices > 1 else ""
    rule = f"{ports.count} x {ports.bits_per_s / 1e9:g} Gbit/s{shared} are {right / 1e9:g} GB/s a device, one way"
    hint = f"{right:g} would work, or leave the field out"
    raise bad("bandwidth_bytes_per_s", bandwidth_bytes_per_s, "; ".join([rule, *like]), hint)
