"""Devices that idle because of their host: launches, pauses, loading, allocation, saving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from telekit.diagnose.analysis.breakdown import idle_event, longest_of
from telekit.diagnose.analysis.features import Run
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.host_pauses import pauses_like
from telekit.diagnose.rules.outliers import Outlier, healthy_level, persistent, transient
from telekit.diagnose.rules.scopes import scoped
from telekit.diagnose.trace import Floats

NAMED = {
    "data": ("slow data loading", "", "more workers, prefetching, or faster storage"),
    "checkpoint": ("checkpoint", "", "save asynchronously, or less often"),
    "memory": ("memory", "allocation on the device stalls it", "let the allocator keep its memory (expandable "
               "segments, a warm-up at the largest shape)"),
    "collector": ("pause", "garbage collection", "collect manually, on all ranks in the same step"),
    "monitor": ("pause", "monitoring", "move monitors to cores of their own and make them rarer"),
}  # fmt: skip
"""Categories whose events tell the kind: kind, detail, advice."""
LEAST_SHARE = {"data": 0.02, "checkpoint": 0.01, "memory": 0.01, "collector": 0.005, "monitor": 0.005}
GENERIC = ("launch", "host", "silent", "sync")
LEAST_GENERIC = 0.025
LEAST_IN_STEP = 0.08
COMMON_DATA, COMMON_LAUNCH, COMMON_NAMED = 0.07, 0.1, 0.03
"""Shares of the median rank's time from which all ranks are said to have a fault together."""
COMMON_LEAST = 0.02
"""Share that the median rank must lose to its host itself, where hosts are slow now here, now there, and all wait."""
COMMON_STEP = 0.2
"""Idle time of the median rank in one step above that of the others, over the step, that stops all together."""
DEAR = 3.0
"""The same ratio where the time lost is too short to tell by itself."""
FEW_LAUNCHES = 15
"""An idle time shorter than this many usual times between launches is no pause."""
PAUSE = (
    "pause",
    "the host stopped",
    "look for garbage collection, monitors and other processes on this host",
)
ROTATES = "another rank each time, like garbage collection"
SLOW_LAUNCH = 2.0
"""Ratio of a rank's launching call to the others' that tells slow launching from a pause."""
ALIKE = 0.5
"""Share of ranks from which slow launching is a fault of all."""
ONE_GAP = 0.12
"""Share of an excess that the longest idle time makes up, from which it is a pause and not slow launching."""


def host_findings(run: Run, valid: NDArray[np.bool_]) -> list[Finding]:
    """Find ranks, nodes or all whose devices wait for their hosts."""
    single = _single(run, valid)
    common = [f for f in _common(run, valid) if not _of_some(run, f, single)]
    return common + [f for f in single if not _covered(f, common)]


def _of_some(run: Run, finding: Finding, single: Sequence[Finding]) -> bool:
    """Tell whether the ranks that lose what all seem to lose are those that another finding of a host names."""
    if finding.kind != "slow launch":
        return False
    lost = np.median(run.category("launch", "host", "silent"), axis=1) / run.step_s
    losing = set(run.ranks[lost >= COMMON_LAUNCH].tolist())
    return bool(losing) and any(f.scope != "all" and losing <= set(f.ranks) for f in single)


def _covered(finding: Finding, common: Sequence[Finding]) -> bool:
    """Tell whether what one rank shows is no more than what all show."""
    alike = {"slow launch", "pause"}
    return any(
        (f.kind == finding.kind or {f.kind, finding.kind} <= alike) and finding.share < 2 * f.share
        for f in common
    )


def _single(run: Run, valid: NDArray[np.bool_]) -> list[Finding]:
    if len(run.traces) < 3:
        return []
    found: list[Finding] = []
    for category, (kind, detail, advice) in NAMED.items():
        share = _above(run, run.category(category), valid, by_role=category == "data")
        rows = _flag(share, LEAST_SHARE[category], max(4 * LEAST_SHARE[category], 0.03))
        rows = _clear(share, LEAST_IN_STEP) | rows
        found += _findings(run, rows, kind, detail, advice, category)
    share = np.fmax(_above(run, run.category("launch", "host"), valid, by_role=False),
                    _above(run, run.category(*GENERIC), valid, by_role=True))  # fmt: skip
    together = _nodes(run, share)
    rows = together | _dear_launches(run, share) | _flag(share, LEAST_GENERIC, LEAST_IN_STEP)
    rotating = _rotating(run, share)
    if rotating is not None:
        return [*found, rotating]
    kinds = {row: _kind(run, share, o) for row, o in rows.items()}
    hidden = _hidden(run, valid, {r: o for r, o in rows.items() if kinds[r] == PAUSE and r not in together})
    if hidden is not None:
        found.append(hidden)
        rows = {r: o for r, o in rows.items() if kinds[r] != PAUSE}
    alone = sum(k[0] == "late" for k in kinds.values()) == 1  # several late ones are stopped, not lost
    kinds = {r: PAUSE if k[0] == "late" and (r in together or not alone) else k for r, k in kinds.items()}
    for named in dict.fromkeys(kinds.values()):
        mine = {row: o for row, o in rows.items() if kinds[row] == named}
        if named[0] == "slow launch" and _launches_alike(run, set(mine)):
            level = np.where(np.isnan(share[list(mine)]), 0, share[list(mine)]).max(axis=0)
            found.append(_all(run, level, *named, ""))
        else:
            found += _findings(run, mine, *named, "")
    return found


def _nodes(run: Run, share: Floats) -> dict[int, Outlier]:
    """Rows of nodes that stand out among nodes: what hits three quarters of a node's ranks in the same step."""
    nodes, where = np.unique(run.node, return_inverse=True)
    if len(nodes) < 2 or np.bincount(where).min() < 3:
        return {}
    level = np.stack([_level(share[where == n]) for n in range(len(nodes))])
    found = {}
    for node, outlier in _flag(level, LEAST_GENERIC * 0.6, LEAST_IN_STEP * 0.3, 0.0005).items():
        for row in np.flatnonzero(where == node):
            mean = float(np.nan_to_num(share[row, list(outlier.steps)]).sum()) / share.shape[1]
            found[int(row)] = Outlier(int(row), outlier.persistent, mean, outlier.steps, outlier.score)
    return found


def _dear_launches(run: Run, share: Floats) -> dict[int, Outlier]:
    """Rows whose launching calls take much longer than the others', if that costs anything at all."""
    cost = run.launch_cost_s[:, 0]
    if np.isnan(cost).any():
        return {}
    ratio = cost / np.median(cost)
    level = np.median(np.nan_to_num(share), axis=1)
    dear = np.flatnonzero((ratio >= DEAR) & (level >= LEAST_GENERIC / 10))
    steps = tuple(range(share.shape[1]))
    return {int(r): Outlier(int(r), True, float(level[r]), steps, float(ratio[r])) for r in dear}


def launch_notes(run: Run, findings: Sequence[Finding]) -> list[str]:
    """Name hosts that launch much more slowly than the others, though it costs too little to be a finding."""
    if len(run.traces) < 3:
        return []
    cost = run.launch_cost_s
    if np.isnan(cost).any():
        return []
    usual = np.median(cost, axis=0)
    named = {r for f in findings for r in f.ranks}
    slow = np.flatnonzero((cost >= DEAR * usual).any(axis=1))
    return [
        f"rank {run.ranks[r]} takes {cost[r, 1] * 1e6:.0f} us from launch to launch ({cost[r, 0] * 1e6:.0f} us in the "
        f"call), the median rank {usual[1] * 1e6:.0f} ({usual[0] * 1e6:.0f}): its host is slow, at little cost so far"
        for r in slow[:4].tolist() if int(run.ranks[r]) not in named
    ]  # fmt: skip


def _launches_alike(run: Run, rows: set[int]) -> bool:
    """Tell whether the other hosts launch as slowly; their devices only do not show it, since they wait for these."""
    if len(rows) >= ALIKE * len(run.traces):
        return True
    cost = run.launch_cost_s
    mine = np.isin(np.arange(len(cost)), list(rows))
    if np.isnan(cost).any() or mine.all():
        return False
    return bool((np.median(cost[mine], axis=0) < 1.3 * np.median(cost[~mine], axis=0)).all())


def _above(run: Run, seconds: Floats, valid: NDArray[np.bool_], by_role: bool) -> Floats:
    """Excess of each rank over the others in each step, over the usual step; NaN where invalid.

    By role: what a role has in its usual step is its nature (the first stage loads, others wait), and left out.
    """
    share = np.where(valid, seconds, np.nan) / run.step_s
    found = share - _level(share)
    for role in np.unique(run.roles) if by_role else ():
        mine = run.roles == role
        if 4 <= mine.sum() < len(mine) and not np.isnan(found[mine]).all():
            found[mine] -= max(float(np.nanmedian(found[mine])), 0.0)
    return found


def _level(values: Floats) -> Floats:
    """Lower quartile over ranks; 0 in steps that are valid nowhere."""
    known = ~np.isnan(values).all(axis=0)
    level = np.zeros(values.shape[1])
    if known.any():
        level[known] = healthy_level(values[:, known])
    return level


def _clear(share: Floats, least_in_step: float) -> dict[int, Outlier]:
    """Rows with long times in a category whose events name the cause: no chance is left to rule out."""
    high = np.nan_to_num(share) >= least_in_step
    return {
        int(r): Outlier(int(r), False, float(share[r][high[r]].sum()) / share.shape[1],
                        tuple(np.flatnonzero(high[r]).tolist()), float(np.nanmax(share[r])) / 0.01)
        for r in np.flatnonzero(high.any(axis=1))
    }  # fmt: skip


def _flag(share: Floats, least: float, least_in_step: float, noise: float = 0.002) -> dict[int, Outlier]:
    found = {o.row: o for o in transient(share, least_in_step, noise) if o.excess >= least / 4}
    return found | {o.row: o for o in persistent(share, least, 0.0015)}


def _kind(run: Run, share: Floats, outlier: Outlier) -> tuple[str, str, str]:
    """Slow launching, a pause, or one late arrival, by the pattern of a rank's idle time: (kind, detail, advice)."""
    steps = list(outlier.steps)
    extra = share[outlier.row, steps] * run.step_s
    longest = run.longest_idle_s[outlier.row, steps]
    one = float(np.median(longest / np.maximum(extra, 1e-12)))
    cost = run.launch_cost_s
    known = cost[:, 0][~np.isnan(cost[:, 0])]
    slower = len(known) > 0 and cost[outlier.row, 0] > SLOW_LAUNCH * np.median(known)
    many = run.traces[outlier.row].is_kind("launch").sum() > 4 * FEW_LAUNCHES * len(run.number)
    if slower or (many and float(np.median(longest)) < FEW_LAUNCHES * cost[outlier.row, 1]):
        one = 0.0  # its launches are slow themselves, or its idle times no longer than some of them
    if len(steps) == 1 and extra[0] > 1.0 * run.step_s and one > ONE_GAP:
        return "late", "arrived at a collective long after the others", "look at this rank's log at that time"
    if one > ONE_GAP:
        return PAUSE
    return "slow launch", "", "isolate the process's cores, fuse kernels, or capture graphs"


def _findings(
    run: Run, rows: dict[int, Outlier], kind: str, detail: str, advice: str, category: str
) -> list[Finding]:
    found = []
    for scope, members in scoped(run, sorted(rows, key=lambda r: -rows[r].excess), rows):
        flagged = [rows[m] for m in members if m in rows]
        worst = flagged[0]
        evidence = tuple(_evidence(run, o, category) for o in flagged[:3])
        steps = tuple(sorted({int(run.number[s]) for o in flagged for s in o.steps}))
        ranks = tuple(run.ranks[list(members)].tolist())
        words = (detail, advice)
        if scope == "node" and (kind, detail, advice) == PAUSE:
            words = ("ranks of one node, like monitoring", NAMED["monitor"][2])
        found.append(
            Finding(kind, scope, ranks, steps, run.share(worst.excess), worst.score, evidence, *words)
        )
    if len(found) < 2 or (len(found) == 2 and {f.scope for f in found} == {"rank"}):
        return found
    if {f.scope for f in found} != {"rank"} and len({f.steps for f in found}) > 1:
        return found  # nodes, each at its own time
    ranks = tuple(r for f in found for r in f.ranks)
    steps = tuple(sorted({s for f in found for s in f.steps}))
    worst_one = max(found, key=lambda f: f.share)
    evidence = tuple(f.evidence[0] for f in found[:3])
    return [
        Finding(kind, "several", ranks, steps, worst_one.share, worst_one.score, evidence, detail, advice)
    ]


def _evidence(run: Run, outlier: Outlier, category: str) -> Evidence:
    """Show the longest time of what was lost in the worst step, and what the host did in it."""
    row = outlier.row
    names = (category,) if category else GENERIC
    seconds = run.category(*names)
    step = max(outlier.steps, key=lambda s: (run.present[row, s], seconds[row, s]))
    at = run.column[row, step]
    trace = run.traces[row]
    start, length = longest_of(trace, run.steps[row], int(at), names)
    lost = float(seconds[row, step])
    if not length:
        return Evidence(
            f"rank {run.ranks[row]} lost {lost * 1e3:.1f} ms in step {run.number[step]}", int(run.ranks[row])
        )
    event = idle_event(trace, start, start + length, names) or {}
    doing = f"while its host was in {event['name']}" if event else "while its host showed no event"
    text = (
        f"device of rank {run.ranks[row]} idled {lost * 1e3:.1f} ms in step {run.number[step]}, "
        f"{length * 1e3:.1f} ms at once {doing}"
    )
    if len(run.traces) > 1:
        text += f"; the median rank {np.median(seconds[:, step]) * 1e3:.1f} ms"
    return Evidence(text, int(run.ranks[row]), event, start, start + length)


def _rotating(run: Run, share: Floats) -> Finding | None:
    """Pauses that hit one rank after another, of one node or of all: nobody's device, each step somebody's host."""
    high = np.nan_to_num(share) >= LEAST_IN_STEP
    who = np.flatnonzero(high.any(axis=1))
    if len(who) < 3 or high.sum() < 4:
        return None
    nodes = np.unique(run.node[who])
    one_node = len(nodes) == 1 and len(np.unique(run.node)) > 1 and high.sum(axis=1).max() <= 0.6 * high.sum()
    one_node = one_node and high.sum() >= 2 * high.any(axis=0).sum()  # a monitor stops several at once
    some = (high & (np.nan_to_num(share) >= 0.12)).any(axis=0)
    everywhere = some.sum() >= 3 and some.mean() >= 0.5 and high.sum() <= 0.4 * high.size
    everywhere = everywhere and high.sum(axis=1).max() <= 0.5 * some.sum()
    if not one_node and not everywhere:
        return None
    lost = np.where(high, np.nan_to_num(share), 0.0)
    order = who[np.argsort(-lost[who].sum(axis=1))]
    outliers = [
        Outlier(int(r), False, float(lost[r].mean()), tuple(np.flatnonzero(high[r]).tolist()), 0.0)
        for r in order
    ]
    kind, detail, advice = _kind(run, share, outliers[0])
    if kind == "slow launch":
        return None
    if kind == "late":  # one rank after another is not one that is lost
        kind, detail, advice = PAUSE
    if kind == "pause":
        detail = "like monitoring" if one_node else ROTATES
        advice = NAMED["monitor" if one_node else "collector"][2]
    ranks = run.ranks[order].tolist()
    if one_node:
        ranks += [r for r in run.ranks[run.node == nodes[0]].tolist() if r not in ranks]
    return Finding(
        kind, "node" if one_node else "several", tuple(ranks),
        tuple(run.number[np.flatnonzero(high.any(axis=0))].tolist()), run.share(float(lost.max(axis=0).mean())),
        float(high.sum()), tuple(_evidence(run, o, "") for o in outliers[:3]), detail, advice,
    )  # fmt: skip


def _hidden(run: Run, valid: NDArray[np.bool_], rows: dict[int, Outlier]) -> Finding | None:
    """Pauses of which devices show some only, as hosts run ahead: one rank after another, by the silence of hosts."""
    rows = {r: o for r, o in rows.items() if not o.persistent}
    if not rows:
        return None
    known = float(np.median([run.longest_idle_s[r, o.steps[0]] for r, o in rows.items()]))
    high = pauses_like(run, valid, known)
    for row, outlier in rows.items():
        high[row, list(outlier.steps)] = True
    who = np.flatnonzero(high.any(axis=1))
    in_turn = high.sum(axis=1).max() <= max(0.5 * high.sum(), 1) and high.any(axis=0).mean() >= 0.5
    if len(who) < 3 or high.sum() > 0.4 * high.size or not in_turn:
        return None
    worst = max(rows.values(), key=lambda o: o.excess)
    order = [*sorted(rows, key=lambda r: -rows[r].excess), *(r for r in who.tolist() if r not in rows)]
    steps = tuple(run.number[np.flatnonzero(high.any(axis=0))].tolist())
    evidence = tuple(_evidence(run, o, "") for o in list(rows.values())[:3])
    return Finding("pause", "several", tuple(run.ranks[order].tolist()), steps,
                   run.share(sum(o.excess for o in rows.values())), worst.score, evidence, ROTATES,
                   NAMED["collector"][2])  # fmt: skip


def _common(run: Run, valid: NDArray[np.bool_]) -> list[Finding]:
    """Find what all ranks suffer together, against fixed shares of their time: no peer is left to compare with."""
    found: list[Finding] = []
    for category, (kind, detail, advice) in NAMED.items():
        least = COMMON_DATA if category == "data" else COMMON_NAMED
        q = 0.5 if category == "data" else 0.3  # not all stages load, but of writers half are some
        level = _median_share(run, run.category(category), valid, q)
        if float(np.median(level)) >= least:
            found.append(_all(run, level, kind, detail, advice, category))
        elif len(level) > 2 and (level - np.median(level)).max() >= COMMON_STEP / 2:
            found.append(
                _all(run, np.where(level >= COMMON_STEP / 2, level, 0), kind, detail, advice, category)
            )
    whole = run.category("launch", "host", "silent")
    level = np.where(valid, whole, 0).sum(axis=0) / np.maximum(valid.sum(axis=0), 1) / run.step_s
    usual = float(np.median(whole, axis=1).mean()) / run.step_s  # of ranks that lose it in most steps
    slow = float(np.median(_median_share(run, whole, valid, 0.75)))  # of ranks that the others wait for
    usual = max(usual, slow if float(np.median(_median_share(run, whole, valid))) >= COMMON_LEAST else 0.0)
    low = _median_share(run, whole, valid, 0.25)
    extra = low - np.median(low)
    if len(low) > 2 and not found and extra[1:].max() >= COMMON_STEP and np.median(low) < COMMON_LAUNCH:
        found.append(_all(run, np.where(extra >= COMMON_STEP, extra, 0), "pause", "all ranks at once",
                          "look for saves, evaluations and monitors at these steps", ""))  # fmt: skip
    elif usual >= COMMON_LAUNCH and _starved(run) >= COMMON_LAUNCH:
        found.append(_all(run, level, "slow launch", "host-bound",
                          "fuse kernels, capture graphs, isolate the process's cores", ""))  # fmt: skip
    return found


def _median_share(run: Run, seconds: Floats, valid: NDArray[np.bool_], q: float = 0.5) -> Floats:
    """Share of the usual step that the median rank (or another quantile) loses, by step."""
    usable = valid.any(axis=0)
    level = np.zeros(seconds.shape[1])
    if usable.any():
        level[usable] = np.nanquantile(np.where(valid, seconds, np.nan)[:, usable], q, axis=0) / run.step_s
    return level


def _starved(run: Run) -> float:
    """Share in which devices waited with nothing queued: of a rank that the others wait for (upper quartile)."""
    shares = [numbers.get("host_bound_share", 0.0) for numbers in run.launching]
    return float(np.quantile(shares[:: max(len(shares) // 16, 1)], 0.75)) if shares else 0.0


def _all(run: Run, level: Floats, kind: str, detail: str, advice: str, category: str) -> Finding:
    seconds = run.category(category) if category else run.category("launch", "host", "silent")
    worst = int(np.argmax(seconds.max(axis=1)))
    steps = tuple(np.flatnonzero(level > 0.5 * level.max()).tolist())
    evidence = (_evidence(run, Outlier(worst, True, 0.0, steps, 0.0), category),)
    return Finding(kind, "all", tuple(run.ranks.tolist()), tuple(run.number[list(steps)].tolist()),
                   run.share(float(level.mean())), float(level.max() / 0.01), evidence, detail, advice)  # fmt: skip
