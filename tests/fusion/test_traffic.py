import pytest

from telekit.cluster.config import load_cluster
from telekit.errors import InputError
from telekit.fusion.graph import Graph
from telekit.fusion.kernels import Fusion
from telekit.fusion.legality import OnChip, on_chip
from telekit.fusion.subgraphs import permute, rms_norm, swiglu, unpermute
from telekit.fusion.traffic import Step, Target, cost, gains, host_s, kernel_cost

UB = on_chip("ascend-910b")
PLAIN = Target("plain", 1e9, UB)


def chain(steps):
    graph = Graph("chain")
    value = graph.input("x", ("N",), "bf16")
    for _ in range(steps):
        value = value.exp()
    graph.output(value, "y")
    return graph


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_a_chain_gains_its_length_where_memory_decides(steps):
    """n operators over x bytes: 2nx unfused, 2x fused; gap and launch n times and once."""
    graph, sizes = chain(steps), {"N": 10**6}
    target = Target("t", 1e9, UB, gap_s=1e-6, host_launch_s=2e-6)
    apart, together = (cost(graph, f(graph), sizes, target) for f in (Fusion.none, Fusion.whole))
    assert (apart.moved_bytes, together.moved_bytes) == (steps * 4 * 10**6, 4 * 10**6)
    assert (apart.launches, together.launches) == (steps, 1)
    assert apart.device_s == pytest.approx(steps * (4e-3 + 1e-6)) and together.device_s == pytest.approx(
        4e-3 + 1e-6
    )
    assert apart.host_s == pytest.approx(steps * 2e-6)
    assert apart.step_s / together.step_s == pytest.approx(steps)


def test_each_kernel_reads_a_tensor_once_and_writes_what_leaves():
    """SwiGLU unfused: silu reads and writes F, mul reads 2F and writes F."""
    graph, sizes = swiglu(), {"T": 10, "F": 100}
    size = 2 * 10 * 100
    apart = cost(graph, Fusion.none(graph), sizes, PLAIN)
    assert [(k.read_bytes, k.written_bytes) for k in apart.kernels] == [(size, size), (2 * size, size)]
    whole = cost(graph, Fusion.whole(graph), sizes, PLAIN)
    assert (whole.read_bytes, whole.written_bytes) == (2 * size, size)


def test_an_inner_value_that_is_an_output_too_is_written():
    graph = rms_norm(residual=True)
    t, h = 64, 512
    assert cost(graph, Fusion.whole(graph), {"T": t, "H": h}, PLAIN).moved_bytes == 2 * (4 * t * h + h)


def test_only_the_rows_that_are_named_are_gathered():
    graph = permute()
    found = kernel_cost(graph, graph.operators, {"T": 10**6, "H": 8, "N": 3}, PLAIN)
    assert (found.read_bytes, found.written_bytes, found.kind) == (3 * 8 * 2 + 3 * 8, 3 * 8 * 2, "gather")
    graph = unpermute()
    sizes = {"T": 5, "H": 8, "N": 100, "K": 4}
    assert kernel_cost(graph, graph.operators, sizes, PLAIN).read_bytes == 5 * 4 * (8 * 2 + 8 + 2)


def test_a_norm_whose_row_does_not_fit_reads_its_input_twice_and_its_weight_once():
    graph, t, h = rms_norm(), 8, 10**6
    found = kernel_cost(graph, graph.operators, {"T": t, "H": h}, PLAIN)
    assert found.passes == 2
    assert (found.read_bytes, found.written_bytes) == (2 * (2 * t * h) + 2 * h, 2 * t * h)


def test_the_longest_of_traffic_and_arithmetic_counts():
    graph = Graph("product")
    graph.output(graph.input("a", ("M", "K")) @ graph.input("b", ("K", "N")), "c")
    sizes = {"M": 100, "K": 200, "N": 300}
    moved, flops = 4 * (100 * 200 + 200 * 300 + 100 * 300), 2 * 100 * 200 * 300
    for rate, want in ((1e6, flops / 1e6), (1e15, moved / 1e9)):
        found = kernel_cost(graph, graph.operators, sizes, Target("t", 1e9, UB, gemm_flops_per_s=rate))
        assert (found.gemm_flops, found.kind) == (flops, "gemm") and found.device_s == pytest.approx(want)
    slow = kernel_cost(chain(3), [1, 2, 3], {"N": 10**6}, Target("t", 1e9, UB, vector_flops_per_s=1e6))
    assert slow.device_s == pytest.approx(3.0)


def test_efficiency_follows_the_kernel_kind_and_its_size():
    target = Target("t", 1e9, UB, {"element": 0.5, "reduce": 0.25}, fused_efficiency=0.5, half_bytes=4e6)
    one = kernel_cost(chain(1), [1], {"N": 10**6}, target)
    assert one.device_s == pytest.approx(4e6 / (1e9 * 0.5 * 0.5))  # as large as half_bytes: half of the rate
    two = kernel_cost(chain(2), [1, 2], {"N": 10**6}, target)
    assert two.device_s == pytest.approx(2 * one.device_s)
    graph = Graph("sum")
    graph.output(graph.input("x", ("N", 4)).sum(-1), "y")
    found = kernel_cost(graph, graph.operators, {"N": 10**6}, target)
    assert found.device_s == pytest.approx((20e6 + 4e6) / (1e9 * 0.25))


def test_the_longer_side_decides_a_step():
    assert Step(10, 3.0, 2.0).step_s == 3.0 and Step(10, 3.0, 2.0).bound == "device"
    assert Step(10, 3.0, 4.0).step_s == 4.0 and Step(10, 3.0, 4.0).bound == "host"
    assert host_s(10, 0.5, 3, 2.0, 1.0) == 12.0


def test_a_device_of_the_catalog_says_what_is_assumed():
    device = load_cluster({"device": "ascend-910b", "nodes": 1}).device
    target = Target.of(device)
    assert target.bandwidth_bytes_per_s == device.memory_bandwidth_bytes_per_s
    assert target.efficiency["element"] == device.memory_efficiency
    text = " ".join(target.assumptions)
    assert "memory_efficiency = 0.6" in text and "host issues a kernel in 5 µs: assumed" in text
    stated = Target.of(device, host_launch_s=1e-6, gap_s=0.0, chip=OnChip(2**20, "mine"))
    assert stated.chip.capacity_bytes == 2**20 and not any("µs" in line for line in stated.assumptions)


def test_a_gain_is_named_by_its_baseline():
    assert gains({"eager": 3.0, "compiled": 2.0, "fused": 1.0}, "fused") == {"eager": 3.0, "compiled": 2.0}
    with pytest.raises(InputError, match="no such variant"):
        gains({"eager": 3.0}, "fused")
    with pytest.raises(InputError, match="positive"):
        gains({"eager": -1.0, "fused": 1.0}, "fused")


def test_all_faults_of_a_target_are_listed():
    with pytest.raises(InputError) as error:
        Target("t", -1.0, UB, {"reduce": 2.0, "magic": 0.5}, fused_efficiency=0.0, gap_s=float("nan"))
    fields = {p.field for p in error.value.problems}
    assert {"bandwidth_bytes_per_s", "efficiency.reduce", "fused_efficiency", "gap_s", "efficiency"} <= fields


def test_sizes_must_be_given():
    with pytest.raises(InputError, match="every named size"):
        cost(chain(2), Fusion.whole(chain(2)), {}, PLAIN)


def softmax_with(*sums):
    graph = Graph("softmax")
    x = graph.input("x", ("T", "H"))
    raised = (x - x.max(-1, keepdims=True)).exp()
    made = raised / raised.sum(-1, keepdims=True)
    graph.output(made, "y")
    for name, value in (("of_y", made), ("of_x", x)):
        if name in sums:
            graph.output(value.sum(0), name)
    return graph


@pytest.mark.parametrize("sums", [(), ("of_y",), ("of_x",), ("of_y", "of_x")])
def test_a_sum_over_rows_takes_part_in_a_pass_and_needs_none_of_its_own(sums):
    """Softmax of a row that does not fit: largest, sum, result: three reads, whatever is added up over rows beside."""
    graph, sizes = softmax_with(*sums), {"T": 512, "H": 4096}
    found = cost(graph, Fusion.whole(graph), sizes, Target("device", 1e12, OnChip(4096, "narrow"))).kernels[0]
    assert found.passes == 3
    assert found.read_bytes == 3 * 4 * 512 * 4096
    assert found.written_bytes == 4 * 512 * 4096 + len(sums) * 4 * 4096
