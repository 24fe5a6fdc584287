"""Self-checks: silent until answered, so an unanswered chapter runs; a wrong answer hears its likely slip."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SLIPS: tuple[tuple[float, str, str], ...] = (
    (1.024**3, "byte", "GB (1e9 bytes) is not GiB (2**30 bytes): they differ by 7.4 %"),
    (1.024**2, "byte", "MB (1e6 bytes) is not MiB (2**20 bytes): they differ by 4.9 %"),
    (1e9, "", "a factor of 1e9: check the prefix"),
    (1e6, "", "a factor of 1e6: check the prefix"),
    (1e3, "", "a factor of 1000: check the prefix"),
    (1024.0**3, "byte", "a factor of 2**30: bytes or GiB?"),
    (100.0, "", "a factor of 100: a fraction or per cent?"),
    (8.0, "byte", "a factor of 8: bits or bytes, or the devices of a node?"),
    (4.0, "byte", "a factor of 4: check bytes a number, and forward against forward with backward"),
    (2.0, "byte", "a factor of 2: check bytes a number, one way or both ways"),
    (8.0, "", "a factor of 8: count again what comes in eights"),
    (4.0, "", "a factor of 4: is something counted four times, or left out?"),
    (
        3.0,
        "",
        "a factor of 3: is something counted three times, or left out (a backward beside its forward)?",
    ),
    (2.0, "", "a factor of 2: is something counted twice, or half of it left out?"),
)
"""By which factor an answer is off, for which units ("": for any), and why it may be."""
BYTES = re.compile(r"(bytes?|[kKMGT]i?B)(/s)?( .*)?")
UNITS = {"%": ("per cent", "percent"), "B": ("billion",)}
"""Other words for units, where a reader writes one behind a number."""


@dataclass(frozen=True)
class Feedback:
    """Verdict on one answer; ``ok`` is None while there is no answer."""

    ok: bool | None
    message: str

    def __bool__(self) -> bool:
        return bool(self.ok)

    def __repr__(self) -> str:
        return f"{_MARKS[self.ok][0]} {self.message}"

    def _repr_html_(self) -> str:
        mark, colour = _MARKS[self.ok]
        return f"<p><b style='color:{colour}'>{mark}</b> {html.escape(self.message)}</p>"


_MARKS = {None: ("…", "#828a93"), True: ("✓", "#1b8573"), False: ("✗", "#c8372d")}


def number(
    answer: Any,
    want: float,
    *,
    rel: float = 0.01,
    unit: str = "",
    hint: str = "",
    slips: Mapping[str, float] | None = None,
    digits: int | None = None,
) -> Feedback:
    """Check a number, and name the slip behind a wrong one where it is known or a common factor.

    Parameters
    ----------
    answer : float, str or None
        None: not answered yet. A text may have commas between thousands, be a fraction, and have the unit
        behind the number.
    want : float
        The right value, computed at the exercise's own numbers, never at a slider's.
    rel : float
        Relative tolerance; keep it under 2 %, or GB passes for GiB.
    unit, hint : str
        Unit of the answer; a nudge for a wrong or missing answer.
    slips : mapping of str to float, optional
        Wrong answers that this exercise invites, by what went wrong in each.
    digits : int, optional
        Significant digits to which a rounded answer is right too.
    """
    if answer is None:
        return Feedback(
            None, f"Set `answer`{f' [{unit}]' if unit else ''} and run the cell again. {hint}".strip()
        )
    try:
        value = _read(answer, unit)
    except (TypeError, ValueError):
        instead = f": write it in {unit}, such as 12.3 or '12.3 {unit}'" if unit else ""
        return Feedback(False, f"{_shown(answer)} is not a number{instead}.")
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        return Feedback(False, f"{value} is not a finite number.")
    said = f"{value:,.6g} {unit}".strip()
    rounded = digits is not None and value == float(f"{want:.{digits}g}")
    if rounded or math.isclose(value, want, rel_tol=rel):
        return Feedback(True, f"{said}: right.")
    return Feedback(
        False, f"{said} {_slip(value, want, rel, unit, slips or {}) or f'is not it. {hint}'}".strip()
    )


def _read(answer: Any, unit: str) -> float:
    """Read a number, or a text that is one or a fraction, with commas between thousands and its unit behind it."""
    if not isinstance(answer, str):
        return float(answer)
    found = re.fullmatch(rf"({_NUMBER})(?:\s*/\s*({_NUMBER}))?\s*([^\d\s/].*)?", answer.strip())
    if not found:
        return float(answer)
    above, below, said = found.groups()
    if said and not _is_unit(said, unit):
        raise ValueError(f"{said} is not {unit}")
    if below is None:
        return _plain_number(above)
    if not (divisor := _plain_number(below)):
        raise ValueError("nothing is over 0")
    ratio = _plain_number(above) / divisor
    return 100 * ratio if unit == "%" and not said and abs(ratio) <= 1 else ratio  # 7/15 is a share


_NUMBER = r"[-+]?[\d.,_]+(?:[eE][-+]?\d+)?"


def _plain_number(digits: str) -> float:
    return float(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", digits))


def _is_unit(said: str, unit: str) -> bool:
    """Whether a text is the unit, another word for it, or its first word, in the singular or the plural."""
    said, known = said.casefold(), [word.casefold() for word in (unit, *UNITS.get(unit, ()))]
    first = re.escape(said.removesuffix("s"))
    return said in known or (len(said) > 3 and re.fullmatch(rf"{first}(e?s)?( .*)?", known[0]) is not None)


def _shown(answer: Any) -> str:
    """Write an answer back to its reader, on one short line whatever it is."""
    try:
        text = repr(answer)
    except ValueError:  # an integer of thousands of digits
        return f"this {type(answer).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _slip(value: float, want: float, rel: float, unit: str, slips: Mapping[str, float]) -> str:
    """Say which slip a wrong number looks like; nothing when it looks like none.

    An exercise's own slips may be rounded to two figures, as a question prints them: the nearest within 2 % is meant.
    """
    for why, wrong in sorted(slips.items(), key=lambda slip: abs(value - slip[1])):
        if math.isclose(value, wrong, rel_tol=max(rel, 0.02)):
            return f"is not it: {_ended(why)}"
    if math.isclose(-value, want, rel_tol=rel):
        return "has the wrong sign."
    of_bytes = BYTES.fullmatch(unit) is not None
    for factor, where, why in SLIPS:
        if where == "byte" and not of_bytes:
            continue
        if any(math.isclose(value, want * f, rel_tol=min(rel, 0.01)) for f in (factor, 1 / factor)):
            return f"is off by a common slip: {_ended(why)}"
    return ""


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".", "!")) else f"{sentence}."


def choice(answer: Any, want: str, why: dict[str, str]) -> Feedback:
    """Check one of several options; ``why`` says for each option why it is right or wrong.

    Case, and whether words stand apart by a blank, a dash or an underscore, make no difference.
    """
    options = ", ".join(repr(option) for option in why)
    if answer is None:
        return Feedback(None, f"Set `answer` to one of {options} and run the cell again.")
    said = _plain(answer) if isinstance(answer, str) else None
    meant = next((option for option in why if _plain(option) == said), None)
    if meant is None:
        return Feedback(False, f"{_shown(answer)} is not one of {options}.")
    return Feedback(meant == want, why[meant])


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text).strip().casefold()


def design(
    answer: Any, demands: Sequence[tuple[str, Callable[[Any], bool | str]]], hint: str = ""
) -> Feedback:
    """Check a design: the first demand it misses is said, with its own words.

    Parameters
    ----------
    answer : object or None
        The reader's design (a layout, a schedule).
    demands : sequence of (str, callable)
        What is demanded, and a function of the answer that gives True, False, or a sentence that says how the
        answer falls short. A :class:`ValueError` of the function is said to the reader as it stands.
    hint : str
        How to begin.
    """
    if answer is None:
        return Feedback(None, f"Set `answer` and run the cell again. {hint}".strip())
    for demand, holds in demands:
        try:
            verdict = holds(answer)
        except ValueError as error:
            return Feedback(False, f"{demand}: {error}")
        if verdict is not True:
            return Feedback(False, f"{demand}: {verdict or 'not met'}.")
    return Feedback(True, f"All {len(demands)} demands are met.")
