"""Verdicts on compared rows: an operator's by msprobe's rules over its inputs, a lone tensor's by the standard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from telekit.accuracy.checks.determinism import same_set
from telekit.accuracy.compared import INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Compared
from telekit.accuracy.comparing.names import read_call
from telekit.accuracy.measures.metrics import COMPARED, Metrics
from telekit.accuracy.measures.pairs import ACCEPTED_TOGETHER
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.judge import judge
from telekit.accuracy.standards.profiles import Standard
from telekit.accuracy.standards.verdict import (
    ERROR,
    PASS,
    WARNING,
    Part,
    Verdict,
    check,
    conclude,
    skipped,
    worst,
)
from telekit.errors import InputError

SCALE = 0.05
"""How far the ratio of two norms may be from 1 where the directions agree; telekit's own rule."""
_NOT_ZERO = Part(
    "zero", None, "zero as golden is while the inputs agree", ERROR, "golden is all zeros, target is not"
)
DROPOUT, TOP_K = "dropout", "topk"
# msprobe counts as an output what has .output. in its name: gradients of parameters stand with the inputs
_ROLES = {INPUT: msprobe.INPUT, PARAMETERS: msprobe.PARAMETER, PARAMETERS_GRAD: msprobe.PARAMETER}
UNREAD = "cannot be read"
_REFUSED = "standard"
NEAR_ZERO = 1e-3
"""What may stand where golden is all zeros: msprobe's limit of the largest error."""
SCALAR = 0.01
"""Relative error a single number may have: more than one step of bf16 (0.0078); telekit's own, msprobe has no rule."""


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
    return tuple(verdicts[i] if i in verdicts else _alone(row, chosen) for i, row in enumerate(rows))


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
    clean = not any(_from_zero(r) or _norm_error(r) >= 0.1 for r in rows if r.part in _ROLES)
    return [
        _with(v, [*_beside(r), *([_NOT_ZERO] if clean and r.part not in _ROLES and _from_zero(r) else [])])
        for r, v in zip(rows, judged, strict=True)
    ]


def _from_zero(row: Compared) -> bool:
    """Whether statistics say that golden is all zeros and target is not: no relative error is defined then."""
    s = row.summary
    return row.metrics is None and s is not None and s.golden["Norm"] == 0 and bool(s.target["Norm"])


def _norm_error(row: Compared) -> float:
    return 0.0 if row.summary is None else row.summary.relative["Norm"] or 0.0


def _row(row: Compared) -> msprobe.Row:
    t, g = row.target, row.golden
    sums = None
    if row.metrics is None and not row.scalars:  # a checksum sees more than statistics do
        sums = ((t.md5 if t else None) or "", (g.md5 if g else None) or "")
    grads = (t.requires_grad, g.requires_grad) if t and g else (None, None)
    values = row.scalars if t and g and t.kind == g.kind == "scalar" else None
    return msprobe.Row(
        _ROLES.get(row.part, msprobe.OUTPUT), row.metrics, None if row.metrics or (sums and any(sums)) else row.summary,
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
    known = row.summary is not None or row.checksum_equal is not None
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
        parts = [Part(p.name, p.value, p.rule, ERROR, p.note) for p in parts]
    m, own = row.metrics, msprobe.judge_rows([_row(row)], chosen.name)[0]
    if m is not None:
        parts += [*msprobe.accuracy_reached(m), scale_part(m), *_exact(m)]
    elif row.summary is not None:
        parts += msprobe.summary_reached(row.summary)
    parts += [p for p in own.parts if p.name not in {q.name for q in parts}]
    said = "no inputs to judge by: msprobe's older rule and the ratio of the norms"
    return conclude(parts, chosen.name, chosen.source, (said, *own.messages))


def _exact(m: Metrics) -> list[Part]:
    """Rules of telekit's own for what msprobe's older ones let through."""
    if m.status != COMPARED or m.golden is None or m.target is None:
        return []
    parts = []
    if all(d.startswith(("int", "uint", "bool")) for d in (m.target_dtype, m.golden_dtype)):
        parts.append(check("equal", m.max_abs_error, m.identical, "integers and bools are equal"))
    if m.opposite_infinities:
        parts.append(check("sign of infinities", m.opposite_infinities, False, "none is opposite"))
    if m.golden.l2norm == 0 and m.target.l2norm:
        near = m.max_abs_error is not None and m.max_abs_error <= NEAR_ZERO
        rule = f"zero as golden is, to {NEAR_ZERO}"
        parts.append(check("zero", m.max_abs_error, near, rule, note="golden is all zeros"))
    elif m.elements == 1 and m.max_relative_error is not None:
        error = m.max_relative_error
        rule = f"at most {SCALAR}, telekit's own rule for a single number"
        parts.append(check("relative error", error, error <= SCALAR, rule))
    return parts


def scale_part(m: Metrics) -> Part:
    """Compare the norms: the cosine cannot see a factor."""
    rule, ratio = f"within {SCALE} of 1 where the cosine is above 0.99", m.norm_ratio
    if ratio is None or m.cosine is None:
        return skipped("scale", rule, "not defined")
    wrong = m.cosine > 0.99 and abs(ratio - 1) > SCALE
    note = f"target is golden times {ratio:.6g}: a factor, not noise" if wrong else ""
    return check("scale", ratio, not wrong, rule, note=note)


def _alone(row: Compared, chosen: Standard) -> Verdict:
    """Judge a row of which no elements are at hand, or that has no partner."""
    parts = [p for p in _beside(row) if p.result != PASS]  # equal shapes alone are no pass
    if not row.api:
        parts = [
            Part(p.name, p.value, p.rule, ERROR if p.result == WARNING else p.result, p.note) for p in parts
        ]
    if row.scalars and row.target and row.golden and row.target.kind == row.golden.kind == "scalar":
        parts.append(check("scalar", row.scalars[0], bool(row.identical), f"= {row.scalars[1]}"))
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
    """Say in one note which rows the standard refused, so that no overall pass hides them."""
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

    Dropout keeps other elements on every device: only the share of zeros counts. ``topk`` with ``sorted=False``
    promises no order: values and places are compared as sets.
    """
    operator = operator_of(row.api) if row.api else ""
    if row.part not in (OUTPUT, "") or row.metrics is None or row.metrics.identical:
        return None
    if DROPOUT in operator.lower() and row.phase != "backward":
        return judge(target, golden, "dropout") if target.shape == golden.shape else None
    if operator == TOP_K and target.shape == golden.shape and target.ndim:
        if same_set(target, golden):
            note = "the same set in another order, which topk(sorted=False) leaves open"
            return conclude([Part("set", None, "equal sets", PASS, note)], chosen.name, chosen.source)
        if target.dtype.kind in "iu":
            return conclude(
                [Part("set", None, "equal sets", ERROR, "other places chosen")], chosen.name, chosen.source
            )
    return None


def result_of(rows: Sequence[Compared], verdicts: Sequence[Verdict], lost: bool = False) -> str:
    """Return the worst verdict; error where no two tensors were compared at all, no pass where some were ``lost``."""
    if not any(row.matched for row in rows):
        return ERROR
    return worst([*(v.result for v in verdicts), *([WARNING] if lost else [])])


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
