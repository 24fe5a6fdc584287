"""Collective times against closed forms worked out by hand."""

import numpy as np
import pytest

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.comm.collectives import collective_time_s
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
    """Rows sent between nodes a token, exact for 192 experts (hypergeometric); ours draws with repetition."""
    rows = 1e6
    time = collective_time_s(
        "dedup-all-to-all", rows * k, 8 * nodes, 1, two_tiers(nodes, intra=1e18), fan_out=k
    )
    assert time * 50 * GB / rows == pytest.approx(want, rel=0.02)


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
    assert float(collective_time_s(op, 1e9, 1, 1, cluster, 2)) == 0.0
    sizes = np.logspace(0, 12, 40)
    times = collective_time_s(op, sizes, 32.0, 1.0, cluster, 2)
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
