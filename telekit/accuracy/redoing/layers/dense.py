"""Formulas of linear layers, sums, and embeddings, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case
from telekit.accuracy.checks.grids import NARROW
from telekit.accuracy.compared import FORWARD
from telekit.accuracy.measures.pairs import FORMATS, Floats
from telekit.accuracy.redoing.formula.formula import SCALINGS, Formula, Variant, rounded
from telekit.accuracy.redoing.formula.numbers import table_rows
from telekit.accuracy.redoing.formula.orders import as_rows, counts

_FLOPS = 1 << 31


def linear(case: Case) -> Iterator[Formula]:
    """Products of two known tensors: a linear layer, the gradient of its input, that of its weight."""
    g = case.golden
    assert g is not None
    if g.ndim < 2:
        return
    known = [(k, False) for k in case.inputs] + [(k, True) for k in case.parameters]
    for (a, _), (b, weight) in product(known, known):
        x, w = a.golden, b.golden
        if a is b or x is None or w is None or x.ndim < 2 or w.ndim < 2:
            continue
        x, w = as_rows(x), as_rows(w)
        for how, (rows, inner), (deep, columns) in (
            ("x w^T", x.shape, w.T.shape), ("x w", x.shape, w.shape), ("x^T y", x.T.shape, w.shape),
        ):  # fmt: skip
            fits = inner == deep and rows * columns == g.size and columns == g.shape[-1]
            if fits and rows * inner * columns <= _FLOPS:
                make = partial(_product, how, g.shape)
                text = f"the product {how} of {a.name} and {b.name}"
                square = w.shape[0] == w.shape[1] if how != "x^T y" else rows == columns
                variants = partial(_linear_variants, case, how, g.shape, square)
                yield Formula(text, (a, b), make, variants, (1,) if weight else (), once=weight)


def _product(how: str, shape: tuple[int, ...], x: Floats, w: Floats) -> Floats:
    x, w = as_rows(x), as_rows(w)
    value = x.T @ w if how == "x^T y" else x @ (w.T if how == "x w^T" else w)
    return np.asarray(value.reshape(shape))


def _linear_variants(case: Case, how: str, shape: tuple[int, ...], square: bool) -> Iterator[Variant]:
    if square and how == "x^T y":
        yield kinds.PERMUTATION, "the result transposed", lambda x, w: _product(how, shape, x, w).T
    elif square:
        other = "x w" if how == "x w^T" else "x w^T"
        yield kinds.PERMUTATION, "the weight transposed", partial(_product, other, shape)
    own = [d for d in NARROW if d.startswith("float8") or FORMATS[d].epsilon > 2 * case.epsilon]
    for (n, name), dtype in product(counts(case, "tp", "etp"), own if how != "x^T y" else ()):
        for scaling in SCALINGS:
            of, by = (f" ({name})" if name else ""), (f", scaled {scaling}," if scaling else "")
            text = f"the terms of {n} ranks{of} rounded{by} to {dtype} before they are added"
            yield kinds.WRONG_DTYPE, text, partial(_of_rounded_terms, case, how, shape, n, dtype, scaling)


def _of_rounded_terms(
    case: Case, how: str, shape: tuple[int, ...], n: int, dtype: str, scaling: str, x: Floats, w: Floats
) -> Floats:
    """Each rank's term of a product, held as the run holds it, rounded, and added."""
    held = next((d for d in ("bfloat16", "float16") if FORMATS[d].epsilon == case.epsilon), "float32")
    left, right = as_rows(x), as_rows(w).T if how == "x w^T" else as_rows(w)
    terms = [a @ b for a, b in zip(np.split(left, n, axis=1), np.split(right, n), strict=True)]
    return np.asarray(sum(rounded(rounded(t, held), dtype, scaling) for t in terms)).reshape(shape)


def sums(case: Case) -> Iterator[Formula]:
    """Add two inputs, or hand one on as it is (the gradient of each term of a sum)."""
    g = case.golden
    assert g is not None
    same = [k for k in case.inputs if k.golden is not None and k.golden.shape == g.shape]
    for a in same[:6]:
        yield Formula(f"{a.name} handed on as it is", (a,), lambda a: a, hands_on=True)
    if case.phase == FORWARD:
        for i, a in enumerate(same[:4]):
            for b in same[i + 1 : 4]:
                yield Formula(
                    f"{a.name} plus {b.name}", (a, b), lambda a, b: a + b, partial(_sum_variants, case)
                )


def _sum_variants(case: Case) -> Iterator[Variant]:
    for n in sorted({2, *(n for n, _ in counts(case))}):
        of = f"counted {n} times, not once (as where each rank adds it before the sum)"
        yield kinds.EXTRA_TERM, f"its second input {of}", lambda a, b, n=n: a + n * b
        yield kinds.EXTRA_TERM, f"its first input {of}", lambda a, b, n=n: n * a + b
    yield kinds.SIGN, "the difference", lambda a, b: a - b
    yield kinds.SIGN, "the difference the other way", lambda a, b: b - a
    yield kinds.SCALED, "the mean of the two", lambda a, b: (a + b) / 2
    yield kinds.SCALED, "the sum over the root of 2", lambda a, b: (a + b) / np.sqrt(2)
    yield kinds.NORMALISATION, "the product", lambda a, b: a * b


def embeddings(case: Case) -> Iterator[Formula]:
    """Rows of a table by token ids, and the gradient of the table."""
    g = case.golden
    assert g is not None
    if not any(w in case.words for w in _TABLES):
        return
    if case.phase == FORWARD:
        for ids, table in product(case.inputs, case.parameters):
            i, w = ids.golden, table.golden
            if w is None or i is None or w.ndim != 2 or g.shape != (*i.shape, w.shape[1]):
                continue
            if table_rows(i, len(w)):
                yield Formula(
                    "the rows of the token ids",
                    (ids, table),
                    _looked_up,
                    partial(_lookup_variants, case),
                    (1,),
                )
    elif g.ndim == 2:
        for ids, up in product(case.inputs, case.inputs):
            i, y = ids.golden, up.golden
            if i is None or y is None or y.shape != (*i.shape, g.shape[1]):
                continue
            if table_rows(i, len(g)):
                yield Formula(
                    "the sum of the gradients of each token", (ids, up), partial(_scattered, len(g)),
                    partial(_scatter_variants, len(g), case),
                )  # fmt: skip


_TABLES = ("embed", "wte", "lookup")


def _looked_up(ids: Floats, table: Floats) -> Floats:
    return np.asarray(table[np.clip(ids.astype(int), 0, len(table) - 1)])


def _lookup_variants(case: Case) -> Iterator[Variant]:
    def extra(n: int, ids: Floats, table: Floats) -> Floats:
        """Each of n ranks answers for tokens it has not, with the first row of its part."""
        owner, first = ids.astype(int) * n // len(table), table[:: len(table) // n]
        return np.asarray(_looked_up(ids, table) + first.sum(axis=0) - first[owner])

    for n, _ in counts(case, "tp"):
        said = f"tokens of other ranks not zeroed, the first row of each of {n} pieces of the table added for them"
        yield kinds.EXTRA_TERM, said, lambda ids, table, n=n: extra(n, ids, table)
    yield (
        kinds.DIFFERENT_INPUTS,
        "each token's number one too high",
        lambda ids, table: _looked_up(ids + 1, table),
    )
    yield (
        kinds.DIFFERENT_INPUTS,
        "each token's number one too low",
        lambda ids, table: _looked_up(ids - 1, table),
    )
    for n, _ in counts(case, "tp"):
        text = f"the table's {n} pieces each looked up as if all began at 0"
        yield kinds.PERMUTATION, text, lambda ids, table, n=n: _looked_up(ids % (len(table) // n), table)


def _scattered(rows: int, ids: Floats, up: Floats) -> Floats:
    found = np.zeros((rows, up.shape[-1]))
    np.add.at(found, np.clip(ids.astype(int).ravel(), 0, rows - 1), as_rows(up))
    return found


def _scatter_variants(rows: int, case: Case) -> Iterator[Variant]:
    def last(ids: Floats, up: Floats) -> Floats:
        found = np.zeros((rows, up.shape[-1]))
        found[ids.astype(int).ravel()] = as_rows(up)
        return found

    def first(ids: Floats, up: Floats) -> Floats:
        return last(ids.ravel()[::-1], as_rows(up)[::-1])

    def mean(ids: Floats, up: Floats) -> Floats:
        times = np.bincount(ids.astype(int).ravel(), minlength=rows)
        return np.asarray(_scattered(rows, ids, up) / np.maximum(times, 1)[:, None])

    def of_each(n: int, ids: Floats, up: Floats) -> Floats:
        parts = zip(np.split(ids, n), np.split(up, n), strict=True)
        return np.asarray(np.sum([last(i, u) for i, u in parts], axis=0))

    for n, _ in counts(case):
        text = f"the last of a token's gradients alone in each of {n} parts of the sequences"
        yield kinds.MISSING_TERM, text, partial(of_each, n)
    yield kinds.MISSING_TERM, "the last of a token's gradients alone", last
    yield kinds.MISSING_TERM, "the first of a token's gradients alone", first
    yield kinds.NORMALISATION, "the mean of a token's gradients, not their sum", mean
