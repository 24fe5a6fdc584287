from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_oracle import evaluate, makespan, missing, peaks

from telekit.errors import InputError
from telekit.pipeline.interleaved import interleaved_1f1b
from telekit.pipeline.order import from_lists
from telekit.pipeline.schedules import order
from telekit.pipeline.sequence import even_pieces, piece_shares, seq_1f1b, seqsmartvpp
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


def unit(chunks, shares):
    """F 1 and B 2 for a whole micro-batch on a whole stage."""
    return lambda letter, chunk, device, op: {"F": 1.0, "B": 2.0}[letter] / chunks * shares[op.piece]


def walked(p, m, k, v, bias):
    """Lines by MindSpore's rule, walked with its queue: first micro-batch in is first out, its pieces last first."""
    cycles = [p] * (m // p) or [m]
    for extra in range(m - sum(cycles)):
        cycles[extra % len(cycles)] += 1
    units, first = [], 0
    for size in cycles:
        units += [(i, c, s) for c in range(v) for i in range(first, first + size) for s in range(k)]
        first += size
    lines = []
    for stage in range(p):
        warm = min((p - 1 - stage) * bias + (v - 1) * cycles[0] * k + k - 1, len(units) - 1)
        line, queue, stacks = [], [], {}
        for n, (i, c, s) in enumerate(units):
            line.append(("F", i, c, s))
            queue.append(i)
            stacks.setdefault(i, []).append((c, s))
            if n >= warm:
                i = queue.pop(0)
                line.append(("B", i, *stacks[i].pop()))
        while queue:
            i = queue.pop(0)
            line.append(("B", i, *stacks[i].pop()))
        lines.append(line)
    return lines


def plain(lines):
    return [[("FB"[op.kind], op.micro_batch, op.chunk, op.piece) for op in line] for line in lines]


@given(
    st.integers(1, 5), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.0, 0.3])
)
def test_orders_are_mindspores_and_run(p, m, k, v, comm):
    for generator, bias, stages in ((seq_1f1b, 1 if v == 1 else 2, p), (seqsmartvpp, 1, 2 * p)):
        lines, part = generator(stages, m, pieces=k, chunks=v)
        assert plain(lines) == walked(stages, m, k, v, bias)
        from_lists("sequence", lines, part, m, k)
        assert not missing(lines, part, m, k)
        assert makespan(lines, part, unit(v, [1 / k] * k), comm, k) >= 3 * m - 1e-9  # fails on a deadlock


def test_saps_published_activation_counts():
    """SAPP's own test of its sequence pipeline: 8 stages, 32 micro-batches, 2 pieces hold 9, 8, ..., 2 pieces."""
    assert peaks(seq_1f1b(8, 32, pieces=2)[0], lambda c, d: 1) == [9, 8, 7, 6, 5, 4, 3, 2]


@pytest.mark.parametrize(("p", "m", "k"), [(2, 4, 2), (4, 8, 4), (4, 2, 8), (8, 16, 2), (4, 3, 3)])
def test_pieces_shrink_the_bubble_as_more_micro_batches_would(p, m, k):
    lines, part = seq_1f1b(p, m, pieces=k)
    assert makespan(lines, part, unit(1, [1 / k] * k), pieces=k) == pytest.approx(3 * m + 3 * (p - 1) / k)
    most = [min(p - s + k - 1, m * k) for s in range(p)]
    assert peaks(lines, lambda c, d: 1) == most
    timed = run(from_lists("seq-1f1b", lines, part, m, k), Times.of_stages(part, 1, 1, 1))
    assert timed.makespan_s == pytest.approx(3 * m + 3 * (p - 1) / k)


def test_one_piece_is_the_schedule_without_pieces():
    for p, m in ((4, 8), (4, 3), (8, 16)):
        for generator in (seq_1f1b, seqsmartvpp):
            lines, part = generator(p, m, pieces=1)
            arrays, mine = order("1f1b", p, m), from_lists("1f1b", lines, part, m)
            assert (mine.kind == arrays.kind).all() and (mine.micro_batch == arrays.micro_batch).all()
    assert seq_1f1b(4, 8, pieces=1, chunks=3)[0] == interleaved_1f1b(4, 8, 3)[0]


def test_the_published_telechat3_runs():
    """36B: 2 stages, 2 chunks, 4 micro-batches, seqpipe with seq_split_num left at 1; 105B: seqsmartvpp, 8 stages."""
    lines, part = seq_1f1b(2, 4, pieces=1, chunks=2)
    assert lines == interleaved_1f1b(2, 4, 2)[0]
    assert makespan(lines, part, unit(2, [1.0])) == 12 + 1.5
    assert peaks(lines, lambda c, d: 0.5) == [2.5, 1.5]
    # What cutting its 8192 tokens would have given: half the bubble at twice the pieces, and less held.
    found = {}
    for k in (2, 4):
        cut, part = seq_1f1b(2, 4, pieces=k, chunks=2)
        found[k] = (
            makespan(cut, part, unit(2, [1 / k] * k), pieces=k),
            max(peaks(cut, lambda c, d, n=k: 0.5 / n)),
        )
    assert found == {2: (12.75, 2.0), 4: (12.375, 1.75)}
    # Its causal pieces are nearly even: attention is 8.5 % of a layer's forward.
    hidden, wide, heads, length = 6144, 24576, 8 * 128, 8192
    linear = 2 * (2 * hidden * hidden + 2 * hidden * heads + 3 * hidden * wide)
    share = 2 * hidden * length / (2 * hidden * length + linear)
    assert share == pytest.approx(0.085, abs=5e-4)
    cut, part = seq_1f1b(2, 4, pieces=4, chunks=2)
    uneven = makespan(cut, part, unit(2, piece_shares(4, share)), pieces=4)
    assert found[4][0] < uneven < found[2][0]

    arrays, (lines, part) = order("1f1b", 8, 8), seqsmartvpp(8, 8)
    assert (from_lists("1f1b", lines, part, 8).kind == arrays.kind).all()


def test_smart_holds_less_and_waits_for_it():
    normal, smart = seq_1f1b(4, 8, pieces=2, chunks=2), seqsmartvpp(4, 8, pieces=2, chunks=2)
    assert peaks(normal[0], lambda c, d: 0.25) == [4.0, 3.5, 3.0, 2.5]
    assert peaks(smart[0], lambda c, d: 0.25) == [3.25, 3.0, 2.75, 2.5]
    ends = [makespan(*pair, unit(2, [0.5, 0.5]), comm=0.1, pieces=2) for pair in (normal, smart)]
    assert ends[0] < ends[1]


def test_later_pieces_meet_more_keys_and_even_times_mend_it():
    """With equal lengths the last pieces set the pace; with equal times the bubble is that of equal pieces."""
    share, k = 0.5, 4
    lines, part = seq_1f1b(4, 8, pieces=k)
    equal = makespan(lines, part, unit(1, piece_shares(k, share)), pieces=k)
    lengths = even_pieces(4096, k, share)
    cuts = np.cumsum([0, *lengths]) / 4096
    mended = np.diff((1 - share) * cuts + share * cuts**2)
    even = makespan(lines, part, unit(1, mended), pieces=k)
    assert even == pytest.approx(24 + 9 / k, rel=1e-3)
    assert equal > even + 0.5
    starts, ends = evaluate(lines, part, unit(1, piece_shares(k, share)), pieces=k)
    assert ends[0][0] - starts[0][0] < ends[0][3] - starts[0][3]
    timed = run(
        from_lists("seq-1f1b", lines, part, 8, k),
        Times([[1.0] * 4], [[1.0] * 4], [[1.0] * 4], piece=piece_shares(k, share)),
    )
    assert timed.makespan_s == pytest.approx(equal)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 50))
def test_shares_count_the_keys_each_token_meets(pieces, length, linear):
    """Brute force: a token costs ``linear`` and one for each token up to it (itself as a half)."""
    cost = [linear + t + 0.5 for t in range(pieces * length)]
    each = [sum(cost[k * length : (k + 1) * length]) for k in range(pieces)]
    attention = sum(t + 0.5 for t in range(pieces * length)) / sum(cost)
    assert piece_shares(pieces, attention) == pytest.approx(np.array(each) / sum(cost))


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.floats(0, 1),
    st.integers(1, 3),
)
def test_even_pieces_are_as_even_as_whole_tokens_allow(pieces, more, share, multiple):
    units = pieces + more
    lengths = even_pieces(units * multiple, pieces, share, multiple)
    assert sum(lengths) == units * multiple
    assert all(n >= multiple and n % multiple == 0 for n in lengths)

    def times(ends):
        cuts = np.array([0, *ends, units]) / units
        return np.diff((1 - share) * cuts + share * cuts**2)

    best = min(times(ends).max() for ends in combinations(range(1, units), pieces - 1))
    found = times(np.cumsum(lengths)[:-1] // multiple).max()
    one = times(range(1, units)).max() if units > 1 else 1.0  # the longest unit
    assert found <= best + one + 1e-12


@pytest.mark.parametrize(
    ("call", "field", "rule", "hint"),
    [
        (lambda: seqsmartvpp(3, 8), "stages", "even", "stages 2 works"),
        (lambda: seq_1f1b(4, 8, pieces=0), "pieces", "whole number", "pieces 1 works"),
        (lambda: seq_1f1b(4, 8, chunks=0), "chunks", "whole number", "chunks 1 works"),
        (lambda: seq_1f1b(64, 10**6, pieces=8), "micro_batches", "the most is", "micro_batches 1953 works"),
        (lambda: piece_shares(4, 1.5), "attention_share", "0 to 1", "1 works"),
        (lambda: piece_shares(4, float("nan")), "attention_share", "0 to 1", "0 works"),
        (lambda: piece_shares(0, 0.5), "pieces", "whole number", "pieces 1 works"),
        (lambda: even_pieces(10, 4, 0.5, 4), "seq_len", "multiple of 4", "seq_len 16 works"),
        (lambda: even_pieces(18, 4, 0.5, 4), "seq_len", "multiple of 4", "seq_len 20 works"),
    ],
)
def test_bad_sizes(call, field, rule, hint):
    with pytest.raises(InputError) as caught:
        call()
    (problem,) = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule and hint in problem.suggestion


def test_the_suggested_lengths_work():
    for length, pieces, multiple in product((1, 5, 17, 64), (1, 3, 8), (1, 4, 8)):
        try:
            even_pieces(length, pieces, 0.3, multiple)
        except InputError as error:
            near = int(error.problems[0].suggestion.split()[1])
            assert sum(even_pieces(near, pieces, 0.3, multiple)) == near
