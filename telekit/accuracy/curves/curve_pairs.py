"""One column of two curves, joined at the steps that both have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from telekit.accuracy.curves.curve_statistics import Floats, Steps

LARGEST = 1e100
"""Of a loss or a norm: the square of a larger one overflows."""


@dataclass(frozen=True)
class Pair:
    """One column of two curves at the steps that both have.

    Attributes
    ----------
    steps, target, golden : ndarray, shape (n,)
        Steps where neither side, or only one of them, is NaN or Inf.
    finite : ndarray of bool, shape (n,)
        Where both are finite.
    both_lost : int
        Steps left out because both sides are NaN or Inf there.
    huge : bool
        Whether some of what counts as Inf is a finite number of ``LARGEST`` or more.
    """

    steps: Steps
    target: Floats = field(repr=False)
    golden: Floats = field(repr=False)
    finite: npt.NDArray[np.bool_] = field(repr=False)
    both_lost: int = 0
    huge: bool = False

    @property
    def last(self) -> int:
        """The last step that both log; -1 for none."""
        return int(self.steps[-1]) if self.steps.size else -1

    @property
    def lost(self) -> str:
        """What a value is called that is not finite here."""
        return f"NaN, Inf or beyond {LARGEST:g}" if self.huge else "NaN or Inf"

    @property
    def error(self) -> Floats:
        """Target less golden at the finite steps."""
        return self.target[self.finite] - self.golden[self.finite]

    @property
    def relative(self) -> Floats:
        """``error / |golden|`` at the finite steps: 0 for 0 against 0, infinite against 0 otherwise."""
        return relative(self.error, self.golden[self.finite])

    @property
    def mre(self) -> float:
        """Mean of ``|relative|``; NaN where nothing is finite. A sum of huge ones is infinite."""
        with np.errstate(over="ignore"):
            return float(np.abs(self.relative).mean()) if self.at.size else float("nan")

    @property
    def at(self) -> Steps:
        """The finite steps."""
        return self.steps[self.finite]

    @property
    def size(self) -> float:
        """Typical size of golden."""
        there = np.abs(self.golden[self.finite])
        return float(np.median(there)) if there.size else 0.0


def relative(error: Floats, golden: Floats) -> Floats:
    """Return ``error / |golden|``; where golden is 0, 0 for no error and a signed infinity for one."""
    out = np.where(error == 0, 0.0, np.copysign(np.inf, error))
    with np.errstate(over="ignore"):
        np.divide(error, np.abs(golden), out=out, where=golden != 0)
    return out


def pair(target: tuple[Steps, Floats], golden: tuple[Steps, Floats]) -> Pair:
    """Join two series at their common steps, which may be none; a value beyond ``LARGEST`` counts as infinite."""
    steps, i, j = np.intersect1d(target[0], golden[0], assume_unique=True, return_indices=True)
    here = target[1][i], golden[1][j]
    huge = any(bool((np.isfinite(x) & (np.abs(x) >= LARGEST)).any()) for x in here)
    t, g = (np.where(np.abs(x) >= LARGEST, np.copysign(np.inf, x), x) for x in here)
    fine_t, fine_g = np.isfinite(t), np.isfinite(g)
    kept = fine_t | fine_g
    return Pair(steps[kept], t[kept], g[kept], (fine_t & fine_g)[kept], int((~kept).sum()), huge)
