"""Verdicts on compared rows: an operator's by msprobe's rules over its inputs, a lone tensor's by the standard."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from telekit.accuracy.checks.determinism import same_set
from telekit.accuracy.compared import INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Compared
from telekit.accuracy.comparing.names import read_call
from telekit.accuracy.measures.metrics import COMPARED, Metrics, compare_arrays
from telekit.accuracy.measures.pairs import ACCEPTED_TOGETHER
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards import beside, msprobe
from telekit.accuracy.standards.judge import judge
from telekit.accuracy.standards.profiles import Standard
from telekit.accuracy.standards.verdict import (
    ERROR,
    PASS,
    SKIP,
    WARNING,
    Part,
    Verdict,
    check,
    conclude,
    skipped,
    worst,
)
from telekit.errors import InputError

_NOT_ZERO = Part(
    "zero", None, "zero as golden is while the inputs agree", ERROR, "golden is all zeros, target is not"
)
TOP_K = "topk"
# a true dropout and its variants; not a fused operator that has one inside
_DROPOUT = re.compile(
    r"_*(npu_|native_|alpha_|feature_)*dropout([123]d|_do_mask|_with_byte_mask|_gen_mask)?_*"
)
# msprobe counts as an output what has .output. in its name: gradients of parameters stand with the inputs
_ROLES = {INPUT: msprobe.INPUT, PARAMETERS: msprobe.PARAMETER, PARAMETERS_GRAD: msprobe.PARAMETER}
UNREAD = "cannot be read"
_REFUSED = "standard"
AGREES = 0.1
"""Norm error up to which an operator's input counts as equal: msprobe's limit for its rules on norms."""


def operator_of(api: str) -> str:
    """Return the short name that standards know an operator by (``matmul`` of ``Torch.matmul.3.forward``)."""
    words = read_call(api).base.split(".")
    return words[1] if len(words) > 1 else words[0]


def judge_compared(
    rows: Sequence[Compared], chosen: Standard, done: dict[int, Verdict]
) -> tuple[Verdict, ...]:
    """Judge rows; those of one operator together where the standard is msprobe's.

    Parameters
    ----------
    rows : sequence of Compared
        All of a comparison.
    chosen : Standard
        From `standards.standard`.
    done : dict of int to Verdict
        By place of the row: what was judged while its elements were at hand.
    """
    verdicts = dict(done)
    if chosen.name in msprobe.OUTPUT_SHARE:
        groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            groups[(row.step, row.rank, row.api) if row.api else (i,)].append(i)
        for places in groups.values():
            judged = _operator([rows[i] for i in places], chosen)
            verdicts |= {i: v for i, v in zip(places, judged, strict=True) if i not in done}
    found = (verdicts[i] if i in verdicts else _alone(row, chosen) for i, row in enumerate(rows))
    return tuple(_with(v, row.doubts) if row.doubts else v for v, row in zip(found, rows, strict=True))


def _operator(rows: Sequence[Compared], chosen: Standard) -> list[Verdict]:
    api = rows[0].api
    if not api:
        return [_plain(rows[0], chosen)]
    known = [_row(r) for r in rows]
    if all(r.role == msprobe.OUTPUT for r in known):  # msprobe takes inputs that were not dumped as equal
        known.append(msprobe.EQUAL_INPUT)
    judged = msprobe.judge_rows(known, chosen.name, operator_of(api))[: len(rows)]
    exempt = operator_of(api) in msprobe.ALL_RULES_SKIPPED
    if exempt:
        return list(judged)
    clean = all(_agrees(r) for r in rows if r.part in _ROLES)
    return [_with(v, [*_beside(r), *_own(r, clean)]) for r, v in zip(rows, judged, strict=True)]


def _agrees(row: Compared) -> bool:
    """Whether an input is the same on both sides as far as was dumped, to a few per cent of its norm."""
    if row.metrics is not None:
        error = row.metrics.relative_norm_error
        return row.metrics.identical or (error is not None and error < AGREES)
    if row.summary is not None:
        return not (_from_zero(row) or _norm_error(row) >= AGREES or beside.mirrored(row.summary))
    return row.identical is not False


def _own(row: Compared, clean: bool) -> list[Part]:
    """Return telekit's own rules on one row of an operator whose inputs are ``clean``."""
    m, s = row.metrics, row.summary
    parts = [] if m is None else beside.infinities(m)
    if row.part in _ROLES:
        return parts
    if m is not None:
        return parts + (beside.single_number(m, sure=False) + beside.direction(m) if clean else [])
    if clean and _from_zero(row):
        parts.append(_NOT_ZERO)
    return parts + ([] if s is None else beside.of_statistics(s, clean=clean))


def _from_zero(row: Compared) -> bool:
    """Whether statistics say that golden is all zeros and target is not: no relative error is defined then."""
    s = row.summary
    return row.metrics is None and s is not None and s.golden["Norm"] == 0 and bool(s.target["Norm"])


def _norm_error(row: Compared) -> float:
    return 0.0 if row.summary is None else row.summary.relative["Norm"] or 0.0


def _row(row: Compared) -> msprobe.Row:
    t, g = row.target, row.golden
    sums = None
    if row.metrics is None and not row.scalars:
        sums = ((t.md5 if t else None) or "", (g.md5 if g else None) or "")
    grads = (t.requires_grad, g.requires_grad) if t and g else (None, None)
    values = row.scalars if t and g and t.kind == g.kind == "scalar" else None
    return msprobe.Row(
        _ROLES.get(row.part, msprobe.OUTPUT), row.metrics,
        None if row.metrics or (sums and all(sums)) else row.summary,  # two checksums see more than statistics do
        sums if sums and any(sums) else None, None if None in grads else grads, values, row.name,
    )  # fmt: skip


def _beside(row: Compared) -> list[Part]:
    """Return what is said beside the figures: no partner; shape and type where no elements were compared."""
    t, g = row.target, row.golden
    if t is None or g is None:
        side = "golden" if g is None else "target"
        return [
            check("partner", None, False, "on both sides", level=WARNING, note=f"{side} has no such tensor")
        ]
    if row.metrics is not None:
        return []
    parts = _not_compared(row, t, g)
    if t.is_nan is not None and g.is_nan is not None:
        level = ERROR if t.is_nan else WARNING
        parts.append(check("is_nan", t.is_nan, t.is_nan == g.is_nan, f"= {g.is_nan}", level=level))
    if t.kind == g.kind == "tensor":
        parts.append(check("shape", t.shape, t.shape == g.shape, f"= {g.shape}"))
        same = t.dtype == g.dtype or {t.dtype, g.dtype} <= ACCEPTED_TOGETHER
        counts = all(
            x.dtype.startswith(("int", "uint", "bool")) for x in (t, g)
        )  # frameworks differ in width
        level = WARNING if counts else ERROR
        parts.append(check("dtype", t.dtype, same, f"= {g.dtype} or both of fp16, bf16, fp32", level=level))
    elif t.kind != g.kind:
        parts.append(check("kind", t.kind, False, f"= {g.kind}", level=WARNING))
    return parts


def _not_compared(row: Compared, t: NamedTensor, g: NamedTensor) -> list[Part]:
    """Say why elements that were announced are not compared, or that nothing was dumped to compare."""
    reasons = [f"{side}: {x.unread}" for side, x in (("target", t), ("golden", g)) if x.unread]
    known = row.summary is not None or row.checksum_equal is not None or None not in (t.is_nan, g.is_nan)
    if reasons:
        level, rule = WARNING if known else ERROR, "elements of both sides"
        return [check(UNREAD, None, False, rule, level=level, note="; ".join(reasons))]
    tensors = t.kind == g.kind == "tensor" and 0 not in (t.shape or ())
    if known or not tensors or t.md5 or g.md5:
        return []
    note = "one side has neither elements nor statistics: only shape and type were compared"
    return [check("elements", None, False, "something to compare", level=WARNING, note=note)]


def _with(verdict: Verdict, parts: Sequence[Part]) -> Verdict:
    mixed = [
        f"types differ: {p.value}, golden {p.rule.split(' or ')[0].removeprefix('= ')}; fp16, bf16 and fp32 are "
        "taken together"
        for p in parts
        if p.name == "dtype" and p.result == PASS and p.rule.split(" or ")[0] != f"= {p.value}"
    ]
    return conclude([*verdict.parts, *parts], verdict.standard, verdict.source, (*verdict.messages, *mixed))


def _plain(row: Compared, chosen: Standard) -> Verdict:
    """Judge a tensor outside any graph: msprobe's newer rules say nothing without inputs, its older ones do."""
    parts = list(_beside(row))
    if row.target is None or row.golden is None:
        parts = [replace(p, result=ERROR) for p in parts]
    m, own = row.metrics, msprobe.judge_rows([_row(row)], chosen.name)[0]
    if m is not None:
        parts += [*msprobe.accuracy_reached(m), beside.scale_part(m), *_whole(m), *beside.of_pair(m)]
    elif row.summary is not None:
        parts += [*msprobe.summary_reached(row.summary), *beside.of_statistics(row.summary, clean=True)]
    for part in own.parts:
        if part.name not in {p.name for p in parts}:
            text = part.name == "scalar" and part.result == ERROR
            parts.append(replace(part, result=_scalar_level(row)) if text else part)
    said = "no inputs to judge by: msprobe's older rule and the ratio of the norms"
    return conclude(parts, chosen.name, chosen.source, (said, *own.messages))


def _scalar_level(row: Compared) -> str:
    """Return how bad a scalar of a checkpoint is that differs: a number is an error, a text (a path, a date) is not."""
    return WARNING if row.scalars and any(isinstance(v, str) for v in row.scalars) else ERROR


def _whole(m: Metrics) -> list[Part]:
    """Ask integers and bools to be equal, which msprobe's older rules do not."""
    whole = all(d.startswith(("int", "uint", "bool")) for d in (m.target_dtype, m.golden_dtype))
    if m.status != COMPARED or not whole:
        return []
    return [check("equal", m.max_abs_error, m.identical, "integers and bools are equal")]


def _alone(row: Compared, chosen: Standard) -> Verdict:
    """Judge a row of which no elements are at hand, or that has no partner."""
    parts = [p for p in _beside(row) if p.result != PASS]  # equal shapes alone are no pass
    if not row.api:
        parts = [replace(p, result=ERROR) if p.result == WARNING else p for p in parts]
    if row.scalars and row.target and row.golden and row.target.kind == row.golden.kind == "scalar":
        level = _scalar_level(row)
        parts.append(check("scalar", row.scalars[0], bool(row.identical), f"= {row.scalars[1]}", level=level))
    elif row.checksum_equal is not None:
        parts.append(check("checksum", row.checksum_equal, row.checksum_equal, "equal"))
    elif row.summary is not None and chosen.name == "msprobe-old":
        parts += msprobe.summary_reached(row.summary)
    elif row.matched:
        parts.append(skipped("elements", "", f"{chosen.name} judges elements, and the dump holds none"))
    return conclude(parts, chosen.name, chosen.source)


def judge_arrays(
    target: Any, golden: Any, metrics: Metrics, chosen: Standard, layer: int, layers: int
) -> Verdict:
    """Judge a pair while its elements are at hand, by a standard that looks at one pair.

    What a standard has no row for (a type) is a skipped part, not an error; `not_judged` says so of all of them.
    """
    try:
        if chosen.needs == "metrics":
            return judge(metrics, standard=chosen.name, layer=layer, layers=layers)
        return judge(target, golden, chosen.name, layer=layer, layers=layers)
    except InputError as error:
        reason = error.problems[0]
        part = skipped(_REFUSED, "", f"{reason.field} {reason.value}: {reason.rule}")
        return conclude([part], chosen.name, chosen.source)


def not_judged(rows: Sequence[Compared], verdicts: Sequence[Verdict]) -> list[str]:
    """Say in one note which rows the standard refused, so that no overall pass hides them; or that none was judged."""
    if rows and not judged_any(rows, verdicts):
        why = next(
            (p.note for v in verdicts for p in v.parts if p.result == SKIP and p.note), "no pair of tensors"
        )
        return [f"nothing was judged: {why}"]
    found = [
        (row.name, v.standard, p.note)
        for row, v in zip(rows, verdicts, strict=True)
        for p in v.parts
        if p.name == _REFUSED
    ]
    if not found:
        return []
    name, standard, why = found[0]
    return [f"{len(found)} of {len(rows)} rows not judged by {standard}, the first {name}: {why}"]


def special(row: Compared, target: Any, golden: Any, chosen: Standard) -> Verdict | None:
    """Judge outputs that no element-wise rule fits: random ones, and sets without an order. None for all others.

    Dropout keeps other elements on every device: the share of zeros counts, and what both sides kept. ``topk`` with
    ``sorted=False`` promises no order: values and places are compared as sets.
    """
    if row.part not in (OUTPUT, "") or row.metrics is None or row.metrics.identical:
        return None
    if target.shape != golden.shape:
        return None
    if is_dropout(row.api) and row.phase != "backward":
        return _dropout(row.metrics, target, golden)
    if row.api and operator_of(row.api) == TOP_K and target.ndim:
        if same_set(target, golden):
            note = "the same set in another order, which topk(sorted=False) leaves open"
            return conclude([Part("set", None, "equal sets", PASS, note)], chosen.name, chosen.source)
        if target.dtype.kind in "iu":
            return conclude(
                [Part("set", None, "equal sets", ERROR, "other places chosen")], chosen.name, chosen.source
            )
    return None


def is_dropout(api: str) -> bool:
    """Whether an operator (``Functional.dropout.0.forward``) or a module, by its class, is a dropout and no more."""
    words = read_call(api).base.split(".")
    name = words[-1] if words[0] in ("Module", "Cell") else operator_of(api)
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return bool(api) and bool(_DROPOUT.fullmatch(snake))


def _dropout(m: Metrics, target: Any, golden: Any) -> Verdict:
    """Judge by the share of zeros, as msprobe does; telekit's own: no new NaN, and what both kept is of one size."""
    verdict = judge(target, golden, "dropout")
    new = 0 if m.target is None or m.golden is None else m.target.nan + m.target.infinite
    finite = m.golden is not None and m.golden.finite
    parts = [
        check("new NaN or Inf", new, not new or not finite, "none in target that golden has not", own=True)
    ]
    kept = np.isfinite(wide := target.astype(np.float64)) & (wide != 0) & (golden != 0)
    if kept.any():
        both = compare_arrays(target[kept], golden[kept])
        ratio = both.norm_ratio
        near = ratio is not None and abs(ratio - 1) <= beside.SCALE
        rule = f"norm of what both sides kept within {beside.SCALE} of golden's"
        parts.append(check("scale of kept values", ratio, near, rule, own=True))
        alike = both.cosine is None or both.cosine >= 0.9
        parts.append(check("direction of kept values", both.cosine, alike, ">= 0.9", own=True))
    return _with(verdict, parts)


def result_of(rows: Sequence[Compared], verdicts: Sequence[Verdict], doubt: bool = False) -> str:
    """Return the worst verdict; error where nothing was compared, no pass where nothing was judged or in ``doubt``.

    Doubt is that tensors were lost in reading, or that the sides part where no rule looks.
    """
    if not any(row.matched for row in rows):
        return ERROR
    found = worst([*(v.result for v in verdicts), *([WARNING] if doubt else [])])
    return SKIP if found == PASS and not judged_any(rows, verdicts) else found


def judged_any(rows: Sequence[Compared], verdicts: Sequence[Verdict]) -> bool:
    """Whether a pair of tensors was judged; of scalars, where there is no pair of tensors."""
    pairs = [(row, v) for row, v in zip(rows, verdicts, strict=True) if row.matched]
    tensors = [v for row, v in pairs if "tensor" in [x.kind for x in (row.target, row.golden) if x]]
    return any(v.result != SKIP for v in tensors or [v for _, v in pairs])


def errors_in_order(rows: Sequence[Compared], verdicts: Sequence[Verdict]) -> Iterator[int]:
    """Yield the places of the rows that fail, those to look at first first.

    In graph order those that fail while their operator's inputs do not; then each failing input, and after it the
    outputs that only it excused.
    """
    excused: dict[int, list[int]] = {}  # by the place of the input
    last: dict[tuple[Any, ...], int] = {}
    failing = (i for i, v in enumerate(verdicts) if v.result == ERROR)
    for i in sorted(failing, key=lambda i: (rows[i].step or 0, rows[i].order)):
        row, key = rows[i], (rows[i].step, rows[i].rank, rows[i].api)
        if row.api and row.part == INPUT:
            excused[i], last[key] = [], i
        elif row.api and key in last and row.part not in (PARAMETERS, PARAMETERS_GRAD):
            excused[last[key]].append(i)
        else:
            yield i
    for i, others in excused.items():
        yield from (i, *others)
