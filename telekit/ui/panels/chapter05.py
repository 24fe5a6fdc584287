"""Panels of chapter 5: a packed batch as triangles, and one sample on context ranks."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit.packing.context import HOWS, Split, split
from telekit.packing.policies import BY_WORK
from telekit.ui import context_splits, mosaic
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.packed import DOCUMENTS, REAL, Arranged, Documents, Shape, arranged, batch
from telekit.ui.panels.apart import figures_line

LENGTHS = [4096, 8192, 16384, 32768, 65536, 131072]
TYPICAL = [512, 1024, 2048, 4096, 8192]
LONG_SHARES = {"1 in 500": 0.002, "1 in 200": 0.005, "1 in 100": 0.01, "1 in 50": 0.02, "1 in 20": 0.05}
WIDTHS = [1024, 2048, 4096, 6144, 8192]
NUMBERS = list(range(1, 13))
CELLS = 4
"""Ranks of the mosaic, and samples of each."""
WHOLE = ("as given", "longest-first", "karmarkar-karp", "balanced")
"""Policies that move whole samples; they answer at once."""
COMPARED = (*WHOLE, BY_WORK)


def document_controls(kind: str, costly: bool = False) -> dict[str, W.Widget]:
    """Make what chooses documents."""
    return {
        "kind": pick("documents", list(DOCUMENTS), kind),
        "typical": slide("typical", TYPICAL, 2048, costly),
        "long_share": pick("long ones", LONG_SHARES, 0.02),
    }


def able(controls: dict[str, W.Widget]) -> None:
    """Disable what the chosen documents do not ask for."""

    def follow(_change: Any = None) -> None:
        kind = controls["kind"].value
        made_up = kind not in DOCUMENTS[:2]
        controls["typical"].disabled, controls["typical"].readout = not made_up, made_up
        controls["long_share"].disabled = kind != "short and long"

    controls["kind"].observe(follow, "value")
    follow()


def documents_of(kind: str, typical: int, long_share: float) -> Documents:
    """Documents of these settings; what does not count is left at its default, so that a cache meets it again."""
    if kind in DOCUMENTS[:2]:
        return Documents(kind)
    return Documents(kind, typical, long_share) if kind == "short and long" else Documents(kind, typical)


# --- equal tokens, unequal work -----------------------------------------------------------------------------


def mosaic_explorer(seq_len: int = 32768, policy: str = "as given") -> Explorer:
    """Draw a packed batch: every sample a square, every document a triangle; beside it what ranks do."""
    controls = document_controls(REAL)
    controls |= {
        "seq_len": slide("sequence S", LENGTHS, seq_len),
        "hidden": slide("hidden size", WIDTHS, 4096),
        "policy": pick("policy", [*COMPARED, "optimal"], policy),
        "number": slide("batch no.", NUMBERS, 5),
    }
    able(controls)
    views = [mosaic.mosaic(CELLS), mosaic.rank_bars(CELLS)]
    return Explorer(
        controls, views, _mosaic, _mosaic_text, _mosaic_titles, title="Equal tokens, unequal work"
    )


@lru_cache(maxsize=64)
def _both(
    kind: str, typical: int, long_share: float, seq_len: int, hidden: int, policy: str, number: int
) -> dict[str, Arranged]:
    """Arrange a batch as given, and as the policy has it."""
    one = batch(documents_of(kind, typical, long_share), seq_len, CELLS * CELLS, number)
    of = Shape(hidden, seq_len, CELLS).setting
    return {name: arranged(one, of, name) for name in dict.fromkeys(("as given", policy))}


def _mosaic(**values: Any) -> Tables:
    both = _both(**values)
    shown = both[values["policy"]]
    ranks = {
        name: (it.attention_s[it.rank].sum(axis=1), it.rest_s[it.rank].sum(axis=1))
        for name, it in both.items()
    }
    return mosaic.mosaic_rows(shown.packed, values["seq_len"], shown.rank, shown.sample_s) | mosaic.rank_rows(
        ranks
    )


def _mosaic_titles(**values: Any) -> list[str]:
    both = _both(**values)
    given, shown = both["as given"], both[values["policy"]]
    ratio = float(shown.sample_s.max() / shown.sample_s.min())
    first = f"The heaviest sample takes {ratio:.2f} × the lightest"
    waits = f"A rank waits {given.waiting:.1%} of the step"
    if len(both) > 1:
        waits = f"A rank waits {given.waiting:.1%}, {values['policy']} {shown.waiting:.1%}"
    return [first, waits]


def _mosaic_text(**values: Any) -> str:
    both = _both(**values)
    given, shown = both["as given"], both[values["policy"]]
    share = float(shown.attention_s.sum() / shown.sample_s.sum())
    crossover = Shape(values["hidden"], values["seq_len"], CELLS).setting.work.crossover
    faster = given.rank_s.max() / shown.rank_s.max() * shown.packed.tokens.sum() / given.packed.tokens.sum()
    cells = [
        (f"{shown.packed.lengths.size:,}", "pieces of documents"),
        (f"{shown.packed.lengths.max():,}", "tokens, the longest"),
        (f"{share:.1%}", "of the work is attention"),
        (f"{crossover:,.0f}", "tokens, where it is half"),
        (f"{faster:.3f}×", "tokens a second, to as given"),
    ]
    said = (
        f"Each square is a sample of {values['seq_len']:,} tokens"
        if values["policy"] != BY_WORK
        else "Samples differ"
    )
    said += ", blue is attention; beside its number its work, the mean being 1. 32 layers on H100, one stage."
    left = int(shown.packed.left.sum())
    if left:
        said += f" {left:,} tokens find no room and wait for the next batch."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- context ranks ------------------------------------------------------------------------------------------

SAMPLES = {
    "4 and 12": (4, 12),
    "one document": (16384,),
    "a long one in front": (8192, *(1024,) * 8),
    "a long one in the middle": (*(1024,) * 4, 8192, *(1024,) * 4),
    "eight alike": (2048,) * 8,
    "real, 32,768 tokens": (),
}


def context_explorer() -> Explorer:
    """Split one packed sample over context ranks in four ways."""
    controls = {
        "sample": pick("documents", list(SAMPLES), "4 and 12"),
        "cp": slide("ranks", [2, 4], 2),
        "number": slide("batch no.", NUMBERS, 1),
    }

    def follow(_change: Any = None) -> None:
        made_up = bool(SAMPLES[controls["sample"].value])
        controls["number"].disabled, controls["number"].readout = made_up, not made_up

    controls["sample"].observe(follow, "value")
    follow()
    views = [context_splits.stripes(), context_splits.split_bars()]
    return Explorer(
        controls, views, _context, _context_text, _context_titles, title="One sample on several ranks"
    )


@lru_cache(maxsize=64)
def _splits(sample: str, cp: int, number: int) -> dict[str, Split]:
    lengths: Any = SAMPLES[sample] or batch(Documents(), 32768, 1, number).lengths
    return {how: split(lengths, cp, how) for how in HOWS}


def _context(**values: Any) -> Tables:
    return context_splits.split_rows(_splits(**values))


def _context_titles(**values: Any) -> list[str]:
    found = _splits(**values)
    worst = max(found, key=lambda how: found[how].imbalance)
    even = [how for how, it in found.items() if it.imbalance < 1.005]
    lengths = found[worst].lengths
    first = f"{lengths.size} document{'s' * (lengths.size > 1)}, {lengths.sum():,} tokens, on {values['cp']} ranks"
    said = ", ".join(even) if len(even) < len(found) else "every way"
    second = f"Balanced: {said or 'none'}; {worst} is {found[worst].imbalance:.2f} times the mean"
    return [first, second]


def _context_text(**values: Any) -> str:
    found = _splits(**values)
    cells = [(f"{int(it.stretches.max()):,}", f"stretches, {how}") for how, it in found.items()]
    said = "Each square is the same sample, its queries from top to bottom, coloured by who computes them. "
    said += "Stretches: pieces of documents on the rank that has most of them; short ones use a kernel badly."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
