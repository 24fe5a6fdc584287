"""Faults that public tools had in counting overlap, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import pytest

from telekit.comm.overlap import COMPUTE, Task, rate_of_efficiency, simulate
from telekit.comm.overlap_formulas import pair_exposed_s
from telekit.comm.overlap_plans import chunked

BASELINE, ONE_QUEUE, MANY_QUEUES = 184.2, 191.1, 198.5
"""TFLOP/s without overlap, with CUDA_DEVICE_MAX_CONNECTIONS 1, and with 32."""


def test_cm13_overlap_efficiency_is_an_input():
    """From 32 connections (nothing left to hide) to 1, half is hidden: then the gain falls to its measured value."""
    assert round(100 * (ONE_QUEUE / BASELINE - 1), 1) == 3.7
    assert round(100 * (MANY_QUEUES / BASELINE - 1), 1) == 7.8
    hideable = 1 / BASELINE - 1 / MANY_QUEUES
    tasks = [Task("layers", COMPUTE, 1 / MANY_QUEUES), Task("all-to-all", "comm", hideable)]
    efficiency = (1 / BASELINE - 1 / ONE_QUEUE) / hideable
    assert efficiency == pytest.approx(0.501, abs=5e-4)
    for share, speed in ((0, BASELINE), (efficiency, ONE_QUEUE), (1, MANY_QUEUES)):
        rate = rate_of_efficiency(share)
        run = simulate(tasks, rate, rate)
        assert 1 / run.makespan_s == pytest.approx(speed)
        assert run.efficiency == pytest.approx(share, abs=1e-9)


def test_cm13_one_hardware_queue_hides_less_of_the_same_plan():
    """Experts wait behind the start of the last dispatch (at 6), combines behind that of the last experts (at 18)."""
    tasks = chunked(8, 16, 8, chunks=4)
    one, many = simulate(tasks, queues=1), simulate(tasks, queues=32)
    assert (many.makespan_s, many.efficiency) == (2 + 16 + 2, 0.75)
    assert (one.makespan_s, one.efficiency) == (6 + 3 * 4 + 4 * 2, 0.375)


def test_cm14_exposed_time_is_what_the_window_leaves():
    for comm, window, exposed in ((5, 3, 2), (2, 3, 0)):
        run = simulate([Task("window", COMPUTE, window), Task("reduce", "comm", comm)])
        assert run.exposed_s == run.added_s == exposed
        assert pair_exposed_s(window, comm) == exposed
