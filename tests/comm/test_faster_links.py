"""Faster links never cost time: prices against those of the same network with one number changed."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import telekit
from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cluster.curves import Curve
from telekit.comm.algorithms import ALGORITHMS, by_algorithm
from telekit.comm.collectives import COLLECTIVES, collective_time_s
from telekit.comm.dispatch import DISPATCHERS, exchange_phases, rows_on
from telekit.comm.expert_links import domain_ranks, expert_links
from telekit.comm.groups import Group, fabrics
from telekit.comm.routing import Routing
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

SLACK = 1 + 1e-12
RATES = [25e9, 50e9, 99e9, 100e9, 101e9, 400e9]
"""Few, so that tiers are often as fast as each other, or nearly."""
DEVICES = 2304


def scaled(tier, factor, curves=True):
    """A tier with more bandwidth, and so its curves where they move along."""
    moved = {
        op: curve.model_copy(update={"bandwidth_bytes_per_s": curve.bandwidth_bytes_per_s * factor})
        for op, curve in tier.curves.items()
    }
    update = {"bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s * factor}
    return tier.model_copy(update=update | ({"curves": moved} if curves else {}))


def with_tier(cluster, depth, tier):
    tiers = (*cluster.tiers[:depth], tier, *cluster.tiers[depth + 1 :])
    return cluster.model_copy(update={"tiers": tiers})


@st.composite
def curve_of(draw, unit):
    return Curve(
        start_s=draw(st.sampled_from([0.0, 5e-6, 4e-5])),
        step_s=draw(st.sampled_from([0.0, 2e-6])),
        bandwidth_bytes_per_s=draw(st.sampled_from(RATES)) * 0.8,
        low_latency_ratio=draw(st.sampled_from([1.0, 2.5])),
        ramp_s=draw(st.sampled_from([0.0, 3e-5])),
        rank_exponent=draw(st.sampled_from([0.0, 0.4])),
        in_switch_share=draw(st.sampled_from([None, 0.7])),
        unit_ranks=unit,
    )


@st.composite
def networks(draw):
    """Nodes in a supernode or not, in pods or not, with curves anywhere."""
    node = draw(st.sampled_from([2, 4, 8]))
    reach = [("node", node)]
    reach += [("supernode", draw(st.sampled_from([9, 16])) * node)] * draw(st.booleans())
    reach += [("pod", 32 * node)] * draw(st.booleans())
    tiers = []
    for name, devices in [*reach, ("cluster", None)]:
        unit = node if name in ("pod", "cluster") and draw(st.booleans()) else 1
        ops = draw(st.lists(st.sampled_from(COLLECTIVES), max_size=4, unique=True))
        tiers.append(
            {
                "name": name,
                "devices": devices,
                "bandwidth_bytes_per_s": draw(st.sampled_from(RATES)),
                "latency_s": draw(st.sampled_from([0.0, 1e-6, 2e-5])),
                "efficiency": draw(st.sampled_from([0.5, 0.8, 1.0])),
                "half_bytes": draw(st.sampled_from([0.0, 3e5])),
                "curves": {op: draw(curve_of(unit)) for op in ops},
            }
        )
    record = load_cluster({"device": draw(st.sampled_from(["h100", "gb200"])), "nodes": 1}).model_dump()
    return ClusterConfig.model_validate(
        record | {"devices": DEVICES, "devices_per_node": node, "tiers": tiers}
    )


@st.composite
def changes(draw):
    """A network, the same with one tier faster, and with one tier later."""
    cluster = draw(networks())
    depth = draw(st.integers(0, len(cluster.tiers) - 1))
    tier = cluster.tiers[depth]
    others = [t.bandwidth_bytes_per_s / tier.bandwidth_bytes_per_s for t in cluster.tiers]
    factors = [f * near for f in others for near in (0.999, 1.0, 1.001) if f * near > 1]
    factor = draw(st.sampled_from([*factors, 1.2, 16.0]))  # just below, at, and above each other tier
    faster = scaled(tier, factor, draw(st.booleans()))
    later = tier.model_copy(update={"latency_s": tier.latency_s + draw(st.sampled_from([1e-9, 1e-5]))})
    return cluster, with_tier(cluster, depth, faster), with_tier(cluster, depth, later)


groups_of = st.lists(
    st.tuples(
        st.integers(1, 72),
        st.sampled_from([1, 2, 3, 4, 8, 16, 32]),
        st.sampled_from([0.0, 1e3, 1e6, 3e8, 1e11]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(COLLECTIVES), changes(), groups_of)
def test_more_bandwidth_less_latency_and_fewer_bytes_never_take_longer(op, networks, rows):
    cluster, faster, later = networks
    ranks, stride, size = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    price = collective_time_s(op, size, ranks, stride, cluster)
    assert (collective_time_s(op, size, ranks, stride, faster) <= price * SLACK).all()
    assert (collective_time_s(op, size, ranks, stride, later) >= price / SLACK).all()
    assert (collective_time_s(op, 1.1 * size + 1, ranks, stride, cluster) >= price / SLACK).all()
    for one, (n, apart, x) in zip(collective_time_s(op, size, ranks, stride, faster), rows, strict=True):
        assert one == pytest.approx(float(collective_time_s(op, x, n, apart, faster)), rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(COLLECTIVES), changes(), st.integers(2, 48), st.sampled_from([1, 2, 4, 8]))
def test_nor_does_any_algorithm(op, networks, ranks, stride):
    group = Group.strided(ranks, stride)
    price, less, more = (by_algorithm(op, 1e8, group, where, ALGORITHMS[op]) for where in networks)
    assert set(price) == set(less) == set(more)
    for name, time in price.items():
        assert less[name] <= time * SLACK and more[name] >= time / SLACK


def expert_time_s(dispatcher, ep, cluster, far):
    rows = rows_on(dispatcher, Routing(64, 6), ep, domain_ranks(cluster, ep))
    found = exchange_phases(dispatcher, "dispatch", rows, 4096.0, 8192.0, expert_links(cluster, far), 1.0)
    return float(sum(phase.time_s for phase in found))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(DISPATCHERS),
    changes(),
    st.sampled_from([2, 4, 8, 16, 32, 64]),
)
def test_nor_does_expert_traffic(dispatcher, networks, ep):
    price, less, more = (
        [expert_time_s(dispatcher, ep, where, far) for far in (False, True)] for where in networks
    )
    for far in range(2):
        assert less[far] <= price[far] * SLACK and more[far] >= price[far] / SLACK


def test_ports_are_told_by_names_and_not_by_rates():
    """A rack's NVLink, and Ascend's supernode, are the node's own links at any rate; pods and cluster share a card."""
    for device, want in (
        ("gb200", (0, 0, 1)),
        ("ascend-910c", (0, 0, 1)),
        ("h100", (0, 1)),
        ("tpu-v5p", (0, 1)),
    ):
        cluster = load_cluster({"device": device, "nodes": 4 * 128})
        assert fabrics(cluster) == want
        for depth, tier in enumerate(cluster.tiers):
            for factor in (0.5, 9.0, 18.0):  # 9: H100's network as fast as its node
                assert fabrics(with_tier(cluster, depth, scaled(tier, factor))) == want


def test_a_faster_rack_answers_by_its_curve_too():
    """GB200, one rank of each of 16 trays: the rack's curve answers at its own rate and at any other."""
    cluster = load_cluster({"device": "gb200", "devices": 256})
    for factor in (0.5, 1.0, 1.2, 4.0):
        rack = scaled(cluster.tiers[1], factor)
        found = collective_time_s("reduce-scatter", 2.0**30, 16, 4, with_tier(cluster, 1, rack))
        assert float(found) == pytest.approx(
            float(rack.curves["reduce-scatter"].time_s("reduce-scatter", 2.0**30, 16.0))
        )


def test_a_faster_rack_never_slows_a_training_step():
    """Qwen3-235B on 256 GB200, ZeRO-2: at 1.2 times the rack's bandwidth dp_comm once rose from 5.47 to 7.95 s."""
    cluster = load_cluster({"device": "gb200", "devices": 256})
    model, train = load_model("qwen3-235b-a22b"), TrainConfig(global_batch=512)
    layout = ParallelConfig(
        tp=4, ep=2, pp=2, zero=2, recompute=["moe"], dispatcher="allgather",
        overlap_grad_reduce=False, overlap_param_gather=False,
    )  # fmt: skip
    times = []
    for factor in (0.8, 0.99, 1.0, 1.01, 1.2, 1.5, 4.0):
        faster = with_tier(cluster, 1, scaled(cluster.tiers[1], factor))
        times.append(telekit.estimate(Job(model, faster, train, layout)).breakdown_s["dp_comm"])
    assert all(more >= less for more, less in pairwise(times))
    assert times[3] == pytest.approx(
        times[2], rel=0.02
    )  # and no jump where the tiers stop being equally fast
