"""Kernels that take longer on some ranks: a slow device, an uneven load, or a clock that drops when idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.features import Run
from telekit.diagnose.rules.after_idle import frequency_findings, normal_places, pattern_after_idle
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier, persistent, transient
from telekit.diagnose.rules.scopes import scoped
from telekit.diagnose.trace import Floats

LEAST_SHARE = 0.015
"""Least loss over the step of a persistent excess; of one in single steps: :data:`LEAST_IN_STEP`."""
LEAST_IN_STEP = 0.06
LEAST_RATIO = 0.04
"""Least relative slowness of kernels, below which a device is called as good as any."""
LEAST_NODE_RATIO = 0.09
"""The same of a node against others: nodes differ by a few per cent, and there are few to estimate by how much."""
NOISE_RATIO = 0.005
FEW_RANKS = 4
"""Ranks of one role that make a reference of their own."""


@dataclass(frozen=True, eq=False)
class Excess:
    """Kernel time above what is normal, of ranks by steps.

    Parameters
    ----------
    dense_s, expert_s : (ranks, steps) arrays
        Seconds above the reference, of kernels that are not and that are experts'.
    dense, expert : (ranks, steps) arrays
        The same over the reference; NaN where there are none.
    by_name : (ranks, steps, names) array
        Relative excess of each name; NaN where there is none.
    uniform : (ranks, steps) array
        Relative slowness that at least half of the time's kernels share.
    """

    dense_s: Floats
    expert_s: Floats
    dense: Floats
    expert: Floats
    by_name: Floats
    uniform: Floats


def excess(run: Run, valid: NDArray[np.bool_] | None = None) -> Excess:
    """Compare each kernel name of each rank with the ranks that run the same, step by step; steps that count only."""
    valid = np.ones(run.wall_s.shape, bool) if valid is None else valid
    mean = np.where(valid[:, :, None], run.mean_s, np.nan)
    reference = _reference(run, mean)
    over = np.where(np.isnan(mean), 0.0, mean - reference) * run.count
    usual = np.where(np.isnan(reference), 0.0, reference) * run.count
    parts = []
    for which in (~run.experts, run.experts):
        spent, base = over[:, :, which].sum(axis=2), usual[:, :, which].sum(axis=2)
        parts += [spent, spent / np.where(base > 0, base, np.nan)]
    by_name = mean / np.where(reference > 0, reference, np.nan) - 1
    return Excess(parts[0], parts[2], parts[1], parts[3], by_name, _uniform(run, valid))


def _reference(run: Run, mean_s: Floats) -> Floats:
    """Return the normal mean duration by rank, step and name: of the rank's role where it has company, else of all."""
    with np.errstate(all="ignore"):
        found = np.broadcast_to(_quartile(mean_s), mean_s.shape).copy()
        for role in np.unique(run.roles):
            mine = run.roles == role
            if mine.sum() >= FEW_RANKS:
                found[mine] = _quartile(mean_s[mine])
    return found


def _quartile(values: Floats) -> Floats:
    """Lower quartile over ranks, NaN where no rank has a value (and then without a warning)."""
    ranked = np.sort(values, axis=0)  # NaN last
    known = (~np.isnan(values)).sum(axis=0)
    at = np.maximum((known - 1) // 4, 0)
    return np.asarray(np.take_along_axis(ranked, at[None], axis=0)[0])


def _uniform(run: Run, valid: NDArray[np.bool_]) -> Floats:
    """Time-weighted median over names of the median duration against all ranks' lower quartile, minus 1."""
    usable = ~run.experts if (~run.experts).any() else run.experts
    middle = np.where(valid[:, :, None], run.middle_s[:, :, usable], np.nan)
    if not middle.size:
        return np.full(run.wall_s.shape, np.nan)
    reference = _quartile(middle)
    ratio = middle / np.where(reference > 0, reference, np.nan) - 1
    weight = np.where(np.isnan(ratio), 0.0, np.nan_to_num(reference) * run.count[:, :, usable])
    order = np.argsort(ratio, axis=2)  # NaN last, with weight 0
    ratio, weight = np.take_along_axis(ratio, order, 2), np.take_along_axis(weight, order, 2)
    total = weight.cumsum(axis=2)
    at = (total < total[:, :, -1:] / 2).sum(axis=2, keepdims=True)
    return np.asarray(np.take_along_axis(ratio, np.minimum(at, ratio.shape[2] - 1), 2)[:, :, 0])


def device_findings(run: Run, valid: NDArray[np.bool_]) -> list[Finding]:
    """Find ranks whose kernels are slower, and say which of the kinds it is."""
    if len(run.traces) < 3 or not run.names:
        return []
    over = excess(run, valid)
    found: list[Finding] = []
    dense = np.where(valid, over.dense_s / run.step_s, np.nan)
    rows = _flag(dense, over.dense, valid)
    rows |= _flag(np.where(valid, over.uniform * _compute_share(run)[:, None], np.nan), over.uniform, valid)
    experts = _flag(np.where(valid, over.expert_s / run.step_s, np.nan), over.expert, valid)
    slow = {}
    for row, outlier in {**experts, **rows}.items():
        if row in experts and not _whole_device(over, row, outlier):
            found.append(_imbalance(run, over, experts[row]))
        elif row in rows:
            slow[row] = rows[row]
        else:
            slow[row] = outlier
    found = [_merged_imbalance(found)] if found else []
    places = normal_places(run) if slow else None
    patterns = {row: pattern_after_idle(run, row, valid[row], places) for row in slow if places is not None}
    early = {row: pattern for row, pattern in patterns.items() if pattern is not None}
    found += frequency_findings(run, early, slow, valid)
    everyone = any(f.scope == "all" for f in found)
    rest = {row: o for row, o in slow.items() if row not in early and not everyone}
    rest = _beyond_node(run, over, rest)
    for scope, members in scoped(run, sorted(rest, key=lambda r: -rest[r].excess), rest):
        found.append(_slow_device(run, over, scope, [rest[m] for m in members if m in rest], members))
    return found


def _beyond_node(run: Run, over: Excess, rows: dict[int, Outlier]) -> dict[int, Outlier]:
    """Keep rows that are slow by themselves, and those of nodes that are slower than nodes differ by nature.

    Ranks of a node share its air and its power: what they have in common is one observation, not eight.
    """
    kept = {}
    for row, outlier in rows.items():
        level = np.nanmean(np.fmax(over.dense, over.uniform)[:, list(outlier.steps)], axis=1)
        fellows = (run.node == run.node[row]) & (np.arange(len(run.node)) != row)
        others = run.node != run.node[row]
        if fellows.sum() < 3 or not others.any():
            kept[row] = outlier
            continue
        shared = float(np.nanmedian(level[fellows])) - float(np.nanquantile(level[others], 0.25))
        alone = level[row] - float(np.nanmedian(level[fellows]))
        if alone >= max(LEAST_RATIO, 0.5 * level[row]) or shared >= LEAST_NODE_RATIO:
            kept[row] = outlier
    return kept


def _compute_share(run: Run) -> Floats:
    """Share of the step in which each rank's kernels run."""
    return np.asarray(np.median(run.category("compute", "overlap"), axis=1) / run.step_s)


def _flag(share: Floats, ratio: Floats, valid: NDArray[np.bool_]) -> dict[int, Outlier]:
    """Rows that stand out both in time lost and in relative slowness, by row."""
    usual = np.where(valid, ratio, np.nan)
    relative = {o.row for o in persistent(usual, LEAST_RATIO, NOISE_RATIO)}
    found = {o.row: o for o in persistent(share, LEAST_SHARE, 0.0015) if o.row in relative}
    spikes = {o.row for o in transient(usual, 2 * LEAST_RATIO, NOISE_RATIO)}
    for outlier in transient(share, LEAST_IN_STEP, 0.002):
        if outlier.row in spikes:
            found.setdefault(outlier.row, outlier)
    return found


def _whole_device(over: Excess, row: int, outlier: Outlier) -> bool:
    """Tell whether kernels that are not the experts' are slower too, by at least a third as much."""
    steps = list(outlier.steps)
    if np.isnan(over.dense[row, steps]).all():
        return True  # nothing to compare with
    dense, expert = float(np.nanmean(over.dense[row, steps])), float(np.nanmean(over.expert[row, steps]))
    return dense > expert / 3


def _imbalance(run: Run, over: Excess, outlier: Outlier) -> Finding:
    return Finding(
        "expert imbalance", "rank", (int(run.ranks[outlier.row]),), _numbers(run, outlier), run.share(outlier.excess),
        outlier.score, (_kernel_evidence(run, over, outlier, run.experts),),
        "experts' kernels take longer, all others do not", "balance the router, or place experts by their load",
    )  # fmt: skip


def _merged_imbalance(found: list[Finding]) -> Finding:
    """One finding of all ranks with too many tokens."""
    found = sorted(found, key=lambda f: -f.share)
    first = found[0]
    ranks = tuple(r for f in found for r in f.ranks)
    steps = tuple(sorted({s for f in found for s in f.steps}))
    scope = "rank" if len(ranks) == 1 else "several"
    evidence = tuple(e for f in found[:3] for e in f.evidence)
    return Finding(
        first.kind, scope, ranks, steps, first.share, first.score, evidence, first.detail, first.advice
    )


def _slow_device(
    run: Run, over: Excess, scope: str, outliers: list[Outlier], rows: tuple[int, ...]
) -> Finding:
    worst = outliers[0]
    level = np.where(np.isnan(over.dense[worst.row]), over.expert[worst.row], over.dense[worst.row])
    level = np.fmax(level, over.uniform[worst.row])
    high = level > 0.5 * np.nanmax(level)
    some = high[run.present[worst.row]].mean() < 0.85
    kind = "slow device in some steps" if some else "slow device"
    steps = tuple(run.number[np.flatnonzero(high)].tolist())
    evidence = tuple(_kernel_evidence(run, over, o, ~run.experts) for o in outliers[:3])
    advice = "check clocks, power and temperature of the device, then replace it"
    detail = "the whole node" if scope == "node" else ""
    return Finding(kind, scope, tuple(run.ranks[list(rows)].tolist()), steps, run.share(worst.excess),
                   worst.score, evidence, detail, advice)  # fmt: skip


def _numbers(run: Run, outlier: Outlier) -> tuple[int, ...]:
    return tuple(run.number[list(outlier.steps)].tolist())


def _kernel_evidence(run: Run, over: Excess, outlier: Outlier, which: NDArray[np.bool_]) -> Evidence:
    """Show the kernel that loses most, in the step that loses most."""
    row = outlier.row
    lost = (
        np.where(np.isnan(over.by_name[row]), 0, over.by_name[row])
        * np.nan_to_num(run.mean_s[row])
        * run.count[row]
    )
    lost = np.where(which, lost, 0.0) if which.any() else lost
    step, name = np.unravel_index(int(np.argmax(lost)), lost.shape)
    took = float(run.mean_s[row, step, name])
    usual = took / (1 + float(over.by_name[row, step, name]))
    trace, steps = run.traces[row], run.steps[row]
    mine = trace.is_kind("kernel") & trace.named(_exactly(run.names[name]))
    mine &= steps.of_event == run.column[row, step]
    at = np.flatnonzero(mine)
    longest = int(at[np.argmax(trace.duration_s[at])])
    text = (
        f"{run.names[name]} takes {took * 1e3:.3f} ms on average in step {run.number[step]} on rank "
        f"{run.ranks[row]}, {usual * 1e3:.3f} ms on ranks that run the same"
    )
    return Evidence(text, int(run.ranks[row]), trace.event(longest), float(trace.start_s[longest]),
                    float(trace.end_s[longest]))  # fmt: skip


def _exactly(name: str) -> str:
    import re

    return f"^{re.escape(name)}$"
