"""Collective times against closed forms worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.curves import Curve
from telekit.comm.algorithms import ALGORITHMS, algorithm_time_s, by_algorithm
from telekit.comm.collectives import COLLECTIVES, collective_parts, collective_time_s, parts_time_s
from telekit.comm.groups import Group, unit_sizes
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


def test_send_recv_takes_the_tier_that_reaches_the_neighbour():
    assert collective_time_s("send-recv", 1e9, 2, 1, two_tiers()) == pytest.approx(1e9 / (300 * GB))
    assert collective_time_s("send-recv", 1e9, 2, 8, two_tiers()) == pytest.approx(1e9 / (50 * GB))


def test_latency_is_paid_a_step_of_the_hierarchical_ring():
    assert collective_time_s("all-gather", 0.0, 16, 1, two_tiers(latency=1e-6)) == pytest.approx(8e-6)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_one_rank_sends_nothing_and_more_bytes_never_take_less(op):
    cluster = two_tiers(4)
    assert float(collective_time_s(op, 1e9, 1, 1, cluster)) == 0.0
    sizes = np.logspace(0, 12, 40)
    times = collective_time_s(op, sizes, 32.0, 1.0, cluster)
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
    """What a rank sends, over the links of the node, and one latency a step between nodes (ring, or tree for sums)."""
    n, size = 32, 4e9
    found = float(collective_time_s(op, size, n, 1, with_curves()))
    start = float(CURVE.time_s(op, 0.0, 8.0)) + {"all-reduce": 4, "all-to-all": 1}.get(op, 3) * 2e-6
    inner = {
        "broadcast": size,
        "all-to-all": size * 8 / n,
    }.get(op, size * (n - 1) / n * 8 / 7)
    network = {
        "all-reduce": 2 * size / (8 * 50 * GB),  # by trees, since the node decides
        "broadcast": size / (8 * 50 * GB),
        "all-to-all": size * (n - 8) / n / (50 * GB),
    }.get(op, size * (n - 1) / n / (8 * 50 * GB))
    moved = float(CURVE.time_s(op, inner, 8.0) - CURVE.time_s(op, 0.0, 8.0))
    network += CURVE.protocol_s(network)  # the library's protocols cost beyond the node what they cost inside
    assert found == pytest.approx(max(moved, network) + start)
    assert found >= float(CURVE.time_s(op, inner, 8.0))


def test_an_outer_curve_is_about_whole_nodes_only():
    """It was measured with every device of a node at work, and answers alone; one a node keeps the links' formula."""
    cluster, size = with_curves(node=False, outer=True), 1e9
    whole = collective_time_s("all-gather", size, np.array([32.0, 4.0]), np.array([1.0, 8.0]), cluster)
    assert whole[0] == pytest.approx(float(CURVE.time_s("all-gather", size, 32.0)))
    links = size * 3 / 4 / (50 * GB)
    assert whole[1] == pytest.approx(links + 3 * 2e-6 + CURVE.start_s + CURVE.protocol_s(links))


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
    column = collective_time_s(op, size, ranks, stride, cluster)
    one_by_one = [float(collective_time_s(op, z, x, y, cluster)) for x, y, z in rows]
    np.testing.assert_allclose(column, one_by_one, rtol=1e-12)
    assert (np.asarray(collective_time_s(op, 1.5 * size + 1, ranks, stride, cluster)) >= column).all()


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
            group = Group.strided(8 * nodes)
            best = min(by_algorithm(op, size, group, cluster, ALGORITHMS[op]).values())
            ratios.append(float(collective_time_s(op, size, 8 * nodes, 1, cluster)) / best)
    assert min(ratios) > 0.68
    assert max(ratios) < 3.2


def test_a_sum_over_many_nodes_takes_trees_where_they_are_quicker():
    """Small ones climb and descend log2 of the nodes; large ones go round rings, which send (n-1)/n of the buffer."""
    cluster = two_tiers(64, latency=2e-6)
    small, large = 1e3, 1e11
    inside = 2 * 7 * 2e-6
    assert collective_time_s("all-reduce", small, 512, 1, cluster) == pytest.approx(
        inside + 2 * 6 * 2e-6, rel=1e-3
    )
    ring = 2 * large * 511 / 512 / (8 * 50 * GB)
    assert collective_time_s("all-reduce", large, 32, 8, cluster) == pytest.approx(
        2 * large * 31 / 32 / (50 * GB), rel=1e-3
    )
    assert collective_time_s("all-reduce", large, 512, 1, cluster) >= ring
    assert collective_time_s("all-gather", small, 512, 1, cluster) == pytest.approx((7 + 63) * 2e-6, rel=1e-3)


DEVICES = ["a100-80gb", "h100", "h800", "b200", "gb200", "ascend-910b", "ascend-910c", "tpu-v5p", "v100"]
SIZES = [1.0, 1024.0, 2.0**16, 2.0**20, 2.0**26, 2.0**30]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", COLLECTIVES)
def test_a_group_that_leaves_its_node_is_never_quicker(device, op):
    """Doubling a group that fills a unit, from tier to tier, at every size; and taking one rank of each node."""
    cluster = load_cluster({"device": device, "devices": 4 * 8960 if "tpu" in device else 9216})
    per_node = cluster.devices_per_node
    for unit in [*unit_sizes(cluster)[:-1], per_node]:
        if (device, op) == ("gb200", "all-reduce") and unit < 72:
            continue  # in the rack the switch reduces, and shares its work among more
        fits = unit if unit <= 72 else 64
        inside = collective_time_s(op, np.array(SIZES), fits, 1, cluster)
        beyond = collective_time_s(op, np.array(SIZES), 2 * unit, 1, cluster)
        assert (beyond >= inside * (1 - 1e-9)).all(), unit
    near, far = (collective_time_s(op, np.array(SIZES), 2, stride, cluster) for stride in (1, per_node))
    assert (far >= near * (1 - 1e-9)).all()


@pytest.mark.parametrize("device", ["h100", "b200", "gb200"])
@pytest.mark.parametrize("op", COLLECTIVES)
def test_a_call_over_nodes_starts_no_sooner_than_one_inside(device, op):
    cluster = load_cluster({"device": device, "devices": 288})
    node, curve = cluster.devices_per_node, cluster.tiers[0].curves[op]
    inside = float(curve.time_s(op, 0.0, float(2 if op == "send-recv" else node)))
    for ranks, stride in ((2 * node, 1), (72 * 2, 1)):
        assert float(collective_time_s(op, 0.0, ranks, stride, cluster)) >= inside
    across = float(collective_time_s(op, 0.0, 2, 144, cluster))
    assert across >= curve.start_s + cluster.tiers[-1].latency_s


def test_a_rack_is_one_fabric():
    """GB200: 8 ranks are two nodes of a rack; one curve answers for both, on clusters of any size."""
    for devices in (16, 32, 64, 1152):
        cluster = load_cluster({"device": "gb200", "devices": devices})
        for op in ("all-reduce", "all-to-all", "all-gather"):
            curve = cluster.tiers[1].curves[op]
            for ranks in (8, 16, 32, 64):
                if ranks <= devices:
                    want = curve.time_s(op, 2.0**30, float(ranks))
                    assert collective_time_s(op, 2.0**30, ranks, 1, cluster) == pytest.approx(
                        float(want), rel=1e-12
                    )


def test_an_exchange_over_the_same_ports_shares_them():
    """Ascend A3, 1 GiB: 15 of 16 parts inside a node of 16; of 32, 15 inside and 16 beside, by the same ports."""
    cluster = load_cluster({"device": "ascend-910c", "nodes": 2})
    near, far = (tier.rate_bytes_per_s for tier in cluster.tiers[:2])
    one = float(collective_time_s("all-to-all", 2.0**30, 16, 1, cluster))
    two = float(collective_time_s("all-to-all", 2.0**30, 32, 1, cluster))
    assert one == pytest.approx(2.0**30 * 15 / 16 / near, rel=1e-3)
    assert two == pytest.approx(2.0**30 * (15 / 32 / near + 16 / 32 / far), rel=2e-3)


def test_parts_add_up_to_the_price():
    cluster = load_cluster({"device": "h100", "nodes": 4})
    for op in COLLECTIVES:
        ways = collective_parts(op, 1e8, 32, 1, cluster)
        assert min(float(parts_time_s(parts)) for parts in ways) == float(
            collective_time_s(op, 1e8, 32, 1, cluster)
        )
        for parts in ways:
            assert {part.tier.name for part in parts} <= {"node", "cluster"}


def test_a_curve_between_nodes_is_about_nodes_as_full_as_it_was_measured_on():
    cluster = with_curves(node=True, outer=False)
    between = CURVE.model_copy(update={"unit_ranks": 4, "ranks": (8, 16)})
    tiers = (cluster.tiers[0], cluster.tiers[1].model_copy(update={"curves": {"all-reduce": between}}))
    cluster = cluster.model_copy(update={"tiers": tiers})
    four = collective_time_s("all-reduce", 1e8, 8, 2, cluster)  # 4 of each of 2 nodes
    assert float(four) == pytest.approx(float(between.time_s("all-reduce", 1e8, 8.0)))
    assert collective_time_s("all-reduce", 1e8, 16, 1, cluster) != pytest.approx(
        float(between.time_s("all-reduce", 1e8, 16.0))
    )
