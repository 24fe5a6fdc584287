"""The command on traces and tables of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from telekit.cli.output import JsonFlag, paragraphs, progress, show, table
from telekit.errors import bad

if TYPE_CHECKING:
    from telekit.diagnose.diagnosis import Diagnosis
    from telekit.diagnose.tables.report import Cell, TableReport

SHOWN = 16
"""Ranks, rows and problems shown to a person; --json has all."""
SMALL = 0.02
"""A category below this share of the step on all ranks is told under other."""


def diagnose(
    folder: Annotated[Path, typer.Argument(help="A file, or a folder with one file a rank; see above.")],
    ranks_per_node: Annotated[int, typer.Option(help="Ranks that share a node, in order.")] = 8,
    cluster_out: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file to write, .yaml or .json: jitter and host times fitted to the traces."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="What --cluster-out starts from: catalog name of a cluster or a device, or a file."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what is wrong with a run, from its traces and tables: who is slow, why, and what shows it.

    Traces: JSON of torch.profiler (Kineto) and of Ascend's profilers (trace_view.json, msprof), also .gz;
    kernel_details.csv; nsys (.sqlite, CSV reports); rocprof (JSON, CSV).

    Tables: logs with Megatron-LM's timers (--timing-log-level 2, best with --timing-log-option all); Ascend's
    step_trace_time.csv and op_statistic.csv; CSV of metrics with a column of time, one that names the machine or rank,
    and one a metric.

    A folder may mix them and is searched with those below it. A rank is read from the file, or from its name
    (rank3.json). Exit 0: nothing is wrong; 1: something is; 2: nothing could be read.
    """
    from telekit.diagnose.diagnosis import diagnose as run
    from telekit.diagnose.readers import read

    if (cluster_out is None) != (cluster is None):
        missing = "cluster" if cluster is None else "cluster-out"
        raise bad(f"--{missing}", "missing", "--cluster-out FILE and --cluster NAME go together",
                  "--cluster h800 --cluster-out fitted.yaml")  # fmt: skip
    if cluster_out is not None and cluster is not None:
        _check_cluster(cluster, cluster_out)
    with progress() as tell:
        given = read(folder, progress=tell)
        found = run(given, ranks_per_node=ranks_per_node, progress=tell)
    document = found.to_dict()
    fitted: dict[str, Any] | None = None
    if cluster_out is not None and cluster is not None:
        fitted = _write_cluster(found, cluster, cluster_out, folder)
        document["cluster"] = fitted
    show(as_json, document, lambda: _print(found, fitted))
    raise typer.Exit(0 if found.healthy else 1)


def _check_cluster(cluster: str, path: Path) -> None:
    """Refuse what could not be fitted or written, before the work."""
    from telekit.comm.summary import cluster_for
    from telekit.comm.user_cluster import check_cluster_path

    cluster_for(cluster, 1)
    check_cluster_path(path)


def _write_cluster(found: Diagnosis, cluster: str, path: Path, folder: Path) -> dict[str, Any]:
    """Fit and write the cluster; return the file and the values before and after."""
    from telekit.comm.summary import cluster_for
    from telekit.diagnose.cluster_values import FITTED, fitted_cluster, write_fitted

    traces = found.run.traces
    if not traces:
        raise bad(
            "traces", 0, "--cluster-out fits traces, and there are none", "tables do not show host times"
        )
    made, measured = fitted_cluster(traces, cluster, folder.name)
    before = cluster_for(cluster, made.devices).device.kernels
    after = made.device.kernels
    values = {name: {"before": getattr(before, name), "after": getattr(after, name)} for name in FITTED}
    notes = (
        [] if found.healthy else ["the traces are not healthy: what is wrong with them is part of the values"]
    )
    if measured.jitter is None:
        notes.append("jitter keeps its value: it takes two ranks or more that run the same")
    if measured.host is None:
        notes.append(
            "host_launch_s keeps its value: the launches do not show what one costs (too few, none tied to its kernel, "
            "or the host always waited for its device)"
        )
    else:
        notes.append(
            "host_launch_s is the time from one launch to the next: an operator of several kernels costs more"
        )
    return {
        "file": str(write_fitted(path, made)),
        "values": values,
        "measured": measured.to_dict(),
        "notes": notes,
    }


def _print(found: Diagnosis, fitted: dict[str, Any] | None) -> None:
    """Print the verdict, the evidence, the ranks and the tables."""
    told = "what bounds it cannot be told from these files"
    paragraphs(
        [
            f"{found.says}; "
            + (told if found.bound == "unknown" else f"most ranks are bound by: {found.bound}")
        ]
    )
    for finding in found.findings:
        paragraphs(
            ["", str(finding), *(f"  {e.text}" for e in finding.evidence), f"  advice: {finding.advice}"]
        )
    if found.ranks:
        _print_ranks(found)
    if found.critical is not None:
        paragraphs(["", str(found.critical)])
    for report in found.tables:
        _print_report(report)
    paragraphs(["", *(f"note: {n}" for n in found.notes), *(f"problem: {p}" for p in found.problems[:SHOWN])])
    if fitted is not None:
        for name, value in fitted["values"].items():
            print(f"{name:<24}{value['before']:.4g} -> {value['after']:.4g}")
        paragraphs(f"note: {n}" for n in fitted["notes"])
        print(f"written: {fitted['file']} (in a job file: cluster: {fitted['file']})")


def _print_ranks(found: Diagnosis) -> None:
    from telekit.units import format_seconds

    paragraphs([""])
    worst = sorted(found.ranks, key=lambda r: -r.own_s)[:SHOWN]
    names = ("compute", "overlap", "transfer", "waiting", "copy", "data")
    shown = [name for name in names if any(rank.seconds[name] >= SMALL * rank.step_s > 0 for rank in worst)]
    rows = []
    for rank in worst:
        parts = [rank.seconds[name] for name in shown]
        name = "?" if rank.rank is None else str(rank.rank)
        rows.append(
            (
                name,
                rank.bound,
                *map(format_seconds, (rank.step_s, *parts, max(rank.step_s - sum(parts), 0.0))),
            )
        )
    table(("rank", "bound by", "step", *shown, "other"), rows)
    if len(found.ranks) > SHOWN:
        paragraphs([f"and {len(found.ranks) - SHOWN} ranks with less time of their own (--json has all)"])


def _print_report(report: TableReport) -> None:
    """Print one kind of table: its sentence, its rows (of ranks those with most time of their own), its notes."""
    paragraphs(["", f"{report.kind}: {report.says}"])
    rows = sorted(report.rows, key=_alone_s) if report.kind == "steps" else list(report.rows)
    keys = [key for key in (rows[0] if rows else ()) if any(row[key] is not None for row in rows)]
    table(tuple(map(_head, keys)), [tuple(_cell(key, row[key]) for key in keys) for row in rows[:SHOWN]])
    if len(rows) > SHOWN:
        paragraphs([f"and {len(rows) - SHOWN} more (--json has all)"])
    paragraphs(f"note: {n}" for n in report.notes)


def _alone_s(row: Mapping[str, Any]) -> float:
    return -float((row["computing_s"] or 0.0) + (row["free_s"] or 0.0))


def _head(key: str) -> str:
    for end in ("_s", "_share"):
        key = key.removesuffix(end)
    return key.replace("_", " ")


def _cell(key: str, value: Cell) -> str:
    from telekit.units import format_seconds

    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if key.endswith("_s"):
        return format_seconds(float(value))
    return (
        f"{value:.1%}"
        if key.endswith("share")
        else f"{value:,}"
        if isinstance(value, int)
        else f"{value:.4g}"
    )
