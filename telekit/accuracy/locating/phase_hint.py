"""What losses and gradient norms alone say: forward, backward or optimizer.

The order of MindFormers' guide: the first loss differs, so the forward does; it agrees and the gradient norm
differs, so the backward does; both agree and the second loss differs, so the optimizer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telekit.accuracy.compared import BACKWARD, FORWARD, OPTIMIZER, SETUP
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.readers.curve import LossCurve

Series = Sequence[float] | LossCurve
Pair = tuple[Series, Series]
_DIGITS = 1e-6  # relative: float32 losses that differ by less agree to the digit


@dataclass(frozen=True)
class Hint:
    """A phase, the step at which it shows (from 1), and what was seen; empty where nothing was.

    ``small`` is by how much the first loss differs where it agrees within the run's rounding and not to the digit: then
    the curves cannot tell the forward from what follows.
    """

    phase: str = ""
    step: int | None = None
    evidence: tuple[str, ...] = ()
    small: float = 0.0

    def against(self, phase: str) -> bool:
        """Whether the curves speak against a phase that the dump points at."""
        return bool(self.phase) and self.phase != phase and not (self.small and phase in (FORWARD, SETUP))

    def beside(self, phase: str) -> tuple[str, ...]:
        """Say what was seen beside a phase that the dump points at."""
        if not self.small or phase not in (FORWARD, SETUP):
            return self.evidence
        return (
            f"the first loss differs by {self.small:.3g}: so little may be rounding or the forward's fault",
        )


def phase_hint(losses: Pair | None, norms: Pair | None, epsilon: float) -> Hint:
    """Say which phase the first difference points at.

    Parameters
    ----------
    losses, norms : (target, golden), optional
        Of the same steps, from the first step on.
    epsilon : float
        Of the run's arithmetic: a loss may differ by eight of it, by one where it is coarse (a mean over
        tokens), a norm by four.
    """
    loss, norm = (
        None if p is None else _relative(p, which) for p, which in ((losses, "loss"), (norms, "norm"))
    )
    tight = max(min(8 * epsilon, max(epsilon, 1e-3)), 1e-12)
    if loss is not None and loss.size and not loss[0] <= tight:
        return Hint(FORWARD, 1, (f"the first loss differs by {loss[0]:.3g}: the forward",))
    small = float(loss[0]) if loss is not None and loss.size and loss[0] > _DIGITS else 0.0
    if norm is not None and norm.size and not norm[0] <= 4 * epsilon:
        agrees = f"the first loss agrees{f' within rounding ({small:.3g})' if small else ''}"
        text = f"{agrees}, the first gradient norm differs by {norm[0]:.3g}: the backward, or its norm"
        return Hint(BACKWARD, 1, (text,), small)
    if loss is not None and loss.size > 1 and not loss[1] <= 8 * tight:
        text = f"the first loss and norm agree, the second loss differs by {loss[1]:.3g}: the optimizer"
        return Hint(OPTIMIZER, 2, (text,), small)
    return Hint()


def balance_ratio(losses: Pair | None) -> float | None:
    """Return how many times golden's the load-balancing loss of the first step is; None where it is not logged.

    Named as training logs name it: ``load_balancing_loss``, ``aux_loss`` and the like. Other steps must say the same
    within a tenth, else the factor is none.
    """
    found = []
    for side in losses or ():
        if not isinstance(side, LossCurve):
            return None
        name = next((c for c in side.columns if any(w in c.lower() for w in ("balanc", "aux"))), None)
        if name is None:
            return None
        found.append(side.series(name)[1])
    if len(found) != 2:
        return None
    n = min(f.size for f in found)
    target, golden = (f[:n] for f in found)
    if not n or not golden.all() or not np.isfinite(target).all():
        return None
    ratios = target / golden
    return float(ratios[0]) if float(np.ptp(ratios)) <= 0.1 * abs(float(ratios[0])) else None


def _relative(pair: Pair, which: str) -> Floats:
    target, golden = (numbers(side, which) for side in pair)
    n = min(target.size, golden.size)
    with np.errstate(all="ignore"):
        found = np.abs(target[:n] - golden[:n]) / np.maximum(np.abs(golden[:n]), np.finfo(np.float64).tiny)
    return np.where(np.isnan(found), np.inf, found)


def numbers(side: Series, which: str) -> Floats:
    """Return a curve's loss or gradient norm, or the numbers themselves."""
    if isinstance(side, LossCurve):
        name = side.loss if which == "loss" else side.grad_norm
        return np.empty(0) if name is None else side.series(name)[1]
    return np.asarray(side, np.float64).ravel()
