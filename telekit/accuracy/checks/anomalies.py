"""NaN, Inf and sudden jumps in one run, without a golden: where they begin, in the order things happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan

import numpy as np

from telekit.accuracy.compared import BACKWARD, FORWARD, INPUT, OPTIMIZER, OUTPUT, PARAMETERS, PARAMETERS_GRAD
from telekit.accuracy.readers.named import NamedTensor
from telekit.errors import InputError, Problem

CRITICAL, HIGH, MEDIUM, JUMP = "critical", "high", "medium", "norm jump"
NORM_JUMP = 100.0
SHOWN = 8
_OUTPUT_IGNORED = ("empty", "masked_fill_")
_BUFFERS = ("recv", "all_gather", "reduce_scatter")
_STAGES = {FORWARD: 0, BACKWARD: 1, OPTIMIZER: 2}


@dataclass(frozen=True)
class Anomaly:
    """One operator with a NaN, an Inf or a jump.

    Attributes
    ----------
    operator : str
    level : str
        ``critical``: inputs are clean and an output is not, so it begins here; ``high``: both are not; ``medium``:
        only inputs; ``norm jump``: an output's norm is over 100 times the largest input's.
    order : int
        Place in the dump.
    step, rank : int or None
    count : int or None
        NaN and Inf in its outputs, where elements are there.
    elements : int or None
        Of how many.
    text : str
    """

    operator: str
    level: str
    order: int
    step: int | None
    rank: int | None
    count: int | None
    elements: int | None
    text: str


@dataclass(frozen=True)
class FiniteStatistics:
    """Statistics of the finite values of a tensor, and how many are not."""

    nan: int
    infinite: int
    elements: int
    maximum: float | None
    minimum: float | None
    mean: float | None
    norm: float | None


def finite_statistics(array: object) -> FiniteStatistics:
    """Return statistics over the finite values only, in float64."""
    values = np.asarray(array, np.float64).ravel()
    good = values[np.isfinite(values)]
    nan, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if not good.size:
        return FiniteStatistics(nan, infinite, values.size, None, None, None, None)
    return FiniteStatistics(
        nan, infinite, values.size, float(good.max()), float(good.min()), float(good.mean()),
        float(np.linalg.norm(good)),
    )  # fmt: skip


def anomalies(tensors: Iterable[NamedTensor], *, norm_jump: float = NORM_JUMP) -> tuple[Anomaly, ...]:
    """Find operators of a dump with NaN, Inf or a jump of norms, in the order of the dump (and of steps).

    Parameters
    ----------
    tensors : iterable of NamedTensor
        A dump with elements or statistics, of one or more ranks.
    norm_jump : float
        Largest output norm over largest input norm above which an operator is named.

    Returns
    -------
    tuple of Anomaly
        Of the first kind the first is where it began; what follows it is mostly its consequence.

    Notes
    -----
    msprobe's overflow check: outputs of ``empty*`` and ``masked_fill_`` and buffers that a receive, an all-gather or
    a reduce-scatter will write are not judged.
    """
    groups: dict[tuple[int | None, int | None, str], list[NamedTensor]] = {}
    for t in tensors:
        if t.kind == "tensor":
            groups.setdefault((t.step, t.rank, t.api or t.name), []).append(t)
    found = []
    for order, ((step, rank, api), own) in enumerate(groups.items()):
        one = _judge(api, own, order, step, rank, norm_jump)
        if one is not None:
            found.append(one)
    return tuple(sorted(found, key=lambda a: (a.step or 0, a.order)))


def _judge(
    api: str, own: Sequence[NamedTensor], order: int, step: int | None, rank: int | None, norm_jump: float
) -> Anomaly | None:
    lower = api.lower()
    buffers = any(w in lower for w in _BUFFERS)
    ignored = any(w in lower for w in _OUTPUT_IGNORED)
    inputs = [t for t in own if t.part in (INPUT, PARAMETERS)]
    outputs = [] if ignored else [t for t in own if t.part in (OUTPUT, PARAMETERS_GRAD, "")]
    if buffers:
        inputs = [t for t in inputs if "out" not in t.name.rsplit(".", 1)[-1]]
    bad_in, bad_out = ([t for t in side if not _finite(t)] for side in (inputs, outputs))
    if bad_in or bad_out:
        level = CRITICAL if not bad_in else HIGH if bad_out else MEDIUM
        counts = [_count(t) for t in bad_out]
        count = sum(c for c in counts if c is not None) if counts and None not in counts else None
        size = sum(int(np.prod(t.shape)) for t in bad_out if t.shape is not None) if bad_out else None
        names = ", ".join(t.name for t in (bad_out or bad_in)[:3])
        what = {CRITICAL: "begins here", HIGH: "passes through", MEDIUM: "comes in and does not go out"}[
            level
        ]
        share = f" ({count} of {size} values)" if count is not None else ""
        return Anomaly(api, level, order, step, rank, count, size, f"NaN or Inf {what}: {names}{share}")
    before, after = (
        max((n for t in side if (n := _norm(t)) is not None), default=None) for side in (inputs, outputs)
    )
    if before and after is not None and after / before > norm_jump:
        text = f"the largest output norm is {after / before:.4g} times the largest input norm"
        return Anomaly(api, JUMP, order, step, rank, None, None, text)
    return None


def _finite(t: NamedTensor) -> bool:
    if t.is_nan is not None:
        return not t.is_nan
    s = t.statistics
    if s is not None:
        return all(isfinite(float(v)) for v in (s.max, s.min, s.mean) if v is not None)
    return bool(np.isfinite(np.asarray(t.load(), np.float64)).all()) if t.has_data else True


def _count(t: NamedTensor) -> int | None:
    if not t.has_data:
        return None
    s = finite_statistics(t.load())
    return s.nan + s.infinite


def _norm(t: NamedTensor) -> float | None:
    if t.statistics is not None and t.statistics.norm is not None:
        return float(t.statistics.norm)
    return (
        finite_statistics(t.load()).norm if t.has_data and t.dtype.startswith(("float", "bfloat")) else None
    )


@dataclass(frozen=True)
class Sighting:
    """An anomaly of a rank at a communication: ``at`` counts its place in the rank's own order."""

    rank: int
    operator: str
    at: int
    peer: int | None = None


def first_rank(
    first: Mapping[int, Sighting | None], sent: Sequence[tuple[int, int, int, int]] = ()
) -> tuple[int, ...]:
    """Order ranks by where an anomaly began, by who sent what to whom.

    Parameters
    ----------
    first : mapping of int to Sighting or None
        Each rank's first anomaly; None where it has none.
    sent : sequence of (source, place, destination, place)
        Directed communications (send to receive, broadcast, scatter), with each side's place in its own order.
        Undirected ones (all-reduce) are simultaneous and order nothing.

    Returns
    -------
    tuple of int
        Ranks with an anomaly that no other rank's can have caused, lowest first; if all were reached, all.

    Notes
    -----
    msprobe's analysis between ranks: the source of a directed communication comes before its destination.
    """
    wrong = {r: s for r, s in first.items() if s is not None}
    reached = set()
    for source, at, destination, there in sent:
        both = source in wrong and destination in wrong and source != destination
        if both and wrong[source].at <= at and wrong[destination].at >= there:
            reached.add(destination)
    return tuple(sorted(set(wrong) - reached)) or tuple(sorted(wrong))


@dataclass(frozen=True)
class Reading:
    """One value of a training monitor.

    ``stage`` is forward, backward or optimizer; ``pipeline`` and ``chunk`` its place in the pipeline; ``call`` counts
    within it.
    """

    name: str
    step: int
    value: float
    micro_step: int = 0
    stage: str = FORWARD
    pipeline: int = 0
    chunk: int = 0
    call: int = 0


@dataclass(frozen=True)
class Alert:
    """A reading that stands out: ``AnomalyTurbulence`` or ``AnomalyNan``."""

    kind: str
    reading: Reading
    text: str


def alerts(readings: Iterable[Reading], *, threshold: float = 0.5, shown: int = SHOWN) -> tuple[Alert, ...]:
    """Return the first alerts of a training monitor, in the order things happen.

    A value is turbulent when its size is above ``1 + threshold`` times the mean size of what the same name had in
    earlier steps.
    Sorted by step, micro-step, stage (forward, backward, optimizer), then along the pipeline: upwards in forward,
    downwards in backward.

    Raises
    ------
    InputError
        A stage that is not known, or a threshold that is not above 0.

    Notes
    -----
    msprobe's monitor: AnomalyTurbulence, AnomalyNan, the first eight.
    """
    items = list(readings)
    problems = [
        Problem(f"readings[{i}].stage", r.stage, f"must be one of {', '.join(_STAGES)}")
        for i, r in enumerate(items)
        if r.stage not in _STAGES
    ]
    if not threshold > 0:
        problems.append(Problem("threshold", threshold, "must be above 0", "0.5"))
    if problems:
        raise InputError(problems)
    history: dict[str, tuple[float, int]] = {}
    found = []
    for r in sorted(items, key=_when):
        if isnan(r.value):
            found.append(Alert("AnomalyNan", r, f"{r.name} is NaN in step {r.step}"))
            continue
        total, count = history.get(r.name, (0.0, 0))
        mean = total / count if count else None
        if mean is not None and abs(r.value) > (1 + threshold) * mean:
            text = f"{r.name} is {r.value:.4g} in step {r.step}, its mean so far {mean:.4g}"
            found.append(Alert("AnomalyTurbulence", r, text))
        if isfinite(r.value):
            history[r.name] = (total + abs(r.value), count + 1)
    return tuple(found[:shown])


def _when(r: Reading) -> tuple[int, int, int, int, int, int]:
    sign = -1 if r.stage == BACKWARD else 1
    return r.step, r.micro_step, _STAGES[r.stage], sign * r.chunk, sign * r.pipeline, r.call
