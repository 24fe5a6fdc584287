"""Operators of chapter 2, tried and judged: one case under a reader's hands, error by length and by depth, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import Metrics, compare_arrays
from telekit.accuracy.measures.pairs import Array, Floats, format_of
from telekit.accuracy.measures.summaries import checksum
from telekit.accuracy.numerics.emulate import GOLDEN, Arithmetic, Precision
from telekit.accuracy.numerics.harness import LEVELS, Trial, run, run_trial
from telekit.accuracy.numerics.operator_cases import OPERATORS, Operator
from telekit.accuracy.numerics.operator_sweeps import expected_error, rounding_against
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.standards.depth import LAYERS, depth_bound
from telekit.accuracy.standards.judge import judge
from telekit.accuracy.standards.operator_rules import ASCEND_SINGLE
from telekit.accuracy.standards.tolerances import tolerance
from telekit.accuracy.standards.verdict import PASS, Part, Verdict
from telekit.exercises.chapter02 import SUSPECTS
from telekit.exercises.operator_faults import DTYPES, STANDARDS, Pair, planted, result
from telekit.ui.tables import Table

NAMES = {long: short for short, long in DTYPES.items()}
TRIED = ("matmul", "softmax", "layer_norm", "rms_norm", "swiglu", "cross_entropy")
"""Operators whose case grows with one length."""
ORDERS = ("sequential", "pairwise", "tree", "split-k", "mma", "random")
SHAPES = {
    "matmul": {"m": 32, "n": 32},
    "softmax": {"rows": 8},
    "layer_norm": {"rows": 8},
    "rms_norm": {"rows": 8},
    "swiglu": {"rows": 8},
    "cross_entropy": {"tokens": 64},
}
LENGTH = {"swiglu": "width", "cross_entropy": "vocabulary"}
"""Dimension that grows, where the operator names none that it sums over."""


# --- one case -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One operator as a reader sets it; ``length`` is that of its sums."""

    operator: str
    dtype: str
    length: int
    accumulate: str
    order: str
    values: str

    @property
    def precision(self) -> Precision:
        """Arithmetic of the case; what is narrower than fp32 is computed in fp32 unless it accumulates in itself."""
        return Precision(self.dtype, self.accumulate, self.accumulate, self.order)


@lru_cache(maxsize=64)
def tried(case: Case) -> Pair:
    """Run a case: its first output against fp64, and a trusted device that accumulates in fp32."""
    chosen = OPERATORS[case.operator]
    shape = chosen.complete(SHAPES[case.operator] | {_length(chosen): case.length})
    outcome = run_trial(
        chosen,
        Trial(0, shape, case.values, 0),
        case.precision,
        device=Precision(case.dtype, order="native"),
    )
    name = next(iter(outcome.golden))
    return Pair(outcome.target[name], outcome.golden[name], outcome.device[name], case.dtype)


def _length(chosen: Operator) -> str:
    return chosen.terms or LENGTH[chosen.name]


@lru_cache(maxsize=128)
def with_fault(case: Case, scale: float) -> Pair:
    """Return the case with everything too large by a part, rounded to the dtype again."""
    pair = tried(case)
    if not scale:
        return pair
    target = rounded(pair.target.astype(np.float64) * (1 + scale), case.dtype)
    return Pair(target, pair.golden, pair.device, case.dtype)


@dataclass(frozen=True)
class Spread:
    """Relative errors of a pair where golden is not zero and both are finite, in epsilons of the dtype.

    ``best`` is the share of elements that are golden rounded once; ``not_finite`` the share that is NaN or Inf.
    """

    errors: Floats
    below: float
    best: float
    not_finite: float


def spread(pair: Pair, threshold: float = 1e-3) -> Spread:
    """Take the relative errors of a pair; ``below`` is the share under the threshold."""
    golden, target = (np.asarray(x, np.float64).reshape(-1) for x in (pair.golden, pair.target))
    known = np.isfinite(target) & (golden != 0)
    errors = np.abs((target[known] - golden[known]) / golden[known])
    best = rounded(golden, pair.dtype).astype(np.float64)
    return Spread(
        errors / format_of(pair.dtype).epsilon,
        float(np.mean(errors < threshold)) if errors.size else 0.0,
        float(np.mean(target == best)),
        float(np.mean(~np.isfinite(target))),
    )


def lines(dtype: str) -> dict[str, float]:
    """Relative tolerances that a reader may take for a dtype, in its epsilons."""
    own = {
        "1e-3": 1e-3,
        "torch, TE: rtol": tolerance("transformer-engine", dtype)[0],
        "JAX: rtol": tolerance("jax", dtype)[0],
        "Ascend: mean": ASCEND_SINGLE[dtype],
    }
    return {name: value / format_of(dtype).epsilon for name, value in own.items()}


def verdicts(pair: Pair) -> dict[str, tuple[str, str]]:
    """Judge by every standard of the chapter: result and reason, by the standard's name on charts."""
    found = {}
    for name, label in STANDARDS.items():
        verdict, whole = result(pair, name)
        found[label] = (verdict, reason(whole) if whole else "no row for this dtype")
    return found


_SAYS = {
    "1 per mille share": "1‰ share",
    "share below 0.001": "1‰ share",
    "double thousand": "1‰ share",
    "double hundred": "1 % share",
    "Cosine and MaxAbsErr": "cosine",
    "relative norm error": "norm of error",
    "largest relative error": "largest error",
    "mean relative error": "mean error",
    "MARE": "largest error",
    "MERE": "mean error",
}


def reason(verdict: Verdict) -> str:
    """Say the part that decided a verdict: its value, and what passes."""
    judged = [p for p in verdict.parts if p.result == verdict.result]
    parts = [p for p in judged if isinstance(p.value, float) and p.name not in ("cosine drop", "NaN or Inf")]
    part = _telling(parts or judged or list(verdict.parts), verdict.result)
    value = f"{part.value:.3g}" if isinstance(part.value, int | float) else "undefined"
    rule, name = part.rule.split(":")[0], _SAYS.get(part.name, part.name)
    if name == "share outside":
        return f"{part.value:.1%} outside {rule.removeprefix('all within ').replace(' * |golden|', ' |g|')}; asks none"
    if rule.startswith("ratio "):
        rule, name = rule.removeprefix("ratio "), f"{name} ratio"
    for old, new in _RULES:
        rule = rule.replace(old, new)
    return f"{'inside' if name.startswith('rtol') else name} {value}; asks {rule}"


_RULES = (
    ("not below 0.6 while inputs are above 0.9", "≥ 0.6"),
    ("not below 0.1 while inputs are above 0.9", "≥ 0.1"),
    ("not (Cosine < 0.99 and MaxAbsErr > 0.001)", "≥ 0.99, or MaxAbsErr ≤ 0.001"),
    ("share inside ", ""),
    (" passes", ""),
    ("share below 0.001 ", ""),
    ("share below 0.01 ", ""),
    ("share below 0.0001 ", ""),
    ("|sum|x| / sum|g| - 1| ", ""),
    (">= ", "≥ "),
    ("<= ", "≤ "),
)


def _telling(parts: Sequence[Part], result: str) -> Part:
    """Return the part to show: the last of those that pass says most, the first of those that fail."""
    return parts[-1] if result == PASS else parts[0]


# --- error by length, and by depth --------------------------------------------------------------------------

SIZES = tuple(2**i for i in range(4, 12))
SWEPT = ("sequential", "split-k", "mma", "tree")


@dataclass(frozen=True)
class Point:
    """Relative error (norms) of a product by the length and order of its sums: measured, and expected."""

    length: int
    order: str
    error: float | None
    expected: float | None


@lru_cache(maxsize=64)
def by_length(dtype: str, accumulate: str, values: str) -> tuple[Point, ...]:
    """Sum products of every length in every order; None where a result is not finite or not modelled."""
    points = []
    for length in SIZES:
        chosen = OPERATORS["matmul"]
        inputs = chosen.inputs({"m": 16, "n": 16, "k": length}, values, 0)
        store = Arithmetic(Precision(dtype)).store
        given = {name: store(x) for name, x in inputs.items()}
        golden = chosen.outputs(given, Arithmetic(GOLDEN))["y"]
        for order in SWEPT:
            own = Precision(dtype, accumulate, accumulate, order)
            target = chosen.outputs(given, Arithmetic(own))["y"]
            error = float(np.linalg.norm(target - golden) / np.linalg.norm(golden))
            wanted = expected_error(own, length) if values == "normal" else None
            points.append(Point(length, order, error if np.isfinite(error) else None, wanted))
    return tuple(points)


DEPTHS = (1, 2, 4, 8, 16, 24, 32)


@lru_cache(maxsize=64)
def by_depth(dtype: str, accumulate: str) -> dict[int, tuple[float | None, float]]:
    """Error after so many layers ``x + W2 silu(W1 norm(x))``, and the bound for as many; in fp64 beside it."""
    width, rng = 64, np.random.default_rng(3)
    own, exact = Arithmetic(Precision(dtype, accumulate, accumulate, "native")), Arithmetic(GOLDEN)
    x = own.store(rng.standard_normal((32, width)))
    golden, found = x.astype(np.float64), {}
    for depth in range(1, max(DEPTHS) + 1):
        w = [own.store(rng.standard_normal((width, width)) / np.sqrt(width)) for _ in range(2)]
        x, golden = _layer(own, x, w), _layer(exact, golden, w)
        error = float(np.linalg.norm(x - golden) / np.linalg.norm(golden))
        bound = depth_bound(LAYERS + 1 - depth, dtype)
        if depth in DEPTHS:
            found[depth] = (error if np.isfinite(error) else None, bound)
    return found


def _layer(on: Arithmetic, x: Array, w: Sequence[Array]) -> Array:
    """Run a residual layer, every result stored in the dtype."""
    mean = on.mean(on.op(np.square, x))
    y = on.store(on.op(lambda a, m: a / np.sqrt(m + 1e-6), x, mean))
    h = on.store(on.matmul(y, w[0]))
    h = on.store(on.op(lambda a: a / (1 + np.exp(-a)), h))
    return on.store(on.op(np.add, x, on.store(on.matmul(h, w[1]))))


# --- tables -------------------------------------------------------------------------------------------------


def one_rounding() -> Table:
    """Hold perfect results, rounded once, against a threshold of 1e-3, by dtype."""
    rows = []
    for short, dtype in DTYPES.items():
        found = rounding_against(dtype, 1e-3)
        rows.append(
            (
                short,
                f"2^{round(np.log2(found.epsilon))}",
                f"{found.largest:.2g}",
                f"{found.share_below:.1%}",
                *(f"{float(f'{x:.3g}'):,g}" for x in (found.epsilons_hidden, 2 * found.epsilons_hidden)),
            )
        )
    header = ("dtype", "epsilon", "largest error", "within 1e-3", "1e-3 in eps", "roundings it hides")
    return Table("Values in [1, 2), exact but for one rounding to the dtype", header, tuple(rows))


def side_by_side(length: int = 1024) -> Table:
    """Judge one product, healthy and 1 % too large, in three dtypes, by every standard of the chapter."""
    mark = {"pass": ".", "warning": "warning", "error": "ERROR", "skip": "-"}
    columns = [(d, s) for d in ("float32", "float16", "bfloat16") for s in (0.0, 0.01)]
    found = [
        verdicts(with_fault(Case("matmul", d, length, "float32", "sequential", "normal"), s))
        for d, s in columns
    ]
    rows = [(label, *(mark[one[label][0]] for one in found)) for label in STANDARDS.values()]
    header = ("standard", *(f"{NAMES[d]} +1%" if s else NAMES[d] for d, s in columns))
    title = f"A product of {length:,} terms, fp32 accumulation, beside fp64: as it is, and 1 % too large (. passes)"
    return Table(title, header, tuple(rows))


def _figures(name: str, target: object, golden: object) -> tuple[str, ...]:
    m = compare_arrays(target, golden)
    return (name, m.status, *_shown(m, ".6g"), judge(m, standard="msprobe-old").result)


def _shown(m: Metrics, form: str) -> tuple[str, ...]:
    """Return cosine, norm ratio, MaxAbsErr, MaxRelErr and 1‰ share; a dash for what is not defined."""
    figures = (m.cosine, m.norm_ratio, m.max_abs_error, m.max_relative_error, m.one_thousandth_ratio)
    return tuple("-" if value is None else format(value, form) for value in figures)


def near_zero() -> tuple[Floats, Floats]:
    """Target and golden of the published near-zero case: 4,096 values, golden[7] = 1e-8, noise 4e-3, bf16."""
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(4096)
    golden[7] = 1e-8
    target = rounded(golden + 4e-3 * rng.standard_normal(4096), "bfloat16")
    return target.astype(np.float64), golden


def guards() -> Table:
    """Cases in which a figure is not what it seems, each by the same function."""
    nan, ones = float("nan"), np.ones(4)
    rng = np.random.default_rng(1)
    x = rng.standard_normal(64)
    cases = (
        ("zeros beside zeros", np.zeros(8), np.zeros(8)),
        ("ones beside zeros", ones, np.zeros(4)),
        ("NaN at the same place", [1.0, nan, 3.0], [1.0, nan, 3.0]),
        ("NaN at another place", [nan, 2.0, 3.0], [1.0, nan, 3.0]),
        ("a scalar", np.array(2.0), np.array(1.0)),
        ("shape () beside (1,)", np.array(1.0), np.array([1.0])),
        ("both empty", np.zeros(0), np.zeros(0)),
        ("golden[7] = 1e-8", *near_zero()),
        ("y = 2 x", 2 * x, x),
        ("y = x, reversed", x[::-1].copy(), x),
    )
    header = ("case", "status", "cosine", "norm ratio", "MaxAbsErr", "MaxRelErr", "1‰ share", "old rule")
    return Table("What is compared, and what comes out", header, tuple(_figures(*case) for case in cases))


def checksums() -> Table:
    """Write what msprobe writes as MD5: CRC-32 of the raw bytes."""
    import ml_dtypes

    cases = (
        ("[1, 2, 3] in fp32", np.array([1, 2, 3], np.float32)),
        ("[1, 2, 3] in bf16", np.array([1, 2, 3], ml_dtypes.bfloat16)),
        ("0.0 in fp32", np.array(0.0, np.float32)),
        ("-0.0 in fp32", np.array(-0.0, np.float32)),
    )
    rows = tuple((name, checksum(x)) for name, x in cases)
    return Table("CRC-32 of the raw bytes", ("tensor", "written as MD5"), rows)


def cases_asked(count: int = 24) -> Table:
    """Put what the Ascend standard asks for by level beside a small run of the harness."""
    rows = []
    for i, (level, asked) in enumerate(LEVELS.items()):
        table = run("rms_norm", "bfloat16", f"ascend-dual-l{i}", count=count, shape={"rows": 7, "width": 64})
        row = table.rows[0]
        limits = {part.name: part.rule.removeprefix("ratio <= ") for part in row.parts}
        ratios = "/".join(limits[name] for name in ("MARE", "MERE", "RMSE"))
        tried_ = f"{row.passed} of {row.trials} pass"
        rows.append((level, f"{asked:,}", ratios, tried_, "yes" if row.enough else "no"))
    header = ("level", "cases asked", "largest/mean/RMSE", "rms_norm, bf16", "enough")
    return Table("Ascend's dual benchmark; ratios to a third-party device's errors", header, tuple(rows))


FILES = {
    "attention.out": ("healthy", 0.0),
    "mlp.gate": ("all too large", 1.0),
    "mlp.up": ("rows out of order", 0.0),
    "router.bias": ("healthy, golden near 0", 0.0),
}
"""Tensors of two small files: what was done to each, and by how much."""


def files_compared() -> Table:
    """Write two files of four fp16 tensors, compare them as ``telekit compare`` does, by two standards."""
    from telekit.accuracy.compare import compare

    pairs = {name: planted(plant, "float16", size, 1) for name, (plant, size) in FILES.items()}
    with TemporaryDirectory() as folder:
        npu, gpu = (Path(folder) / name for name in ("npu.npz", "gpu.npz"))
        mine: dict[str, Any] = {name: it.target.astype(np.float16) for name, it in pairs.items()}
        theirs: dict[str, Any] = {name: it.golden.astype(np.float32) for name, it in pairs.items()}
        np.savez(npu, **mine)
        np.savez(gpu, **theirs)
        by = {name: compare(npu, gpu, standard=name) for name in ("msprobe", "torch")}
    rows = []
    for i, row in enumerate(by["msprobe"].rows):
        m = row.metrics
        assert m is not None
        rows.append((row.name, *_shown(m, ".4g")[:4], *(it.verdicts[i].result for it in by.values())))
    header = ("tensor", "cosine", "norm ratio", "MaxAbsErr", "MaxRelErr", *by)
    whole = ", ".join(f"{name}: {it.result}" for name, it in by.items())
    return Table(f"npu.npz beside gpu.npz; {whole}", header, tuple(rows))


def suspects() -> Table:
    """Figures of the pairs whose faults a reader is to name."""
    rows = [(name, *_shown(suspect.pair.metrics, ".4g")) for name, suspect in SUSPECTS.items()]
    header = ("pair", "cosine", "norm ratio", "MaxAbsErr", "MaxRelErr", "1‰ share")
    return Table("64 x 64 results of size 1 in fp16, each beside its golden", header, tuple(rows))
