"""The command on operator fusion: which operators of a graph to fuse on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from telekit.cli.output import JsonFlag, paragraphs, show, table
from telekit.errors import bad
from telekit.units import format_bytes, format_seconds


def fuse(
    graph: Annotated[
        str, typer.Argument(help="Subgraph by name (a wrong one lists all), or a JSON file of records.")
    ],
    device: Annotated[str, typer.Option(help="Catalog name of a device.")] = "ascend-910b",
    size: Annotated[
        list[str] | None, typer.Option(help="A named size, as T=4096; else TeleChat3-105B's.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find which operators to fuse; exit 1 when the answer is none."""
    from telekit.cluster.config import load_cluster
    from telekit.documents import read_document
    from telekit.fusion.graph import Graph
    from telekit.fusion.search import search
    from telekit.fusion.subgraphs import SIZES, subgraph
    from telekit.fusion.traffic import Target

    is_file = "/" in graph or graph.endswith((".json", ".yaml", ".yml"))
    made = Graph.from_records(read_document(graph), Path(graph).stem) if is_file else subgraph(graph)
    target = Target.of(load_cluster({"device": device, "nodes": 1}).device)
    given = dict(_size(text) for text in size or ())
    unknown = [name for name in given if name not in made.symbols()]
    if unknown:
        names = ", ".join(made.symbols()) or "none is named"
        raise bad("size", ", ".join(unknown), f"{made.name} has no such size", names)
    known = SIZES | given
    sizes = {name: known[name] for name in made.symbols() if name in known}
    found = search(made, sizes, target)
    document = {"graph": made.name, "device": target.name, "sizes": sizes, **found.to_dict()}
    document["assumptions"] = list(target.assumptions)

    def text() -> None:
        rows = []
        for kernel in found.cost.kernels:
            names = ", ".join(made.nodes[i].name for i in kernel.group)
            rows.append(
                (names, kernel.kind, format_bytes(kernel.moved_bytes), format_seconds(kernel.device_s))
            )
        table(("kernel", "kind", "moved", "device"), rows)
        paragraphs((found.verdict, *target.assumptions))

    show(as_json, document, text)
    if found.method == "unfused":
        raise typer.Exit(1)


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.isidentifier() or not number.isdecimal() or len(number) > 15 or not int(number):
        raise bad("size", text, "a size is a name and a whole number from 1", "T=4096")
    return name, int(number)
