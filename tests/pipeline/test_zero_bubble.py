from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_oracle import evaluate, makespan

from telekit.errors import InputError
from telekit.pipeline.order import from_lists
from telekit.pipeline.times import Times
from telekit.pipeline.zero_bubble import zb_1p, zb_2p, zb_h1, zb_h2

SHOWN = "FBIW"

PEERS = {  # p, m: makespan of ZB-1P and of ZB-2P from zero-bubble's generators, all halves 1
    **{(4, 8): 27, (4, 16): 51, (4, 64): 195, (8, 8): 31, (8, 16): 55, (8, 32): 103, (8, 64): 199},
    **{(16, 16): 63, (16, 32): 111, (16, 64): 207},
}


def text(lines):
    return [" ".join(f"{SHOWN[op.kind].replace('I', 'B')}{op.micro_batch}" for op in line) for line in lines]


def even(f=1.0, b=1.0, w=1.0):
    each = {"F": f, "I": b, "W": w}
    return lambda letter, *_: each[letter]


def span(lines, part, time_of, comm=0.0):
    """Longest time of a device from its first start to its last end."""
    starts, ends = evaluate(lines, part, time_of, comm)
    return max(end[-1] - start[0] for start, end in zip(starts, ends, strict=True))


def held(line, share=1.0):
    """What a device holds after each operation, in micro-batches."""
    return np.cumsum([{0: 1.0, 2: share - 1.0, 3: -share}[op.kind] for op in line])


def test_zb_h1_by_hand():
    lines, part = zb_h1(3, 4)
    assert text(lines) == [
        "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
        "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
        "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
    ]
    assert part.tolist() == [[0, 1, 2]]


def test_zb_h2_by_hand():
    lines, _ = zb_h2(3, 6)
    assert text(lines) == [
        "F0 F1 F2 F3 F4 B0 W0 F5 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5",
        "F0 F1 F2 B0 F3 B1 F4 B2 W0 F5 B3 W1 B4 W2 B5 W3 W4 W5",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 F5 B5 W1 W2 W3 W4 W5",
    ]


@pytest.mark.parametrize("p", [1, 2, 3, 8])
@pytest.mark.parametrize("more", [0, 1, 7, 40])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (3, 3, 2), (4, 5, 3), (2, 2, 1)])
def test_hand_made_bubbles_are_the_papers(p, more, f, b, w):
    """arXiv 2401.10241 table 2: bubble, and micro-batches held at most."""
    m = 2 * p - 1 + more
    lines, part = zb_h1(p, m)
    assert span(lines, part, even(f, b, w)) == m * (f + b + w) + (p - 1) * (f + b - w)
    assert [held(line).max() for line in lines] == [p] * p
    lines, part = zb_h2(p, m)
    assert span(lines, part, even(f, b, w)) == m * (f + b + w) + (p - 1) * (f + b - 2 * w)
    assert [held(line).max() for line in lines] == [2 * p - 1] * p


@pytest.mark.parametrize(("p", "m"), PEERS)
def test_searched_are_as_good_as_the_peers(p, m):
    for search, most in ((zb_1p, p), (zb_2p, 2 * p)):
        lines, part = search(p, m)
        assert makespan(lines, part, even()) <= PEERS[p, m]
        assert max(held(line).max() for line in lines) <= min(most, m)


def test_zb_1p_of_victarrys_question_1():
    """SC01: p 8, m 20, F 1, B 1, W 1."""
    lines, part = zb_1p(8, 20)
    assert makespan(lines, part, even()) == 67


def test_one_and_two_p_differ_by_their_limit():
    """Where W is short, 1F1B's memory leaves a bubble that twice the memory fills."""
    times = Times(*np.array([[[2.0] * 4]] * 2), [[1.0] * 4])
    one, two = (span(*search(4, 32, times), even(2, 2, 1)) for search in (zb_1p, zb_2p))
    assert one == 32 * 5 + 3 * 3
    assert two < one - 3


def random_times(rng, stages, micro_batches):
    """Times of one set: equal stages, or not; sometimes of single micro-batches; with communication or not."""
    scale = np.array([1.0, rng.uniform(0.5, 2.0), rng.uniform(0.2, 1.5)])[:, None, None]
    spread = rng.choice([0.0, 0.4])
    each = scale * rng.uniform(1 - spread, 1 + spread, (3, 1, stages))
    factor = rng.uniform(0.5, 2.0, micro_batches) if rng.random() < 0.3 else None
    return Times(*each, comm=float(rng.choice([0.0, 0.1, 0.5])), micro_batch=factor)


def clock_of(times):
    halves = {"F": times.forward, "I": times.backward_input, "W": times.backward_weight}

    def of(letter, chunk, device, op):
        factor = 1.0 if times.micro_batch is None else times.micro_batch[op.micro_batch]
        return halves[letter][chunk, device] * factor

    return of


@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([1.0, 0.4, 0.0]),
    st.integers(1, 10),
    st.integers(0, 2**32 - 1),
)
def test_searched_orders_are_whole_fit_and_are_never_worse_than_by_hand(p, m, share, limit, seed):
    rng = np.random.default_rng(seed)
    times = random_times(rng, p, m)
    limits = rng.integers(limit, limit + 3, p).tolist() if rng.random() < 0.5 else limit
    lines, part = zb_1p(p, m, times, limits, share)
    from_lists("zb-1p", lines, part, m)  # each pass once
    most = np.broadcast_to(limits, (p,))
    for line, n in zip(lines, most, strict=True):
        steps = held(line, share)
        assert steps.max() <= n + 1e-9 and steps.min() >= -1e-9 and steps[-1] == pytest.approx(0)
    found = makespan(lines, part, clock_of(times), times.comm)
    for by_hand in (zb_h1, zb_h2):
        others, _ = by_hand(p, m)
        if all(held(line, share).max() <= n for line, n in zip(others, most, strict=True)):
            assert found <= makespan(others, part, clock_of(times), times.comm) + 1e-9
    assert zb_1p(p, m, times, limits, share)[0] == lines


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_more_room_is_never_used_beyond_two_p(p, m, seed):
    times = random_times(np.random.default_rng(seed), p, m)
    lines, part = zb_2p(p, m, times, 2 * p)
    assert max(held(line).max() for line in lines) <= 2 * p
    by_hand = min(makespan(f(p, m)[0], part, clock_of(times), times.comm) for f in (zb_h1, zb_h2))
    assert makespan(lines, part, clock_of(times), times.comm) <= by_hand + 1e-9


def in_turn(m):
    """All orders of one device: m forwards, Bs and Ws, each kind in turn, F before B before W."""

    def go(f, b, w, line):
        if w == m:
            yield tuple(line)
        for kind, ok in ((0, f < m), (2, b < f), (3, w < b)):
            if ok:
                step = {0: (f + 1, b, w), 2: (f, b + 1, w), 3: (f, b, w + 1)}[kind]
                yield from go(*step, [*line, (kind, {0: f, 2: b, 3: w}[kind], 0, 0, -1, -1)])

    return list(go(0, 0, 0, []))


def best_of_all(m, limit, time_of, comm):
    """Shortest makespan of two devices, by trying every pair of orders that fits and can run."""
    change = {0: 1, 2: 0, 3: -1}
    fitting = [line for line in in_turn(m) if max(np.cumsum([change[kind] for kind, *_ in line])) <= limit]
    best = np.inf
    for lines in product(fitting, repeat=2):
        try:
            best = min(best, makespan(lines, [[0, 1]], time_of, comm))
        except AssertionError:
            continue
    return best


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize(
    ("f", "b", "w", "comm"),
    [
        ((1, 1), (1, 1), (1, 1), 0),
        ((5, 3), (2, 4), (1, 2), 0),
        ((2, 3), (3, 2), (2, 1), 1),
        ((3, 1), (3, 1), (1, 4), 0),
    ],
)
def test_two_devices_get_the_best_of_all_orders(f, b, w, comm, limit):
    times = Times(np.array([f]) * 1.0, np.array([b]) * 1.0, np.array([w]) * 1.0, comm=comm)
    lines, part = zb_1p(2, 3, times, limit)
    assert makespan(lines, part, clock_of(times), comm) == best_of_all(3, limit, clock_of(times), comm)


@pytest.mark.parametrize("limit", [0, -1, 1.5, [4, 4], [4, 4, 0], "4"])
def test_limits_that_are_none(limit):
    with pytest.raises(InputError, match=r"limit.*works"):
        zb_1p(3, 4, limit=limit)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(InputError, match="weight_share 1 works"):
        zb_2p(3, 4, weight_share=share)


@pytest.mark.parametrize("make", [zb_h1, zb_h2, zb_1p, zb_2p])
def test_sizes_that_are_none(make):
    with pytest.raises(InputError) as caught:
        make(0, 2.5)
    assert [problem.suggestion for problem in caught.value.problems] == [
        "stages 1 works",
        "micro_batches 1 works",
    ]
    with pytest.raises(InputError, match="the most is"):
        make(10**9, 10**9)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (Times([[1.0]], [[1.0, 1.0]], [[1.0, 1.0]]), r"forward .*\(1, 2\) works"),
        (Times([[0.0, 1.0]], [[1.0, -1.0]], [[1.0, float("nan")]]), "3 problems"),
        (Times(np.ones((5, 1, 2)), [[1.0, 1.0]], [[1.0, 1.0]]), "one duration set"),
    ],
)
def test_times_that_are_none(times, says):
    with pytest.raises(InputError, match=says):
        zb_1p(2, 4, times)
