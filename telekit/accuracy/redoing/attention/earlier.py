"""Queries and keys as they were before attention got them: not yet turned or normalised, or turned once more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import EARLIER, Case, Known
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.attention.angles import turn_of, turned
from telekit.accuracy.redoing.formula.formula import own_side, relative

_LAYER = re.compile(r"^.*?\.(?:layers?|h|blocks?)\.\d+\.")
_MOST = 6
_IS_TURN = 0.05  # relative: what a turn by angles of positions leaves at most
Option = tuple[str, str, Floats]
"""Class of the fault, what it is in words, and the tensor."""


def earlier_activations(case: Case, inputs: tuple[Known, ...]) -> Iterator[tuple[str, str, list[Floats]]]:
    """Return queries, keys and values with earlier tensors of their layer in place of the first two, or of one.

    Yields
    ------
    (str, str, list of ndarray)
        Class, words, and the three tensors.
    """
    own = [own_side(k) for k in inputs]
    options = [[None, *_options(case, inputs[at])] for at in (0, 1)]
    for of_q, of_k in product(*options):
        taken = [o for o in (of_q, of_k) if o is not None]
        if not taken:
            continue
        used = [o[2] if o is not None else x for o, x in zip((of_q, of_k), own[:2], strict=True)]
        said = " and ".join(
            f"{o[1]} as {what}" for o, what in ((of_q, "queries"), (of_k, "keys")) if o is not None
        )
        kind = taken[0][0] if len({o[0] for o in taken}) == 1 else kinds.DIFFERENT_INPUTS
        yield kind, said, [*used, *own[2:]]


def _options(case: Case, known: Known) -> Iterator[Option]:
    """Return other tensors of the shape from the same layer's forward, and the own one turned once more."""
    own, layer = own_side(known), _LAYER.match(known.name)
    if layer is None or case.pool is None:
        return
    found = case.pool(
        lambda row: (
            row.name.startswith(layer[0]) and ".forward." in row.name and row.golden is not None
            and row.golden.shape == own.shape
        )
    )  # fmt: skip
    others = [k for k in found if not k.name.endswith(EARLIER) and not np.array_equal(own_side(k), own)][
        :_MOST
    ]
    for other in others:
        kind = _kind_of(other.name)
        yield kind, f"{other.name}{' (not turned)' if kind == kinds.ROTARY else ''}", own_side(other)
    for other, how in product(
        others, ("halves", "neighbours") if own.ndim == 4 and not own.shape[-1] % 2 else ()
    ):
        turn = turn_of(own, own_side(other), how)
        if relative(turned(turn, how, own_side(other)), own) < _IS_TURN:
            yield kinds.ROTARY, f"{known.name} turned twice", turned(turn, how, own)


def _kind_of(name: str) -> str:
    """Return what was not done where an operator's input stands in place of its output."""
    words = name.lower()
    if ".input." not in words:
        return kinds.DIFFERENT_INPUTS
    if "rot" in words or "rope" in words:
        return kinds.ROTARY
    return kinds.NORMALISATION if "norm" in words else kinds.DIFFERENT_INPUTS
