"""How much of two curves is compared, and which of their columns."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from telekit.accuracy.curves.curve_pairs import Pair
from telekit.accuracy.curves.curve_statistics import MIN_STEPS, Steps
from telekit.accuracy.readers.curve import GRAD_NORM, LOSS, LossCurve, of_evaluation

COVERED = 0.9
"""Of a curve's steps: where fewer are compared, the verdict does not speak for the run."""


@dataclass(frozen=True)
class Columns:
    """Which columns are compared: the loss's, and those to subtract from it (an auxiliary loss) on either side."""

    target: str = ""
    golden: str = ""
    subtract_target: str = ""
    subtract_golden: str = ""


@dataclass(frozen=True)
class Coverage:
    """How much of the two curves is compared.

    Attributes
    ----------
    steps : int
        Steps at which both losses are finite, or one alone is not.
    gaps, norm_gaps : tuple of str
        Why more of the losses, and of the gradient norms, was left out than may be; empty where nothing was.
    """

    steps: int
    gaps: tuple[str, ...]
    norm_gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Names:
    """Columns that are compared: of the loss, and of the gradient's norm (None where a file has none).

    ``alike`` is False where the names of the loss, found and not given, do not sound like one quantity.
    """

    target: str
    golden: str
    target_norm: str | None
    golden_norm: str | None
    alike: bool


def compared_names(target: LossCurve, golden: LossCurve, columns: Columns) -> Names:
    """Say which columns are compared."""
    ours, theirs = columns.target or target.loss or "", columns.golden or golden.loss or ""
    alike = bool(columns.target or columns.golden) or _quantity(ours) == _quantity(theirs)
    return Names(ours, theirs, target.grad_norm, golden.grad_norm, alike)


def _quantity(name: str) -> str:
    """Return what a column's name says it is: the training's loss has many names."""
    if of_evaluation(name):
        return "evaluation"
    low = name.lower()
    ends = tuple(f"{mark}{loss}" for loss in LOSS for mark in ("/", " - "))
    return "loss" if low in LOSS or low.endswith(ends) else low


def coverage(
    loss: Pair,
    norm: Pair | None,
    curves: tuple[LossCurve, LossCurve],
    steps: tuple[Steps, Steps],
    columns: Columns,
) -> Coverage:
    """See what of two files the comparison of their losses leaves out.

    Parameters
    ----------
    loss, norm : Pair
        What is compared; no norms where not both log them.
    curves, steps : (LossCurve, LossCurve), (ndarray, ndarray)
        Target and golden; at which steps each has a loss.
    columns : Columns
        What was asked for.
    """
    names = ((columns.target, columns.subtract_target), (columns.golden, columns.subtract_golden))
    gaps: list[str] = []
    for who, curve, (name, subtract) in zip(("target", "golden"), curves, names, strict=True):
        lost = _unread(curve, (name or curve.loss or "", subtract), LOSS)
        if lost:
            gaps.append(f"{lost} losses of {who} are no numbers and are left out")
        if curve.broken:
            gaps.append(f"{who}'s file is not read whole ({curve.broken})")
    if loss.both_lost:
        gaps.append(f"{loss.both_lost} steps are {loss.lost} on both sides")
    low, high = max(s[0] for s in steps), min(s[-1] for s in steps)
    joint = loss.steps.size + loss.both_lost
    inside = [int(((s >= low) & (s <= high)).sum()) for s in steps]
    if joint < COVERED * min(inside):
        gaps.append(f"of {min(inside)} steps between {low} and {high} both log {joint} alike")
    for who, own, here in zip(("target", "golden"), steps, inside, strict=True):
        # a run that resumes says nothing of earlier steps, but must not end early or be but a few steps
        whole = int((own >= low).sum()) if joint >= MIN_STEPS else own.size
        if here < COVERED * whole:
            gaps.append(f"{here} of {who}'s {whole} steps lie where both log")
    return Coverage(loss.steps.size, tuple(gaps), tuple(_norm_gaps(loss, norm, curves)))


def _unread(curve: LossCurve, used: Collection[str], usual: Collection[str]) -> int:
    """Count what stands in the columns used and is no number, and in one of a usual name that holds nothing else."""
    lost = {name for name in curve.unread if name.lower() in usual and name not in curve.columns}
    return sum(curve.unread.get(name, 0) for name in lost.union(used))


def _norm_gaps(loss: Pair, norm: Pair | None, curves: tuple[LossCurve, LossCurve]) -> list[str]:
    gaps = []
    for who, curve in zip(("target", "golden"), curves, strict=True):
        lost = _unread(curve, (curve.grad_norm or "",), GRAD_NORM)
        if lost:
            gaps.append(f"{lost} gradient norms of {who} are no numbers and are left out")
    if norm is not None and norm.last < loss.steps[int(COVERED * (loss.steps.size - 1))]:
        gaps.append(f"gradient norms end at step {norm.last}, losses at {loss.last}")
    return gaps


def notes(loss: Pair, ours: Steps, theirs: Steps) -> tuple[str, ...]:
    """Say at which of the steps of two curves their losses are compared."""
    said = []
    if loss.both_lost:
        said.append(f"{loss.both_lost} steps are {loss.lost} on both sides: left out")
    low, high = max(ours[0], theirs[0]), min(ours[-1], theirs[-1])
    inside = max(int(((s >= low) & (s <= high)).sum()) for s in (ours, theirs))
    joint = loss.steps.size + loss.both_lost
    if inside > joint:
        said.append(
            f"of {inside} steps between {low} and {high}, {joint} are logged by both: these are compared"
        )
    if ours[0] != theirs[0]:
        said.append(f"target starts at step {ours[0]}, golden at {theirs[0]}: the first common step is {low}")
    if ours[-1] != theirs[-1]:
        said.append(f"target ends at step {ours[-1]}, golden at {theirs[-1]}")
    return tuple(said)
