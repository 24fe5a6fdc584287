"""Routing statistics against counting every choice, drawing tokens, and closed forms."""

from fractions import Fraction
from itertools import combinations
from math import comb, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.comm import choices
from telekit.comm.expert_load import load_histogram
from telekit.comm.routing import Routing, distinct_uniform
from telekit.errors import InputError

TABLE = {(16, 4): 0.939, (16, 8): 0.997, (32, 4): 2.061, (32, 8): 2.714, (64, 4): 2.915, (64, 8): 4.646}


def listed(routing):
    """Every set of experts a token may choose, with its probability, listed one by one."""
    size = routing.experts // routing.groups
    weights = routing.weights or (1.0,) * routing.experts
    blocks = [range(g * size, (g + 1) * size) for g in range(routing.groups)]
    odds = [sum(weights[e] for e in block) for block in blocks]
    chosen = list(combinations(range(routing.groups), routing.limit))
    group_total = sum(prod(odds[g] for g in some) for some in chosen)
    for some in chosen:
        members = [e for g in some for e in blocks[g]]
        sets = list(combinations(members, routing.top_k))
        total = sum(prod(weights[e] for e in one) for one in sets)
        for one in sets:
            share = prod(odds[g] for g in some) / group_total
            yield one, share * prod(weights[e] for e in one) / total


routings = st.builds(
    lambda shape, k, limit, seed, plain: Routing(
        shape[0] * shape[1],
        min(k, min(limit, shape[0]) * shape[1]),
        shape[0],
        min(limit, shape[0]),
        None if plain else tuple(np.random.default_rng(seed).uniform(0.05, 4, shape[0] * shape[1]).tolist()),
    ),
    st.sampled_from([(1, 7), (2, 3), (3, 3), (4, 2), (2, 5)]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 99),
    st.booleans(),
)


@settings(max_examples=80, deadline=None)
@given(routings, st.integers(1, 10))
def test_counts_are_those_of_every_choice(routing, units):
    units = min(units, routing.experts)
    owner = [e * units // routing.experts for e in range(routing.experts)]
    everything = list(listed(routing))
    assert sum(p for _, p in everything) == pytest.approx(1)
    distinct = sum(p * len({owner[e] for e in one}) for one, p in everything)
    assert routing.distinct_units(units) == pytest.approx(distinct, rel=1e-11)
    mean, variance = routing.rank_load(units)
    for unit in range(units):
        held = [(sum(owner[e] == unit for e in one), p) for one, p in everything]
        first = sum(n * p for n, p in held)
        assert mean[unit] == pytest.approx(first, abs=1e-11)
        assert variance[unit] == pytest.approx(sum(n * n * p for n, p in held) - first**2, abs=1e-10)
    assert routing.method(units) == "exact"


@pytest.mark.parametrize(("ep", "k"), TABLE)
def test_monte_carlo_agrees_with_the_published_rows(ep, k):
    """Rows that leave the node, of a token on one of ``ep / 8`` nodes: within 3 standard errors."""
    nodes = ep // 8
    mean, error = Routing.uniform(192, k).monte_carlo(nodes, tokens=20_000, seed=ep + k)
    away = 1 - 1 / nodes
    assert abs(mean * away - TABLE[ep, k]) < 3 * error * away + 5e-4  # the table has three decimals


@pytest.mark.parametrize(
    "routing",
    [
        Routing(256, 8, 8, 4),
        Routing.zipf(64, 6, 1.2),
        Routing.zipf(64, 4, 0.8, 8, 3),
        Routing.node_limited(256, 8, nodes=16, limit=4),
        Routing.histogram(np.random.default_rng(3).integers(5, 500, 60), 4),
    ],
    ids=["groups", "zipf", "zipf in groups", "nodes", "histogram"],
)
@pytest.mark.parametrize("units", [2, 4, 15])
def test_monte_carlo_agrees_with_the_exact_number(routing, units):
    mean, error = routing.monte_carlo(units, tokens=20_000, seed=units)
    assert abs(mean - routing.distinct_units(units)) < 3 * error


def test_distinct_units_of_a_uniform_choice_are_hypergeometric():
    for experts, k, units in ((192, 8, 8), (256, 8, 32), (64, 6, 64), (384, 8, 3)):
        closed = units * (1 - comb(experts - experts // units, k) / comb(experts, k))
        assert Routing(experts, k).distinct_units(units) == pytest.approx(closed, rel=1e-12)
        assert distinct_uniform(float(units), experts, k) == pytest.approx(closed, rel=1e-12)


def test_a_column_of_units_keeps_its_shape():
    routing, units = Routing(256, 8, 8, 4), np.array([[2, 4], [8, 2]])
    found = routing.distinct_units(units)
    assert found.shape == (2, 2)
    assert found[0, 0] == found[1, 1] == routing.distinct_units(2)


def test_units_never_hold_more_than_a_token_can_visit():
    routing = Routing(256, 8, 8, 4)
    assert routing.distinct_units(8) <= 4
    assert routing.distinct_units(1) == 1
    assert routing.distinct_units(256) == pytest.approx(8)


def test_too_many_choices_of_groups_are_drawn_and_that_is_said():
    routing = Routing.zipf(128, 4, 0.7, 32, 8)
    assert "Monte Carlo over 20,000 choices" in routing.method(16)
    mean, error = routing.monte_carlo(16, tokens=20_000, seed=5)
    assert abs(mean - routing.distinct_units(16)) < 4 * error  # both are drawn
    assert Routing(128, 4, 32, 8).method(16) == "exact"  # all groups alike


def test_a_histogram_gives_back_its_loads():
    counts = np.random.default_rng(0).integers(0, 900, 48)
    for groups, limit in ((1, None), (8, 6)):
        load = Routing.histogram(counts, 6, groups, limit).load()
        np.testing.assert_allclose(load, counts * 6 / counts.sum(), atol=1e-8)
    assert Routing.histogram([5] * 16, 2).balanced


def test_zipf_loads_fall_by_rank():
    load = Routing.zipf(32, 4, 1.0, seed=None).load()
    assert (np.diff(load) < 0).all() and load.sum() == pytest.approx(4) and load.max() < 1
    shuffled = Routing.zipf(32, 4, 1.0, seed=1).load()
    np.testing.assert_allclose(np.sort(shuffled), np.sort(load), rtol=1e-10)


@pytest.mark.parametrize("routing", [Routing(64, 8), Routing.zipf(64, 6, 0.5), Routing(64, 4, 8, 4)])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_busiest_rank_is_that_of_drawn_batches(routing, ranks):
    tokens, batches = 2048, 60
    owner = choices.owners(64, ranks)[routing.draw(tokens * batches, seed=ranks)]
    counts = np.stack([np.bincount(one.ravel(), minlength=ranks) for one in np.split(owner, batches)])
    busiest = counts.max(axis=1) / counts.mean(axis=1)
    error = busiest.std() / np.sqrt(batches)
    expected = routing.imbalance(ranks, tokens)
    assert abs(busiest.mean() - expected) < 3 * error + 0.03 * (expected - 1)  # normal, independent ranks


def test_imbalance_of_unequal_weights_outlasts_any_number_of_tokens():
    skewed, fair = Routing.zipf(256, 8), Routing(256, 8)
    assert fair.imbalance(32, 10**9) == pytest.approx(1, abs=1e-3)
    loads = skewed.rank_load(32)[0]
    assert skewed.imbalance(32, 10**9) == pytest.approx(loads.max() / loads.mean(), rel=1e-3)
    assert fair.imbalance(1, 10) == 1
    assert fair.imbalance(32, 100) > fair.imbalance(32, 10_000)


@pytest.mark.parametrize("routing", [Routing(16, 2), Routing.zipf(16, 2)])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, 2.0])
def test_dropped_copies_are_those_of_drawn_batches(routing, factor):
    tokens, batches = 64, 3000
    drawn = routing.draw(tokens * batches, seed=int(8 * factor)).reshape(batches, -1)
    counts = np.stack([np.bincount(one, minlength=16) for one in drawn])
    capacity = int(np.ceil(factor * tokens * 2 / 16))
    dropped = np.maximum(counts - capacity, 0).sum(axis=1) / (tokens * 2)
    error = dropped.std() / np.sqrt(batches)
    assert abs(dropped.mean() - routing.dropped_share(tokens, factor)) < 3 * error + 1e-9


def test_nothing_is_dropped_where_an_expert_takes_all():
    assert Routing(16, 2).dropped_share(64, 8.0) == 0


def exact_loads(weights, top_k):
    """Chance of each expert in a set drawn in proportion to its members' weights, in rational numbers."""
    weights = [Fraction(w) for w in weights]

    def symmetric(some):
        poly = [Fraction(1)] + [Fraction(0)] * top_k
        for w in some:
            poly = [poly[j] + (w * poly[j - 1] if j else 0) for j in range(top_k + 1)]
        return poly[top_k], poly

    total, _ = symmetric(weights)
    return [
        float(w * symmetric(weights[:e] + weights[e + 1 :])[1][top_k - 1] / total)
        for e, w in enumerate(weights)
    ]


@pytest.mark.parametrize(
    ("experts", "top_k", "exponent"), [(24, 8, 0.5), (24, 12, 6.0), (32, 8, 10.0), (12, 12, 3.0)]
)
def test_steep_weights_lose_no_digits(experts, top_k, exponent):
    routing = Routing.zipf(experts, top_k, exponent)
    np.testing.assert_allclose(routing.load(), exact_loads(routing.weights, top_k), rtol=1e-9)


def test_weights_a_float_can_hardly_hold_are_answered():
    weights = [1e-300, 1e-200, 1e-100, 1e-50, 1.0, 1e5, 1e11, 1e11]
    found = Routing(8, 3, weights=tuple(weights)).load()
    np.testing.assert_allclose(found, exact_loads(weights, 3), rtol=1e-9)


@pytest.mark.parametrize("exponent", [1.0, 3.0, 10.0])
@pytest.mark.parametrize(("groups", "limit", "seed"), [(1, None, 0), (8, 1, None), (8, 4, 0)])
def test_the_largest_routing_is_finite_however_steep(exponent, groups, limit, seed):
    """4,096 experts, 128 a token: loads once came out as nan."""
    routing = Routing.zipf(4096, 128, exponent, groups, limit, seed)
    mean, variance = routing.rank_load(64)
    assert mean.sum() == pytest.approx(128) and (mean >= 0).all() and (variance >= -1e-9).all()
    assert 1 <= routing.distinct_units(64) <= 64
    assert routing.imbalance(64, 4096) >= 1


def test_the_law_of_groups_with_unlike_weights_is_that_of_every_choice():
    """Weights that fall by 1e4 an expert, so that groups differ by 1e12: none of their choices is lost."""
    weights = tuple(10.0 ** (-4 * e) for e in range(9))
    routing = Routing(9, 2, 3, 2, weights)
    everything = list(listed(routing))
    for unit in range(3):
        want = sum(p * sum(e // 3 == unit for e in one) for one, p in everything)
        assert routing.rank_load(3)[0][unit] == pytest.approx(want, rel=1e-9)


def test_work_is_bounded_and_it_is_said():
    """A law over 128 of 256 groups once took minutes: fewer choices of groups are drawn for larger routings."""
    largest = choices.most_choices(4096, 128)
    assert largest * 4096 * 129 <= choices.WORK and largest >= 500
    assert choices.most_choices(256, 8) == choices.MOST_CHOICES
    assert Routing(4096, 128, 256, 128, Routing.zipf(4096, 128).weights).method(64) == (
        f"Monte Carlo over {largest:,} choices of groups"
    )


def test_few_drawn_choices_of_groups_are_near_many(monkeypatch):
    routing = Routing.zipf(128, 4, 0.7, 32, 8)
    many = routing.distinct_units(16)
    mean = routing.monte_carlo(16, tokens=20_000, seed=5)[0]
    monkeypatch.setattr(choices, "WORK", 500 * 128 * 5)
    few = Routing.zipf(128, 4, 0.7000001, 32, 8)
    assert "over 500 choices" in few.method(16)
    assert few.distinct_units(16) == pytest.approx(many, rel=0.02) == pytest.approx(mean, rel=0.02)


def test_a_histogram_whose_law_cannot_be_listed_is_refused_at_once():
    counts = np.arange(1, 257)
    with pytest.raises(InputError, match="more than 20,000 ways; leave the group limit out"):
        Routing.histogram(counts, 8, 64, 8)


def test_a_fit_that_no_longer_gets_nearer_is_given_up(monkeypatch):
    """Asked for more digits than a float has, so that the error stops falling."""
    monkeypatch.setattr("telekit.comm.routing.FIT_PATIENCE", 5)
    monkeypatch.setattr("telekit.comm.routing.CLOSE", 0.0)
    with pytest.raises(InputError, match="did not give in"):
        Routing.histogram([7, 3, 5, 2, 9, 1, 4, 6], 2, 4, 2)


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: Routing(0, 1), "experts", "from 1"),
        (lambda: Routing(8, 9), "top_k", "8 would work"),
        (lambda: Routing(10, 2, 4), "groups", "2 would work"),
        (lambda: Routing(8, 4, 4, 1), "group_limit", "from 2"),
        (lambda: Routing(4, 2, weights=(1.0, 2.0)), "weights", "each of 4"),
        (lambda: Routing(4, 2, weights=(1.0, -2.0, 1.0, 1.0)), "weights", "from 0"),
        (lambda: Routing(4, 2, weights=(1.0, 0.0, 0.0, 0.0)), "weights", "hold top_k"),
        (lambda: Routing.histogram([9, 1, 1, 1], 2), "counts.0", "at most one copy"),
        (lambda: Routing.histogram([1, -1], 1), "counts.1", "must be counts"),
        (lambda: Routing.histogram([0, 0], 1), "counts", "not all 0"),
        (lambda: Routing.zipf(4, 1, -1), "exponent", "from 0"),
        (lambda: Routing(8, 2).distinct_units(9), "units", "8 experts"),
        (lambda: Routing(8, 2).draw(0), "tokens", "from 2"),
        (lambda: Routing(4096, 128, 256, 128).draw(10**6), "tokens", "to 244,140"),
        (lambda: Routing(8, 2).imbalance(2, 0), "tokens", "at least 1"),
        (lambda: Routing(8, 2).dropped_share(4, 0.0), "capacity_factor", "above 0"),
    ],
)
def test_bad_routing_is_refused(make, field, words):
    with pytest.raises(InputError) as refused:
        make()
    (problem,) = refused.value.problems
    assert problem.field == field and words in str(problem)


def test_histogram_files_are_read(tmp_path):
    counts = [3.0, 0.0, 5.0, 1.0]
    np.save(tmp_path / "a.npy", np.array([3, 0, 5, 1]))
    (tmp_path / "b.json").write_text("[3, 0, 5, 1]")
    (tmp_path / "c.json").write_text('{"0": 3, "2": 5, "1": 0, "3": 1}')
    (tmp_path / "d.csv").write_text("tokens\n3\n0\n5\n1\n")
    (tmp_path / "e.csv").write_text("expert,tokens\n2,5\n0,3\n1,0\n3,1\n")
    for path in sorted(tmp_path.iterdir()):
        assert load_histogram(path).tolist() == counts, path


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "1\nx\n", "line 2"),
        ("b.csv", "1\n-2\n", "histogram.1"),
        ("c.json", '{"0": 1, "2": 1}', "expert 1 is missing"),
        ("d.json", '["a"]', "must be numbers"),
        ("e.json", "[[1], [2]]", "one dimension"),
        ("f.npy", "not numpy", "cannot be read"),
        ("g.txt", "1", ".npy, .json or .csv"),
        ("h.csv", "", "one dimension"),
        ("i.csv", "1\nnan\n", "histogram.1"),
    ],
)
def test_bad_histogram_files_are_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        load_histogram(path)


def test_a_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        load_histogram(tmp_path / "evil.npy")
    with pytest.raises(InputError, match="cannot be read"):
        load_histogram(tmp_path / "missing.npy")
