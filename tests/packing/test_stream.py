"""Batches from a stream: what must hold of every one, whatever comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.packing.balance import as_given
from telekit.packing.pack import concatenate
from telekit.packing.stream import stream
from telekit.training.documents import distribution


def squares(lengths):
    return np.asarray(lengths, float) ** 2


def counted(values):
    """Documents one by one, and how many were read so far."""
    seen = [0]

    def read():
        for value in values:
            seen[0] += 1
            yield value

    return read(), seen


LENGTHS = st.lists(st.integers(1, 40) | st.integers(15, 16), min_size=1, max_size=120)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(1, 3), st.integers(1, 3), st.integers(0, 20), st.integers(0, 3))
def test_every_token_leaves_once_in_time_and_within_the_look_ahead(
    lengths, ranks, per_rank, more, most_delay
):
    samples, seq_len = ranks * per_rank, 16
    documents, seen = counted(lengths)
    gone: list[int] = []
    pieces = [(i, min(seq_len, n - at)) for i, n in enumerate(lengths) for at in range(0, n, seq_len)]
    waiting = {at: 0 for at in range(len(pieces))}
    sent = 0
    for batch in stream(documents, seq_len, ranks, samples + more, squares, per_rank, most_delay):
        packed = batch.packed
        assert packed.samples == samples
        assert (packed.tokens <= seq_len).all()
        assert (batch.assignment.counts == per_rank).all()
        assert batch.held <= samples + more
        assert seen[0] - len(set(gone)) <= samples + more + 1
        assert len(packed.lengths)
        taken = []
        for source, length, delay in zip(packed.source, packed.lengths, batch.delay, strict=True):
            at = next(a for a in sorted(waiting) if pieces[a] == (source, length) and a not in taken)
            taken.append(at)
            assert waiting[at] <= most_delay
            assert delay <= most_delay
        for at in taken:
            del waiting[at]
        for at in waiting:
            waiting[at] += at < max(taken)
        gone += packed.source.tolist()
        sent += int(packed.lengths.sum())
    assert not waiting
    assert sent == sum(lengths)


def wlb(number, seed=0):
    return distribution("wlb-llm").sample(number, seed)


@pytest.mark.parametrize("seq_len", [8192, 131072])
def test_it_levels_ranks_and_pads_little(seq_len):
    documents, samples = wlb(60_000), 64
    whole = concatenate(np.minimum(documents, seq_len), seq_len, drop_last=True)
    work = np.bincount(whole.sample, weights=squares(whole.lengths))
    cut = work[: work.size // samples * samples].reshape(-1, samples)
    before = np.mean([as_given(w, 16).imbalance for w in cut])
    batches = list(stream([documents], seq_len, 16, 8192, squares, 4, drop_last=True))
    after = np.mean([b.assignment.imbalance for b in batches])
    assert len(batches) > 10
    assert after - 1 < 0.6 * (before - 1)
    assert np.mean([b.packed.padding.sum() / (samples * seq_len) for b in batches]) < 0.05
    assert max(b.delay.max() for b in batches) <= 4


def test_outliers_leave_one_for_each_rank():
    """Every 20th document fills a sample; without the queue batches would hold one or two of them, on four ranks."""
    lengths = np.tile(np.r_[np.full(19, 50), 1000], 100)
    batches = list(stream([lengths], 1000, 4, 200, squares, 1, most_delay=50, drop_last=True))
    outliers = [int((b.packed.lengths == 1000).sum()) for b in batches[:-6]]
    assert set(outliers) <= {0, 4}
    assert 4 in outliers


def test_delay_zero_keeps_the_order():
    lengths = wlb(3000, 3)
    batches = list(stream([lengths], 131072, 4, 300, squares, 2, most_delay=0))
    last = [int(b.packed.source.max()) for b in batches]
    first = [int(b.packed.source.min()) for b in batches]
    assert all(a < b for a, b in zip(last, first[1:], strict=False))


def test_arrays_of_any_cut_and_single_lengths_give_the_same():
    lengths = wlb(2000, 1)
    ways = ([lengths], np.array_split(lengths, 13), lengths.tolist(), [[], lengths[:7], lengths[7:]])
    found = [list(stream(way, 32768, 4, 400, squares)) for way in ways]
    for other in found[1:]:
        assert len(other) == len(found[0])
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one.packed.source, two.packed.source)
            np.testing.assert_array_equal(one.assignment.rank, two.assignment.rank)


def test_the_end():
    assert list(stream([], 10, 1, 4, squares)) == []
    assert list(stream([3], 10, 1, 4, squares, drop_last=True)) == []
    (only,) = stream([3], 10, 2, 4, squares)
    assert only.packed.lengths.tolist() == [3]
    assert only.assignment.counts.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seq_len": 0}, "seq_len = 0"),
        ({"ranks": 1.5}, "ranks = 1.5"),
        ({"look_ahead": 3}, "batch of 8 samples"),
        ({"most_delay": -1}, "most_delay = -1"),
        ({"per_rank": True}, "per_rank = True"),
        ({"ranks": 2**20}, "at most"),
    ],
)
def test_refusals_come_at_once(changed, said):
    options = {"seq_len": 16, "ranks": 4, "look_ahead": 32, "per_rank": 2, "most_delay": 1} | changed
    with pytest.raises(InputError, match=said):
        stream([4], work=squares, **options)


@pytest.mark.parametrize("wrong", [[float("nan")], [0], [-4], [2.5]])
def test_lengths_that_are_none_are_refused_when_read(wrong):
    with pytest.raises(InputError, match="whole number"):
        list(stream([[4, 4], wrong], 16, 1, 8, squares))


@pytest.mark.parametrize("answer", [np.nan, -1.0])
def test_work_that_is_none_is_refused(answer):
    with pytest.raises(InputError, match="one finite number"):
        list(stream([[4, 4]], 16, 1, 8, lambda n: np.full(len(n), answer)))


def test_single_lengths_before_an_array_are_kept():
    batches = list(stream([3, [1, 2], 4, np.array([5])], 8, 1, 8, lambda n: n))
    pieces = (
        np.concatenate([b.packed.source for b in batches]),
        np.concatenate([b.packed.lengths for b in batches]),
    )
    assert dict(zip(*(x.tolist() for x in pieces), strict=True)) == {0: 3, 1: 1, 2: 2, 3: 4, 4: 5}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"seq_len": 10**30}, "seq_len"),
        ({"most_delay": -1}, "most_delay"),
        ({"most_delay": 0.5}, "most_delay"),
        ({"ranks": "2"}, "ranks"),
        ({"work": 3}, "work"),
        ({"documents": 5}, "documents"),
        ({"documents": "55"}, "documents"),
    ],
)
def test_what_cannot_be_streamed_is_refused_at_once(wrong, field):
    given = {"documents": [1], "seq_len": 8, "ranks": 1, "look_ahead": 8, "work": lambda n: n} | wrong
    with pytest.raises(InputError, match=field):
        stream(**given)


def test_numpy_counts_are_counts():
    whole = np.int64
    found = list(stream([8, 8], whole(8), whole(2), whole(4), lambda n: n, whole(1), whole(0)))
    assert [b.packed.samples for b in found] == [2]
