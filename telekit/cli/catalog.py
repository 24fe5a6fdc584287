"""Commands on models and clusters alone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from telekit.cli.output import JsonFlag, paragraphs, show, table, whole_numbers


def models(as_json: JsonFlag = False) -> None:
    """List the models of the catalog."""
    from telekit import catalog
    from telekit.model.count import count
    from telekit.units import format_count

    found: list[dict[str, Any]] = []
    for name in catalog.names("models"):
        size = count(name)
        found.append(
            {
                "name": name,
                "source": catalog.record("models", name)["source"],
                "total": size.total,
                "active": size.active,
                "mtp": size.mtp,
            }
        )
    show(
        as_json,
        found,
        lambda: table(
            ("model", "total", "active", "source"),
            [(r["name"], format_count(r["total"]), format_count(r["active"]), r["source"]) for r in found],
        ),
    )


def clusters(as_json: JsonFlag = False) -> None:
    """List the devices and clusters of the catalog."""
    from telekit.cluster.config import cluster_names, device_names, load_cluster
    from telekit.units import format_bytes, format_flops

    found: list[dict[str, Any]] = []
    for name in (*device_names(), *cluster_names()):
        cluster = load_cluster(name if name in cluster_names() else {"device": name, "nodes": 1})
        device = cluster.device
        found.append(
            {
                "name": name,
                "source": cluster.source or device.source,
                "devices": cluster.devices,
                "device": device.name,
                "peak_flops": dict(device.peak_flops),
                "memory_bytes": device.memory_bytes,
            }
        )
    show(
        as_json,
        found,
        lambda: table(
            ("name", "devices", "peak (16 bit)", "memory", "source"),
            [
                (
                    r["name"],
                    str(r["devices"]),
                    format_flops(r["peak_flops"].get("bf16", r["peak_flops"].get("fp16", 0.0)), "FLOP/s"),
                    format_bytes(r["memory_bytes"]),
                    r["source"],
                )
                for r in found
            ],
        ),
    )


def count(
    model: Annotated[str, typer.Argument(help="Catalog name, config.json, or a folder with one.")],
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 4096,
    attention: Annotated[
        str, typer.Option(help="causal (half) or full (square) attention FLOPs.")
    ] = "causal",
    documents: Annotated[
        str, typer.Option(help="Lengths of packed documents, 2048,1024,1024: attention stays inside each.")
    ] = "",
    mtp: Annotated[
        bool, typer.Option("--mtp", help="MTP modules are trained: conventions that count them do.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Count a model's parameters and FLOPs."""
    from telekit.model.count import count as count_model
    from telekit.model.huggingface import read_model
    from telekit.model.utilization import CONVENTIONS, flops_per_token
    from telekit.units import format_flops

    lengths = whole_numbers("documents", documents)
    loaded = read_model(model)
    found = count_model(loaded, seq_len, attention, lengths)  # type: ignore[arg-type]  # checked inside
    by_convention = {
        name: flops_per_token(loaded.model, seq_len, name, mtp=mtp, documents=lengths) for name in CONVENTIONS
    }

    def text() -> None:
        rows = [
            ("total", f"{found.total:,}"),
            ("active", f"{found.active:,}"),
            ("active, input embedding apart", f"{found.active_without_input_embedding:,}"),
            ("MTP modules, apart", f"{found.mtp:,}"),
        ]
        rows += [(f"  {name}", f"{value:,}") for name, value in found.by_component.items() if value]
        rows += [
            ("training FLOPs per token", format_flops(found.training_flops_per_token)),
            ("forward FLOPs per token", format_flops(found.forward_flops_per_token)),
        ]
        others = {name: flops for name, flops in by_convention.items() if name != "telekit"}
        rows += [(f"  training, as {name} counts", format_flops(flops)) for name, flops in others.items()]
        table((found.name, f"seq_len {seq_len}, {attention}"), rows)
        passed = (f"fields passed over: {', '.join(found.ignored)}",) if found.ignored else ()
        paragraphs((*found.notes, *passed, found.convention))

    show(as_json, found.to_dict() | {"training_flops_by_convention": by_convention}, text)
