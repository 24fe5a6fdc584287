"""Does one row of a benchmark's log agree with itself? Which mix-up of units explains it when not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from telekit.cluster.curves import bus_factor, in_switch_bus_bandwidth

DTYPE_BYTES = {
    "int8": 1, "uint8": 1, "char": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "half": 2, "bfloat16": 2, "float16": 2, "bf16": 2, "fp16": 2,
    "int32": 4, "uint32": 4, "float": 4, "fp32": 4,
    "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip

TOLERANCE = 0.02
MAX_SIZE_BYTES = 2**50
MAX_TIME_S = 3600.0
MAX_BUS_BYTES_PER_S = 2e13
"""No link of a device is near this, in any unit: a row above it is refused without knowing the device."""

# size / (time * algbw) -> what was mixed up
MIX_UPS = {
    2**30 / 1e9: "bandwidth is in GiB/s, not GB/s",
    2**20 / 1e6: "sizes or bandwidths mix MiB with MB",
    2**10 / 1e3: "sizes or bandwidths mix KiB with kB",
    1e9 / 2**30: "size is in units of 10**9 where bandwidth counts 2**30, or the other way",
    1e3: "time is in ms, not µs (or bandwidth in TB/s)",
    1e-3: "time is in ns, or bandwidth in MB/s",
    8.0: "bandwidth is in bytes where bits are meant, or size is in elements of 8 bytes",
    1 / 8: "bandwidth is in Gb/s, not GB/s, or size is a count of elements of 8 bytes",
    1 / 2: "size is a count of elements of 2 bytes, not bytes",
    1 / 4: "size is a count of elements of 4 bytes, not bytes",
}


@dataclass(frozen=True)
class Row:
    """One row as printed, in SI; the bandwidths None where the log has none, and by how much printing rounds."""

    size_bytes: int
    time_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    round_bytes_per_s: float
    round_s: float
    count: int | None = None


def fault_of(row: Row, op: str, ranks: int, dtype_bytes: int | None) -> tuple[str, str] | None:
    """Why a row may not be used, and what would mend it; nothing when it is sound."""
    if not (math.isfinite(row.time_s) and 0 < row.time_s <= MAX_TIME_S):
        return f"time must be above 0 and at most {MAX_TIME_S:.0f} s", "a measured time"
    if not 0 < row.size_bytes <= MAX_SIZE_BYTES:
        return "size must be above 0 and at most 2**50 bytes", "the whole buffer in bytes"
    if not 2 <= ranks <= 2**20:
        return f"{ranks} ranks are no group", "give ranks: 2 or more"
    return _count_fault(row, ranks, dtype_bytes) or _rate_fault(row, op, ranks)


def _count_fault(row: Row, ranks: int, dtype_bytes: int | None) -> tuple[str, str] | None:
    if row.count is None or dtype_bytes is None:
        return None
    whole = row.count * dtype_bytes
    if row.size_bytes in (whole, whole * ranks):
        return None
    if row.size_bytes == row.count:
        return f"size equals the element count: {whole} bytes are meant", f"multiply by {dtype_bytes}"
    return f"size is not its {row.count} elements of {dtype_bytes} bytes (times {ranks} ranks)", ""


def _rate_fault(row: Row, op: str, ranks: int) -> tuple[str, str] | None:
    factor = float(bus_factor(op, float(ranks)))
    rate = row.size_bytes / row.time_s
    if rate * factor > MAX_BUS_BYTES_PER_S:
        return (
            f"bus bandwidth of {rate * factor / 1e9:,.0f} GB/s is beyond any link",
            "check the unit of time",
        )
    for value in (row.algbw_bytes_per_s, row.busbw_bytes_per_s):
        if value is not None and not (math.isfinite(value) and value >= 0):
            return "a bandwidth must be 0 or more", ""
    if row.algbw_bytes_per_s is not None:
        slack = _slack(row, rate)
        rounded_away = row.algbw_bytes_per_s == 0 and rate <= 2 * row.round_bytes_per_s
        if row.algbw_bytes_per_s == 0 and not rounded_away:
            return "algbw is 0 though size / time is not", "size / time must be algbw"
        if not rounded_away and abs(row.algbw_bytes_per_s / rate - 1) > slack:
            return _mix_up(rate / row.algbw_bytes_per_s, slack), "size / time must be algbw"
    if row.busbw_bytes_per_s is not None:
        slack = _slack(row, rate * factor)
        if abs(row.busbw_bytes_per_s / (rate * factor) - 1) > slack:
            rule = f"busbw is not size / time times {factor:.4g}, the factor of {op} on {ranks} ranks"
            return rule, "check op and ranks, and the units"
    return None


def _slack(row: Row, rate: float) -> float:
    return TOLERANCE + row.round_bytes_per_s / rate + row.round_s / row.time_s


def _mix_up(ratio: float, slack: float) -> str:
    near = [text for factor, text in MIX_UPS.items() if abs(ratio / factor - 1) <= max(0.6 * slack, 0.01)]
    why = near[0] if near else "units are mixed up, or the row is damaged"
    return f"size / time is {ratio:.4g} times algbw: {why}"


def in_network(op: str, ranks: int, busbw_bytes_per_s: float, link_bytes_per_s: float) -> bool:
    """Whether a bus bandwidth is no rate of a wire: more than the link carries, by reduction in the switch.

    Parameters
    ----------
    op, ranks : str, int
        Collective and group. Only an all-reduce can be reduced in the network so (NVLS, SHARP).
    busbw_bytes_per_s, link_bytes_per_s : float
        As measured, and one way per device.

    Returns
    -------
    bool
        True when it is above the link and an in-switch all-reduce explains it: compare such algorithms by time.

    Raises
    ------
    InputError
        When no algorithm explains it: the measurement or the link's bandwidth is wrong.
    """
    from telekit.errors import bad

    if busbw_bytes_per_s <= link_bytes_per_s:
        return False
    most = float(in_switch_bus_bandwidth(link_bytes_per_s, ranks)) if op == "all-reduce" else link_bytes_per_s
    if busbw_bytes_per_s > 1.02 * most:
        rule = f"is above what {op} on {ranks} ranks can show over {link_bytes_per_s / 1e9:.4g} GB/s"
        raise bad("busbw", f"{busbw_bytes_per_s / 1e9:.4g} GB/s", rule, f"at most {most / 1e9:.4g} GB/s")
    return op == "all-reduce"
