"""Commands on expert parallelism: dispatchers side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from telekit.cli.output import JsonFlag, show
from telekit.errors import bad

if TYPE_CHECKING:
    from telekit.comm.routing import Routing


def dispatch(
    cluster: Annotated[str, typer.Option(help="Catalog name of a cluster or a device, or a file.")],
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks.")],
    model: Annotated[
        str | None, typer.Option(help="Takes hidden size, experts, top-k and groups from a model.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of a rank.")] = 4096,
    hidden: Annotated[int | None, typer.Option(help="Numbers of a token (7168).")] = None,
    top_k: Annotated[int | None, typer.Option(help="Experts of a token (8).")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts (256).")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups of experts (1).")] = None,
    group_limit: Annotated[int | None, typer.Option(help="Groups a token may visit; else all.")] = None,
    zipf: Annotated[float, typer.Option(help="Exponent of unequal popularity; 0: all alike.")] = 0.0,
    histogram: Annotated[
        Path | None, typer.Option(help="Tokens of each expert: .npy, .json or .csv.")
    ] = None,
    imbalance: Annotated[
        float | None, typer.Option(help="Busiest rank over the mean; else computed.")
    ] = None,
    fp8: Annotated[bool, typer.Option("--fp8", help="Dispatch in fp8 with scales; combine in bf16.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Price every dispatcher of expert parallelism, and say which is quickest."""
    from telekit.comm.dispatch_summary import compare_dispatchers
    from telekit.operators.transfers import FP8_SCALED

    if model is not None:
        hidden, top_k, experts, groups, group_limit = _of_model(
            model, hidden, top_k, experts, groups, group_limit
        )
    top_k, groups = _given(top_k, 8), _given(groups, 1)
    routing = _routing(experts, top_k, groups, group_limit, zipf, histogram)
    width = FP8_SCALED if fp8 else 2.0
    found = compare_dispatchers(cluster, ep, tokens, _given(hidden, 7168), routing, width, 2.0, imbalance)
    show(as_json, found.to_dict(), lambda: print(found.text()))


def _given(value: int | None, default: int) -> int:
    """Return what was asked for, a 0 too: it is refused and not taken for the default."""
    return default if value is None else value


def _of_model(
    name: str,
    hidden: int | None,
    top_k: int | None,
    experts: int | None,
    groups: int | None,
    group_limit: int | None,
) -> tuple[int, int, int, int | None, int | None]:
    """Return what experts exchange in a model; what was asked for stands."""
    from telekit.model.huggingface import load_model

    found = load_model(name)
    moe = found.moe
    if moe is None:
        raise bad("model", name, "has no experts", "for example deepseek-v3")
    width = moe.latent_size or found.hidden_size
    if groups is None and group_limit is None and experts is None:
        groups, group_limit = moe.groups, moe.group_limit
    sizes = _given(hidden, width), _given(top_k, moe.top_k), _given(experts, moe.num_experts)
    return *sizes, groups, group_limit


def _routing(
    experts: int | None,
    top_k: int,
    groups: int,
    group_limit: int | None,
    exponent: float,
    histogram: Path | None,
) -> Routing:
    from telekit.comm.expert_load import load_histogram
    from telekit.comm.routing import Routing

    if histogram is None:
        number = _given(experts, 256)
        if exponent:
            return Routing.zipf(number, top_k, exponent, groups, group_limit)
        return Routing.uniform(number, top_k, groups, group_limit)
    if exponent:
        raise bad("zipf", exponent, "stands beside a histogram", "give one of both")
    counts = load_histogram(histogram)
    if experts is not None and len(counts) != experts:
        rule = f"has {len(counts)} experts, not {experts}"
        raise bad("histogram", histogram.name, rule, source=str(histogram))
    return Routing.histogram(counts, top_k, groups, group_limit)
