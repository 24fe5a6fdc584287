from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operation_oracle import evaluate, makespan

from telekit.errors import InputError
from telekit.pipeline.order import from_lists
from telekit.pipeline.times import Times
from telekit.pipeline.v_shaped import V_HALF, V_MIN, v_half, v_min, zb_v

ALL = {"zb-v": zb_v, "v-half": v_half, "v-min": v_min}

PEERS = {  # p, m: (makespan, micro-batches held) of ZB-V, V-Half and V-Min, the best of three public generators
    (4, 8): ((25.5, 4), (26.5, 3), (29.5, 2)),
    (4, 16): ((49.5, 4), (50.5, 3), (53.5, 2)),
    (4, 64): ((193.5, 4), (194.5, 3), (197.5, 2)),
    (8, 8): ((27.5, 8), (32.5, 5), (37.5, 4)),
    (8, 16): ((51.5, 8), (56.5, 5), (61.0, 4)),
    (8, 32): ((99.5, 8), (104.5, 5), (109.5, 4)),
    (8, 64): ((195.5, 8), (200.5, 5), (205.5, 4)),
    (16, 16): ((55.5, 16), (68.5, 9), (77.5, 6)),
    (16, 32): ((103.5, 16), (116.5, 9), (125.5, 6)),
    (16, 64): ((199.5, 16), (212.5, 9), (221.5, 6)),
}


def half(*_):
    return 0.5


def held(line):
    """Chunks' activations on a device after each operation."""
    return np.cumsum([{0: 1, 2: 0, 3: -1}[op.kind] for op in line])


def limit(name, p):
    """Chunks' activations that a schedule may hold."""
    return 2 * {"zb-v": p, "v-half": p // 2 + 1, "v-min": (p + 1) // 3 + 1}[name]


@pytest.mark.parametrize(("p", "m"), PEERS)
def test_as_good_as_the_peers(p, m):
    for (name, make), (time, most) in zip(ALL.items(), PEERS[p, m], strict=True):
        lines, part = make(p, m)
        assert makespan(lines, part, half) <= time
        assert max(held(line).max() for line in lines) == 2 * most == limit(name, p)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_zb_v_has_no_bubble_but_the_starts(p, more):
    m = 2 * p + more
    lines, part = zb_v(p, m)
    starts, ends = evaluate(lines, part, half)
    for d in range(p):
        assert (starts[d][0], ends[d][-1]) == (d / 2, d / 2 + 3 * m)


@pytest.mark.parametrize(("p", "idle"), [(8, 12.0), (9, 14.5), (12, 20.5), (14, 24.0)])
def test_v_min_waits_where_that_is_shorter(p, idle):
    """Blocks that wait at all three turns, or at the outer two, beat the one that public generators take."""
    lines, part = v_min(p, 2 * p)
    assert makespan(lines, part, half) == 3 * 2 * p + idle


def test_zb_v_of_two_devices_by_hand():
    """Small letters are chunk 1; B of the paper is the input half."""
    lines, part = zb_v(2, 4)
    shown = [
        " ".join(
            "FBBW"[op.kind].lower() * op.chunk + "FBBW"[op.kind] * (1 - op.chunk) + str(op.micro_batch)
            for op in line
        )
        for line in lines
    ]
    assert shown == [
        "F0 F1 F2 f0 b0 w0 f1 b1 w1 F3 B0 W0 f2 b2 w2 B1 W1 f3 b3 B2 w3 B3 W2 W3",
        "F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 F3 B1 W1 f3 b2 B2 b3 B3 w2 W2 w3 W3",
    ]
    assert part.tolist() == [[0, 1], [3, 2]]


def peak_of_block(steps, waits, p):
    """Most chunks held when blocks repeat for ever, weight halves in the free slots; None where they collide."""
    begin, ways = 0, []
    for way, step in enumerate(steps):
        ways.append([begin + step * (s if way % 2 == 0 else p - 1 - s) for s in range(p)])
        begin += step * (p - 1) + 1 + (*waits, 0)[way]
    most = 0
    for s in range(p):
        slots = [way[s] for way in ways]
        if len({slot % 6 for slot in slots}) < 4:
            return None
        free = [r for r in range(6) if r not in {slot % 6 for slot in slots}]
        events = [(slot + 6 * i, 1) for slot in slots[:2] for i in range(6 * p)]
        backs = sorted(slot + 6 * i for slot in slots[2:] for i in range(6 * p))
        gaps = (t for t in range(min(backs), 80 * p) if t % 6 in free)
        at = next(gaps)
        for back in backs:
            while at <= back:
                at = next(gaps)
            events.append((at, -1))
            at = next(gaps)
        total = np.cumsum([change for _, change in sorted(events)])
        most = max(most, total.max())
    return most


@pytest.mark.parametrize("shape", [V_HALF, V_MIN])
@pytest.mark.parametrize("p", range(2, 17))
def test_blocks_are_those_that_hold_least(shape, p):
    peaks = {}
    for waits in product(range(4), repeat=3):
        peak = peak_of_block(shape.steps, waits, p)
        if peak is not None:
            peaks[waits] = peak
    least = min(peaks.values())
    assert least == 2 * shape.most_held(p)
    for waits in shape.waits[p % len(shape.waits)]:
        assert peaks[waits] == least


def random_times(rng, stages, micro_batches):
    scale = np.array([1.0, rng.uniform(0.5, 2.0), rng.uniform(0.2, 1.5)])[:, None, None]
    spread = rng.choice([0.0, 0.4])
    each = scale * rng.uniform(1 - spread, 1 + spread, (3, 2, stages))
    factor = rng.uniform(0.5, 2.0, micro_batches) if rng.random() < 0.3 else None
    return Times(*each, comm=float(rng.choice([0.0, 0.1, 0.5])), micro_batch=factor)


def clock_of(times):
    halves = {"F": times.forward, "I": times.backward_input, "W": times.backward_weight}

    def of(letter, chunk, device, op):
        factor = 1.0 if times.micro_batch is None else times.micro_batch[op.micro_batch]
        return halves[letter][chunk, device] * factor

    return of


@given(st.sampled_from(list(ALL)), st.integers(1, 7), st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_orders_are_whole_and_fit_for_all_sizes_and_times(name, p, m, seed):
    times = random_times(np.random.default_rng(seed), p, m)
    lines, part = ALL[name](p, m, times)
    from_lists(name, lines, part, m)  # each pass once
    assert part.tolist() == [list(range(p)), list(range(2 * p - 1, p - 1, -1))]
    for line in lines:
        assert held(line).max() <= limit(name, p)
        assert held(line).min() >= 0 == held(line)[-1]
    starts, ends = evaluate(lines, part, clock_of(times), times.comm)
    last = max(map(max, ends))
    for start, end in zip(starts, ends, strict=True):
        assert last >= start[0] + sum(b - a for a, b in zip(start, end, strict=True)) - 1e-9
    if name != "zb-v":
        plain, _ = ALL[name](p, m)
        assert last <= makespan(plain, part, clock_of(times), times.comm) + 1e-9
    assert ALL[name](p, m, times)[0] == lines


@given(st.integers(1, 6), st.integers(1, 20))
def test_less_memory_takes_longer(p, m):
    time = {name: makespan(*make(p, m), half) for name, make in ALL.items()}
    assert time["zb-v"] <= time["v-half"] <= time["v-min"]


@pytest.mark.parametrize("make", ALL.values())
def test_bad_input_is_named(make):
    with pytest.raises(InputError) as caught:
        make(0, -3)
    assert [problem.suggestion for problem in caught.value.problems] == [
        "stages 1 works",
        "micro_batches 1 works",
    ]
    with pytest.raises(InputError, match="the most is"):
        make(10**9, 10**9)
    with pytest.raises(InputError, match=r"forward .*\(2, 4\) works"):
        make(4, 8, Times(np.ones((1, 4)), np.ones((1, 4)), np.ones((1, 4))))
    with pytest.raises(InputError, match="one duration set"):
        make(4, 8, Times(*np.ones((3, 6, 2, 4))))
