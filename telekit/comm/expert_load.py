"""Load of experts and ranks: the busiest rank, tokens beyond a capacity, and a user's histogram file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from telekit.comm.choices import Floats
from telekit.documents import read_document, read_text
from telekit.errors import bad

POINTS = 4001
MOST_BYTES = 10_000_000


def imbalance(mean: Floats, variance: Floats, tokens: int) -> float:
    """Return the expected load of the busiest rank over the mean load.

    Loads of many independent tokens are close to normal (below 50 copies a rank the busiest has a few % more); their
    sum is fixed, which widens each against the mean by ``sqrt(R / (R - 1))``. Tokens of one sequence are not
    independent, so a real step is less even than this: measure a histogram of the step and give it as weights.

    Parameters
    ----------
    mean, variance : ndarray, shape (ranks,)
        Of the copies of one token that each rank gets; even equal ranks have a busiest one, by chance.
    tokens : int
        Tokens of the whole group.

    Returns
    -------
    float
        At least 1.
    """
    if tokens < 1:
        raise bad("tokens", tokens, "must be at least 1", "for example 4096")
    ranks = len(mean)
    if ranks == 1:
        return 1.0
    from scipy.special import ndtr

    spread = np.sqrt(np.maximum(variance, 0.0) * ranks / (ranks - 1) / tokens)
    low, high = mean.max() - 9 * spread.max(), mean.max() + 9 * spread.max()
    if high == low:
        return float(mean.max() / mean.mean())
    at = np.linspace(low, high, POINTS)
    below = np.ones(POINTS)
    for centre, width in zip(mean, spread, strict=True):
        below *= ndtr((at - centre) / width) if width > 0 else (at >= centre)
    busiest = low + np.trapezoid(1.0 - below, at)
    return float(max(busiest / mean.mean(), 1.0))


def dropped_share(load: Floats, tokens: int, capacity_factor: float) -> float:
    """Share of token copies that experts drop beyond their capacity.

    Capacity is ``ceil(capacity_factor * tokens * top_k / experts)`` (Megatron-Core). An expert's load over independent
    tokens is binomial, so the mean excess is exact.

    Parameters
    ----------
    load : ndarray, shape (experts,)
        Mean copies of a token that each expert gets; they sum to top-k.
    tokens : int
        Tokens over which capacity is counted (Megatron-Core: those of one rank).
    capacity_factor : float
        Above 0.
    """
    if tokens < 1:
        raise bad("tokens", tokens, "must be at least 1", "for example 4096")
    if not 0 < capacity_factor < 1e6:
        raise bad("capacity_factor", capacity_factor, "must be above 0", "1.25 is usual")
    from scipy.stats import binom

    chance, top_k = np.clip(load, 0.0, 1.0), load.sum()
    capacity = int(np.ceil(capacity_factor * tokens * top_k / len(load) - 1e-9))
    # E[(X - C)+] = n p P(X' >= C) - C P(X > C), X' of one token less
    over = tokens * chance * binom.sf(capacity - 1, tokens - 1, chance)
    excess = over - capacity * binom.sf(capacity, tokens, chance)
    return float(np.maximum(excess, 0.0).sum() / (tokens * top_k))


def load_histogram(path: str | Path) -> Floats:
    """Read tokens per expert from a file.

    Parameters
    ----------
    path : str or Path
        ``.npy`` (one dimension, no pickle), ``.json`` (a list of numbers, or a mapping of expert to number), or
        ``.csv`` (one number a line, or expert,number; a head is passed over).

    Returns
    -------
    ndarray, shape (experts,)

    Raises
    ------
    InputError
        A file that cannot be read, or anything in it that is no count; the place is named.
    """
    path = Path(path)
    readers = {".npy": _from_npy, ".json": _from_json, ".csv": _from_csv}
    if path.suffix.lower() not in readers:
        raise bad("histogram", path.name, "is not .npy, .json or .csv", source=str(path))
    values = readers[path.suffix.lower()](path)
    return _checked(values, path)


def _from_npy(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise bad("histogram", path.name, f"is larger than {MOST_BYTES:,} bytes", source=str(path))
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise bad("histogram", path.name, f"cannot be read: {error}", source=str(path)) from None


def _from_json(path: Path) -> Any:
    found = read_document(path)
    if isinstance(found, dict):
        return _in_order([(str(key), value) for key, value in found.items()], path)
    return found


def _from_csv(path: Path) -> Any:
    lines = [(n, line.strip()) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    rows = [(n, [cell.strip() for cell in line.split(",")]) for n, line in lines]
    if rows and not _is_number(rows[0][1][-1]):
        rows = rows[1:]
    for n, cells in rows:
        if len(cells) > 2 or not _is_number(cells[-1]):
            raise bad(f"line {n}", ",".join(cells), "must be a count, or expert,count", source=str(path))
    if rows and len(rows[0][1]) == 2:
        return _in_order([(cells[0], float(cells[-1])) for _, cells in rows], path)
    return [float(cells[-1]) for _, cells in rows]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _in_order(pairs: list[tuple[str, Any]], path: Path) -> list[Any]:
    """Order counts by expert number; every expert from 0 on must be there once."""
    found = dict(pairs)
    expected = [str(number) for number in range(len(pairs))]
    missing = [number for number in expected if number not in found]
    if missing:
        rule = f"must name every expert from 0 to {len(pairs) - 1} once"
        raise bad("histogram", f"expert {missing[0]} is missing", rule, source=str(path))
    return [found[number] for number in expected]


def _checked(values: Any, path: Path) -> Floats:
    try:
        counts = np.asarray(values)
        if counts.dtype.kind not in "iuf":
            raise ValueError
        counts = counts.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise bad("histogram", path.name, "must be numbers, one an expert", source=str(path)) from None
    if counts.ndim != 1 or not counts.size:
        raise bad("histogram", f"shape {counts.shape}", "must have one dimension", source=str(path))
    wrong = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)))
    if len(wrong):
        at = int(wrong[0])
        raise bad(f"histogram.{at}", float(counts[at]), "must be 0 or more tokens", source=str(path))
    return counts
