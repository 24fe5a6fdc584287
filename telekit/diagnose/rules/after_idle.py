"""Kernels that are slow after idle times only: a clock that drops when the device rests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.collectives import places
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier
from telekit.diagnose.rules.rested_everywhere import like_kernels
from telekit.diagnose.rules.scopes import scoped
from telekit.diagnose.trace import Floats, Ints

GAPS = (0.002, 0.01, 0.03, 0.1)
"""Idle times tried as the threshold, as shares of a step; nothing says where a firmware has it."""
LEAST_RATIO = 0.06
LEAST_SHARE = 0.015
CLEAR = 0.2
"""Slowness of the first kernels from which their share of the time does not matter: more follow them."""
SAMPLE = 48
"""Ranks that the reference and the test of all ranks together rest on."""
MOST = 0.4
"""Share of ranks from which a fault of single ranks is one of all."""
ADVICE = "raise the idle threshold of the firmware, or lock the clock"


@dataclass(frozen=True)
class AfterIdle:
    """How a rank's kernels behave after idle times.

    Parameters
    ----------
    near, far : float
        Mean relative excess of kernels soon after idle times, and of the others.
    gap_s, window_s : float
        Least idle time, and how long after it kernels are slow.
    event : int
        The slowest of the near ones.
    share : float
        Time lost over the rank's time.
    row : int
        Index of the event's trace.
    """

    near: float
    far: float
    gap_s: float
    window_s: float
    event: int
    share: float
    row: int


@dataclass(frozen=True, eq=False)
class _Kernels:
    """Kernels of one rank: event, key of its place in the step, step, start, duration."""

    event: Ints
    key: Ints
    step: Ints
    start_s: Floats
    duration_s: Floats


def _kernels(run: Run, row: int, valid: NDArray[np.bool_]) -> _Kernels:
    trace, steps = run.traces[row], run.steps[row]
    at = np.flatnonzero(trace.is_kind("kernel") & np.isin(steps.of_event, run.column[row][valid]))
    index = {n: i for i, n in enumerate(run.names)}
    name = np.array([index.get(n, -1) for n in trace.names] or [-1])[trace.name[at]]
    at, name = at[name >= 0], name[name >= 0]
    step = steps.of_event[at]
    role = (
        int(run.roles[row]) if np.bincount(run.roles)[run.roles[row]] >= 3 else -1
    )  # orders differ between roles
    key = ((role + 1) * len(run.names) + name) * 2**24 + places(step, name)
    return _Kernels(at, key, step, trace.start_s[at], trace.duration_s[at])


def _reference(parts: list[_Kernels]) -> tuple[Ints, Floats]:
    """Lower quartile of the durations at each place of a step, over ranks and steps: keys and seconds."""
    key = np.concatenate([p.key for p in parts])
    duration = np.concatenate([p.duration_s for p in parts])
    order = np.lexsort((duration, key))
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    return keys, duration[order][first + (count - 1) // 4]


def _excess(kernels: _Kernels, reference: tuple[Ints, Floats]) -> Floats:
    """Relative excess of each kernel over its place's normal; NaN where no other rank has that place."""
    keys, usual = reference
    at = np.minimum(np.searchsorted(keys, kernels.key), len(keys) - 1)
    known = (keys[at] == kernels.key) & (usual[at] > 0)
    return np.where(known, kernels.duration_s / np.where(known, usual[at], 1) - 1, np.nan)


def _sampled(run: Run) -> list[int]:
    """Pick some ranks of every role."""
    found: list[int] = []
    kinds = np.unique(run.roles)
    for role in kinds:
        rows = np.flatnonzero(run.roles == role)
        most = max(SAMPLE // len(kinds), 4)
        found += rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)].tolist()
    return found


def normal_places(run: Run) -> tuple[Ints, Floats]:
    """Return the normal duration of each kernel at its place in a step: keys of places, seconds."""
    return _reference([_kernels(run, r, run.present[r]) for r in _sampled(run)])


def pattern_after_idle(
    run: Run, row: int, valid: NDArray[np.bool_], reference: tuple[Ints, Floats]
) -> AfterIdle | None:
    """Tell whether a slow rank is slow only soon after idle times, and not rather in whole steps; else None."""
    kernels = _kernels(run, row, valid)
    excess = _excess(kernels, reference)
    known = ~np.isnan(excess)
    if known.sum() < 12:
        return None
    excess = np.minimum(excess, 10.0)
    best: tuple[float, AfterIdle] | None = None
    for share in GAPS:
        since = _since_gap(run, row, kernels, share * run.step_s)
        split = _split(since[known], excess[known])
        if split is not None and (best is None or split[0] > best[0]):
            near = known & (since <= split[1])
            best = (
                split[0],
                _measured(run, row, kernels, excess, near, known & ~near, share * run.step_s, split[1]),
            )
    if best is None or best[1].near < LEAST_RATIO or best[1].far > 0.6 * best[1].near:
        return None
    steps = _explained_by_steps(kernels.step[known], excess[known])
    clearly = best[1].far <= 0.35 * best[1].near or best[0] > 0.1 + 3 * steps
    return best[1] if clearly and best[0] > steps else None


def _since_gap(run: Run, row: int, kernels: _Kernels, least_s: float) -> Floats:
    """Seconds since the last idle time of at least ``least_s`` ended; infinite before the first."""
    broken = run.breakdowns[row]
    ends = broken.gap_end_s[broken.gap_end_s - broken.gap_start_s >= least_s]
    at = np.searchsorted(ends, kernels.start_s + 1e-9, side="right") - 1
    since = np.full(len(at), np.inf)
    since[at >= 0] = kernels.start_s[at >= 0] - ends[at[at >= 0]]
    return since


def _split(since: Floats, excess: Floats) -> tuple[float, float] | None:
    """Best cut of excesses into soon after and long after: (share of variance explained, cut in seconds)."""
    order = np.argsort(since, kind="stable")
    values, n = excess[order], len(excess)
    total = float(((values - values.mean()) ** 2).sum())
    cut = np.arange(max(n // 50, 3), int(0.9 * n))
    cut = cut[np.isfinite(since[order][cut - 1])]
    cut = cut[since[order][cut - 1] < since[order][cut]]
    if not len(cut) or total <= 0:
        return None
    left = np.cumsum(values)[cut - 1] / cut
    right = (values.sum() - left * cut) / (n - cut)
    between = np.where(left > right, cut * (n - cut) / n * (left - right) ** 2, 0.0) / total
    at = int(np.argmax(between))
    return (float(between[at]), float(since[order][cut[at] - 1])) if between[at] > 0 else None


def _explained_by_steps(step: Ints, excess: Floats) -> float:
    """Share of the variance that slow steps explain."""
    _, group = np.unique(step, return_inverse=True)
    count = np.bincount(group)
    mean = np.bincount(group, weights=excess) / count
    total = float(((excess - excess.mean()) ** 2).sum())
    return float((count * (mean - excess.mean()) ** 2).sum()) / total if total > 0 else 1.0


def _measured(
    run: Run, row: int, kernels: _Kernels, excess: Floats, near: NDArray[np.bool_], far: NDArray[np.bool_],
    gap_s: float, window_s: float,
) -> AfterIdle:  # fmt: skip
    lost = float((kernels.duration_s[near] * (1 - 1 / (1 + np.maximum(excess[near], 0)))).sum())
    slowest = int(kernels.event[np.flatnonzero(near)[np.argmax(excess[near])]])
    return AfterIdle(
        float(excess[near].mean()), float(excess[far].mean()) if far.any() else 0.0, gap_s, window_s, slowest,
        lost / float(run.wall_s[row].sum()), row,
    )  # fmt: skip


def everywhere(run: Run, valid: NDArray[np.bool_]) -> AfterIdle | None:
    """Tell whether all ranks' kernels are slower after idle times than at the same place of another step without.

    The same kernel with and without an idle time before it (who comes last to a collective does not rest) leaves
    no other reason; kernels are the same at one place of ranks that launch in one order, else of one rank. Where every
    rank rests before every such place, kernels are compared with like ones elsewhere (:func:`like_kernels`).
    """
    return _same_places(run, valid) or following(run, _sampled(run), valid)


def following(run: Run, rows: list[int], valid: NDArray[np.bool_]) -> AfterIdle | None:
    """Compare kernels after idle times with kernels between the same ones, long after any."""
    found = like_kernels(run, rows, valid)
    if found is None:
        return None
    return AfterIdle(found.excess, 0.0, found.gap_s, found.window_s, found.event, found.share, found.row)


def _same_places(run: Run, valid: NDArray[np.bool_]) -> AfterIdle | None:
    rows = _sampled(run)
    parts = [_kernels(run, r, valid[r]) for r in rows]
    if sum(len(p.key) for p in parts) < 50:
        return None
    key = np.concatenate([p.key if run.ordered else _own(p.key, i) for i, p in enumerate(parts)])
    duration = np.concatenate([p.duration_s for p in parts])
    before = np.concatenate([_gap_before(run, r, p) for r, p in zip(rows, parts, strict=True)])
    owner = np.concatenate([np.full(len(p.key), i) for i, p in enumerate(parts)])
    best: AfterIdle | None = None
    for share in GAPS:
        found = _rested(key, duration, before, share * run.step_s)
        if found is None:
            continue
        ratio, rested, excess = found
        seen = np.bincount(owner[rested], minlength=len(rows)) > 0
        slow = np.bincount(owner[rested & (excess > LEAST_RATIO)], minlength=len(rows)) > 0
        few = seen.sum() < 3 or slow.sum() < 0.7 * seen.sum()
        if few or ratio < LEAST_RATIO or (best is not None and best.near >= ratio):
            continue
        top = int(np.flatnonzero(rested)[np.argmax(excess[rested])])
        event = int(np.concatenate([p.event for p in parts])[top])
        lost = ratio / (1 + ratio) * _first_four(run, rows, parts, share * run.step_s)
        best = AfterIdle(ratio, 0.0, share * run.step_s, 0.0, event, lost, rows[owner[top]])  # fmt: skip
    return best


def _first_four(run: Run, rows: list[int], parts: list[_Kernels], gap_s: float) -> float:
    """Share of the ranks' time in which the first four kernels after idle times run."""
    spent = 0.0
    for row, part in zip(rows, parts, strict=True):
        rested = np.flatnonzero(_gap_before(run, row, part) >= gap_s)
        first = np.unique((rested[:, None] + np.arange(4)).ravel())
        spent += float(part.duration_s[first[first < len(part.key)]].sum())
    return spent / float(run.wall_s[rows].sum())


def _own(key: Ints, rank: int) -> Ints:
    """Places of one rank only."""
    return np.unique(key, return_inverse=True)[1].ravel() + rank * 2**24


def _gap_before(run: Run, row: int, kernels: _Kernels) -> Floats:
    """Idle seconds right before each kernel; 0 where it followed another."""
    broken = run.breakdowns[row]
    at = np.searchsorted(broken.gap_end_s, kernels.start_s - 1e-9)
    at = np.minimum(at, max(len(broken.gap_end_s) - 1, 0))
    if not len(broken.gap_end_s):
        return np.zeros(len(kernels.start_s))
    after = np.abs(broken.gap_end_s[at] - kernels.start_s) <= 1e-9
    return np.where(after, broken.gap_end_s[at] - broken.gap_start_s[at], 0.0)


def _rested(
    key: Ints, duration: Floats, before: Floats, least_s: float
) -> tuple[float, NDArray[np.bool_], Floats] | None:
    """Median excess of kernels after rests over the same places without; which they are, and each one's excess."""
    rested, awake = before >= least_s, before < least_s / 4
    order = np.flatnonzero(awake)
    order = order[np.lexsort((duration[order], key[order]))]
    if not len(order):
        return None
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    usual = duration[order][first + (count - 1) // 2]
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    known = (keys[at] == key) & (count[at] >= 3) & rested & (usual[at] > 0)
    if known.sum() < 20:
        return None
    excess = np.where(known, duration / np.where(known, usual[at], 1) - 1, 0.0)
    return float(np.median(excess[known])), known, excess


def frequency_findings(
    run: Run, early: Mapping[int, AfterIdle], slow: Mapping[int, Outlier], valid: NDArray[np.bool_]
) -> list[Finding]:
    """Make the findings of ranks, or of all, whose clock drops when idle."""
    together = everywhere(run, valid)
    if together is not None and (together.share >= LEAST_SHARE / 3 or together.near >= CLEAR):
        return [Finding("frequency drop after idle", "all", tuple(run.ranks.tolist()), tuple(run.number.tolist()),
                        together.share, together.near / 0.01, (_evidence(run, together),), "", ADVICE)]  # fmt: skip
    if early and len(slow) >= MOST * len(run.traces):  # the others do not rest
        worst_row = max(early, key=lambda r: slow[r].excess)
        return [Finding("frequency drop after idle", "all", tuple(run.ranks.tolist()), tuple(run.number.tolist()),
                        run.share(slow[worst_row].excess), slow[worst_row].score,
                        (_evidence(run, early[worst_row]),), "", ADVICE)]  # fmt: skip
    found = []
    for scope, members in scoped(run, sorted(early, key=lambda r: -slow[r].excess), slow):
        flagged = [m for m in members if m in early]
        worst = slow[flagged[0]]
        evidence = tuple(_evidence(run, early[m]) for m in flagged[:3])
        found.append(Finding("frequency drop after idle", scope, tuple(run.ranks[list(members)].tolist()),
                             tuple(run.number[list(worst.steps)].tolist()), run.share(worst.excess), worst.score,
                             evidence, "", ADVICE))  # fmt: skip
    return found


def _evidence(run: Run, found: AfterIdle) -> Evidence:
    row, trace = found.row, run.traces[found.row]
    text = (
        f"kernels after idle times of {found.gap_s * 1e3:.2f} ms or more take {found.near:+.0%} against the same "
        f"kernels otherwise on rank {run.ranks[row]}, other kernels {found.far:+.0%}"
    )
    return Evidence(text, int(run.ranks[row]), trace.event(found.event), float(trace.start_s[found.event]),
                    float(trace.end_s[found.event]))  # fmt: skip
