"""Which row each place of a mixture's exchange holds: read from the values, whatever loss or order put it there.

Golden says which tokens (or experts' rows) an output is made from, and with which factors. For the target the sources
are looked for among all rows of its own input, and nothing, so that rows lost, late, repeated or in another order are
told from one another in any precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD, FORWARD
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.experts.exchange import EXCHANGED, choices, slots_of
from telekit.accuracy.redoing.formula.formula import LEAST, PROOF, own_side, relative
from telekit.accuracy.redoing.formula.orders import zigzags

_NEAR = 4.0  # epsilons of what is summed: further off a row is another's
_FLOOR = 1e-4
_EXPLAINED = 0.95  # of the outputs that are wrong
_ODD = 0.05  # of the rows that moved: so few may be taken for others
_MOST = 1 << 27  # of rows, or of pairs of rows, that are tried for all outputs together
_WIDTH = 8  # narrower rows are like one another by chance
_OFFSETS = (1, -1, 2, -2)
_NOTHING = -1


@dataclass(frozen=True)
class Exchange:
    """Outputs as sums of rows of a table.

    Attributes
    ----------
    sources : ndarray of int, shape (outputs, k)
        Which rows each output is the sum of.
    factors, table, factors_of_target, table_of_target : ndarray
        Shapes (outputs, k) and (rows, width): golden's, and the target's own.
    places : ndarray of int, shape (outputs, k)
        Where each source stands among the rows sorted by expert.
    owner : ndarray of int, shape (places,)
        The token of each place.
    tokens : tuple of int
        Their shape: sequences, positions.
    """

    sources: Array
    factors: Floats
    table: Floats
    factors_of_target: Floats
    table_of_target: Floats
    places: Array
    owner: Array
    tokens: tuple[int, ...]


def row_causes(case: Case) -> Iterator[Cause]:
    """Say which rows are lost, repeated, late or elsewhere, where that explains all that is wrong."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if g.ndim < 2 or g.shape[-1] < _WIDTH or not any(w in case.words for w in EXCHANGED):
        return
    golden, target = g.reshape(-1, g.shape[-1]), t.reshape(-1, g.shape[-1])
    for x in _exchanges(case):
        made = _summed(x.sources, x.factors, x.table)
        if made.shape != golden.shape or relative(made, golden) > max(PROOF * case.epsilon, LEAST):
            continue
        used = _used(case, x, target)
        if used is not None:
            yield from _named(case, x, used)
        return


def _exchanges(case: Case) -> Iterator[Exchange]:
    """Tokens sent to experts, and rows brought back; each also with the routing weights among the inputs."""
    g = case.golden
    assert g is not None
    for chosen in choices(case):
        slots, tokens = slots_of(chosen), chosen.shape[:-1]
        owner = np.empty(slots.size, int)
        owner[slots] = np.arange(len(slots))[:, None]
        ones = np.ones(slots.shape)
        weights = [(ones, ones)]
        for w in case.inputs:
            if w.golden is not None and w.golden.shape == chosen.shape and (w.golden != chosen).any():
                weights.append((w.golden.reshape(slots.shape), own_side(w).reshape(slots.shape)))
        for x, (factors, own) in product(case.inputs, weights):
            if x.golden is None or x.golden.ndim < 2 or x.golden.shape[-1] != g.shape[-1]:
                continue
            tables = [a.reshape(-1, g.shape[-1]) for a in (x.golden, own_side(x))]
            if x.golden.shape[:-1] == tokens and g.shape[:-1] == (slots.size,):
                by_row = [np.empty((slots.size, 1)) for _ in range(2)]
                for row, of in zip(by_row, (factors, own), strict=True):
                    row[slots, 0] = of
                places = np.arange(slots.size)[:, None]
                yield Exchange(
                    owner[:, None], by_row[0], tables[0], by_row[1], tables[1], places, owner, tokens
                )
            elif x.golden.shape[:-1] == (slots.size,) and g.shape[:-1] == tokens:
                yield Exchange(slots, factors, tables[0], own, tables[1], slots, owner, tokens)


def _summed(sources: Array, factors: Floats, table: Floats) -> Floats:
    """Return the sums; a source of -1 adds nothing."""
    kept = np.where(sources == _NOTHING, 0.0, factors)
    return np.asarray((kept[..., None] * table[sources]).sum(axis=1))


def _used(case: Case, x: Exchange, target: Floats) -> Array | None:
    """Return the sources that give the target's outputs; None where some are of no rows, or all are right."""
    factors, table = x.factors_of_target, x.table_of_target
    squares = (table * table).sum(axis=1)
    size = np.sqrt((factors**2 * squares[x.sources]).sum(axis=1))
    near = max(_NEAR * case.epsilon, _FLOOR) * np.maximum(size, np.linalg.norm(target, axis=1))
    wrong = np.flatnonzero(np.linalg.norm(target - _summed(x.sources, factors, table), axis=1) > near)
    rows, k = len(table), x.sources.shape[1]
    if not wrong.size or wrong.size * rows * k > _MOST:
        return None
    gram = table @ table.T if k == 2 and wrong.size * rows**2 <= _MOST else None
    used, found = x.sources.copy(), 0
    for i in wrong:
        best = _sources_of(target[i], factors[i], table, squares, gram, x.sources[i], near[i])
        if float(np.linalg.norm(target[i] - _summed(best[None], factors[i][None], table)[0])) <= near[i]:
            used[i] = best
            found += 1
    return used if found >= _EXPLAINED * wrong.size else None


def _sources_of(
    y: Floats,
    factors: Floats,
    table: Floats,
    squares: Floats,
    gram: Floats | None,
    expected: Array,
    near: float,
) -> Array:
    """Return rows, or nothing, whose sum is nearest to an output; those expected where they are within ``near``.

    With ``gram``, the rows' products, two sources are found as a pair; without, one after another.
    """
    if gram is None and len(factors) > 1:
        return _in_turn(y, factors, table, squares, expected)
    dots = table @ y
    costs = [f * f * squares - 2 * f * dots for f in factors]  # of the square that each alone would leave
    costs = [np.append(c, 0.0) for c in costs]
    if gram is None:
        return np.array([_row(int(np.argmin(costs[0])), len(table))])
    a, b = factors
    whole = costs[0][:, None] + costs[1][None, :]
    whole[:-1, :-1] += 2 * a * b * gram
    n, (i, j) = len(table), (int(e) for e in expected)
    alike = ((i, n), (n, j), (n, n), (i, int(whole[i].argmin())), (int(whole[:, j].argmin()), j))
    p, q = np.unravel_index(int(whole.argmin()), whole.shape)
    some = ((p, q) for p, q in alike if whole[p, q] + y @ y <= near * near)
    return np.array([_row(int(at), n) for at in next(some, (p, q))])


def _row(at: int, rows: int) -> int:
    return _NOTHING if at == rows else at


def _in_turn(y: Floats, factors: Floats, table: Floats, squares: Floats, expected: Array) -> Array:
    """Find many sources one after another, each for what the others leave, until none changes."""
    best = expected.copy()
    for _ in range(4):
        before = best.copy()
        for c, f in enumerate(factors):
            others = np.delete(np.arange(len(factors)), c)
            rest = y - _summed(best[None, others], factors[None, others], table)[0]
            cost = np.append(f * f * squares - 2 * f * (table @ rest), 0.0)
            best[c] = _row(int(np.argmin(cost)), len(table))
        if (best == before).all():
            break
    return best


def _named(case: Case, x: Exchange, used: Array) -> Iterator[Cause]:
    """Say what the sources that were used have in common."""
    expected, got = (np.empty(x.places.size, int) for _ in range(2))
    expected[x.places], got[x.places] = x.sources, used
    other = got != expected
    moved = other & (got != _NOTHING)
    n, m = int(other.sum()), int(moved.sum())
    what = "experts' rows" if x.sources.shape[1] > 1 else "rows"
    said = f"{n} of {got.size} {what} do not arrive as sent"
    if not m:
        yield Cause(
            kinds.DROPPED, 0.96, f"{said}: nothing is in their place: dropped, or read before they came"
        )
        return
    offset = _offset(case, x, expected, got)
    if offset:
        yield Cause(kinds.PERMUTATION, 0.97, f"{said}: {offset}")
        return
    late = _micro_batch(case, x, expected, got, moved)
    if late:
        yield Cause(kinds.STALE, 0.96, f"{said}: {late}")
        return
    lost = np.setdiff1d(expected, got).size
    if lost <= _ODD * m and n - m <= _ODD * m:
        yield Cause(kinds.PERMUTATION, 0.96, f"{said}: the same rows, in another order")
        return
    text = f"{said}: {m} places hold a row that belongs elsewhere, {n - m} hold nothing, {lost} rows come nowhere"
    yield Cause(kinds.DUPLICATED, 0.95, f"{text}: read from the wrong place, or before they came")


def _offset(case: Case, x: Exchange, expected: Array, got: Array) -> str:
    """Say that each rank's rows, in the order of its experts, are some places off; which tokens are whose is tried."""
    for said, label in dealt_tokens(case, x.tokens):
        of = label[x.owner]
        for by in _OFFSETS:
            rolled = expected.copy()
            for rank in np.unique(of):
                at = np.flatnonzero(of == rank)
                rolled[at] = np.roll(expected[at], by)
            if float(np.mean(rolled == got)) >= _EXPLAINED:
                places = "one place" if abs(by) == 1 else f"{abs(by)} places"
                return f"{said} rows, sorted by expert, are {places} {'on' if by > 0 else 'back'}"
    return ""


def dealt_tokens(case: Case, tokens: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Ways in which tokens, of so many sequences and positions, may be dealt to ranks: a label for each."""
    dp, micro, cp = (int(case.sizes.get(n, 1)) for n in ("dp", "micro_batches", "cp"))
    positions = tokens[1] if len(tokens) > 1 else 1
    along = [np.zeros(positions, int)]
    along += [np.argsort(order) * cp // positions for _, order in list(zigzags(positions, cp))[:1]]
    for blocks, of_position in product(sorted({1, dp, micro, dp * micro}), along):
        if tokens[0] % blocks == 0:
            of_sequence = np.arange(tokens[0]) * blocks // tokens[0]
            label = of_sequence[:, None] * cp + of_position
            yield "all" if not label.any() else "each rank's", np.asarray(label.ravel())


def _micro_batch(case: Case, x: Exchange, expected: Array, got: Array, moved: Array) -> str:
    """Say that what stands in the wrong places is another micro-batch's."""
    n = int(case.sizes.get("micro_batches", 1))
    if n < 2 or x.tokens[0] % n:
        return ""
    of_token = np.arange(int(np.prod(x.tokens))) * n // int(np.prod(x.tokens))
    token_of = x.owner if x.sources.shape[1] > 1 else np.arange(of_token.size)
    right, used = (of_token[token_of[a[moved]]] for a in (expected, got))
    if case.phase not in (FORWARD, BACKWARD) or (right == used).any():
        return ""
    return f"{int(moved.sum())} are those of micro-batch {np.unique(used).tolist()}, left from it"
