"""The grammar of Megatron-LM's ``--pipeline-model-parallel-layout``: parts of a model in order, between bars.

E is the embedding, t a layer, m an MTP module, L the head with the loss; ``t*3`` and ``(tt|)*29`` repeat.
Source: ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` at 00caa53af309 of
github:NVIDIA/Megatron-LM. What a model makes of a string is :func:`telekit.layout.stages.stages_of`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from telekit.errors import bad

MOST_SYMBOLS = 100_000
"""Longest layout, unrolled, that :func:`read_layout` accepts."""

LETTERS = "E, t, m, L and |, repeated as t*3 or (tt|)*29"


@dataclass(frozen=True)
class LayoutPart:
    """What one part of a layout string holds."""

    layers: int = 0
    mtp: int = 0
    embedding: bool = False
    loss: bool = False


def write_layout(layers: list[int], mtp: int) -> str:
    """Write the layers of each part, first to last, with the MTP modules beside the head."""
    texts = [_times("t", count) for count in layers]
    texts[0] = "E" + texts[0]
    texts[-1] += _times("m", mtp) + "L"
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return "".join(f"({text}|)*{n}" if n > 1 else f"{text}|" for text, n in runs).removesuffix("|")


def _times(symbol: str, count: int) -> str:
    return symbol * count if count < 3 else f"{symbol}*{count}"


_TOKEN = re.compile(r"\((?P<group>[EtmL|*\d]+)\)\*(?P<repeat>\d+)|(?P<symbol>[EtmL|])(?:\*(?P<times>\d+))?")


def read_layout(text: str, pp: int) -> tuple[tuple[LayoutPart, ...], ...]:
    """Read a layout string.

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
        No text; a letter out of place, with its position; parts that are not whole rows of ``pp``; more or fewer
        than one embedding in front and one loss at the end; a layer after an MTP module.
    """
    if not isinstance(text, str):
        raise bad("layout string", text, "must be text", "Et|t|t|tL")
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


def _unroll(text: str) -> str:
    out, at = "", 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rule = f"cannot be read from letter {at + 1}, {text[at]!r}, on"
            raise bad("layout string", text, rule, LETTERS)
        unit = _unroll(match["group"]) if match["group"] else match["symbol"]
        times = match["repeat"] or match["times"] or "1"
        if len(times) > 6 or len(out) + len(unit) * int(times) > MOST_SYMBOLS:
            raise bad("layout string", text, f"unrolls to more than {MOST_SYMBOLS} letters")
        out += unit * int(times)
        at = match.end()
    return out
