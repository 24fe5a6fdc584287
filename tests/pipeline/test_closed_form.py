import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.layout.config import SCHEDULES
from telekit.layout.schedules import default_chunks
from telekit.pipeline.closed_form import in_flight, peak_held, pipeline_time_s
from telekit.pipeline.simulate import SIMULATED, makespan, simulate


def equal(schedule, p, m, f=1.0, b=2.0, w=1.0, comm=0.0, both=None):
    """Time with equal stages that take f, b and w each, whatever their chunks."""
    v = 2 if schedule in ("interleaved-1f1b", "zb-v", "dualpipe-v") else 1
    times = [None if x is None else np.full((v, p), x / v) for x in (f, b, w, both)]
    return pipeline_time_s(schedule, *times[:2], m, times[2], comm, times[3])


# Makespans with F = B - W = W = 1 that all tools which ran agree on; a DualPipe pair is one block of 3.
PEERS = [
    (4, 8, 33, 28.5, 27, 25.5, 26, 27),
    (4, 16, 57, 52.5, 51, 49.5, 50, 51),
    (4, 64, 201, 196.5, 195, 193.5, 194, 195),
    (8, 8, 45, 34.5, 31, 27.5, None, None),
    (8, 16, 69, 58.5, 55, 51.5, 54, 55),
    (8, 32, 117, 106.5, 103, 99.5, 102, 103),
    (8, 64, 213, 202.5, 199, 195.5, 198, 199),
    (16, 16, 93, 70.5, 63, 55.5, None, None),
    (16, 32, 141, 118.5, 111, 103.5, 110, 111),
    (16, 64, 237, 214.5, 207, 199.5, 206, 207),
]
COLUMNS = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")


@pytest.mark.parametrize("row", PEERS)
def test_equals_the_peers(row):
    p, m, *times = row
    for schedule, expected in zip(COLUMNS, times, strict=True):
        if expected is not None:
            assert equal(schedule, p, m) == pytest.approx(expected, rel=1e-12)


def test_case_sc01():
    """p 8, m 20: DualPipe 66 with F&B 3, ZB-H1 67, 1F1B 81."""
    assert equal("1f1b", 8, 20) == 81
    assert equal("zb-h1", 8, 20) == 67
    assert equal("dualpipe", 8, 20, both=3.0) == 66
    assert equal("seqsmartvpp", 8, 20) == 81


@pytest.mark.parametrize(
    ("p", "m", "both", "expected"),
    [(4, 8, 2, 22), (8, 20, 2, 52), (8, 32, 2, 76), (8, 32, 2.5, 89), (16, 64, 2, 152), (16, 64, 2.5, 179)],
)
def test_dualpipe_with_faster_pairs(p, m, both, expected):
    """Makespans of an event sweep over DualPipe's published order, F = B - W = W = 1."""
    assert equal("dualpipe", p, m, both=both) == pytest.approx(expected)


def test_dualpipe_mixes_a_stage_with_its_mirror():
    f = np.array([[1.0, 2.0, 3.0, 4.0]])
    even = np.full((1, 4), 2.5)
    assert pipeline_time_s("dualpipe", f, 2 * f, 16, f) == pipeline_time_s(
        "dualpipe", even, 2 * even, 16, even
    )


@pytest.mark.parametrize(
    ("f", "b_input", "w"), [(1.0, 1.0, 1.0), (18.522, 18.086, 9.337), (10.419, 10.207, 7.715)]
)
def test_bubbles_of_the_papers_tables(f, b_input, w):
    """arXiv 2401.10241 table 2 (B without W) and DualPipe's README (B with W), at equal stages."""
    p, m = 8, 24
    busy = m * (f + b_input + w)
    b = b_input + w
    assert equal("1f1b", p, m, f, b, w) - busy == pytest.approx((p - 1) * (f + b_input + w))
    assert equal("zb-h1", p, m, f, b, w) - busy == pytest.approx((p - 1) * (f + b_input - w))
    assert equal("zb-h1", p, m, f, b, w) - busy == pytest.approx((p - 1) * (f + b - 2 * w))
    assert equal("dualpipe", p, m, f, b, w) - busy == pytest.approx((p // 2 - 1) * (f + b + b - 3 * w))


@pytest.mark.parametrize(
    ("m", "f", "b_input", "w", "comm", "rate"),
    [
        (24, 18.522, 18.086, 9.337, 0.601, 0.1585),
        (32, 18.513, 18.086, 9.331, 0.626, 0.1242),
        (64, 18.546, 18.097, 9.321, 0.762, 0.0674),
    ],
)
def test_rates_of_zb_h1(m, f, b_input, w, comm, rate):
    """arXiv 2401.10241 table 5, by the scheduler's own simulation."""
    time = equal("zb-h1", 8, m, f, b_input + w, w, comm)
    assert 1 - m * (f + b_input + w) / time == pytest.approx(rate, abs=0.01)


@given(
    st.sampled_from(SIMULATED),
    st.integers(2, 8),
    st.integers(1, 6),
    st.integers(2, 4),
    st.floats(0.1, 5),
    st.floats(0.1, 5),
    st.floats(0, 1),
)
@settings(max_examples=120, deadline=None)
def test_equals_the_simulation_for_equal_stages(schedule, p, groups, v, f, b, share):
    """For any communication (interleaved: at most a chunk's shorter pass)."""
    v = v if schedule == "interleaved-1f1b" else 1
    comm, m = share * min(f, b), groups * p
    forward, backward = np.full((v, p), f), np.full((v, p), b)
    expected = makespan(schedule, forward, backward, m, comm)
    assert pipeline_time_s(schedule, forward, backward, m, comm_s=comm) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_gpipe_is_exact_for_any_stages(p, m, seed):
    f, b = np.random.default_rng(seed).random((2, 1, p))
    time = pipeline_time_s("gpipe", f, b, m, comm_s=0.3)
    assert time == pytest.approx(simulate("gpipe", f, b, m, 0.3).makespan_s, rel=1e-12)


@given(
    st.sampled_from(["1f1b", "interleaved-1f1b"]),
    st.integers(2, 8),
    st.integers(1, 24),
    st.integers(2, 3),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_is_never_above_the_simulation(schedule, p, m, v, comm, seed):
    if schedule == "1f1b":
        v = 1
    else:
        m = -(-m // p) * p
    rng = np.random.default_rng(seed)
    forward, backward = rng.random((2, 50, v, p))
    exact = makespan(schedule, forward, backward, m, comm)
    f, b = (np.moveaxis(x, 1, 0) for x in (forward, backward))
    assert (pipeline_time_s(schedule, f, b, m, comm_s=comm) <= exact * (1 + 1e-12)).all()


@pytest.mark.parametrize(("p", "m"), [(4, 3), (4, 8), (8, 8), (8, 12), (16, 16), (16, 64)])
def test_1f1b_with_stages_up_to_30_percent_apart(p, m):
    """The docstring's claim: the formula finds the longest way itself, where sum + (m - 1) max is 5 % off."""
    rng = np.random.default_rng(p * m)
    f, b = 1 + 0.3 * rng.random((1, 1000, p)), 2 * (1 + 0.3 * rng.random((1, 1000, p)))
    exact = makespan("1f1b", f[0][:, None], b[0][:, None], m)
    np.testing.assert_allclose(pipeline_time_s("1f1b", f, b, m), exact, rtol=1e-12)
    rule_of_thumb = (f + b)[0].sum(axis=-1) + (m - 1) * (f + b)[0].max(axis=-1)
    assert (rule_of_thumb / exact).max() > 1.02


@pytest.mark.parametrize(("spread", "worst"), [(0.3, 0.06), (1.0, 0.15)])
def test_interleaved_with_unequal_chunks(spread, worst):
    rng = np.random.default_rng(8)
    for p, m, v in [(4, 8, 2), (8, 8, 2), (8, 32, 2), (8, 32, 4)]:
        f, b = 1 + spread * rng.random((500, v, p)), 2 * (1 + spread * rng.random((500, v, p)))
        exact = makespan("interleaved-1f1b", f, b, m)
        found = pipeline_time_s("interleaved-1f1b", np.moveaxis(f, 1, 0), np.moveaxis(b, 1, 0), m)
        assert (found / exact).min() > 1 - worst


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_table_is_its_rows(schedule):
    """Rule 1: columns and single layouts by the same formula, to 1e-12."""
    rng = np.random.default_rng(3)
    v, p, n = max(default_chunks(schedule), 1), 4, 250
    f, b, w, both = rng.random((4, v, n, p))
    m, comm = 8.0 * rng.integers(1, 9, (n, 1)), rng.random((n, 1))
    table = pipeline_time_s(schedule, f, b + w, m, w, comm, both + f)
    held = in_flight(schedule, p, v, m)
    peak = peak_held(schedule, f, m)
    assert table.shape == (n,)
    assert held.shape == (v, n, p)
    for i in range(n):
        one = pipeline_time_s(
            schedule, f[:, i], (b + w)[:, i], float(m[i, 0]), w[:, i], float(comm[i, 0]), (both + f)[:, i]
        )
        assert one.ndim == 0
        assert table[i] == pytest.approx(one, rel=1e-12)
        np.testing.assert_array_equal(held[:, i], in_flight(schedule, p, v, int(m[i, 0])))
        np.testing.assert_allclose(peak[i], peak_held(schedule, f[:, i], int(m[i, 0])), rtol=1e-12)


def test_weights_may_vary_where_micro_batches_do_not():
    weights = np.random.default_rng(4).random((2, 5, 4))
    table = peak_held("interleaved-1f1b", weights, 8)
    assert table.shape == (5, 4)
    np.testing.assert_array_equal(table[3], peak_held("interleaved-1f1b", weights[:, 3], 8))


@pytest.mark.parametrize("schedule", SIMULATED)
@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3, 9])
def test_activations_equal_the_simulation(schedule, p, groups):
    rng = np.random.default_rng(p + groups)
    for v in (2, 3, 5) if schedule == "interleaved-1f1b" else (1,):
        found = simulate(schedule, np.ones((v, p)), np.ones((v, p)), groups * p)
        np.testing.assert_array_equal(in_flight(schedule, p, v, groups * p), found.peak_in_flight)
        for weight in rng.random((20, v, p)):
            np.testing.assert_allclose(peak_held(schedule, weight, groups * p), found.peak_held(weight))


@pytest.mark.parametrize(
    ("schedule", "chunks", "p", "m", "expected"),
    [
        ("zb-h1", 1, 8, 16, 8),
        ("zb-v", 2, 8, 16, 8),
        ("dualpipe", 1, 8, 16, 9),
        ("dualpipe-v", 2, 8, 16, 8.5),
        ("dualpipe-v", 2, 16, 32, 16.5),
        ("interleaved-1f1b", 2, 8, 16, 11.5),
        ("interleaved-1f1b", 2, 8, 8, 8),
        ("seqsmartvpp", 1, 8, 16, 8),
    ],
)
def test_peak_activations_equal_the_peers(schedule, chunks, p, m, expected):
    """Micro-batches of a whole stage."""
    assert peak_held(schedule, np.full((chunks, p), 1 / chunks), m).max() == expected


@pytest.mark.parametrize(
    ("schedule", "chunks", "weight", "field"),
    [
        ("zigzag", 1, 1.0, "schedule"),
        ("1f1b", 2, 1.0, "chunks"),
        ("interleaved-1f1b", 1, 1.0, "chunks"),
        ("zb-v", 3, 1.0, "chunks"),
        ("zb-h1", 1, None, "weight_s"),
        ("dualpipe-v", 2, None, "weight_s"),
    ],
)
def test_what_a_formula_cannot_take(schedule, chunks, weight, field):
    ones = np.ones((chunks, 4))
    with pytest.raises(InputError) as caught:
        pipeline_time_s(schedule, ones, ones, 8, None if weight is None else ones)
    assert caught.value.problems[0].field == field


def test_activations_of_an_unknown_schedule():
    with pytest.raises(InputError, match="known"):
        in_flight("zigzag", 4, 1, 8)
