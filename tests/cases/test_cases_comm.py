"""Confusions and faults of public tools about communication, each with its right answer."""

from __future__ import annotations

import numpy as np
import pytest

from telekit import catalog
from telekit.cluster.config import ClusterConfig, LinkTier, load_cluster
from telekit.cluster.curves import bus_factor, in_switch_bus_bandwidth
from telekit.comm.algorithms import IN_NETWORK, phases
from telekit.comm.collectives import collective_time_s
from telekit.comm.groups import Group
from telekit.comm.summary import collective, not_a_wire_rate
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import InputError
from telekit.job import load_job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.operators.layer import Shapes, layer_operators, routed_tokens
from telekit.operators.transfers import layer_transfers
from telekit.training.config import TrainConfig

GIB = 2.0**30


def tier(name, devices, bandwidth, latency=0.0):
    return {
        "name": name,
        "devices": devices,
        "bandwidth_bytes_per_s": bandwidth,
        "latency_s": latency,
        "efficiency": 1.0,
    }


def cluster_of(*tiers, nodes=2):
    record = load_cluster({"device": "h100", "nodes": nodes}).model_dump() | {"tiers": tiers}
    return ClusterConfig.model_validate(record)


def two_nodes():
    return cluster_of(tier("node", 8, 450e9), tier("cluster", None, 50e9))


@pytest.mark.parametrize(
    "op, factor",
    [
        ("all-reduce", 1.875),
        ("all-gather", 0.9375),
        ("reduce-scatter", 0.9375),
        ("all-to-all", 0.9375),
        ("broadcast", 1),
    ],
)
def test_cm01_the_factor_between_algbw_and_busbw(op, factor):
    """n 16, sizes are the whole buffer."""
    assert bus_factor(op, 16) == factor
    found = collective(op, two_nodes(), 16, GIB)
    assert found.algbw_bytes_per_s == GIB / found.time_s
    assert found.busbw_bytes_per_s / found.algbw_bytes_per_s == pytest.approx(factor, rel=1e-12)


def test_cm03_an_all_to_all_shows_more_than_its_network_card():
    """2 nodes of 8, 1 GiB a rank, 50 GB/s a device: half of it leaves, 10.74 ms, and busbw reads 93.75 GB/s."""
    found = collective("all-to-all", two_nodes(), 16, GIB)
    assert {use["tier"]: use["sent_bytes"] for use in found.tiers} == {
        "node": GIB * 7 / 16,
        "cluster": GIB / 2,
    }
    assert found.time_s == pytest.approx(10.74e-3, abs=5e-6)
    assert found.busbw_bytes_per_s == pytest.approx(93.75e9)
    assert collective_time_s("all-to-all", GIB, 16, 1, two_nodes()) == pytest.approx(found.time_s)
    assert any(
        "above the slowest link's 50; only a part of the buffer goes over it" in n for n in found.notes
    )


@pytest.mark.parametrize("grads, factor", [("fp32", 4), ("bf16", 2)])
def test_cm07_data_parallel_traffic_is_two_and_four_bytes_a_parameter(grads, factor):
    """Distributed optimizer: 2 P gathered in bf16, 4 P scattered in fp32 (2 P in bf16), times (n-1)/n."""
    cluster = cluster_of(tier("node", 8, 1e9), nodes=1)
    train = TrainConfig(seq_len=1024, global_batch=8, grad_dtype=grads)
    layout = ParallelConfig(dp=8, zero=1, overlap_grad_reduce=False, overlap_param_gather=False)
    model = load_model("llama-3.1-8b")
    sent = float(step_cost(Site(model, cluster, train, layout)).dp_comm_s) * 1e9
    assert sent == pytest.approx((2 + factor) * 8_030_261_248 * 7 / 8)


def test_cm09_experts_may_be_parallel_where_tensors_are_not():
    """TP 1, EP 8: valid; the all-to-all is priced, and no tensor-parallel traffic."""
    record = {
        "model": "qwen3-30b-a3b",
        "cluster": {"device": "h100", "devices": 64},
        "train": {"seq_len": 4096, "global_batch": 256},
        "layout": {"tp": 1, "ep": 8, "pp": 1, "recompute": "full"},
    }
    job = load_job(record)
    found = estimate(job)
    assert found.valid
    assert found.breakdown_s["ep_comm"] > 0
    assert found.breakdown_s["tp_comm"] == 0
    for kind in job.model.kinds:
        used = layer_transfers(job.model, kind, job.train, job.layout)
        assert {item.expert.dispatcher for item in used if item.group == "ep"} == {"alltoall"}


MB, KB = 1e6, 1e6 / 1024
"""The thread's own units: its kilobyte is a 1,024th of its megabyte."""


@pytest.mark.parametrize(
    "alpha, beta, size, micros",
    [(0.7, 46, MB, 46.7), (1.7, 106, MB, 107.7), (0.7, 46, KB, 0.745), (1.7, 106, KB, 1.804)],
)
def test_cm11_small_messages_wait_for_latency(alpha, beta, size, micros):
    """NVLink 0.7 us + 46 us/MB, InfiniBand 1.7 us + 106 us/MB: to one peer, and in a column of sizes."""
    cluster = cluster_of(tier("node", 8, 1e12 / beta, alpha * 1e-6), nodes=1)
    time = float(collective_time_s("send-recv", size, 2, 1, cluster))
    assert 1e6 * time == pytest.approx(micros, abs=5.1e-4)
    latency_share = alpha / (1e6 * time)
    assert latency_share < 0.02 if size == MB else latency_share > 0.9
    exchange = 1e6 * collective_time_s("all-to-all", 2 * size, 2, 1, cluster)  # half of the buffer stays
    assert exchange == pytest.approx(1e6 * time)


def bonded(**fields):
    return {"name": "cluster", "devices": None, "latency_s": 0.0, "efficiency": 1.0} | fields


def test_cm12_a_bond_of_two_ports_is_not_one():
    """2 x 400 Gb/s are 100 GB/s; 50 would be one port, 200 both ways, 800 bits."""
    ports = {"count": 2, "bits_per_s": 400e9}
    assert LinkTier.model_validate(bonded(ports=ports)).bandwidth_bytes_per_s == 100e9
    assert LinkTier.model_validate(bonded(ports=ports, bandwidth_bytes_per_s=100e9)).ports.count == 2
    for doubtful, why in (
        (50e9, "one port of the bond"),
        (200e9, "both ways together"),
        (800e9, "bits, not bytes"),
        (70e9, "100 GB/s a device, one way"),
    ):
        spec = {
            "device": "h100",
            "nodes": 2,
            "tiers": [tier("node", 8, 450e9), bonded(ports=ports, bandwidth_bytes_per_s=doubtful)],
        }
        with pytest.raises(InputError, match=f"{why}.*1e\\+11 would work"):
            load_cluster(spec)


def test_cm12_the_same_of_cards_that_devices_share_and_of_units():
    shared = {"count": 2, "bits_per_s": 400e9, "devices": 4}
    assert LinkTier.model_validate(bonded(ports=shared)).bandwidth_bytes_per_s == 25e9
    with pytest.raises(InputError, match="the whole card, which devices share"):
        load_cluster(
            {
                "device": "h100",
                "nodes": 2,
                "tiers": [tier("node", 8, 450e9), bonded(ports=shared, bandwidth_bytes_per_s=100e9)],
            }
        )
    with pytest.raises(InputError, match=r"tiers\.1\.ports\.bits_per_s = 400"):  # Gbit/s for bit/s
        load_cluster(
            {
                "device": "h100",
                "nodes": 2,
                "tiers": [tier("node", 8, 450e9), bonded(ports={"count": 2, "bits_per_s": 400})],
            }
        )
    one = collective_time_s(
        "all-gather", 1e9, 2, 8, cluster_of(tier("node", 8, 450e9), bonded(ports={"bits_per_s": 4e11}))
    )
    two = collective_time_s(
        "all-gather",
        1e9,
        2,
        8,
        cluster_of(tier("node", 8, 450e9), bonded(ports={"count": 2, "bits_per_s": 4e11})),
    )
    assert one == pytest.approx(2 * two)


def test_cm16_busbw_is_no_wire_rate_where_the_switch_reduces():
    """Published H100 rows: 8 GPUs show 480 GB/s over links of 450. Algorithms are compared by time."""
    link = 450e9
    rows = [
        row
        for row in catalog.record("measurements", "communication")
        if row["kind"] == "collective"
        and row["gpu"] == "H100"
        and row["op"] == "all_reduce"
        and row["n_gpus"] == 8
    ]
    above = [row["busbw_GBs"] for row in rows if not_a_wire_rate("all-reduce", row["busbw_GBs"] * 1e9, link)]
    assert above and min(above) > 450
    assert max(row["busbw_GBs"] for row in rows) * 1e9 <= in_switch_bus_bandwidth(link, 8)
    assert not not_a_wire_rate("all-reduce", 440e9, link, "ring")
    one_node = cluster_of(tier("node", 8, link), nodes=1)
    by_switch = collective("all-reduce", one_node, 8, GIB, IN_NETWORK)
    by_ring = collective("all-reduce", one_node, 8, GIB, "ring")
    assert by_switch.busbw_bytes_per_s == pytest.approx(700e9)
    assert by_ring.busbw_bytes_per_s == pytest.approx(link)
    assert any("not a wire rate: the switch reduces" in note for note in by_switch.notes)
    assert not any("wire rate" in note for note in by_ring.notes)
    (phase,) = phases("all-reduce", IN_NETWORK, GIB, Group.strided(8), one_node)
    assert phase.sent_bytes / phase.transfer_s == pytest.approx(link)  # what the wire really carries
    for op, name in (("all-reduce", "tree"), ("all-gather", "hierarchical")):
        notes = collective(op, two_nodes(), 16, GIB, name).notes
        assert any(f"{name} sends others; compare by time" in note for note in notes)


@pytest.mark.parametrize("etp", [1, 2])
@pytest.mark.parametrize("ep", [8, 64])
def test_ma01_expert_activations_do_not_shrink_with_ep(ep, etp):
    """s 4096, b 1, top-8, moe_ffn 2048, TP 1: 32,768 token copies a rank; intermediates top-k s b moe_ffn."""
    model, train = load_model("deepseek-v3"), TrainConfig(seq_len=4096, global_batch=1024)
    layout = ParallelConfig(tp=1, ep=ep, etp=etp, dp=128)
    (kind,) = (kind for kind in model.kinds if kind.mlp.kind == "moe")
    assert (kind.mlp.top_k, kind.mlp.expert_ffn_hidden_size) == (8, 2048)
    copies = routed_tokens(Shapes.of(model, train, layout), kind.mlp, layout)
    assert copies / etp == 32_768
    saved = {op.name: op.saved_bytes for op in layer_operators(model, kind, train, layout)}
    assert saved["expert_fc1"] == 2 * 2 * 32_768 * 2048  # gate and up, 16 bits each
    assert np.isclose(saved["permute"] / (copies * model.hidden_size), 2)
