"""Commands on communication: one collective, and links fitted to measurements."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from telekit.cli.output import JsonFlag, paragraphs, show
from telekit.errors import bad

if TYPE_CHECKING:
    from telekit.comm.user_cluster import ClusterFit

PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
SIZE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([kKMGT]?)(i?)([bB]?)")


def read_bytes(text: str) -> float:
    """Read a size: 1073741824, 1e9, 64MB (1e6) or 1GiB (2**30).

    Raises
    ------
    InputError
        For what is no size; for 64M and 64Mb, which may mean several.
    """
    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise bad("bytes", text, "is no size", "for example 1073741824, 1e9, 64MB or 1GiB")
    number, prefix, binary, unit = found.groups()
    if (prefix and unit != "B") or (binary and not prefix) or unit == "b":
        sure = (
            f"{number}{prefix}B (powers of 1000) or {number}{prefix.upper()}iB (of 1024)"
            if prefix
            else number
        )
        raise bad("bytes", text, "may mean several sizes", f"write {sure}")
    base = 1024.0 if binary else 1000.0
    return float(number) * float(base ** PREFIXES[prefix.upper()])


def comm(
    op: Annotated[str, typer.Argument(help="Collective; a wrong one lists all.")],
    cluster: Annotated[str, typer.Option(help="Catalog name of a cluster or a device, or a file.")],
    devices: Annotated[int, typer.Option(help="Ranks of the group.")],
    size: Annotated[
        str, typer.Option("--bytes", help="Whole buffer as nccl-tests counts it: 1e9, 64MB, 1GiB.")
    ],
    stride: Annotated[int, typer.Option(help="Distance of neighbours in ranks.")] = 1,
    algorithm: Annotated[
        str | None, typer.Option(help="By its links alone; else as the cost models price it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Price one collective."""
    from telekit.comm.summary import collective

    found = collective(op, cluster, devices, read_bytes(size), algorithm, stride)
    show(as_json, found.to_dict(), lambda: print(found.text()))


def fit_links(
    logs: Annotated[list[Path], typer.Argument(help="Logs of nccl-tests or hccl_test, or CSV files.")],
    device: Annotated[str, typer.Option(help="Catalog name of the device.")],
    out: Annotated[Path, typer.Option(help="Cluster file to write: .yaml or .json.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=1)] = 1,
    op: Annotated[str | None, typer.Option(help="Collective, where the logs do not say.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Ranks, where the logs do not say.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Fit a cluster's links to benchmark logs, and write a cluster file."""
    from telekit.comm.user_cluster import fit_cluster, write_cluster

    fit = fit_cluster(logs, device=device, nodes=nodes, name=out.stem, op=op, ranks=ranks)
    path = write_cluster(out, fit)
    document = {
        "file": str(path),
        "curves": {
            f"{op} over the {tier}": {
                "parameters": found.curve.model_dump(
                    exclude_none=True, exclude={"errors", "source", "verified"}
                ),
                "intervals": {key: list(pair) for key, pair in found.intervals.items()},
                "held": list(found.held),
                "errors": found.curve.errors.model_dump(exclude_none=True),
            }
            for (tier, op), found in fit.fits.items()
        },
        "link": _link_document(fit),
        "problems": [problem.to_dict() for problem in fit.problems],
        "notes": list(fit.notes),
    }
    show(as_json, document, lambda: _print_fit(path, fit))


def _link_document(fit: ClusterFit) -> dict[str, object] | None:
    """Latency and efficiency between nodes as plain data; None where no row reaches over nodes."""
    if fit.link is None:
        return None
    return asdict(fit.link) | {"intervals": {name: list(pair) for name, pair in fit.link.intervals.items()}}


def _print_fit(path: Path, fit: ClusterFit) -> None:
    for (tier, op), found in fit.fits.items():
        error = found.curve.errors.fit
        said = "" if error is None else f", median error {error:.1%}"
        print(f"{op} over the {tier}: {found.curve.rows} rows{said}")
        for key, (low, high) in found.intervals.items():
            print(f"  {key:<24}{getattr(found.curve, key):.4g}  (95 %: {low:.4g} to {high:.4g})")
    if fit.link is not None:
        print(f"links of the {fit.link.tier}: {fit.link.rows} rows, median error {fit.link.error:.1%}")
        for key, (low, high) in fit.link.intervals.items():
            print(f"  {key:<24}{getattr(fit.link, key):.4g}  (95 %: {low:.4g} to {high:.4g})")
    paragraphs((*(f"flagged: {problem}" for problem in fit.problems), *fit.notes))
    print(f"written: {path}")
