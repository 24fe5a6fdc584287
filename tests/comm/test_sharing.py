"""Rates of groups that share network cards: against a linear program, by hand, and against published rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.comm.algorithms import algorithm_time_s
from telekit.comm.groups import Group
from telekit.comm.sharing import contended_time_s, fair_rates, shared_rates, siblings
from telekit.errors import InputError


def cluster_of(cards=8, card_bytes_per_s=50e9, nodes=2, node_bytes_per_s=300e9):
    """Nodes of 8 devices and so many cards."""
    tiers = [
        {
            "name": "node",
            "devices": 8,
            "bandwidth_bytes_per_s": node_bytes_per_s,
            "latency_s": 0.0,
            "efficiency": 1.0,
        },
        {
            "name": "cluster",
            "devices": None,
            "latency_s": 0.0,
            "efficiency": 1.0,
            "ports": {"bits_per_s": 8 * card_bytes_per_s, "devices": 8 // cards},
        },
    ]
    record = load_cluster({"device": "h100", "nodes": nodes}).model_dump() | {"tiers": tiers}
    return ClusterConfig.model_validate(record)


def by_linear_programs(use, capacity):
    """Max-min by its definition: raise the lowest rate as far as it goes, fix those that cannot go on, repeat."""
    from scipy.optimize import linprog

    flows, links = use.shape
    fixed = {}
    while len(fixed) < flows:
        free = [i for i in range(flows) if i not in fixed]
        spent = capacity - sum((use[i] * rate for i, rate in fixed.items()), np.zeros(links))

        def most(goal, least, free=free, spent=spent):
            """Largest rate of one flow (or of the lowest) while all free ones get ``least``."""
            columns = np.column_stack([use[free].T, np.zeros(links)])
            rows, right = [*columns], [*spent]
            for k in range(len(free)):
                if goal is None:
                    row = np.zeros(len(free) + 1)
                    row[k], row[-1] = -1, 1
                    rows.append(row)
                    right.append(0.0)
            c = np.zeros(len(free) + 1)
            c[-1 if goal is None else goal] = -1
            bounds = [(least, None)] * len(free) + [(0, None)]
            return -linprog(c, A_ub=rows, b_ub=right, bounds=bounds).fun

        level = most(None, 0.0)
        stuck = [i for k, i in enumerate(free) if most(k, level * (1 - 1e-9)) <= level * (1 + 1e-6) + 1e-9]
        assert stuck
        fixed |= dict.fromkeys(stuck, level)
    return np.array([fixed[i] for i in range(flows)])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_fair_rates_are_max_min(flows, links, seed):
    rng = np.random.default_rng(seed)
    use = rng.choice([0.0, 0.5, 1.0, 0.25], size=(flows, links))
    use[np.arange(flows), rng.integers(0, links, flows)] = 1.0
    capacity = rng.uniform(1, 10, links)
    np.testing.assert_allclose(fair_rates(use, capacity), by_linear_programs(use, capacity), rtol=1e-5)


def test_a_flow_over_no_link_is_not_limited():
    assert fair_rates([[0.0], [1.0]], [3.0]).tolist() == [np.inf, 3.0]


def test_strided_groups_share_what_one_would_have_alone():
    """8 groups of one device a node on 4 cards of 50 GB/s: alone a whole card, together half of one."""
    cluster = cluster_of(cards=4)
    tier = cluster.tiers[1]
    assert tier.bandwidth_bytes_per_s == 25e9
    groups = siblings(2, 8)
    assert shared_rates(groups[:1], tier, cluster).tolist() == [50e9]
    assert shared_rates(groups, tier, cluster).tolist() == [25e9] * 8
    assert shared_rates(groups[::2], tier, cluster).tolist() == [50e9] * 4  # one a card
    assert shared_rates([Group.strided(16)], tier, cluster).tolist() == [200e9]
    in_nodes = shared_rates([Group.strided(8)], tier, cluster)
    assert in_nodes.tolist() == [np.inf]


def test_groups_on_a_quiet_card_take_what_others_leave():
    """Two cards a node; three groups on the first, one on the second."""
    cluster = cluster_of(cards=2)
    groups = [Group((i, i + 8)) for i in (0, 1, 2, 4)]
    rates = shared_rates(groups, cluster.tiers[1], cluster)
    np.testing.assert_allclose(rates, [50e9 / 3] * 3 + [50e9])


@pytest.mark.parametrize(
    "op, algorithm", [("all-gather", "ring"), ("all-to-all", "direct"), ("all-reduce", "tree")]
)
def test_with_all_siblings_at_work_each_device_has_its_share(op, algorithm):
    """So algorithms that take the tier's bandwidth per device price a group among its siblings."""
    cluster = cluster_of(cards=4, nodes=4)
    groups = siblings(4, 8)
    times = contended_time_s(op, algorithm, 1e9, groups, cluster)
    plain = algorithm_time_s(op, algorithm, 1e9, groups[0], cluster)
    np.testing.assert_allclose(times, plain)
    (alone,) = contended_time_s(op, algorithm, 1e9, groups[:1], cluster)
    assert alone == pytest.approx(plain / 2)


def test_cards_must_divide_a_node():
    cluster = cluster_of()
    odd = cluster.tiers[1].model_copy(
        update={"ports": cluster.tiers[1].ports.model_copy(update={"devices": 3})}
    )
    broken = cluster.model_copy(update={"tiers": (cluster.tiers[0], odd)})
    with pytest.raises(InputError, match="3 devices share a card, which does not divide a node of 8"):
        shared_rates(siblings(2, 8), odd, broken)
    with pytest.raises(InputError, match="is none of"):
        shared_rates(siblings(2, 8), odd, cluster)


def galvatron():
    """Bus bandwidth, GB/s, by ranks of the group and whether they are neighbours."""
    rows = catalog.record("measurements", "communication")
    return {
        (int(row["group"].split("_")[2]), row["group"].endswith("1")): row["bandwidth_GBs"]
        for row in rows
        if row["kind"] == "collective_bw"
    }


def test_published_rows_of_two_nodes_that_share_one_network():
    """Galvatron's profile of 2 nodes of 8, all groups of a kind at once; one number fixed, from the groups of 2.

    Then the groups of 4 come out within 1 %. Those of 8 and 16 ranks are 57 % and 46 % too fast: there the cards
    reach 42 to 45 GB/s a node and not the 65 that eight pairs reach, which sharing does not explain. Without
    sharing (each group has what 16 ranks have alone) the pairs would be 450 % too fast.
    """
    measured = galvatron()
    cluster = cluster_of(
        cards=1, card_bytes_per_s=8 * measured[2, False] * 1e9, node_bytes_per_s=measured[8, True] * 1e9
    )
    errors = {}
    for ranks in (2, 4, 8, 16):
        groups = siblings(ranks, 16 // ranks)
        times = np.array(contended_time_s("all-reduce", "ring", 1e9, groups, cluster))
        busbw = 2 * (ranks - 1) / ranks * 1e9 / times
        assert np.ptp(busbw) <= 1e-9 * busbw[0]
        errors[ranks] = busbw[0] / 1e9 / measured[ranks, ranks == 16] - 1
    assert errors == pytest.approx({2: 0.0, 4: 0.0025, 8: 0.566, 16: 0.456}, abs=5e-3)
    assert measured[16, True] / measured[2, False] - 1 == pytest.approx(4.5, abs=0.01)
