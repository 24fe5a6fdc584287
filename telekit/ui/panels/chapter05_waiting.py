"""Panels of chapter 5: who waits for whom in a step, and when balancing matters."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import numpy as np

from telekit.packing.policies import AS_GIVEN, BY_WORK, ORDERED, arrange
from telekit.packing.step import run_step
from telekit.ui import packing_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_packing import telechat_gain
from telekit.ui.packed import REAL, Documents, Shape, Steps, batch, even_steps, ordered, standing, steps
from telekit.ui.panels.apart import figures_line
from telekit.ui.panels.chapter05 import (
    LENGTHS,
    NUMBERS,
    WHOLE,
    WIDTHS,
    able,
    document_controls,
    documents_of,
)

MEETS = {"once a step": False, "in every layer": True}
BATCHES = 10
"""Batches of the chart that compares policies."""
RANKS = [2, 8, 32, 128]
MICRO_BATCHES = (1, 4, 16)
SAMPLES = 3072
"""Samples that the batches of a point share, the same ones at each number of ranks: few ranks see many batches."""
MOST_LENGTHS, MOST_RANKS = 64, 384
"""Most batches of a point, in the chart over lengths and in that over ranks."""


# --- who waits for whom -------------------------------------------------------------------------------------


def waiting_explorer(seq_len: int = 32768, dp: int = 8, pp: int = 1) -> Explorer:
    """Draw what every rank does in a step under a policy, and all policies over many batches."""
    controls = document_controls(REAL, costly=True)
    controls |= {
        "seq_len": slide("sequence S", LENGTHS, seq_len, costly=True),
        "hidden": slide("hidden size", WIDTHS, 4096, costly=True),
        "dp": slide("ranks d", [2, 4, 8, 16, 32], dp, costly=True),
        "pp": slide("stages p", [1, 2, 4, 8], pp, costly=True),
        "micro_batches": slide("batches m", [1, 2, 4, 8, 16], 4, costly=True),
        "in_layers": pick("ranks meet", MEETS, False),
        "policy": pick("policy", [AS_GIVEN, ORDERED, *WHOLE[1:], "alike"], AS_GIVEN),
        "number": slide("batch no.", NUMBERS, 1, costly=True),
    }
    able(controls)
    views = [charts.waiting(), charts.policy_bars()]
    return Explorer(controls, views, _waits, _waits_text, _waits_titles, title="Who waits for whom?")


@lru_cache(maxsize=64)
def _step(documents: Documents, number: int, policy: str, shape: Shape) -> tuple[Any, ...]:
    """One step: computing and waits in layers by micro-batch, then bubble and last wait by rank, and its length."""
    of = shape.setting
    forward, backward = of.times_s(batch(documents, of.seq_len, of.samples, number))
    work = (forward + backward).sum(axis=1).mean(axis=1)
    chosen = arrange(policy, work, of.ranks, of.micro_batches)[..., 0]
    forward, backward = forward[chosen], backward[chosen]
    if policy != AS_GIVEN and shape.pp > 1:
        forward, backward = ordered(forward, backward, shape)
    found = run_step(forward, backward, of.plan, by_part=True)
    busy = (forward + backward).sum(axis=2).mean(axis=2)
    met = busy
    if shape.in_layers:
        met = (forward.max(axis=0) + backward.max(axis=0)).sum(axis=1).mean(axis=1)
    layer = np.broadcast_to(met, busy.shape) - busy
    return busy, layer, found.bubble_s, found.reduce_wait_s, float(found.step_s)


def _compared(documents: Documents, shape: Shape) -> dict[str, Steps]:
    """Run each policy on the same batches."""
    names = [*WHOLE, BY_WORK, *(["alike"] if shape.in_layers else [])]
    if shape.pp > 1:
        names.insert(1, ORDERED)
    return {name: steps(documents, name, shape, BATCHES, order=True) for name in names}


def _read(values: dict[str, Any]) -> tuple[Documents, Shape]:
    documents = documents_of(values["kind"], values["typical"], values["long_share"])
    names = ("hidden", "seq_len", "dp", "pp", "micro_batches", "in_layers")
    return documents, Shape(**{name: values[name] for name in names})


def _standing(it: Steps, given: Steps) -> charts.Standing:
    """Set a policy against the samples as given; by tokens, for what is packed anew may leave some for later."""
    each = given.tokens / it.tokens / given.step.step_s
    low, high = np.quantile(it.step.step_s * each, [0.05, 0.95])
    parts = {name: float((seconds * each).mean()) for name, seconds in it.parts().items()}
    unordered = float((it.unordered_s * each).mean())
    return charts.Standing(parts, float(low), float(high), unordered, float(it.speedup(given).mean()))


def _waits(**values: Any) -> Tables:
    documents, shape = _read(values)
    found = _compared(documents, shape)
    given = found[AS_GIVEN]
    rows = {name: _standing(it, given) for name, it in found.items()}
    busy, layer, bubble, last, _ = _step(documents, values["number"], values["policy"], shape)
    alike = float((1 / even_steps(documents, shape, BATCHES).speedup(given)).mean())
    left = charts.waiting_rows(busy, layer, bubble, last, shape.setting.plan.fixed_s)
    return left | charts.policy_rows(rows, alike)


def _waits_titles(**values: Any) -> list[str]:
    documents, shape = _read(values)
    busy, layer, bubble, last, step = _step(documents, values["number"], values["policy"], shape)
    others = float((layer.sum(axis=1) + last).mean() / step)
    first = f"{values['policy'].capitalize()}, a rank waits {others:.1%} of this step for others"
    if shape.pp > 1:
        first += f", {bubble.mean() / step:.1%} in its pipeline"
    else:
        first += f"; rank {int(busy.sum(axis=1).argmax())} has most work"
    found = _compared(documents, shape)
    gains = {name: float(it.speedup(found[AS_GIVEN]).mean()) for name, it in found.items()}
    best = max(gains, key=lambda name: gains[name])
    if gains[best] < 1.005:
        return [first, f"Over {BATCHES} batches no policy gains anything here"]
    return [
        first,
        f"Over {BATCHES} batches {best} does best: {gains[best]:.2f} times as many tokens a second",
    ]


def _waits_text(**values: Any) -> str:
    documents, shape = _read(values)
    found = _compared(documents, shape)
    balanced, given = found["balanced"], found[AS_GIVEN]
    step = _step(documents, values["number"], values["policy"], shape)[4]
    cells = [
        (f"{step:.3g} s", "this step"),
        (f"{given.step.imbalance.mean():.3f}", "busiest / mean, as given"),
        (f"{balanced.step.imbalance.mean():.3f}", "balanced"),
    ]
    if shape.pp > 1:
        cells += [
            (f"{balanced.speedup(given, False).mean():.3f}×", "balancing alone"),
            (f"{found[ORDERED].speedup(given).mean():.3f}×", "ordering alone"),
            (f"{balanced.speedup(given).mean():.3f}×", "both"),
        ]
    said = "Left: one batch, block by block a micro-batch (the mean over its stages). "
    said += f"Right: {BATCHES} batches, red 5 to 95 % of them; the dashed line is a step of samples that are all alike."
    if shape.pp > 1:
        how = "rules and exchanges" if shape.searched else "the best of five rules"
        said += (
            f" All but as given also order a rank's micro-batches ({how}); grey ticks: the step before that."
        )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- when it matters ----------------------------------------------------------------------------------------


def matters_explorer(policy: str = "balanced") -> Explorer:
    """Follow the gain of a policy over the sequence length and the hidden size, and over ranks and micro-batches."""
    controls = document_controls(REAL, costly=True)
    controls |= {
        "policy": pick("policy", [*WHOLE[1:], BY_WORK], policy),
        "seq_len": slide("sequence S", LENGTHS, 32768, costly=True),
        "hidden": slide("hidden size", list(charts.SIDES), 4096, costly=True),
        "dp": slide("ranks d", RANKS, 32, costly=True),
        "pp": slide("stages p", [1, 2, 4], 1, costly=True),
        "micro_batches": slide("batches m", list(MICRO_BATCHES[:2]), 4, costly=True),
    }
    able(controls)
    views = [charts.over_length(LENGTHS), charts.over_ranks(RANKS)]
    return Explorer(controls, views, _matters, _matters_text, _matters_titles, title="When does it matter?")


def _point(documents: Documents, policy: str, shape: Shape, most: int) -> dict[str, object]:
    """Gain of the assignment alone: mean, 5 and 95 % of batches."""
    batches = min(SAMPLES // shape.samples, most)
    if policy == BY_WORK:  # packing anew takes long
        batches = min(batches, 4)
    given, found = (steps(documents, name, shape, batches, kept=SAMPLES) for name in (AS_GIVEN, policy))
    return _spread(*standing(found.speedup(given)))


def _spread(gain: float, low: float, high: float) -> dict[str, object]:
    return {"gain": gain, "low": low, "high": high}


@lru_cache(maxsize=64)
def _matters(
    policy: str, seq_len: int, hidden: int, dp: int, pp: int, micro_batches: int, **kind: Any
) -> Tables:
    documents = documents_of(**kind)
    lengths: list[dict[str, object]] = [
        {"hidden": f"{h:,}", "seq_len": s, "at": charts.beside(s, number, 1.05)}
        | _point(documents, policy, Shape(h, s, dp, pp, micro_batches), MOST_LENGTHS)
        for number, h in enumerate(charts.SIDES)
        for s in LENGTHS
    ]
    ranks: list[dict[str, object]] = [
        {"micro_batches": str(m), "dp": d, "at": charts.beside(d, number, 1.1)}
        | _point(documents, policy, Shape(hidden, seq_len, d, pp, m), MOST_RANKS)
        for number, m in enumerate(MICRO_BATCHES)
        for d in RANKS
        if m * d <= 512
    ]
    mark: dict[str, object] = {"seq_len": 8192, "text": "TeleChat3-36B's layout"}
    mark |= _spread(*standing(telechat_gain(documents, policy)[policy].unordered))
    return {"lengths": lengths, "ranks": ranks, "here": [{"seq_len": seq_len}], "published": [mark]}


def _matters_titles(**values: Any) -> list[str]:
    tables = _matters(**values)
    width = f"{values['hidden']:,}"
    mine: Any = [row for row in tables["lengths"] if row["hidden"] == width]
    here: Any = next(row for row in mine if row["seq_len"] == values["seq_len"])
    top = max(mine, key=lambda row: row["gain"])
    first = f"Hidden size {width} gains {here['gain'] - 1:.1%} at {values['seq_len']:,} tokens"
    if top["gain"] > 1.005:
        where = "its most" if top is here else f"most ({top['gain'] - 1:.0%}) at {top['seq_len']:,}"
        first += f", {where}"
    rows: Any = [row for row in tables["ranks"] if row["micro_batches"] == str(values["micro_batches"])]
    few, many = (row["gain"] - 1 for row in (rows[0], rows[-1]))
    second = f"m = {values['micro_batches']}: {rows[0]['dp']} ranks gain {few:.1%}, "
    second += f"{rows[-1]['dp']} gain {many:.1%}"
    return [first, second]


def _matters_text(**values: Any) -> str:
    documents = documents_of(values["kind"], values["typical"], values["long_share"])
    found = telechat_gain(documents, values["policy"])[values["policy"]]
    cells = [
        (f"{found.unordered.mean():.3f}×", "TeleChat3-36B's layout, 8,192 tokens"),
        (f"{found.speedup.mean():.3f}×", "with micro-batches ordered too"),
    ]
    many = "up to 4" if values["policy"] == BY_WORK else f"{SAMPLES // 512} or more"
    said = "What moving samples gains, nothing ordered. Lines: Llama-like models of 32 layers on H100; bars: 5 to 95 % "
    said += (
        f"of {many} batches of the same documents. The diamond has its own ranks, stages and micro-batches."
    )
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
