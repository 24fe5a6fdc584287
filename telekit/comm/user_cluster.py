"""A user's logs of collective benchmarks as a cluster file that ``load_cluster`` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from telekit import catalog
from telekit.cluster.config import ClusterConfig, LinkTier, load_cluster
from telekit.cluster.curves import bus_factor
from telekit.comm.fit import FEWEST_ROWS, POOR_FIT, Fit, fit_curve, parameters, scored
from telekit.comm.link_fit import LinkFit, fit_link, stride_of
from telekit.comm.measurements import Measurement, read_measurements
from telekit.comm.row_checks import in_network
from telekit.errors import InputError, Problem, bad


@dataclass(frozen=True)
class ClusterFit:
    """A user's logs as a cluster: its record, the fits in it, flagged lines and remarks.

    ``fits`` are by tier and collective; ``link`` is the last tier's latency and efficiency, where rows reach over it.
    """

    record: dict[str, Any]
    fits: dict[tuple[str, str], Fit]
    link: LinkFit | None
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def fit_cluster(
    paths: Sequence[str | Path],
    *,
    device: str,
    nodes: int,
    name: str = "",
    op: str | None = None,
    ranks: int | None = None,
) -> ClusterFit:
    """Fit a cluster to logs of nccl-tests or hccl_test, or CSV files.

    Rows of groups inside a tier give curves there, groups of whole nodes on the tier between nodes too. All groups
    that reach over the last tier also give its latency and efficiency (an alpha-beta fit of all their collectives
    together), for collectives that were not measured. What no row says keeps the catalog's value.

    Parameters
    ----------
    paths : sequence of str or Path
        The logs.
    device, nodes, name : str, int, str
        Catalog name of the device, how many nodes, and the name of the cluster (``my-<device>``).
    op, ranks : optional
        As of ``read_measurements``, for logs that do not say.

    Raises
    ------
    InputError
        When a log cannot be read, no row fits the cluster, or nothing could be fitted to those that do (then with all
        flagged lines), and when a curve misses its own rows by more than 15 %.
    """
    base = load_cluster({"device": device, "nodes": nodes})
    rows, problems, notes = _read_logs(paths, op, ranks)
    by_tier = _by_tier(_out_of_place(rows), base, problems, notes)
    if not by_tier:
        raise InputError([Problem("logs", len(rows), "hold no row that fits the cluster"), *problems])
    _refuse_mostly_flagged([row for group in by_tier.values() for row in group], problems)
    record = catalog.record("clusters", device)
    tiers, fits = record["tiers"], {}
    for (depth, one), group in sorted(by_tier.items()):
        fit = _tier_curve(base, depth, one, group, notes)
        if fit is not None:
            fits[base.tiers[depth].name, one] = fit
            curves = tiers[depth].setdefault("curves", {})
            curves[one] = fit.curve.model_dump(mode="json", exclude_none=True)
    last = len(base.tiers) - 1
    outer = [row for (depth, _), group in by_tier.items() if depth == last > 0 for row in group]
    link = _fit_last(base, outer, tiers[-1], notes)
    if link is None and not fits:
        rule = f"are too few to fit anything: {FEWEST_ROWS} of one collective are needed"
        raise InputError([Problem("logs", f"{len(rows)} rows", rule), *problems])
    source = "fitted to " + ", ".join(Path(path).name for path in paths)
    made = {"name": name or f"my-{device}", "source": source, "verified": True, "device": device}
    made |= {"devices": base.devices, "tiers": tiers}
    load_cluster(made)
    return ClusterFit(made, fits, link, tuple(problems), tuple(dict.fromkeys(notes)))


def check_cluster_path(path: str | Path) -> Path:
    """Return the path of a cluster file to write.

    Raises
    ------
    InputError
        Its name ends otherwise than in .json, .yaml or .yml, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in (".json", ".yaml", ".yml"):
        raise bad(
            "path", path.name, "a cluster file ends in .json, .yaml or .yml", "for example cluster.yaml"
        )
    try:
        there, taken = path.parent.is_dir(), path.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long
        raise bad("path", path.name[:60], f"cannot be written: {error}"[:200]) from None
    if not there or taken:
        rule = "is a folder" if taken else "its folder does not exist"
        raise bad("path", path.name, rule, "a file in a folder that exists", source=str(path))
    return path


def write_cluster(path: str | Path, fit: ClusterFit) -> Path:
    """Write the record of a fitted cluster as JSON (``.json``) or YAML, for ``load_cluster`` to read."""
    path = check_cluster_path(path)
    if path.suffix.lower() == ".json":
        text = json.dumps(fit.record, indent=2, ensure_ascii=False) + "\n"
    else:
        import yaml

        plain = json.loads(json.dumps(fit.record))  # no part twice: an alias would not be read again
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise bad("path", path.name, f"cannot be written: {error.strerror}", source=str(path)) from None
    load_cluster(path)  # what was written is what can be read
    return path


def _read_logs(
    paths: Sequence[str | Path], op: str | None, ranks: int | None
) -> tuple[list[Measurement], list[Problem], list[str]]:
    rows: list[Measurement] = []
    problems: list[Problem] = []
    notes: list[str] = []
    for path in paths:
        found = read_measurements(path, op=op, ranks=ranks)
        rows += found.rows
        problems += [replace(p, field=f"{Path(path).name} {p.field}") for p in found.problems]
        notes += found.notes
    return rows, problems, notes


def _out_of_place(rows: Sequence[Measurement]) -> list[Measurement]:
    """Drop what was measured in place where the same was measured out of place."""
    key = {(row.source, row.op, row.ranks, row.size_bytes) for row in rows if not row.in_place}
    return [
        row for row in rows if not row.in_place or (row.source, row.op, row.ranks, row.size_bytes) not in key
    ]


def _by_tier(
    rows: Sequence[Measurement], base: ClusterConfig, problems: list[Problem], notes: list[str]
) -> dict[tuple[int, str], list[Measurement]]:
    """Sort rows by the tier their group lies inside; a group that does not fit, or is too fast, is flagged."""
    found: dict[tuple[int, str], list[Measurement]] = {}
    per_node = base.devices_per_node
    for row in rows:
        where = f"{Path(row.source).name} line {row.line}"
        if row.ranks > base.devices or row.nodes > base.num_nodes or row.ranks > row.nodes * per_node:
            rule = f"does not fit {base.num_nodes} nodes of {per_node} devices"
            problems.append(Problem(where, f"{row.ranks} ranks on {row.nodes} nodes", rule))
            continue
        span = row.ranks if row.nodes == 1 else max(row.ranks, (row.nodes - 1) * per_node + 1)
        depth = next(i for i, tier in enumerate(base.tiers) if tier.devices is None or tier.devices >= span)
        busbw = float(bus_factor(row.op, row.ranks)) * row.size_bytes / row.time_s
        try:
            if in_network(row.op, row.ranks, busbw, base.tiers[0].bandwidth_bytes_per_s):
                notes.append(
                    f"{row.op} on {row.ranks} ranks is reduced in the network: its busbw is no wire rate"
                )
        except InputError as error:
            problems += [replace(p, field=f"{where} {p.field}") for p in error.problems]
            continue
        found.setdefault((depth, row.op), []).append(row)
    return found


def _refuse_mostly_flagged(rows: Sequence[Measurement], problems: list[Problem]) -> None:
    """Refuse logs of which fewer lines are sound than not: what is wrong with those is wrong with all."""
    sound = {f"{Path(row.source).name} line {row.line}" for row in rows}
    flagged = {match.group() for p in problems if (match := re.match(r".* line \d+", p.field))} - sound
    if len(flagged) > len(sound):
        rule = f"are flagged, {len(sound)} are not: nothing is fitted to the rest"
        hint = "mend the units, or leave out what does not belong"
        raise InputError([Problem("logs", f"{len(flagged)} lines", rule, hint), *problems])


def _tier_curve(
    base: ClusterConfig, depth: int, op: str, rows: list[Measurement], notes: list[str]
) -> Fit | None:
    """Fit the curve of one collective on one tier; between nodes to groups of whole nodes only."""
    tier, unit = base.tiers[depth], 1
    if depth == len(base.tiers) - 1 and depth:
        unit = base.devices_per_node
        rows = [row for row in rows if row.ranks == row.nodes * unit]
    if len(rows) < FEWEST_ROWS:
        few = f"{op} over the {tier.name}: {len(rows)} rows are too few for a curve, {FEWEST_ROWS} are needed"
        notes.append(f"{few}; it keeps the catalog's links")
        return None
    fit = _best_form(tier, op, rows, unit)
    notes += [f"{op}: {note}" for note in fit.notes]
    sources = ", ".join(sorted({Path(row.source).name for row in rows}))
    curve = scored(fit, rows)
    if curve.errors.fit is not None and curve.errors.fit > POOR_FIT:
        rule = f"no curve describes these {len(rows)} rows: it misses half of them by {curve.errors.fit:.0%} or more"
        hint = "look for rows of another machine, or with other units, in the log"
        raise bad(f"{op} over the {tier.name}", sources, rule, hint)
    source = f"fitted to {len(rows)} rows of {sources}"
    return replace(fit, curve=curve.model_copy(update={"source": source, "verified": True}))


def _best_form(tier: LinkTier, op: str, rows: Sequence[Measurement], unit: int) -> Fit:
    """Fit with the catalog's curve as prior; without reduction in the switch where rows of several groups deny it."""
    known = tier.curves.get(op)
    links = unit if op != "all-to-all" else 1  # a ring leaves a node by all its links, a message by its own
    told: dict[str, Any] = {"link_bytes_per_s": tier.bandwidth_bytes_per_s * links, "unit_ranks": unit}
    if known is not None:
        told["prior"] = parameters(known)
    share = known.in_switch_share if known is not None else None
    fit = fit_curve(rows, in_switch_share=share, **told)
    if share is None or len(fit.curve.ranks) == 1:
        return fit
    return min((fit, fit_curve(rows, **told)), key=lambda one: one.noise)


def _fit_last(
    base: ClusterConfig, rows: Sequence[Measurement], tier: dict[str, Any], notes: list[str]
) -> LinkFit | None:
    """Fit latency and efficiency of the last tier, and put them into its record; None where rows are too few."""
    even = [row for row in rows if stride_of(row, base.devices_per_node) is not None]
    if len(even) < len(rows):
        left_out = f"{len(rows) - len(even)} rows of groups that lie unevenly on their nodes are not used"
        notes.append(f"{base.tiers[-1].name}: {left_out}")
    if len(even) < FEWEST_ROWS:
        return None
    found = fit_link(base, even)
    files = ", ".join(sorted({Path(row.source).name for row in even}))
    said = {
        "source": f"fitted to {found.rows} rows of {files}, median error {100 * found.error:.0f} %",
        "verified": found.error <= POOR_FIT,
    }
    tier |= {"latency_s": found.latency_s, "efficiency": found.efficiency}
    tier["sources"] = tier.get("sources", {}) | {"latency_s": dict(said), "efficiency": dict(said)}
    if found.efficiency >= 0.999:
        notes.append(
            f"{found.tier}: measured faster than the link of the catalog: its bandwidth may be set too low"
        )
    if found.error > POOR_FIT:
        notes.append(
            f"{found.tier}: latency and efficiency alone miss half of the rows by {found.error:.0%} or more; "
            "collectives that were not measured are priced by them"
        )
    return found
