"""Operators whose backward had other activations than their forward: recomputed from those of another layer or batch.

All activations of an operator are taken together: what is recomputed wrongly is wrong in each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.compared import BACKWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.formula import MAX_ELEMENTS, Proven, own_side, relative
from telekit.accuracy.redoing.formula.orders import counts

_BATCHES = ("dp", "micro_batches")


def recomputed_causes(case: Case, found: Proven) -> Iterator[Cause]:
    """Try a backward's formula with all its forward's tensors taken from elsewhere at once."""
    t, inputs = case.target, found.formula.inputs
    own = [own_side(k) for k in inputs]
    at = [i for i, k in enumerate(inputs) if ".forward." in k.name and i not in found.formula.weights]
    if t is None or case.phase != BACKWARD or not at or max(a.size for a in own) > MAX_ELEMENTS:
        return
    best: tuple[float, str, str] | None = None
    for kind, text, others in other_activations(case, inputs, at):
        used = list(own)
        for i, other in zip(at, others, strict=True):
            used[i] = other
        value = found.formula.make(*used)
        left = relative(value, t) if value.shape == t.shape else np.inf
        if left <= found.reach and left <= found.own_error / 3 and (best is None or left < best[0] / 2):
            best = left, kind, text
    if best is not None:
        left, kind, text = best
        tail = f"({left:.2g} of it is left, {found.own_error:.2g} without the change)"
        yield Cause(kind, 0.96, f"{found.formula.name} is the target's with {text} {tail}")


Others = tuple[str, str, list[Floats]]
"""Class, words, and the tensors in place of an operator's own."""


def other_activations(case: Case, inputs: tuple[Known, ...], at: list[int]) -> Iterator[Others]:
    """Return what may stand in place of those of the inputs that are named by their places, of all at once."""
    yield from _of_other_layers(case, inputs, at)
    yield from _of_other_batches(case, [own_side(k) for k in inputs], at)


def _like(name: str) -> str:
    """Return a name without its layer's number."""
    return re.sub(r"\.(layers?|h|blocks?)\.\d+\.", r".\1.#.", name.removesuffix(EARLIER))


def _of_other_layers(case: Case, inputs: tuple[Known, ...], at: list[int]) -> Iterator[Others]:
    """Return the same tensors of other layers, and of the step before."""
    names = {_like(inputs[i].name) for i in at}
    found = case.pool(lambda row: _like(row.name) in names) if case.pool is not None else ()
    by_name = {k.name: k for k in found}
    own_names = {k.name for k in inputs}
    groups: dict[str, dict[str, Known]] = {}
    for name, known in by_name.items():
        if name not in own_names:
            layer = re.search(r"\.(?:layers?|h|blocks?)\.(\d+)\.", name)
            tag = "the step before" if name.endswith(EARLIER) else f"layer {layer[1] if layer else '?'}"
            groups.setdefault(tag, {})[_like(name)] = known
    for tag, of in groups.items():
        others = [of.get(_like(inputs[i].name)) for i in at]
        values = [own_side(k) for k in others if k is not None and k.golden is not None]
        if len(values) == len(at):
            kind = kinds.STALE if tag == "the step before" else kinds.DIFFERENT_INPUTS
            yield (
                kind,
                f"the forward's tensors of {tag} in place of its own (recomputed from another input)",
                values,
            )


def _of_other_batches(case: Case, own: list[Floats], at: list[int]) -> Iterator[Others]:
    """Return other micro-batches' or replicas' pieces of the sequences."""
    for n, name in counts(case, *_BATCHES):
        if any(own[i].shape[0] % n for i in at):
            continue
        kind = kinds.STALE if "micro_batches" in name else kinds.DIFFERENT_INPUTS
        for said, order in (
            ("the one before", np.roll(np.arange(n), 1)), ("the one after", np.roll(np.arange(n), -1)),
            ("the one before, the first its own", np.maximum(np.arange(n) - 1, 0)),
            ("the first", np.zeros(n, int)), ("the last", np.full(n, n - 1)),
        ):  # fmt: skip
            text = f"the forward's tensors of other pieces of {n} ({name}): for each {said}"
            yield kind, text, [np.concatenate([np.split(own[i], n)[k] for k in order]) for i in at]
