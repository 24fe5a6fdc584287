"""Critical paths: as long as the simulated makespan where they were found, never longer elsewhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.pipeline.simulate import makespan
from telekit.planner.critical_paths import critical_paths, one_slow_part
from telekit.planner.stage_problem import LayerType, RecomputeOption, StageProblem, in_flight_profiles

SCHEDULES = (
    ("1f1b", 5, 9, 1),
    ("1f1b", 5, 3, 1),
    ("1f1b", 1, 4, 1),
    ("gpipe", 4, 6, 1),
    ("interleaved-1f1b", 4, 8, 3),
    ("interleaved-sapp", 4, 9, 2),
    ("interleaved-sapp-less-memory", 4, 8, 2),
)


def problem_of(schedule, stages, micro_batches, chunks, comm_s=0.0):
    run = LayerType("a", 2 * stages * chunks, 1.0, 2.0, 1.0, (RecomputeOption("none", 0.0, 1.0),))
    return StageProblem((run,), stages, chunks, micro_batches, schedule, comm_s=comm_s)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]), st.booleans())
def test_path_is_the_makespan_here_and_a_bound_everywhere(shape, seed, comm_s, ties):
    problem = problem_of(*shape, comm_s)
    random = np.random.default_rng(seed)
    size = (2, problem.chunks, problem.stages)
    here = random.integers(1, 4, size).astype(float) if ties else random.random(size)
    elsewhere = random.random(size)

    def time(times):
        return float(makespan(problem.schedule, *times, problem.micro_batches, comm_s))

    for path in critical_paths(problem, *here):
        assert path.length_s(*here, comm_s) == pytest.approx(time(here), rel=1e-12)
        assert path.length_s(*elsewhere, comm_s) <= time(elsewhere) * (1 + 1e-12)


def test_one_slow_part_runs_all_its_passes():
    problem = problem_of("1f1b", 4, 6, 1)
    longest = [max(path.passes) for path in one_slow_part(problem)]
    assert longest == [6] * 4


def brute_held(schedule, stages, micro_batches, chunks, weight):
    """Peak of each stage, counting every pass of its order."""
    from telekit.pipeline.schedules import FORWARD, order

    found = order(schedule, stages, micro_batches, chunks)
    peak, now = np.zeros(stages), np.zeros(stages)
    for device, kind, chunk in zip(found.device, found.kind, found.chunk, strict=True):
        now[device] += weight[chunk, device] * (1 if kind == FORWARD else -1)
        peak[device] = max(peak[device], now[device])
    return peak


@pytest.mark.parametrize("shape", SCHEDULES)
def test_moments_give_the_exact_peak(shape):
    schedule, stages, micro_batches, chunks = shape
    profiles = in_flight_profiles(schedule, stages, micro_batches, chunks)
    for seed in range(20):
        weight = np.random.default_rng(seed).random((chunks, stages))
        exact = brute_held(*shape, weight)
        assert np.einsum("kvs,vs->ks", profiles, weight).max(axis=0) == pytest.approx(exact)


def test_one_chunk_holds_the_stages_behind_it():
    assert in_flight_profiles("1f1b", 4, 16, 1)[0, 0].tolist() == [4, 3, 2, 1]
    assert in_flight_profiles("1f1b", 4, 2, 1)[0, 0].tolist() == [2, 2, 2, 1]
