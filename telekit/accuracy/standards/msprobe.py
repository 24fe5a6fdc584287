"""msprobe's verdicts on the rows of an API: pass, warning or error by its inputs and outputs; and its older rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from telekit.accuracy.measures.metrics import EMPTY, POSITIONS_DIFFER, SHAPES_DIFFER, Metrics, compare_arrays
from telekit.accuracy.measures.summaries import NAMES, SummaryErrors, compare_summaries
from telekit.accuracy.standards.verdict import ERROR, PASS, WARNING, Part, Verdict, check, conclude, skipped
from telekit.errors import InputError, Problem

INPUT, PARAMETER, OUTPUT = "input", "parameter", "output"
# The document and the message say an output's 1 per mille share must fall below 0.6; the code at 8ff00da3 has 0.1.
OUTPUT_SHARE = {"msprobe-documented": 0.6, "msprobe-coded": 0.1}
SOURCES = {
    "msprobe-documented": "Ascend/msprobe 8ff00da3, docs/zh/accuracy_compare: 1 per mille share of outputs < 0.6",
    "msprobe-coded": "Ascend/msprobe 8ff00da3, python/msprobe/core/compare: the constant is 0.1 since a2b83d1c",
    "msprobe-old": "Ascend/mstt 99c2e0f9: Accuracy Reached or Not",
}
INPUT_RULES_SKIPPED = frozenset(
    {"_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"}
)
ALL_RULES_SKIPPED = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "empty_with_format"),
        *("new_empty", "new_empty_strided", "numpy", "setitem", "__setitem__", "to"),
    }
)
_COLOURS = ((0.3, PASS, "#FFFCF3"), (0.6, WARNING, "#FFDC7F"), (1.0, ERROR, "#FF704D"))
UNMATCHED_COLOUR = "#C7C7C7"


@dataclass(frozen=True)
class Row:
    """One tensor (or scalar) of an API, compared.

    Attributes
    ----------
    role : str
        ``input``, ``parameter`` or ``output``.
    metrics : Metrics, optional
        Of tensor mode.
    summary : SummaryErrors, optional
        Of statistics mode.
    checksums : (str, str), optional
        Of md5 mode: target's and golden's; an empty one has no partner.
    requires_grad, scalars : (object, object), optional
        Target's and golden's.
    name : str
        What to call it.
    """

    role: str
    metrics: Metrics | None = None
    summary: SummaryErrors | None = None
    checksums: tuple[str, str] | None = None
    requires_grad: tuple[object, object] | None = None
    scalars: tuple[object, object] | None = None
    name: str = ""


_ONES = dict.fromkeys(NAMES, 1.0)
EQUAL_INPUT = Row(INPUT, compare_arrays([1.0, 2.0], [1.0, 2.0]), compare_summaries(_ONES, _ONES))
"""An input that is the same on both sides: what stands in for inputs that are not at hand."""


def judge_rows(
    rows: Sequence[Row], standard: str = "msprobe-documented", api: str = ""
) -> tuple[Verdict, ...]:
    """Judge every row of one API by msprobe's ``Result``; the API's is the `worst` of them.

    Parameters
    ----------
    rows : sequence of Row
        Inputs, parameters and outputs: the rules for outputs look at the inputs.
    standard : str
        ``msprobe-documented`` (share < 0.6) or ``msprobe-coded`` (< 0.1).
    api : str
        The API's short name (``empty_like``); some are exempt from rules.

    Raises
    ------
    InputError
        If the standard or a role is not known.
    """
    problems = [
        Problem(f"rows[{i}].role", r.role, "must be input, parameter or output", OUTPUT)
        for i, r in enumerate(rows)
        if r.role not in (INPUT, PARAMETER, OUTPUT)
    ]
    if standard not in OUTPUT_SHARE:
        problems.append(Problem("standard", standard, f"must be one of {', '.join(OUTPUT_SHARE)}"))
    if problems:
        raise InputError(problems)
    source = SOURCES[standard]
    if api in ALL_RULES_SKIPPED:
        exempt = skipped("exempt", "", f"{api} makes or moves memory: msprobe does not judge it")
        return tuple(conclude([exempt], standard, source) for _ in rows)
    inputs = [r for r in rows if r.role != OUTPUT]
    by_input = bool(inputs) and api not in INPUT_RULES_SKIPPED
    verdicts = []
    for row in rows:
        parts = _own(row)
        if row.role == OUTPUT:
            parts += _against_inputs(row, inputs if by_input else [], OUTPUT_SHARE[standard])
        verdicts.append(conclude(parts, standard, source, row.metrics.messages if row.metrics else ()))
    return tuple(verdicts)


def judge_output(metrics: Metrics, standard: str = "msprobe-documented") -> Verdict:
    """Judge an output whose inputs are equal on both sides, by `judge_rows`."""
    return judge_rows([EQUAL_INPUT, Row(OUTPUT, metrics)], standard)[1]


def _own(row: Row) -> list[Part]:
    """Rules that look at one row alone."""
    parts = []
    if row.metrics is not None:
        parts += _tensor(row.metrics)
    if row.summary is not None:
        t, g = (
            {k: v for k, v in s.items() if v is not None} for s in (row.summary.target, row.summary.golden)
        )
        new = [k for k in ("Max", "Min") if k in t and not isfinite(t[k]) and isfinite(g.get(k, 0.0))]
        parts.append(check("new NaN or Inf", ", ".join(new), not new, "none in target that golden has not"))
    if row.checksums is not None:
        mine, other = row.checksums
        if mine and other:
            parts.append(check("checksum", mine, mine == other, f"= {other}"))
        else:
            note = "no partner on the other side"
            parts.append(check("checksum", mine or other, False, "has a partner", level=WARNING, note=note))
    for name, pair in (("requires_grad", row.requires_grad), ("scalar", row.scalars)):
        if pair is not None:
            both_nan = pair[0] != pair[0] and pair[1] != pair[1]
            parts.append(check(name, pair[0], both_nan or pair[0] == pair[1], f"= {pair[1]}"))
    return parts


def _tensor(m: Metrics) -> list[Part]:
    parts = [
        check("shape", m.target_shape, m.status != SHAPES_DIFFER, f"= {m.golden_shape}"),
        check(
            "dtype",
            m.target_dtype,
            m.dtypes != "different",
            f"= {m.golden_dtype} or both of fp16, bf16, fp32",
        ),
    ]
    if m.target is not None and m.golden is not None:
        found = m.target.nan + m.target.infinite
        rule = "none in target unless golden has some"
        parts.append(check("new NaN or Inf", found, not found or not m.golden.finite, rule))
    if m.status == POSITIONS_DIFFER:
        note = "telekit's own rule: msprobe leaves such a row without figures"
        parts.append(
            check("positions", None, False, "NaN and Inf at the same places", level=WARNING, note=note)
        )
    return parts


def _against_inputs(row: Row, inputs: Sequence[Row], limit: float) -> list[Part]:
    """Rules that blame an output by how good the inputs were."""
    parts = []
    if row.metrics is not None and row.metrics.status != EMPTY:
        parts.append(_share_rule(row.metrics, inputs, limit))
        parts.append(_cosine_rule(row.metrics, inputs))
    if row.summary is not None:
        parts += _norm_rules(row.summary, inputs)
    return parts


def _or_equal(value: float | None, equal: float) -> float:
    """Take an input without the figure (a scalar, None, empty, 0-d) as equal: msprobe's default."""
    return equal if value is None else value


def _share_rule(output: Metrics, inputs: Sequence[Row], limit: float) -> Part:
    name, rule = "1 per mille share", f"not below {limit} while inputs are above 0.9"
    known = [_or_equal(r.metrics.one_thousandth_ratio if r.metrics else None, 1.0) for r in inputs]
    share = output.one_thousandth_ratio
    if share is None or not known:
        return skipped(
            name, rule, "no inputs to compare with" if not known else "not defined for this output"
        )
    return check(
        name, share, not (min(known) > 0.9 and share < limit), rule, note=f"worst input {min(known):.6g}"
    )


def _cosine_rule(output: Metrics, inputs: Sequence[Row]) -> Part:
    name, rule = "cosine drop", "at most 0.1 while inputs are above 0.9"
    known = [_or_equal(r.metrics.cosine if r.metrics else None, 1.0) for r in inputs]
    if output.cosine is None or not known:
        return skipped(name, rule, "no inputs to compare with" if not known else "no cosine for this output")
    drop = min(known) - output.cosine
    return check(name, drop, not (min(known) > 0.9 and drop > 0.1), rule, level=WARNING)


def _norm_rules(output: SummaryErrors, inputs: Sequence[Row]) -> list[Part]:
    rules = (
        ("norm error", "at most 0.5 while inputs are below 0.1"),
        ("norm error growth", "at most 10 times the inputs' (0.1 when theirs is 0)"),
    )
    known = [_or_equal(r.summary.relative["Norm"] if r.summary else None, 0.0) for r in inputs]
    before = max(known, default=None)
    value = output.relative["Norm"]
    if value is None or before is None:
        note = "no inputs to compare with" if before is None else "golden's norm is zero or not known"
        return [skipped(name, rule, note) for name, rule in rules]
    grows = value > 10 * before if before else value > 0.1
    return [
        check(rules[0][0], value, not (before < 0.1 and value > 0.5), rules[0][1]),
        check(rules[1][0], value, not grows, rules[1][1], level=WARNING, note=f"inputs' {before:.6g}"),
    ]


def accuracy_reached(m: Metrics) -> list[Part]:
    """Parts of the older ``Accuracy Reached or Not``: No if one of them fails."""
    if m.status == SHAPES_DIFFER:
        return [check("shape", m.target_shape, False, f"= {m.golden_shape}", note="Unmatched")]
    if m.status != "compared":
        note = m.messages[0] if m.messages else ""
        return (
            [Part("positions", None, "NaN and Inf at the same places", ERROR, note)]
            if (m.status == POSITIONS_DIFFER)
            else [skipped("positions", "", note)]
        )
    error, cosine = m.max_abs_error or 0.0, m.cosine
    parts = [check("MaxAbsErr", error, error <= 1, "<= 1", note=f"at {m.max_abs_place}")]
    if cosine is None:
        return [*parts, skipped("Cosine", ">= 0.9", "not defined")]
    both = not (cosine < 0.99 and error > 0.001)
    return [
        check("Cosine", cosine, cosine >= 0.9, ">= 0.9"),
        *parts,
        check("Cosine and MaxAbsErr", cosine, both, "not (Cosine < 0.99 and MaxAbsErr > 0.001)"),
    ]


def summary_reached(s: SummaryErrors) -> list[Part]:
    """Parts of the older rule on statistics: a warning where ``|diff| / (max(|t|, |g|) + 1e-10) > 0.5``."""
    parts = []
    for name in NAMES:
        t, g, change = s.target[name], s.golden[name], s.difference[name]
        rule = "<= 0.5"
        if t is None or g is None or change is None:
            parts.append(skipped(name, rule, "not known, or not finite"))
            continue
        value = abs(change) / (max(abs(t), abs(g)) + 1e-10)
        parts.append(check(name, value, value <= 0.5, rule, level=WARNING))
    return parts


def first_diff(s: SummaryErrors) -> list[Part]:
    """Parts of ``-da``: an API differs when one of the four relative errors is above 0.5."""
    return [
        check(name, v, v <= 0.5, "<= 0.5") if v is not None else skipped(name, "<= 0.5", "not defined")
        for name, v in s.relative.items()
    ]


def highlight(output: Metrics, inputs: Sequence[Metrics] = ()) -> str:
    """Return the older highlight of an output row: ``red``, ``yellow`` or nothing.

    Only what tensor mode knows: requires_grad is `judge_rows`'s matter.
    """
    shares = [m.one_thousandth_ratio for m in inputs if m.one_thousandth_ratio is not None]
    cosines = [m.cosine for m in inputs if m.cosine is not None]
    largest = max((m.max_abs_error for m in inputs if m.max_abs_error is not None), default=None)
    relative = max((m.max_relative_error for m in inputs if m.max_relative_error is not None), default=None)
    share, cosine = output.one_thousandth_ratio, output.cosine
    error, own = output.max_abs_error, output.max_relative_error
    special = output.target is not None and not output.target.finite
    before = min(shares, default=None)
    if special or (error is not None and error > 1e10) or (own is not None and own > 0.5):
        return "red"
    if before is not None and share is not None and before > 0.9 and share < 0.6:
        return "red"
    yellow = (
        largest is not None and error is not None and min(largest, error) > 1 and error >= 10 * largest,
        before is not None and share is not None and before - share > 0.1,
        relative is not None and own is not None and relative < 0.01 and own > 0.1,
        bool(cosines) and cosine is not None and min(cosines) - cosine > 0.1,
    )
    return "yellow" if any(yellow) else ""


def node_colour(score: float | None) -> tuple[str, str]:
    """Return the level and colour of a node of msprobe's graph; no score means unmatched.

    Raises
    ------
    InputError
        If the score is outside 0 to 1.
    """
    if score is None:
        return "unmatched", UNMATCHED_COLOUR
    if not 0 <= score <= 1:
        raise InputError([Problem("score", score, "must be from 0 to 1, or None", "0.3")])
    return next(((level, colour) for top, level, colour in _COLOURS if score < top), _COLOURS[-1][1:])
