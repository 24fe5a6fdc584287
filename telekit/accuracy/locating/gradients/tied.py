"""A weight that several pipeline stages hold a copy of: gradients, states and weights of the copies must be equal.

A tied embedding's copies each make a gradient of their own, and both must step with the sum of the two. After the
sum, and after each update, they are equal to the bit in any precision; what a copy holds in place of the sum is read
from the gradients that the stages made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import loaded
from telekit.accuracy.causes.finding import Cause, Finding, ranked
from telekit.accuracy.causes.rank_causes import complete, piece_slice, pieces
from telekit.accuracy.checks.grids import coarser_grid
from telekit.accuracy.compared import BACKWARD, FORWARD, INPUT, OPTIMIZER, OUTPUT, SETUP, Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.graph.sync import gradient_names, optimizer_row, parameter_name
from telekit.accuracy.locating.gradients.norm import reduced_rows
from telekit.accuracy.locating.walk.beside import Beside, Ranks
from telekit.accuracy.locating.walk.own_finding import own_finding
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.updating.step_causes import Around, explain_step

_EMBEDS = ("embed", "output_layer", "lm_head")
_SUM = 0.01  # relative: what rounding of the stages' gradients may leave of their sum
_FACTOR = 0.02
_STATES = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Tie:
    """Two names of one weight: golden's rows of it in the forward, and the parameters' names."""

    first: str
    copy: str
    weight: Compared
    copy_weight: Compared

    def of_copy(self, name: str) -> str:
        """Return the name that the copy's tensor has where the first's is known."""
        return name.replace(self.first, self.copy)


def ties(graph: Sequence[Node]) -> Iterator[Tie]:
    """Find weights that golden holds as one under two names."""
    seen: list[tuple[str, Compared, Floats]] = []
    for node in graph:
        for row in node.parameters if node.phase == FORWARD else ():
            g = loaded(row.golden) if any(w in node.base.lower() for w in _EMBEDS) else None
            if g is None or g.ndim != 2:
                continue
            name = gradient_names(node, row)
            for other, weight, h in seen:
                if g.shape == h.shape and np.array_equal(g, h):
                    yield Tie(other, name, weight, row)
            seen.append((name, row, g))


def tied_gradient(graph: Sequence[Node], ranks: Ranks, sizes: Mapping[str, float]) -> Finding | None:
    """Find copies whose reduced gradients differ, are both another sum than golden's, or their mean."""
    rows = reduced_rows(graph)
    for tie in ties(graph):
        if tie.first not in rows:
            continue
        node, row = rows[tie.first]
        pair = _both(tie, row, ranks)
        if pair is None:
            continue
        made = _made(graph, tie)
        golden = loaded(row.golden)
        if not np.array_equal(*pair):
            cause = _apart(tie, pair, made["target"], golden)
            at_copy = golden is not None and _near(pair[0], golden)
            return own_finding(_renamed(node, tie) if at_copy else node, row, BACKWARD, (cause,))
        own = _factors(pair[0], made["target"])
        right = None if golden is None else _factors(golden, made["golden"])
        if own is None or right is None or min(right) < 1 - _FACTOR:
            continue
        text = f"both copies of the weight step with {_said(tie, own)}, golden with {_said(tie, right)}"
        if min(map(abs, own)) <= _FACTOR:
            return own_finding(node, row, BACKWARD, (Cause(kinds.MISSING_REDUCTION, 0.96, text),))
        if max(abs(f - 0.5) for f in own) <= _FACTOR and not _all_scaled(rows, tie):
            cause = Cause(kinds.GRADIENT_SCALING, 0.96, f"{text}: {_averaged(sizes)}")
            return own_finding(node, row, BACKWARD, (cause,))
    return None


def _averaged(sizes: Mapping[str, float]) -> str:
    """Say over what two copies' gradients may have been averaged; groups of two ranks cannot be told from it."""
    two = " or ".join(name for name in ("dp", "cp", "tp", "ep") if sizes.get(name) == 2)
    also = f" (or divided by {two}, of 2 ranks as well)" if two else ""
    return f"averaged over the two pipeline stages that hold a copy, in place of summed{also}; other weights are not"


def _all_scaled(rows: Mapping[str, tuple[Node, Compared]], tie: Tie) -> bool:
    """Whether the other weights' reduced gradients are half of golden's too."""
    ratios = []
    for name, (_, row) in rows.items():
        t, g = loaded(row.target), loaded(row.golden)
        if name not in (tie.first, tie.copy) and t is not None and g is not None and g.any():
            ratios.append(float(np.linalg.norm(t)) / float(np.linalg.norm(g)))
    return bool(ratios) and abs(float(np.median(ratios)) - 0.5) < 0.1


def tied_update(graph: Sequence[Node], beside: Beside) -> Finding | None:
    """Find copies that an update leaves unequal, or that were unequal before it."""
    for tie in ties(graph):
        node = next((n for n in graph if n.phase == OPTIMIZER and parameter_name(n) == tie.first), None)
        if node is None:
            continue
        for part, keys in ((INPUT, ("parameter", *_STATES, "grad")), (OUTPUT, (*_STATES, "parameter"))):
            for key in keys:
                row = optimizer_row(node, key, part)
                pair = None if row is None else _both(tie, row, beside.ranks)
                if row is not None and pair is not None and not np.array_equal(*pair):
                    phase, causes = _of_update(node, tie, key, part, pair, beside)
                    return own_finding(_renamed(node, tie), row, phase, causes)
    return None


def _both(tie: Tie, row: Compared, ranks: Ranks) -> tuple[Floats, Floats] | None:
    """Return a tensor of the first and of the copy, each joined from its ranks; None where one is not known."""
    first = _whole(row.name, tie.weight, row, ranks)
    copy = _whole(tie.of_copy(row.name), tie.copy_weight, row, ranks)
    return None if first is None or copy is None or first.shape != copy.shape else (first, copy)


def _whole(name: str, weight: Compared, row: Compared, ranks: Ranks) -> Floats | None:
    """Join the ranks' tensors of a name as their weights are pieces of golden's; of replicas the first counts."""
    golden = loaded(weight.golden)
    own = {t.rank: t for t in ranks.get((row.step, name), [])}
    both = [(wide(t), wide(own[t.rank])) for t in ranks.get((weight.step, weight.name), []) if t.rank in own]
    weights = [w for w, a in both if w is not None and a is not None]
    held = [a for w, a in both if w is not None and a is not None]
    if golden is None or not held or len(held) < len(own):
        return None
    found = pieces(weights, golden)
    if not complete(found):
        return None
    whole = np.zeros(golden.shape)
    for piece, (_, at) in found.items():
        array = held[at[0]]
        where = piece_slice(piece, golden) if piece else ...
        if array.shape != whole[where].shape:
            return None
        whole[where] = array
    return whole


def _near(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and float(np.linalg.norm(a - b)) <= _FACTOR * float(np.linalg.norm(b))


def _renamed(node: Node, tie: Tie) -> Node:
    return replace(node, base=tie.of_copy(node.base))


def _made(graph: Sequence[Node], tie: Tie) -> dict[str, list[Floats]]:
    """By side: the gradients that the stages made of their copies, the first's and the copy's."""
    rows = {gradient_names(n, r): r for n in graph if n.kind == "gradient" for r in n.outputs}
    own = [rows[name] for name in (tie.first, tie.copy) if name in rows]
    return {
        side: [a for r in own if (a := loaded(getattr(r, side))) is not None] for side in ("target", "golden")
    }


def _factors(whole: Floats, made: Sequence[Floats]) -> tuple[float, float] | None:
    """Return how many times each stage's gradient is in a reduced one; None where it is no such sum."""
    size = float(np.linalg.norm(whole))
    if len(made) != 2 or any(a.shape != whole.shape for a in made) or not size:
        return None
    matrix = np.stack([a.ravel() for a in made], axis=1)
    found, *_ = np.linalg.lstsq(matrix, whole.ravel(), rcond=1e-9)
    left = float(np.linalg.norm(matrix @ found - whole.ravel())) / size
    return (float(found[0]), float(found[1])) if left <= _SUM else None


def _said(tie: Tie, factors: tuple[float, float]) -> str:
    a, b = (round(x, 3) + 0.0 for x in factors)
    return f"{a:g} times the gradient of {tie.first} and {b:g} times that of {tie.copy}"


def _apart(tie: Tie, pair: tuple[Floats, Floats], made: Sequence[Floats], golden: Floats | None) -> Cause:
    """Say what each copy's gradient is of those that the stages made."""
    said = f"the copies {tie.first} and {tie.copy} of one weight have different gradients after the reduction"
    found = [_factors(a, made) for a in pair]
    both = [(n, f) for n, f in zip((tie.first, tie.copy), found, strict=True) if f is not None]
    if len(both) == 2:
        texts = "; ".join(f"{n} steps with {_said(tie, f)}" for n, f in both)
        lost = any(min(map(abs, f)) < _FACTOR for _, f in both)
        kind = kinds.MISSING_REDUCTION if lost else kinds.GRADIENT_SCALING
        return Cause(kind, 0.96, f"{said}: {texts}, where each must have their sum")
    right = [
        n for n, a in zip((tie.first, tie.copy), pair, strict=True) if golden is not None and _near(a, golden)
    ]
    which = f"; {right[0]}'s alone is golden's" if len(right) == 1 else ""
    return Cause(kinds.MISSING_REDUCTION, 0.93, f"{said}{which}: the sum over the copies does not reach both")


def _of_update(
    node: Node, tie: Tie, key: str, part: str, pair: tuple[Floats, Floats], beside: Beside
) -> tuple[str, tuple[Cause, ...]]:
    """Return phase and causes of copies that differ around an update."""
    off = float(np.linalg.norm(pair[0] - pair[1])) / max(float(np.linalg.norm(pair[0])), 1e-300)
    said = f"the copies {tie.first} and {tie.copy} of one weight differ by {off:.3g} in {key}"
    if part == INPUT:
        if key == "grad":
            text = f"{said} though their reduced gradients are equal: they are clipped or scaled apart"
            return OPTIMIZER, (Cause(kinds.CLIPPING, 0.85, text),)
        phase = OPTIMIZER if beside.before else SETUP
        grid = coarser_grid(pair[1], pair[0]) or coarser_grid(pair[0], pair[1])
        if grid is not None:
            text = f"{said} before the step: one of them has only values of {grid.dtype}, it was rounded"
            return phase, (Cause(kinds.WRONG_DTYPE, 0.92, text),)
        kind = kinds.OPTIMIZER_STATE if key in _STATES else kinds.DIFFERENT_WEIGHTS
        return phase, (Cause(kind, 0.93, f"{said} before the step: they were not made the same"),)
    copy = _copy_of(node, tie, beside.ranks)
    causes = explain_step(copy, Around(beside.sizes)) if copy is not None else []
    known = [
        replace(c, text=f"{said}; the step of {tie.copy}: {c.text}")
        for c in causes
        if c.kind != kinds.UNKNOWN
    ]
    return OPTIMIZER, ranked([*known, Cause(kinds.ONE_SHARD, 0.7, f"{said} after the step, not before it")])


def _copy_of(node: Node, tie: Tie, ranks: Ranks) -> Node | None:
    """Return the copy's step beside golden's of the weight."""

    def rows(of: Sequence[Compared]) -> list[Compared]:
        found = []
        for row in of:
            whole = _whole(tie.of_copy(row.name), tie.copy_weight, row, ranks)
            if whole is not None and row.target is not None:
                name = tie.of_copy(row.name)
                target = replace(row.target, name=name, statistics=None, loader=partial(np.asarray, whole))
                found.append(replace(row, name=name, target=target))
        return found

    copy = replace(_renamed(node, tie), inputs=rows(node.inputs), outputs=rows(node.outputs))
    return copy if copy.inputs and copy.outputs else None
