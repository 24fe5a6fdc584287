"""The grammar of Megatron-LM's ``--pipeline-model-parallel-layout``: parts of a model in order, between bars.

E is the embedding, t a layer, m an MTP module, L the head with the loss; ``t*3`` and ``(tt|)*29`` repeat.
Source: ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` at 00caa53af309 of
github:NVIDIA/Megatron-LM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from telekit.errors import bad
from telekit.job import Job
from telekit.launch.parts import mtp_modules, parts

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
    texts = [_times("t", part.layers) for part in parts(job)]
    texts[0] = "E" + texts[0]
    texts[-1] += _times("m", mtp_modules(job)) + "L"
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
        one embedding in front and one loss at the end.
    """
    symbols = _unroll(text.replace(",", ""))
    held = [
        LayoutPart(part.count("t"), part.count("m"), "E" in part, "L" in part) for part in symbols.split("|")
    ]
    if pp < 1 or len(held) % pp:
        raise bad("layout string", text, f"has {len(held)} parts, not whole rows of pp = {pp}")
    if symbols.count("E") != 1 or symbols.count("L") != 1 or symbols[0] != "E" or symbols[-1] != "L":
        raise bad("layout string", text, "must begin with the one E and end with the one L", "Et|t|t|tL")
    return tuple(tuple(held[first : first + pp]) for first in range(0, len(held), pp))


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
