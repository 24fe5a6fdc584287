"""Panels of chapter 7: a chain before and after, choices of kernels on a layer, and the bytecode of one."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.fusion.listing import Step, listing, steps
from telekit.fusion.search import Search
from telekit.fusion.subgraphs import SIZES
from telekit.ui import fusion_charts as charts
from telekit.ui import fusion_code as code
from telekit.ui import known_fusion as known
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_fusion import ALONE, Chain, On
from telekit.ui.panels.apart import figures_line
from telekit.units import MIB, format_bytes, format_seconds

OPERATORS = [2, 3, 4, 5, 6, 8, 10, 12, 16]
ELEMENTS = [2**k for k in range(10, 29, 2)]
LAUNCH = [0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0]
GAP = [0.0, 1.0, 2.0, 3.0, 5.0]
REACHES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9, 1.0]


# --- a chain ------------------------------------------------------------------------------------------------


def chain_explorer() -> Explorer:
    """Fuse a chain of element-wise operators: where it lies under the roof, and what device and host spend."""
    controls: dict[str, W.Widget] = {
        "operators": slide("operators a", OPERATORS, 8),
        "elements": slide("elements", ELEMENTS, 2**22),
        "reads": pick("each reads", {**known.READS}, "none"),
        "dtype": pick("dtype", ["bf16", "fp32"], "bf16"),
        "device": pick("device", known.DEVICES, "ascend-910b"),
        "launch_us": slide("host λ [µs]", LAUNCH, 5.0),
        "gap_us": slide("gap γ [µs]", GAP, 2.0),
        "fused": slide("fused gets", REACHES, 1.0),
    }
    return Explorer(
        controls,
        [charts.roofline(), charts.time_bars()],
        _chain,
        _chain_text,
        _chain_titles,
        title="A chain, before and after",
    )


def _priced(operators: int, elements: int, reads: str, dtype: str, **on: Any) -> tuple[On, Chain]:
    where = On(**on)
    return where, known.chain(operators, reads, dtype, elements, where)


def _chain(**values: Any) -> Tables:
    on, it = _priced(**values)
    both = {"unfused": it.unfused, "fused": it.fused}
    target = known.target(on)
    return charts.roof_rows(known.device(on.device), target, both) | charts.time_rows(target, both)


def _chain_titles(**values: Any) -> list[str]:
    _, it = _priced(**values)
    less = it.unfused.moved_bytes / it.fused.moved_bytes
    first = f"One kernel moves 1 byte in {less:.3g}: the work moves right, towards the roof's edge"
    if it.fused.bound == "host":
        first = f"One kernel moves 1 byte in {less:.3g}, but the host keeps it far below the roof"
    if it.gain < 1:
        second = f"Do not fuse: the fused kernel takes {1 / it.gain:.3g} times as long"
    elif it.unfused.bound == "host":
        second = f"The host decides: {it.gain:.3g} times as quick, by fewer launches"
    else:
        after = "" if it.fused.bound == "device" else "; then the host decides"
        second = f"The device decides: {it.gain:.3g} times as quick{after}"
    return [first, second]


def _chain_text(**values: Any) -> str:
    on, it = _priced(**values)
    cells = [
        (f"{it.unfused.launches} to {it.fused.launches}", "launches"),
        (f"{format_bytes(it.unfused.moved_bytes)} to {format_bytes(it.fused.moved_bytes)}", "moved"),
        (f"{format_seconds(it.unfused.step_s)} to {format_seconds(it.fused.step_s)}", "step"),
        (f"{it.gain:.3g}", "times as quick"),
    ]
    target = known.target(on)
    roof = known.device(on.device).peak("bf16") / target.bandwidth_bytes_per_s / target.efficiency["element"]
    said = (
        f"Each operator is one FLOP an element. A kernel gets {target.efficiency['element']:.0%} of "
        f"{target.bandwidth_bytes_per_s / 1e12:.2f} TB/s; the edge is at {roof:.0f} FLOP/byte. λ and γ are assumed."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- a layer ------------------------------------------------------------------------------------------------

SUBGRAPHS = [
    "feed-forward", "rms-norm", "residual-rms-norm", "rotary", "router-sigmoid", "router-softmax", "router-weights",
    "permute", "unpermute", "unpermute-backward", "swiglu", "swiglu-backward", "bias-dropout-add", "cross-entropy",
]  # fmt: skip
TOKENS = [2**k for k in range(4, 17)]
CHIPS = {"the device's own": 0} | {f"{kib} KiB": kib for kib in (4, 8, 16, 32, 64, 128, 192, 256)}


def layer_explorer() -> Explorer:
    """Choose kernels for a part of a layer: bytes and launches of each choice, and who decides at how many tokens."""
    controls: dict[str, W.Widget] = {
        "name": pick("subgraph", SUBGRAPHS, "feed-forward"),
        "device": pick("device", known.DEVICES, "ascend-910b"),
        "tokens": slide("tokens", TOKENS, 4096),
        "launch_us": slide("host λ [µs]", LAUNCH, 5.0),
        "gap_us": slide("gap γ [µs]", GAP, 2.0),
        "chip_kib": pick("on chip", CHIPS, 0),
        "fused": slide("fused gets", REACHES, 1.0),
        "method": pick("curve of", known.METHODS[1:], "program"),
    }
    return Explorer(
        controls,
        [charts.choice_bars(), charts.regime_curves()],
        _layer,
        _layer_text,
        _layer_titles,
        title="Which operators share a kernel",
    )


def _found(name: str, tokens: int, method: str, **on: Any) -> dict[str, Search]:
    return {way: known.found(name, way, tokens, On(**on)) for way in known.METHODS}


def _curves(name: str, tokens: int, method: str, **on: Any) -> dict[str, Any]:
    found = _found(name, tokens, method, **on)
    return {
        variant: known.over_tokens(name, found[way].fusion, On(**on), tuple(TOKENS))
        for variant, way in (("unfused", "unfused"), ("fused", method))
    }


def _layer(tokens: int, **values: Any) -> Tables:
    found = _found(tokens=tokens, **values)
    return charts.choice_rows(found) | charts.regime_rows(TOKENS, _curves(tokens=tokens, **values), tokens)


def _layer_titles(**values: Any) -> list[str]:
    found = _found(**values)
    plain, best = found["unfused"].cost, found["program"]
    if best.cost.launches == plain.launches:
        many = plain.launches > 1
        first = f"Do not fuse: {plain.launches} kernel{'s stay as they are' if many else ' stays as it is'}"
    else:
        fewer = plain.moved_bytes / best.cost.moved_bytes
        first = f"{plain.launches} kernels become {best.cost.launches}, and move 1 byte in {fewer:.3g}"
    curves = _curves(**values)
    up_to = {
        variant: max((n for n, c in zip(TOKENS, curve, strict=True) if c.bound == "host"), default=0)
        for variant, curve in curves.items()
    }
    said = [f"{v} up to {n:,} tokens" for v, n in up_to.items() if n]
    second = f"The host decides {', '.join(said)}" if said else "The device decides at every number of tokens"
    return [first, second]


def _layer_text(**values: Any) -> str:
    found = _found(**values)
    it = found[values["method"]]
    cells = [
        (format_seconds(found[way].cost.step_s), f"{way}{' (proved best)' if found[way].proved else ''}")
        for way in known.METHODS
    ]
    graph = known.graph_of(values["name"])
    kernels = "".join(
        f"<li>{html.escape(', '.join(graph.nodes[i].name for i in k.group))}"
        f"{f' ({k.passes} passes over its rows)' if k.passes > 1 else ''}</li>"
        for k in it.cost.kernels
    )
    said = f"{values['method']}: {it.verdict}. TeleChat3-105B's sizes."
    return (
        f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
        f"<details><summary>Its kernels</summary><ol start='0'>{kernels}</ol></details>"
    )


# --- the bytecode -------------------------------------------------------------------------------------------

CODES = ["rms-norm", "router-softmax", "swiglu", "rotary", "adamw", "cross-entropy", "feed-forward"]
LAST = 30


def code_explorer() -> Explorer:
    """Step through a program, instruction by instruction and tile by tile."""
    controls: dict[str, W.Widget] = {
        "name": pick("program", CODES, "rms-norm"),
        "fused": pick("kernels", {"fused": True, "one an operator": False}, True),
        "tokens": slide("tokens", [16, 256, 1024, 4096, 16384], 4096),
        "at": _count("instruction", LAST),
        "tile": _count("tile", LAST),
    }

    def fit(_change: Any = None) -> None:
        """Give both sliders as many places as the program has."""
        name, fused, tokens = (controls[key].value for key in ("name", "fused", "tokens"))
        walked = _walked(name, fused)
        controls["at"].max = len(walked) - 1
        controls["tile"].max = max(_walk(name, fused, tokens, controls["at"].value).cut.tiles - 1, 0)

    fit()
    for key in ("name", "fused", "tokens", "at"):
        controls[key].observe(fit, "value")
    return Explorer(
        controls,
        [code.register_chart(), code.tile_chart()],
        _code,
        _code_text,
        _code_titles,
        title="A program, step by step",
    )


def _count(label: str, most: int) -> W.IntSlider:
    return W.IntSlider(
        value=0, min=0, max=most, description=label, style={"description_width": "88px"},
        layout=W.Layout(width="274px", margin="1px 6px 1px 0"),
    )  # fmt: skip


@lru_cache(maxsize=32)
def _walked(name: str, fused: bool) -> tuple[Step, ...]:
    """Every instruction of a program, without the loops' lines."""
    return tuple(step for step in steps(known.program_of(name, fused)) if step.phase != "loop")


def _walk(name: str, fused: bool, tokens: int, at: int) -> code.Walk:
    """Kernel of the instruction."""
    walked = _walked(name, fused)
    kernel = walked[min(at, len(walked) - 1)].kernel
    return code.walk(known.program_of(name, fused), walked, kernel, SIZES | {"T": tokens}, ALONE)


def _place(name: str, fused: bool, at: int) -> int:
    """Place of an instruction in its own kernel."""
    walked = _walked(name, fused)
    at = min(at, len(walked) - 1)
    return sum(step.kernel == walked[at].kernel for step in walked[:at])


def _code(name: str, fused: bool, tokens: int, at: int, tile: int) -> Tables:
    it = _walk(name, fused, tokens, at)
    return code.register_rows(it, _place(name, fused, at)) | code.tile_rows(it, min(tile, it.cut.tiles - 1))


def _code_titles(name: str, fused: bool, tokens: int, at: int, tile: int) -> list[str]:
    it = _walk(name, fused, tokens, at)
    kept = {r for step in it.code for r in step.registers}
    inner = sum(code.plain(o)[:1] == "r" for step in it.code for o in step.writes)
    first = f"{inner} of {len(it.code)} results stay in {len(kept)} register{'s' * (len(kept) != 1)}"
    if not inner:
        few = "one result goes" if len(it.code) == 1 else f"{len(it.code)} results go"
        first = f"No register: the kernel's {few} to memory"
    tile = min(tile, it.cut.tiles - 1)
    second = f"Tile {tile} of {it.cut.tiles:,}: {format_bytes(it.cut.tile_bytes)} at work in the cache"
    return [first, second]


def _code_text(name: str, fused: bool, tokens: int, at: int, tile: int) -> str:
    program, walked = known.program_of(name, fused), _walked(name, fused)
    at = min(at, len(walked) - 1)
    sizes = SIZES | {"T": tokens}
    graph = known.graph_of(name)
    whole = sum(graph.node_bytes(i, sizes) for i in graph.operators) / MIB
    cells = [
        (f"{len(program.code):,}", "bytes of code"),
        (f"{len(program.decoded.kernels)}", f"kernel{'s' * (len(program.decoded.kernels) > 1)}"),
        (f"{len(walked)}", "instructions"),
        (f"{whole:,.4g} MiB", "of results, if each were whole"),
    ]
    text = _marked(listing(program, sizes, ALONE), at)
    here = next(part for part in text.split("\n\n") if MARK in part)
    return (
        f"{figures_line(cells)}<pre>{here}</pre>"
        f"<details><summary>The whole listing</summary><pre>{text}</pre></details>"
    )


MARK = "<mark style='background: rgba(224, 138, 30, 0.35); color: inherit'>"
"""Of the line that is shown; legible on a light and on a dark page."""


def _marked(text: str, at: int) -> str:
    """Escape a listing, with its current instruction marked."""
    lines, count = [], -1
    for line in text.splitlines():
        said = html.escape(line)
        if "<-" in line:
            count += 1
            if count == at:
                said = f"{MARK}{said}</mark>"
        lines.append(said)
    return "\n".join(lines)
