"""Curves of collectives and devices that nobody published rows of, by rules scored on pairs that do have rows.

Each rule says how one curve follows from others. Its score is taken leaving one pair out: the rule predicts each pair
of ``TESTS`` from other pairs only, and the errors on its rows are pooled. Derived curves are never ``verified``.
``write_curves()`` stores the curves of all devices in ``data/clusters``, fitted ones too; a test holds that what is
stored is what it would write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from telekit import catalog
from telekit.cluster.curves import Curve, CurveErrors
from telekit.comm.calibrate import (
    A2A,
    AG,
    AR,
    IN_SWITCH_SHARE,
    LINK_BYTES_PER_S,
    RS,
    Pair,
    alone,
    fitted_curve,
    mean,
    one_pass,
    pairwise,
    published_rows,
)
from telekit.comm.fit import LARGE_BYTES, parameters, relative_errors, with_digits

ALL = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send-recv")
_GATHERS = ((("H100", AG), ("H200", A2A)), (("B200", AG), ("B200", A2A)))
"""All-gather and all-to-all over the same links, both measured: what one is to the other."""

RULES: dict[Pair, tuple[str, tuple[Pair, ...]]] = {
    ("A100", AG): ("one pass", (("A100", RS), ("A100", AR))),
    ("V100", AG): ("one pass", (("V100", AR),)),
    ("V100", RS): ("one pass", (("V100", AR),)),
    ("H100", A2A): ("same links", (("H200", A2A),)),
    ("H200", AG): ("same links", (("H100", AG),)),
    ("H200", RS): ("same links", (("H100", RS),)),
    ("H200", AR): ("same links", (("H100", AR),)),
    ("B200", RS): ("one pass", (("B200", AG), ("GB200", RS))),
    ("B200", AR): ("same links", (("GB200", AR),)),
    ("GB200", AG): ("one pass", (("B200", AG), ("GB200", RS))),
    ("GB200", A2A): ("same links", (("B200", A2A),)),
    ("A100", A2A): ("pairwise", (("A100", AG),)),
    ("V100", A2A): ("pairwise", (("V100", AG),)),
}
"""The rule of each pair without rows, and what it starts from. Broadcast and send-recv follow all-gather everywhere."""

SAYS = {
    "one pass": "one pass of a ring: mean of reduce-scatter, all-gather, and the ring of all-reduce with half its step",
    "same links": "as on the device with the same links",
    "pairwise": "all-gather, changed as all-to-all differs from it on H100 with H200 and on B200",
    "broadcast": "a pipelined ring moves it at the rate of an all-gather of eight; no rows to score it on",
    "send-recv": "one message moves as in an all-gather of two; no rows to score it on",
    "scaled": "bandwidths in proportion to the link's",
}

TESTS: dict[str, tuple[tuple[Pair, tuple[Pair, ...]], ...]] = {
    "one pass": (
        (("H100", AG), (("H100", RS), ("H100", AR))),
        (("H100", RS), (("H100", AG), ("H100", AR))),
        (("A100", RS), (("A100", AR),)),
        (("GB200", RS), (("B200", AG), ("GB200", AR))),
        (("B200", AG), (("GB200", RS), ("GB200", AR))),
    ),
    "same links": ((("GB200", RS), (("B200", AG),)), (("B200", AG), (("GB200", RS),))),
    "pairwise": ((("H200", A2A), (("H100", AG),)), (("B200", A2A), (("B200", AG),))),
    "scaled": (
        (("H100", AR), (("GB200", AR),)),
        (("GB200", AR), (("H100", AR),)),
        (("H100", RS), (("A100", RS),)),
        (("A100", RS), (("H100", RS),)),
        (("GB200", RS), (("H100", RS),)),
        (("B200", AG), (("H100", AG),)),
        (("H100", AG), (("B200", AG),)),
        (("B200", A2A), (("H200", A2A),)),
        (("H200", A2A), (("B200", A2A),)),
    ),
}
"""What scores a rule: (pair with rows, what it is predicted from)."""


@cache
def curve_of(device: str, op: str) -> Curve:
    """Curve of a device of the rows (``H100``): fitted where it has rows, else derived."""
    pair = (device, op)
    if pair in published_rows():
        return fitted_curve(pair)
    if op in ("broadcast", "send-recv"):
        rule: str = op
        of: tuple[Pair, ...] = ((device, AG),)
    else:
        rule, of = RULES[pair]
    curve = _apply(rule, [(p, curve_of(*p)) for p in of], pair, ())
    origin = " and ".join(f"{d} {o}" for d, o in of)
    return _derived(curve, f"derived from {origin}: {SAYS[rule]}", rule)


def scaled_curve(device: str, op: str, ratio: float) -> Curve:
    """Curve of a device whose links carry ``ratio`` of another's: a cut-down one (A800, H800)."""
    return _derived(
        _scaled(curve_of(device, op), ratio), f"derived from {device} {op}: {SAYS['scaled']}", "scaled"
    )


def _derived(curve: Curve, source: str, rule: str) -> Curve:
    overall, large = rule_score(rule)
    errors = CurveErrors(left_out_pair=overall, left_out_pair_above_16_mb=large)
    kept = {"in_switch_share": curve.in_switch_share, "ranks": curve.ranks}
    return with_digits(parameters(curve), **kept, rows=0, source=source, verified=False, errors=errors)


def _apply(rule: str, of: Sequence[tuple[Pair, Curve]], target: Pair, without: tuple[Pair, ...]) -> Curve:
    """Return the curve that a rule makes of others; ``without`` names pairs it may not look at."""
    if rule == "one pass":
        return mean([one_pass(pair, curve) for pair, curve in of])
    if rule == "pairwise":
        seen = [(alone(g), alone(a)) for g, a in _GATHERS if a not in without]
        return mean([pairwise(of[0][1], gather, other) for gather, other in seen])
    if rule == "broadcast" and of[0][1].rank_exponent <= 1.0:  # a mesh's pairs stay slower
        return of[0][1].model_copy(update={"rank_exponent": 0.0})
    if rule == "scaled":
        (pair, curve) = of[0]
        scaled = _scaled(curve, LINK_BYTES_PER_S[target[0]] / LINK_BYTES_PER_S[pair[0]])
        share = IN_SWITCH_SHARE.get(target[0]) if curve.in_switch_share else None
        return scaled.model_copy(update={"in_switch_share": share})
    return of[0][1]


def _scaled(curve: Curve, ratio: float) -> Curve:
    return curve.model_copy(update={"bandwidth_bytes_per_s": curve.bandwidth_bytes_per_s * ratio})


@cache
def pair_errors(rule: str, target: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Errors of a rule on the rows of a pair it did not see, and which of them are of 16 MiB and more."""
    of = dict(TESTS[rule])[target]
    curve = _apply(rule, [(p, alone(p)) for p in of], target, (target,))
    rows = published_rows()[target]
    return relative_errors(curve, rows), np.array([row.size_bytes >= LARGE_BYTES for row in rows])


@cache
def rule_score(rule: str) -> tuple[float | None, float | None]:
    """Median absolute relative error of a rule over all rows of its tests, and over the large ones."""
    if rule not in TESTS:
        return None, None
    found = [pair_errors(rule, target) for target, _ in TESTS[rule]]
    errors, large = (np.concatenate(part) for part in zip(*found, strict=True))
    return round(float(np.median(errors)), 4), round(float(np.median(errors[large])), 4)


CATALOG: dict[str, tuple[str, float]] = {
    "v100": ("V100", 1.0),
    "a100-80gb": ("A100", 1.0),
    "a100-40gb": ("A100", 1.0),
    "a800": ("A100", 200 / 300),
    "h100": ("H100", 1.0),
    "h800": ("H100", 200 / 450),
    "h200": ("H200", 1.0),
    "b200": ("B200", 1.0),
    "b300": ("B200", 1.0),
    "gb200": ("GB200", 1.0),
    "gb300": ("GB200", 1.0),
}
"""Device of the rows that each catalog device's curves come from, and the part of its links that it has."""

MEASURED_ON = ("v100", "a100-80gb", "h100", "h200", "b200", "gb200")


def catalog_curves(name: str) -> dict[str, Curve]:
    """Curves of a catalog device inside one node, by collective."""
    device, ratio = CATALOG[name]
    if ratio != 1.0:
        return {op: scaled_curve(device, op, ratio) for op in ALL}
    curves = {op: curve_of(device, op) for op in ALL}
    if name in MEASURED_ON:
        return curves
    return {
        op: _derived(curve, f"derived from {device} {op}: {SAYS['same links']}", "same links")
        if curve.rows
        else curve
        for op, curve in curves.items()
    }


def curves_record(name: str) -> dict[str, Any]:
    """Return what stands in ``curves`` of a device's innermost tier: plain numbers, nothing that is unset."""
    return {op: curve.model_dump(exclude_none=True) for op, curve in catalog_curves(name).items()}


def write_curves(folder: Path | None = None) -> tuple[Path, ...]:
    """Refit all curves and store them in the records of devices, and of clusters with tiers of their own.

    Parameters
    ----------
    folder : Path or None
        Where the records lie; the catalog's own by default.

    Returns
    -------
    tuple of Path
        The files written.
    """
    folder = folder or catalog.root() / "clusters"
    written = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        name = record["device"] if isinstance(record["device"], str) else path.stem
        tiers = [t for t in record.get("tiers", ()) if t["name"] in ("node", "supernode")]
        if name not in CATALOG or not tiers:
            continue
        for tier in tiers:  # a supernode's devices hang on the same switches as a node's
            tier["curves"] = curves_record(name)
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(path)
    return tuple(written)
