"""The grammar of Megatron-LM's ``--pipeline-model-parallel-layout``: parts of a model in order, between bars.

E is the embedding, t a layer, m an MTP module, L the head with the loss; ``t*3`` and ``(tt|)*29`` repeat.
Source: ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` at 00caa53af309 of
github:NVIDIA/Megatron-LM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from telekit.errors import InputError, Problem, bad
from telekit.job import Job
from telekit.launch.parts import mtp_modules, parts
from telekit.layout.case import MOST_SHOWN
from telekit.layout.repairs import nearest_divisor
from telekit.layout.stages import even_split

MOST_SYMBOLS = 100_000
"""Longest layout, unrolled, that :func:`read_layout` accepts."""


@dataclass(frozen=True)
class LayoutPart:
    """What one part of a layout string holds."""

    layers: int = 0
    mtp: int = 0
    embedding: bool = False
    loss: bool = False


def layout_string(job: Job) -> str:
    """Write where the layers of a job stand.

    Raises
    ------
    InputError
        Every rule the layout breaks.
    """
    return _write([part.layers for part in parts(job)], mtp_modules(job))


def _write(layers: list[int], mtp: int) -> str:
    """Write the layers of each part, with the MTP modules beside the head."""
    texts = [_times("t", count) for count in layers]
    texts[0] = "E" + texts[0]
    texts[-1] += _times("m", mtp) + "L"
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return "".join(f"({text}|)*{n}" if n > 1 else f"{text}|" for text, n in runs).removesuffix("|")


def _times(symbol: str, count: int) -> str:
    return symbol * count if count < 3 else f"{symbol}*{count}"


_TOKEN = re.compile(r"\((?P<group>[EtmL|*\d]+)\)\*(?P<repeat>\d+)|(?P<symbol>[EtmL|])(?:\*(?P<times>\d+))?")


def read_layout(text: str, pp: int) -> tuple[tuple[LayoutPart, ...], ...]:
    """Read a layout string back.

    Parameters
    ----------
    text : str
        ``--pipeline-model-parallel-layout``, as in ``Et*3|(tt|)*29m|L``; commas are decoration.
    pp : int
        Pipeline stages.

    Returns
    -------
    tuple of tuple of LayoutPart, shape (chunks, pp)
        An empty part stays an empty part: whether it may be there is not this function's business.

    Raises
    ------
    InputError
        A letter out of place, with its position; parts that are not whole rows of ``pp``; more or fewer than
        one embedding in front and one loss at the end; a layer after an MTP module.
    """
    symbols = _unroll(text.replace(",", ""))
    held = [
        LayoutPart(part.count("t"), part.count("m"), "E" in part, "L" in part) for part in symbols.split("|")
    ]
    if pp < 1 or len(held) % pp:
        raise bad("layout string", text, f"has {len(held)} parts, not whole rows of pp = {pp}")
    if symbols.count("E") != 1 or symbols.count("L") != 1 or symbols[0] != "E" or symbols[-1] != "L":
        raise bad("layout string", text, "must begin with the one E and end with the one L", "Et|t|t|tL")
    if "t" in symbols.partition("m")[2]:
        raise bad("layout string", text, "has a layer (t) after an MTP module (m)", "Et|t|t|tmL")
    return tuple(tuple(held[first : first + pp]) for first in range(0, len(held), pp))


def stages_of(text: str, pp: int, num_layers: int, mtp: int = 0) -> list[list[int]]:
    """Read a layout string as ``stages`` of a layout: layers of each chunk (outer) and stage.

    Parameters
    ----------
    text, pp
        As for :func:`read_layout`.
    num_layers, mtp : int
        Layers and trained MTP modules of the model.

    Raises
    ------
    InputError
        What :func:`read_layout` refuses; and, all at once, layers or MTP modules lost or too many, an empty part in
        between (Megatron-LM issue 1852: its pipeline then waits for ever), MTP modules away from the head.
    """
    rows = read_layout(text, pp)
    flat = [part for row in rows for part in row]
    layers, modules = sum(part.layers for part in flat), sum(part.mtp for part in flat)
    empty = [str(at) for at, part in enumerate(flat) if part == LayoutPart()][:MOST_SHOWN]
    bare = [str(at) for at, part in enumerate(flat[:-1]) if part.mtp][:MOST_SHOWN]
    broken = {
        f"places {layers} layers; the model has {num_layers}": layers != num_layers,
        f"places {modules} MTP modules; the model trains {mtp}": modules != mtp,
        f"leaves part {', '.join(empty)} of {len(flat)} (counted from 0) empty: the pipeline waits at it": empty,
        f"has MTP modules in part {', '.join(bare)}: here they stand in the last, with the head": bare,
    }
    filled = min(len(flat), num_layers // pp * pp)
    hint = f"{_write(even_split(num_layers, filled), mtp)} works" if filled else f"pp {num_layers} at most"
    problems = [Problem("layout string", text, rule, hint) for rule, wrong in broken.items() if wrong]
    if problems:
        raise InputError(problems)
    return [[part.layers for part in row] for row in rows]


def chunks_of(num_layers: int, pp: int, layers_per_chunk: int) -> int:
    """Chunks a stage (``vpp``) that ``--num-layers-per-virtual-pipeline-stage`` makes of a model.

    Raises
    ------
    InputError
        Where the layers do not divide: older releases of Megatron-LM drop the rest without a word (issues 468, 1304).
    """
    field = "num-layers-per-virtual-pipeline-stage"
    if pp < 1 or layers_per_chunk < 1:
        raise bad(field, layers_per_chunk, f"must be at least 1, as must pp ({pp})", "1 works")
    chunks, lost = divmod(num_layers, pp * layers_per_chunk)
    if lost == 0:
        return chunks
    rule = (
        f"{num_layers} layers are not whole rounds of pp {pp} * {layers_per_chunk} = {pp * layers_per_chunk}: "
        f"{num_layers - lost} would be trained and {lost} lost"
    )
    if num_layers < pp:
        hint = f"pp {num_layers} at most"
    elif num_layers % pp == 0:
        hint = f"{nearest_divisor(num_layers // pp, layers_per_chunk)} works"
    else:
        uneven = _write(even_split(num_layers, pp * max(chunks, 1)), 0)
        hint = f"--pipeline-model-parallel-layout {uneven!r} works"
    raise bad(field, layers_per_chunk, rule, hint)


def _unroll(text: str) -> str:
    out, at = "", 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rule = f"cannot be read from letter {at + 1}, {text[at]!r}, on"
            raise bad("layout string", text, rule, "E, t, m, L and |, repeated as t*3 or (tt|)*29")
        unit = _unroll(match["group"]) if match["group"] else match["symbol"]
        times = match["repeat"] or match["times"] or "1"
        if len(times) > 6 or len(out) + len(unit) * int(times) > MOST_SYMBOLS:
            raise bad("layout string", text, f"unrolls to more than {MOST_SYMBOLS} letters")
        out += unit * int(times)
        at = match.end()
    return out
