"""Schedules of the chapter, timed: one case under a reader's hands, all of them on one basis, published numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from telekit.errors import InputError
from telekit.layout.schedules import model_copies
from telekit.model.huggingface import load_model
from telekit.pipeline import formulas
from telekit.pipeline.order import Op, Order, from_lists, split_pairs
from telekit.pipeline.registry import SCHEDULES, Passes, build, get
from telekit.pipeline.sequence import piece_shares
from telekit.pipeline.simulate import Simulation, run
from telekit.pipeline.times import Times
from telekit.ui.tables import Table

SEQ_LEN = 8192
"""Tokens of a sequence in TeleChat3-36B's training file."""
PAIRED = ("dualpipe", "dualpipe-v", "overlapped-1f1b")
"""Schedules that overlap a forward with a backward."""
BASIS = tuple(name for name in SCHEDULES if name not in ("seq-1f1b", "seqsmartvpp"))
"""Schedules that run whole sequences, each with an order of its own."""

FORMULA = {
    "gpipe": "gpipe",
    "1f1b": "sc21_1f1b",
    "interleaved-1f1b": "sc21_interleaved",
    "zb-h1": "zb_formula_ZB-H1",
    "zb-h2": "zb_formula_ZB-H2",
    "zb-1p": "dualpipe_ZB1P",
    "zb-2p": "zbpp_ZB2P",
    "zb-v": "zbpp_ZBV",
    "v-half": "zbpp_V-Half",
    "v-min": "zbpp_V-Min",
    "dualpipe": "dualpipe_DualPipe",
    "dualpipe-v": "dualpipe_DualPipeV",
}
"""The published formula that stands beside a schedule."""


@dataclass(frozen=True)
class Case:
    """One pipeline: a schedule, its sizes, and times of one micro-batch on one stage.

    Attributes
    ----------
    schedule : str
        A name of :data:`telekit.pipeline.registry.SCHEDULES`.
    stages, micro_batches : int
        Devices, micro-batches of a step.
    chunks, pieces : int
        Chunks a device holds, slices of a sequence; counted only where the schedule takes them.
    overlap : float
        Time of a pair that runs as one block, over that of its halves; 0 runs them one after the other.
    forward, input, weight, comm : float
        F, the two halves of B, and the time between neighbouring stages.
    slower : float
        By which part the last device is slower than the others.
    """

    schedule: str
    stages: int
    micro_batches: int
    chunks: int = 2
    pieces: int = 2
    overlap: float = 1.0
    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    comm: float = 0.0
    slower: float = 0.0

    @property
    def passes(self) -> Passes:
        """Times of a stage."""
        each = (self.forward, self.input, self.weight)
        return Passes(*each, self.overlap * sum(each) or None, self.comm)


def takes(schedule: str, option: str) -> bool:
    """Whether a schedule has a choice, such as ``chunks``."""
    return option in get(schedule).options


@lru_cache(maxsize=32)
def timed(case: Case) -> Simulation:
    """Simulate a case.

    Raises
    ------
    InputError
        For sizes that the schedule does not allow.
    """
    order = order_of(case)
    factor = np.ones(case.stages)
    factor[-1] += case.slower
    forward, backward_input, weight, pair, comm = case.passes
    both = None if pair is None else pair * factor
    halves = (forward * factor, backward_input * factor, weight * factor)
    return run(order, Times.of_stages(order.part, *halves, both, comm))


def order_of(case: Case) -> Order:
    """Order of a case; one that is searched is searched for its times, the devices taken as equal."""
    name = case.schedule
    found = build(
        name,
        case.stages,
        case.micro_batches,
        chunks=case.chunks if takes(name, "chunks") else None,
        sequence_chunks=case.pieces if takes(name, "sequence_chunks") else None,
        passes=case.passes if takes(name, "passes") else Passes(),
    )
    return found if case.overlap else _apart(found)


def _apart(found: Order) -> Order:
    """Run the pairs of an order as a forward and then a backward."""
    if found.other_micro_batch is None or found.other_chunk is None:
        return found
    plain = (found.kind, found.micro_batch, found.chunk, np.zeros_like(found.kind))
    columns = np.stack([*plain, found.other_micro_batch, found.other_chunk], axis=1)
    operations = [Op(*row) for row in columns.tolist()]
    lines = [operations[a:b] for a, b in pairwise(found.first.tolist())]
    return from_lists(found.schedule, split_pairs(lines), found.part, found.micro_batches)


class Standing(NamedTuple):
    """How a schedule does: bubble of all time, most micro-batches a device holds, copies of the model."""

    bubble: float
    held: float
    copies: int


@lru_cache(maxsize=64)
def compare(case: Case) -> dict[str, Standing | InputError]:
    """Run every schedule of :data:`BASIS` on the same case; the error where it does not allow it."""
    found: dict[str, Standing | InputError] = {}
    for name in BASIS:
        try:
            it = timed(replace(case, schedule=name))
        except InputError as error:
            found[name] = error
        else:
            held = float(it.peak_activations.max())
            found[name] = Standing(float(it.bubble_fraction), held, model_copies(name))
    return found


# --- formulas beside them -----------------------------------------------------------------------------------


def by_formula(case: Case) -> str:
    """Say what the published formula gives for a case, and what the simulation gives by the same definition."""
    key = FORMULA.get(case.schedule)
    if key is None:
        return "No formula is published for it."
    formula = formulas.FORMULAS[key]
    found = timed(case)
    if not formula.holds_for(*case.passes[:3]):
        return f"Its published formula, {formula.text}, is for {formula.condition}."
    try:
        it = formulas.on_one_basis(
            formula, case.stages, case.micro_batches, found.order.chunks, *case.passes[:3], case.passes.pair
        )
    except InputError:
        return f"Its published formula, {formula.text}, is for F = B = W."
    share = float(found.bubble_fraction_of_span if formula.by_span else found.bubble_fraction)
    of_work, working = share / (1 - share), float(found.busy_s.mean())
    said = {
        formulas.TIME: (f"idle {it.idle:.4g}", f"{of_work * working:.4g}"),
        formulas.OF_IDEAL: (f"{it.of_ideal:.1%} of work", f"{of_work:.1%}"),
        formulas.OF_TOTAL: (
            f"{it.of_total:.1%} of {'the longest span' if formula.by_span else 'all time'}",
            f"{share:.1%}",
        ),
    }
    value, simulated = said[formula.measure]
    span = ", in the longest span" if formula.by_span and formula.measure == formulas.TIME else ""
    equal = ", for equal devices and free communication" if case.comm or case.slower else ""
    b = f" (B: {formula.meaning_of_b})" if formula.meaning_of_b == "1F1B's bubble" else ""
    return f"Published formula {formula.text}{b}{equal}: {value}{span}; simulated {simulated}."


# --- tables -------------------------------------------------------------------------------------------------

NAMED = (
    ("1f1b", Case("1f1b", 8, 20), 81),
    ("zb-1p", Case("zb-1p", 8, 20), 67),
    ("dualpipe, F&B 3", Case("dualpipe", 8, 20), 66),
    ("dualpipe, F&B 2", Case("dualpipe", 8, 20, overlap=2 / 3), None),
    ("dualpipe, F then B", Case("dualpipe", 8, 20, overlap=0.0), None),
    ("gpipe", Case("gpipe", 8, 32, input=0.5, weight=0.5), 78),
    ("1f1b", Case("1f1b", 8, 32, input=0.5, weight=0.5), 78),
)
"""Cases whose makespan is published or was argued about, and that makespan where it is."""


def named_values() -> Table:
    """Put simulated makespans beside published ones."""
    rows = []
    for name, case, published in NAMED:
        found = timed(case)
        rows.append(
            (
                name,
                str(case.stages),
                str(case.micro_batches),
                f"{case.input + case.weight:g}",
                f"{found.makespan_s:.4g}",
                "" if published is None else str(published),
                f"{found.bubble_fraction:.1%}",
                f"{found.peak_activations.max():g}",
            )
        )
    header = ("schedule", "p", "m", "B", "makespan", "published", "idle", "held")
    title = "F = 1; B: the whole backward; idle: of all time; held: micro-batches on the fullest device"
    return Table(title, header, tuple(rows))


def on_one_basis(stages: int, micro_batches: int, **values: float) -> Table:
    """Every schedule at the same devices, micro-batches and times, by all three definitions of its bubble."""
    rows = []
    for name in BASIS:
        try:
            found = timed(Case(name, stages, micro_batches, **values))  # type: ignore[arg-type]
        except InputError:
            continue
        fractions = (found.bubble_fraction, found.bubble_fraction_of_ideal, found.bubble_fraction_of_span)
        held, copies = f"{found.peak_activations.max():g}", str(model_copies(name))
        rows.append((name, f"{found.makespan_s:g}", *(f"{x:.1%}" for x in fractions), held, copies))
    rows.sort(key=lambda row: (float(row[1]), float(row[5])))
    title = f"p {stages}, m {micro_batches}, equal devices; idle time over three things"
    header = ("schedule", "makespan", "all time", "working time", "longest span", "held", "weights")
    return Table(title, header, tuple(rows))


def beside_formulas(stages: int, micro_batches: int) -> Table:
    """Put published formulas beside simulations: what each gives as its source means it, and both over one time."""
    rows = []
    for name, key in FORMULA.items():
        formula, case = formulas.FORMULAS[key], Case(name, stages, micro_batches)
        try:
            found = timed(case)
        except InputError:
            continue
        it = formulas.on_one_basis(formula, stages, micro_batches, found.order.chunks)
        simulated = found.bubble_fraction_of_span if formula.by_span else found.bubble_fraction
        what = "longest span" if formula.by_span else "all time"
        gives = {
            formulas.TIME: f"{it.value:g} units",
            formulas.OF_IDEAL: f"{it.value:.1%} of work",
            formulas.OF_TOTAL: f"{it.value:.1%} of {'span' if formula.by_span else 'all time'}",
        }[formula.measure]
        text = formula.text.removesuffix(" with PP/2 devices")  # the note below the table says it
        rows.append((name, text, formula.meaning_of_b, gives, what, f"{it.of_total:.1%}", f"{simulated:.1%}"))
    title = (
        f"p {stages}, m {micro_batches}, F = B = W = 1; last two columns: idle, of what stands before them"
    )
    header = ("schedule", "formula", "its B", "gives", "idle of", "formula", "simulated")
    return Table(title, header, tuple(rows))


TELECHAT = (
    ("105B", Case("1f1b", 8, 8, chunks=1, pieces=1)),
    ("36B, were it one chunk", Case("1f1b", 2, 4, chunks=1, pieces=1)),
    *(("36B", Case("seq-1f1b", 2, 4, chunks=2, pieces=pieces)) for pieces in (1, 2, 4, 8)),
)
"""Pipelines of TeleChat3's published training files; into how many pieces a sequence is cut, they do not say."""


def telechat_runs() -> Table:
    """Time TeleChat3's published pipelines, and what cutting the sequence does; equal and causal pieces."""
    model = load_model("telechat3-36b")
    attention = SEQ_LEN / (SEQ_LEN + 12 * model.hidden_size)  # of a pass's FLOPs, at full length
    rows = []
    for name, case in TELECHAT:
        found = timed(case)
        uneven = run(found.order, replace(found.times, piece=piece_shares(case.pieces, attention)))
        fractions = tuple(f"{it.bubble_fraction:.1%}" for it in (found, uneven))
        sizes = (case.stages, case.micro_batches, case.chunks, case.pieces)
        held = f"{found.peak_activations.max():g}"
        rows.append((name, *map(str, sizes), f"{found.makespan_s:g}", *fractions, held))
    header = ("run", "p", "m", "v", "pieces", "makespan", "idle", "idle, causal", "held")
    title = "F = B = W = 1; idle of all time, for equal pieces and for pieces that see all before them"
    return Table(title, header, tuple(rows))
