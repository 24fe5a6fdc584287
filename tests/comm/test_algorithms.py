"""Phases of each algorithm against messages that really move; times against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from collective_oracle import run
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.curves import in_switch_bus_bandwidth
from telekit.comm.algorithms import (
    ALGORITHMS,
    IN_NETWORK,
    algorithm_time_s,
    by_algorithm,
    library,
    phases,
    refusal,
)
from telekit.comm.groups import Group, place, together
from telekit.comm.trees import pair_of_trees
from telekit.errors import InputError

PAIRS = [(op, name) for op, names in ALGORITHMS.items() for name in names]


def cluster_of(reach, devices, latency=1e-6, half_bytes=0.0):
    """Tiers of 400, 100, 25 ... GB/s; ``reach`` ends with None."""
    record = load_cluster({"device": "h100", "nodes": 1}).model_dump()
    record |= {"devices": devices, "devices_per_node": reach[0] or devices, "name": "test"}
    record["tiers"] = [
        {
            "name": f"tier{i}",
            "devices": width,
            "bandwidth_bytes_per_s": 400e9 / 4**i,
            "latency_s": latency * 3**i,
            "efficiency": 1.0,
            "half_bytes": half_bytes,
        }
        for i, width in enumerate(reach)
    ]
    return ClusterConfig.model_validate(record)


def counted(op, algorithm, ranks, reach):
    """Our phases in the oracle's form."""
    devices = -(-(max(ranks) + 1) // (reach[0] or 1)) * (reach[0] or 1)
    cluster = cluster_of(reach, devices)
    found = {}
    for phase in phases(op, algorithm, 1.0, Group(tuple(ranks)), cluster):
        tier = cluster.tiers.index(phase.tier)
        steps, sent = found.get(tier, (0, 0.0))
        found[tier] = (steps + phase.steps, sent + phase.sent_bytes)
    return found


def same(ours, theirs):
    assert set(ours) == set(theirs)
    for tier, (steps, sent) in theirs.items():
        assert ours[tier][0] == steps, (tier, ours, theirs)
        assert ours[tier][1] == pytest.approx(float(sent), rel=1e-12), (tier, ours, theirs)


EVEN = [
    (range(8), (8, None)),
    (range(7), (8, None)),
    (range(2), (8, None)),
    (range(16), (8, None)),
    (range(4), (2, None)),
    (range(12), (4, None)),
    (range(15), (3, None)),
    (range(20), (4, None)),
    (range(0, 32, 8), (8, None)),
    (range(0, 40, 8), (8, None)),
    (range(0, 32, 2), (8, None)),
    (range(6, 24), (6, None)),
    (range(16), (2, 8, None)),
    (range(24), (2, 6, None)),
    (range(32), (4, 8, None)),
    (range(0, 48, 4), (4, 16, None)),
]
UNEVEN = [(range(6), (4, None)), (range(6, 12), (8, None)), (range(5), (3, None)), (range(10), (4, None))]


@pytest.mark.parametrize("ranks, reach", EVEN + UNEVEN, ids=str)
@pytest.mark.parametrize("op, algorithm", PAIRS, ids=[f"{op} {name}" for op, name in PAIRS])
def test_phases_are_what_messages_count(op, algorithm, ranks, reach):
    cluster = cluster_of(reach, 64 * (reach[0] or 1))
    reason = refusal(op, algorithm, place(Group(tuple(ranks)), cluster))
    if reason:
        with pytest.raises(InputError, match="would work"):
            counted(op, algorithm, ranks, reach)
        return
    same(counted(op, algorithm, ranks, reach), run(op, algorithm, ranks, reach))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PAIRS), st.integers(1, 6), st.integers(1, 6), st.integers(1, 3))
def test_phases_of_any_even_group(pair, inside, units, stride):
    if inside * units == 1:
        return
    op, algorithm = pair
    width = inside * stride
    ranks, reach = range(0, units * width, stride), (width, None)
    cluster = cluster_of(reach, units * width)
    if not refusal(op, algorithm, place(Group(tuple(ranks)), cluster)):
        same(counted(op, algorithm, ranks, reach), run(op, algorithm, ranks, reach))


def test_the_reasons_why_an_algorithm_cannot_serve():
    cluster = cluster_of((4, None), 16)
    with pytest.raises(InputError, match="power of two of ranks, not 6"):
        phases("all-gather", "recursive-halving-doubling", 1.0, Group.strided(6), cluster)
    with pytest.raises(InputError, match=r"equally many.*2 or 4.*ring"):
        phases("all-reduce", "tree", 1.0, Group.strided(6), cluster)
    with pytest.raises(InputError, match="one switch"):
        phases("all-reduce", IN_NETWORK, 1.0, Group.strided(8), cluster)
    with pytest.raises(InputError, match="no algorithm of broadcast"):
        phases("broadcast", "tree", 1.0, Group.strided(8), cluster)
    with pytest.raises(InputError, match="no such collective"):
        by_algorithm("all-together", 1.0, Group.strided(8), cluster)


def test_groups_that_no_cluster_holds():
    cluster = cluster_of((4, None), 16)
    with pytest.raises(InputError, match=r"reaches rank 19; test has 16 devices; .* 5 nodes"):
        place(Group.strided(20), cluster)
    with pytest.raises(InputError, match="ascending"):
        place(Group((3, 1)), cluster)
    with pytest.raises(InputError) as caught:
        Group.strided(0, 0, -1)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("nodes", range(2, 40))
def test_who_branches_in_one_tree_is_a_leaf_in_the_other(nodes):
    first, second = pair_of_trees(nodes)
    for parent in (first, second):
        assert (parent < 0).sum() == 1
        assert np.bincount(parent[parent >= 0], minlength=nodes).max() <= 2
    branches = [np.bincount(p[p >= 0], minlength=nodes) > 1 for p in (first, second)]
    assert not (branches[0] & branches[1]).any()


def test_times_are_the_textbooks():
    """Ring 2(n-1)(a + S/(n b)); halving and doubling 2 log2(n) a + 2 S (n-1)/(n b)."""
    cluster, size = cluster_of((8, None), 8, latency=2e-6), 1e8
    group = Group.strided(8)
    a, b, n = 2e-6, 400e9, 8
    ring = algorithm_time_s("all-reduce", "ring", size, group, cluster)
    assert ring == pytest.approx(2 * (n - 1) * (a + size / n / b))
    halving = algorithm_time_s("all-reduce", "recursive-halving-doubling", size, group, cluster)
    assert halving == pytest.approx(2 * 3 * a + 2 * size * (n - 1) / n / b)


def test_half_saturation_is_the_size_that_gets_half_the_rate():
    cluster, half = cluster_of((8, None), 8, latency=0.0, half_bytes=2e6), 2e6
    pair = Group.strided(2)
    for size, share in ((half, 0.5), (3 * half, 0.75), (99 * half, 0.99)):
        time = algorithm_time_s("send-recv", "direct", size, pair, cluster)
        assert size / time == pytest.approx(share * 400e9)


def test_in_network_shows_the_bus_bandwidth_of_its_curve():
    cluster, n, size = cluster_of((8, None), 8, latency=0.0), 8, 1e9
    time = algorithm_time_s("all-reduce", IN_NETWORK, size, Group.strided(n), cluster)
    assert 2 * (n - 1) / n * size / time == pytest.approx(in_switch_bus_bandwidth(400e9, n))


def test_small_messages_take_few_steps_and_large_ones_few_bytes():
    cluster = cluster_of((8, None), 128)
    group = Group.strided(128)

    def quickest(op, size, names=None):
        times = by_algorithm(op, size, group, cluster, names)
        return min(times, key=times.get)

    every = ALGORITHMS["all-reduce"]
    assert quickest("all-reduce", 1e3, every) == "recursive-halving-doubling"
    assert quickest("all-reduce", 1e3) == "tree"  # NCCL has no halving and doubling
    assert quickest("all-reduce", 1e10, every) == quickest("all-reduce", 1e10) in ("ring", "tree")
    assert quickest("all-to-all", 1e9) == "direct"


def test_only_a_librarys_own_algorithms_are_listed_unasked():
    """NCCL_ALGO: ring, tree (and switches); HCCL_ALGO: ring, mesh, pairwise, halving and doubling."""
    for device, name, sums, exchanges in (
        ("h100", "NCCL", {"ring", "tree"}, {"direct"}),
        ("mi300x", "RCCL", {"ring", "tree"}, {"direct"}),
        ("ascend-910b", "HCCL", {"ring", "recursive-halving-doubling"}, {"direct", "pairwise"}),
        ("tpu-v5p", "XLA", {"ring"}, {"direct"}),
    ):
        cluster = load_cluster({"device": device, "devices": 32})
        assert library(cluster) == name
        assert set(by_algorithm("all-reduce", 1e6, Group.strided(16), cluster)) == sums
        assert set(by_algorithm("all-to-all", 1e6, Group.strided(16), cluster)) == exchanges


def racks(devices):
    return load_cluster({"device": "gb200", "devices": devices})


@pytest.mark.parametrize(
    "devices, span, node, rack",
    [
        (16, 16, 4, 16),  # one rack, which is not full
        (32, 32, 4, 32),
        (64, 64, 4, 64),
        (1152, 16, 4, 16),  # 64 of 72 devices of a rack
        (1152, 64, 4, 64),
        (1152, 72, 4, 72),
        (1152, 128, 4, 64),
        (1152, 144, 4, 72),
        (1152, 96, 4, 48),
        (1152, 6, 2, 6),  # straddles nodes, which are always full, but no rack
        (1152, 148, 4, 4),  # 37 nodes: nothing divides them
        (1152, 37, 1, 1),
    ],
)
def test_a_group_straddles_a_rack_only_if_it_must(devices, span, node, rack):
    found = together(span, racks(devices))
    assert [int(x) for x in found] == [node, rack, span]
    columns = together(np.array([[span], [4]]), racks(devices))
    assert [int(x[0, 0]) for x in columns] == [node, rack, span]


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 300), st.integers(1, 12), st.sampled_from(["gb200", "h100", "ascend-910c"]))
def test_where_a_group_lies_is_what_its_price_takes(count, stride, device):
    """Ranks that :func:`together` keeps in a unit are those of :func:`place`, for every group of the job."""
    cluster = load_cluster({"device": device, "devices": 11520})
    held = together(count * stride, cluster)
    where = place(Group.strided(count, stride), cluster)
    for unit, tier, members in zip(where.units, where.tiers, where.members, strict=True):
        block = int(held[cluster.tiers.index(tier)])
        if block >= stride and block % stride == 0:
            assert max(members) >= block // stride
        if tier.devices is not None and block == count * stride and unit > cluster.devices_per_node:
            assert members == (count,)
            for first in range(0, 5 * count * stride, count * stride):  # the groups after it
                assert first // unit == (first + count * stride - 1) // unit


def test_tiers_of_the_same_ports_share_them():
    """Ascend A3: half of an exchange between two nodes leaves by the ports of the other half; an H100 has others."""
    for device, shared in (("ascend-910c", True), ("h100", False)):
        cluster = load_cluster({"device": device, "nodes": 2})
        group = Group.strided(cluster.devices)
        found = phases("all-to-all", "direct", 1e9, group, cluster)
        times = [phase.transfer_s for phase in found]
        start = sum(phase.start_s for phase in found)
        time = algorithm_time_s("all-to-all", "direct", 1e9, group, cluster)
        assert time - start == pytest.approx(sum(times) if shared else max(times))


def test_a_group_of_a_million_is_placed():
    cluster = load_cluster({"device": "h100", "devices": 2**20})
    times = by_algorithm("all-reduce", 1e9, Group.strided(2**20), cluster)
    assert times["tree"] < times["ring"]
    assert place(Group.strided(2**20), cluster).parts == (8, 2**17)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PAIRS), st.integers(2, 24), st.integers(1, 8), st.floats(1.0, 1e12), st.floats(1.0, 100.0)
)
def test_more_bytes_never_take_less_and_a_column_is_its_rows(pair, count, stride, size, factor):
    op, algorithm = pair
    cluster = cluster_of((4, 16, None), 192)
    group = Group.strided(count, stride)
    if refusal(op, algorithm, place(group, cluster)):
        return
    sizes = np.array([size, size * factor])
    column = algorithm_time_s(op, algorithm, sizes, group, cluster)
    rows = [algorithm_time_s(op, algorithm, float(x), group, cluster) for x in sizes]
    np.testing.assert_allclose(column, rows, rtol=1e-12)
    assert column[1] >= column[0] > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_bytes_are_conserved_over_tiers(inside, middle, outer):
    """Ring, hierarchical sum and gather: (n-1)/n of the buffer, however tiers share it; all-to-all: flat ones too."""
    n = inside * middle * outer
    if n == 1:
        return
    cluster = cluster_of((4, 16, None), 64)
    ranks = tuple(x + 4 * y + 16 * z for z in range(outer) for y in range(middle) for x in range(inside))
    for op, algorithm in (
        ("all-gather", "ring"),
        ("all-gather", "hierarchical"),
        ("reduce-scatter", "hierarchical"),
        ("all-to-all", "direct"),
        ("all-to-all", "pairwise"),
    ):
        sent = sum(phase.sent_bytes for phase in phases(op, algorithm, 1.0, Group(ranks), cluster))
        assert sent == pytest.approx((n - 1) / n)
    hops = sum(p.sent_bytes for p in phases("all-reduce", "hierarchical", 1.0, Group(ranks), cluster))
    assert hops == pytest.approx(2 * (n - 1) / n)


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "broadcast"])
def test_hierarchical_is_the_flat_ring_on_one_node(op):
    cluster = cluster_of((8, None), 16)
    times = by_algorithm(op, 1e7, Group.strided(8), cluster, ("ring", "hierarchical"))
    assert times["hierarchical"] == pytest.approx(times["ring"], rel=1e-12)
    assert by_algorithm(op, 1e7, Group.strided(1), cluster)["ring"] == 0


def test_hierarchical_exchange_is_the_flat_one_on_one_node():
    names = ("pairwise", "hierarchical")
    times = by_algorithm("all-to-all", 1e7, Group.strided(8), cluster_of((8, None), 16), names)
    assert times["hierarchical"] == pytest.approx(times["pairwise"], rel=1e-12)
