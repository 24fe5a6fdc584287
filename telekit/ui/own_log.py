"""A reader's own log: samples to begin with, the curve fitted to it, and the links that it gives expert traffic."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.curves import Curve, bus_factor
from telekit.comm.calibrate import published_rows
from telekit.comm.expert_links import ExpertLinks, expert_links
from telekit.comm.fit import fit_curve, parameters
from telekit.comm.measurements import Measurement, read_measurements
from telekit.comm.user_cluster import ClusterFit, fit_cluster

HEADER = "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
PROGRAMS = {
    "all-to-all": "alltoall_perf",
    "all-gather": "all_gather_perf",
    "all-reduce": "all_reduce_perf",
    "reduce-scatter": "reduce_scatter_perf",
}
SIZES = [4**i * 65536 for i in range(8)]
TRUTH = ((4, 1, 260e9, 14e-6), (8, 1, 270e9, 18e-6), (16, 2, 38e9, 40e-6))
"""Ranks, nodes, bytes a second that a rank sends, and start of the synthetic log's groups."""
NOISE = 0.03
NODES = 16
DRAWS = 16
MOST_ROWS = 60
"""Of a band: with more rows it is too narrow to see, and too slow to wait for."""


def log_text(rows: Sequence[Measurement], said: str) -> str:
    """Write measurements of one collective as nccl-tests prints them, after a line that says what they are."""
    lines = [f"# {said}"]
    groups: dict[tuple[int, int], list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: (row.nodes, row.ranks, row.size_bytes)):
        groups.setdefault((row.ranks, row.nodes), []).append(row)
    for (ranks, nodes), group in groups.items():
        lines += [f"# {PROGRAMS[group[0].op]} -b 64K -e 1G -f 4", "# nThread 1 nGpus 1 minBytes 65536"]
        lines += [
            f"#  Rank {i:2d} Group  0 Pid {1000 + i} on node{i * nodes // ranks} device {i % 8:2d} [0x00] GPU"
            for i in range(ranks)
        ]
        lines += [HEADER, *(_line(row) for row in group)]
    return "\n".join(lines) + "\n"


def _line(row: Measurement) -> str:
    algbw, us = row.size_bytes / row.time_s / 1e9, row.time_s * 1e6
    busbw = algbw * float(bus_factor(row.op, float(row.ranks)))
    time = f"{us:9.2f}" if us < 100 else f"{us:9.1f}"
    count = f"{row.size_bytes:12d} {row.size_bytes // 2:13d}"
    return f"{count}      half    none      -1 {time} {algbw:7.2f} {busbw:7.2f}       0"


def synthetic_log() -> str:
    """Make an all-to-all's log of our own: one H100 node slower than the catalog's, and two of them."""
    rng = np.random.default_rng(0)
    rows = []
    for ranks, nodes, rate, start in TRUTH:
        away = ranks - ranks // nodes if nodes > 1 else ranks - 1
        for size in SIZES:
            time = (start + size / ranks * away / rate) * float(np.exp(rng.normal(0, NOISE)))
            rows.append(Measurement("all-to-all", ranks, nodes, size, time))
    return log_text(rows, "SYNTHETIC: made by telekit for this chapter, not measured anywhere")


def published_log(device: str, op: str) -> str:
    """Write published rows (data/measurements/communication.json) in the form of nccl-tests."""
    rows = [row for row in published_rows()[device, op] if row.size_bytes >= SIZES[0]]
    return log_text(
        rows, f"published rows of {device}, rewritten in nccl-tests' form: {rows[0].source}"[:400]
    )


def mixed_up_log() -> str:
    """Return the synthetic log with some sizes that count elements, not bytes, and its last line cut off."""
    lines = synthetic_log().splitlines()
    for i in [i for i, line in enumerate(lines) if not line.startswith("#")][::5]:
        size, *rest = lines[i].split()
        lines[i] = " ".join([str(int(size) // 2), *rest])
    return "\n".join([*lines[:-1], lines[-1][:30]]) + "\n"


LOGS: dict[str, tuple[str, Callable[[], str]]] = {
    "synthetic: H100, one node and two": ("h100", synthetic_log),
    "published: H200, all-to-all in a node": ("h200", lambda: published_log("H200", "all-to-all")),
    "published: H100, all-gather in a node": ("h100", lambda: published_log("H100", "all-gather")),
    "synthetic, with mistakes in it": ("h100", mixed_up_log),
}
"""Logs to begin with, by what they are: the device they belong to, and how they are made."""


@dataclass(frozen=True)
class Band:
    """Bus bandwidth of a fitted curve over message sizes, and between which values 90 % of refits lie."""

    sizes: tuple[float, ...] = ()
    middle: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A log as fitted.

    Attributes
    ----------
    fit, cluster : ClusterFit, ClusterConfig
        As :func:`telekit.comm.user_cluster.fit_cluster` answers, and the cluster it makes.
    op, ranks : str, int
        Collective and largest group inside one node that is drawn; 0 ranks: there is none.
    rows : tuple of Measurement
        Its rows.
    band : Band
        Its curve.
    links : ExpertLinks
        The catalog's, with what was measured in its place.
    changed : tuple of str
        What that is.
    """

    fit: ClusterFit
    cluster: ClusterConfig
    op: str
    ranks: int
    rows: tuple[Measurement, ...]
    band: Band
    links: ExpertLinks
    changed: tuple[str, ...]


@lru_cache(maxsize=16)
def measured(device: str, text: str) -> Measured:
    """Read and fit a log: text of nccl-tests or hccl_test, or CSV.

    Raises
    ------
    InputError
        When it holds no row that can be used: all flagged lines.
    """
    csv = "," in text.lstrip().split("\n", 1)[0] and not text.lstrip().startswith("#")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("log.csv" if csv else "log.txt")
        path.write_text(text, encoding="utf-8")
        fit = fit_cluster([path], device=device, nodes=NODES)
        every = read_measurements(path).rows
    cluster = load_cluster(fit.record)
    node = cluster.tiers[0].name
    op = next((name for tier, name in fit.fits if tier == node), every[0].op)
    inside = [row for row in every if row.op == op and row.nodes == 1 and not row.in_place]
    ranks = max((row.ranks for row in inside), default=0) if (node, op) in fit.fits else 0
    known = load_cluster({"device": device, "nodes": NODES})
    band = _band(cluster, known, op, inside, ranks) if ranks else Band()
    links, changed = _links(cluster, fit, expert_links(known))
    return Measured(fit, cluster, op, ranks, tuple(inside), band, links, changed)


def _links(
    cluster: ClusterConfig, fit: ClusterFit, links: ExpertLinks
) -> tuple[ExpertLinks, tuple[str, ...]]:
    """Put what was measured in place of the catalog's: bus bandwidth of these collectives is what a rank sends."""
    changed = []
    for op in ("all-to-all", "all-gather", "reduce-scatter"):
        if (cluster.tiers[0].name, op) in fit.fits:
            rate = float(
                fit.fits[cluster.tiers[0].name, op].curve.bus_bandwidth_bytes_per_s(op, float(links.domain))
            )
            was, links = links.fabric_bytes_per_s, replace(links, fabric_bytes_per_s=rate)
            changed.append(f"in the node {rate / 1e9:.4g} GB/s a rank instead of {was / 1e9:.4g}, by {op}")
            break
    tier = cluster.tiers[-1]
    source = tier.sources.get("efficiency")
    if source is not None and source.source.startswith("fitted to"):
        rate, was = tier.bandwidth_bytes_per_s * tier.efficiency, links.network_bytes_per_s
        links = replace(links, network_bytes_per_s=rate, network_latency_s=tier.latency_s)
        changed.append(f"between nodes {rate / 1e9:.4g} GB/s instead of {was / 1e9:.4g}")
    return links, tuple(changed)


def _band(
    cluster: ClusterConfig, known: ClusterConfig, op: str, rows: Sequence[Measurement], ranks: int
) -> Band:
    """Fit rows drawn with replacement again and again, each towards the catalog's curve, as the fit itself was."""
    sizes = np.geomspace(min(row.size_bytes for row in rows), max(row.size_bytes for row in rows), 40)
    tier, prior = known.tiers[0], known.tiers[0].curves.get(op)
    told: dict[str, Any] = (
        {} if prior is None else {"in_switch_share": prior.in_switch_share, "prior": parameters(prior)}
    )

    def rates(curve: Curve) -> list[float]:
        sent = float(bus_factor(op, float(ranks))) * sizes
        found: list[float] = (sent / curve.time_s(op, sizes, float(ranks))).tolist()
        return found

    rng, middle = np.random.default_rng(0), rates(cluster.tiers[0].curves[op])
    again = [middle]
    for _ in range(DRAWS if len(rows) <= MOST_ROWS else 0):
        drawn = [rows[i] for i in rng.integers(len(rows), size=len(rows))]
        fit = fit_curve(drawn, link_bytes_per_s=tier.bandwidth_bytes_per_s, **told)
        again.append(rates(fit.curve))
    low, high = np.quantile(again, [0.05, 0.95], axis=0).tolist()
    return Band(tuple(sizes.tolist()), tuple(middle), tuple(low), tuple(high))
