"""Operators tried in an emulated precision, or your own implementation of them, against fp64, by any standard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.pairs import Array
from telekit.accuracy.numerics.emulate import GOLDEN, Arithmetic, Precision
from telekit.accuracy.numerics.harness_table import Row, Table, Tally
from telekit.accuracy.numerics.operator_cases import Arrays, Operator, Shape, as_dtype, operator
from telekit.accuracy.numerics.rounding import rounded
from telekit.accuracy.numerics.value_ranges import RANGES
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.judge import judge, standard
from telekit.accuracy.standards.operator_rules import ASCEND_CASES
from telekit.accuracy.standards.verdict import ERROR, Part, Verdict, conclude, skipped
from telekit.errors import InputError, Problem

LEVELS = {f"L{i}": count for i, count in enumerate(ASCEND_CASES)}
PLAIN = ("uniform", "normal", "wide", "small", "outliers", "cancel")
Target = Callable[..., Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trial:
    """One generated case: a shape, a range of values, and the seed they are drawn with."""

    number: int
    shape: Mapping[str, int]
    values: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What one trial gave, by output name.

    Attributes
    ----------
    target, golden, device : dict of str to ndarray
        What is judged, fp64 from the same rounded inputs, and a trusted device's. ``target`` lacks what a callable
        did not return.
    failure : str
        Why a callable returned nothing usable; empty if it did.
    """

    operator: str
    trial: Trial
    dtype: str
    target: Arrays
    golden: Arrays
    device: Arrays
    failure: str = ""


def trials(
    of: str | Operator,
    count: int,
    *,
    seed: int = 0,
    values: Sequence[str] = PLAIN,
    shape: Shape | None = None,
) -> Iterator[Trial]:
    """Generate trials: every range of values in turn, sizes drawn from the operator's.

    Parameters
    ----------
    of : str or Operator
        Which operator.
    count : int
        How many. The Ascend standard asks for 5,000, 10,000 or 30,000: ``LEVELS``.
    seed : int
        The same seed generates the same trials, whatever their count.
    values : sequence of str
        Names of `telekit.accuracy.numerics.value_ranges.RANGES`.
    shape : mapping, optional
        Dimensions to hold fixed.

    Raises
    ------
    InputError
        If a name is not known, or the count is below 1.
    """
    chosen = operator(of)
    problems = [
        Problem("values", v, f"must be one of {', '.join(RANGES)}", "normal")
        for v in values
        if v not in RANGES
    ]
    if not values:
        problems.append(Problem("values", (), "at least one range is needed", "('normal',)"))
    if count < 1:
        problems.append(Problem("count", count, "must be at least 1", "25"))
    if problems:
        raise InputError(problems)
    chosen.complete(shape)
    return _trials(chosen, count, seed, tuple(values), dict(shape or {}))


def _trials(
    chosen: Operator, count: int, seed: int, values: Sequence[str], fixed: dict[str, int]
) -> Iterator[Trial]:
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        sizes = {name: int(rng.choice(choices)) for name, choices in chosen.sizes.items()}
        yield Trial(number, sizes | fixed, values[number % len(values)], int(rng.integers(2**63)))


def run_trial(
    of: str | Operator,
    trial: Trial,
    precision: Precision | None = None,
    *,
    target: Target | None = None,
    device: Precision | None = None,
) -> Outcome:
    """Run one trial.

    Parameters
    ----------
    of : str or Operator
        What is run; ``Operator`` for one of your own.
    trial : Trial
        From `trials`.
    precision : Precision
        What is judged; the dtype says how inputs are rounded for all sides. bf16 with fp32 accumulation if left out.
    target : callable, optional
        Your implementation, judged instead of the emulated one: called with the inputs by name, as arrays of the
        dtype's own NumPy or ``ml_dtypes`` type, it returns an array, a tuple in the order of the outputs, or a
        dict by name, of real numbers in any format. What it raises is an answer, not an error.
    device : Precision, optional
        The trusted device of the double benchmarks: the dtype with fp32 accumulation and another order of
        summation, if left out.
    """
    chosen, own = operator(of), precision or Precision()
    trusted = device or trusted_device(own)
    inputs = chosen.inputs(trial.shape, trial.values, trial.seed)
    arithmetic = Arithmetic(own)
    given = {n: x if x.dtype.kind in "iub" else arithmetic.store(x) for n, x in inputs.items()}
    golden = chosen.outputs(given, Arithmetic(GOLDEN))
    other = chosen.outputs(given, Arithmetic(trusted))
    failure = ""
    if target is None:
        found = chosen.outputs(given, arithmetic)
    else:
        found, failure = _called(target, given, own.dtype, tuple(golden))
    return Outcome(chosen.name, trial, own.dtype, found, golden, other, failure)


def trusted_device(precision: Precision) -> Precision:
    """Return the same dtype on a device that accumulates in fp32 (fp64 for fp64), in another order of summation."""
    order = "sequential" if precision.order == "pairwise" else "pairwise"
    wide = "float64" if precision.dtype == "float64" else "float32"
    return Precision(precision.dtype, wide, wide, order, saturate=precision.saturate)


def _called(target: Target, given: Arrays, dtype: str, names: tuple[str, ...]) -> tuple[Arrays, str]:
    own = {name: np.array(as_dtype(x, dtype)) for name, x in given.items()}
    try:
        answer = target(**own)
        if isinstance(answer, Mapping):
            named = {n: answer[n] for n in names if n in answer}
        else:
            several = answer if isinstance(answer, tuple) else (answer,)
            named = dict(zip(names, several, strict=False))
        odd = {n: why for n, x in named.items() if (why := _odd(x))}
        found = {n: _plain(x) for n, x in named.items() if n not in odd}
    except Exception as error:  # whatever a stranger's code raises is the answer for this trial
        return {}, f"{type(error).__name__}: {error}"
    missing = [n for n in names if n not in named]
    said = [f"{n}: {why}" for n, why in odd.items()]
    said += [f"did not return {', '.join(missing)}"] if missing else []
    return found, "; ".join(said)


def _odd(answer: Any) -> str:
    """Say why an answer is not an array of real numbers, whose conversion would drop a part of it; empty if it is."""
    if isinstance(answer, np.ma.MaskedArray):
        return "returned a masked array: return the values"
    dtype = np.asarray(answer).dtype
    real = dtype.kind in "biuf" or (dtype.kind == "V" and dtype.isbuiltin == 2)  # bf16 and fp8 of ml_dtypes
    return "" if real else f"returned {dtype.name}: real numbers are compared"


def _plain(answer: Any) -> Array:
    x = np.asarray(answer)
    return (
        x.astype(np.float64) if x.dtype.kind == "f" and x.dtype.itemsize > 8 else x
    )  # golden has no more digits


def judge_outcome(outcome: Outcome, name: str) -> dict[str, Verdict]:
    """Judge every output of a trial by one standard, by output name.

    Integers and bool are judged bit by bit whatever the standard, as checkers do. A standard that has no row for
    the dtype skips, and says so. msprobe's standards compare dumps, so both sides are rounded to the dtype: golden as
    a perfect device would have written it, the target as it is written where it comes in a wider format.
    """
    return {output: _judged(outcome, output, name) for output in outcome.golden}


def _judged(outcome: Outcome, output: str, name: str) -> Verdict:
    chosen = standard(name)
    if output not in outcome.target:
        part = Part("target", outcome.failure, "returns its outputs", ERROR)
        return conclude([part], chosen.name, chosen.source)
    target, golden, device = outcome.target[output], outcome.golden[output], outcome.device[output]
    if golden.dtype.kind in "iub":
        exact = judge(target, golden, "binary")
        return replace(exact, standard=chosen.name, messages=(*exact.messages, "integers: bit by bit"))
    try:
        if chosen.name.startswith("msprobe"):
            return _dumped(rounded(target, outcome.dtype), rounded(golden, outcome.dtype), chosen.name)
        if chosen.needs == "metrics" and outcome.dtype != "float64":  # some look at the types of a pair too
            target, golden = _float32(target), _float32(golden)
        other = device if chosen.needs == "device" else None
        return judge(target, golden, name, device=other, dtype=outcome.dtype)
    except InputError as error:
        text = "; ".join(f"{p.field} {p.rule}" for p in error.problems)
        if all(p.field == "dtype" for p in error.problems):
            return conclude([skipped("dtype", "", text)], chosen.name, chosen.source)
        part = Part("target", text, "can be compared", ERROR)
        return conclude([part], chosen.name, chosen.source)


def _dumped(target: Array, golden: Array, name: str) -> Verdict:
    """Judge as a comparison of two dumps does."""
    if name not in msprobe.OUTPUT_SHARE or 0 in (target.size, golden.size):
        return judge(target, golden, name)
    return msprobe.judge_output(compare_arrays(target, golden), name)


def _float32(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(np.float32)


def run(
    operators: Iterable[str | Operator] | str | Operator,
    dtypes: Iterable[str] = ("bfloat16",),
    standards: Iterable[str] = ("ascend-single",),
    *,
    count: int = 25,
    level: str | None = None,
    values: Sequence[str] = PLAIN,
    shape: Shape | None = None,
    seed: int = 0,
    precision: Precision | None = None,
    device: Precision | None = None,
    target: Target | None = None,
    progress: Progress | None = None,
) -> Table:
    """Try operators in several dtypes, judged by several standards on the same data.

    Parameters
    ----------
    operators : str, Operator, or several
        Names of `telekit.accuracy.numerics.operator_cases.OPERATORS`, or your own.
    dtypes : iterable of str
        Formats of inputs and outputs.
    standards : iterable of str
        See `telekit.accuracy.standards.judge.standards`; each gives rows of its own.
    count : int
        Trials of each operator and dtype.
    level : str, optional
        ``L0``, ``L1`` or ``L2``: as many trials as the Ascend standard asks for at that level, instead of ``count``.
    values, shape, seed
        As in `trials`.
    precision, device : Precision, optional
        As in `run_trial`, with each dtype put in. Where ``compute`` or ``accumulate`` is the precision's own
        dtype, it follows the dtype.
    target : callable, optional
        As in `run_trial`; with one operator only.
    progress : callable, optional
        ``progress(done, total)`` after every trial.

    Returns
    -------
    Table
        A row for each operator, dtype and standard, with the parts that led to it.

    Raises
    ------
    InputError
        If a name is not known, or a callable is given for several operators.
    """
    chosen = [operator(o) for o in ([operators] if isinstance(operators, str | Operator) else operators)]
    kinds, names = _listed(dtypes), [standard(n).name for n in _listed(standards)]
    _checked(chosen, level, target)
    many = LEVELS[level] if level else count
    ready = [
        (o, d, precision_for(precision, d), precision_for(device, d) if device else None)
        for o in chosen
        for d in kinds
    ]
    rows: list[Row] = []
    for done, (one, _, own, trusted) in enumerate(ready):
        tallies = [Tally(one.name, own.dtype, n) for n in names]
        for trial in trials(one, many, seed=seed, values=values, shape=_own_part(one, shape, chosen)):
            outcome = run_trial(one, trial, own, target=target, device=trusted)
            for tally in tallies:
                tally.add(trial.number, judge_outcome(outcome, tally.standard))
            if progress:
                progress(done * many + trial.number + 1, len(ready) * many)
        rows += [t.row() for t in tallies]
    return Table(tuple(rows), seed, tuple(values))


def _listed(names: Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _own_part(one: Operator, shape: Shape | None, all_of_them: Sequence[Operator]) -> dict[str, int]:
    """Dimensions of this operator; one that no operator has is left in, to be refused."""
    known = {n for o in all_of_them for n in o.sizes}
    return {n: v for n, v in (shape or {}).items() if n in one.sizes or n not in known}


def precision_for(precision: Precision | None, dtype: str) -> Precision:
    """Return the precision with another dtype; formats that were its own dtype follow."""
    if dtype == "float64":
        return replace(precision or Precision(), dtype=dtype, accumulate=dtype, compute=dtype)
    if precision is None:
        return Precision(dtype)
    accumulate, compute = (
        dtype if f == precision.dtype else f for f in (precision.accumulate, precision.compute)
    )
    return replace(precision, dtype=dtype, accumulate=accumulate, compute=compute)


def _checked(chosen: Sequence[Operator], level: str | None, target: Target | None) -> None:
    problems = []
    if level is not None and level not in LEVELS:
        problems.append(Problem("level", level, f"must be one of {', '.join(LEVELS)}", "L0"))
    if target is not None and len(chosen) != 1:
        problems.append(Problem("operators", len(chosen), "a callable stands for one operator", "matmul"))
    if target is not None and not callable(target):
        problems.append(Problem("target", type(target).__name__, "must be callable"))
    if problems:
        raise InputError(problems)
