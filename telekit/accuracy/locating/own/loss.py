"""The loss judged as the float32 operator it is, whatever the run's precision: by its own logits and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import loaded
from telekit.accuracy.causes.finding import Cause, Finding
from telekit.accuracy.compared import FORWARD, Compared
from telekit.accuracy.curves.ratios import name_ratio
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import values
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.loss.cross_entropy import labels_of, loss_causes, losses_of

_MEAN = 2e-5  # relative: what a mean in float32 may differ by


def loss_node(graph: Sequence[Node]) -> tuple[Node, Compared, Compared, Compared | None] | None:
    """Return the node that makes a loss of each token, with its logits, losses and labels; None where there is none."""
    for node in graph:
        if node.phase != FORWARD or not any(w in node.base.lower() for w in ("loss", "entropy")):
            continue
        logits = next(
            (r for r in node.inputs if _shape(r)[-1:] and len(_shape(r)) > 1 and not _whole(r)), None
        )
        if logits is None:
            continue
        tokens = int(np.prod(_shape(logits)[:-1]))
        out = next(
            (r for r in node.outputs if int(np.prod(_shape(r) or (0,))) == tokens and not _whole(r)), None
        )
        labels = next((r for r in node.inputs if _whole(r) and int(np.prod(_shape(r))) == tokens), None)
        if out is not None:
            return node, logits, out, labels
    return None


def redone_loss(graph: Sequence[Node]) -> tuple[Node, Compared, tuple[Cause, ...]] | None:
    """Return the loss's node, its row and why its losses are not its logits' and labels'; None where they are."""
    found = loss_node(graph)
    if found is None:
        return None
    node, logits, out, labels = found
    sides = []
    golden_labels = _labels(labels, logits, out, "golden")
    for side in ("target", "golden"):
        x, y = loaded(getattr(logits, side)), loaded(getattr(out, side))
        ids = _labels(labels, None, out, side)
        ids = golden_labels if ids is None else ids
        if x is None or y is None or ids is None:
            return None
        sides.append(losses_of(x, ids, y))
    t, g = sides
    if t is None or g is None:
        return None
    causes = loss_causes(t, g, _shape(out))
    return (node, out, causes) if causes else None


def reported_loss(
    graph: Sequence[Node], losses: tuple[float, float] | None, sizes: Mapping[str, float]
) -> Finding | None:
    """Find a reported loss that is not the mean of the tokens' losses dumped, where golden's is."""
    found = loss_node(graph)
    if found is None or losses is None:
        return None
    node, _, out, _ = found
    t, g = loaded(out.target), loaded(out.golden)
    if t is None or g is None or not t.mean() or not g.mean():
        return None
    mine, other = losses[0] / float(t.mean()), losses[1] / float(g.mean())
    if not np.isfinite(mine) or abs(other - 1) > _MEAN or abs(mine - 1) <= 4 * _MEAN:
        return None
    means = _other_means(t, losses[0], sizes)
    names = name_ratio(mine, sizes, quantity="loss") if mine > 0 else ()
    said = means or (names[0].text if names else "")
    text = f"the reported loss is {mine:.6g} times the mean of the tokens' losses dumped{f': {said}' if said else ''}"
    kind = kinds.MISSING_REDUCTION if "not reduced" in means else kinds.SCALED
    cause = Cause(kind, 0.93 if means else 0.85, text)
    return own_finding(node, out, FORWARD, (cause,))


def _other_means(losses: Floats, reported: float, sizes: Mapping[str, float]) -> str:
    """Say of which tokens the reported loss is the mean or the sum; of parts that the layout deals alone."""
    if abs(reported / losses.sum() - 1) < _MEAN:
        return "it is their sum"
    for parts in _parts(sizes, "dp", "micro_batches"):
        if losses.ndim > 1 and losses.shape[0] % parts == 0:
            means = losses.reshape(parts, -1).mean(axis=1)
            for i, mean in enumerate(means):
                if abs(reported / mean - 1) < _MEAN:
                    return f"it is the mean of part {i} of {parts} of the batch: of one rank or micro-batch, not of all"
    part = _part_of_sum(losses, reported, sizes)
    if part:
        return part
    return "it is their median" if abs(reported / float(np.median(losses)) - 1) < _MEAN else ""


def _parts(sizes: Mapping[str, float], *groups: str) -> tuple[int, ...]:
    """Return into how many parts groups, and all of them together, deal tokens; guesses where no size is known."""
    if not sizes:
        return (2, 4, 8, 16)
    own = [int(sizes.get(g, 1)) for g in groups]
    return tuple(sorted({n for n in (*own, prod(own)) if n > 1}))


def _part_of_sum(losses: Floats, reported: float, sizes: Mapping[str, float]) -> str:
    """Say which rank's sequences or positions alone were summed, and divided by the tokens of all."""
    groups = (("dp", "micro_batches"), ("cp", "tp")) if losses.ndim > 1 else (("dp", "cp"),)
    for axis, parts in ((a, n) for a, g in enumerate(groups) for n in _parts(sizes, *g)):
        what = "batch" if axis == 0 and losses.ndim > 1 else "positions"
        if losses.shape[axis] % parts == 0:
            pieces = np.split(losses, parts, axis=axis)
            found = [float(p.sum()) / losses.size for p in pieces]
            halves = np.split(losses, 2 * parts, axis=axis) if losses.shape[axis] % (2 * parts) == 0 else []
            zigzag = [
                float(halves[i].sum() + halves[-1 - i].sum()) / losses.size for i in range(len(halves) // 2)
            ]
            for shares, how in ((found, ""), (zigzag, ", dealt zigzag")):
                for i, share in enumerate(shares):
                    if share and abs(reported / share - 1) < _MEAN:
                        return (
                            f"it is the sum over part {i} of {parts} of the {what}{how} alone, over the tokens of all: "
                            "one rank's share, not reduced over ranks"
                        )
    return ""


def _labels(labels: Compared | None, logits: Compared | None, out: Compared, side: str) -> Array | None:
    """Return a side's labels, as dumped or, where golden's were not, as its losses say."""
    if labels is not None:
        return values(getattr(labels, side))
    if logits is None:
        return None
    x, y = loaded(getattr(logits, side)), loaded(getattr(out, side))
    return None if x is None or y is None else labels_of(x, y)


def _shape(row: Compared) -> tuple[int, ...]:
    g = row.golden
    return g.shape if g is not None and g.shape is not None else ()


def _whole(row: Compared) -> bool:
    g = row.golden
    return g is not None and g.kind == "tensor" and g.dtype.startswith(("int", "uint"))
