"""The standards themselves: each a name, a source, what it needs, and the parts it looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import EMPTY, POSITIONS_DIFFER, SHAPES_DIFFER, Metrics, compare_arrays
from telekit.accuracy.measures.pairs import Array, blocks, checked, dtype_name
from telekit.accuracy.standards import beside, msprobe
from telekit.accuracy.standards.depth import GROWTH, depth_bound, in_epsilons
from telekit.accuracy.standards.operator_rules import (
    absolute,
    accumulative,
    ascend_dual,
    ascend_mixed,
    ascend_single,
    binary,
    double_benchmark,
    dropout,
    free_benchmark,
    quantization,
    single_benchmark,
    thousandth,
    ulp,
)
from telekit.accuracy.standards.tolerances import LIBRARIES, library_closeness
from telekit.accuracy.standards.verdict import ERROR, Part, check, skipped


@dataclass(frozen=True)
class Case:
    """What a standard is asked: arrays, or only their metrics."""

    arrays: tuple[Array, ...]
    given: Metrics | None
    dtype: str
    layer: int
    layers: int

    @classmethod
    def of(cls, target: Any, golden: Any, device: Any, dtype: str, layer: int, layers: int) -> Case:
        """Check the inputs once."""
        if isinstance(target, Metrics):
            return cls((), target, dtype or target.target_dtype, layer, layers)
        third = () if device is None else (device,)
        names = ("target", "golden", "device")[: 2 + len(third)]
        arrays = checked(target, golden, *third, names=names, complex_too=True)
        return cls(tuple(arrays), None, dtype or dtype_name(arrays[0]), layer, layers)

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of the pair, taken when first asked for."""
        return self.given or compare_arrays(*self.arrays[:2])

    def guards(self) -> list[Part]:
        """Parts that decide before any standard does: shapes that differ, both sides empty."""
        shapes = [a.shape for a in self.arrays] or [self.metrics.target_shape, self.metrics.golden_shape]
        parts = []
        for name, shape in zip(("shape", "device's shape"), (shapes[0], *shapes[2:]), strict=False):
            if shape != shapes[1]:
                parts.append(Part(name, shape, f"= {shapes[1]}", ERROR))
        if not parts and 0 in shapes[1]:
            parts.append(skipped("empty", "", "both sides are empty: nothing to compare"))
        return parts


@dataclass(frozen=True)
class Standard:
    """A way to judge.

    Attributes
    ----------
    needs : str
        ``metrics`` (arrays will do too), ``arrays``, or ``device`` (arrays, and those of a trusted device).
    """

    name: str
    source: str
    needs: str
    parts: Callable[[Case], list[Part]]


def _arrays(rule: Callable[..., list[Part]], **options: Any) -> Callable[[Case], list[Part]]:
    return lambda case: rule(*case.arrays, dtype=case.dtype, **options)


def _row(name: str) -> Callable[[Case], list[Part]]:
    def parts(case: Case) -> list[Part]:
        m = (
            case.metrics
        )  # without the operator's inputs they count as equal: else no rule would look at the values
        return [
            *msprobe.judge_output(m, name).parts,
            *beside.zero(m),
            *beside.single_number(m),
            *beside.direction(m),
        ]

    return parts


def _positions(metrics: Metrics) -> list[Part]:
    """Make the part of metrics that have no figures to judge."""
    if metrics.status in (POSITIONS_DIFFER, SHAPES_DIFFER, EMPTY):
        return [Part("positions", None, "NaN and Inf at the same places", ERROR, metrics.messages[0])]
    return []


def _mindspore(limit: float) -> Callable[[Case], list[Part]]:
    def parts(case: Case) -> list[Part]:
        m = case.metrics
        if m.max_abs_error is None:
            return _positions(m)
        error = check(
            "MaxAbsErr", m.max_abs_error, m.max_abs_error < limit, f"< {limit}", note=f"at {m.max_abs_place}"
        )
        if m.cosine is None:
            return [skipped("Cosine", "> 0.99", "not defined"), error]
        return [check("Cosine", m.cosine, m.cosine > 0.99, "> 0.99"), error]

    return parts


def _mindformers(case: Case) -> list[Part]:
    m = case.metrics
    kl = skipped("KL", "< 0.005", "the helper takes it of output distributions, which a tensor does not say")
    if m.max_abs_error is None:
        return _positions(m)
    sums = [sum(float(np.abs(x).sum()) for _, (x,) in blocks(a)) for a in case.arrays[:2]]
    ratio = abs(sums[0] / sums[1] - 1) if sums[1] else (0.0 if not sums[0] else float("inf"))
    parts = [check("sum of sizes", ratio, ratio < 0.01, "|sum|x| / sum|g| - 1| < 0.01"), kl]
    if m.cosine is None:
        return [skipped("Cosine", "> 0.999", "not defined"), *parts]
    return [check("Cosine", m.cosine, m.cosine > 0.999, "> 0.999"), *parts]


def _depth(constant: float) -> Callable[[Case], list[Part]]:
    def parts(case: Case) -> list[Part]:
        m = case.metrics
        bound = depth_bound(case.layer, case.dtype, layers=case.layers, constant=constant)
        rule = f"<= {bound:.6g}: {constant:g} * {GROWTH:g}**{case.layers + 1 - case.layer} epsilon"
        if m.max_abs_error is None:
            return _positions(m)
        error = m.relative_norm_error
        if error is None:
            return [
                check("relative norm error", None, m.identical, rule, note="golden's norm is zero or unknown")
            ]
        kind = "bfloat16" if case.dtype.startswith("float8") else case.dtype
        return [
            check(
                "relative norm error",
                error,
                error <= bound,
                rule,
                note=f"{in_epsilons(error, kind):.4g} epsilon",
            )
        ]

    return parts


def _library(name: str) -> Callable[[Case], list[Part]]:
    def parts(case: Case) -> list[Part]:
        kinds = {dtype_name(a) for a in case.arrays[:2]}
        own = "" if case.dtype in kinds else case.dtype
        found = library_closeness(case.arrays[0], case.arrays[1], name, own)
        rule = f"all within {found.atol:.6g} + {found.rtol:.6g} * |golden|"
        note = (
            f"{found.outside} of {found.elements}; worst at {found.worst_place}, {found.worst_excess:.6g} outside"
            if found.outside
            else ""
        )
        return [check("share outside", found.share, not found.outside, rule, note=note)]

    return parts


MSPROBE_CHECKER = "Ascend/msprobe 8ff00da3, api_accuracy_checker"
ASCEND = "Ascend operator precision standard, float_compute.md"
_ALL = [
    *(Standard(n, msprobe.SOURCES[n], "metrics", _row(n)) for n in msprobe.OUTPUT_SHARE),
    Standard(
        "msprobe-old",
        msprobe.SOURCES["msprobe-old"],
        "metrics",
        lambda c: msprobe.accuracy_reached(c.metrics),
    ),
    Standard("single-benchmark", f"{MSPROBE_CHECKER}, compare.py", "arrays", _arrays(single_benchmark)),
    *(
        Standard(
            f"double-benchmark-l{i}",
            f"{MSPROBE_CHECKER}, benchmark_compare.py",
            "device",
            _arrays(double_benchmark, level=i),
        )
        for i in range(3)
    ),
    Standard("ulp", f"{MSPROBE_CHECKER}, ulp_compare.py", "arrays", _arrays(ulp)),
    Standard("thousandth", f"{MSPROBE_CHECKER}, thousandth_standard.py", "arrays", _arrays(thousandth)),
    Standard("binary", f"{MSPROBE_CHECKER}, binary_consistency.py", "arrays", _arrays(binary)),
    *(
        Standard(n, f"{MSPROBE_CHECKER}, {where}", "arrays", _arrays(absolute, standard=n))
        for n, where in (("absolute", "absolute_threshold.py"), ("absolute-documented", "its document"))
    ),
    Standard(
        "accumulative", f"{MSPROBE_CHECKER}, accumulative_error_compare.py", "arrays", _arrays(accumulative)
    ),
    Standard("quantization", f"{MSPROBE_CHECKER}: quantization APIs", "arrays", _arrays(quantization)),
    Standard("dropout", f"{MSPROBE_CHECKER}, compare.py: dropout", "arrays", _arrays(dropout)),
    Standard("free-benchmark", "Ascend/mstt 99c2e0f9, free_benchmark", "arrays", _arrays(free_benchmark)),
    Standard("ascend-single", f"{ASCEND}: single benchmark", "arrays", _arrays(ascend_single)),
    Standard("ascend-mixed", f"{ASCEND}: mixed tolerance", "arrays", _arrays(ascend_mixed)),
    *(
        Standard(f"ascend-dual-l{i}", f"{ASCEND}: dual benchmark", "device", _arrays(ascend_dual, level=i))
        for i in range(3)
    ),
    Standard(
        "mindspore-coded",
        "msprobe's MindSpore checker, code: MaxAbsErr < 0.001",
        "metrics",
        _mindspore(0.001),
    ),
    Standard(
        "mindspore-documented",
        "msprobe's MindSpore checker, document: MaxAbsErr < 0.0001",
        "metrics",
        _mindspore(0.0001),
    ),
    Standard("mindformers-helper", "mindspore-lab/mindformers tests/utils", "arrays", _mindformers),
    *(Standard(n, own.source, "arrays", _library(n)) for n, own in LIBRARIES.items()),
    Standard(
        "depth-bound",
        "TTrace theorem 5.3 as in NVIDIA/Megatron-LM test_optimizer_grads_match.py, k = 4",
        "metrics",
        _depth(4),
    ),
    Standard("depth-bound-bionemo", "the same in BioNeMo, k = 5", "metrics", _depth(5)),
]
STANDARDS = {s.name: s for s in _ALL}
