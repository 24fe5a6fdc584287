"""The first divergence of a comparison: what locating finds, else what the first row that fails says by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, loaded
from telekit.accuracy.causes.finding import Finding
from telekit.accuracy.compared import Compared
from telekit.accuracy.comparing.judged import UNREAD, errors_in_order
from telekit.accuracy.graph.noise import run_epsilon
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.locating.walk.explain import explain
from telekit.accuracy.readers import NamedTensor
from telekit.accuracy.standards.verdict import ERROR, Verdict

LOOKED_AT_BYTES = 2**25
"""Larger tensors are compared whole but not looked into for a cause, which takes several copies in float64."""
ROUNDING = 16
"""Epsilons of the run that a tensor without inputs may be off by and still be rounding; telekit's own."""
PLAIN_NEXT = "what made this tensor on both sides: a file of tensors says nothing of the operators before it"
_CLOSENESS = frozenset(
    ["1 per mille share", "cosine drop", "norm error", "norm error growth", "Cosine", "MaxAbsErr",
     "Cosine and MaxAbsErr", "relative error", "Max", "Min", "Mean", "Norm"]
)  # fmt: skip
_NOT_COMPARED = frozenset([UNREAD, "partner"])
_SAYS = {
    "shape": kinds.SHAPE, "dtype": kinds.WRONG_DTYPE, "new NaN or Inf": kinds.OVERFLOW,
    "scalar": kinds.DIFFERENT_INPUTS,
}  # fmt: skip


def first_divergence(
    rows: Sequence[Compared],
    verdicts: Sequence[Verdict],
    replicas: Sequence[NamedTensor] | None,
    sizes: Mapping[str, float],
) -> tuple[Finding | None, tuple[str, ...]]:
    """Find where two sides first part.

    Parameters
    ----------
    rows : sequence of Compared
    verdicts : sequence of Verdict
        One a row.
    replicas : sequence of NamedTensor, optional
        The target's own tensors of all ranks, where they were merged.
    sizes : mapping of str to float
        See `locate.locate`.

    Returns
    -------
    Finding or None
        None where nothing fails, where rounding explains every failure, and where what fails was not compared.
    tuple of str
        What a reader should know of the answer.
    """
    small = [_small(row) for row in rows]
    copies = None
    if replicas is not None:
        copies = [x if x.nbytes <= LOOKED_AT_BYTES else replace(x, loader=None) for x in replicas]
    notes: list[str] = []
    try:
        with np.errstate(all="ignore"):
            found = locate(small, replicas=copies, sizes=sizes)
        if not found.clean:
            plain = found.cause == kinds.UNKNOWN and not any(row.api for row in rows)
            if not any(v.result == ERROR for v in verdicts):
                notes.append(_beyond(found))
            return (replace(found, next_dump=PLAIN_NEXT) if plain else found), tuple(notes)
        evidence: tuple[str, ...] = found.evidence
    except Exception as error:  # the table and its verdicts stand whatever a search trips over
        evidence = ()
        notes.append(
            f"the search for the first divergence failed ({type(error).__name__}: {error}); verdicts stand"
        )

    return _by_rows(rows, small, verdicts, sizes, evidence, notes), tuple(notes)


def _by_rows(
    rows: Sequence[Compared],
    small: Sequence[Compared],
    verdicts: Sequence[Verdict],
    sizes: Mapping[str, float],
    evidence: tuple[str, ...],
    notes: list[str],
) -> Finding | None:
    """Return what the first row that fails says by itself; ``notes`` is told of rows that say nothing."""

    @cache
    def epsilon() -> float:  # loads a sample of the run: once, and only where it is asked for
        return run_epsilon(rows)

    for place in errors_in_order(rows, verdicts):
        names = {p.name for p in verdicts[place].parts if p.result == ERROR}
        if names & _NOT_COMPARED:
            notes.append(f"{rows[place].name}: not compared, so whether the sides part there is not known")
        elif not rows[place].api and not _rounding(rows[place], epsilon):
            return _of_tensor(small[place], verdicts[place], epsilon(), sizes, evidence)
        elif evidence and names <= _CLOSENESS:
            if not any("rounding explains" in note for note in notes):
                notes.append(_within(rows[place], verdicts[place], epsilon()))
        else:
            return _of_verdict(rows[place], verdicts[place], evidence)
        if len(notes) > 4:
            break
    return None


def _beyond(found: Finding) -> str:
    return (
        f"no row fails the standard, yet {found.tensor or found.operator or found.phase} is further off than rounding "
        "explains: the standard has no rule for it, or a wide one"
    )


def _within(row: Compared, verdict: Verdict, epsilon: float) -> str:
    failed = next(p for p in verdict.parts if p.result == ERROR)
    text = f"rounding explains every difference, yet {row.name} misses {verdict.standard}: {failed.name} {failed.value}"
    if failed.name == "1 per mille share" and epsilon / 2 > 1e-3:  # half a step of bf16 is 2**-8
        text += (
            "; it counts elements within 1 per mille, finer than bf16 can hold (half a step is up to 4 per mille): "
            "standard msprobe-coded (share 0.1) or depth-bound fits such a run"
        )
    return text


def _rounding(row: Compared, epsilon: Callable[[], float]) -> bool:
    """Whether a tensor without inputs is off by no more than a few roundings."""
    error = None if row.metrics is None else row.metrics.relative_norm_error
    return error is not None and row.metrics is not None and not row.metrics.opposite_infinities and (
        error <= ROUNDING * epsilon()
    )  # fmt: skip


def _of_tensor(
    row: Compared,
    verdict: Verdict,
    epsilon: float,
    sizes: Mapping[str, float],
    evidence: Sequence[str],
) -> Finding:
    """Explain a tensor that belongs to no operator by its own values."""
    t, g = row.target, row.golden
    assert t is not None and g is not None
    case = Case(
        loaded(t), loaded(g), row.name, "", row.phase, row.part, epsilon, sizes=dict(sizes),
        summary=row.summary, target_dtype=t.dtype, golden_dtype=g.dtype, target_shape=t.shape, golden_shape=g.shape,
    )  # fmt: skip
    causes = explain(case)
    best = causes[0]
    if best.kind == kinds.UNKNOWN:
        return replace(_of_verdict(row, verdict, evidence), causes=causes, next_dump=PLAIN_NEXT)
    said = (*(f"{c.kind} ({c.confidence:.2f}): {c.text}" for c in causes[:3]), *_failed(row, verdict))
    return Finding(
        row.name, row.phase, row.part, best.kind, round(best.confidence, 3), said, PLAIN_NEXT, row.name, causes,
        step=row.step, rank=row.rank,
    )  # fmt: skip


def _of_verdict(row: Compared, verdict: Verdict, evidence: Sequence[str]) -> Finding:
    """Say what the verdict's own reasons say, where nothing looks closer."""
    names = [p.name for p in verdict.parts if p.result == ERROR]
    kind = next((_SAYS[n] for n in names if n in _SAYS), kinds.UNKNOWN)
    return Finding(
        row.api or row.name, row.phase, row.part, kind, 0.2 if kind == kinds.UNKNOWN else 0.7,
        (*_failed(row, verdict), *evidence), kinds.NEXT_DUMP[kind] if row.api else PLAIN_NEXT, row.name,
        step=row.step, rank=row.rank,
    )  # fmt: skip


def _failed(row: Compared, verdict: Verdict) -> list[str]:
    failed = (p for p in verdict.parts if p.result == ERROR)
    return [f"{row.name}: {p.name} {p.value}, asked for: {p.rule}. {p.note}".strip() for p in failed]


def _small(row: Compared) -> Compared:
    """Return a row whose elements may be held several times over in float64, as a look for causes does."""
    t, g = row.target, row.golden
    if max(x.nbytes for x in (t, g) if x is not None) <= LOOKED_AT_BYTES:
        return row
    t, g = (None if x is None else replace(x, loader=None) for x in (t, g))
    said = (
        f"over {LOOKED_AT_BYTES:,} bytes: its figures were used, its elements were not looked at for a cause"
    )
    return replace(row, target=t, golden=g, notes=(*row.notes, said))
