"""Commands on pipelines: one schedule, and layers onto stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from telekit.cli.output import JsonFlag, show


def pipeline(
    schedule: Annotated[str, typer.Option(help="Name of the schedule; a wrong one lists all.")],
    stages: Annotated[int, typer.Option(help="Devices.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a step.")],
    chunks: Annotated[int | None, typer.Option(help="Model parts a device holds.")] = None,
    forward: Annotated[float, typer.Option(help="Time of a stage's forward.")] = 1.0,
    backward_input: Annotated[float, typer.Option(help="Time of its backward for inputs.")] = 1.0,
    backward_weight: Annotated[float, typer.Option(help="Time of its backward for weights.")] = 1.0,
    forward_and_backward: Annotated[
        float | None, typer.Option(help="Both overlapped; else their sum.")
    ] = None,
    comm: Annotated[float, typer.Option(help="Time between neighbouring stages.")] = 0.0,
    group_size: Annotated[int | None, typer.Option(help="Micro-batches that pass a chunk in turn.")] = None,
    sequence_chunks: Annotated[int | None, typer.Option(help="Slices of each sequence.")] = None,
    memory_limit: Annotated[float | None, typer.Option(help="Most micro-batches a device may hold.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace (opens in Perfetto) here.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate one pipeline schedule."""
    from telekit.pipeline.registry import Passes
    from telekit.pipeline.summary import summarize
    from telekit.timeline import write_trace

    passes = Passes(forward, backward_input, backward_weight, forward_and_backward, comm)
    found = summarize(
        schedule, stages, micro_batches, chunks, group_size, sequence_chunks, memory_limit, passes
    )
    if trace is not None:
        write_trace(trace, found.simulation.to_chrome_trace())
    show(as_json, found.to_dict(), lambda: print(found.text()))
    if not found.fits:
        raise typer.Exit(1)


def balance(
    file: Annotated[Path, typer.Argument(help="SAPP layer JSON.")],
    stages: Annotated[int, typer.Option(help="Pipeline stages.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a step.")],
    chunks: Annotated[int, typer.Option(help="Chunks a stage holds.")] = 1,
    memory_mb: Annotated[float | None, typer.Option(help="Memory of a device, MB as in the file.")] = None,
    objective: Annotated[
        str, typer.Option(help="makespan (simulated) or bottleneck (SAPP's own).")
    ] = "makespan",
    less_memory: Annotated[
        bool, typer.Option("--less-memory", help="SAPP's less-memory interleaving.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds.", min=0.0, max=86400.0)] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Put layers and recompute onto stages, from SAPP layer JSON."""
    from telekit.planner.sapp import balance as balance_layers

    found = balance_layers(
        file,
        stages,
        micro_batches,
        chunks,
        memory_mb,
        objective=objective,
        less_memory=less_memory,
        time_limit_s=time_limit,
    )
    show(as_json, found.to_dict(), lambda: print(found.text()))
