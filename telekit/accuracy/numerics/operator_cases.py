"""The operators that are tried: inputs they take, sizes worth trying, and what they compute, in any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.measures.pairs import Array, numpy_type
from telekit.accuracy.numerics import operator_formulas as formulas
from telekit.accuracy.numerics.emulate import Arithmetic
from telekit.accuracy.numerics.value_ranges import draw
from telekit.errors import InputError, Problem, bad

Arrays = dict[str, Array]
Shape = Mapping[str, int]
MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class Operator:
    """Something to try.

    Attributes
    ----------
    name, formula : str
        What it is called, and what it computes, in words.
    sizes : mapping of str to tuple of int
        Its dimensions, and sizes that generated cases take: odd ones, ones below and above a block. The last is the
        default shape.
    make : callable
        ``make(shape, values, rng)``: inputs by name; floats in float64 are rounded by who calls, integers stay.
    run : callable
        ``run(arithmetic, **inputs)``: outputs by name.
    api : str
        The short name by which msprobe's checker knows it, which decides its level; nothing if it has none.
    terms : str
        The dimension its longest sum runs over.
    """

    name: str
    formula: str
    sizes: Mapping[str, tuple[int, ...]]
    make: Callable[[Shape, str, np.random.Generator], Arrays]
    run: Callable[..., Arrays]
    api: str = ""
    terms: str = ""

    @property
    def shape(self) -> dict[str, int]:
        """Default shape."""
        return {name: choices[-1] for name, choices in self.sizes.items()}

    def complete(self, shape: Shape | None) -> dict[str, int]:
        """Fill a shape in with defaults.

        Raises
        ------
        InputError
            If a dimension is not the operator's, or not from 1 on, or the inputs would be unreasonably large.
        """
        given = dict(shape or {})
        problems = [
            Problem(f"shape.{n}", v, f"{self.name} has the dimensions {', '.join(self.sizes)}")
            for n, v in given.items()
            if n not in self.sizes
        ]
        problems += [
            Problem(f"shape.{n}", v, "must be a whole number of at least 1", str(self.shape.get(n, 1)))
            for n, v in given.items()
            if not isinstance(v, int) or isinstance(v, bool) or v < 1
        ]
        if problems:
            raise InputError(problems)
        whole = self.shape | given
        largest = sorted(whole.values())[-3:]
        if np.prod([float(n) for n in largest]) > MAX_ELEMENTS:
            raise bad("shape", whole, f"its three largest dimensions make over {MAX_ELEMENTS} elements")
        return whole

    def inputs(self, shape: Shape | None = None, values: str = "normal", seed: int = 0) -> Arrays:
        """Make inputs by name: float64 before rounding, and integers."""
        return self.make(self.complete(shape), values, np.random.default_rng(seed))

    def outputs(self, inputs: Arrays, arithmetic: Arithmetic) -> Arrays:
        """Run it: round the floating inputs to the arithmetic's format, then compute."""
        own = {n: x if x.dtype.kind in "iub" else arithmetic.store(x) for n, x in inputs.items()}
        with np.errstate(all="ignore"):
            return self.run(arithmetic, **own)


_ROWS = (1, 7, 16, 33, 64)
_WIDTHS = (17, 64, 100, 255, 256)
_LONG = (1, 31, 128, 500, 1024)


def _matmul(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    a = draw(values, (s["m"], s["k"]), rng)
    return {"a": a, "b": draw(_other(values), (s["k"], s["n"]), rng, axis=0, mirrored=True)}


def _other(values: str) -> str:
    """Second factor of a product: special values in one factor are enough."""
    return "normal" if values == "special" else values


def _grouped(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    counts = rng.multinomial(s["tokens"], rng.dirichlet(np.ones(s["experts"])))
    w = draw(_other(values), (s["experts"], s["k"], s["n"]), rng, axis=1, mirrored=True)
    return {"x": draw(values, (s["tokens"], s["k"]), rng), "w": w, "counts": counts.astype(np.int64)}


def _rows(*names: str) -> Callable[[Shape, str, np.random.Generator], Arrays]:
    """Rows of one or more inputs that are alike, with the weights of a norm near 1 where it has some."""

    def make(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
        found = {"x": draw(values, (s["rows"], s["width"]), rng)}
        return found | {n: (n == "weight") + 0.1 * rng.standard_normal(s["width"]) for n in names}

    return make


def _rotary(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    x = draw(values, (s["tokens"], s["heads"], 2 * s["half"]), rng)
    return {"x": x, "positions": rng.integers(0, 32768, s["tokens"])}


def _attention(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    shape = (s["heads"], s["tokens"], s["head_dim"])
    q = draw(values, shape, rng)
    k = draw(_other(values), shape, rng, mirrored=True)
    return {"q": q, "k": k, "v": draw(_other(values), shape, rng)}


def _swiglu(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    shape = (s["rows"], s["width"])
    return {"gate": draw(values, shape, rng), "up": draw(_other(values), shape, rng)}


def _router(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    chosen = min(s["top_k"], s["experts"])
    return {"logits": draw(values, (s["tokens"], s["experts"]), rng), "top_k": np.array(chosen)}


def _cross_entropy(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    logits = draw(values, (s["tokens"], s["vocabulary"]), rng)
    return {"logits": logits, "labels": rng.integers(0, s["vocabulary"], s["tokens"])}


def _embedding(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    """Words as uneven as language: some are summed over many tokens."""
    words = (s["vocabulary"] * rng.random(s["tokens"]) ** 3).astype(np.int64)
    grad = draw(values, (s["tokens"], s["width"]), rng, axis=0)
    return {"grad": grad, "words": words, "vocabulary": np.array(s["vocabulary"])}


def _adam(s: Shape, values: str, rng: np.random.Generator) -> Arrays:
    n = (s["elements"],)
    grad, before = draw(values, n, rng), draw(_other(values), n, rng)
    moment = 0.1 * draw(_other(values), n, rng)
    return {"parameter": before, "grad": grad, "first": moment, "second": moment**2 + 1e-8}


_ALL = (
    Operator(
        "matmul",
        "a @ b",
        {"m": _ROWS, "k": _LONG, "n": _ROWS},
        _matmul,
        formulas.matmul,
        "matmul",
        "k",
    ),
    Operator(
        "grouped_matmul",
        "rows of an expert times its matrix",
        {"tokens": _ROWS, "k": _LONG, "n": (1, 17, 32), "experts": (1, 3, 8)},
        _grouped,
        formulas.grouped_matmul,
        "",
        "k",
    ),
    Operator(
        "softmax",
        "exp(x - max) over its sum",
        {"rows": _ROWS, "width": _LONG},
        _rows(),
        formulas.softmax,
        "softmax",
        "width",
    ),
    Operator(
        "layer_norm",
        "(x - mean) / sqrt(variance + 1e-5) * weight + bias",
        {"rows": _ROWS, "width": _LONG},
        _rows("weight", "bias"),
        formulas.layer_norm,
        "layer_norm",
        "width",
    ),
    Operator(
        "rms_norm",
        "x / sqrt(mean of squares + 1e-6) * weight",
        {"rows": _ROWS, "width": _LONG},
        _rows("weight"),
        formulas.rms_norm,
        "npu_rms_norm",
        "width",
    ),
    Operator(
        "rotary",
        "pairs (i, i + half) turned by position * 10000**(-i / half)",
        {"tokens": _ROWS, "heads": (1, 2, 8), "half": (16, 32, 64)},
        _rotary,
        formulas.rotary,
    ),
    Operator(
        "attention",
        "softmax(q k^T / sqrt(head_dim), causal) v",
        {"heads": (1, 2), "tokens": (1, 33, 100, 128), "head_dim": (16, 64)},
        _attention,
        formulas.attention,
        "npu_fusion_attention",
        "tokens",
    ),
    Operator(
        "swiglu", "gate * sigmoid(gate) * up", {"rows": _ROWS, "width": _LONG}, _swiglu, formulas.swiglu
    ),
    Operator(
        "router_topk",
        "softmax of the logits, the largest top_k, rescaled to sum 1",
        {"tokens": _ROWS, "experts": (8, 60, 128), "top_k": (1, 2, 8)},
        _router,
        formulas.router_topk,
        "topk",
        "experts",
    ),
    Operator(
        "cross_entropy",
        "log of the sum of exp less the label's logit; gradient of its mean",
        {"tokens": _ROWS, "vocabulary": (2, 100, 1000)},
        _cross_entropy,
        formulas.cross_entropy,
        "npu_cross_entropy_loss",
        "vocabulary",
    ),
    Operator(
        "embedding_grad",
        "gradients of tokens summed by word",
        {"vocabulary": (2, 16, 64), "tokens": (1, 100, 512), "width": _WIDTHS},
        _embedding,
        formulas.embedding_grad,
        "embedding",
        "tokens",
    ),
    Operator(
        "adam",
        "one step of AdamW: lr 1e-3, betas 0.9 and 0.95, eps 1e-8, decay 0.1, step 10",
        {"elements": (1, 100, 4096)},
        _adam,
        formulas.adam,
    ),
)
OPERATORS = {o.name: o for o in _ALL}


def operator(name: str | Operator) -> Operator:
    """Return an operator by name; one that is given is returned as it is.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if isinstance(name, Operator):
        return name
    if name not in OPERATORS:
        raise bad("operator", name, f"must be one of {', '.join(OPERATORS)}, or an Operator of your own")
    return OPERATORS[name]


def as_dtype(x: Array, dtype: str) -> Array:
    """Turn carried values into an array of the format's own NumPy or ``ml_dtypes`` type; integers stay."""
    return x if x.dtype.kind in "iub" else x.astype(numpy_type(dtype))
