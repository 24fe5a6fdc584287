"""Collective times against closed forms worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.curves import Curve
from telekit.comm.algorithms import algorithm_time_s, by_algorithm
from telekit.comm.collectives import COLLECTIVES, collective_time_s
from telekit.comm.groups import Group
from telekit.errors import InputError

GB = 1e9


def two_tiers(nodes=2, intra=300 * GB, inter=50 * GB, latency=0.0):
    record = load_cluster({"device": "h100", "nodes": nodes}).model_dump()
    record["tiers"] = (
        {
            "name": "node",
            "devices": 8,
            "bandwidth_bytes_per_s": intra,
            "latency_s": latency,
            "efficiency": 1.0,
        },
        {
            "name": "cluster",
            "devices": None,
            "bandwidth_bytes_per_s": inter,
            "latency_s": latency,
            "efficiency": 1.0,
        },
    )
    return ClusterConfig.model_validate(record)


def test_ring_in_a_node_is_the_textbook_formula():
    size, n = 1e9, 8
    time = collective_time_s("all-gather", size, n, 1, two_tiers())
    assert time == pytest.approx(size * (n - 1) / n / (300 * GB))
    assert collective_time_s("all-reduce", size, n, 1, two_tiers()) == pytest.approx(2 * time)


def test_ring_across_nodes_uses_every_link_of_a_node():
    size = 1e9  # 8 ranks a node drive 8 links of 50 GB/s: the node's own 300 GB/s is the slower tier
    assert collective_time_s("all-gather", size, 16, 1, two_tiers()) == pytest.approx(
        size * 15 / 16 / (300 * GB)
    )
    one_a_node = collective_time_s("all-gather", size, 2, 8, two_tiers())
    assert one_a_node == pytest.approx(size / 2 / (50 * GB))


def test_cm03_all_to_all_is_bound_by_the_network():
    """nccl-tests issue 181: 2 nodes of 8, 1 GiB a rank, 50 GB/s a device: half leaves the node."""
    time = collective_time_s("all-to-all", 2.0**30, 16, 1, two_tiers())
    assert time == pytest.approx(0.01073741824)
    assert 2.0**30 * 15 / 16 / time == pytest.approx(93.75 * GB)


@pytest.mark.parametrize("nodes, k, want", [(2, 4, 0.939), (2, 8, 0.997), (4, 8, 2.714), (8, 8, 4.646)])
def test_deduplicated_copies_follow_the_expected_number_of_nodes(nodes, k, want):
    """Rows sent between nodes a token, exact for 192 experts (hypergeometric), to the three digits of the table."""
    rows = 1e6
    time = collective_time_s(
        "dedup-all-to-all", rows * k, 8 * nodes, 1, two_tiers(nodes, intra=1e18), fan_out=k, experts=192
    )
    assert time * 50 * GB / rows == pytest.approx(want, abs=5e-4)


def test_send_recv_takes_the_tier_that_reaches_the_neighbour():
    assert collective_time_s("send-recv", 1e9, 2, 1, two_tiers()) == pytest.approx(1e9 / (300 * GB))
    assert collective_time_s("send-recv", 1e9, 2, 8, two_tiers()) == pytest.approx(1e9 / (50 * GB))


def test_latency_is_paid_a_step_of_the_hierarchical_ring():
    assert collective_time_s("all-gather", 0.0, 16, 1, two_tiers(latency=1e-6)) == pytest.approx(8e-6)


@pytest.mark.parametrize(
    "op", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "dedup-all-to-all"]
)
def test_one_rank_sends_nothing_and_more_bytes_never_take_less(op):
    cluster = two_tiers(4)
    assert float(collective_time_s(op, 1e9, 1, 1, cluster, 2, 128)) == 0.0
    sizes = np.logspace(0, 12, 40)
    times = collective_time_s(op, sizes, 32.0, 1.0, cluster, 2, 128)
    assert np.all(np.diff(times) >= 0)


def test_groups_that_straddle_nodes_are_not_priced_inside_one():
    """6 ranks on nodes of 8: ranks 6 to 11 lie on two nodes, 2 and 4 of them."""
    inside = collective_time_s("all-gather", 1e9, 4, 1, two_tiers(3))
    straddling = collective_time_s("all-gather", 1e9, 6, 1, two_tiers(3))
    assert inside == pytest.approx(1e9 * 3 / 4 / (300 * GB))
    assert straddling == pytest.approx(1e9 * 5 / 6 / (2 * 50 * GB))


def test_a_pipeline_over_two_nodes_pays_for_the_hop_between_them():
    assert collective_time_s("send-recv", 1e9, 8, 1, two_tiers()) == pytest.approx(1e9 / (300 * GB))
    assert collective_time_s("send-recv", 1e9, 16, 1, two_tiers()) == pytest.approx(1e9 / (50 * GB))


def test_an_unknown_collective_is_refused():
    with pytest.raises(InputError, match="all-gather"):
        collective_time_s("all-together", 1e9, 8, 1, two_tiers())


CURVE = Curve(
    start_s=5e-6,
    step_s=1e-6,
    bandwidth_bytes_per_s=200e9,
    low_latency_ratio=2.0,
    ramp_s=1e-5,
    rank_exponent=0.4,
    source="made up",
)
MEASURED = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv")


def with_curves(node=True, outer=False, nodes=4):
    cluster = two_tiers(nodes, latency=2e-6)
    chosen = zip(cluster.tiers, (node, outer), strict=True)
    tiers = [
        tier.model_copy(update={"curves": dict.fromkeys(MEASURED, CURVE) if use else {}})
        for tier, use in chosen
    ]
    return cluster.model_copy(update={"tiers": tuple(tiers)})


@pytest.mark.parametrize("op", MEASURED)
def test_inside_a_tier_its_curve_answers(op):
    sizes = np.logspace(3, 10, 15)
    for ranks, stride in ((8, 1), (4, 1), (4, 2), (2, 4)):
        found = collective_time_s(op, sizes, ranks, stride, with_curves())
        ranks = 2 if op == "send-recv" else ranks
        np.testing.assert_allclose(found, CURVE.time_s(op, sizes, float(ranks)))


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"])
def test_over_several_tiers_the_inner_part_is_no_faster_than_its_curve(op):
    """What a rank sends, over the links of the node, and one latency a step between nodes."""
    n, size = 32, 4e9
    found = float(collective_time_s(op, size, n, 1, with_curves()))
    latency = {"all-reduce": 6, "all-to-all": 1}.get(op, 3) * 2e-6
    inner = {
        "broadcast": size,
        "all-to-all": size * 8 / n,
    }.get(op, size * (n - 1) / n * 8 / 7)
    network = {
        "all-reduce": 2 * size * (n - 1) / n / (8 * 50 * GB),
        "all-to-all": size * (n - 8) / n / (50 * GB),
    }.get(op, size * (n - 1) / n / (8 * 50 * GB))
    assert found == pytest.approx(max(float(CURVE.time_s(op, inner, 8.0)), network) + latency)
    assert found >= float(CURVE.time_s(op, inner, 8.0))


def test_an_outer_curve_is_about_whole_nodes_only():
    """It was measured with every device of a node at work: a group of one a node keeps the links' formula."""
    cluster, size = with_curves(node=False, outer=True), 1e9
    whole = collective_time_s("all-gather", size, np.array([32.0, 4.0]), np.array([1.0, 8.0]), cluster)
    assert whole[0] == pytest.approx(float(CURVE.time_s("all-gather", size, 32.0)) + 7 * 2e-6)
    assert whole[1] == pytest.approx(size * 3 / 4 / (50 * GB) + 3 * 2e-6)


def test_half_saturation_counts_in_every_step():
    plain = two_tiers(latency=1e-6)
    tiers = [tier.model_copy(update={"half_bytes": 3e5}) for tier in plain.tiers]
    slow = plain.model_copy(update={"tiers": tuple(tiers)})
    more = collective_time_s("all-gather", 1e6, 16, 1, slow) - collective_time_s(
        "all-gather", 1e6, 16, 1, plain
    )
    assert more == pytest.approx(7 * 3e5 / (300 * GB) + 3e5 / (50 * GB))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(COLLECTIVES),
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 16), st.floats(0, 1e12)), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_columns_are_their_rows_and_more_bytes_never_take_less(op, rows, node, outer):
    cluster = with_curves(node, outer, 128)
    ranks, stride, size = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    column = collective_time_s(op, size, ranks, stride, cluster, 2, 128)
    one_by_one = [float(collective_time_s(op, z, x, y, cluster, 2, 128)) for x, y, z in rows]
    np.testing.assert_allclose(column, one_by_one, rtol=1e-12)
    assert (np.asarray(collective_time_s(op, 1.5 * size + 1, ranks, stride, cluster, 2, 128)) >= column).all()


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"])
def test_a_large_buffer_takes_what_its_flat_algorithm_takes(op):
    """Bytes are those of rings, or of messages sent at once; per device the network here is slower than the node."""
    cluster = two_tiers(4, inter=25 * GB, latency=1e-6)
    name = "direct" if op == "all-to-all" else "ring"
    for count, stride in ((32, 1), (4, 8), (8, 1), (16, 2)):
        fast = float(collective_time_s(op, 1e11, count, stride, cluster))
        flat = float(algorithm_time_s(op, name, 1e11, Group.strided(count, stride), cluster))
        assert fast == pytest.approx(flat, rel=1e-3)


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce"])
def test_how_far_the_quick_formula_is_from_the_quickest_algorithm(op):
    """Whole nodes, 1 kB to 10 GB: 0.69 (it lets tiers of a hierarchy overlap) to 3.1 times (halving, small ones)."""
    cluster, ratios = two_tiers(16, latency=2e-6), []
    for nodes in (1, 2, 4, 16):
        for size in np.logspace(3, 10, 8):
            best = min(by_algorithm(op, size, Group.strided(8 * nodes), cluster).values())
            ratios.append(float(collective_time_s(op, size, 8 * nodes, 1, cluster)) / best)
    assert min(ratios) > 0.68
    assert max(ratios) < 3.2
