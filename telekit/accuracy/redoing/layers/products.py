"""Products of which only some terms were summed, or whose weight was used otherwise; golden may have a bias besides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.causes.cause_values import agrees, taken_away
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.measures.pairs import Array, Floats
from telekit.accuracy.redoing.formula.numbers import table_rows
from telekit.accuracy.redoing.formula.orders import as_rows, counts

_MOST_ONES = 1 << 26


def product_causes(case: Case) -> Iterator[Cause]:
    """Try a product of which only a part of the inner dimension was summed, or whose weight was used otherwise."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    if g.ndim == 0:
        return
    flat = as_rows(g)
    for how, x, w, left, right in _matrices(case):
        rest = flat - left @ right
        bias = rest.mean(axis=0) if not agrees(left @ right, flat, case) else np.zeros(flat.shape[1])
        if not agrees(left @ right + bias, flat, case):
            continue
        names = f"{x.name} and {w.name}"
        square = right.shape[0] == right.shape[1]
        if square and taken_away(case, (left @ right.T + bias).reshape(g.shape)) > 0.9:
            text = f"the target is the product of {names} with the weight transposed"
            yield Cause(kinds.PERMUTATION, 0.93, text)
        yield from _scattered(case, how, left, right, bias, names)
        yield from _sums(case, how, x, left, right, bias, names)
        return


def _scattered(
    case: Case, how: str, left: Floats, right: Floats, bias: Floats, names: str
) -> Iterator[Cause]:
    """Try each piece of the tokens made from one rank's part of the inner dimension: scattered, never summed."""
    g = case.golden
    assert g is not None
    if how == "x^T y":
        return
    rows = np.arange(len(left)).reshape(g.shape[:-1])
    for (n, name), axis in product(counts(case), range(rows.ndim)):
        if rows.shape[axis] % n or left.shape[1] % n:
            continue
        value = np.zeros((len(left), right.shape[1]))
        inner = np.split(np.arange(left.shape[1]), n)
        for own, part in zip(np.split(rows, n, axis=axis), inner, strict=True):
            at = own.ravel()
            value[at] = left[np.ix_(at, part)] @ right[part] + bias
        share = taken_away(case, value.reshape(g.shape))
        if share > 0.85:
            of = f" ({name})" if name else ""
            text = f"each of {n} pieces of axis {axis} is one rank's own part{of} of the product of {names}"
            yield Cause(kinds.MISSING_REDUCTION, 0.96 * share, f"{text}: scattered without being summed")
            return


def _sums(
    case: Case, how: str, x: Known, left: Floats, right: Floats, bias: Floats, names: str
) -> Iterator[Cause]:
    """Find with which factor each rank's part of the inner dimension counts in the target."""
    t, g = case.target, case.golden
    assert t is not None and g is not None
    for n, name in counts(case):
        for pieces in _inner(how, x, left.shape[1], n):
            parts = np.stack([(left[:, p] @ right[p]).ravel() for p in pieces], axis=1)
            if not np.isfinite(parts).all() or not np.isfinite(t).all():
                continue  # LAPACK would print its complaint
            factors, *_ = np.linalg.lstsq(parts, (t.reshape(-1, t.shape[-1]) - bias).ravel(), rcond=1e-9)
            share = taken_away(case, ((parts @ factors).reshape(-1, t.shape[-1]) + bias).reshape(g.shape))
            if share < 0.85 or np.ptp(factors) < 0.05:
                continue
            of = f" ({name})" if name else ""
            times = (np.round(factors, 3) + 0.0).tolist()
            said = f"inside the product of {names}, the parts of {n}{of} count {times} times"
            if (np.abs(factors) >= 0.03).all():
                yield Cause(kinds.ONE_SHARD, 0.9 * share, f"{said}: one rank's part is scaled")
            elif (
                case.part == "input" and "reduce" in case.words
            ):  # no rank was added yet: micro-batches alone are
                yield Cause(
                    kinds.MISSING_TERM, 0.94 * share, f"{said}: the sum over micro-batches misses some"
                )
            else:
                text = f"{said}: the sum over them is missing, or a part of it"
                yield Cause(kinds.MISSING_REDUCTION, 0.94 * share, text)
            return


def _inner(how: str, x: Known, size: int, n: int) -> Iterator[list[Array]]:
    """Ways to deal the inner dimension to n ranks: aligned pieces; of tokens also along each axis, and zigzag."""
    index = np.arange(size)
    if size % n == 0:
        yield np.split(index, n)
    if how != "x^T y" or x.golden is None or x.golden.ndim < 3:
        return
    grid = index.reshape(x.golden.shape[:-1])
    if len(grid) % n == 0:  # sequences dealt in turn
        yield [grid[k::n].ravel() for k in range(n)]
    for axis in range(1, grid.ndim):
        if grid.shape[axis] % n == 0:
            yield [part.ravel() for part in np.split(grid, n, axis=axis)]
        if grid.shape[axis] % (2 * n) == 0:  # context parallel deals positions zigzag
            parts = np.split(grid, 2 * n, axis=axis)
            yield [np.concatenate([parts[k].ravel(), parts[2 * n - 1 - k].ravel()]) for k in range(n)]


def _matrices(case: Case) -> Iterator[tuple[str, Known, Known, Floats, Floats]]:
    """Pairs whose product is golden, as (rows, inner) and (inner, columns)."""
    g = case.golden
    assert g is not None
    if g.ndim < 2:
        return
    flat = as_rows(g)
    known = [*case.inputs, *case.parameters]
    for x, w in product(known, known):
        if x is w or x.golden is None or w.golden is None or x.golden.ndim < 2 or w.golden.ndim < 2:
            continue
        a, b = as_rows(x.golden), as_rows(w.golden)
        options = (("x w^T", a, b.T), ("x w", a, b), ("x^T y", a.T, b))
        for how, left, right in options:
            fits = left.shape[1] == right.shape[0] and (left.shape[0], right.shape[1]) == flat.shape
            if fits and left.size * right.shape[1] <= 1 << 31:
                yield how, x, w, left, right
    yield from _looked_up(case, flat)


def _looked_up(case: Case, golden: Floats) -> Iterator[tuple[str, Known, Known, Floats, Floats]]:
    """Gradients of an embedding as a product: one column of ones and zeros for each row of the table."""
    if case.phase != "backward" or "embed" not in case.words:
        return
    rows = len(golden)
    ids = [
        (k.name, k.golden)
        for k in case.inputs
        if k.golden is not None and k.golden.ndim > 1 and table_rows(k.golden, rows)
    ]
    for (name, x), y in product([*ids, *_read_back(case, golden)], case.inputs):
        if y.golden is None or y.golden.shape != (*x.shape, golden.shape[1]) or y.name == name:
            continue
        if x.size * rows <= _MOST_ONES:
            ones = (x[..., None] == np.arange(rows)).astype(np.float64)
            yield (
                "x^T y",
                Known(name, None, ones),
                y,
                ones.reshape(-1, rows).T,
                y.golden.reshape(-1, golden.shape[1]),
            )


def _read_back(case: Case, golden: Floats) -> Iterator[tuple[str, Floats]]:
    """Token ids where they were not dumped: which row of the table each of the embedding's outputs is."""
    for table, out in product(case.parameters, case.inputs):
        if (
            table.golden is None
            or out.golden is None
            or table.golden.shape != golden.shape
            or out.golden.ndim < 3
        ):
            continue
        place = {row.tobytes(): i for i, row in enumerate(table.golden)}
        found = np.array([place.get(row.tobytes(), -1) for row in as_rows(out.golden)], np.float64)
        if found.min() >= 0:
            yield out.name, found.reshape(out.golden.shape[:-1])
