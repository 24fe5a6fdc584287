import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.pipeline.lattice import lattice, lattice_makespan
from telekit.pipeline.schedules import order
from telekit.pipeline.simulate import makespan


def by_events(schedule, forward, backward, m, comm):
    """The same makespans from the event kernel, which knows nothing of levels."""
    v, p = forward.shape[-2:]
    found = order(schedule, p, m, v)
    durations = np.moveaxis(np.stack([forward, backward]), 1, -1)[found.kind, found.chunk, found.device]
    lag = np.where(found.links[2] > 0, comm, 0.0)
    return found.compiled.finish(durations, lag).max(axis=0)


@given(
    st.sampled_from(["1f1b", "interleaved-1f1b"]),
    st.integers(1, 9),
    st.integers(1, 60),
    st.integers(2, 4),
    st.sampled_from([0.0, 0.03, 1.5]),
    st.sampled_from([0.0, 1e-3, 0.3, 3.0]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=120, deadline=None)
def test_equals_the_event_kernel(schedule, p, m, v, comm, spread, seed):
    rng = np.random.default_rng(seed)
    if schedule == "1f1b":
        v = 1
    else:
        p = max(p, 2)
        m = -(-m // p) * p
    forward, backward = 1 + spread * rng.random((7, v, p)), 2 + spread * rng.random((7, v, p))
    expected = by_events(schedule, forward, backward, m, comm)
    np.testing.assert_allclose(makespan(schedule, forward, backward, m, comm), expected, rtol=1e-12)


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved-1f1b", 2)])
def test_whole_times_are_exact_also_where_periods_are_skipped(schedule, v):
    rng = np.random.default_rng(5)
    forward, backward = (rng.integers(1, 1000, (300, v, 6)) * 1.0 for _ in range(2))
    expected = by_events(schedule, forward, backward, 480, 0.0)
    assert (makespan(schedule, forward, backward, 480) == expected).all()


def test_a_stage_that_drifts_slowly_into_the_way_is_not_skipped():
    """Stages so nearly equal that hundreds of rounds pass before the slower one behind is felt."""
    forward = np.ones((1, 6))
    forward[0, [0, 5]] = 1.002, 1.001
    assert makespan("1f1b", forward, 2 * forward, 1000, 0.3) == pytest.approx(
        by_events("1f1b", forward[None], 2 * forward[None], 1000, 0.3)[0], rel=1e-13
    )


@pytest.mark.parametrize(("schedule", "p", "m", "v"), [("1f1b", 4, 10, 1), ("interleaved-1f1b", 4, 12, 3)])
def test_steady_levels_are_full_and_repeat(schedule, p, m, v):
    found = lattice(schedule, p, m, v)
    first, end = found.steady
    rests = found.duration[:, :-1] == 2 * v * p
    assert not rests[first:end].any()
    assert rests[first - 1].any()
    assert (found.duration[first : end - found.period] == found.duration[first + found.period : end]).all()
    assert (found.source[first : end - found.period] == found.source[first + found.period : end]).all()


def test_every_pass_has_one_level():
    p, m, v = 4, 8, 2
    found = lattice("interleaved-1f1b", p, m, v)
    rows, times = np.unique(found.duration[:, :-1], return_counts=True)
    assert rows.tolist() == list(range(2 * v * p + 1))
    assert (times[:-1] == m).all()


def test_batches_keep_their_shape():
    rng = np.random.default_rng(1)
    forward = rng.random((3, 5, 1, 4))
    found = makespan("1f1b", forward, 2 * forward, 9)
    assert found.shape == (3, 5)
    assert found[2, 4] == makespan("1f1b", forward[2, 4], 2 * forward[2, 4], 9)
    assert makespan("1f1b", forward[:0], forward[:0], 9).shape == (0, 5)


def test_many_sets_are_the_same_as_few():
    """More sets than one block holds."""
    rng = np.random.default_rng(2)
    durations = rng.random((2, 1, 64, 1200))
    found = lattice("1f1b", 64, 80, 1)
    whole = lattice_makespan(found, durations)
    assert (whole[700:710] == lattice_makespan(found, np.ascontiguousarray(durations[..., 700:710]))).all()
