"""What balancing accepts: work and tokens of samples, counts of ranks, caps; all else is refused with its places."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from telekit.errors import InputError, Problem, bad

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_SAMPLES = 10**7
"""Samples of one global batch that are accepted; a step of 10^8 sequences is no step."""
MOST_COUNT = 2**30
"""Largest count of anything that is accepted."""
_SHOWN = 8


def checked_work(work: ArrayLike, field: str = "work") -> Floats:
    """Return work as a flat float array.

    Raises
    ------
    InputError
        Naming the places of what is negative, infinite or not a number; for none, for too many, for a table.
    """
    try:
        raw = np.asarray(work)
        found = raw.astype(float) if raw.dtype.kind in "biufO" else None  # text and complex numbers are none
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None:
        raise bad(field, work, "must be numbers, one a sample", "[1.0, 2.5] works")
    if found.ndim != 1 or not 1 <= found.size <= MOST_SAMPLES:
        shape = "x".join(map(str, found.shape)) or "a single number"
        rule = f"must be one list of 1 to {MOST_SAMPLES:,} numbers, one a sample"
        raise bad(field, shape, rule, "[1.0, 2.5] works")
    wrong = np.flatnonzero(~((found >= 0) & np.isfinite(found)))
    if wrong.size:
        rule = "must be 0 or more, and finite"
        problems = [Problem(f"{field}.{i}", float(found[i]), rule) for i in wrong[:_SHOWN]]
        if wrong.size > _SHOWN:
            problems.append(Problem(field, f"{wrong.size} numbers", f"{rule}; the first {_SHOWN} are named"))
        raise InputError(problems)
    if found.max() > sys.float_info.max / found.size:
        raise bad(field, "its sum", "must be finite", "give seconds")
    return found


def checked_ranks(samples: int, ranks: Any, per_rank: Any = None) -> None:
    """Refuse counts of ranks and of samples a rank that ``samples`` cannot fill."""
    problems = [
        Problem(name, value, "must be a whole number from 1", "1 works")
        for name, value in (("ranks", ranks), ("per_rank", per_rank))
        if not (name == "per_rank" and value is None) and not counts(value)
    ]
    if not problems and ranks > samples:
        rule = f"every rank needs a sample, and there are {samples}"
        problems.append(Problem("ranks", ranks, rule, f"{samples} works"))
    elif not problems and per_rank is not None and per_rank * ranks != samples:
        even, rest = divmod(samples, ranks)
        works = f"{even} works" if not rest else f"none works; give {even * ranks} samples, or leave it out"
        rule = f"{ranks} ranks of {per_rank} take {per_rank * ranks} samples, and there are {samples}"
        problems.append(Problem("per_rank", per_rank, rule, works))
    if problems:
        raise InputError(problems)


def counts(value: Any) -> bool:
    """Whether this is a whole number from 1, Python's or numpy's."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def check_counts(most: int = MOST_COUNT, **named: Any) -> None:
    """Raise an InputError of all these counts that are none, or above ``most``."""
    wrong = [
        Problem(name, n, f"must be a whole number from 1 to {most:,}", f"{name} 1 works")
        for name, n in named.items()
        if not counts(n) or n > most
    ]
    if wrong:
        raise InputError(wrong)


def checked_tokens(tokens: ArrayLike | None, samples: int) -> Floats:
    """Return tokens as a flat array, as many as ``samples``."""
    if tokens is None:
        raise bad("tokens", None, "a cap needs the tokens of each sample", "give one number a sample")
    found = checked_work(tokens, "tokens")
    if found.size != samples:
        raise bad("tokens", f"{found.size} numbers", f"must be one a sample, and there are {samples}")
    return found


def check_caps(tokens: Floats, ranks: int | None, cap: Any) -> None:
    """Refuse a cap that no assignment keeps, as far as single samples, the sum and pairs of large ones show it."""
    if not isinstance(cap, (int, float, np.number)) or isinstance(cap, bool) or not cap > 0:
        raise bad("cap", cap, "must be a positive number of tokens", f"{tokens.sum():.0f} works")
    longest = float(tokens.max())
    if longest > cap:
        at = int(tokens.argmax())
        rule = f"sample {at} alone has {longest:.0f} tokens"
        raise bad("cap", cap, rule, f"{longest:.0f} is the least that can work")
    if ranks is not None and tokens.sum() > ranks * float(cap):
        least = fewest_bound(tokens, float(cap))
        rule = f"{ranks} times {cap} tokens hold less than all {tokens.sum():.0f}"
        raise bad("cap", cap, rule, f"{least} micro-batches at least, or a cap of {tokens.sum() / ranks:.0f}")


def fewest_bound(tokens: Floats, cap: float) -> int:
    """Bins of ``cap`` tokens that are needed at least (Martello and Toth 1990, bound L2).

    For each size ``a`` up to half the cap: samples above ``cap - a`` and those above half the cap take a bin each,
    and samples from ``a`` to half the cap fill what room the second kind leaves, then bins of their own.
    """
    falling = np.sort(tokens)[::-1]
    half = falling > cap / 2
    best = max(int(np.ceil(falling.sum() / cap * (1 - 1e-12))), 1)
    for a in np.concatenate([[0.0], np.unique(falling[~half])])[:1000]:
        alone = falling > cap - a
        paired = half & ~alone
        small = falling[~half & (falling >= a)].sum()
        room = paired.sum() * cap - falling[paired].sum()
        more = np.ceil(max(small - room, 0.0) / cap * (1 - 1e-12))
        best = max(best, int(alone.sum() + paired.sum() + more))
    return best
