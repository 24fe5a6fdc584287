"""Small random graphs for the searches, and every partition of a few operators."""

import numpy as np

from telekit.fusion.graph import Graph


def random_graph(seed, most):
    """A graph of 2 to ``most`` operators of all kinds on shapes of A and B, and its random generator."""
    rng = np.random.default_rng(seed)
    graph = Graph(f"random-{seed}")
    values = [graph.input("x", ("A", "B")), graph.input("y", ("A", "B"))]
    weight, count = graph.input("w", ("B", "B")), int(rng.integers(2, most + 1))
    while len(graph.operators) < count:
        source = values[rng.integers(max(len(values) - 4, 0), len(values))]
        full = [v for v in values if v.shape == source.shape]
        match rng.integers(0, 10):
            case 0 if source.shape == ("A", "B"):
                made = source.sum(-1, keepdims=True)
            case 1 if source.shape == ("A", "B"):
                made = source.max(0, keepdims=True)
            case 2 if source.shape == ("A", "B"):
                made = source @ weight
            case 3:
                made = source.transpose()
            case 4 | 5 | 6:
                made = source + full[rng.integers(len(full))]
            case _:
                made = source.tanh()
        if made.shape in (("A", 1), (1, "B")) and len(graph.operators) < count:
            made = values[0] * made
        if made.shape == ("B", "A"):
            made = made if len(graph.operators) == count else made.transpose()
        values.append(made)
    read = {s for node in graph.nodes for s in node.inputs}
    for value in values[2:]:
        if value.index not in read or rng.random() < 0.1:
            graph.output(value)
    return graph, rng


def partitions(items):
    """Every way to part a list into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], [first, *part], *parts[i + 1 :]]
