"""The command line: thin commands over the package's functions.

Exit 0 when done, 1 when the answer is a negative verdict, 2 for bad input (one message on standard error).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from telekit.errors import TelekitError

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    name="telekit",
    help="The infrastructure that trains Mixture-of-Experts models, in numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def main() -> None:
    """Run a command; every refusal becomes exit 2 and one message."""
    try:
        app(standalone_mode=True)
    except TelekitError as error:
        print(f"telekit: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("telekit: stopped", file=sys.stderr)
        sys.exit(130)


def _show(as_json: bool, document: Any, text: Callable[[], None]) -> None:
    if as_json:
        print(json.dumps(document, allow_nan=False, indent=1, ensure_ascii=False))
    else:
        text()


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from telekit import __version__

        print(__version__)
        raise typer.Exit


@app.command()
def lab(
    directory: Annotated[Path | None, typer.Option("--dir", help="Folder for the notebooks.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the server.")] = None,
) -> None:
    """Open JupyterLab on the chapter index."""
    from telekit.ui.lab import launch

    raise typer.Exit(
        launch(directory, browser=not no_browser, port=port, say=lambda text: print(text, file=sys.stderr))
    )


@app.command()
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
    _show(
        as_json,
        found,
        lambda: _table(
            ("model", "total", "active", "source"),
            [(r["name"], format_count(r["total"]), format_count(r["active"]), r["source"]) for r in found],
        ),
    )


@app.command()
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
    _show(
        as_json,
        found,
        lambda: _table(
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


@app.command()
def count(
    model: Annotated[str, typer.Argument(help="Catalog name, config.json, or a folder with one.")],
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 4096,
    attention: Annotated[
        str, typer.Option(help="causal (half) or full (square) attention FLOPs.")
    ] = "causal",
    documents: Annotated[
        str, typer.Option(help="Lengths of packed documents, 2048,1024,1024: attention stays inside each.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Count a model's parameters and FLOPs."""
    from telekit.model.count import count as count_model
    from telekit.model.huggingface import read_model
    from telekit.model.utilization import CONVENTIONS, flops_per_token
    from telekit.units import format_flops

    lengths = _whole_numbers("documents", documents)
    loaded = read_model(model)
    found = count_model(loaded, seq_len, attention, lengths)  # type: ignore[arg-type]  # checked inside
    by_convention = {
        name: flops_per_token(loaded.model, seq_len, name, documents=lengths) for name in CONVENTIONS
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
        _table((found.name, f"seq_len {seq_len}, {attention}"), rows)
        for line in (*found.notes, found.convention):
            print(line)

    _show(as_json, found.to_dict() | {"training_flops_by_convention": by_convention}, text)


@app.command()
def estimate(
    job: Annotated[Path | None, typer.Argument(help="Job file, YAML or JSON.")] = None,
    show_defaults: Annotated[
        bool, typer.Option("--defaults", help="List every field's default and stop.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Estimate memory and time of one step under one layout."""
    from telekit.cost.estimate import estimate as estimate_job
    from telekit.job import defaults, load_job

    if show_defaults:
        rows = [
            (f"{section}.{k}", str(v)) for section, fields in defaults().items() for k, v in fields.items()
        ]
        _show(as_json, defaults(), lambda: _table(("field", "default"), rows))
        return
    if job is None:
        raise typer.BadParameter("name a job file, or ask for --defaults")
    found = estimate_job(load_job(job))
    _show(as_json, found.to_dict(), lambda: _print_estimate(found))
    if not found.fits:
        raise typer.Exit(1)


def _whole_numbers(field: str, text: str) -> tuple[int, ...]:
    from telekit.errors import bad

    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise bad(field, text, "must be whole numbers between commas", "for example 2048,1024,1024") from None


def _print_estimate(found: Any) -> None:
    from telekit.units import format_bytes, format_seconds

    if not found.valid:
        print("This layout is not valid:")
        for problem in found.problems:
            print(f"  - {problem}")
        for note in found.assumptions:
            print(f"Besides: {note}")
        return
    print(
        f"step {format_seconds(found.step_time_s)}, {found.tokens_per_s_per_device:,.0f} tokens/s/device, "
        f"{found.model_tflops_per_device:.0f} TFLOP/s/device, MFU {found.mfu:.1%}; "
        f"{'fits' if found.fits else 'DOES NOT FIT'}: {format_bytes(found.peak_bytes)} of "
        f"{format_bytes(found.capacity_bytes)}"
    )
    _table(
        ("part of the step", "time", "share"),
        [(k, format_seconds(v), f"{v / found.step_time_s:.1%}") for k, v in found.breakdown_s.items()],
    )
    _table(
        ("stage", "layers", "memory", "forward", "backward"),
        [
            (
                str(i),
                str(s.layers),
                format_bytes(s.peak_bytes),
                format_seconds(s.forward_s),
                format_seconds(s.backward_s),
            )
            for i, s in enumerate(found.stages)
        ],
    )
    print("Assumed:")
    for line in found.assumptions:
        print(f"  - {line}")


@app.command()
def plan(
    job: Annotated[Path, typer.Argument(help="Job file; layout fields it gives are kept.")],
    top: Annotated[int, typer.Option(help="Plans to return.", min=1, max=100)] = 5,
    time_limit: Annotated[
        float, typer.Option(help="Seconds for placing layers.", min=1.0, max=86400.0)
    ] = 30.0,
    launch: Annotated[str, typer.Option(help="Print the best plan for: megatron, mindformers or yaml.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Find the fastest layouts that fit."""
    from telekit.job import load_job
    from telekit.planner.search import plan as plan_job

    if launch not in ("", "megatron", "mindformers", "yaml"):
        raise typer.BadParameter("--launch is megatron, mindformers or yaml")
    if launch and as_json:
        raise typer.BadParameter("--launch prints a launch file, --json the search: ask for one of them")
    with _progress() as tell:
        found = plan_job(load_job(job), top=top, time_limit_s=time_limit, progress=tell)
    if launch and found.plans:
        best = found.best
        print(
            {
                "megatron": best.to_megatron,
                "mindformers": best.to_mindformers,
                "yaml": best.estimate.job.to_yaml,
            }[launch]()
        )
    else:
        _show(as_json, found.to_dict(), lambda: _print_plan(found))
    if not found.plans:
        raise typer.Exit(1)


def _print_plan(found: Any) -> None:
    from telekit.units import format_bytes, format_seconds

    print(
        f"{found.searched:,} layouts searched, {found.valid:,} valid and within memory with evenly spread layers"
    )
    for name, number in sorted(found.rejected.items(), key=lambda item: -item[1]):
        print(f"  rejected by {name}: {number:,}")
    _table(
        ("layout", "step", "MFU", "memory", "placement"),
        [
            (
                _layout_words(p.layout),
                format_seconds(p.step_time_s),
                f"{p.estimate.mfu:.1%}",
                format_bytes(p.peak_bytes),
                _proof_words(p.proof),
            )
            for p in found.plans
        ],
    )
    if found.search_bound_s is not None:
        print(
            f"no layout of this search takes less than {format_seconds(found.search_bound_s)} in this model"
        )


def _layout_words(layout: Any) -> str:
    """Write the degrees over 1, and the schedule."""
    degrees = [
        f"{n}{getattr(layout, n)}"
        for n in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
        if getattr(layout, n) > 1
    ]
    return " ".join([*degrees, f"mb{layout.micro_batch}", layout.schedule])


def _proof_words(proof: Any) -> str:
    if proof.status == "optimal":
        return "no better placement"
    return "spread evenly" if proof.gap is None else f"within {proof.gap:.1%} of best"


@app.command()
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
    _show(as_json, found.to_dict(), lambda: print(found.text()))


@app.command()
def pipeline(
    schedule: Annotated[str, typer.Option(help="Name of the schedule; a wrong one lists all.")],
    stages: Annotated[int, typer.Option(help="Devices.")],
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a step.")],
    chunks: Annotated[int | None, typer.Option(help="Model parts a device holds.")] = None,
    forward: Annotated[float, typer.Option(help="Time of a stage's forward.")] = 1.0,
    backward_input: Annotated[float, typer.Option(help="Time of its backward for inputs.")] = 1.0,
    backward_weight: Annotated[float, typer.Option(help="Time of its backward for weights.")] = 1.0,
    forward_and_backward: Annotated[
        float | None, typer.Option(help="Time of a forward and a backward overlapped; their sum without it.")
    ] = None,
    comm: Annotated[
        float, typer.Option(help="Time between neighbouring stages, which keeps none busy.")
    ] = 0.0,
    group_size: Annotated[int | None, typer.Option(help="Micro-batches that pass a chunk in turn.")] = None,
    sequence_chunks: Annotated[int | None, typer.Option(help="Slices of each sequence.")] = None,
    memory_limit: Annotated[
        float | None, typer.Option(help="Most micro-batches of a full stage that a device may hold.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace (opens in Perfetto) here.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate one pipeline schedule."""
    from telekit.pipeline.registry import Passes
    from telekit.pipeline.summary import summarize

    passes = Passes(forward, backward_input, backward_weight, forward_and_backward, comm)
    found = summarize(
        schedule, stages, micro_batches, chunks, group_size, sequence_chunks, memory_limit, passes
    )
    if trace is not None:
        _write_json(trace, found.simulation.to_chrome_trace())
    _show(as_json, found.to_dict(), lambda: _print_pipeline(found))
    if not found.fits:
        raise typer.Exit(1)


def _write_json(path: Path, document: Any) -> None:
    from telekit.errors import bad

    try:
        with path.open("w", encoding="utf-8") as file:
            json.dump(document, file, allow_nan=False)
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise bad("trace", str(path), rule, "a file in a folder of yours works") from None


def _print_pipeline(found: Any) -> None:
    shown = found.to_dict()
    rows = [
        ("makespan", f"{shown['makespan']:g}"),
        ("  by formula", "none that is exact" if found.closed_form is None else f"{found.closed_form:g}"),
        ("idle / makespan", f"{shown['bubble_fraction']:.2%}"),
        ("idle / busy", f"{shown['bubble_fraction_of_ideal']:.2%}"),
        ("idle / longest span of a device", f"{shown['bubble_fraction_of_span']:.2%}"),
        ("activations held, in micro-batches", " ".join(f"{x:.4g}" for x in shown["peak_activations"])),
    ]
    if not found.fits:
        rows.append(("memory limit", f"{found.memory_limit:g}: DOES NOT FIT"))
    _table((shown["schedule"], f"{shown['stages']} stages, {shown['micro_batches']} micro-batches"), rows)
    print("Assumed:")
    for line in found.assumptions:
        print(f"  - {line}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on standard error, when a person watches."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from tqdm import tqdm

    with tqdm(total=1, leave=False, file=sys.stderr, bar_format="{desc} {bar} {elapsed}") as bar:

        def tell(done: int, total: int, what: str) -> None:
            bar.total = max(total, 1)
            bar.n = done
            bar.set_description(what)

        yield tell


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False, expand="source" in head)
    for i, name in enumerate(head):
        if name == "source":  # takes what room is left; --json has it whole
            table.add_column(name, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, highlight=False).print(table)


if __name__ == "__main__":
    main()
