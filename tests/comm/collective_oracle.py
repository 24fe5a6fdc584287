"""Collectives carried out message by message: chunks really move, the result is checked, bytes and steps are counted.

A message costs 1 on the innermost tier, BASE on the next, BASE**2 on the third: the end time, read in that base, is
the number of messages on each tier along the path that takes longest.
"""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise as pairwise_of
from itertools import product

BASE = 10**6


class Machine:
    """Ranks in nested units; counts what each sends on each tier."""

    def __init__(self, ranks, reach):
        self.ranks, self.reach = ranks, reach
        self.n = len(ranks)
        self.sent = defaultdict(lambda: defaultdict(Fraction))
        self.end = 0

    def tier(self, a, b):
        for i, devices in enumerate(self.reach):
            if devices is None or a // devices == b // devices:
                return i
        raise AssertionError("out of reach")

    def send(self, a, b, share, ready):
        """Rank a sends a share of the buffer at a time; when b has it."""
        tier = self.tier(a, b)
        self.sent[tier][a] += share
        arrived = ready + BASE**tier
        self.end = max(self.end, arrived)
        return arrived

    def counts(self):
        """By tier that carried anything: (steps, bytes of the busiest rank)."""
        steps, end = {}, self.end
        for tier in range(len(self.reach)):
            end, steps[tier] = divmod(end, BASE)
        return {tier: (steps[tier], max(by.values())) for tier, by in sorted(self.sent.items())}

    def nested(self):
        """Ranks as a tree of units, levels with one part left out; leaves are ranks."""

        def group(ranks, level):
            if level < 0:
                return ranks[0]
            inner = self.reach[level - 1] if level else 1
            units = defaultdict(list)
            for rank in ranks:
                units[rank // inner].append(rank)
            parts = [group(part, level - 1) for part in units.values()]
            return parts[0] if len(parts) == 1 else parts

        return group(list(self.ranks), len(self.reach) - 1)

    def coordinates(self):
        """Position on each used tier, innermost first, of every rank of an even group."""
        found = {}

        def walk(node, path):
            if isinstance(node, int):
                found[node] = tuple(path)
                return
            for i, part in enumerate(node):
                walk(part, [i, *path])

        walk(self.nested(), [])
        return found


def radices(places):
    return [1 + max(axis) for axis in zip(*places.values(), strict=True)]


def rings(machine):
    """Orders of ranks: unit after unit, each order entering and leaving units by other ranks."""
    tree = machine.nested()

    def walk(node, turns):
        if isinstance(node, int):
            return [node]
        turn = turns[0] % len(node) if turns else 0
        return [rank for part in node[turn:] + node[:turn] for rank in walk(part, turns[1:])]

    def widths(node):  # members at each level below the outermost, the fewest where units differ
        if isinstance(node, int) or all(isinstance(part, int) for part in node):
            return []
        below = [part if isinstance(part, list) else [part] for part in node]
        deeper = min((widths(part) for part in below), key=len)
        return [min(len(part) for part in below), *deeper]

    return [walk(tree, [0, *turn]) for turn in product(*(range(width) for width in widths(tree)))]


def ring(machine, op):
    orders = rings(machine)
    n, share = machine.n, Fraction(1, len(orders))
    for order in orders:
        if op == "broadcast":
            at, ready = order.index(machine.ranks[0]), 0
            reached = {machine.ranks[0]}
            for hop in range(n - 1):
                a, b = order[(at + hop) % n], order[(at + hop + 1) % n]
                ready = machine.send(a, b, share, ready)
                reached.add(b)
            assert reached == set(machine.ranks)
            continue
        for chunk in range(n):
            ready, turns = 0, 0
            if op in ("reduce-scatter", "all-reduce"):  # from its owner's successor round to its owner
                summed = {order[(chunk + 1) % n]}
                for hop in range(1, n):
                    a, b = order[(chunk + hop) % n], order[(chunk + hop + 1) % n]
                    ready = machine.send(a, b, share / n, ready)
                    summed.add(b)
                assert b == order[chunk] and summed == set(machine.ranks)
                turns = 1
            if op in ("all-gather", "all-reduce"):
                reached = {order[chunk]}
                for hop in range(n - 1):
                    a, b = order[(chunk + hop) % n], order[(chunk + hop + 1) % n]
                    ready = machine.send(a, b, share / n, ready)
                    reached.add(b)
                assert reached == set(machine.ranks)
                turns += 1
            assert turns


def children(nodes):
    """In-order binary tree, from the top: each node's children, by the width it spans."""
    found = {i: [] for i in range(nodes)}

    def grow(node, width):
        if width == 1:
            return
        half = width // 2
        found[node].append(node - half)
        grow(node - half, half)
        while half and node + half >= nodes:
            half //= 2
        if half:
            found[node].append(node + half)
            grow(node + half, half)

    if nodes > 1:
        top = 1 << (nodes - 1).bit_length() - 1
        found[0].append(top)
        grow(top, top)
    return found


def tree(machine, op):
    places = machine.coordinates()
    levels = len(next(iter(places.values())))
    chain = radices(places)[0] if levels > 1 else 1
    units = [machine.ranks[i : i + chain] for i in range(0, machine.n, chain)]
    nodes = len(units)
    for channel in range(chain):
        orders = [unit[channel:] + unit[:channel] for unit in units]  # the head comes first
        for twin in (False, True):
            share = Fraction(1, 2 * chain)

            def actor(role, twin=twin):
                if not twin:
                    return role
                return nodes - 1 - role if nodes % 2 == 0 else (role + 1) % nodes

            below = children(nodes)
            held = {}

            def up(role, below=below, held=held, orders=orders, share=share, actor=actor):
                order, ready, summed = orders[actor(role)], 0, {orders[actor(role)][-1]}
                for a, b in zip(order[:0:-1], order[-2::-1], strict=True):
                    ready = machine.send(a, b, share, ready)
                    summed.add(b)
                for child in below[role]:
                    ready_child, theirs = up(child)
                    head = orders[actor(child)][0]
                    ready = max(ready, machine.send(head, order[0], share, ready_child))
                    summed |= theirs
                return ready, summed

            def down(role, ready, below=below, held=held, orders=orders, share=share, actor=actor):
                order = orders[actor(role)]
                held[order[0]] = True
                for child in below[role]:
                    down(child, machine.send(order[0], orders[actor(child)][0], share, ready))
                for a, b in pairwise_of(order):
                    ready = machine.send(a, b, share, ready)
                    held[b] = True

            ready, summed = up(0)
            assert summed == set(machine.ranks)
            down(0, ready)
            assert set(held) == set(machine.ranks)


def halving_doubling(machine, op):
    """Rounds in which all wait for the slowest; each rank holds {chunk: who is summed in it}."""
    n = machine.n
    core = 1 << (n.bit_length() - 1)
    rest = n - core
    active = [machine.ranks[i] for i in range(n) if i >= 2 * rest or i % 2]
    held = {r: {c: {r} for c in range(core)} for r in machine.ranks}
    if op == "all-gather":
        held = {r: {i: {r}} for i, r in enumerate(machine.ranks)}
    clock = [0]

    def rounds(messages):
        """Messages (a, b, chunks): all at once, sums what arrives; what was sent is kept by the caller's choice."""
        taken = [(b, {c: set(held[a][c]) for c in chunks}) for a, b, chunks in messages]
        clock[0] = max(machine.send(a, b, Fraction(len(chunks), core), clock[0]) for a, b, chunks in messages)
        for b, parts in taken:
            for c, who in parts.items():
                held[b][c] = held[b].get(c, set()) | who

    every = range(core)
    if rest:
        rounds([(machine.ranks[2 * i], machine.ranks[2 * i + 1], every) for i in range(rest)])
    bits = [1 << i for i in range(core.bit_length() - 1)]
    if op in ("all-reduce", "reduce-scatter"):
        keep = {r: set(every) for r in active}
        for bit in bits if op == "all-reduce" else bits[::-1]:
            messages = []
            for i, r in enumerate(active):
                other = active[i ^ bit]
                messages.append((r, other, [c for c in keep[r] if (c ^ i) & bit]))
            rounds(messages)
            for i, r in enumerate(active):
                keep[r] = {c for c in keep[r] if not (c ^ i) & bit}
        for i, r in enumerate(active):
            assert keep[r] == {i} and held[r][i] == set(machine.ranks)
            held[r] = {i: held[r][i]}
    if op in ("all-reduce", "all-gather"):
        for bit in bits[::-1] if op == "all-reduce" else bits:
            rounds([(r, active[i ^ bit], list(held[r])) for i, r in enumerate(active)])
        if rest:
            rounds([(machine.ranks[2 * i + 1], machine.ranks[2 * i], every) for i in range(rest)])
        for r in machine.ranks:
            assert len(held[r]) == core
            want = None if op == "all-gather" else set(machine.ranks)
            assert all(who == (want or {machine.ranks[c]}) for c, who in held[r].items())


def direct(machine, op):
    if op == "send-recv":
        return max(machine.send(a, b, Fraction(1), 0) for a, b in [(machine.ranks[0], machine.ranks[-1])])
    for a, b in product(machine.ranks, repeat=2):
        if a != b:
            machine.send(a, b, Fraction(1, machine.n), 0)
    return None


def pairwise(machine, op):
    """One partner a round; a rank goes on when it has sent and received."""
    n, places = machine.n, machine.coordinates()
    at = {place: rank for rank, place in places.items()}
    wide = radices(places)
    free = dict.fromkeys(machine.ranks, 0)
    got = {r: {r} for r in machine.ranks}
    for step in range(1, n):
        if n & (n - 1) == 0:
            partner = {r: machine.ranks[i ^ step] for i, r in enumerate(machine.ranks)}
        else:
            shift, rest = [], step
            for width in wide:
                rest, digit = divmod(rest, width)
                shift.append(digit)
            partner = {
                r: at[tuple((x + s) % w for x, s, w in zip(places[r], shift, wide, strict=True))]
                for r in machine.ranks
            }
        after = dict(free)
        for a, b in partner.items():
            done = machine.send(a, b, Fraction(1, n), max(free[a], free[b]))
            after[a], after[b] = max(after[a], done), max(after[b], done)
            got[b].add(a)
        free = after
    assert all(who == set(machine.ranks) for who in got.values())


def hierarchical(machine, op):
    """Tier by tier among ranks that differ on that tier only; a chunk is named by its owner's coordinates."""
    places = machine.coordinates()
    at = {place: rank for rank, place in places.items()}
    wide = radices(places)
    levels = range(len(wide))
    chunks = list(product(*(range(w) for w in wide)))
    share = Fraction(1, len(chunks))
    if op == "all-to-all":
        return _all_to_all(machine, places, at, wide)
    root = places[machine.ranks[0]]
    held = {r: {c: (0, {r}) for c in chunks} for r in machine.ranks}
    if op == "all-gather":
        held = {r: {places[r]: (0, {r})} for r in machine.ranks}
    if op == "broadcast":
        held = {r: {} for r in machine.ranks}
        held[at[root]] = {c: (0, {"root"}) for c in chunks}

    def line(place, level):
        return [at[(*place[:level], i, *place[level + 1 :])] for i in range(wide[level])]

    def lines(level):
        return {tuple(line(place, level)) for place in chunks}

    def scatter(level):
        for members in lines(level):
            n = len(members)
            blocks = {i: [c for c in held[members[0]] if c[level] == i] for i in range(n)}
            for i, owner in enumerate(members):
                for c in blocks[i]:
                    ready, summed = held[members[(i + 1) % n]][c]
                    for hop in range(1, n):
                        a, b = members[(i + hop) % n], members[(i + hop + 1) % n]
                        ready = max(machine.send(a, b, share, ready), held[b][c][0])
                        summed = summed | held[b][c][1]
                    for r in members:
                        del held[r][c]
                    held[owner][c] = (ready, summed)

    def gather(level):
        for members in lines(level):
            n = len(members)
            for i, owner in enumerate(members):
                for c, (ready, who) in [x for x in held[owner].items() if x[0][level] == i]:
                    for hop in range(n - 1):
                        a, b = members[(i + hop) % n], members[(i + hop + 1) % n]
                        ready = machine.send(a, b, share, ready)
                        held[b][c] = (ready, who)

    if op in ("all-reduce", "reduce-scatter"):
        for level in levels:
            scatter(level)
    if op in ("all-reduce", "all-gather"):
        for level in reversed(levels):
            gather(level)
    if op == "broadcast":
        _broadcast(machine, held, lines, levels, share, gather)
    everyone = {"root"} if op == "broadcast" else set(machine.ranks)
    for r in machine.ranks:
        if op == "reduce-scatter":
            assert {c: who for c, (_, who) in held[r].items()} == {places[r]: everyone}
        elif op == "all-gather":
            assert {c: who for c, (_, who) in held[r].items()} == {c: {at[c]} for c in chunks}
        else:
            assert {c: who for c, (_, who) in held[r].items()} == dict.fromkeys(chunks, everyone)
    return None


def _broadcast(machine, held, lines, levels, share, gather):
    for level in levels[:-1]:  # the root, then each that holds a part, hands out parts one after another
        for members in lines(level):
            if not held[members[0]]:
                continue
            free = 0
            for i, b in enumerate(members[1:], 1):
                part = [c for c in held[members[0]] if c[level] == i]
                ready = max(free, *(held[members[0]][c][0] for c in part))
                free = machine.send(members[0], b, share * len(part), ready)
                for c in part:
                    held[b][c] = (free, {"root"})
                    del held[members[0]][c]
    for members in lines(levels[-1]):
        for c in list(held[members[0]]):
            ready = held[members[0]][c][0]
            for a, b in pairwise_of(members):
                ready = machine.send(a, b, share, ready)
                held[b][c] = (ready, {"root"})
    for level in reversed(levels[:-1]):
        gather(level)


def _all_to_all(machine, places, at, wide):
    held = {r: {(r, d): 0 for d in machine.ranks} for r in machine.ranks}
    free = dict.fromkeys(machine.ranks, 0)
    for level, width in enumerate(wide):
        arrived = {r: {} for r in machine.ranks}
        for step in range(1, width):
            after = dict(free)
            for r in machine.ranks:
                place = places[r]
                to = (place[level] + step) % width
                b = at[(*place[:level], to, *place[level + 1 :])]
                part = [x for x in held[r] if places[x[1]][level] == to]
                done = machine.send(r, b, Fraction(len(part), machine.n), max(free[r], free[b]))
                after[r], after[b] = max(after[r], done), max(after[b], done)
                for x in part:
                    del held[r][x]
                    arrived[b][x] = done
            free = after
        for r in machine.ranks:
            held[r] |= arrived[r]
    for r in machine.ranks:
        assert set(held[r]) == {(s, r) for s in machine.ranks}


RULES = {
    "ring": ring,
    "tree": tree,
    "recursive-halving-doubling": halving_doubling,
    "direct": direct,
    "pairwise": pairwise,
    "hierarchical": hierarchical,
}


def run(op, algorithm, ranks, reach):
    """Counts by tier: (steps, bytes of the busiest rank as a share of the buffer)."""
    machine = Machine(list(ranks), list(reach))
    RULES[algorithm](machine, op)
    return machine.counts()
