"""Tensors that every rank of a group must hold alike, what a group's sum must be, and what is wrong where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import Any

import numpy as np

from telekit.accuracy.graph.noise import wide
from telekit.accuracy.measures.pairs import Floats, checked
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards.verdict import Verdict, check, conclude, skipped
from telekit.errors import InputError, Problem

_SAME = frozenset({"all_reduce", "all_gather", "broadcast"})
_PARTS = frozenset({"reduce_scatter"})
_CLOSE = 1e-6


def by_name(tensors: Sequence[NamedTensor]) -> dict[tuple[int | None, str], list[NamedTensor]]:
    """Group tensors of many ranks by step and name, in the order of ranks; the shard's name tells where none does."""
    found: dict[tuple[int | None, str], list[NamedTensor]] = {}
    for t in tensors:
        found.setdefault((t.step, t.name), []).append(t)
    return {k: sorted(v, key=lambda t: (t.rank or 0, t.shard)) for k, v in found.items()}


@dataclass(frozen=True)
class Replicas:
    """How alike the replicas are.

    Attributes
    ----------
    equal : bool
        Whether every rank has the same, bit for bit.
    spread : float
        Largest norm of a difference from the first rank over the largest norm.
    groups : tuple of tuple of int
        Ranks that hold the same, in the order of their first.
    """

    equal: bool
    spread: float
    groups: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> str:
        """In words."""
        if self.equal:
            return "all ranks hold the same"
        said = "; ".join(", ".join(map(str, g)) for g in self.groups[:8])
        return f"replicas differ by up to {self.spread:.3g} of their norm; ranks that agree: {said}"


def compare_replicas(arrays: Sequence[Any]) -> Replicas:
    """Compare what each rank holds of one tensor.

    Parameters
    ----------
    arrays : sequence of array_like
        One for each rank, of one shape.

    Raises
    ------
    InputError
        Nothing given, or shapes differ.
    """
    if not len(arrays):
        raise InputError([Problem("arrays", 0, "needs a tensor for each rank")])
    found = [np.asarray(checked(a, a)[0], np.float64) for a in arrays]
    wrong = [
        Problem(f"arrays[{i}]", a.shape, f"must have the shape {found[0].shape} of the first")
        for i, a in enumerate(found)
        if a.shape != found[0].shape
    ]
    if wrong:
        raise InputError(wrong)
    groups: list[list[int]] = []
    for rank, a in enumerate(found):
        home = next((g for g in groups if np.array_equal(found[g[0]], a, equal_nan=True)), None)
        if home is None:
            groups.append([rank])
        else:
            home.append(rank)
    norm = max(float(np.linalg.norm(a.ravel())) for a in found) or 1.0
    spread = max(float(np.linalg.norm((a - found[0]).ravel())) for a in found) / norm
    return Replicas(len(groups) == 1, spread, tuple(tuple(g) for g in groups))


def check_replicas(values: Mapping[str, Sequence[Any]], *, group: str = "tp") -> Verdict:
    """Judge tensors that a group's ranks must hold alike: weights, or reduced gradients, that are not split.

    Parameters
    ----------
    values : mapping of str to sequence of array_like
        By tensor: what each rank has.
    group : str
        What to call the group.

    Returns
    -------
    Verdict
        A part for each tensor; one that differs names the missing reduction.
    """
    parts = []
    for name, arrays in values.items():
        found = compare_replicas(arrays)
        note = "" if found.equal else f"missing {group.upper()} all-reduce: {found.text}"
        parts.append(check(name, found.spread, found.equal, "equal on all ranks", note=note))
    return conclude(
        parts, "replicas", "Megatron-LM issue 1446: a replicated weight's gradient is equal on all ranks"
    )


def unequal(group: Sequence[NamedTensor], merged: NamedTensor, golden: NamedTensor) -> str:
    """Say how replicas differ, and which reduction of them gives golden; empty where they are equal or not known.

    Terms of a sum differ by right: where what was merged is none of them, they are terms.
    """
    found = [a for a in (wide(t) for t in group) if a is not None]
    whole, target = wide(golden), wide(merged)
    if len(found) < 2 or whole is None or target is None or any(a.shape != whole.shape for a in found):
        return ""
    if not any(np.array_equal(a, target, equal_nan=True) for a in found):
        return ""
    result = compare_replicas(found)
    if result.equal:
        return ""
    how = reduction_of(found, whole)
    return result.text + (f"; {how} is golden" if how else "")


def reduction_of(arrays: Sequence[Floats], golden: Floats, noise: float = 0.02) -> str:
    """Name what of the ranks' tensors gives golden: ``their sum``, ``their mean``, or nothing."""
    total = np.sum(arrays, axis=0)
    norm = float(np.linalg.norm(golden.ravel()))
    if not norm:
        return ""
    for how, value in (("their sum", total), ("their mean", total / len(arrays))):
        if float(np.linalg.norm((value - golden).ravel())) <= noise * norm:
            return how
    matrix = np.stack([a.ravel() / norm for a in arrays], axis=1)
    weights, *_ = np.linalg.lstsq(matrix, golden.ravel() / norm, rcond=1e-9)
    left = float(np.linalg.norm(matrix @ weights - golden.ravel() / norm))
    alike = weights.min() > 0 and weights.max() < 2 * weights.min()
    return "a sum of them, each with a factor near the others'," if left <= noise and alike else ""


def check_collective(name: str, outputs: Sequence[Any], *, total: Any = None) -> Verdict:
    """Judge a collective's outputs over its group.

    Parameters
    ----------
    name : str
        ``all_reduce``, ``all_gather``, ``broadcast``: outputs must be equal; ``reduce_scatter``: different parts.
    outputs : sequence of array_like
        One for each rank.
    total : array_like, optional
        What the parts of a reduce-scatter must make together, along axis 0.

    Raises
    ------
    InputError
        A collective that is not known.

    Notes
    -----
    msprobe's check of merged results of many ranks.
    """
    source = "Ascend/msprobe: merged results of many ranks"
    if name in _SAME:
        found = compare_replicas(outputs)
        part = check(name, found.spread, found.equal, "equal on all ranks", note=found.text)
        return conclude([part], "collectives", source)
    if name not in _PARTS:
        raise InputError([Problem("name", name, f"must be one of {', '.join(sorted(_SAME | _PARTS))}")])
    arrays = [np.asarray(checked(a, a)[0], np.float64) for a in outputs]
    alike = [
        f"{i} and {j}"
        for j in range(len(arrays))
        for i in range(j)
        if np.array_equal(arrays[i], arrays[j]) and arrays[i].any()
    ]
    parts = [check("parts", len(alike), not alike, "different on all ranks", note=", ".join(alike))]
    if total is None:
        parts.append(skipped("sum", "the parts together", "the whole is not given"))
    else:
        whole, joined = np.asarray(total, np.float64), np.concatenate(arrays)
        same = joined.shape == whole.shape and np.allclose(joined, whole, rtol=0.02, atol=0)
        parts.append(check("sum", joined.shape, bool(same), f"together the whole of {whole.shape}"))
    return conclude(parts, "collectives", source)


@dataclass(frozen=True)
class SharedGradient:
    """A gradient that pipeline stages share, as it should be and as it is.

    Attributes
    ----------
    expected : float
        Mean over dp of the sum over pp.
    explanations : tuple of str
        For each observed value that is not the expected one: which stage's mean over dp was missing.
    equal : bool
        Whether all observed values are the expected one.
    """

    expected: float
    explanations: tuple[str, ...]
    equal: bool


def shared_gradient(local: Any, observed: Sequence[float]) -> SharedGradient:
    """Check the gradient of a weight that several pipeline stages hold (a tied embedding).

    Parameters
    ----------
    local : array_like, shape (pp, dp)
        Each rank's own gradient.
    observed : sequence of float
        What ranks hold after all reductions.

    Notes
    -----
    Megatron-LM issue 844: with a distributed optimizer the sum over stages ran before the mean over dp was there
    on all of them, so that one stage's own gradient was summed with the other's mean.

    Examples
    --------
    >>> shared_gradient([[1, 2], [4, 8]], [7.0, 9.5]).expected
    7.5
    """
    grid = np.asarray(local, np.float64)
    means = grid.mean(axis=1)
    expected = float(means.sum())
    options: dict[float, str] = {}
    for own in product((None, *range(grid.shape[1])), repeat=grid.shape[0]):
        value = sum(float(means[p] if d is None else grid[p, d]) for p, d in enumerate(own))
        said = [f"stage {p} gave rank {d}'s own gradient" for p, d in enumerate(own) if d is not None]
        options.setdefault(round(value, 9), " and ".join(said))
    found = []
    for value in observed:
        if abs(value - expected) > _CLOSE * max(abs(expected), 1e-30):
            why = options.get(round(float(value), 9), "no missing mean explains it")
            found.append(f"{value:g} instead of {expected:g}: {why}")
    return SharedGradient(expected, tuple(found), not found)


def left_out(norms: Mapping[str, float], reported: float, *, tolerance: float = 1e-4) -> tuple[str, ...]:
    """Name parameters whose absence (or repetition) explains a reported total norm.

    Parameters
    ----------
    norms : mapping of str to float
        Norm by parameter (or group); the total is the root of the sum of squares.
    reported : float
        What the run logged.
    tolerance : float
        Relative, of the total.

    Returns
    -------
    tuple of str
        Empty where the total agrees; one ``... is left out`` or ``... is counted n times`` for each that fits;
        ``unexplained`` where none does.
    """
    squares = {name: value * value for name, value in norms.items()}
    total = sum(squares.values())
    if abs(reported - sqrt(total)) <= tolerance * sqrt(total):
        return ()
    found = []
    for name, square in squares.items():
        if square <= 0:
            continue
        times = (reported * reported - (total - square)) / square
        whole = round(times)
        if (
            whole != 1
            and 0 <= whole <= 64
            and abs(sqrt(total + (whole - 1) * square) - reported) <= tolerance * reported
        ):
            found.append(f"{name} is left out" if whole == 0 else f"{name} is counted {whole} times")
    return tuple(found) or ("unexplained",)


def invariant_to_split(contributions: Mapping[str, float], *, tolerance: float = 0.01) -> Verdict:
    """Judge a loss term that must not depend on the layout (a load-balancing loss).

    Parameters
    ----------
    contributions : mapping of str to float
        The term's value, or its gradient's norm, by layout; the first is the reference.
    """
    items = list(contributions.items())
    if not items:
        raise InputError([Problem("contributions", 0, "needs a value for each layout")])
    base = items[0][1]
    parts = [
        check(name, v / base if base else None, bool(base) and abs(v / base - 1) <= tolerance, f"= {items[0][0]}'s",
              note="the effective coefficient depends on the split")
        for name, v in items[1:]
    ]  # fmt: skip
    return conclude(parts, "split invariance", "Megatron-LM pull requests 3768 and 3672")
