"""Rank groups: Megatron-Core's own examples, plain loops over coordinates, and the cost model's ranks and strides."""

import random
from itertools import product

import numpy as np
import pytest

from telekit.cost.layers import Site, group
from telekit.errors import InputError
from telekit.layout.config import ParallelConfig
from telekit.layout.groups import MOST_RANKS, rank_groups


def listed(groups):
    return sorted(map(list, groups.tolist()))


def test_megatrons_example_of_sixteen():
    """Docstring of ``initialize_model_parallel``: 16 devices, two tensor ranks, four pipeline stages."""
    found = rank_groups(ParallelConfig(tp=2, pp=4, dp=2))
    pairs = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert listed(found["dp"]) == pairs
    assert listed(found["tp"]) == [[i, i + 1] for i in range(0, 16, 2)]
    assert listed(found["pp"]) == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_megatrons_example_of_context_parallelism():
    """The same docstring: 8 devices, four tensor ranks, two context ranks."""
    assert listed(rank_groups(ParallelConfig(tp=4, cp=2, dp=1))["cp"]) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def by_coordinates(layout):
    """Groups by walking over ranks: those that share every coordinate but the group's own are together."""
    edp = layout.tp * layout.cp * layout.dp // (layout.ep * layout.etp)
    sides = (
        (("pp", "dp", "cp", "tp"), (layout.pp, layout.dp, layout.cp, layout.tp), (("tp",), ("cp",), ("dp",), ("pp",),
                                                                             ("dp", "cp"))),
        (("pp", "edp", "ep", "etp"), (layout.pp, edp, layout.ep, layout.etp), (("etp",), ("ep",), ("edp",))),
    )  # fmt: skip
    found = {}
    for axes, sizes, kinds in sides:
        for names in kinds:
            groups = {}
            for rank, place in enumerate(product(*map(range, sizes))):
                shared = tuple(at for axis, at in zip(axes, place, strict=True) if axis not in names)
                groups.setdefault(shared, []).append(rank)
            found["-".join(names)] = sorted(groups.values())
    return found


def random_layouts(n):
    rng = random.Random(5)
    while n:
        tp, cp, dp, pp = (rng.choice([1, 2, 3, 4]) for _ in range(4))
        folds = [(e, t) for e in range(1, 17) for t in (1, 2, 3, 4) if tp * cp * dp % (e * t) == 0]
        ep, etp = rng.choice(folds)
        yield ParallelConfig(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp)
        n -= 1


def test_groups_are_those_of_a_walk_over_coordinates():
    for layout in random_layouts(200):
        found = rank_groups(layout)
        assert {name: listed(groups) for name, groups in found.items()} == by_coordinates(layout)


def test_the_cost_model_means_the_same_groups():
    """Its groups are (ranks, stride); its dp sums gradients over data and context ranks together."""
    for layout in random_layouts(200):
        site = Site(None, None, None, layout)
        found = rank_groups(layout)
        for name in ("tp", "cp", "dp", "pp", "etp", "ep", "edp"):
            ranks, stride = group(site, name)
            groups = found["dp-cp" if name == "dp" else name]
            assert groups.shape[1] == ranks
            together = groups[:, :1] + stride * np.arange(ranks)
            assert np.array_equal(np.sort(groups, axis=1), together), (layout, name)


@pytest.mark.parametrize(
    "layout, says",
    [
        (ParallelConfig(tp=2), "layout.dp = missing"),
        (ParallelConfig(tp=2, dp=3, ep=4), "ep * etp = 4 must divide the 6 ranks"),
        (ParallelConfig(tp=8, dp=2**17), f"{MOST_RANKS:,} ranks at most"),
        (ParallelConfig(tp=3, dp=2**17, ep=5), "2 problems"),
    ],
)
def test_what_has_no_groups(layout, says):
    with pytest.raises(InputError) as error:
        rank_groups(layout)
    assert says in str(error.value)
