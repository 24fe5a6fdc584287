"""Curves fitted to the published rows of ``data/measurements/communication.json``, one device and collective each.

Where two sources measured one device they are fitted together, and the curve lies between them: all-gather of 256 MiB
between two H100s reaches 245 GB/s in aiconfigurator's table and 327 GB/s in DistCA's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from telekit import catalog
from telekit.cluster.curves import Curve
from telekit.comm.fit import fit_curve, parameters, scored
from telekit.comm.measurements import NAMES, Measurement
from telekit.errors import bad

Pair = tuple[str, str]
"""A device of the rows (``H100``) and a collective."""

LINK_BYTES_PER_S = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "GB200": 900e9}
IN_SWITCH_SHARE = {"H100": 0.762, "H200": 0.762, "B200": 0.923, "GB200": 0.923}
"""Devices whose NVSwitch reduces (NVLS), in an all-reduce: rate of the link then, over the ring's bandwidth."""
EXPONENT = {"V100": 3.2}
"""A pair of V100s has one of a device's six NVLinks, eight have all: (7/8 / 1/2)**3.2 = 6."""
RING_EXPONENT = 0.1
"""Of the ring below an in-switch reduction; that of H100's all-gather is 0.15."""
SIBLING_PRIOR: dict[Pair, Pair] = {
    ("GB200", "reduce-scatter"): ("B200", "all-gather"),
    ("H100", "reduce-scatter"): ("H100", "all-gather"),
}
"""Rows of two counts cannot say how bandwidth grows with a third, nor rows from 16 MiB up what a small message takes:
these lean on other rows of the same links."""
SIBLING_SPREAD = {
    "start_s": 0.2, "step_s": 0.2, "bandwidth_bytes_per_s": 0.15, "low_latency_ratio": 0.15, "ramp_s": 0.2,
    "rank_exponent": 0.1,
}  # fmt: skip
EXPONENT_SPREAD = 0.1
"""How far the exponent of a switch or a mesh may move from its usual value: rows of three counts say little of it."""


@cache
def published_rows() -> dict[Pair, tuple[Measurement, ...]]:
    """Rows inside one node, by device and collective, as ``data/measurements`` holds them."""
    found: dict[Pair, list[Measurement]] = {}
    for row in catalog.load(catalog.root() / "measurements" / "communication.json"):
        if row["kind"] != "collective" or row["gpu"] not in LINK_BYTES_PER_S or row["nodes"] != 1:
            continue
        op = NAMES[row["op"]]
        one = Measurement(
            op, row["n_gpus"], 1, row["total_bytes"], row["time_us"] * 1e-6, row["gpu"], row["source"]
        )
        found.setdefault((row["gpu"], op), []).append(one)
    return {pair: tuple(rows) for pair, rows in sorted(found.items())}


def options(pair: Pair) -> dict[str, Any]:
    """Return what ``fit_curve`` is told of a pair beside its rows."""
    device, op = pair
    share = IN_SWITCH_SHARE.get(device) if op == "all-reduce" else None
    told: dict[str, Any] = {"link_bytes_per_s": LINK_BYTES_PER_S[device], "in_switch_share": share}
    sibling = SIBLING_PRIOR.get(pair)
    if sibling:
        return told | {"prior": parameters(fitted_curve(sibling)), "spread": SIBLING_SPREAD}
    exponent = RING_EXPONENT if share else EXPONENT.get(device)
    if exponent is not None:
        told |= {"prior": {"rank_exponent": exponent}, "spread": {"rank_exponent": EXPONENT_SPREAD}}
    return told


@cache
def fitted_curve(pair: Pair) -> Curve:
    """Curve of a device and collective that has published rows, with its errors.

    Raises
    ------
    InputError
        Where it has none.
    """
    rows = published_rows().get(pair)
    if rows is None:
        raise bad("pair", " ".join(pair), "has no published rows", "derive.curve_of derives it")
    told = options(pair)
    curve = scored(fit_curve(rows, **told), rows, hold_out_each=True, **told)
    sources = "; ".join(sorted({row.source for row in rows}))
    return curve.model_copy(update={"source": sources, "verified": True})
