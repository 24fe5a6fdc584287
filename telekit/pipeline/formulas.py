"""Published formulas of pipeline bubbles, each with its definition, and one basis to compare them on.

Formulas that look alike differ in three ways. They give idle time, idle time over all time, idle time over
working time, or utilisation. Their B holds the weights' gradient W (Megatron-LM, DualPipe) or not
(zero-bubble's papers). And DualPipeV's PP counts model parts, of which a device holds two, so that the same
number of *stages* is half the number of *devices*. :func:`on_one_basis` takes equal devices, times of a
device's whole share, and answers in all four measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from telekit.errors import InputError, Problem


class Symbols(NamedTuple):
    """What a formula is written in.

    Attributes
    ----------
    p, m, v : int
        Stages (as the source counts them), micro-batches, chunks a device holds.
    f, b, w, both : float
        F, B (as the source means it), W and F&B of one stage and micro-batch.
    """

    p: int
    m: int
    v: int
    f: float
    b: float
    w: float
    both: float


Value = Callable[[Symbols], float]
Condition = Callable[[float, float, float], bool]
"""Whether a formula holds for F, B (without W) and W."""

TIME, OF_TOTAL, OF_IDEAL, UTILISATION = "idle time", "idle / total", "idle / ideal", "utilisation"


@dataclass(frozen=True)
class Formula:
    """One published formula.

    Attributes
    ----------
    key : str
        Name of the row in ``data/measurements/pipeline.json``, or of a formula that is not there.
    schedule : str
        Name here; empty where no order of it is known.
    published_as, text, source : str
        The source's name of the schedule, its formula as written ("B" alone is 1F1B's rate), and the source.
    measure : str
        What the formula gives: TIME, OF_TOTAL, OF_IDEAL or UTILISATION.
    peak_text : str
        The most micro-batches of a stage whose activations a device holds, as written ("x": times 1F1B's).
    b_holds_w : bool
        Whether its B makes the weights' gradient too.
    parts_per_device : int
        Stages, as the source counts them, that a device holds.
    copies : int
        Copies of the model that all devices hold together.
    equal_passes : bool
        Whether it is for F = B = W alone (B without W).
    by_span : bool
        Whether its total is the longest span of a device, from its own first start to its last end
        (zero-bubble's), and not the makespan: how late devices start one after the other is left out.
    """

    key: str
    schedule: str
    published_as: str
    text: str
    measure: str
    source: str
    peak_text: str = ""
    b_holds_w: bool = False
    parts_per_device: int = 1
    copies: int = 1
    equal_passes: bool = False
    by_span: bool = False

    @property
    def bubble(self) -> Value | None:
        """The formula; None where the source has none."""
        return _BUBBLES.get(self.text)

    @property
    def bubble_caveat(self) -> str:
        """Why the simulated order has another bubble; empty where it has this one."""
        return _BUBBLE_CAVEATS.get(self.key, "")

    @property
    def peak_caveat(self) -> str:
        """Why the simulated order holds something else; empty where it holds this."""
        return _PEAK_CAVEATS.get(self.key, "")

    @property
    def meaning_of_b(self) -> str:
        """What its B is, where it is not the gradients of inputs: the whole backward, or 1F1B's bubble."""
        if self.text in ("B", "B/2", "B/3", "2B/3"):
            return "1F1B's bubble"
        return "with W" if self.b_holds_w else ""

    @property
    def condition(self) -> str:
        """For which times it is, B without W; empty where it is for all, or for equal ones as said above."""
        return _CONDITIONS.get(self.key, ("", None))[0]

    def holds_for(self, forward: float, backward_input: float, backward_weight: float) -> bool:
        """Whether it is for these times of a stage, B without W."""
        holds = _CONDITIONS.get(self.key, ("", None))[1]
        return holds is None or holds(forward, backward_input, backward_weight)

    @property
    def peak(self) -> Value | None:
        """The formula of activations; None where the source has none, or one that is not a number."""
        return _PEAKS.get(self.peak_text)


class Bubble(NamedTuple):
    """A schedule on one basis: equal devices, one model, times of a device's share of it.

    Attributes
    ----------
    idle : float or None
        Idle time of a device, in the unit of the times; None where the source has no formula.
    of_total, of_ideal, utilisation : float or None
        Idle over all time, idle over working time, working time over all time.
    peak : float or None
        Most micro-batches, each of a device's whole share of the model, that a device holds.
    copies : int
        How often the model is held: a device holds ``copies / devices`` of it.
    value : float or None
        What the formula itself gives: its ``measure`` says of which kind.
    """

    idle: float | None
    of_total: float | None
    of_ideal: float | None
    utilisation: float | None
    peak: float | None
    copies: int
    value: float | None = None


def on_one_basis(
    formula: Formula,
    devices: int,
    micro_batches: int,
    chunks: int = 1,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    pair: float | None = None,
) -> Bubble:
    """Evaluate a formula for a number of devices.

    Parameters
    ----------
    formula : Formula
        A value of :data:`FORMULAS`.
    devices, micro_batches, chunks : int
        Sizes; ``chunks`` counts where the formula has a v.
    forward, backward_input, backward_weight : float
        Times of one micro-batch on a device: all it holds of one copy of the model.
    pair : float, optional
        F&B, a forward overlapped with a backward; their sum when nothing is said.

    Raises
    ------
    InputError
        For sizes below 1, times that are not positive, or unequal times under a formula of equal ones.
    """
    _check(formula, devices, micro_batches, chunks, (forward, backward_input, backward_weight))
    k = formula.parts_per_device
    f, b, w = (x / k for x in (forward, backward_input, backward_weight))
    both = f + b + w if pair is None else pair / k
    symbols = Symbols(devices * k, micro_batches, chunks, f, b + w * formula.b_holds_w, w, both)
    peak = None if formula.peak is None else formula.peak(symbols) / k
    if formula.bubble is None:
        return Bubble(None, None, None, None, peak, formula.copies)
    ideal = micro_batches * (forward + backward_input + backward_weight)
    value = formula.bubble(symbols)
    match formula.measure:
        case "idle time":
            idle = value
        case "idle / ideal":
            idle = value * ideal
        case "utilisation":
            idle = ideal / value - ideal
        case _:
            idle = ideal * value / (1 - value)
    total = ideal + idle
    return Bubble(idle, idle / total, idle / ideal, ideal / total, peak, formula.copies, value)


def _check(formula: Formula, devices: int, m: int, chunks: int, times: tuple[float, ...]) -> None:
    problems = [
        Problem(name, size, "must be at least 1", f"{name} 1 works")
        for name, size in (("devices", devices), ("micro_batches", m), ("chunks", chunks))
        if size < 1
    ]
    names = ("forward", "backward_input", "backward_weight")
    problems += [
        Problem(name, time, "must be finite and more than 0", "1 works")
        for name, time in zip(names, times, strict=True)
        if not 0 < time < float("inf")
    ]
    if formula.equal_passes and len(set(times)) > 1:
        rule = f"{formula.published_as} of {formula.source} is for F = B = W alone"
        problems.append(Problem("times", times, rule, f"{times[:1] * 3} works"))
    if problems:
        raise InputError(problems)


def _1f1b(s: Symbols) -> float:
    return (s.p - 1) / (s.m + s.p - 1)


_BUBBLES: dict[str, Value] = {
    "(p-1)/m": lambda s: (s.p - 1) / s.m,
    "(1/v)(p-1)/m": lambda s: (s.p - 1) / (s.v * s.m),
    "M/(M+(PP-1)/v)": lambda s: s.m / (s.m + (s.p - 1) / s.v),
    "(K-1)/(M+K-1)": _1f1b,
    "(p-1)(TF+TB+TW)": lambda s: (s.p - 1) * (s.f + s.b + s.w),
    "(p-1)(TF+TB-TW)": lambda s: (s.p - 1) * (s.f + s.b - s.w),
    "(p-1)(TF+TB-2TW)": lambda s: (s.p - 1) * (s.f + s.b - 2 * s.w),
    "(PP-1)(F+B)": lambda s: (s.p - 1) * (s.f + s.b),
    "(PP-1)(F+B-2W)": lambda s: (s.p - 1) * (s.f + s.b - 2 * s.w),
    "(PP/2-1)(F&B+B-3W)": lambda s: (s.p / 2 - 1) * (s.both + s.b - 3 * s.w),
    "(PP/2-1)(F&B+B-3W) with PP/2 devices": lambda s: (s.p / 2 - 1) * (s.both + s.b - 3 * s.w),
    "(p-1)/(m+p-1)": _1f1b,
    "(p-1)/(m N + p-1)": lambda s: (s.p - 1) / (s.m * s.v + s.p - 1),
    "(p-1)/(3(m+p-1))": lambda s: _1f1b(s) / 3,
    "(p-1)/(p-1+6m)": lambda s: (s.p - 1) / (s.p - 1 + 6 * s.m),
    "B": _1f1b,
    "B/3": lambda s: _1f1b(s) / 3,
    "B/2": lambda s: _1f1b(s) / 2,
    "2B/3": lambda s: 2 * _1f1b(s) / 3,
    "0": lambda s: 0.0,
}

_SHORT_W: tuple[str, Condition] = ("W no longer than F and B", lambda f, b, w: w <= min(f, b))
_EVEN: tuple[str, Condition] = ("F = B, and W no longer", lambda f, b, w: f == b and w <= f)
_CONDITIONS: dict[str, tuple[str, Condition | None]] = {
    "zb_formula_ZB-H1": ("W no longer than F", lambda f, b, w: w <= f),
    "zb_formula_ZB-H2": _SHORT_W,
    "dualpipe_ZB1P": _SHORT_W,
    "dualpipe_DualPipe": _EVEN,
    "dualpipe_DualPipeV": _EVEN,
}
"""For which times orders as published idle as long as their formula says; found by simulating them."""

_PEAKS: dict[str, Value] = {
    "m": lambda s: s.m,
    "p": lambda s: s.p,
    "p M_B": lambda s: s.p,
    "(2p-1) M_B": lambda s: 2 * s.p - 1,
    "PP": lambda s: s.p,
    "PP+1": lambda s: s.p + 1,
    "1x": lambda s: s.p,
    "2x": lambda s: 2 * s.p,
    "1/2x": lambda s: s.p / 2,
    "1/3x": lambda s: s.p / 3,
    "p + (p-1)/p": lambda s: s.p + (s.p - 1) / s.p,
    "p+1": lambda s: s.p + 1,
    "p+2": lambda s: s.p + 2,
    "1.5p": lambda s: 1.5 * s.p,
}

_A_THIRD = "rounded: a third of the idle time, but the total shrinks with it: (p-1)/(3m+p-1), which is more"
_BUBBLE_CAVEATS = {
    "zbpp_ZB1P": _A_THIRD,
    "primus_ZB1P": _A_THIRD,
    "zbpp_V-Half": "for long pipelines: orders made for given p and m idle less when p is small, more when it is large",
    "zbpp_V-Min": "for long pipelines: orders made for given p and m idle less when p is small, more when it is large",
}
_PEAK_CAVEATS = {
    "zbpp_ZB2P": "a limit: the order holds 2p - 1",
    "zbpp_V-Half": "for long pipelines: p // 2 + 1 at any p",
    "zbpp_V-Min": "for long pipelines: (p + 1) // 3 + 1 at any p",
    "primus_1f1b-interleaved": "p + (p-1)/N, or m: the warm-up of 2 (p-1) + (N-1) p chunks, and one more, of N a stage",
}

_GPIPE = "arXiv 1811.06965, section 2.3"
_SC21 = "arXiv 2104.04473, section 2.2"
_ZB = "arXiv 2401.10241, table 2"
_DUALPIPE = "github.com/deepseek-ai/DualPipe, README.md"
_ZBPP = "github.com/sail-sg/zero-bubble-pipeline-parallelism, README.md"
_PRIMUS = "github.com/AMD-AGI/Primus, docs_deprecated/tech_blogs/primus_pipeline/primus_pipeline.md"
_VOCABULARY = "github.com/sail-sg/VocabularyParallelism, README.md"


def _rate(source: str, key: str, name: str, text: str, peak: str, equal: bool = True) -> Formula:
    """Rate of the total; ``equal``: for F = B = W."""
    schedule = _NAMES.get(name.lower(), "")
    key, by_span = f"{key}_{name}", source == _ZBPP
    return Formula(key, schedule, name, text, OF_TOTAL, source, peak, equal_passes=equal, by_span=by_span)


_NAMES = {
    "1f1b": "1f1b",
    "1f1b-interleaved": "interleaved-1f1b",
    "zb1p": "zb-1p",
    "zb2p": "zb-2p",
    "zbv": "zb-v",
    "zbv-formatted": "zb-v",
    "v-half": "v-half",
    "v-min": "v-min",
}

FORMULAS: dict[str, Formula] = {
    formula.key: formula
    for formula in (
        Formula("gpipe", "gpipe", "GPipe", "(K-1)/(M+K-1)", OF_TOTAL, _GPIPE, "m"),
        Formula("sc21_1f1b", "1f1b", "1F1B", "(p-1)/m", OF_IDEAL, _SC21, "p"),
        Formula("sc21_interleaved", "interleaved-1f1b", "interleaved", "(1/v)(p-1)/m", OF_IDEAL, _SC21),
        Formula(
            "dualpipe_issue_8",
            "interleaved-1f1b",
            "VPP",
            "M/(M+(PP-1)/v)",
            UTILISATION,
            "github.com/deepseek-ai/DualPipe, issue 8",
        ),
        Formula("zb_formula_1F1B", "1f1b", "1F1B", "(p-1)(TF+TB+TW)", TIME, _ZB, "p M_B", by_span=True),
        Formula("zb_formula_ZB-H1", "zb-h1", "ZB-H1", "(p-1)(TF+TB-TW)", TIME, _ZB, "p M_B", by_span=True),
        Formula(
            "zb_formula_ZB-H2", "zb-h2", "ZB-H2", "(p-1)(TF+TB-2TW)", TIME, _ZB, "(2p-1) M_B", by_span=True
        ),
        Formula("dualpipe_1F1B", "1f1b", "1F1B", "(PP-1)(F+B)", TIME, _DUALPIPE, "PP", True),
        Formula("dualpipe_ZB1P", "zb-1p", "ZB1P", "(PP-1)(F+B-2W)", TIME, _DUALPIPE, "PP", True),
        Formula(
            "dualpipe_DualPipe",
            "dualpipe",
            "DualPipe",
            "(PP/2-1)(F&B+B-3W)",
            TIME,
            _DUALPIPE,
            "PP+1",
            True,
            copies=2,
        ),
        Formula(
            "dualpipe_DualPipeV",
            "dualpipe-v",
            "DualPipeV",
            "(PP/2-1)(F&B+B-3W) with PP/2 devices",
            TIME,
            _DUALPIPE,
            "PP+1",
            True,
            parts_per_device=2,
        ),
        _rate(_ZBPP, "zbpp", "1F1B", "(p-1)/(m+p-1)", "1x", equal=False),
        _rate(_ZBPP, "zbpp", "ZB1P", "B/3", "1x"),
        _rate(_ZBPP, "zbpp", "ZB2P", "0", "2x"),
        _rate(_ZBPP, "zbpp", "ZBV", "0", "1x"),
        _rate(_ZBPP, "zbpp", "V-Half", "B/2", "1/2x"),
        _rate(_ZBPP, "zbpp", "V-Min", "2B/3", "1/3x"),
        _rate(_PRIMUS, "primus", "1f1b", "(p-1)/(m+p-1)", "p", equal=False),
        _rate(_PRIMUS, "primus", "1f1b-interleaved", "(p-1)/(m N + p-1)", "p + (p-1)/p", equal=False),
        _rate(_PRIMUS, "primus", "ZB1P", "(p-1)/(3(m+p-1))", "p"),
        _rate(_PRIMUS, "primus", "ZBV-formatted", "(p-1)/(p-1+6m)", "p"),
        _rate(_PRIMUS, "primus", "V-half", "", "p/2 + x"),
        _rate(_PRIMUS, "primus", "V-min", "", "p/3 + x"),
        _rate(_VOCABULARY, "vocabpar", "1F1B", "B", "p", equal=False),
        _rate(_VOCABULARY, "vocabpar", "Vocab-1", "B", "p+2", equal=False),
        _rate(_VOCABULARY, "vocabpar", "Vocab-2", "B", "p+1", equal=False),
        _rate(_VOCABULARY, "vocabpar", "Interlaced", "B", "1.5p", equal=False),
    )
}
"""All formulas by key. With a number of micro-batches "x" that a source leaves open, a peak is not a number."""
