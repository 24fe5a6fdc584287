"""Sizes and choices, and how they print: SI inside, prefixes only where a person reads.

Two kinds of gigabyte exist and both are used in the field: GB is 1e9 bytes, GiB is 2**30. Everything inside
telekit is in bytes, seconds, FLOPs and FLOP/s; these functions are the one place where a prefix appears.
"""

from __future__ import annotations

from collections.abc import Sequence

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 1e9

_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_COUNT = ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"))


def gib(size_bytes: float) -> float:
    """Bytes as GiB (2**30 bytes)."""
    return size_bytes / GIB


def format_bytes(size_bytes: float) -> str:
    """Bytes with a binary prefix, always named (``1.50 GiB``)."""
    for size, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.2f} {name}"
    return f"{size_bytes:.0f} B"


def format_seconds(time_s: float) -> str:
    """Seconds with the prefix that keeps three figures readable (``12.3 ms``)."""
    for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(time_s) >= 0.9995 * size:  # what would round up to the next prefix takes it
            shown = time_s / size
            return f"{shown:,.0f} {name}" if abs(shown) >= 999.5 else f"{shown:.3g} {name}"
    return f"{time_s:.3g} s"


def format_flops(flops: float, unit: str = "FLOP") -> str:
    """FLOPs or FLOP/s with a decimal prefix (``249.7 GFLOP``)."""
    for size, prefix in _SI:
        if abs(flops) >= size:
            return f"{flops / size:.4g} {prefix}{unit}"
    return f"{flops:.4g} {unit}"


def format_count(number: float) -> str:
    """Write counts of parameters or tokens in the field's words (``671.0 B``)."""
    for size, name in _COUNT:
        if abs(number) >= 0.99995 * size:
            return f"{number / size:.1f}{name}"
    return f"{number:.0f}"


def either(words: Sequence[str]) -> str:
    """Several choices (``a, b or c``)."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
