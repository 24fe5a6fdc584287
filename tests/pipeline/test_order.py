import numpy as np
import pytest
from hypothesis import given, settings
from order_cases import draw_lines, orders, placement

from telekit.errors import InputError
from telekit.pipeline.order import (
    BACKWARD,
    FORWARD,
    INPUT,
    PAIR,
    WEIGHT,
    Op,
    dependencies,
    from_lists,
)
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


@given(orders())
@settings(max_examples=60, deadline=None)
def test_columns_are_the_lists(case):
    found, lines, _, _ = case
    for device, line in enumerate(lines):
        mine = range(found.first[device], found.first[device + 1])
        assert len(mine) == len(line)
        for n, op in zip(mine, line, strict=True):
            row = found.kind[n], found.micro_batch[n], found.chunk[n]
            assert (found.device[n], *row) == (device, *op[:3])
            assert (0 if found.piece is None else found.piece[n]) == op.piece
            if op.kind == PAIR:
                assert (found.other_micro_batch[n], found.other_chunk[n]) == op[4:]


@given(orders())
@settings(max_examples=60, deadline=None)
def test_dependencies_are_those_of_each_pass(case):
    """Written down pass by pass, with everything that the columns leave to implication."""
    found, lines, _, _ = case
    at, n = {}, 0
    for device, line in enumerate(lines):
        for op in line:
            here = found.part[op.chunk, device]
            letters = {FORWARD: "F", BACKWARD: "B", INPUT: "B", WEIGHT: "W", PAIR: "F"}
            at[letters[op.kind], op.micro_batch, op.piece, here] = n
            if op.kind == PAIR:
                at["B", op.other_micro_batch, 0, found.part[op.other_chunk, device]] = n
            n += 1
    last, expected = found.parts - 1, set()
    for (letter, i, k, q), after in at.items():
        ways = {
            "F": [("F", i, k, q - 1), ("F", i, k - 1, q)],
            "B": [("B", i, k, q + 1), ("B", i, k + 1, q), ("F", i, k, q) if q == last else None],
            "W": [("B", i, k, q)],
        }[letter]
        expected |= {(at[way], after) for way in ways if way in at}
    before, after = dependencies(found)
    assert set(zip(before.tolist(), after.tolist(), strict=True)) == expected
    kept = set(zip(*(x.tolist() for x in found.links[:2]), strict=True))
    assert kept <= expected
    assert all(found.device[a] == found.device[b] and a < b for a, b in expected - kept)


@given(orders())
@settings(max_examples=60, deadline=None)
def test_operations_of_a_class_differ_in_the_micro_batch_alone(case):
    found, lines, _, _ = case
    one, which = found.classes
    ops = [
        (d, op._replace(micro_batch=0, other_micro_batch=0)) for d, line in enumerate(lines) for op in line
    ]
    assert len(one) == len(set(ops))
    assert all(ops[one[which[n]]] == op for n, op in enumerate(ops))


def test_arrays_are_read_only():
    found = from_lists("V", draw_lines(np.random.default_rng(0), placement("V", 2), 2), placement("V", 2), 2)
    for column in (found.device, found.kind, found.micro_batch, found.chunk, found.part):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_describe_names_every_kind():
    start = [Op(FORWARD, 1, 1), Op(FORWARD, 0), Op(PAIR, 1, 0, 0, 1, 1), Op(FORWARD, 0, 1), Op(BACKWARD, 1)]
    lines = [[*start, Op(INPUT, 0, 1), Op(WEIGHT, 0, 1), Op(BACKWARD, 0)]]
    found = from_lists("odd", lines, [[0], [1]], 2)
    assert [found.describe(n) for n in (0, 2, 4, 5, 6)] == [
        "F1 of chunk 1 on stage 0",
        "F1&B1 of chunks 0&1 on stage 0",
        "B1 of chunk 0 on stage 0",
        "I0 of chunk 1 on stage 0",
        "W0 of chunk 1 on stage 0",
    ]
    pieces = [[Op(FORWARD, 0, 0, 0), Op(FORWARD, 0, 0, 1), Op(BACKWARD, 0, 0, 1), Op(BACKWARD, 0, 0, 0)]]
    assert from_lists("cut", pieces, [[0]], 1, 2).describe(2) == "B0 piece 1 on stage 0"


def fwd(i, c=0):
    return Op(FORWARD, i, c)


def bwd(i, c=0):
    return Op(BACKWARD, i, c)


@pytest.mark.parametrize(
    ("line", "values", "words"),
    [
        ([fwd(0), bwd(0)], ["F never", "B or I never", "B or W never"], "never: of micro-batch 1 on part 0"),
        ([fwd(0), bwd(0), fwd(1), Op(INPUT, 1)], ["B or W never"], "micro-batch 1"),
        ([fwd(0), bwd(0), fwd(1), Op(WEIGHT, 1)], ["B or I never"], "micro-batch 1"),
        (
            [fwd(0), bwd(0), fwd(1), bwd(1), Op(WEIGHT, 1)],
            ["B or W more than once"],
            "more than once: of micro-batch 1",
        ),
        ([fwd(0), fwd(0), bwd(0), fwd(1), bwd(1)], ["F more than once"], "micro-batch 0"),
    ],
)
def test_each_pass_runs_once(line, values, words):
    with pytest.raises(InputError, match=words) as caught:
        from_lists("wrong", [line], [[0]], 2)
    assert [problem.value for problem in caught.value.problems] == values


def test_of_many_faults_some_are_named_and_all_counted():
    with pytest.raises(InputError, match="and 92 more"):
        from_lists("none", [[]], [[0]], 100)


@pytest.mark.parametrize(
    ("op", "field"),
    [
        (Op(5, 0), "kind"),
        (Op(FORWARD, 2), "micro_batch"),
        (Op(FORWARD, -1), "micro_batch"),
        (Op(FORWARD, 0, 1), "chunk"),
        (Op(FORWARD, 0, 0, 1), "piece"),
        (Op(PAIR, 0, 0, 0, 2, 0), "other_micro_batch"),
        (Op(PAIR, 0, 0, 0, 1, 1), "other_chunk"),
    ],
)
def test_numbers_out_of_range_are_named(op, field):
    with pytest.raises(InputError) as caught:
        from_lists("wrong", [[op]], [[0]], 2)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_there_is_a_list_for_each_stage():
    with pytest.raises(InputError, match="2 lists"):
        from_lists("wrong", [[fwd(0)], [bwd(0)], [fwd(1)]], [[0, 1]], 2)


def test_a_stage_that_runs_nothing_is_named():
    """Both stages hold the only part; one runs it."""
    with pytest.raises(InputError, match="stage 1: runs nothing"):
        from_lists("lazy", [[fwd(0), bwd(0)], []], [[0, 0]], 1)


@pytest.mark.parametrize(
    ("lines", "part", "pieces", "names"),
    [
        ([[bwd(0), fwd(0)]], [[0]], 1, ["B0 on stage 0", "F0 on stage 0"]),
        ([[fwd(0), Op(WEIGHT, 0), Op(INPUT, 0)]], [[0]], 1, ["W0 on stage 0", "I0 on stage 0"]),
        ([[fwd(0, 1), fwd(0, 0), bwd(0, 1), bwd(0, 0)]], [[0], [1]], 1, ["F0 of chunk 1", "F0 of chunk 0"]),
        (
            [[Op(FORWARD, 0, 0, 1), Op(FORWARD, 0), Op(BACKWARD, 0, 0, 1), Op(BACKWARD, 0)]],
            [[0]],
            2,
            ["F0 piece 1", "F0 piece 0"],
        ),
        (
            [[Op(FORWARD, 0), Op(FORWARD, 0, 0, 1), Op(BACKWARD, 0), Op(BACKWARD, 0, 0, 1)]],
            [[0]],
            2,
            ["B0 piece 0", "B0 piece 1"],
        ),
        ([[fwd(0), bwd(0)], [bwd(0), fwd(0)]], [[0, 1]], 1, ["B0 on stage 1", "F0 on stage 1"]),
    ],
)
def test_what_waits_for_itself_is_explained(lines, part, pieces, names):
    found = from_lists("wrong", lines, part, 1, pieces)
    one = np.ones(found.part.shape)
    with pytest.raises(InputError, match="deadlock") as caught:
        run(found, Times(one, one, one))
    for name in names:
        assert name in str(caught.value)
