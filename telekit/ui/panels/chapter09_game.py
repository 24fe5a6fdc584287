"""Panel of chapter 9 with something hidden: who holds up sixteen ranks, and why; guesses are scored."""

from __future__ import annotations

import html
from functools import lru_cache
from typing import Any

import numpy as np

from telekit.diagnose.analysis.breakdown import CATEGORIES
from telekit.diagnose.diagnosis import Diagnosis, diagnose
from telekit.diagnose.faults import FAULT_KINDS, HEALTHY, LabelledTraces, Truth, draw_job, generate
from telekit.ui import straggler_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line

RANKS, NODE = 16, 8
OPEN, NOBODY, EVERYBODY = "?", "nobody", "all ranks"
NODES = ("node 0", "node 1")
LEFT_OUT = ("garbage-collection", "checkpoint", "stuck-rank", "frequency-drop-everywhere")
"""Kinds that are not hidden here: several ranks in turn, a run that ends, a loss too small to see."""
HIDDEN = (HEALTHY, *(kind for kind in FAULT_KINDS if kind not in LEFT_OUT))
ROUNDS = len(HIDDEN)
NOTHING = "nothing"
CAUSES = {
    OPEN: OPEN,
    "nothing: it is healthy": NOTHING,
    "its device": "device",
    "a link": "link",
    "its host": "host",
    "data loading": "data",
    "uneven work": "load",
}
POINTS = 2
"""Of one round: one for who, one for why."""


class StragglerGame(Explorer):
    """Rounds with a hidden fault; the first whole guess of a round counts, and looking up the answer gives it away."""

    def __init__(self, start: int = 1) -> None:
        self.points: dict[int, int] = {}
        controls = {
            "number": slide("round", list(range(1, ROUNDS + 1)), start, costly=True),
            "look": pick("look at", list(charts.LOOKS), charts.OWN),
            "who": pick("who?", [OPEN, NOBODY, EVERYBODY, *NODES, *map(str, range(RANKS))], OPEN),
            "why": pick("why?", CAUSES, OPEN),
            "answer": pick("answer", {"hidden": False, "shown": True}, False),
        }
        # before the panel's own observer, so that a move is drawn once
        controls["number"].observe(self._begin, "value")
        views = [charts.spent_chart(), charts.evidence_chart()]
        super().__init__(controls, views, _rows, self._said, _titles, title="Find the straggler")

    def _begin(self, _change: Any) -> None:
        """Take back the guesses of the round before."""
        held, self._held = self._held, True
        try:
            for name, value in (("who", OPEN), ("why", OPEN), ("answer", False)):
                self.controls[name].value = value
        finally:
            self._held = held

    def _said(self, number: int, look: str, who: str, why: str, answer: bool) -> str:
        """Judge the guess, keep its points if it is the round's first, and say the answer where asked."""
        guessed = OPEN not in (who, why)
        if guessed or answer:
            self.points.setdefault(number, sum(judged(number, who, why)) if guessed and not answer else 0)
        lines = []
        if guessed:
            lines.append(verdict_on(number, who, why))
        if answer:
            lines += explained(number)
        if not (guessed or answer):
            lines.append(
                "<span class='telekit-soft'>Set who and why: the first whole guess of a round counts.</span>"
            )
        return self._score(number) + "<br>".join(lines)

    def _score(self, number: int) -> str:
        cells = [(f"{self.points[number]} of {POINTS}", "points this round")] if number in self.points else []
        rounds = len(self.points)
        cells.append(
            (
                f"{sum(self.points.values())} of {POINTS * rounds}",
                f"in {rounds} round{'' if rounds == 1 else 's'}",
            )
        )
        return figures_line(cells)


def game_explorer(number: int = 1) -> StragglerGame:
    """Look at the ranks of a job with a hidden fault, and guess who holds the others up, and why."""
    return StragglerGame(number)


@lru_cache(maxsize=1)
def _order() -> tuple[str, ...]:
    return tuple(np.random.default_rng(20).permutation(HIDDEN).tolist())


@lru_cache(maxsize=24)
def hidden(number: int) -> LabelledTraces:
    """Generate a round's run: each kind once, in an order drawn by lot, each in another job."""
    return generate(_order()[number - 1], draw_job(RANKS, number), number)


@lru_cache(maxsize=24)
def diagnosed(number: int) -> Diagnosis:
    """Diagnose a round's run, from its traces alone."""
    return diagnose(hidden(number).traces, ranks_per_node=NODE)


def accepted(truth: Truth) -> tuple[set[str], str]:
    """Return who is right, and why; of a link all whom no trace tells apart, of a pair or several any."""
    if not truth.is_fault:
        return {NOBODY}, NOTHING
    if truth.scope == "all":
        return {EVERYBODY}, truth.cause
    if truth.scope == "node":
        return {NODES[truth.ranks[0] // NODE]}, truth.cause
    return {str(rank) for rank in (*truth.ranks, *truth.candidates)}, truth.cause


def judged(number: int, who: str, why: str) -> tuple[bool, bool]:
    """Whether who and why are right."""
    people, cause = accepted(hidden(number).truth())
    return who in people, why == cause


def verdict_on(number: int, who: str, why: str) -> str:
    """Say whether a guess is right, and if not, what speaks against it."""
    who_right, why_right = judged(number, who, why)
    first = "✓ who is right" if who_right else f"✗ {_against(number, who)}"
    second = "✓ why is right" if why_right else f"✗ not {_WHY[why]}: look at {_LOOK_AT[why]}"
    return f"<b>{html.escape(f'{first}; {second}')}</b>"


_WHY = {value: name.split(":")[0] for name, value in CAUSES.items()}
_LOOK_AT = {
    NOTHING: "own times against each other, and at how much of a step is not computing",
    "device": "kernels",
    "link": "transfers",
    "host": "the host",
    "data": "the host, column data",
    "load": "kernels, experts against the others",
}


def _against(number: int, who: str) -> str:
    """Say what speaks against a guess, from the run's own numbers."""
    run = diagnosed(number).run
    waits, own = (
        run.category("waiting").mean(axis=1) * 1e3,
        (run.wall_s - run.category("waiting")).mean(axis=1) * 1e3,
    )
    if who == NOBODY:
        return (
            f"{NOBODY}: own times reach from {own.min():.1f} to {own.max():.1f} ms, or all are held up alike"
        )
    if who == EVERYBODY:
        return f"{EVERYBODY}: own times reach from {own.min():.1f} to {own.max():.1f} ms"
    if who in NODES:
        nodes = [own[run.node == node].mean() for node in range(len(NODES))]
        both = f"{nodes[0]:.1f} and {nodes[1]:.1f} ms"
        return f"{who}: mean own times of the nodes are {both}, or not all ranks of one are at fault"
    rank = int(who)
    if waits[rank] > np.median(waits):
        return f"rank {rank} waits {waits[rank]:.1f} ms a step, more than most: it is held up"
    both = f"{own[rank]:.1f} ms, the median rank {np.median(own):.1f} ms"
    return f"rank {rank} has an own time of {both}: it is not alone, or not it"


def explained(number: int) -> list[str]:
    """Say what was planted, and what a diagnosis of the traces finds, on what evidence."""
    truth, found = hidden(number).truth(), diagnosed(number)
    if not truth.is_fault:
        what = "a clock that is set, which is no fault" if truth.ranks else "nothing"
        lines = [f"<b>Planted:</b> {what}."]
    else:
        size = f"{truth.size:.2g} times as long" if truth.unit == "times" else f"{truth.size * 1e3:.3g} ms"
        lines = [f"<b>Planted:</b> {html.escape(truth.kind)} on {_ranks(truth.ranks)}, {size}."]
        if len(truth.candidates) > len(truth.ranks):
            lines.append(f"No trace tells {_ranks(truth.candidates)} apart: all slow transfers pass them.")
    said = "; ".join(str(finding) for finding in found.findings) or found.verdict
    lines.append(f"<b>Diagnosis:</b> {html.escape(said)}.")
    evidence = [e.text for finding in found.findings[:1] for e in finding.evidence[:3]]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in evidence)
    return [*lines, f"<span class='telekit-soft'><ul>{items}</ul></span>"] if items else lines


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == RANKS:
        return EVERYBODY
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _rows(number: int, look: str, answer: bool, **_: Any) -> Tables:
    run, given = diagnosed(number).run, hidden(number)
    truth = given.truth()
    named = truth.ranks if answer and truth.is_fault else ()
    return charts.spent_rows(run) | charts.evidence_rows(run, given.job, look) | charts.marks(named)


def _titles(number: int, look: str, **_: Any) -> list[str]:
    run = diagnosed(number).run
    waiting = run.category("waiting").mean(axis=1)
    own = 1e3 * (run.wall_s.mean(axis=1) - waiting)
    computing = run.seconds.mean(axis=(0, 1))[[CATEGORIES.index(c) for c in ("compute", "overlap")]].sum()
    share = computing / run.mean_step_s
    step = f"Round {number}: a step takes {1e3 * run.mean_step_s:.1f} ms, {share:.0%} of it computing"
    return [f"{step}; own times from {own.min():.1f} to {own.max():.1f} ms", charts.ABOUT[look]]
