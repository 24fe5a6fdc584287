import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_oracle import gpipe_order, megatron_order

from telekit.errors import InputError
from telekit.pipeline.order import BACKWARD, FORWARD, MAX_OPERATIONS
from telekit.pipeline.schedules import ORDERED, broken_rules, order, warm_up

SIZES = st.tuples(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))


def lines(found):
    ops = zip(found.device, found.kind, found.micro_batch, found.chunk, strict=True)
    result = [[] for _ in range(found.stages)]
    for device, kind, micro_batch, chunk in ops:
        result[device].append(("FB"[kind], micro_batch, chunk))
    return result


@pytest.mark.parametrize("schedule", ["1f1b", "seqsmartvpp"])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (4, 3), (4, 4), (4, 9), (8, 20)])
def test_1f1b_is_megatrons(schedule, p, m):
    if schedule == "1f1b" or p % 2 == 0:
        assert lines(order(schedule, p, m)) == megatron_order(p, m, 1)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (3, 2), (4, 6)])
def test_gpipe_runs_all_forwards_first(p, m):
    assert lines(order("gpipe", p, m)) == gpipe_order(p, m)


@given(SIZES)
def test_interleaved_is_megatrons(sizes):
    p, groups, v = sizes
    assert lines(order("interleaved-1f1b", p, groups * p, v)) == megatron_order(p, groups * p, v)


@given(SIZES, st.integers(0, 5))
def test_sapp_puts_the_remainder_into_the_first_group(sizes, extra):
    p, groups, v = sizes
    m = groups * p + extra % p
    leads = [(v + 1) * p - 2 * s - 2 + (m % p) * (v - 1) for s in range(p)]
    assert lines(order("interleaved-sapp", p, m, v)) == megatron_order(p, m, v, leads=leads)
    leads = [v * p - s - 1 for s in range(p)]
    less = lines(order("interleaved-sapp-less-memory", p, groups * p, v))
    assert less == megatron_order(p, groups * p, v, leads=leads)


def test_warm_up_of_megatrons_question_675():
    """SC07: why twice the distance? p 4, v 2, m 8 gives 10, 8, 6, 4."""
    assert warm_up("interleaved-1f1b", 4, 8, 2).tolist() == [10, 8, 6, 4]


def test_warm_up_takes_columns():
    column = np.array([[4.0], [8.0], [64.0]])
    rows = warm_up("interleaved-1f1b", 4, column, 3)
    assert rows.shape == (3, 4)
    for row, m in zip(rows, column[:, 0], strict=True):
        assert row.tolist() == warm_up("interleaved-1f1b", 4, int(m), 3).tolist()


@given(st.sampled_from(ORDERED), SIZES)
def test_every_pass_runs_once_and_backward_follows_forward(schedule, sizes):
    p, groups, v = sizes
    p += p % 2 if schedule == "seqsmartvpp" else 0
    v = v if schedule.startswith("interleaved") else 1
    found = order(schedule, p, groups * p, v)
    each = groups * p * v
    turn = np.arange(found.kind.size) % (2 * each)
    assert (found.device == np.arange(found.kind.size) // (2 * each)).all()
    passes = np.stack([found.device, found.micro_batch, found.chunk], axis=1)
    for kind in (FORWARD, BACKWARD):
        assert len(np.unique(passes[found.kind == kind], axis=0)) == p * each
    when = {(*row, kind): t for row, kind, t in zip(passes.tolist(), found.kind, turn, strict=True)}
    assert all(when[(*key[:3], BACKWARD)] > t for key, t in when.items() if key[3] == FORWARD)


def test_orders_are_shared_and_read_only():
    found = order("1f1b", 4, 8)
    assert order("1f1b", 4, 8) is found
    with pytest.raises(ValueError, match="read-only"):
        found.kind[0] = 1


def test_describe_names_a_pass():
    assert order("1f1b", 2, 2).describe(0) == "F0 on stage 0"
    assert order("interleaved-1f1b", 2, 2, 2).describe(15) == "B1 of chunk 0 on stage 1"


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "field", "rule", "hint"),
    [
        ("interleaved-1f1b", 4, 10, 2, "micro_batches", "whole groups", "micro_batches 8 works"),
        ("interleaved-1f1b", 4, 2, 2, "micro_batches", "whole groups", "micro_batches 4 works"),
        ("interleaved-1f1b", 4, 8, 1, "chunks", "vpp > 1", "chunks 2 works"),
        ("1f1b", 4, 8, 2, "chunks", "one chunk", "chunks 1 works"),
        ("gpipe", 4, 8, 3, "chunks", "one chunk", "chunks 1 works"),
        ("seqsmartvpp", 5, 8, 1, "stages", "even", "stages 4 works"),
        ("interleaved-sapp", 4, 3, 2, "micro_batches", "at least", "micro_batches 4 works"),
        ("interleaved-sapp", 1, 3, 2, "stages", "2 stages", "stages 2 works"),
        (
            "interleaved-sapp-less-memory",
            4,
            9,
            2,
            "micro_batches",
            "waits for itself",
            "micro_batches 8 works",
        ),
        ("1f1b", 0, 8, 1, "stages", "whole number", "stages 1 works"),
        ("1f1b", 4, -3, 1, "micro_batches", "whole number", "micro_batches 1 works"),
        ("1f1b", 4, 2.5, 1, "micro_batches", "whole number", "micro_batches 1 works"),
        ("1f1b", 4, True, 1, "micro_batches", "whole number", "micro_batches 1 works"),
        (
            "1f1b",
            64,
            10**9,
            1,
            "micro_batches",
            "the most is",
            f"micro_batches {MAX_OPERATIONS // 128} works",
        ),
        ("zb-h1", 4, 8, 1, "schedule", "no order", "1f1b"),
        ("zigzag", 4, 8, 1, "schedule", "no order", "1f1b"),
    ],
)
def test_numbers_a_schedule_forbids(schedule, p, m, v, field, rule, hint):
    with pytest.raises(InputError) as caught:
        order(schedule, p, m, v)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule
    assert hint in problem.suggestion


def test_all_broken_rules_are_listed():
    fields = [problem.field for problem in broken_rules("seqsmartvpp", 5, 8, 2)]
    assert fields == ["stages", "chunks"]
    assert [problem.field for problem in broken_rules("1f1b", 0, -1, 1.5)] == [
        "stages",
        "micro_batches",
        "chunks",
    ]
