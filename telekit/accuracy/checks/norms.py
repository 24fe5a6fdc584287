"""Which norm a reported gradient norm is: of all gradients, of a rank's, of all but one, of another power, scaled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import isfinite, sqrt

import numpy as np

from telekit.accuracy.checks.grids import share_on_grid
from telekit.accuracy.curves.ratios import name_ratio
from telekit.accuracy.measures.pairs import Floats

_MOST_TIMES = 64


@dataclass(frozen=True)
class OwnGradients:
    """Gradients whose norm was reported.

    Attributes
    ----------
    whole : mapping of str to ndarray
        By parameter: reduced, merged over ranks.
    ranks : sequence of mapping of str to ndarray
        By rank: what each of them holds; empty where that is not known.
    before : sequence of mapping of str to ndarray
        The same before the reduction.
    """

    whole: Mapping[str, Floats]
    ranks: Sequence[Mapping[str, Floats]] = ()
    before: Sequence[Mapping[str, Floats]] = ()

    @cached_property
    def squares(self) -> dict[str, float]:
        """Sum of squares by parameter."""
        return {name: _square(a) for name, a in self.whole.items()}

    @cached_property
    def norm(self) -> float:
        """Root of the sum of all squares."""
        return sqrt(sum(self.squares.values()))


@dataclass(frozen=True)
class NormName:
    """What a reported norm is the norm of; ``likely`` is 0 to 1."""

    text: str
    likely: float


def name_norm(
    reported: float,
    own: OwnGradients,
    sizes: Mapping[str, float],
    tolerance: float,
    golden: float | None = None,
) -> tuple[NormName, ...]:
    """Name a reported norm that is not the gradients'; best first, empty where nothing fits.

    Parameters
    ----------
    reported : float
    own : OwnGradients
    sizes : mapping of str to float
        Of groups; ``loss_scale``.
    tolerance : float
        Relative: what sums in float32 may differ by.
    golden : float, optional
        Golden's reported norm: is it on the grid of a narrower format as well?
    """
    found: list[NormName] = []
    if not isfinite(reported) or reported <= 0 or not own.norm:
        return ()
    for value, name in _norms(own, sizes):
        if value > 0 and abs(reported / value - 1) <= tolerance:
            found.append(name)
    if not found:
        found += _factors(reported, own.norm, sizes, tolerance)
    if not found:
        found += _rounded(reported, own.norm, golden)
    return tuple(sorted(found, key=lambda n: -n.likely))


def _norms(own: OwnGradients, sizes: Mapping[str, float]) -> Iterator[tuple[float, NormName]]:
    yield from _of_groups(own, sizes)
    yield from _of_ranks(own)
    yield from _other_powers(own)
    yield from _counted(own, sizes)


def _of_ranks(own: OwnGradients) -> Iterator[tuple[float, NormName]]:
    """Norms of what ranks hold, with and without what the others hold of some kind of weight."""
    total, squares, kinds = own.norm**2, own.squares, _dealt_kinds(own)
    for rank, held in enumerate(own.ranks):
        mine = {n: _square(a) for n, a in held.items()}
        yield (
            sqrt(sum(mine.values())),
            NormName(
                f"it is the norm of rank {rank}'s own gradients: not reduced over the ranks that hold the others",
                0.95,
            ),
        )
        for what, names in kinds:
            if names and len(names) < len(squares):
                part = total - sum(squares[n] for n in names) + sum(mine.get(n, 0.0) for n in names)
                text = f"of {what} it counts only those of rank {rank}: their part is not reduced"
                yield sqrt(max(part, 0.0)), NormName(text, 0.93)
    for rank, held in enumerate(own.before):
        value = sqrt(sum(_square(a) for a in held.values()))
        yield value, NormName(f"it is the norm of rank {rank}'s gradients before they were reduced", 0.92)
    if len(own.ranks) > 1:
        every = sum(_square(a) for held in own.ranks for a in held.values())
        text = "it sums the squares of every rank, so that what several ranks hold counts several times"
        yield sqrt(every), NormName(text, 0.92)


def _dealt_kinds(own: OwnGradients) -> tuple[tuple[str, list[str]], ...]:
    """Kinds of weight that ranks hold parts of, in words and by name."""
    experts = [n for n in own.whole if "expert" in n and "shared" not in n]
    split = [n for n in own.whole if any(r[n].size < own.whole[n].size for r in own.ranks if n in r)]
    modules: dict[str, list[str]] = {}
    for n in split:
        modules.setdefault(_MODULE.sub("", n), []).append(n)
    modules |= {n: [n] for n in split if [n] not in modules.values()}
    some = ((f"the gradients of {what}", names) for what, names in modules.items())
    return ("the experts' gradients", experts), ("the gradients split over ranks", split), *some


_MODULE = re.compile(r"^.*\.(?:layers?|h|blocks?)\.\d+\.|(?<=experts)\.\d+")
"""What is taken from a weight's name to have its kind of module: the layer and the expert."""


def _of_groups(own: OwnGradients, sizes: Mapping[str, float]) -> Iterator[tuple[float, NormName]]:
    """Norms of what a pipeline stage, or the ranks of one index in tp or ep, hold, of all weights or of a kind.

    Ranks are counted as training frameworks do: tp innermost, then the data ranks that ep is a part of, then stages.
    Of tensors that are equal to the bit one counts.
    """
    tp, ep, pp = (int(sizes.get(name, 1)) for name in ("tp", "ep", "pp"))
    n, total = len(own.ranks), own.norm**2
    at = np.arange(n)
    groups = {"pp": (pp, at * pp // max(n, 1)), "tp": (tp, at % tp), "ep": (ep, at // tp % ep)}
    for name, (size, index) in groups.items():
        for v, but in product(range(size if 1 < size <= n else 0), (False, True) if size > 2 else (False,)):
            mine = _held([held for held, i in zip(own.ranks, index, strict=True) if (i == v) != but])
            one = f"pipeline stage {v}" if name == "pp" else f"the ranks of index {v} in {name}"
            whose = f"all but {one}" if but else one
            text = f"it is the norm of the gradients of {whose} alone: not reduced over {name}"
            yield sqrt(sum(mine.values())), NormName(text, 0.96 if name == "pp" else 0.94)
            for what, names in _dealt_kinds(own):
                part = total - sum(own.squares[k] for k in names) + sum(mine.get(k, 0.0) for k in names)
                text = f"of {what} it counts only those of {whose}: their part is not reduced over {name}"
                if names:
                    yield sqrt(max(part, 0.0)), NormName(text, 0.94)


def _held(ranks: Sequence[Mapping[str, Floats]]) -> dict[str, float]:
    """Sum of squares by parameter of what some ranks hold, each piece once however many of them hold it."""
    pieces: dict[str, dict[bytes, float]] = {}
    for held in ranks:
        for name, array in held.items():
            pieces.setdefault(name, {})[array.tobytes()] = _square(array)
    return {name: sum(of.values()) for name, of in pieces.items()}


def _other_powers(own: OwnGradients) -> Iterator[tuple[float, NormName]]:
    arrays, total = list(own.whole.values()), own.norm
    size = sum(a.size for a in arrays)
    for value, text in (
        (total**2, "it is the sum of squares without the root"),
        (sqrt(total), "it is the root of the norm"),
        (sum(float(np.abs(a).sum()) for a in arrays), "it is the norm of type 1: the sum of absolute values"),
        (max(float(np.abs(a).max(initial=0)) for a in arrays), "it is the norm of type inf: the largest value"),
        (sum(sqrt(s) for s in own.squares.values()), "it is the sum of the weights' norms, not of their squares"),
        (total / sqrt(size), "it is the root of the mean square, not of the sum"),
        (total / sqrt(len(arrays)), "it is the root of the weights' mean square, not of their sum"),
    ):  # fmt: skip
        yield value, NormName(text, 0.93)


def _counted(own: OwnGradients, sizes: Mapping[str, float]) -> Iterator[tuple[float, NormName]]:
    """Norms in which one weight, or one kind of weight, counts no time, several times or a part of once."""
    squares, total = own.squares, own.norm**2
    groups = {"one weight": {n: [n] for n in squares}, "a kind": _kinds(own)}
    factors: dict[float, str] = {0.0: "left out"} | {float(n): f"counted {n} times" for n in range(2, 9)}
    for name, value in sizes.items():
        if 1 < value <= _MOST_TIMES:
            factors[value] = f"counted {value:g} times ({_names(value, sizes) or name})"
            factors[1 / value] = f"counted one {value:g}th ({_names(value, sizes) or name})"
    for which, members in groups.items():
        for what, names in members.items():
            part = sum(squares[n] for n in names)
            if not 0 < part < total * (1 - 1e-9) or part < 1e-6 * total:
                continue
            for factor, said in factors.items():
                simple = 0.95 if factor == 0 or f"({_names(factor, sizes)})" in said else 0.8
                text = f"{what} is {said}" if which == "one weight" else f"{what} are {said}"
                yield sqrt(total + (factor - 1) * part), NormName(text, simple)


def _names(value: float, sizes: Mapping[str, float]) -> str:
    return " or ".join(n for n, s in sizes.items() if s == value and n not in ("tokens", "loss_scale"))


def _kinds(own: OwnGradients) -> dict[str, list[str]]:
    """Kinds of weight by name and by what ranks hold of them."""
    tests: dict[str, Callable[[str], bool]] = {
        "the experts' weights": lambda n: "expert" in n and "shared" not in n,
        "the experts' weights, shared ones too,": lambda n: "expert" in n,
        "weights that are not the experts'": lambda n: "expert" not in n or "shared" in n,
        "norms' weights": lambda n: "norm" in n.lower(),
        "vectors (norms and biases)": lambda n: own.whole[n].ndim < 2,
        "routers' weights": lambda n: "router" in n or ".gate." in n,
        "embedding and output weights": lambda n: "embed" in n or "output_layer" in n or "lm_head" in n,
        "weights that all tensor-parallel ranks hold whole": lambda n: bool(own.ranks) and all(
            r[n].size == own.whole[n].size for r in own.ranks if n in r
        ),
        "weights that are split over ranks": lambda n: any(
            r[n].size < own.whole[n].size for r in own.ranks if n in r
        ),
    }  # fmt: skip
    found = {what: [n for n in own.whole if test(n)] for what, test in tests.items()}
    kept: dict[str, list[str]] = {}
    for what, names in found.items():
        if 1 < len(names) < len(own.whole) and names not in kept.values():
            kept[what] = names
    return kept


def _factors(
    reported: float, norm: float, sizes: Mapping[str, float], tolerance: float
) -> Iterator[NormName]:
    """Norms of gradients times a count: not averaged, still scaled by the loss scale, by a root of ranks."""
    ratio = reported / norm
    for known in name_ratio(ratio, sizes, tolerance=max(tolerance, 1e-4)):
        if known.what not in ("group", "bits"):
            yield NormName(f"it is {ratio:.5g} times the norm of the gradients: {known.text}", 0.88)
    for name, size in sizes.items():
        for root, said in ((sqrt(size), f"root of {name}"), (1 / sqrt(size), f"one over the root of {name}")):
            if size > 1 and abs(ratio / root - 1) <= tolerance:
                yield NormName(f"it is {ratio:.5g} times the norm of the gradients, the {said}", 0.9)
    whole = ratio if ratio > 1 else 1 / ratio
    if abs(whole - round(whole)) <= tolerance * whole and 1 < round(whole) <= _MOST_TIMES:
        yield NormName(f"it is {ratio:.5g} times the norm of the gradients", 0.8)


def _rounded(reported: float, norm: float, golden: float | None) -> Iterator[NormName]:
    for dtype, epsilon in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        on = share_on_grid(np.array([reported]), dtype) == 1
        if (
            on
            and abs(reported / norm - 1) <= epsilon
            and (golden is None or share_on_grid(np.array([golden]), dtype) == 0)
        ):
            yield NormName(f"it is the norm of the gradients rounded to {dtype}", 0.85)


def _square(array: Floats) -> float:
    flat = np.asarray(array, np.float64).ravel()
    return float(np.vdot(flat, flat))
