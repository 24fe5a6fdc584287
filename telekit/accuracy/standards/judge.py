"""Is it close enough? Every standard by name, with its source; each verdict gives the parts that led to it."""

from __future__ import annotations

from typing import Any

from telekit.accuracy.measures.metrics import Metrics
from telekit.accuracy.standards import beside
from telekit.accuracy.standards.profiles import STANDARDS, Case, Standard
from telekit.accuracy.standards.verdict import Part, Verdict, conclude
from telekit.errors import InputError, Problem

ALIASES = {"msprobe": "msprobe-documented", "double-benchmark": "double-benchmark-l0"}
# Which level of the double benchmark msprobe's checker takes, by the API's short name; all others L0.
LEVEL_1 = frozenset(
    {"embedding", "npu_fusion_attention", "npu_fusion_attention_grad", "scatter_", "scatter_add_"}
)
LEVEL_2 = frozenset(
    {
        *("GELU", "addmm", "index", "layer_norm", "matmul", "mm", "nonzero", "one_hot", "sum"),
        *(
            "npu_cross_entropy_loss",
            "npu_cross_entropy_loss_backward",
            "npu_rms_norm",
            "npu_rms_norm_backward",
        ),
    }
)


def standards() -> tuple[Standard, ...]:
    """Every standard: its name, source, and what it needs."""
    return tuple(STANDARDS.values())


def standard(name: str) -> Standard:
    """Return one standard by name; ``msprobe`` is the documented one.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    found = STANDARDS.get(ALIASES.get(name, name))
    if found is None:
        raise InputError([Problem("standard", name, f"must be one of {', '.join([*ALIASES, *STANDARDS])}")])
    return found


def double_benchmark_for(api: str) -> str:
    """Return the double benchmark's name for an API's short name (``matmul``)."""
    level = 2 if api in LEVEL_2 else int(api in LEVEL_1)
    return f"double-benchmark-l{level}"


def checker_standard(output_dtype: str, input_dtype: str = "") -> str:
    """Return the standard msprobe's checker takes by type.

    An fp8 output goes by ULP, one made of fp8 by absolute limits, integers bit by bit, all else by benchmark.
    msprobe also has lists of APIs, which come first.
    """
    if output_dtype.startswith("float8"):
        return "ulp"
    if input_dtype.startswith("float8"):
        return "absolute"
    return "binary" if output_dtype.startswith(("int", "uint", "bool")) else "double-benchmark"


def judge(
    target: Any,
    golden: Any = None,
    standard: str = "msprobe",
    *,
    device: Any = None,
    dtype: str = "",
    layer: int = 0,
    layers: int = 32,
) -> Verdict:
    """Judge a tensor by a named standard.

    Parameters
    ----------
    target : array_like or Metrics
        What is judged. Metrics will do for standards that need nothing else.
    golden : array_like
        What it should be; for the double benchmarks a high-precision result.
    standard : str
        See `standards`. ``msprobe`` takes the inputs of the pair for equal here;
        `telekit.accuracy.standards.msprobe.judge_rows` is told of them.
    device : array_like, optional
        The same output of a device that is trusted: what double benchmarks compare the target's errors with.
    dtype : str
        Type whose row of the standard counts (``bfloat16``); target's if left out. For emulated arithmetic,
        whose values are in float64.
    layer, layers : int
        Where the tensor belongs, for the bound that grows with depth.

    Returns
    -------
    Verdict
        ``error`` when the shapes differ, and where +Inf stands against -Inf whatever the standard; ``skip`` when
        both sides are empty.

    Raises
    ------
    InputError
        If the standard is not known, an input it needs is missing, or it has no row for the type.
    """
    chosen = _standard(standard)
    _needed(chosen, target, golden, device)
    case = Case.of(target, golden, device, dtype, layer, layers)
    parts = case.guards() or [*chosen.parts(case), *_opposite(chosen, case)]
    messages = case.metrics.messages if chosen.needs == "metrics" else ()
    return conclude(parts, chosen.name, chosen.source, messages)


def _opposite(chosen: Standard, case: Case) -> list[Part]:
    """Look at the sign of infinities; standards with a third device say themselves what they make of Inf."""
    if chosen.needs == "metrics":
        return beside.infinities(case.metrics)
    return beside.infinities_of(*case.arrays[:2]) if chosen.needs == "arrays" else []


_standard = standard  # `judge` has an argument of that name


def _needed(chosen: Standard, target: Any, golden: Any, device: Any) -> None:
    problems = []
    if isinstance(target, Metrics):
        if golden is not None:
            problems.append(Problem("golden", "given", "metrics already hold their golden", "leave it out"))
        if chosen.needs != "metrics":
            rule = f"{chosen.name} needs the arrays, not their metrics"
            problems.append(Problem("target", "Metrics", rule, "judge(target, golden, ...)"))
    elif golden is None:
        problems.append(
            Problem("golden", None, "needed, unless target is Metrics", "judge(target, golden, ...)")
        )
    if chosen.needs == "device" and device is None:
        rule = f"{chosen.name} compares the errors of two devices"
        problems.append(Problem("device", None, rule, "device= the trusted device's output"))
    if problems:
        raise InputError(problems)
