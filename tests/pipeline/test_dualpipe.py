from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_oracle import evaluate, makespan, missing, peaks

from telekit.errors import InputError
from telekit.pipeline.dualpipe import dualpipe, dualpipe_v, overlapped_1f1b
from telekit.pipeline.interleaved import alternating, ring
from telekit.pipeline.order import BACKWARD, PAIR, from_lists, split_pairs
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


def unit(pair=3.0, share=1.0):
    """F = B = W = 1: a whole backward is 2."""
    time = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "P": pair}
    return lambda letter, chunk, device, op: share * time[letter]


@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 6), (4, 8), (4, 10), (6, 12), (8, 20)])
@pytest.mark.parametrize("generator", [dualpipe, dualpipe_v])
def test_every_pass_runs_once(generator, p, m):
    lines, part = generator(p, m)
    from_lists(generator.__name__, lines, part, m)  # raises for what runs twice or never
    assert not missing(lines, part, m)


def test_sc01_dualpipe_under_each_assumption():
    """p 8, m 20, F 1, B 2: 60 is all work. 66 with F&B 3, the README's; 52 with F&B 2, where forwards hide."""
    lines, part = dualpipe(8, 20)
    assert makespan(lines, part, unit(pair=3)) == 66
    assert makespan(lines, part, unit(pair=2)) == 52
    assert makespan(split_pairs(lines), part, unit()) == 63  # no blocks: F, then B
    order = from_lists("dualpipe", lines, part, 20)
    for pair, expected in ((3, 66), (2, 52), (None, 66)):
        assert run(order, Times.of_stages(part, 1, 1, 1, pair)).makespan_s == expected


@pytest.mark.parametrize("p", [2, 4, 6, 8, 12])
@pytest.mark.parametrize("pair", [2.0, 2.5, 3.0])
def test_idle_time_is_the_readmes(p, pair):
    """(PP/2 - 1)(F&B + B - 3W), on the middle devices: the others overlap less and so work longer."""
    for m in (2 * p, 2 * p + 2, 3 * p):
        lines, part = dualpipe(p, m)
        time = unit(pair)
        busy = [sum(time("FBIWP"[op.kind], 0, d, op) for op in line) for d, line in enumerate(lines)]
        assert makespan(lines, part, time) - busy[p // 2] == pytest.approx((p // 2 - 1) * (pair + 2 - 3))
        assert min(busy) == busy[p // 2]


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_dualpipe_v_is_half_of_dualpipe(p):
    """DualPipe on 2p devices cut at its middle: the same operations in the same order, and the same makespan."""
    m = 4 * p
    whole, _ = dualpipe(2 * p, 2 * m)
    cut, part = dualpipe_v(p, m)
    for d in range(p):
        mine = [(op.kind, op.micro_batch % m, op.chunk, op.other_micro_batch % m) for op in whole[d]]
        folded = [(op.kind, op.micro_batch, op.chunk, op.other_micro_batch % m) for op in cut[d]]
        assert mine == folded
    assert makespan(cut, part, unit()) == makespan(whole, dualpipe(2 * p, 2 * m)[1], unit())


@given(st.integers(1, 4), st.integers(0, 6), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())
def test_any_times_run_and_memory_is_pp_and_one(half, more, comm, split):
    p, m = 2 * half, 4 * half + 2 * more
    rng = np.random.default_rng(m + 100 * p)
    for (lines, part), share in ((dualpipe(p, m), 1.0), (dualpipe_v(p, m), 0.5)):
        taken = split_pairs(lines) if split else lines
        durations = rng.uniform(0.5, 2.0, (5, p))
        starts, ends = evaluate(taken, part, lambda k, c, d, op, x=durations: x["FBIWP".index(k), d], comm)
        assert all(s >= 0 for line in starts for s in line)
        assert all(e >= s for a, b in zip(starts, ends, strict=True) for s, e in zip(a, b, strict=True))
        assert max(peaks(taken, lambda c, d, x=share: x)) <= p + share


def test_dualpipe_is_symmetric():
    lines, _ = dualpipe(8, 20)
    for d in range(8):
        mirrored = [
            op._replace(
                micro_batch=(op.micro_batch + 10) % 20,
                chunk=1 - op.chunk,
                other_micro_batch=(op.other_micro_batch + 10) % 20 if op.kind == PAIR else -1,
                other_chunk=1 - op.other_chunk if op.kind == PAIR else -1,
            )
            for op in lines[7 - d]
        ]
        assert lines[d] == mirrored


@pytest.mark.parametrize(
    ("generator", "p", "m", "field", "rule", "hint"),
    [
        (dualpipe, 3, 8, "stages", "even", "stages 2 works"),
        (dualpipe, 4, 6, "micro_batches", "2 * pp", "micro_batches 8 works"),
        (dualpipe, 4, 9, "micro_batches", "even", "micro_batches 8 works"),
        (dualpipe_v, 4, 7, "micro_batches", "2 * pp", "micro_batches 8 works"),
        (dualpipe, 0, 8, "stages", "whole number", "stages 2 works"),
        (overlapped_1f1b, 4, 0, "micro_batches", "whole number", "micro_batches 1 works"),
    ],
)
def test_sizes_it_does_not_run(generator, p, m, field, rule, hint):
    with pytest.raises(InputError) as caught:
        generator(p, m)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule
    assert hint in problem.suggestion


def test_groups_of_one_chunk_are_no_groups():
    with pytest.raises(InputError, match="at least 2 chunks"):
        overlapped_1f1b(4, 8, 1, group_size=4)


@pytest.mark.parametrize(("p", "chunks"), list(product((1, 2, 4, 5), (1, 2, 3))))
def test_overlapped_1f1b_runs_and_its_pairs_are_independent(p, chunks):
    for m in (p, p + 1, 2 * p, 4 * p):
        group = None if chunks == 1 or m % p == 0 else m
        if chunks > 1 and p == 1:
            continue
        lines, part = overlapped_1f1b(p, m, chunks, group)
        from_lists("overlapped", lines, part, m)
        pairs = [op for line in lines for op in line if op.kind == PAIR]
        assert all((op.micro_batch, op.chunk) != (op.other_micro_batch, op.other_chunk) for op in pairs)
        assert makespan(lines, part, unit(share=1 / chunks)) >= 3 * m
        assert len(pairs) == sum(
            max(m * chunks - 2 * (p - 1 - s) - (chunks - 1) * (group or p) - 1, 0) for s in range(p)
        )


def test_overlapped_1f1b_is_busy_once_it_is_full():
    """Each further micro-batch costs one block; with 1F1B's own warm-up a block would wait every other time."""
    ends = [makespan(*overlapped_1f1b(4, m), unit(pair=2.2)) for m in (16, 17, 18, 40)]
    assert np.diff(ends) == pytest.approx([2.2, 2.2, 22 * 2.2])
    short = [
        makespan(alternating([m], [4 - s for s in range(4)], 1, paired=True), ring(4, 1), unit(pair=2.2))
        for m in (16, 17)
    ]
    assert short[1] - short[0] == pytest.approx(4.4)
    lines, _ = overlapped_1f1b(4, 16)
    assert peaks(lines, lambda c, d: 1) == [8, 6, 4, 2]
    assert all(line[-1].kind == BACKWARD for line in lines)
