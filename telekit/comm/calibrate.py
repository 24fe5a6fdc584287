"""Curves fitted to the published rows of ``data/measurements/communication.json``, one device and collective each.

Where two sources measured one device they are fitted together, and the curve lies between them: all-gather of 256 MiB
between two H100s reaches 245 GB/s in aiconfigurator's table and 327 GB/s in DistCA's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from telekit import catalog
from telekit.cluster.curves import Curve
from telekit.comm.fit import FIELDS, fit_curve, parameters, scored
from telekit.comm.measurements import NAMES, Measurement
from telekit.errors import bad

Pair = tuple[str, str]
"""A device of the rows (``H100``) and a collective."""

LINK_BYTES_PER_S = {"V100": 150e9, "A100": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9, "GB200": 900e9}
IN_SWITCH_SHARE = {"H100": 0.85, "H200": 0.85, "B200": 0.74, "GB200": 0.74}
"""What an all-reduce in the switch (NVLS) reaches of the ring's rate, by generation: NCCL's own constants, by which it
chooses algorithms (github:NVIDIA/nccl src/graph/tuning.cc, nvlsEfficiency). Taken from there, not fitted to rows."""
MESH = {"rank_exponent": 3.2}
"""A pair of V100s has one of a device's six NVLinks, eight have all: (7/8 / 1/2)**3.2 = 6."""
AG, RS, AR, A2A = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
SIBLINGS: dict[Pair, tuple[Pair, ...]] = {
    ("A100", AR): (("A100", RS),),
    ("A100", RS): (("A100", AR),),
    ("H100", AR): (("H100", AG),),
    ("H100", AG): (("H100", RS), ("H100", AR)),
    ("H100", RS): (("H100", AG),),
    ("GB200", AR): (("B200", AG),),
    ("GB200", RS): (("B200", AG),),
    ("B200", AG): (("GB200", RS),),
}
"""Rings over the same links, on which a curve leans: rows of three counts say little of how bandwidth grows with the
ranks, rows from 16 MiB up nothing of a small message. Never a pair's own rows: a count held out stays unseen."""
GATHER_OF: dict[Pair, tuple[Pair, Pair, Pair]] = {
    ("B200", A2A): (("B200", AG), ("H100", AG), ("H200", A2A)),
    ("H200", A2A): (("H100", AG), ("B200", AG), ("B200", A2A)),
}
"""An all-to-all leans on the all-gather over its links, changed as the two differ over the other generation's."""
SIBLING_SPREAD = {
    "start_s": 0.2, "step_s": 0.3, "bandwidth_bytes_per_s": 0.2, "low_latency_ratio": 0.2, "ramp_s": 0.2,
    "rank_exponent": 0.3,
}  # fmt: skip


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
    """Return what ``fit_curve`` is told of a pair beside its rows: its links, and what its siblings' rows say."""
    told = _links(pair)
    if pair in SIBLINGS:
        prior = parameters(mean([one_pass(of, alone(of)) for of in SIBLINGS[pair]]))
        prior["step_s"] *= _passes(pair)
        return told | {"prior": prior, "spread": SIBLING_SPREAD}
    if pair in GATHER_OF:
        gather, like, other = (alone(of) for of in GATHER_OF[pair])
        return told | {"prior": parameters(pairwise(gather, like, other)), "spread": SIBLING_SPREAD}
    return told


def _links(pair: Pair) -> dict[str, Any]:
    device, op = pair
    told: dict[str, Any] = {"link_bytes_per_s": LINK_BYTES_PER_S[device]}
    told["in_switch_share"] = IN_SWITCH_SHARE.get(device) if op == AR else None
    return told | {"prior": MESH if device == "V100" else None}


@cache
def alone(pair: Pair) -> Curve:
    """Curve of a pair by its own rows only, without what its siblings say."""
    return fit_curve(published_rows()[pair], **_links(pair)).curve


def _passes(pair: Pair) -> float:
    """How often the ring of a collective goes round: twice in an all-reduce."""
    return 2.0 if pair[1] == AR else 1.0


def one_pass(pair: Pair, curve: Curve) -> Curve:
    """Return the curve of one pass of a pair's ring."""
    return curve.model_copy(update={"step_s": curve.step_s / _passes(pair), "in_switch_share": None})


def pairwise(gather: Curve, like: Curve, other: Curve) -> Curve:
    """Change an all-gather's curve as ``other``, an all-to-all, differs from ``like``, its all-gather."""
    ratio = other.bandwidth_bytes_per_s / like.bandwidth_bytes_per_s
    return other.model_copy(
        update={
            "start_s": gather.start_s + max(other.start_s - like.start_s, 0.0),
            "step_s": gather.step_s * other.step_s / like.step_s,
            "bandwidth_bytes_per_s": gather.bandwidth_bytes_per_s * ratio,
            "rank_exponent": gather.rank_exponent,
        }
    )  # fmt: skip


def mean(curves: Sequence[Curve]) -> Curve:
    """Geometric mean of the parameters; arithmetic of the exponent; measured where any of them was."""
    values: dict[str, Any] = {
        n: float(np.exp(np.mean([np.log(getattr(c, n)) for c in curves]))) for n in FIELDS[:-1]
    }
    values["rank_exponent"] = float(np.mean([c.rank_exponent for c in curves]))
    values["ranks"] = tuple(sorted({n for c in curves for n in c.ranks}))
    return Curve.model_validate(values)


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
