from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_oracle import makespan, missing, peaks
from pipeline_oracle import megatron_order

from telekit.errors import InputError
from telekit.pipeline.interleaved import interleaved_1f1b, interleaved_less_memory
from telekit.pipeline.order import FORWARD, from_lists
from telekit.pipeline.schedules import order

SIZES = st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4))


def unit(chunks):
    return lambda letter, chunk, device, op: {"F": 1.0, "B": 2.0}[letter] / chunks


def plain(lines):
    return [[("FB"[op.kind], op.micro_batch, op.chunk) for op in line] for line in lines]


def accepted(stages, micro_batches):
    """Group sizes that Megatron-Core takes: from p to m, and a last group that is whole or has at least p."""
    for size in range(stages, micro_batches + 1):
        if not 0 < micro_batches % size < stages:
            yield size


def table(micro_batches, chunks, size):
    """Megatron-Core's schedule table, filled in by hand: (micro-batch, chunk) of each forward."""
    rows, first = [], 0
    while first < micro_batches:
        last = min(first + size, micro_batches)
        rows += [(i, c) for c in range(chunks) for i in range(first, last)]
        first = last
    return rows


def test_the_table_in_megatrons_comment():
    """PP2 N3 M5 with VP2, as its source writes it out."""
    lines, _ = interleaved_1f1b(2, 5, 2, group_size=3)
    for line in lines:
        forwards = [op for op in line if op.kind == FORWARD]
        assert [op.micro_batch for op in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
        assert [op.chunk for op in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


def test_sc07_warm_up():
    """p 4, v 2, m 8: 10, 8, 6, 4 forwards, and one more before the first backward."""
    lines, _ = interleaved_1f1b(4, 8, 2)
    first = [[op.kind for op in line].index(1) for line in lines]
    assert [n - 1 for n in first] == [10, 8, 6, 4]


@given(SIZES)
def test_groups_of_p_are_the_vectorised_order(sizes):
    p, groups, v = sizes
    m = p * groups
    lines, part = interleaved_1f1b(p, m, v, group_size=p)
    arrays = order("interleaved-1f1b", p, m, v)
    mine = from_lists("interleaved-1f1b", lines, part, m)
    for column in ("device", "kind", "micro_batch", "chunk", "part"):
        assert (getattr(mine, column) == getattr(arrays, column)).all()
    assert lines == interleaved_1f1b(p, m, v)[0]


@pytest.mark.parametrize(("p", "v"), list(product((2, 3, 4, 5), (2, 3))))
def test_every_size_megatron_accepts_runs(p, v):
    for m in range(p, 3 * p + 2):
        for size in accepted(p, m):
            lines, part = interleaved_1f1b(p, m, v, size)
            leads = [2 * (p - 1 - s) + (v - 1) * size for s in range(p)]
            rows = table(m, v, size)
            for line, lead in zip(plain(lines), leads, strict=True):
                forwards, backwards = (
                    [("F", i, c) for i, c in rows],
                    [("B", i, v - 1 - c) for i, c in rows],
                )
                expected, lead = forwards[:lead], min(lead, len(rows))
                for forward, backward in zip(forwards[lead:], backwards, strict=False):
                    expected += [forward, backward]
                assert line == expected + backwards[len(rows) - lead :]
            assert not missing(lines, part, m)
            end = makespan(lines, part, unit(v), comm=0.1)  # fails on a deadlock
            assert end >= makespan(lines, part, unit(v)) >= 3 * m + 3 * (p - 1) / v - 1e-9


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 16, 4)])
def test_groups_of_p_have_the_closed_form(p, m, v):
    assert makespan(*interleaved_1f1b(p, m, v), unit(v)) == pytest.approx(3 * m + 3 * (p - 1) / v)


def test_uneven_micro_batches_and_what_larger_groups_cost():
    """9 micro-batches on 4 stages run in groups of 5 and 4; all in one group hold more, and run as long."""
    ends, held = {}, {}
    for size in (5, 9):
        lines, part = interleaved_1f1b(4, 9, 2, size)
        ends[size], held[size] = makespan(lines, part, unit(2)), max(peaks(lines, lambda c, d: 0.5))
    assert ends == pytest.approx({5: 27 + 4.5, 9: 27 + 4.5})
    assert held == {5: 6.0, 9: 8.0}
    assert max(peaks(interleaved_1f1b(4, 8, 2)[0], lambda c, d: 0.5)) == 5.5


@given(SIZES, st.integers(0, 4))
def test_less_memory_is_sapps_where_that_runs_and_runs_everywhere(sizes, extra):
    p, groups, v = sizes
    m = p * groups + extra % p
    lines, part = interleaved_less_memory(p, m, v)
    g = p + m % p
    expected = megatron_order(p, m, v, leads=[p - 1 - s + (v - 1) * g for s in range(p)])
    assert plain(lines) == expected
    if m % p == 0:
        arrays = order("interleaved-sapp-less-memory", p, m, v)
        mine = from_lists("interleaved-sapp-less-memory", lines, part, m)
        assert (mine.kind == arrays.kind).all() and (mine.micro_batch == arrays.micro_batch).all()
    assert not missing(lines, part, m)
    assert makespan(lines, part, unit(v), comm=0.1) >= 3 * m  # fails on a deadlock
    most = [2 * (p - 1 - s) + (v - 1) * g + 1 for s in range(p)]
    assert all(a <= b for a, b in zip(peaks(lines, lambda c, d: 1), most, strict=True))


def test_what_less_memory_costs():
    normal, less = interleaved_1f1b(4, 16, 2), interleaved_less_memory(4, 16, 2)
    assert peaks(normal[0], lambda c, d: 0.5) == [5.5, 4.5, 3.5, 2.5]
    assert peaks(less[0], lambda c, d: 0.5) == [4.0, 3.5, 3.0, 2.5]
    assert makespan(*normal, unit(2)) == makespan(*less, unit(2)) == 52.5
    assert makespan(*less, unit(2), comm=0.2) > makespan(*normal, unit(2), comm=0.2) + 4


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ((4, 10, 2, 4), [("group_size", "must be none or at least", "group_size 5 works")]),
        ((4, 9, 2), [("group_size", "must be none or at least", "group_size 5 works")]),
        (
            (4, 8, 2, 3),
            [
                ("group_size", "at least stages = 4", "group_size 4 works"),
            ],
        ),
        ((4, 9, 2, 3), [("group_size", "at least stages = 4", "group_size 5 works")]),
        ((4, 8, 2, 12), [("group_size", "at most all 8", "group_size 8 works")]),
        ((4, 3, 2), [("micro_batches", "at least as many", "micro_batches 4 works")]),
        (
            (1, 3, 1, 1),
            [
                ("stages", "2 stages", "stages 2 works"),
                ("chunks", "2 chunks", "chunks 2 works"),
                ("group_size", "at least stages = 2", "group_size 3 works"),
            ],
        ),
        ((4, 8, 2, 0), [("group_size", "whole number", "group_size 4 works")]),
        ((4, 2.5, 2), [("micro_batches", "whole number", "micro_batches 4 works")]),
        ((64, 10**9, 2), [("micro_batches", "the most is", "micro_batches 7812 works")]),
    ],
)
def test_sizes_it_refuses(arguments, problems):
    with pytest.raises(InputError) as caught:
        interleaved_1f1b(*arguments)
    found = caught.value.problems
    assert [problem.field for problem in found] == [field for field, *_ in problems]
    for problem, (_, rule, hint) in zip(found, problems, strict=True):
        assert rule in problem.rule and hint in problem.suggestion


def test_the_suggested_group_runs():
    for p, m in product((2, 3, 4, 6), range(2, 20)):
        with pytest.raises(InputError) as caught:
            interleaved_1f1b(p, m, 2, group_size=m + 1)
        sizes = {problem.field: int(problem.suggestion.split()[1]) for problem in caught.value.problems}
        interleaved_1f1b(p, sizes.get("micro_batches", m), 2, sizes.get("group_size", m + 1))
