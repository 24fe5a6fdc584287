"""Panels of chapter 2: one result under every standard, how errors grow, and who sees a planted fault."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from telekit.accuracy.measures.pairs import format_of
from telekit.accuracy.numerics.operator_cases import OPERATORS
from telekit.accuracy.numerics.rounding_model import one_rounding
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING
from telekit.exercises.operator_faults import (
    BY_NAME,
    DTYPES,
    METRICS,
    PLANTS,
    STANDARDS,
    opinion,
    planted,
)
from telekit.ui import known_operators as known
from telekit.ui import operator_charts as charts
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_operators import NAMES, Case
from telekit.ui.panels.apart import figures_line

LENGTHS = [2**i for i in range(4, 11)]
FAULTS = {"none": 0.0, "all 0.1 % too large": 0.001, "all 1 % too large": 0.01, "all 5 % too large": 0.05}
VALUES = {
    "normal": "normal",
    "all positive": "positive",
    "tiny": "small",
    "of wide range": "wide",
    "that cancel": "cancel",
}
ACCUMULATE = {"fp32": "float32", "its own dtype": "own"}
TOO_LARGE = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0]


def _accumulate(dtype: str, choice: str) -> str:
    return dtype if choice == "own" else choice


# --- one result under every standard ------------------------------------------------------------------------


def standards_explorer(dtype: str = "bfloat16") -> Explorer:
    """Run an operator in an emulated precision, and show its errors and what every standard says of them."""
    controls = {
        "dtype": pick("dtype", DTYPES, dtype),
        "operator": pick("operator", known.TRIED, "matmul"),
        "length": slide("terms", LENGTHS, 512),
        "accumulate": pick("sums in", ACCUMULATE, "float32"),
        "order": pick("order", known.ORDERS, "sequential"),
        "values": pick("values", VALUES, "normal"),
        "fault": pick("fault", FAULTS, 0.0),
    }
    return Explorer(
        controls,
        [charts.spread_chart(), charts.verdict_chart()],
        _standards,
        _standards_text,
        _standards_titles,
        title="One result, every standard",
    )


def _case(values: Mapping[str, Any]) -> tuple[Case, float]:
    own = {k: values[k] for k in ("operator", "dtype", "length", "order", "values")}
    return Case(**own, accumulate=_accumulate(values["dtype"], values["accumulate"])), values["fault"]


@lru_cache(maxsize=128)
def _judged(case: Case, fault: float) -> tuple[known.Spread, dict[str, tuple[str, str]]]:
    pair = known.with_fault(case, fault)
    return known.spread(pair), known.verdicts(pair)


def _standards(**values: Any) -> Tables:
    case, fault = _case(values)
    spread, said = _judged(case, fault)
    threshold = 1e-3 / format_of(case.dtype).epsilon
    return charts.spread_rows(spread, threshold, known.lines(case.dtype)) | charts.verdict_rows(said)


def _standards_titles(**values: Any) -> list[str]:
    case, fault = _case(values)
    spread, said = _judged(case, fault)
    errors = sum(result == ERROR for result, _ in said.values())
    judged = sum(result != SKIP for result, _ in said.values())
    within = f"{spread.below:.0%} of this {NAMES[case.dtype]} result is within 1e-3"
    if fault:
        return [within, f"{errors} of {judged} standards see that it is {fault:.1%} too large"]
    verdict = f"{errors} of {judged} standards call it an error"
    if errors and spread.best > 0.99:
        verdict += f", though {NAMES[case.dtype]} can do no better"
    return [within, verdict]


def _standards_text(**values: Any) -> str:
    case, fault = _case(values)
    spread, _ = _judged(case, fault)
    pair = known.with_fault(case, fault)
    m = pair.metrics
    cells = [
        (f"{spread.best:.1%}", "are golden, rounded once"),
        ("-" if m.cosine is None else f"{m.cosine:.7f}", "cosine"),
        ("-" if m.norm_ratio is None else f"{m.norm_ratio:.5f}", "norm ratio"),
        ("-" if m.max_abs_error is None else f"{m.max_abs_error:.3g}", "MaxAbsErr"),
        ("-" if m.max_relative_error is None else f"{m.max_relative_error:.3g}", "MaxRelativeErr"),
    ]
    said = f"{pair.golden.size:,} elements beside fp64. "
    if spread.not_finite:
        said += f"{spread.not_finite:.1%} of the result is NaN or Inf: {NAMES[case.dtype]} has no value so large. "
    if OPERATORS[case.operator].terms == "":
        said += f"{case.operator} sums nothing: terms and order change only its size."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- how errors grow ----------------------------------------------------------------------------------------


def growth_explorer() -> Explorer:
    """Follow the error of a product over the length of its sums, and that of a stack over its layers."""
    controls = {
        "dtype": pick("dtype", DTYPES, "bfloat16"),
        "accumulate": pick("sums in", ACCUMULATE, "own"),
        "values": pick("values", {k: v for k, v in VALUES.items() if v != "small"}, "normal"),
        "length": slide("terms", list(known.SIZES), 2048),
    }
    views = [charts.length_chart(), charts.depth_chart()]
    return Explorer(controls, views, _growth, _growth_text, _growth_titles, title="How does it grow?")


def _growth(dtype: str, accumulate: str, values: str, length: int) -> Tables:
    own = _accumulate(dtype, accumulate)
    points = known.by_length(dtype, own, values)
    lines = {"1e-3": 1e-3, f"one rounding to {NAMES[dtype]}": one_rounding(dtype)}
    return charts.length_rows(points, length, lines) | charts.depth_rows(known.by_depth(dtype, own))


def _growth_titles(dtype: str, accumulate: str, values: str, length: int) -> list[str]:
    own = _accumulate(dtype, accumulate)
    at = {(it.order, it.length): it.error for it in known.by_length(dtype, own, values)}
    grown = {}
    for order in ("sequential", "tree"):
        first, last = at[order, known.SIZES[0]], at[order, length]
        grown[order] = last / first if first and last else None
    one, tree = grown["sequential"], grown["tree"]
    title = f"At {length:,} terms the sums leave what {NAMES[dtype]} can hold"
    if one and tree:
        title = (
            f"From 16 to {length:,} terms: {one:.1f}-fold error one after another, {tree:.1f}-fold as a tree"
        )
    depth = {n: error for n, (error, _) in known.by_depth(dtype, own).items() if error}
    over = [n for n, (error, bound) in known.by_depth(dtype, own).items() if error and error > bound]
    last = max(depth)
    bound = "the bound is passed" if over else "the bound holds"
    return [title, f"{last} layers: {depth[last] / depth[1]:.1f}-fold error; {bound}"]


def _growth_text(dtype: str, accumulate: str, values: str, length: int) -> str:
    own = _accumulate(dtype, accumulate)
    cells = [
        (f"{it.error:.2g}" if it.error else "not finite", it.order)
        for it in known.by_length(dtype, own, values)
        if it.length == length
    ]
    said = f"Products of {NAMES[dtype]} numbers, summed in {NAMES[own]}, stored in {NAMES[dtype]}. "
    said += "Dots are measured; lines are what independent roundings with signs at random should give."
    if values != "normal":
        said = said.split("Dots")[0] + "Dots are measured; there is a line to expect for normal values only."
    if dtype.startswith("float8"):
        said += " TTrace's test takes bf16's epsilon for fp8 too; here every result is stored in fp8."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"


# --- who sees a fault ---------------------------------------------------------------------------------------


def faults_explorer(dtype: str = "bfloat16") -> Explorer:
    """Plant faults in a product, and ask every metric and standard."""
    few = {name: DTYPES[name] for name in ("fp32", "fp16", "bf16", "fp8 e4m3")}
    controls = {
        "dtype": pick("dtype", few, dtype),
        "size": slide("too large by", TOO_LARGE, 0.01),
        "look_at": pick("look at", [it.name for it in PLANTS], "all too large"),
        "seed": slide("seed", list(range(8)), 0),
    }
    return Explorer(
        controls, charts.fault_chart(), _faults, _faults_text, _faults_titles, title="Who sees the fault?"
    )


@lru_cache(maxsize=1024)
def _opinions(plant: str, dtype: str, size: float, seed: int) -> dict[str, str]:
    """Outcome of every check on one plant."""
    it, pair = BY_NAME[plant], planted(plant, dtype, size, seed)
    sound = planted("healthy", dtype, size, seed)
    changed = not (pair.golden is sound.golden and (pair.target == sound.target).all())
    found = {}
    for check in (*METRICS, *STANDARDS):
        said = opinion(pair, check)
        if it.healthy:
            found[check] = _OF_HEALTHY[said]
        elif not changed or (said != PASS and said == opinion(sound, check)):
            found[check] = charts.NOTHING
        else:
            found[check] = _OF_FAULT[said]
    return found


_OF_HEALTHY = {PASS: charts.RIGHT, WARNING: charts.WARNS, ERROR: charts.FALSE_ALARM, SKIP: charts.NOTHING}
_OF_FAULT = {PASS: charts.MISSED, WARNING: charts.WARNS, ERROR: charts.RIGHT, SKIP: charts.NOTHING}


def outcomes(dtype: str, size: float, seed: int) -> dict[tuple[str, str], str]:
    """Outcome of every check on every plant."""
    return {
        (it.name, check): outcome
        for it in PLANTS
        for check, outcome in _opinions(it.name, dtype, size if it.sized else 0.0, seed).items()
    }


def _faults(dtype: str, size: float, look_at: str, seed: int) -> Tables:
    return charts.fault_rows(outcomes(dtype, size, seed), look_at)


def _faults_titles(dtype: str, size: float, look_at: str, seed: int) -> list[str]:
    found = outcomes(dtype, size, seed)
    labels = {name: name for name in METRICS} | STANDARDS
    right = {check: sum(found[it.name, check] == charts.RIGHT for it in PLANTS) for check in labels}
    most = max(right.values())
    best = [labels[check] for check in labels if right[check] == most]
    names = best[0] if len(best) == 1 else f"{best[0]} and {len(best) - 1} more"
    are = "is" if len(best) == 1 else "are"
    if most == len(PLANTS):
        return [f"{names} {are} right on all {most} cases"]
    return [f"No check is right on all {len(PLANTS)} cases; {names} {are} on {most}"]


def _faults_text(dtype: str, size: float, look_at: str, seed: int) -> str:
    it = BY_NAME[look_at]
    m = planted(look_at, dtype, size, seed).metrics
    figures = (
        (m.cosine, "cosine"),
        (m.norm_ratio, "norm ratio"),
        (m.max_abs_error, "MaxAbsErr"),
        (m.max_relative_error, "MaxRelativeErr"),
        (m.one_thousandth_ratio, "within 1e-3"),
        (m.relative_norm_error, "norm of error"),
    )
    cells = [("-" if value is None else f"{value:.7g}", name) for value, name in figures[:2]]
    cells += [("-" if value is None else f"{value:.3g}", name) for value, name in figures[2:]]
    said = f"{look_at}: {it.what}."
    untouched = all(value == charts.NOTHING for value in _opinions(look_at, dtype, size, seed).values())
    if untouched:
        said += f" {NAMES[dtype]} rounds it away: there is nothing to see."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(said)}</span>"
