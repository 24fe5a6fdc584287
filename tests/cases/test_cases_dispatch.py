"""Questions that users of expert dispatch asked in public, each with its right answer (recomputed by hand)."""

from dataclasses import replace

import pytest

from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import dispatch, logical_to_wire, rows_per_token
from telekit.comm.expert_links import expert_links
from telekit.comm.routing import Routing


def test_cm04_a_reported_bandwidth_counts_the_own_node():
    """DeepEP issue 51: 43 GB/s at EP 16 on 2 nodes are 21.5 GB/s on the wire."""
    assert logical_to_wire(43.0, 2) == 21.5


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
@pytest.mark.parametrize("card_bytes_per_s", [25e9, 50e9, 100e9])
def test_cm04_every_report_above_the_card_is_below_it_on_the_wire(nodes, card_bytes_per_s):
    """Whatever the card and the nodes: what a network-bound run reports is the wire's rate times N / (N - 1)."""
    links = replace(
        expert_links(load_cluster({"device": "h800", "nodes": 16})),
        network_bytes_per_s=card_bytes_per_s, fabric_bytes_per_s=1e13, sm_row_s=0.0, sm_bytes_per_s=1e13,
        kernel_start_s=0.0,
    )  # fmt: skip
    found = dispatch("deepep", 4096, 7168, 1, 2, Routing(256, 8), 8 * nodes, 8, links)
    reported = found.counted_bandwidth("outer")
    assert reported == pytest.approx(card_bytes_per_s * nodes / (nodes - 1))
    assert reported > card_bytes_per_s
    assert logical_to_wire(reported, nodes) == pytest.approx(card_bytes_per_s)


def test_cm05_what_sending_once_a_node_saves():
    """DeepEP issue 3: 1.993 nodes a token of two; 58.5 MB leave the node, not 234.9 (4.0 times)."""
    routing = Routing(256, 8)
    assert routing.distinct_units(2) == pytest.approx(1.993, abs=5e-4)
    row = 4096 * 7168 * 2
    once, flat = (rows_per_token(name, routing, 16, 8).outer * row for name in ("deepep", "alltoall"))
    assert once / 1e6 == pytest.approx(58.5, abs=0.05)
    assert flat / 1e6 == pytest.approx(234.9, abs=0.05)
    assert flat / once == pytest.approx(4.0, abs=0.05)
