import pytest
from fusion_graphs import random_graph

from telekit.errors import InputError
from telekit.fusion.bytecode import encode
from telekit.fusion.graph import Graph
from telekit.fusion.legality import OnChip, cycle, fit, on_chip, ordered, problem
from telekit.fusion.subgraphs import feed_forward, rms_norm
from telekit.units import KIB

UB = on_chip("ascend-910b")
ROWS = {"T": 4096, "H": 2560, "F": 1536}


def test_capacities_are_looked_up_by_device_and_grade():
    assert on_chip("ascend-910b").capacity_bytes == on_chip("ascend-910b-376t").capacity_bytes == 192 * KIB
    assert on_chip("h100").capacity_bytes == 227 * KIB
    with pytest.raises(InputError, match="memory on chip is not known"):
        on_chip("tpu-v5p")
    with pytest.raises(InputError, match="at least one vector"):
        OnChip(8, "none")


def test_a_norm_is_one_kernel_of_one_pass_while_its_row_fits():
    graph = rms_norm()
    assert fit(graph, graph.operators, ROWS, UB).passes == 1
    long = fit(graph, graph.operators, ROWS | {"H": 2_560_000}, UB)
    assert long.passes == 2 and long.tile_bytes <= UB.capacity_bytes


def test_a_softmax_of_a_row_that_does_not_fit_goes_over_it_three_times():
    graph = Graph("softmax")
    x = graph.input("x", ("T", "V"))
    powers = (x - x.max(-1, keepdims=True)).exp()
    graph.output(powers / powers.sum(-1, keepdims=True), "y")
    assert fit(graph, graph.operators, {"T": 8, "V": 10**6}, UB).passes == 3
    assert fit(graph, graph.operators, {"T": 8, "V": 1000}, UB).passes == 1


def test_the_tile_of_a_chain_is_a_vector_an_operand():
    """Two inputs, one register that the result of each step takes over, one output."""
    graph = Graph("chain")
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    graph.output((x + y) * y - x, "z")
    assert fit(graph, graph.operators, {"N": 10**6}, UB).tile_bytes == (3 + 1) * 256
    assert "smallest tile" in problem(graph, graph.operators, {"N": 10**6}, OnChip(3 * 256, "test"))


def test_at_most_one_product_with_its_prologue_and_epilogue():
    graph = feed_forward()
    products = [i for i in graph.operators if graph.nodes[i].kind == "gemm"]
    epilogue = [products[0], graph.consumers()[products[0]][0]]
    assert not problem(graph, epilogue, ROWS, UB)
    assert "at most one matrix product" in problem(graph, products[:2], ROWS, UB)


def test_a_path_through_an_outside_operator_is_refused():
    graph = Graph()
    x = graph.input("x", ("N",))
    a = x.exp()
    b = a.tanh()
    c = a + b
    graph.output(c, "y")
    assert "outside" in problem(graph, [a.index, c.index], {"N": 4}, UB)
    assert not problem(graph, [a.index, b.index, c.index], {"N": 4}, UB)


def test_strangers_are_no_kernel_but_readers_of_one_tensor_are():
    graph = Graph()
    x, y = graph.input("x", ("N",)), graph.input("y", ("N",))
    a, b, c = x * 2.0, x * 3.0, y * 2.0
    for i, value in enumerate((a, b, c)):
        graph.output(value, f"out{i}")
    assert not problem(graph, [a.index, b.index], {"N": 4}, UB)
    assert "share no value" in problem(graph, [a.index, c.index], {"N": 4}, UB)


def test_groups_that_wait_for_each_other_are_found():
    graph = Graph()
    x = graph.input("x", ("N",))
    a, b = x.exp(), x.tanh()
    c, d = b.abs(), a.sqrt()
    graph.output(c + d, "y")
    last = graph.operators[-1]
    crossed = [(a.index, c.index), (b.index, d.index), (last,)]
    assert sorted(cycle(graph, crossed)) == [0, 1]
    with pytest.raises(InputError, match="wait for each other"):
        ordered(graph, crossed)
    assert ordered(graph, [(last,), (b.index, c.index), (a.index, d.index)]).groups[-1] == (last,)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_legal_the_encoder_accepts(seed):
    """Any partition whose groups are legal and that has an order is encoded: the rule is the encoder's, and more."""
    graph, rng = random_graph(seed, 8)
    operators = [i for i in graph.operators if i in graph.live()]
    for _ in range(6):
        homes = rng.integers(0, max(len(operators) // 2, 1), len(operators))
        groups = [
            tuple(o for o, h in zip(operators, homes, strict=True) if h == home)
            for home in set(homes.tolist())
        ]
        if any(problem(graph, group, {"A": 4, "B": 8}, UB) for group in groups) or cycle(graph, groups):
            continue
        assert encode(graph, ordered(graph, groups)).code
