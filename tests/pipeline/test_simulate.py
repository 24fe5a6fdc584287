import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_oracle import gpipe_order, megatron_order, peaks, sweep

from telekit.errors import InputError
from telekit.pipeline.order import FORWARD, dependencies
from telekit.pipeline.simulate import makespan, simulate

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "interleaved-sapp", "interleaved-sapp-less-memory")


def lines_of(schedule, p, m, v):
    leads = None
    if schedule == "gpipe":
        return gpipe_order(p, m)
    if schedule == "interleaved-sapp":
        leads = [(v + 1) * p - 2 * s - 2 + (m % p) * (v - 1) for s in range(p)]
    if schedule == "interleaved-sapp-less-memory":
        leads = [v * p - s - 1 for s in range(p)]
    return megatron_order(p, m, v, leads=leads)


@st.composite
def cases(draw):
    """Schedule, sizes it allows, whole or broken times of every chunk, communication time."""
    schedule = draw(st.sampled_from(SCHEDULES))
    p, v, m = draw(st.integers(2, 5)), 1, draw(st.integers(1, 12))
    if schedule.startswith("interleaved"):
        v, m = draw(st.integers(2, 3)), p * draw(st.integers(1, 3))
        if schedule == "interleaved-sapp":
            m += draw(st.integers(0, p - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whole = draw(st.booleans())
    forward, backward = (rng.integers(0, 9, (v, p)) * 1.0 if whole else rng.random((v, p)) for _ in range(2))
    return schedule, p, m, v, forward, backward, draw(st.sampled_from([0.0, 0.0, 0.25, 3.0]))


@given(cases())
@settings(max_examples=150, deadline=None)
def test_equals_a_sweep_by_hand_pass_by_pass(case):
    schedule, p, m, v, forward, backward, comm = case
    starts, ends = sweep(lines_of(schedule, p, m, v), forward, backward, comm)
    found = simulate(schedule, forward, backward, m, comm)
    ops = found.order
    part = ops.part[ops.chunk, ops.device]
    keys = [("FB"[k], i, q) for k, i, q in zip(ops.kind, ops.micro_batch, part, strict=True)]
    assert len(keys) == len(ends)
    np.testing.assert_allclose(found.start_s, [starts[key] for key in keys], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.end_s, [ends[key] for key in keys], rtol=0, atol=1e-9)
    assert makespan(schedule, forward, backward, m, comm) == pytest.approx(
        max(ends.values()), rel=1e-12, abs=1e-12
    )


@given(cases())
@settings(max_examples=100, deadline=None)
def test_holds_for_every_schedule(case):
    schedule, p, m, v, forward, backward, comm = case
    found = simulate(schedule, forward, backward, m, comm)
    before, after = dependencies(found.order)
    lag = np.where(found.order.device[before] != found.order.device[after], comm, 0.0)
    assert (found.start_s[after] >= found.end_s[before] + lag - 1e-9).all()
    by_device = found.start_s.reshape(p, -1)[:, 1:] - found.end_s.reshape(p, -1)[:, :-1]
    assert (by_device >= -1e-9).all()
    np.testing.assert_allclose(found.busy_s, m * (forward + backward).sum(axis=0), atol=1e-9)
    critical = (forward + backward).sum() + 2 * (p * v - 1) * comm
    assert found.makespan_s >= max(found.busy_s.max(), critical) - 1e-9


@given(cases())
@settings(max_examples=60, deadline=None)
def test_activations_equal_a_count_by_hand(case):
    schedule, p, m, v, forward, backward, comm = case
    found = simulate(schedule, forward, backward, m, comm)
    by_hand = peaks(lines_of(schedule, p, m, v), v)
    assert found.peak_in_flight.T.tolist() == [held for held, _ in by_hand]
    weight = 1 + forward
    expected = [max(float(np.dot(state, weight[:, s])) for state in by_hand[s][1]) for s in range(p)]
    np.testing.assert_allclose(found.peak_held(weight), expected)


# SAPP's case test.json: 16 stages, 96 layers of 180 (backward 360, fully recomputed 540), head 30, tail 90.
T1 = {
    "telechat": ([5, 6, 4, 4, 6, 5, 6, 6, 6, *[7] * 6, 6], [3, 3, 0, 0, 2, 1, 1, 1], 3780, 110_610),
    "toolkits": ([5, 6, 5, 5, *[6] * 6, 7, 7, 6, 6, 7, 6], [3, 3, 2, 2, 2, 2, 1, 1], 3780, 111_510),
    "fewest recomputed": ([3, 6, 4, 5, *[6] * 5, *[7] * 6, 6], [1, 3, 0, 1, 2, 2, 1, 1], 3780, 110_610),
    "larger bottleneck": (
        [6, 6, 6, 6, 7, 7, 5, 5, 6, 7, 6, 6, 6, 6, 5, 6],
        [4, 3, 3, 3, 3, 3],
        4320,
        108_810,
    ),
}


def sapp_times(layers, backward_units):
    forward, backward = 180.0 * layers, 360.0 * backward_units
    forward[0, 0] += 30
    backward[0, 0] += 60
    forward[-1, -1] += 90
    backward[-1, -1] += 180
    return forward, backward


@pytest.mark.parametrize("name", T1)
def test_sapp_case_with_16_stages(name):
    layers, full, bottleneck, expected = T1[name]
    layers = np.array([layers])
    full = np.array([full + [0] * (16 - len(full))])
    assert layers.sum() == 96
    forward, backward = sapp_times(layers, layers + 0.5 * full)
    assert (forward + backward).max() == bottleneck
    assert makespan("1f1b", forward, backward, 16) == expected
    assert simulate("1f1b", forward, backward, 16).makespan_s == expected


def test_sapp_case_with_three_chunks():
    offset = np.zeros((3, 16))
    offset[0, [0, 3, 11]] = -2, 1, 1
    offset[1, [0, 3, 11]] = 1, -2, -1
    offset[2, [0, 9, 13]] = 1, -1, -1
    full, comm = np.zeros((3, 16)), np.zeros((3, 16))
    full[0, 0] = full[1:, 1] = comm[0, 0] = 1
    comm[1:, 1] = 2
    rest = [3, 3, 3, 1, 3, 3, 3, 3, 3, 3, 3, 1, 2, 2, 1, 0]
    select = np.array([[1, 3, 3, 0, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 0, 0], rest, rest])
    both = np.minimum(select, comm) - full
    slower = 0.5 * full + 0.165 * both + 0.125 * (select - full - both) + 0.125 * (comm - full - both)
    forward, backward = sapp_times(4 + offset, 4 + offset + slower)
    for schedule in SCHEDULES[2:]:
        assert makespan(schedule, forward, backward, 16) == pytest.approx(154_184.4, abs=1e-6)


def test_gpipe_and_1f1b_differ_in_memory_alone():
    """SC06: p 8, m 32, F = B = 1; the claimed 71 stops at the last stage's final backward."""
    ones = np.ones((1, 8))
    gpipe, one = simulate("gpipe", ones, ones, 32), simulate("1f1b", ones, ones, 32)
    assert gpipe.makespan_s == one.makespan_s == 78
    assert one.bubble_fraction == pytest.approx(7 / 39)
    assert one.bubble_fraction_of_ideal == pytest.approx(7 / 32)
    assert gpipe.peak_in_flight.tolist() == [[32] * 8]
    assert one.peak_in_flight.tolist() == [[8, 7, 6, 5, 4, 3, 2, 1]]
    assert one.end_s.reshape(8, -1)[7].max() == 71


def test_1f1b_of_case_sc01():
    assert makespan("1f1b", np.ones((1, 8)), np.full((1, 8), 2.0), 20) == 81


def test_slowest_stage_sets_the_pace():
    """IL13: stages of 3.15 ms and one of 3.901, B = 2 F, m 32: 440.66 ms, balanced 379.58."""
    times = np.array([[3.153, *[3.15] * 6, 3.901]])
    assert makespan("1f1b", times, 2 * times, 32) == pytest.approx(440.66, abs=0.01)
    even = np.full_like(times, times.mean())
    assert makespan("1f1b", even, 2 * even, 32) == pytest.approx(379.58, abs=0.01)


@pytest.mark.parametrize(
    ("p", "m", "bubble"), [(8, 32, 0.179), (8, 16, 0.304), (8, 8, 0.467), (8, 512, 0.0135)]
)
def test_bubble_of_1f1b_by_micro_batches(p, m, bubble):
    """SC10 and SC13: few micro-batches, large bubble."""
    assert simulate("1f1b", np.ones((1, p)), np.ones((1, p)), m).bubble_fraction == pytest.approx(
        bubble, abs=5e-4
    )


def test_half_steps_of_1f1b():
    """SC16: 4 stages, 8 micro-batches take 2 (8 + 4 - 1) half-steps."""
    assert makespan("1f1b", np.ones((1, 4)), np.ones((1, 4)), 8) == 22


def test_interleaving_divides_the_bubble():
    """SC05: p 8, v 2, m 16: utilisation 0.8205."""
    found = simulate("interleaved-1f1b", np.ones((2, 8)), 2 * np.ones((2, 8)), 16)
    assert 1 - found.bubble_fraction == pytest.approx(0.8205, abs=5e-5)


def test_activations_of_sapps_documented_case():
    """Stages of 8, 8, 8 and 8.8 keep 32, 24, 16 and 8.8."""
    weight = np.array([[8, 8, 8, 8.8]])
    assert simulate("1f1b", weight, 2 * weight, 16).peak_held(weight).tolist() == [32, 24, 16, 8.8]


# Peers' makespan and peak activations (in whole stages) with F = B - W = W = 1: all tools that ran agree.
PEERS = [
    (4, 8, 33, 4, 28.5, 5.5),
    (4, 16, 57, 4, 52.5, 5.5),
    (4, 64, 201, 4, 196.5, 5.5),
    (8, 8, 45, 8, 34.5, 8),
    (8, 16, 69, 8, 58.5, 11.5),
    (8, 32, 117, 8, 106.5, 11.5),
    (8, 64, 213, 8, 202.5, 11.5),
    (16, 16, 93, 16, 70.5, 16),
    (16, 32, 141, 16, 118.5, 23.5),
    (16, 64, 237, 16, 214.5, 23.5),
]


@pytest.mark.parametrize(("p", "m", "plain_s", "plain_held", "chunked_s", "chunked_held"), PEERS)
def test_equals_the_peers(p, m, plain_s, plain_held, chunked_s, chunked_held):
    plain = simulate("1f1b", np.ones((1, p)), np.full((1, p), 2.0), m)
    chunked = simulate("interleaved-1f1b", np.full((2, p), 0.5), np.ones((2, p)), m)
    assert (plain.makespan_s, plain.peak_held(np.ones((1, p))).max()) == (plain_s, plain_held)
    assert (chunked.makespan_s, chunked.peak_held(np.full((2, p), 0.5)).max()) == (chunked_s, chunked_held)


# arXiv 2401.10241, tables 5 and 9: p, m, layers + 2, profiled F, B, W and communication in ms; bubble rates
# of 1F1B and interleaved 1F1B, by the longest span of a device.
ZERO_BUBBLE = [
    (8, 24, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055),
    (8, 32, 24, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818),
    (8, 64, 24, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443),
    (32, 96, 64, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493),
    (32, 128, 64, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164),
    (32, 256, 64, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624),
]


@pytest.mark.parametrize("row", ZERO_BUBBLE)
def test_bubble_rates_of_the_zero_bubble_paper(row):
    p, m, parts, f, b, w, comm, plain, chunked = row
    found = simulate("1f1b", np.full((1, p), f), np.full((1, p), b + w), m, comm)
    assert found.bubble_fraction_of_span == pytest.approx(plain, abs=5e-5)
    v = parts // p
    found = simulate("interleaved-1f1b", np.full((v, p), f / v), np.full((v, p), (b + w) / v), m, comm)
    assert found.bubble_fraction_of_span == pytest.approx(chunked, abs=4e-3)


def test_span_leaves_out_a_late_start():
    """With two stages and one micro-batch, the last stage waits for nothing between its start and its end."""
    found = simulate("1f1b", [[1.0, 5.0]], [[2.0, 5.0]], 1)
    assert found.makespan_s == 13
    assert found.bubble_fraction == pytest.approx(1 - 6.5 / 13)
    assert found.bubble_fraction_of_span == pytest.approx(1 - 3 / 13)


def test_span_is_that_of_the_longest_device():
    """The first stage runs from 0 to 22, the second from 1 to 21; they compute 2 and 20."""
    found = simulate("1f1b", [[1.0, 10.0]], [[1.0, 10.0]], 1)
    assert found.bubble_fraction_of_span == pytest.approx(1 - 2 / 22)


def test_trace_opens_one_track_a_stage():
    found = simulate("interleaved-1f1b", np.ones((2, 2)), np.ones((2, 2)), 2)
    trace = json.loads(json.dumps(found.to_chrome_trace()))
    passes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(passes) == 16
    assert {event["cat"] for event in passes} == {"forward", "backward"}
    assert sum(event["dur"] for event in passes if event["tid"] == 1) == pytest.approx(8e6)
    assert passes[0]["name"] == "F0 of chunk 0"
    assert [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"] == [
        "stage 0",
        "stage 1",
    ]


def test_columns_of_the_order_are_those_of_the_times():
    found = simulate("1f1b", [[1.0, 2.0]], [[4.0, 8.0]], 3)
    duration = found.end_s - found.start_s
    expected = np.where(found.order.kind == FORWARD, 1.0, 4.0) * np.where(found.order.device == 0, 1, 2)
    np.testing.assert_allclose(duration, expected)


@pytest.mark.parametrize("function", [simulate, makespan])
@pytest.mark.parametrize(
    ("forward", "backward", "comm", "fields"),
    [
        ([[1.0, -2.0]], [[1.0, 1.0]], 0.0, ["forward_s"]),
        ([[1.0, np.nan]], [[1.0, np.inf]], -1.0, ["forward_s", "backward_s", "comm_s"]),
        ([[1.0, 2.0]], [[1.0, 2.0, 3.0]], 0.0, ["backward_s"]),
        ([1.0, 2.0], [1.0, 2.0], 0.0, ["forward_s"]),
        (np.ones((1, 0)), np.ones((1, 0)), 0.0, ["forward_s"]),
        ([[1.0, 2.0]], [[1.0, 2.0]], np.nan, ["comm_s"]),
    ],
)
def test_bad_times_are_named_all_at_once(function, forward, backward, comm, fields):
    with pytest.raises(InputError) as caught:
        function("1f1b", forward, backward, 4, comm)
    assert [problem.field for problem in caught.value.problems] == fields


def test_simulate_takes_one_set():
    with pytest.raises(InputError, match="one set"):
        simulate("1f1b", np.ones((3, 1, 2)), np.ones((3, 1, 2)), 4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zb-v"])
def test_makespan_refuses_what_the_schedule_forbids(schedule):
    with pytest.raises(InputError):
        makespan(schedule, np.ones((5, 4)), np.ones((5, 4)), 6)
