import math

import pytest
from fusion_graphs import partitions, random_graph

from telekit.errors import InputError
from telekit.fusion.graph import Graph
from telekit.fusion.legality import OnChip, cycle, on_chip
from telekit.fusion.patterns import patterns
from telekit.fusion.program import TIE, best_partition, candidates
from telekit.fusion.search import search
from telekit.fusion.stacking import stacked
from telekit.fusion.subgraphs import SIZES, feed_forward, rms_norm, rotary
from telekit.fusion.traffic import Target, kernel_cost

SMALL = {"A": 64, "B": 96}
UB = on_chip("ascend-910b")
SIDES = {  # what decides: traffic, the device's gaps, the host, a poor fused kernel, little memory on chip
    "traffic": Target("traffic", 1e9, UB, gap_s=1e-9),
    "gaps": Target("gaps", 1e12, UB, gap_s=1e-6),
    "host": Target("host", 1e10, UB, host_launch_s=1e-5),
    "poor": Target("poor", 1e9, UB, {"element": 0.8, "reduce": 0.5}, fused_efficiency=0.6, gap_s=1e-6),
    "small": Target("small", 1e9, OnChip(1024, "test"), host_launch_s=2e-6, gap_s=1e-7),
}


def step_of(costs, target):
    device_s = sum(c.device_s for c in costs)
    return max(device_s, len(costs) * target.host_launch_s)


def brute_force(graph, target):
    """The shortest step of all partitions whose groups are kernels and do not wait for each other."""
    live = graph.live()
    known = {}

    def price(group):
        key = tuple(sorted(group))
        if key not in known:
            try:
                known[key] = kernel_cost(graph, key, SMALL, target)
            except InputError:
                known[key] = None
        return known[key]

    best, tried = math.inf, 0
    for parts in partitions([i for i in graph.operators if i in live]):
        costs = [price(part) for part in parts]
        if None in costs:
            continue
        step = step_of(costs, target)
        if step < best and not cycle(graph, [tuple(sorted(p)) for p in parts]):
            best = step
        tried += 1
    return best, tried


@pytest.mark.parametrize("block", range(20))
def test_the_program_equals_brute_force(block):
    """400 graphs of up to 8 operators, on five targets in turn."""
    names = list(SIDES)
    for seed in range(20 * block, 20 * block + 20):
        graph, _ = random_graph(seed, 8)
        target = SIDES[names[seed % len(names)]]
        columns = candidates(graph, SMALL, target)
        found = best_partition(graph, columns, target)
        assert found.proved and found.groups is not None
        step = step_of([kernel_cost(graph, group, SMALL, target) for group in found.groups], target)
        best, _ = brute_force(graph, target)
        assert step == pytest.approx(best, rel=3 * TIE), f"seed {seed}"
        assert found.bound_s <= best * (1 + 3 * TIE)
        assert not cycle(graph, found.groups)


def test_kernels_that_would_wait_for_each_other_are_cut_off():
    """Each half needs the other's sum: (a, c) and (b, d) as kernels would wait for each other."""
    graph, target = Graph("crossed"), SIDES["small"]
    a, b = graph.input("x", ("A", "B")).tanh(), graph.input("y", ("A", "B")).exp()
    sums = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)
    graph.output(a * sums[1], "c")
    graph.output(b * sums[0], "d")
    found = best_partition(graph, candidates(graph, SMALL, target), target)
    assert found.proved and found.cuts > 0 and not cycle(graph, found.groups)
    step = step_of([kernel_cost(graph, group, SMALL, target) for group in found.groups], target)
    assert step == pytest.approx(brute_force(graph, target)[0], rel=3 * TIE)


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_every_way_is_a_partition_and_none_beats_the_proved_one(seed):
    graph, _ = random_graph(seed, 14)
    target = SIDES["traffic" if seed % 2 else "host"]
    proved = search(graph, SMALL, target, side_by_side=False)
    assert proved.proved
    for method in ("patterns", "merging", "program"):
        found = search(graph, SMALL, target, method, side_by_side=False)
        inside = sorted(i for group in found.fusion.groups for i in group)
        assert inside == [i for i in graph.operators if i in graph.live()]
        assert proved.cost.step_s <= found.cost.step_s * (1 + 3 * TIE)
        assert found.cost.step_s <= found.unfused.step_s * (1 + 3 * TIE)


def long_chain(length):
    graph = Graph("chain")
    value = graph.input("x", ("A", "B"))
    for _ in range(length):
        value = value.tanh()
    graph.output(value, "y")
    return graph


def test_thirty_operators_are_proved_and_more_are_searched():
    target = SIDES["gaps"]
    found = search(long_chain(30), SMALL, target)
    assert found.proved and len(found.fusion.groups) == 1
    large = search(long_chain(60), SMALL, target)
    assert not large.proved and len(large.fusion.groups) == 1 and large.bound_s == 0
    with pytest.raises(InputError, match="too many groups"):
        search(long_chain(60), SMALL, target, "program")


def test_patterns_find_the_three_they_know():
    graph = feed_forward()
    found = patterns(graph, SIZES, UB)
    assert {p.name for p in found} == {"epilogue", "reduction"}
    norm = next(p.group for p in found if p.name == "reduction")
    assert {graph.nodes[i].op for i in norm} >= {"square", "mean", "rsqrt", "mul"}
    assert all(
        sum(graph.nodes[i].kind == "gemm" for i in p.group) == 1 for p in found if p.name == "epilogue"
    )
    turned = rotary()  # two chains that read the same tensors: merging joins them, the pattern does not
    assert [(p.name, len(p.group)) for p in patterns(turned, SIZES, UB)] == [("chain", 3), ("chain", 3)]
    assert len(search(turned, SIZES, SIDES["traffic"], "merging").fusion.groups) == 1


def test_kernels_that_are_alike_and_independent_share_a_launch():
    graph = Graph("adam-of-many")
    for i in range(5):
        p, g = graph.input(f"p{i}", ("A",)), graph.input(f"g{i}", ("A",))
        graph.output(p - g * 0.1, f"new{i}")
    odd = graph.input("odd", ("B",))
    graph.output(odd * 0.1, "other")
    target = Target("t", 1e12, UB, host_launch_s=1e-5, gap_s=1e-6)
    found = search(graph, SMALL, target)
    assert len(found.fusion.groups) == 6 and sorted(map(len, found.launches)) == [1, 5]
    assert found.cost.launches == 2 and found.unfused.launches == 11
    assert found.cost.host_s == pytest.approx(2e-5)
    apart = search(graph, SMALL, target, side_by_side=False)
    assert apart.cost.launches == 6
    assert apart.cost.device_s - found.cost.device_s == pytest.approx(4e-6)
    assert apart.cost.moved_bytes == found.cost.moved_bytes


@pytest.mark.parametrize("seed", range(20))
def test_launches_side_by_side_are_in_an_order_that_can_run(seed):
    graph, _ = random_graph(seed, 12)
    fusion = search(graph, SMALL, SIDES["traffic"]).fusion
    done = {i for i, node in enumerate(graph.nodes) if node.op in ("input", "constant")}
    launches = stacked(graph, fusion)
    assert sorted(p for launch in launches for p in launch) == list(range(len(fusion.groups)))
    for launch in launches:
        members = [set(fusion.groups[place]) for place in launch]
        for group in members:
            assert all(s in done or s in group for i in group for s in graph.nodes[i].inputs)
        done |= set().union(*members)


def test_it_says_do_not_fuse():
    poor = Target("poor", 1e9, UB, fused_efficiency=0.1)
    found = search(rms_norm(), {"T": 512, "H": 1024}, poor)
    assert found.method == "unfused" and found.verdict.startswith("do not fuse")
    assert found.gain == 1 and found.cost.launches == found.unfused.launches == 8


def test_it_says_when_the_host_decides():
    found = search(rms_norm(), {"T": 16, "H": 64}, Target("t", 1e12, UB, host_launch_s=5e-6))
    assert "the host decides" in found.verdict and "only fewer launches help" in found.verdict
    assert found.gain == pytest.approx(8)
    slow = search(rms_norm(), {"T": 4096, "H": 2560}, Target("t", 1e9, UB, host_launch_s=5e-6))
    assert "host" not in slow.verdict


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sizes": {"A": 4}}, "sizes"),
        ({"method": "luck"}, "method"),
        ({"graph": Graph("empty")}, "graph"),
        ({"time_limit_s": math.nan}, "time_limit_s"),
    ],
)
def test_what_is_refused_names_the_field(change, field):
    given = {"graph": long_chain(3), "sizes": SMALL, "target": SIDES["gaps"]} | change
    with pytest.raises(InputError) as error:
        search(**given)
    assert error.value.problems[0].field == field


def test_the_answer_is_plain_data():
    found = search(rms_norm(), {"T": 64, "H": 64}, SIDES["gaps"]).to_dict()
    assert found["fused"]["launches"] == 1 and found["unfused"]["launches"] == 8
    assert found["proof"]["proved"] is True
    assert found["gain"] == pytest.approx(found["unfused"]["step_s"] / found["fused"]["step_s"])


def test_a_long_chain_and_a_tensor_of_many_readers_are_answered():
    """In proportion to their length: one kernel each, as every step of the chain and every second read is saved."""
    target = Target("device", 1e12, OnChip(1 << 20, "test"), gap_s=1e-6)
    chain, broom = Graph("chain"), Graph("broom")
    value = chain.input("x", ("N",))
    for _ in range(1000):
        value = value.exp()
    chain.output(value, "y")
    x = broom.input("x", ("N",))
    for i in range(300):
        broom.output(x.exp(), f"y{i}")
    for graph, moved in ((chain, 2), (broom, 301)):
        found = search(graph, {"N": 1 << 20}, target)
        assert len(found.fusion.groups) == 1
        assert found.cost.moved_bytes == moved * 4 * (1 << 20)
