"""Slow and plain: what lists of operations do, from dicts, without anything of telekit but the operations' kinds.

Durations come from a function (letter, chunk, device, op); a pair is asked for as "P".
"""

FORWARD, BACKWARD, INPUT, WEIGHT, PAIR = range(5)
LETTERS = "FBIWP"


def _done(op, device, part):
    """What exists once an operation has ended: ("F", micro-batch, piece, part) and so on."""
    kind, i, c, k, other, other_chunk = op
    here = part[c][device]
    if kind == FORWARD:
        return [("F", i, k, here)]
    if kind == BACKWARD:
        return [("I", i, k, here), ("W", i, k, here)]
    if kind == INPUT:
        return [("I", i, k, here)]
    if kind == WEIGHT:
        return [("W", i, k, here)]
    there = part[other_chunk][device]
    return [("F", i, k, here), ("I", other, k, there), ("W", other, k, there)]


def _needs(thing, last, pieces):
    letter, i, k, q = thing
    if letter == "F":
        return [("F", i, k, q - 1)] * (q > 0) + [("F", i, k - 1, q)] * (k > 0)
    if letter == "I":
        behind = [("I", i, k, q + 1)] * (q < last) + [("I", i, k + 1, q)] * (k < pieces - 1)
        return [*behind, ("F", i, k, q)]
    return [("I", i, k, q)]


def evaluate(lines, part, time_of, comm=0.0, pieces=1):
    """Starts and ends as lists like ``lines``; every operation starts as early as it can, in order."""
    part = [list(map(int, row)) for row in part]
    last = max(map(max, part))
    made, where = {}, {}
    starts = [[None] * len(line) for line in lines]
    ends = [[None] * len(line) for line in lines]
    clock, at = [0.0] * len(lines), [0] * len(lines)
    left = sum(map(len, lines))
    while left:
        before = left
        for d, line in enumerate(lines):
            while at[d] < len(line):
                op = line[at[d]]
                things = _done(op, d, part)
                needs = [n for t in things for n in _needs(t, last, pieces) if n not in things]
                if any(n not in made for n in needs):
                    break
                ready = [made[n] + (comm if where[n] != d else 0.0) for n in needs]
                begin = max([clock[d], *ready])
                clock[d] = begin + time_of(LETTERS[op[0]], op[2], d, op)
                starts[d][at[d]], ends[d][at[d]] = begin, clock[d]
                for t in things:
                    assert t not in made, f"{t} twice"
                    made[t], where[t] = clock[d], d
                at[d] += 1
                left -= 1
        assert left < before, "deadlock"
    return starts, ends


def missing(lines, part, micro_batches, pieces=1, streams=None):
    """Passes that never run; ``streams`` counts the parts' owners when a part is on two devices."""
    part = [list(map(int, row)) for row in part]
    last = max(map(max, part))
    made = {t for d, line in enumerate(lines) for op in line for t in _done(op, d, part)}
    due = {
        (letter, i, k, q)
        for letter in "FIW"
        for i in range(micro_batches)
        for k in range(pieces)
        for q in range(last + 1)
    }
    return due - made


def makespan(lines, part, time_of, comm=0.0, pieces=1):
    return max(max(ends) for ends in evaluate(lines, part, time_of, comm, pieces)[1] if ends)


def peaks(lines, weight):
    """Most each device holds, from a forward's start to the end of B or W; ``weight(chunk, device)`` for one.

    A pair's forward is held before its backward lets go.
    """
    most = []
    for d, line in enumerate(lines):
        held = top = 0.0
        for kind, _, c, _, _, other_chunk in line:
            if kind in (FORWARD, PAIR):
                held += weight(c, d)
            top = max(top, held)
            if kind in (BACKWARD, WEIGHT):
                held -= weight(c, d)
            if kind == PAIR:
                held -= weight(other_chunk, d)
        assert abs(held) < 1e-9
        most.append(top)
    return most
