"""A curve's own arithmetic: its limits, its order in bytes and ranks, and what the door refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from telekit.cluster.config import load_cluster
from telekit.cluster.curves import MEASURED, Curve, bus_factor
from telekit.errors import InputError

RING = {
    "start_s": 9e-6,
    "step_s": 1e-6,
    "bandwidth_bytes_per_s": 2e11,
    "low_latency_ratio": 2.5,
    "ramp_s": 3e-5,
    "rank_exponent": 0.4,
}
SWITCH = RING | {"rank_exponent": 0.1, "in_switch_share": 0.9}


def test_bus_factors_are_nccl_tests():
    assert bus_factor("all-reduce", 16) == 1.875
    assert [bus_factor(op, 16) for op in ("all-gather", "reduce-scatter", "all-to-all")] == [0.9375] * 3
    assert bus_factor("broadcast", 16) == bus_factor("send-recv", 2) == 1
    with pytest.raises(InputError, match="no bus bandwidth"):
        bus_factor("reduce", 8)


def test_limits():
    curve = Curve(**RING)
    assert curve.time_s("all-gather", 2**30, 1) == 0
    assert curve.time_s("all-gather", 0, 8) == pytest.approx(9e-6 + 7e-6)
    # endless: the bandwidth of eight ranks; (1/2)/(7/8) to the exponent at two
    size = 1e15
    assert size * 7 / 8 / curve.time_s("all-gather", size, 8) == pytest.approx(2e11, rel=1e-6)
    assert size / 2 / curve.time_s("all-gather", size, 2) == pytest.approx(2e11 * (4 / 7) ** 0.4, rel=1e-6)
    # small: the low-latency protocol, 2.5 times the bytes
    small = 2**16
    assert curve.time_s("all-gather", small, 8) == pytest.approx(16e-6 + 2.5 * small * 7 / 8 / 2e11, rel=1e-4)


def test_the_switch_takes_over_where_it_beats_the_ring():
    curve = Curve(**SWITCH)
    assert curve.in_switch_bytes_per_s == pytest.approx(1.8e11)
    size = 1e15
    ring = size / curve.time_s("all-reduce", size, 2)
    assert ring == pytest.approx(2e11 * (4 / 7) ** 0.1, rel=1e-3)
    # by hand: each rank moves 9/8 of the buffer over its link at 180 GB/s
    assert curve.time_s("all-reduce", size, 8) == pytest.approx(size * 9 / 8 / 1.8e11, rel=1e-3)


@given(
    st.sampled_from(MEASURED),
    st.integers(2, 4096),
    st.floats(0, 1e13),
    st.floats(1, 1e3),
    st.sampled_from([RING, SWITCH]),
)
def test_more_bytes_never_take_less(op, ranks, size, more, fields):
    curve = Curve(**fields)
    assert curve.time_s(op, size * more, ranks) >= curve.time_s(op, size, ranks) * (1 - 1e-12)


@given(st.sampled_from(MEASURED), st.integers(1, 4096), st.integers(0, 4096), st.floats(0, 1e13))
def test_more_ranks_never_take_less_on_a_ring(op, ranks, more, size):
    curve = Curve(**(RING | {"rank_exponent": 0.0 if op == "broadcast" else 1.0}))
    assert curve.time_s(op, size, ranks + more) >= curve.time_s(op, size, ranks) * (1 - 1e-12)


def test_columns_equal_single_calls():
    sizes, ranks = np.array([1e3, 1e6, 1e9, 0.0])[:, None], np.array([1.0, 2.0, 6.0, 8.0])
    for fields in (RING, SWITCH):
        curve = Curve(**fields)
        for op in MEASURED:
            table = curve.time_s(op, sizes, ranks)
            single = [[curve.time_s(op, s, n) for n in ranks] for s in sizes[:, 0]]
            np.testing.assert_allclose(table, single, rtol=1e-14)


def test_beyond_the_measured_ranks_trees_grow_by_doublings_and_rings_by_ranks():
    curve = Curve(**RING, ranks=(2, 4, 8))
    inside = [curve.time_s("all-reduce", 0, n) for n in (2, 4, 8)]
    assert inside == pytest.approx([9e-6 + n * 1e-6 for n in (1, 3, 7)])
    assert [curve.time_s("all-reduce", 0, n) for n in (16, 64)] == pytest.approx([20e-6, 28e-6])
    assert curve.time_s("all-gather", 0, 64) == pytest.approx(9e-6 + 63e-6)
    assert curve.outside("all-reduce", 8) == "" and "outside the measured 2, 4, 8" in curve.outside(
        "all-reduce", 72
    )


def test_between_nodes_hops_count_nodes_and_a_message_what_leaves_one():
    curve = Curve(**RING, ranks=(16, 32), unit_ranks=8)
    assert curve.time_s("all-gather", 0, 32) == pytest.approx(9e-6 + 3e-6)
    assert curve.wire_share("all-to-all", 16) == 0.5 and curve.wire_share("all-gather", 16) == 15 / 16
    with pytest.raises(ValidationError, match="must rise"):
        Curve(**RING, ranks=(8, 4))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("start_s", -1e-6),
        ("bandwidth_bytes_per_s", 0),
        ("low_latency_ratio", 0.5),
        ("ramp_s", float("nan")),
        ("colour", 1),
    ],
)
def test_the_door_refuses(field, value):
    with pytest.raises(ValidationError, match=field):
        Curve(**(RING | {field: value}))


def test_a_device_record_brings_its_curves_and_an_unknown_collective_is_refused():
    cluster = load_cluster({"device": "h100", "nodes": 2})
    assert set(cluster.tiers[0].curves) == set(MEASURED)
    assert not cluster.tiers[1].curves
    tiers = [tier.model_dump() for tier in cluster.tiers]
    tiers[0]["curves"]["all-talk"] = tiers[0]["curves"].pop("broadcast")
    with pytest.raises(InputError, match="all-talk"):
        load_cluster({"device": "h100", "nodes": 2, "tiers": tiers})
