"""Random orders that can run, of every kind of operation: a player draws what is ready until all is done."""

import numpy as np
from hypothesis import strategies as st

from telekit.pipeline.order import PAIR, Op, from_lists
from telekit.pipeline.times import Times


def placement(name, stages):
    """Model part of each chunk of each device."""
    there = np.arange(stages)
    return {
        "line": there[None],
        "ring": np.stack([there, there + stages]),
        "V": np.stack([there, 2 * stages - 1 - there]),
        "both ways": np.stack([there, stages - 1 - there]),
    }[name]


def draw_lines(rng, part, micro_batches, pieces=1, split=0.5, pairs=0.0):
    """Lists of operations; a share ``split`` of backwards in halves, of ready pairs a share ``pairs`` joined."""
    chunks, stages = part.shape
    last = part.max()
    twice = part.size > last + 1  # both ways: each half of the micro-batches has its chunk
    where = {}
    for c in range(chunks):
        for d in range(stages):
            for i in range(micro_batches):
                if not twice or c == (2 * i >= micro_batches):
                    where[i, int(part[c, d])] = d, c
    done, lines = set(), [[] for _ in range(stages)]
    halved = {key: rng.random() < split for key in [(i, q, k) for i, q in where for k in range(pieces)]}
    todo = {(letter, *key) for key, half in halved.items() for letter in ("FIW" if half else "FB")}

    def ready(letter, i, q, k):
        if letter == "F":
            return (q == 0 or ("F", i, q - 1, k) in done) and (k == 0 or ("F", i, q, k - 1) in done)
        if letter == "W":
            return ("I", i, q, k) in done
        behind = q == last or {("B", i, q + 1, k), ("I", i, q + 1, k)} & done
        later = k == pieces - 1 or {("B", i, q, k + 1), ("I", i, q, k + 1)} & done
        return behind and later and ("F", i, q, k) in done

    while todo:
        free = sorted(key for key in todo if ready(*key))
        letter, i, q, k = free[rng.integers(len(free))]
        device, chunk = where[i, q]
        op, gone = Op("FBIW".index(letter), i, chunk, k), {(letter, i, q, k)}
        others = [key for key in free if key[0] == "B" and where[key[1], key[2]][0] == device]
        if letter == "F" and others and rng.random() < pairs:
            other = others[rng.integers(len(others))]
            op = Op(PAIR, i, chunk, 0, other[1], where[other[1], other[2]][1])
            gone.add(other)
        lines[device].append(op)
        done |= gone
        todo -= gone
    return lines


@st.composite
def orders(draw, most_pieces=3):
    """An order, its lists, and times of which none is like another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    name = draw(st.sampled_from(["line", "ring", "V", "both ways"]))
    stages, micro_batches, cut = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, most_pieces)),
    )
    part = placement(name, stages)
    pairs = draw(st.sampled_from([0.0, 0.7])) if cut == 1 else 0.0
    lines = draw_lines(rng, part, micro_batches, cut, draw(st.sampled_from([0.0, 0.5, 1.0])), pairs)
    whole = draw(st.booleans())

    def numbers(shape):
        return rng.integers(1, 9, shape) * 1.0 if whole else 0.1 + rng.random(shape)

    comm = draw(st.sampled_from([0.0, 0.25, 2.0]))
    times = Times(*(numbers(part.shape) for _ in range(3)), pair=numbers(part.shape), comm=comm)
    return from_lists(name, lines, part, micro_batches, cut), lines, times, rng


def time_of(times, pieces=1):
    """Durations for :func:`operation_oracle.evaluate`, one operation at a time."""

    def of(letter, chunk, device, op):
        at = chunk, device
        whole = times.backward_input[at] + times.backward_weight[at]
        return {
            "F": times.forward[at],
            "B": whole,
            "I": times.backward_input[at],
            "W": times.backward_weight[at],
            "P": times.pair[at],
        }[letter] / pieces

    return of
