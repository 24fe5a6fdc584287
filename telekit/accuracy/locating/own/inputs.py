"""Token ids and labels compared: what a run was given, before anything is blamed for what it made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import fingerprint
from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.compared import FORWARD, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import values
from telekit.accuracy.graph.routing import routes
from telekit.accuracy.locating.walk.beside import Ranks
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import Array

_SHIFTS = (1, -1, 2, -2)
_SAME = 0.95
_TARGETS = ("loss", "entropy", "criterion")


def different_inputs(graph: Sequence[Node]) -> Finding | None:
    """Find the first token ids or labels that no operator made and that differ."""
    ids = [(node, row, *pair) for node, row in _given(graph) if (pair := _pair(row)) is not None]
    for node, row, t, g in ids:
        if t.shape != g.shape or np.array_equal(t, g):
            continue
        labels = any(w in node.base.lower() for w in _TARGETS)
        others = [(n, r, a, b) for n, r, a, b in ids if r is not row and b.shape == g.shape]
        what = "labels" if labels else "token ids"
        share = float(np.mean(t != g))
        how = next(_said(t, g, [(_name(n), b) for n, _, _, b in others]), "")
        text = f"{share:.0%} of the {what} differ{f': {how}' if how else ': another batch, or another tokenizer'}"
        cause = Cause(kinds.DIFFERENT_INPUTS, 0.95, text)
        more = [f"{_name(n)} {r.name} differs as well" for n, r, a, b in others if not np.array_equal(a, b)][
            :2
        ]
        return own_finding(node, row, FORWARD, (cause,), input_of=True, more=more)
    return None


def different_on_ranks(graph: Sequence[Node], ranks: Ranks, sizes: Mapping[str, float]) -> Finding | None:
    """Find token ids that ranks of one data- and context-parallel place do not share; merged are the first's."""
    places = round(sizes.get("dp", 0) * sizes.get("cp", 1))
    for node, row in _given(graph) if places else ():
        held = [(t.rank, a) for t in ranks.get((row.step, row.name), []) if (a := values(t)) is not None]
        groups: dict[bytes, list[int | None]] = {}
        for rank, a in held:
            groups.setdefault(a.tobytes(), []).append(rank)
        if len(held) > places and len(held) % places == 0 and len(groups) > places:
            some = "; ".join(", ".join(map(str, g)) for g in list(groups.values())[:8])
            text = f"{len(held)} ranks hold {len(groups)} inputs, the layout deals {places}: ranks that agree: {some}"
            cause = Cause(kinds.DIFFERENT_INPUTS, 0.93, text)
            return own_finding(node, row, FORWARD, (cause,), input_of=True)
    return None


def _given(graph: Sequence[Node]) -> Iterator[tuple[Node, Compared]]:
    """Yield inputs of whole numbers that no operator before them made, in graph order."""
    made: set[object] = set()
    for node in graph:
        if node.phase != FORWARD:
            continue
        for row in node.inputs:
            g = row.golden
            whole = g is not None and g.kind == "tensor" and g.dtype.startswith(("int", "uint"))
            if whole and g is not None and g.shape and not routes(node.base) and fingerprint(g) not in made:
                yield node, row
        made |= {fingerprint(r.golden) for r in node.outputs if r.golden is not None}


def _pair(row: Compared) -> tuple[Array, Array] | None:
    t, g = values(row.target), values(row.golden)
    return None if t is None or g is None or not t.size else (t, g)


def _said(t: Array, g: Array, others: Sequence[tuple[str, Array]]) -> Iterator[str]:
    """Say how the target's numbers come from golden's: another input's, shifted, replaced, in another order."""
    for name, other in others:
        if np.array_equal(t, other):
            yield f"they are what golden has as the input of {name}: not shifted"
    if t.ndim > 1 and t.shape[-1] > 2:
        for by in _SHIFTS:
            new, old = (t[..., by:], g[..., :-by]) if by > 0 else (t[..., :by], g[..., -by:])
            if new.size and np.mean(new == old) > _SAME:
                first = np.unique(t[..., :by] if by > 0 else t[..., by:])
                fill = f", {'before' if by > 0 else 'after'} them {first[0]}" if first.size == 1 else ""
                where = "right" if by > 0 else "left"
                why = "a token too many or too few, or labels made twice"
                yield f"golden's shifted by {abs(by)} to the {where}{fill} ({why})"
    yield from _replaced(t, g)
    yield from _reordered(t, g)
    if np.unique(t[0] if t.ndim > 1 else t).size == 1:
        yield f"all are {t.ravel()[0]}"


def _replaced(t: Array, g: Array) -> Iterator[str]:
    changed = t != g
    if changed.mean() < 0.6 and np.unique(t[changed]).size == 1:
        yield f"{int(changed.sum())} of them are {t[changed].ravel()[0]}{_places(changed)}"
    elif changed.mean() < 0.6 and changed.ndim > 1:
        places = _places(changed)
        if places:
            yield f"others{places}"


def _places(changed: Array) -> str:
    for axis, name in ((changed.ndim - 1, "positions"), (0, "sequences")):
        others = tuple(i for i in range(changed.ndim) if i != axis)
        at = np.flatnonzero(changed.any(axis=others))
        if 0 < at.size < changed.shape[axis]:
            some = ", ".join(map(str, at[:8])) + ("…" if at.size > 8 else "")
            return f", in {name} {some} of {changed.shape[axis]}"
    return ""


def _reordered(t: Array, g: Array) -> Iterator[str]:
    for axis, name in ((0, "sequences"), (t.ndim - 1, "positions")):
        a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (t, g))
        if len(a) < 2:
            continue
        same = (a[:, None] == b[None]).all(axis=2)
        if same.any(axis=1).all():
            order = same.argmax(axis=1)
            again = np.unique(order).size < len(order)
            how = "some of golden's several times" if again else "golden's in another order"
            yield f"{how}: {name} {', '.join(map(str, order[:16]))}"
    if np.array_equal(np.sort(t.ravel()), np.sort(g.ravel())):
        yield "the same numbers in another order"


def _name(node: Node) -> str:
    return node.base.removeprefix("Module.")
