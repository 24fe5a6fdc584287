"""Tasks of chapter 2 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from telekit.accuracy.measures.operator_errors import MINIMUM_ERROR
from telekit.accuracy.measures.pairs import format_of
from telekit.accuracy.numerics.emulate import reduce_terms
from telekit.accuracy.numerics.operator_sweeps import rounding_against
from telekit.accuracy.standards.operator_rules import ratio
from telekit.exercises.check import Feedback, choice, design, number
from telekit.exercises.operator_faults import PLANTS, Pair, planted

DTYPE = "bfloat16"
SEEDS = range(100, 120)
"""Seeds on which a reader's rule is tried."""
SIZES = {"all too large": 0.005, "one row too large": 0.05, "one value too large": 0.05}
FIELDS = ("rtol", "atol", "share", "relative_norm")


def share_within(answer: float | None) -> Feedback:
    """Share of perfect bf16 results, values uniform in [1, 2), within a relative error of 1e-3, in per cent."""
    half = format_of(DTYPE).epsilon / 2
    return number(
        answer,
        100 * rounding_against(DTYPE, elements=1 << 20).share_below,
        unit="%",
        digits=2,
        hint="The error of one rounding is uniform from 0 to half a step of 2**-7; a relative 1e-3 is 1e-3 x.",
        slips={
            "that is at x = 1; at x = 2 the same error is half as large, relatively": 100 * 1e-3 / half,
            "that is at x = 2, the best place": 100 * 2e-3 / half,
            "a rounding is off by half a step at most, not by a whole one": 100 * 1.5e-3 / half / 2,
            "that is the share outside": 100 - 100 * 1.5e-3 / half,
            "that is a fraction; the answer is in per cent": 1.5e-3 / half,
        },
    )


def tightest(answer: float | None) -> Feedback:
    """Smallest rtol, atol 0, that a correctly rounded fp16 result always meets."""
    own, other = rounding_against("float16"), rounding_against(DTYPE)
    return number(
        answer,
        own.largest,
        hint="To the nearest: half a step, 2**-11 of values from 1 to 2. Where is it largest, relatively?",
        slips={
            "that is a whole step; rounding to the nearest is off by half of one": own.epsilon,
            "that is bf16's": other.largest,
            "that is torch's, which leaves room for one more rounding": 1e-3,
        },
    )


def sum_of_ones(answer: float | None) -> Feedback:
    """Sum of 4,096 ones, one after another, in bf16."""
    ones = np.ones(4096)
    return number(
        answer,
        float(reduce_terms(ones, dtype=DTYPE)),
        rel=0.0,
        hint="From where on is a step of bf16 larger than 1, so that a 1 that is added is rounded away?",
        slips={
            "there a step is still 1, and 1 more is a value of bf16": 128,
            "so it is in fp32, and as a tree: the order and the format decide": float(
                reduce_terms(ones, order="tree", dtype=DTYPE)
            ),
            "that is in fp16, which has three more bits": float(reduce_terms(ones, dtype="float16")),
        },
    )


NPU, GPU = 0.004, 0.0001
"""Largest relative errors in the task on the double benchmark."""


def double_ratio(answer: float | None) -> Feedback:
    """Ratio that the double benchmark judges: 0.004 on the NPU, 0.0001 on the GPU, in fp16."""
    return number(
        answer,
        ratio(NPU, GPU, MINIMUM_ERROR["float16"]),
        hint="The GPU's error counts as at least 2**-11 in fp16.",
        slips={
            "an error of the GPU below 2**-11 counts as 2**-11": NPU / GPU,
            "that floor is bf16's": ratio(NPU, GPU, MINIMUM_ERROR[DTYPE]),
            "that floor is fp32's": ratio(NPU, GPU, MINIMUM_ERROR["float32"]),
            "that floor is fp16's epsilon; it is half of it": NPU / 2**-10,
        },
    )


# --- naming faults ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suspect:
    """A fault of which a reader sees the figures."""

    plant: str
    size: float
    seed: int
    kind: str
    because: str

    @property
    def pair(self) -> Pair:
        """The pair itself, in fp16."""
        return planted(self.plant, "float16", self.size, self.seed)


SUSPECTS = {
    "A": Suspect(
        "rows out of order", 0.0, 7, "permutation", "norms are equal and nothing is where it belongs"
    ),
    "B": Suspect(
        "healthy, golden near 0",
        0.0,
        8,
        "near zero",
        "only the relative error is large, and MaxAbsErr is that of a rounding",
    ),
    "C": Suspect(
        "all too large",
        0.25,
        9,
        "scale",
        "the direction is right, and every value is off by as much as the norm",
    ),
    "D": Suspect("terms left out", 0.0, 10, "missing term", "all values are off, and not by one factor"),
    "E": Suspect(
        "one row too large", 1.0, 11, "one row", "63 of 64 values are right, and the rest are far off"
    ),
}
KINDS = ("scale", "one row", "permutation", "missing term", "near zero")


def name_faults(answer: Mapping[str, str] | None) -> Feedback:
    """Name what is wrong in each of five pairs from their figures."""
    if answer is None:
        first = ", ".join(f'"{name}": ...' for name in SUSPECTS)
        return Feedback(None, f"Set `answer` to {{{first}}}, each one of {', '.join(map(repr, KINDS))}.")
    if not isinstance(answer, Mapping) or set(answer) != set(SUSPECTS):
        return Feedback(False, f"Give one word for each of {', '.join(SUSPECTS)}.")
    for name, suspect in SUSPECTS.items():
        why = {kind: f"{name} is not {kind!r}: {suspect.because}." for kind in KINDS}
        said = choice(answer[name], suspect.kind, why | {suspect.kind: "right"})
        if not said.ok:
            return said
    return Feedback(True, "All five are named. B is no fault at all.")


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A reader's rule: enough elements inside ``atol * rms + rtol * |golden|``, and the error's norm small enough."""

    rtol: float
    atol: float
    share: float
    relative_norm: float

    def passes(self, errors: Errors) -> bool:
        """Whether a pair passes; NaN never does."""
        inside = errors.size <= self.atol * errors.rms + self.rtol * errors.golden
        return bool(inside.mean() >= self.share and errors.relative_norm <= self.relative_norm)


@dataclass(frozen=True)
class Errors:
    """What a rule looks at: size of each error and of each golden value, root mean square of golden."""

    size: np.ndarray[Any, np.dtype[np.float64]]
    golden: np.ndarray[Any, np.dtype[np.float64]]
    rms: float
    relative_norm: float


@cache
def trials() -> dict[str, tuple[Errors, ...]]:
    """Errors of every plant at every seed."""
    return {
        it.name: tuple(_errors(planted(it.name, DTYPE, SIZES.get(it.name, 0.0), seed)) for seed in SEEDS)
        for it in PLANTS
    }


def _errors(pair: Pair) -> Errors:
    error, golden = np.abs(pair.target.astype(np.float64) - pair.golden), np.abs(pair.golden)
    norm = float(np.linalg.norm(golden))
    return Errors(error, golden, norm / np.sqrt(golden.size), float(np.linalg.norm(error)) / norm)


def _wrong(rule: Rule, healthy: bool) -> bool | str:
    """Say the plant on which the rule is wrong most often; True where it never is."""
    wrong = {
        it.name: sum(rule.passes(e) != healthy for e in trials()[it.name])
        for it in PLANTS
        if it.healthy == healthy
    }
    name = max(wrong, key=lambda n: wrong[n])
    size = f" by {100 * SIZES[name]:g} %" if name in SIZES else ""
    said = "fails" if healthy else "passes"
    return not wrong[name] or f"{name!r}{size} {said} at {wrong[name]} of {len(SEEDS)} seeds"


DEMANDS: tuple[tuple[str, Callable[[Rule], bool | str]], ...] = (
    ("Nothing healthy may fail", lambda rule: _wrong(rule, healthy=True)),
    ("No fault may pass", lambda rule: _wrong(rule, healthy=False)),
)


def rule(answer: Mapping[str, float] | None) -> Feedback:
    """Check a reader's rule on all plants at seeds that the reader does not see."""
    if answer is None:
        return design(None, (), f"Give numbers for {', '.join(FIELDS)}.")
    if not isinstance(answer, Mapping) or set(answer) != set(FIELDS):
        return Feedback(False, f"Give a dict with {', '.join(FIELDS)}, and nothing else.")
    try:
        values = {name: float(answer[name]) for name in FIELDS}
    except (TypeError, ValueError):
        return Feedback(False, "Each of them is a number.")
    if not all(v >= 0 for v in values.values()) or values["share"] > 1:
        return Feedback(False, "Numbers are 0 or more; share is 1 at most.")
    return design(Rule(**values), DEMANDS)
