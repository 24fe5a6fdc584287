"""Slow and plain: what a pipeline does, from lists and dicts, without anything of telekit."""


def megatron_order(p, m, v, group=None, leads=None):
    """Per device a list of (kind, micro-batch, chunk): Megatron-Core's schedule table, walked by hand."""
    sizes = [p] * (m // p) if v > 1 else [m]
    if v > 1 and m % p:
        sizes[0] += m % p  # SAPP
    table, first = [], 0
    for size in sizes:
        table += [(i, c) for c in range(v) for i in range(first, first + size)]
        first += size
    lines = []
    for s in range(p):
        lead = leads[s] if leads else (p - s - 1 if v == 1 else 2 * (p - s - 1) + (v - 1) * p)
        forwards = [("F", i, c) for i, c in table]
        backwards = [("B", i, v - 1 - c) for i, c in table]
        line, forwards = forwards[:lead], forwards[lead:]
        while forwards:
            line += [forwards.pop(0), backwards.pop(0)]
        lines.append(line + backwards)
    return lines


def gpipe_order(p, m):
    return [[("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]] * p


def sweep(lines, forward, backward, comm=0.0):
    """Start and end of every pass as a dict of (kind, micro-batch, chunk, stage), devices taken in turn."""
    p, last = len(lines), len(forward) * len(lines) - 1
    ends, starts, clock, at = {}, {}, [0.0] * p, [0] * p
    left = sum(map(len, lines))
    while left:
        before = left
        for s in range(p):
            while at[s] < len(lines[s]):
                kind, i, c = lines[s][at[s]]
                part = c * p + s
                needs = _needs(kind, i, part, last)
                if needs is None:
                    ready = 0.0
                elif needs in ends:
                    ready = ends[needs] + (comm if needs[2] != part else 0.0)
                else:
                    break
                start = max(clock[s], ready)
                clock[s] = start + (forward if kind == "F" else backward)[c][s]
                starts[kind, i, part], ends[kind, i, part] = start, clock[s]
                at[s] += 1
                left -= 1
        assert left < before, "deadlock"
    return starts, ends


def _needs(kind, i, part, last):
    if kind == "F":
        return ("F", i, part - 1) if part else None
    return ("F", i, part) if part == last else ("B", i, part + 1)


def peaks(lines, v):
    """Per device: most micro-batches held by each chunk, and the multiset of states it goes through."""
    found = []
    for line in lines:
        held, states = [0] * v, []
        for kind, _, c in line:
            held[c] += 1 if kind == "F" else -1
            states.append(tuple(held))
        found.append(([max(state[c] for state in states) for c in range(v)], states))
    return found
