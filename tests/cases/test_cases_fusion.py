"""Questions that public work on fusion answered, each with its right answer (recomputed by hand)."""

from __future__ import annotations

import pytest

from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import OnChip
from telekit.fusion.search import search
from telekit.fusion.traffic import Step, Target, cost, gains, host_s

B, H = 512, 4096
WIDE, NARROW = OnChip(1 << 20, "a row fits"), OnChip(4096, "a row does not fit")


def swiglu_norm():
    """SwiGLU, then RMSNorm without a weight; bf16. Returns the graph and the operators of the first part."""
    graph = Graph("swiglu-norm")
    gate, up = (graph.input(name, ("B", "H"), "bf16") for name in ("gate", "up"))
    inner = gate.silu() * up
    first = graph.operators
    graph.output(inner * (inner.square().mean(-1, keepdims=True) + 1e-6).rsqrt(), "y")
    return graph, first


@pytest.mark.parametrize(
    ("unfused_chip", "unfused_bytes", "bound"),
    [(NARROW, 12, 2.0), (WIDE, 10, 1.67)],
    ids=["bound", "one chip"],
)
def test_fu01_swiglu_with_rms_norm_saves_half_of_the_traffic_and_a_launch(unfused_chip, unfused_bytes, bound):
    """Fused 6BH where a row fits. Unfused 10BH on that chip: 1.67 times; 2.0 is a bound, of a norm that reads twice.

    The 12BH are those of a norm kernel that goes over its row twice (as a chip does on which no row fits, where the
    fused kernel would not move 6BH): bytes of the two published kernels, not a gain of one device.
    """
    graph, first = swiglu_norm()
    rest = tuple(i for i in graph.operators if i not in first)
    sizes = {"B": B, "H": H}
    unfused = cost(graph, Fusion((first, rest)), sizes, Target("device", 1e12, unfused_chip, gap_s=0.0))
    fused = cost(graph, Fusion.whole(graph), sizes, Target("device", 1e12, WIDE, gap_s=0.0))
    assert unfused.moved_bytes == unfused_bytes * B * H
    assert fused.moved_bytes == 6 * B * H
    assert round(unfused.moved_bytes / fused.moved_bytes, 2) == bound
    assert unfused.launches - fused.launches == 1


def test_fu03_less_traffic_at_a_tenth_of_the_bandwidth_is_slower_and_not_chosen():
    """Half of the traffic at 10 % where single operators reach 78 %: 3.9 times slower. The answer is: do not fuse."""
    graph = Graph("block")
    graph.output(graph.input("x", ("N",)).exp().tanh(), "y")
    sizes, share = {"N": 1 << 24}, 0.78
    target = Target("device", 1e12, WIDE, {"element": share}, fused_efficiency=0.1 / share)
    unfused, fused = (cost(graph, f(graph), sizes, target) for f in (Fusion.none, Fusion.whole))
    assert fused.moved_bytes * 2 == unfused.moved_bytes
    assert fused.device_s / unfused.device_s == pytest.approx(3.9)
    found = search(graph, sizes, target)
    assert found.fusion == Fusion.none(graph) and found.verdict.startswith("do not fuse") and found.proved


def test_fu04_where_the_host_decides_only_fewer_launches_help():
    """The host issues for 19.5 of the 40 ms; whatever else it does, device time that falls by 43 % changes nothing."""
    issue_s = host_s(3091, 4.58e-6, 632, 8.4e-6)
    assert round(issue_s * 1e3, 1) == 19.5
    host = host_s(3091, 4.58e-6, 632, 8.4e-6, other_s=40e-3 - issue_s)
    before, after = Step(3091, 35e-3, host), Step(3091, 35e-3 * (1 - 0.43), host)
    assert before.bound == after.bound == "host"
    assert before.step_s == after.step_s == pytest.approx(40e-3)
    fewer = Step(1545, after.device_s, host_s(1545, 4.58e-6, 632, 8.4e-6, other_s=40e-3 - issue_s))
    assert before.step_s - fewer.step_s == pytest.approx(1546 * 4.58e-6)


def test_fu04_the_search_says_that_the_host_decides():
    graph = Graph("small")
    value = graph.input("x", ("N",))
    for _ in range(8):
        value = value.exp()
    graph.output(value, "y")
    found = search(graph, {"N": 1024}, Target("device", 1e12, WIDE, host_launch_s=4.58e-6))
    assert found.unfused.bound == "host" and "only fewer launches help" in found.verdict
    assert found.gain == pytest.approx(8)


@pytest.mark.parametrize(
    ("times_ms", "over_partly", "over_eager"),
    [
        ({"eager": 0.83, "partly fused": 0.49, "fused": 0.48}, 1.02, 1.73),
        ({"eager": 2.84, "partly fused": 1.36, "fused": 0.86}, 1.58, 3.3),
    ],
)
def test_fu07_a_gain_is_over_a_baseline_that_is_named(times_ms, over_partly, over_eager):
    found = gains({name: ms / 1e3 for name, ms in times_ms.items()}, "fused")
    assert round(found["partly fused"], 2) == over_partly
    assert round(found["eager"], 2) == over_eager


def test_fu07_the_search_names_its_baseline():
    graph = Graph("one")
    graph.output(graph.input("x", ("N",)).exp(), "y")
    found = search(graph, {"N": 8}, Target("device", 1e12, WIDE)).to_dict()
    assert found["baseline"] == "every operator a kernel and a launch"
