"""Panels of chapter 5: a packed batch as triangles, who waits for whom, when it matters, context ranks."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)
import numpy as np

from telekit.packing.context import HOWS, Split, split
from telekit.packing.gain import Gain
from telekit.packing.policies import BY_WORK, arrange
from telekit.packing.step import order_micro_batches, run_step
from telekit.ui import context_splits, mosaic
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_packing import (
    DOCUMENTS,
    REAL,
    Arranged,
    Documents,
    arranged,
    batch,
    gained,
    setting,
    telechat_gain,
)
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
MEETS = {"once a step": False, "in every layer": True}
RANKS = [2, 8, 32, 128]
MICRO_BATCHES = (1, 4, 16)


def _document_controls(kind: str, costly: bool = False) -> dict[str, W.Widget]:
    return {
        "kind": pick("documents", list(DOCUMENTS), kind),
        "typical": slide("typical", TYPICAL, 2048, costly),
        "long_share": pick("long ones", LONG_SHARES, 0.02),
    }


def _able(controls: dict[str, W.Widget]) -> None:
    """Disable what the chosen documents do not ask for."""

    def follow(_change: Any = None) -> None:
        kind = controls["kind"].value
        made_up = kind not in DOCUMENTS[:2]
        controls["typical"].disabled, controls["typical"].readout = not made_up, made_up
        controls["long_share"].disabled = kind != "short and long"

    controls["kind"].observe(follow, "value")
    follow()


def _documents(kind: str, typical: int, long_share: float) -> Documents:
    """Documents of these settings; what does not count is left at its default, so that a cache meets it again."""
    if kind in DOCUMENTS[:2]:
        return Documents(kind)
    return Documents(kind, typical, long_share) if kind == "short and long" else Documents(kind, typical)


# --- equal tokens, unequal work -----------------------------------------------------------------------------


def mosaic_explorer(seq_len: int = 32768, policy: str = "as given") -> Explorer:
    """Draw a packed batch: every sample a square, every document a triangle; beside it what ranks do."""
    controls = _document_controls(REAL)
    controls |= {
        "seq_len": slide("sequence S", LENGTHS, seq_len),
        "hidden": slide("hidden size", WIDTHS, 4096),
        "policy": pick("policy", [*COMPARED, "optimal"], policy),
        "number": slide("batch no.", NUMBERS, 5),
    }
    _able(controls)
    views = [mosaic.mosaic(CELLS), mosaic.rank_bars(CELLS)]
    return Explorer(
        controls, views, _mosaic, _mosaic_text, _mosaic_titles, title="Equal tokens, unequal work"
    )


@lru_cache(maxsize=64)
def _both(
    kind: str, typical: int, long_share: float, seq_len: int, hidden: int, policy: str, number: int
) -> dict[str, Arranged]:
    """Arrange a batch as given, and as the policy has it."""
    one = batch(_documents(kind, typical, long_share), seq_len, CELLS * CELLS, number)
    of = setting(hidden, seq_len, CELLS)
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
    crossover = setting(values["hidden"], values["seq_len"], CELLS).work.crossover
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


# --- who waits for whom -------------------------------------------------------------------------------------


def waiting_explorer(seq_len: int = 32768, dp: int = 8, pp: int = 1) -> Explorer:
    """Draw what every rank does in a step under a policy, and all policies over many batches."""
    controls = _document_controls(REAL, costly=True)
    controls |= {
        "seq_len": slide("sequence S", LENGTHS, seq_len, costly=True),
        "hidden": slide("hidden size", WIDTHS, 4096, costly=True),
        "dp": slide("ranks d", [2, 4, 8, 16, 32], dp, costly=True),
        "pp": slide("stages p", [1, 2, 4, 8], pp, costly=True),
        "micro_batches": slide("batches m", [1, 2, 4, 8, 16], 4, costly=True),
        "in_layers": pick("ranks meet", MEETS, False),
        "policy": pick("policy", [*WHOLE, "alike"], "as given"),
        "number": slide("batch no.", NUMBERS, 1, costly=True),
    }
    _able(controls)
    views = [mosaic.waiting(), mosaic.policy_bars()]
    return Explorer(controls, views, _waits, _waits_text, _waits_titles, title="Who waits for whom?")


@lru_cache(maxsize=64)
def _step(documents: Documents, number: int, policy: str, *shape: Any) -> tuple[Any, ...]:
    """One step: computing and waits in layers by micro-batch, then bubble and last wait by rank, and its length."""
    of = setting(*shape)
    forward, backward = of.times_s(batch(documents, of.seq_len, of.samples, number))
    work = (forward + backward).sum(axis=1).mean(axis=1)
    chosen = arrange(policy, work, of.ranks, of.micro_batches)[..., 0]
    forward, backward = forward[chosen], backward[chosen]
    if policy != "as given":
        order = order_micro_batches(forward, backward, of.plan, by_part=True)
        taken = np.arange(len(order))[:, None], order
        forward, backward = forward[taken], backward[taken]
    found = run_step(forward, backward, of.plan, by_part=True)
    busy = (forward + backward).sum(axis=2).mean(axis=2)
    met = (forward.max(axis=0) + backward.max(axis=0)).sum(axis=1).mean(axis=1) if shape[-1] else busy
    return (
        busy,
        np.broadcast_to(met, busy.shape) - busy,
        found.bubble_s,
        found.reduce_wait_s,
        float(found.step_s),
    )


def _compared(documents: Documents, *shape: Any) -> Gain:
    hidden, seq_len, dp, pp, micro_batches, in_layers = shape
    names = (*COMPARED, "alike") if in_layers else COMPARED
    return gained(documents, names, hidden, seq_len, dp, pp, micro_batches, in_layers, batches=10)


def _read(values: dict[str, Any]) -> tuple[Documents, tuple[Any, ...]]:
    documents = _documents(values["kind"], values["typical"], values["long_share"])
    shape = ("hidden", "seq_len", "dp", "pp", "micro_batches", "in_layers")
    return documents, tuple(values[name] for name in shape)


def _waits(**values: Any) -> Tables:
    documents, shape = _read(values)
    found = _compared(documents, *shape)
    standing = {}
    for it in found.policies:
        each = 1 / it.speedup  # by tokens: what is packed anew may leave some for later
        low, high = np.quantile(each, [0.05, 0.95])
        waits = float((each * it.waiting_share).mean())
        standing[it.policy] = mosaic.Standing(
            float(each.mean()), float(low), float(high), waits, float(it.speedup.mean())
        )
    step = _step(documents, values["number"], values["policy"], *shape)[:4]
    return mosaic.waiting_rows(*step) | mosaic.policy_rows(standing, float((1 / found.even).mean()))


def _waits_titles(**values: Any) -> list[str]:
    documents, shape = _read(values)
    busy, layer, bubble, last, _ = _step(documents, values["number"], values["policy"], *shape)
    computing = busy.sum(axis=1)
    total = computing + layer.sum(axis=1) + bubble + last
    others = float(((layer.sum(axis=1) + last) / total).mean())
    slowest = int(computing.argmax())
    first = f"{values['policy'].capitalize()}, a rank waits {others:.1%} of this step for others; "
    first += f"rank {slowest} has most work"
    found = _compared(documents, *shape)
    best = max(found.policies, key=lambda it: float(it.speedup.mean()))
    gains = float(best.speedup.mean())
    if gains < 1.005:
        return [first, "Over 10 batches no policy gains anything here"]
    return [first, f"Over 10 batches {best.policy} does best: {gains:.2f} times as many tokens a second"]


def _waits_text(**values: Any) -> str:
    documents, shape = _read(values)
    found = _compared(documents, *shape)
    balanced = found["balanced"]
    step = _step(documents, values["number"], values["policy"], *shape)[4]
    cells = [
        (f"{step:.3g} s", "this step"),
        (f"{found.policies[0].imbalance.mean():.3f}", "busiest / mean, as given"),
        (f"{balanced.imbalance.mean():.3f}", "balanced"),
        (f"{found.lower_bound.mean():.3f}", "no assignment below"),
    ]
    said = "Left: one batch, block by block a micro-batch (the mean over its stages). "
    said += "Right: 10 batches; the dashed line is a step of samples that are all alike."
    if values["pp"] > 1:
        said += " Blue there holds the pipeline's bubble; all but as given order micro-batches to lower it."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- when it matters ----------------------------------------------------------------------------------------


def matters_explorer(policy: str = "balanced") -> Explorer:
    """Follow the gain of a policy over the sequence length and the hidden size, and over ranks and micro-batches."""
    controls = _document_controls(REAL, costly=True)
    controls |= {
        "policy": pick("policy", list(COMPARED[1:]), policy),
        "seq_len": slide("sequence S", LENGTHS, 32768, costly=True),
        "hidden": slide("hidden size", list(mosaic.SIDES), 4096, costly=True),
        "dp": slide("ranks d", RANKS, 32, costly=True),
        "pp": slide("stages p", [1, 2, 4], 1, costly=True),
        "micro_batches": slide("batches m", list(MICRO_BATCHES[:2]), 4, costly=True),
    }
    _able(controls)
    views = [mosaic.over_length(LENGTHS), mosaic.over_ranks(RANKS)]
    return Explorer(controls, views, _matters, _matters_text, _matters_titles, title="When does it matter?")


def _spread(found: Gain, policy: str) -> dict[str, object]:
    speedup = found[policy].speedup
    low, high = np.quantile(speedup, [0.05, 0.95])
    return {"gain": float(speedup.mean()), "low": float(low), "high": float(high)}


def _matters(
    policy: str, seq_len: int, hidden: int, dp: int, pp: int, micro_batches: int, **kind: Any
) -> Tables:
    documents = _documents(**kind)

    def at(h: int, s: int, d: int, m: int) -> dict[str, object]:
        return _spread(gained(documents, (policy,), h, s, d, pp, m), policy)

    lengths: list[dict[str, object]] = [
        {"hidden": f"{h:,}", "seq_len": s} | at(h, s, dp, micro_batches)
        for h in mosaic.SIDES
        for s in LENGTHS
    ]
    ranks: list[dict[str, object]] = [
        {"micro_batches": str(m), "dp": d} | at(hidden, seq_len, d, m)
        for m in MICRO_BATCHES
        for d in RANKS
        if m * d <= 512
    ]
    published = _spread(telechat_gain(documents, policy), policy)
    mark: dict[str, object] = {"seq_len": 8192, "text": "TeleChat3-36B's layout"} | published
    return {"lengths": lengths, "ranks": ranks, "here": [{"seq_len": seq_len}], "published": [mark]}


def _matters_titles(**values: Any) -> list[str]:
    tables = _matters(**values)
    width = f"{values['hidden']:,}"
    here: Any = next(
        row for row in tables["lengths"] if row["hidden"] == width and row["seq_len"] == values["seq_len"]
    )
    mine: Any = [row for row in tables["lengths"] if row["hidden"] == width]
    top = max(mine, key=lambda row: row["gain"])
    first = f"At hidden size {width} it gains {here['gain'] - 1:.1%} at {values['seq_len']:,} tokens"
    if top["gain"] > 1.005:
        first += f", most ({top['gain'] - 1:.0%}) at {top['seq_len']:,}"
    rows: Any = [row for row in tables["ranks"] if row["micro_batches"] == str(values["micro_batches"])]
    few, many = (row["gain"] - 1 for row in (rows[0], rows[-1]))
    second = f"{rows[0]['dp']} ranks gain {few:.1%}, {rows[-1]['dp']} gain {many:.1%}"
    return [first, second]


def _matters_text(**values: Any) -> str:
    published: Any = _matters(**values)["published"][0]
    cells = [
        (f"{published['gain']:.3f}×", "TeleChat3-36B's layout, 8,192 tokens"),
        (f"{published['low']:.3f} to {published['high']:.3f}", "5 to 95 % of its batches"),
    ]
    said = "Lines: Llama-like models of 32 layers on H100; bars: 5 to 95 % of 6 batches. The diamond has its own "
    said += "ranks, stages and micro-batches, as published. A move takes a second or more."
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

    def able(_change: Any = None) -> None:
        made_up = bool(SAMPLES[controls["sample"].value])
        controls["number"].disabled, controls["number"].readout = made_up, not made_up

    controls["sample"].observe(able, "value")
    able()
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
