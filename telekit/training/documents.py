"""Lengths of documents, in tokens: published and synthetic distributions, and a user's own.

A distribution is its inverse: the length below which a share of the documents lies. What is drawn from one is a
column of whole numbers, as is what a file holds, and all that packs and balances takes such a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit import catalog
from telekit.errors import InputError, Problem, bad
from telekit.training.length_files import read_lengths

Int = NDArray[np.int64]
Float = NDArray[np.float64]

MAX_LENGTH = 2**30
"""Longest document: the pairs of a few billion tokens still fit a 64-bit integer."""
MAX_DOCUMENTS = 100_000_000
"""Most documents that are drawn or read at once."""
SHOWN = 10
"""Places that a message lists; more are counted."""


@dataclass(frozen=True)
class LengthDistribution:
    """How long documents are.

    Parameters
    ----------
    name : str
        As `distribution` takes it.
    text : str
        What it is, and what of it is assumed.
    source : str
        Where it comes from; ``synthetic`` when it is made up.
    verified : bool
        Whether its numbers were read in the source.
    illustrative : bool
        Whether its shape is assumed and not published.
    mean : float
        Tokens of a mean document, before rounding to whole tokens.
    longest : int
        Tokens of the longest document.
    inverse : callable
        Takes shares of documents (n,) in [0, 1], gives lengths (n,) in tokens, not yet whole.
    """

    name: str
    text: str
    source: str
    verified: bool
    illustrative: bool
    mean: float
    longest: int
    inverse: Callable[[Float], Float]

    def quantile(self, share: ArrayLike) -> Int:
        """Lengths below which these shares of the documents lie, in whole tokens of at least 1; shape of ``share``."""
        try:
            at = np.asarray(share, float)
        except (TypeError, ValueError):
            at = np.full(1, np.nan)
        if not ((at >= 0) & (at <= 1)).all():
            raise bad("share", share, "must be within 0 and 1", "such as 0.99")
        return np.clip(np.rint(self.inverse(at)), 1, self.longest).astype(np.int64)

    def sample(self, n: int, seed: int = 0) -> Int:
        """Draw ``n`` lengths (n,), in tokens; the same seed gives the same ones."""
        if not isinstance(n, int | np.integer) or not 0 <= n <= MAX_DOCUMENTS:
            raise bad("n", n, f"must be a whole number from 0 to {MAX_DOCUMENTS:,}")
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise bad("seed", seed, "must be a whole number from 0", "0 works")
        return self.quantile(np.random.default_rng(seed).random(n))


class Shares(NamedTuple):
    """What documents up to some length are of all: shares of documents, tokens and causal pairs, each in [0, 1]."""

    documents: float
    tokens: float
    pairs: float


def shares_below(lengths: ArrayLike, limit: float) -> Shares:
    """Shares of the documents shorter than ``limit`` tokens; ``lengths`` (documents,) holds at least one."""
    found = checked_lengths(lengths).astype(float)
    if not len(found):
        raise bad("lengths", "none", "at least one document is needed")
    short = found < limit
    pairs = found * (found + 1) / 2
    return Shares(float(short.mean()), *(float(x[short].sum() / x.sum()) for x in (found, pairs)))


def distribution(name: str, **parameters: float) -> LengthDistribution:
    """Make the distribution of that name; ``parameters`` set what a synthetic one leaves open.

    Raises
    ------
    InputError
        An unknown name or parameter, or an impossible value.
    """
    import inspect

    if name not in DISTRIBUTIONS:
        raise bad("distribution", name, f"must be one of {', '.join(DISTRIBUTIONS)}")
    make = DISTRIBUTIONS[name]
    known = inspect.signature(make).parameters
    unknown = [
        Problem(key, value, f"no such parameter of {name}", f"it takes {', '.join(known) or 'none'}")
        for key, value in parameters.items()
        if key not in known
    ]
    if unknown:
        raise InputError(unknown)
    return make(**parameters)


def _wlb() -> LengthDistribution:
    row = next(
        r for r in catalog.load(catalog.root() / "measurements/packing.json") if r["id"] == "lengths_wlbllm"
    )
    grid = row["quantiles_257"]
    knots = dict(zip(np.linspace(0, 1, len(grid)).tolist(), grid, strict=True))
    knots |= dict(zip(row["tail_probs"], row["tail_quantiles"], strict=True))
    shares = np.array(sorted(knots))
    lengths = np.array([float(knots[share]) for share in shares.tolist()])
    mean = float(np.sum(np.diff(shares) * (lengths[1:] + lengths[:-1]) / 2))
    text = "documents of WLB-LLM's long-context training, by straight lines between published quantiles: "
    text += (
        "the mean is 0.13 % over the published one, and no share of documents or tokens is off by 0.2 points"
    )
    return LengthDistribution(
        "wlb-llm", text, row["source"], row["verified"], False, mean, row["max"],
        lambda share: np.interp(share, shares, lengths),
    )  # fmt: skip


def _chat() -> LengthDistribution:
    row = next(
        r
        for r in catalog.load(catalog.root() / "measurements/packing.json")
        if r["id"] == "chunkflow_lengths"
    )
    shares = np.array([0.0, row["share_below_4K_pct"] / 100, 0.999, 0.9999, 1.0])
    logs = np.log(np.array([16, 4096, 32768, 262144, row["longest"]], float))
    ends = np.exp(logs)
    mean = float(np.sum(np.diff(shares) * np.diff(ends) / np.diff(logs)))
    text = (
        "chats like LMSYS-Chat-1M: published are 99 % below 4,096 tokens, 0.01 % over 262,144 and the longest, "
        "303,000; between them the logarithm of length is assumed to rise in straight lines, from 16"
    )
    return LengthDistribution(
        "lmsys-chat", text, row["source"], row["verified"], True, mean, row["longest"],
        lambda share: np.exp(np.interp(share, shares, logs)),
    )  # fmt: skip


def _lognormal(median: float = 1500, sigma: float = 1.2, longest: float = 131072) -> LengthDistribution:
    top = _whole("longest", longest)
    _positive("median", median)
    _positive("sigma", sigma)

    def inverse(share: Float) -> Float:
        from scipy.special import ndtri

        with np.errstate(over="ignore"):
            lengths: Float = np.clip(median * np.exp(sigma * ndtri(share)), 1, top)
        return lengths

    low, high = math.log(1 / median) / sigma, math.log(top / median) / sigma
    middle = _normal(high - sigma) - _normal(low - sigma)
    mean = _normal(low) + median * math.exp(sigma**2 / 2) * middle + top * _normal(-high)
    text = f"lognormal, median {median:g}, sigma {sigma:g}, cut to {top:,}"
    return _synthetic("lognormal", text, mean, top, inverse)


def _uniform(shortest: float = 1, longest: float = 8192) -> LengthDistribution:
    low, top = _whole("shortest", shortest), _whole("longest", longest)
    if low > top:
        raise bad("shortest", low, f"must not be over longest = {top}")
    text = f"every length from {low:,} to {top:,} equally often"
    return _synthetic(
        "uniform", text, (low + top) / 2, top,
        lambda share: np.clip(low - 0.5 + share * (top - low + 1), low, top),
    )  # fmt: skip


def _bimodal(short: float = 1024, long: float = 32768, long_share: float = 0.05) -> LengthDistribution:
    low, top = _whole("short", short), _whole("long", long)
    problems = [] if low <= top else [Problem("short", low, f"must not be over long = {top}")]
    if not (_is_number(long_share) and 0 <= long_share <= 1):
        problems.append(Problem("long_share", long_share, "must be within 0 and 1", "such as 0.05"))
    if problems:
        raise InputError(problems)
    text = f"{long_share:.3%} of {top:,} tokens, the rest of {low:,}"
    mean = low + (top - low) * long_share
    return _synthetic(
        "bimodal", text, mean, top, lambda share: np.where(share >= 1 - long_share, float(top), float(low))
    )


def _constant(length: float = 4096) -> LengthDistribution:
    whole = _whole("length", length)
    return _synthetic(
        "constant", f"all of {whole:,} tokens", whole, whole, lambda share: np.full_like(share, whole)
    )


DISTRIBUTIONS: dict[str, Callable[..., LengthDistribution]] = {
    "wlb-llm": _wlb,
    "lmsys-chat": _chat,
    "lognormal": _lognormal,
    "uniform": _uniform,
    "bimodal": _bimodal,
    "constant": _constant,
}
"""Distributions by name, each a function of its parameters."""


def _synthetic(
    name: str, text: str, mean: float, longest: int, inverse: Callable[[Float], Float]
) -> LengthDistribution:
    return LengthDistribution(name, text, "synthetic", False, True, mean, longest, inverse)


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _whole(field: str, value: float) -> int:
    if not _is_number(value) or not 1 <= value <= MAX_LENGTH or value != int(value):
        raise bad(field, value, f"must be a whole number from 1 to {MAX_LENGTH:,}")
    return int(value)


def _positive(field: str, value: float) -> None:
    if not (_is_number(value) and 0 < value < math.inf):
        raise bad(field, value, "must be a number over 0")


def load_lengths(path: str | Path, field: str | None = None) -> Int:
    """Read the lengths of documents from a file, in tokens (documents,).

    Parameters
    ----------
    path : str or Path
        ``.npy`` (one dimension), ``.parquet``, ``.csv`` or ``.txt`` (one column, or a header), ``.jsonl``. A text file
        that ends inside its last number cannot be told from a whole one.
    field : str, optional
        Column or key; by default the first of `length`, `len`, `num_tokens`, `n_tokens`, `tokens`, `input_ids`.
        Of a list of tokens (`input_ids`, `tokens`, or a field of another name) the number of entries counts;
        `length`, `len`, `num_tokens` and `n_tokens` must be numbers.

    Raises
    ------
    InputError
        Missing, malformed, cut short, too large, or holding a length that is none: with file, line and value.
    """
    if not isinstance(path, str | Path):
        raise bad("path", path, "must name a file", "lengths.csv works")
    path = Path(path)
    values, places = read_lengths(path, field, MAX_DOCUMENTS)
    if not len(values):
        raise bad("file", path.name, "holds no lengths", source=str(path))
    try:
        return _checked(values, MAX_LENGTH, lambda i: f"line {places[i]}" if len(places) else f"entry {i}")
    except InputError as error:
        raise error.within(str(path)) from None


def checked_lengths(lengths: ArrayLike, most: int | None = None) -> Int:
    """Lengths as int64 (documents,), once each is a whole number of at least 1 token.

    Parameters
    ----------
    lengths : (documents,) array-like
        Whole numbers, also as floats.
    most : int, optional
        Longest that is allowed (a sample's tokens); `MAX_LENGTH` otherwise.

    Raises
    ------
    InputError
        Not one dimension, not numbers, or values that are no lengths; their places are named.
    """
    try:
        values = np.asarray(lengths)
    except ValueError:
        raise bad("lengths", "nested lists", "must be one list of numbers") from None
    if values.ndim != 1:
        raise bad("lengths", f"shape {values.shape}", "must have one dimension")
    if not len(values):
        return np.zeros(0, np.int64)
    return _checked(values, MAX_LENGTH if most is None else most, lambda i: f"lengths[{i}]")


def _checked(values: NDArray[Any], most: int, place: Callable[[int], str]) -> Int:
    """Return the values as int64, or name those that are no lengths by their places."""
    if values.dtype.kind not in "iuf":
        raise bad("lengths", f"dtype {values.dtype}", "must be whole numbers of at least 1 token")
    if values.dtype.kind == "f":
        values = values.astype(np.float64)  # half precision does not hold the longest
    wrong = ~((values >= 1) & (values <= most))  # NaN is neither
    if values.dtype.kind == "f":
        wrong |= values != np.floor(values)
    if not wrong.any():
        return values.astype(np.int64)
    rule = f"must be a whole number of tokens from 1 to {most:,}"
    at = np.flatnonzero(wrong)
    problems = [Problem(place(int(i)), f"{values[i]:g}", rule) for i in at[:SHOWN]]
    if len(at) > SHOWN:
        problems.append(Problem("lengths", f"{len(at) - SHOWN:,} more", "are no lengths either"))
    raise InputError(problems)
