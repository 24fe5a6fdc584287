"""Commands on jobs: one layout's cost, and the best layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from telekit.cli.output import JsonFlag, progress, show, table


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
        show(as_json, defaults(), lambda: table(("field", "default"), rows))
        return
    if job is None:
        raise typer.BadParameter("name a job file, or ask for --defaults")
    found = estimate_job(load_job(job))
    show(as_json, found.to_dict(), lambda: _print_estimate(found))
    if not found.fits:
        raise typer.Exit(1)


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
        f"{found.model_tflops_per_device:.0f} TFLOP/s/device, MFU {found.mfu:.1%}, "
        f"HFU {found.hfu:.1%} (with what is recomputed); "
        f"{'fits' if found.fits else 'DOES NOT FIT'}: {format_bytes(found.peak_bytes)} of "
        f"{format_bytes(found.capacity_bytes)}"
    )
    if found.interval is not None:
        low, high = (format_seconds(end) for end in found.step_time_interval_s)
        print(f"{low} to {high} by eight of ten published runs like it ({found.interval.said})")
    table(
        ("part of the step", "time", "share"),
        [(k, format_seconds(v), f"{v / found.step_time_s:.1%}") for k, v in found.breakdown_s.items()],
    )
    table(
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
    with progress() as tell:
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
        show(as_json, found.to_dict(), lambda: _print_plan(found))
    if not found.plans:
        raise typer.Exit(1)


def _print_plan(found: Any) -> None:
    from telekit.units import format_bytes, format_seconds

    print(
        f"{found.searched:,} layouts searched, {found.valid:,} valid and within memory with evenly spread layers"
    )
    for name, number in sorted(found.rejected.items(), key=lambda item: -item[1]):
        print(f"  rejected by {name}: {number:,}")
    table(
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
    if found.told_apart is False:
        print("the first two are nearer to each other than this model ranks published layouts: a tie")
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
