"""Weights on their way through a run: alike on all ranks, equal to golden's at the start, carried from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import loaded
from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.causes.rank_causes import complete, piece_slice, pieces
from telekit.accuracy.checks.grids import coarser_grid
from telekit.accuracy.checks.replicas import compare_replicas
from telekit.accuracy.compared import FORWARD, INPUT, OPTIMIZER, OUTPUT, SETUP, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import values, wide
from telekit.accuracy.graph.sync import gradient_names, optimizer_row, parameter_name
from telekit.accuracy.locating.walk.beside import Ranks
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.layers.norm import normed

_ROWS = 512  # of an operator that is done again
_UNSURE = 0.05  # of the way between two weights
_NORM_EPS = 1e-5  # usual; another moves rows as a whole, hardly along a weight's change
_BF16 = 2.0**-8


def unequal_weights(graph: Sequence[Node], ranks: Ranks, first: bool) -> Finding | None:
    """Find a weight that ranks hold as copies and that differs between them, before the forward or after an update."""
    for node in graph:
        rows = node.parameters if node.phase == FORWARD else []
        if node.phase == OPTIMIZER:
            rows = [r for r in (optimizer_row(node, "parameter", OUTPUT),) if r is not None]
        for row in rows:
            text = _copies(row, ranks)
            if text:
                phase = OPTIMIZER if node.phase == OPTIMIZER or not first else SETUP
                kind = kinds.DIFFERENT_WEIGHTS if phase == SETUP else kinds.ONE_SHARD
                when = "before the first step" if phase == SETUP else f"in step {node.step + 1}"
                said = f"ranks that must hold the same weight differ {when}: {text}"
                return own_finding(node, row, phase, (Cause(kind, 0.93, said),))
    return None


def _copies(row: Compared, ranks: Ranks) -> str:
    held = [t for t in ranks.get((row.step, row.name), []) if t.rank is not None]
    golden = loaded(row.golden)
    if len(held) < 2 or golden is None:
        return ""
    arrays = [wide(t) for t in held]
    if any(a is None for a in arrays):
        return ""
    sorted_ = pieces([a for a in arrays if a is not None], golden)
    if len({len(group) for group, _ in sorted_.values()}) != 1 or sum(
        len(g) for g, _ in sorted_.values()
    ) < len(held):
        return ""  # not every piece of the whole has as many holders: which is whose is not known
    if not complete(sorted_):
        return ""  # a piece has no holder: shards of which one is wrong, no copies
    for piece, (group, places) in sorted_.items():
        found = compare_replicas(group)
        if len(group) < 2 or found.equal:
            continue
        part = golden[piece_slice(piece, golden)] if piece else golden
        off = [float(np.linalg.norm((a - part).ravel())) for a in group]
        agree = "; ".join(", ".join(str(held[places[i]].rank) for i in g) for g in found.groups[:8])
        worst = held[places[int(np.argmax(off))]].rank
        return f"by {found.spread:.3g} of its norm, ranks that agree: {agree}; rank {worst} is furthest from golden"
    return ""


def untied(graph: Sequence[Node], first: bool) -> Finding | None:
    """Find two weights that golden holds as one and the target does not."""
    seen: list[tuple[Node, Compared, Floats, Floats]] = []
    for node in graph:
        if node.phase != FORWARD:
            continue
        for row in node.parameters:
            if not any(w in node.base.lower() for w in ("embed", "output_layer", "lm_head")):
                continue
            t, g = loaded(row.target), loaded(row.golden)
            if t is None or g is None or t.shape != g.shape or g.ndim != 2:
                continue
            for other, _, a, b in seen:
                if b.shape == g.shape and np.array_equal(b, g) and not np.array_equal(a, t):
                    off = float(np.linalg.norm((a - t).ravel())) / max(
                        float(np.linalg.norm(t.ravel())), 1e-300
                    )
                    text = f"it is {other.base}'s in golden; in the target they differ by {off:.3g}: the tie is lost"
                    phase = SETUP if first else OPTIMIZER
                    return own_finding(node, row, phase, (Cause(kinds.DIFFERENT_WEIGHTS, 0.92, text),))
            seen.append((node, row, t, g))
    return None


def other_start(graph: Sequence[Node]) -> Finding | None:
    """Find a weight that is not golden's before the first step, however little it is off."""
    for node in graph:
        rows = node.parameters if node.phase == FORWARD else []
        if node.phase == OPTIMIZER:
            rows = [r for r in (optimizer_row(node, "parameter", INPUT),) if r is not None]
        for row in rows:
            if row.step:
                continue
            text = other_weight(row)
            if text:
                return own_finding(node, row, SETUP, (Cause(kinds.DIFFERENT_WEIGHTS, 0.85, text),))
            t, g = loaded(row.target), loaded(row.golden)
            grid = coarser_grid(t, g) if t is not None and g is not None and node.phase == OPTIMIZER else None
            if grid is not None:
                text = f"{grid.said('every master weight before the first step')}: it was rounded before training"
                return own_finding(node, row, SETUP, (Cause(kinds.WRONG_DTYPE, 0.85, text),))
    return None


def other_weight(row: Compared) -> str:
    """Say how much of a weight is not golden's, nor its cast to bfloat16; empty where that is all."""
    t, g = loaded(row.target), loaded(row.golden)
    if t is None or g is None or t.shape != g.shape or not g.size or not np.isfinite(g).all():
        return ""
    off = np.abs(t - g)
    share = float(np.mean(off > _BF16 * np.maximum(np.abs(g), np.abs(t))))
    if not share > 0.01:
        return ""
    size = float(np.linalg.norm(off.ravel())) / max(float(np.linalg.norm(g.ravel())), 1e-300)
    same = f"; all are {t.ravel()[0]:g}" if np.unique(t).size == 1 else ""
    many = f"{share:.0%} of the weight's elements differ from golden's before the first step"
    return f"{many}, by {size:.3g} of its norm{same}"


def not_carried(graph: Sequence[Node], before: Sequence[Node]) -> Finding | None:
    """Find what a step begins with that is not what the step before left: weights, moments, the forward's copy.

    Parameters
    ----------
    graph, before : sequence of Node
        Of a step, and of the one before.
    """
    left = {parameter_name(n): n for n in before if n.phase == OPTIMIZER}
    for node in graph:
        if node.phase == FORWARD:
            for row in node.parameters:
                last = left.get(gradient_names(node, row))
                text = _stale_copy(row, last) if last is not None else ""
                if text:
                    return own_finding(node, row, OPTIMIZER, (Cause(kinds.STALE, 0.93, text),))
    for node in graph:
        last = left.get(parameter_name(node)) if node.phase == OPTIMIZER else None
        for key, kind in (
            ("parameter", kinds.STALE),
            ("exp_avg", kinds.OPTIMIZER_STATE),
            ("exp_avg_sq", kinds.OPTIMIZER_STATE),
        ):
            rows = (
                (optimizer_row(last, key, OUTPUT), optimizer_row(node, key, INPUT))
                if last is not None
                else (None, None)
            )
            if rows[0] is None or rows[1] is None:
                continue
            was, now, g_was, g_now = (loaded(getattr(r, s)) for s in ("target", "golden") for r in rows)
            if was is None or now is None or g_was is None or g_now is None or was.shape != now.shape:
                continue
            if np.array_equal(g_was, g_now) and not np.array_equal(was, now):
                how = "is all zero" if not now.any() else "is something else"
                said = f"step {node.step} leaves {key}, step {node.step + 1} begins with what {how}"
                text = f"{said}: it was lost between them"
                return own_finding(node, rows[1], OPTIMIZER, (Cause(kind, 0.92, text),))
    return None


def _stale_copy(row: Compared, last: Node) -> str:
    """Whether a forward uses the weight as it was before the last update, where golden uses it as it was after."""
    rows = optimizer_row(last, "parameter", INPUT), optimizer_row(last, "parameter", OUTPUT)
    used = loaded(row.target), loaded(row.golden)
    if rows[0] is None or rows[1] is None or used[0] is None or used[1] is None:
        return ""
    old, new, g_old, g_new = (loaded(getattr(r, s)) for s in ("target", "golden") for r in rows)
    if old is None or new is None or g_old is None or g_new is None:
        return ""
    if not (used[0].shape == old.shape == new.shape and used[1].shape == g_new.shape):
        return ""
    if not _is_cast(used[1], g_new) or _is_cast(used[0], new) or np.array_equal(old, new):
        return ""
    if _is_cast(used[0], old):
        return (
            "the forward uses the weight as it was before the last update: the updated master was not copied"
        )
    share = float(np.mean(np.abs(used[0] - new) > _BF16 * np.abs(new)))
    return (
        f"the forward's weight is not what the last update left, at {share:.0%} of its elements"
        if share > 0.01
        else ""
    )


def _is_cast(used: Floats, master: Floats) -> bool:
    """Whether each value is the master's or its nearest bfloat16."""
    return bool(np.all(np.abs(used - master) <= 1.001 * _BF16 * np.abs(master)))


def stale_use(graph: Sequence[Node], before: Sequence[Node]) -> Finding | None:
    """Find an operator whose output is that of the weight of the step before, though the new one was dumped with it."""
    old = {(n.base, r.name.rsplit(".", 1)[-1]): r for n in before if n.phase == FORWARD for r in n.parameters}
    for node in graph:
        if node.phase != FORWARD or not node.inputs or not node.outputs:
            continue
        for row in node.parameters:
            last = old.get((node.base, row.name.rsplit(".", 1)[-1]))
            if last is None:
                continue
            t, g = (_share_of_old(node, row, last, side) for side in ("target", "golden"))
            if t is None or g is None:
                continue
            sure = max(t[1], g[1]) < _UNSURE and abs(g[0]) < 0.2 and abs(t[0] - 1) < 0.2
            if sure:
                text = (
                    f"done again, the output has {t[0]:.2f} (+-{t[1]:.2g}) of the change that the weight of the step "
                    f"before would make beside the weight dumped, golden's {g[0]:.2f}: the old weight was used"
                )
                return own_finding(node, row, FORWARD, (Cause(kinds.STALE, 0.94, text),))
    return None


def _share_of_old(node: Node, row: Compared, last: Compared, side: str) -> tuple[float, float] | None:
    """Return how far an output is on the way from this step's weight to the last one's, and how sure that is.

    What rounding adds has no part in that direction, so that many elements tell what none of them can.
    """
    new, old = loaded(getattr(row, side)), loaded(getattr(last, side))
    x, out = values(getattr(node.inputs[0], side)), values(getattr(node.outputs[0], side))
    if new is None or old is None or x is None or out is None or new.shape != old.shape or not out.ndim:
        return None
    if np.array_equal(new, old):
        return None
    now, then = (_redone(x, w, out) for w in (new, old))
    if now is None or then is None:
        return None
    way, rest = (then[0] - now[0]).ravel(), (now[1] - now[0]).ravel()
    square = float(way @ way)
    if not square or not np.isfinite(square):
        return None
    share = float(way @ rest) / square
    noise = float(np.linalg.norm(rest - share * way)) / np.sqrt(rest.size) / np.sqrt(square)
    return share, noise


def _redone(x: Floats, weight: Floats, out: Floats) -> tuple[Floats, Floats] | None:
    """Do some rows of a linear layer, a lookup or an RMS norm again; return them and what was dumped of them."""
    rows = out.reshape(-1, out.shape[-1])
    at = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    y = rows[at].astype(np.float64)
    if x.dtype.kind in "iu":
        ids = x.ravel()
        if (
            weight.ndim != 2
            or ids.size != len(rows)
            or ids.max() >= len(weight)
            or weight.shape[1] != y.shape[1]
        ):
            return None
        return weight[ids[at]], y
    a = x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)
    if len(a) != len(rows):
        return None
    a = a[at].astype(np.float64)
    if weight.ndim == 2 and weight.shape == (y.shape[1], a.shape[1]):
        return a @ weight.T, y
    if weight.ndim == 1 and weight.shape[0] == y.shape[1] == a.shape[1]:
        return normed(a, weight, _NORM_EPS, False), y
    return None
