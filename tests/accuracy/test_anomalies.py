"""Where NaN, Inf and jumps begin."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from locating_rows import tensor

from telekit.accuracy.checks.anomalies import (
    Reading,
    Sighting,
    alerts,
    anomalies,
    finite_statistics,
    first_rank,
)
from telekit.errors import InputError

NAN = float("nan")


def dumped(api, part, array, **more):
    return dataclasses.replace(tensor(f"{api}.{part}.0", array, **more), api=api, part=part)


def operator(api, before, after, **more):
    return [dumped(api, "input", before, **more), dumped(api, "output", after, **more)]


@pytest.mark.parametrize("statistics_only", [False, True])
def test_origin_passage_and_end(statistics_only):
    good, bad = np.ones(4), np.array([1, NAN, np.inf, 1])
    more = {"statistics_only": statistics_only}
    own = operator("a", good, good, **more) + operator("b", good, bad, **more)
    own += operator("c", bad, bad, **more) + operator("d", bad, good, **more)
    assert [(x.operator, x.level) for x in anomalies(own)] == [
        ("b", "critical"),
        ("c", "high"),
        ("d", "medium"),
    ]


def test_what_makes_memory_is_not_judged():
    bad = np.array([NAN])
    assert not anomalies(operator("Torch.empty_like.0", np.ones(1), bad))


def test_norm_jump():
    found = anomalies(operator("a", np.ones(4), 101 * np.ones(4)))
    assert [x.level for x in found] == ["norm jump"]
    assert not anomalies(operator("a", np.ones(4), 99 * np.ones(4)))


def test_finite_statistics_leave_out_the_rest():
    found = finite_statistics([3.0, NAN, -np.inf, 4.0])
    assert (found.nan, found.infinite, found.elements) == (1, 1, 4)
    assert (found.maximum, found.minimum, found.mean, found.norm) == (4, 3, 3.5, 5)
    assert finite_statistics([NAN]).norm is None


def test_between_ranks_the_sender_comes_first():
    first = {0: Sighting(0, "gemm", 3), 1: Sighting(1, "norm", 9), 2: None}
    assert first_rank(first, [(0, 4, 1, 8)]) == (0,)
    assert first_rank(first, [(0, 2, 1, 8)]) == (0, 1)  # sent before it went wrong
    assert first_rank(first) == (0, 1)


def test_alerts_in_the_order_things_happen():
    readings = [Reading("w", s, v) for s, v in enumerate((1.0, 1.0, 1.4, 1.8, NAN))]
    assert [(a.kind, a.reading.step) for a in alerts(readings)] == [
        ("AnomalyTurbulence", 3),
        ("AnomalyNan", 4),
    ]
    both = [Reading("x", 1, NAN, stage="backward", pipeline=p) for p in (0, 1)]
    both += [Reading("x", 1, NAN, stage="forward", pipeline=p) for p in (1, 0)]
    order = [(a.reading.stage, a.reading.pipeline) for a in alerts(both)]
    assert order == [("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0)]
    with pytest.raises(InputError, match="stage"):
        alerts([Reading("x", 0, 1.0, stage="sideways")])
