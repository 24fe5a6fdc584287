"""What is wrong by Megatron-LM's timers."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from telekit.cluster.variability import expected_largest
from telekit.diagnose.analysis.summary import DATA_BOUND
from telekit.diagnose.rules.finding import Evidence, Finding
from telekit.diagnose.rules.outliers import Outlier
from telekit.diagnose.tables.alike import FEWEST, UNEVEN, above, blocks_of, uneven, waits_less
from telekit.diagnose.tables.report import middle
from telekit.diagnose.tables.timers import SAVE, Timer
from telekit.diagnose.trace import Floats

OWN = re.compile(r"^(?:forward-compute|backward-compute|optimizer-.+)$")
"""Timers of own work that lie side by side, so that they add up."""
JITTER, MOST_RANKS = 0.03, 4096
"""Where only extremes are known: ranks may differ by so much (standard deviation over the mean), and be so many, since
such a log does not tell how many they are."""
SPREAD = 2 * JITTER * expected_largest(MOST_RANKS)
"""Slowest over fastest rank, as a share of the step, from which they are uneven: 21 %."""
SLOW_ITERATION, SLOW_LOST, FEWEST_ITERATIONS = 1.5, 0.02, 8
"""An iteration over so many medians is slow; together they must cost this share; of at least so many iterations."""


def timer_findings(timers: dict[str, Timer], step_s: float, ranks_per_node: int) -> tuple[Finding, ...]:
    """Apply all rules; the costliest first.

    Parameters
    ----------
    timers : dict of str to Timer
        By name.
    step_s : float
        Usual length of an iteration.
    ranks_per_node : int
        Ranks that share a node, in order.
    """
    found = [*_ranks(timers, step_s, ranks_per_node), *_spread(timers, step_s)]
    found += [*_data(timers, step_s), *_saves(timers, step_s), *_slow_iterations(timers)]
    return tuple(sorted(found, key=lambda f: -f.share))


def _wait_s(timers: dict[str, Timer], ranks: Iterable[int]) -> Floats:
    """Seconds a step that each rank spends in timers of exchange; NaN where none says."""
    total = {int(r): np.nan for r in ranks}
    for timer in timers.values():
        if timer.role == "wait":
            for rank, value in zip(timer.rank.tolist(), middle(timer.by_rank_s), strict=True):
                if rank in total and np.isfinite(value):
                    total[rank] = float(np.nan_to_num(total[rank]) + value)
    return np.array(list(total.values()))


def _ranks(timers: dict[str, Timer], step_s: float, ranks_per_node: int) -> list[Finding]:
    """Ranks whose own work takes longer than others': passes and optimizer together, other timers one by one."""
    found: list[Finding] = []
    own = own_work(timers)
    for timer in (
        *own,
        *(t for t in timers.values() if t.role in ("work", "data") and not OWN.search(t.name)),
    ):
        if len(timer.rank) < FEWEST:
            continue
        blocks = blocks_of(middle(timer.by_rank_s), UNEVEN * step_s)
        if blocks is not None:
            found.append(uneven(timer.rank, blocks, step_s, timer.name, ranks_per_node))
        slow = above(timer.by_rank_s, step_s, blocks)
        if slow:
            found.append(_of_ranks(timer, timers, slow, step_s))
    return found


def own_work(timers: dict[str, Timer]) -> list[Timer]:
    """Add passes and optimizer of each rank up to one timer, loading left out; nothing where no timer tells ranks."""
    parts = [t for t in timers.values() if OWN.search(t.name) and t.role == "work" and len(t.rank)]
    parts = [
        t
        for t in parts
        if np.array_equal(t.rank, parts[0].rank) and np.array_equal(t.iteration, parts[0].iteration)
    ]
    if not parts:
        return []
    total = np.sum([t.by_rank_s for t in parts], axis=0)
    loading = timers.get("batch-generator")
    if (
        loading is not None
        and any(t.name == "forward-compute" for t in parts)
        and np.array_equal(loading.iteration, parts[0].iteration)
    ):
        _, here, there = np.intersect1d(parts[0].rank, loading.rank, return_indices=True)
        total[here] -= np.nan_to_num(loading.by_rank_s[there])
    least, most = np.nanmin(total, axis=0), np.nanmax(total, axis=0)
    return [Timer("own work", "work", parts[0].iteration, least, most, parts[0].rank, total)]


def _of_ranks(timer: Timer, timers: dict[str, Timer], slow: list[Outlier], step_s: float) -> Finding:
    level, wait = middle(timer.by_rank_s), _wait_s(timers, timer.rank)
    usual = float(np.nanmedian(level))
    evidence = []
    for one in slow[:8]:
        rank = int(timer.rank[one.row])
        text = (
            f"rank {rank}: {timer.name} {level[one.row] * 1e3:.2f} ms, the median rank {usual * 1e3:.2f} ms"
        )
        if np.isfinite(wait[one.row]):
            text += f"; in exchanges {wait[one.row] * 1e3:.2f} ms, the median rank {np.nanmedian(wait) * 1e3:.2f} ms"
            if not waits_less(wait, one.row, one.excess):
                text += ", not less than the others: they may not wait for it"
        evidence.append(Evidence(text + _by_timer(timers, rank), rank))
    data = timer.role == "data"
    advice = (
        "a slow device or host, or more work than the others': a trace of this rank and of one other tells"
    )
    return Finding(
        "slow data loading" if data else "slow rank", "rank" if len(slow) == 1 else "several",
        tuple(int(timer.rank[o.row]) for o in slow), tuple(timer.iteration[list(slow[0].steps)].tolist()),
        min(slow[0].excess / step_s, 1.0), slow[0].score, tuple(evidence), timer.name,
        "look at its loader: workers, storage, CPU binding" if data else advice,
    )  # fmt: skip


def _by_timer(timers: dict[str, Timer], rank: int) -> str:
    """Name the timers that make a rank's excess, each over the median rank."""
    parts = []
    for timer in timers.values():
        if OWN.search(timer.name) and timer.role == "work" and rank in timer.rank:
            level = middle(timer.by_rank_s)
            ratio = float(level[timer.rank == rank][0] / np.nanmedian(level))
            parts.append(f"{timer.name} {ratio - 1:+.0%}")
    return f" ({', '.join(parts)})" if parts else ""


def _spread(timers: dict[str, Timer], step_s: float) -> list[Finding]:
    """Own work whose extremes lie far apart, where the ranks are not told."""
    own = [t for t in timers.values() if t.role == "work" and OWN.search(t.name) and len(t.rank) < 2]
    loading = max([_apart_s(t) for t in timers.values() if t.role == "data"], default=0.0)
    apart = [max(_apart_s(t) - (loading if t.name == "forward-compute" else 0.0), 0.0) for t in own]
    spread = sum(apart)
    if not spread >= SPREAD * step_s:
        return []
    evidence = [
        Evidence(f"{t.name}: {t.usual_s[0] * 1e3:.2f} ms on the fastest rank, {t.usual_s[1] * 1e3:.2f} on the slowest")
        for t, one in sorted(zip(own, apart, strict=True), key=lambda pair: -pair[1]) if one >= 0.1 * spread
    ]  # fmt: skip
    waits = [t for t in timers.values() if t.role == "wait" and t.usual_s[1] >= 0.5 * spread]
    evidence += [Evidence(f"{t.name}: up to {t.usual_s[1] * 1e3:.2f} ms: some rank waits") for t in waits[:4]]
    advice = "a slow rank, or stages with unequal work: --timing-log-option all tells which rank it is"
    return [Finding("uneven work", "several", (), tuple(own[0].iteration.tolist()), min(spread / step_s, 1.0), 0.0,
                    tuple(evidence), "own work", advice)]  # fmt: skip


def _apart_s(timer: Timer) -> float:
    least, most = timer.usual_s
    return float(np.nan_to_num(most - least))


def _data(timers: dict[str, Timer], step_s: float) -> list[Finding]:
    """Find loading that takes a tenth of the step, on all ranks or on one that is not told."""
    found = []
    for timer in timers.values():
        least, most = timer.usual_s
        if timer.role != "data" or most < DATA_BOUND * step_s:
            continue
        everywhere = least >= 0.5 * most
        if len(timer.rank) > 1 and not everywhere:
            continue  # the ranks are named by the rule for them
        text = f"{timer.name}: {most * 1e3:.2f} ms of an iteration of {step_s * 1e3:.2f} ms"
        text += f" on the slowest rank, {least * 1e3:.2f} ms on the fastest" if np.isfinite(least) else ""
        found.append(Finding("slow data loading", "all" if everywhere else "several", (), (), most / step_s, 0.0,
                             (Evidence(text),), timer.name,
                             "load ahead: more workers, faster storage, a cache on the node"))  # fmt: skip
    return found


def _saves(timers: dict[str, Timer], step_s: float) -> list[Finding]:
    """Find saving that takes a share of the run that matters."""
    spans = [t.iteration for t in timers.values() if t.role != "aside"]
    span = max((int(i.max() - i.min()) + 1 for i in spans if len(i)), default=0)
    found = []
    for timer in timers.values():
        if SAVE.search(timer.name) and span > 1:
            total = float(np.nansum(timer.most_s))
            share = total / (total + span * step_s)
            if share >= SLOW_LOST:
                steps = tuple(s for s in timer.iteration.tolist() if s >= 0)
                text = f"{timer.name}: {len(timer.most_s)} times, {total:.2f} s in {span} iterations of {step_s:.3f} s"
                found.append(Finding("checkpoint", "all", (), steps, share, 0.0, (Evidence(text),), timer.name,
                                     "save asynchronously, or more rarely"))  # fmt: skip
    return found


def _slow_iterations(timers: dict[str, Timer]) -> list[Finding]:
    """Find iterations that take far longer than the median one."""
    timer = timers.get("iteration-time")
    if timer is None or np.isfinite(timer.most_s).sum() < FEWEST_ITERATIONS:
        return []
    time, usual = timer.most_s, timer.usual_s[1]
    slow = np.flatnonzero(time > SLOW_ITERATION * usual)
    lost = float((time[slow] - usual).sum() / np.nansum(time)) if len(slow) else 0.0
    if lost < SLOW_LOST:
        return []
    steps = timer.iteration[slow]
    gaps = np.diff(steps)
    detail = f"every {gaps[0]} iterations" if len(gaps) > 1 and (gaps == gaps[0]).all() else ""
    worst = slow[np.argsort(-time[slow], kind="stable")][:4]
    evidence = [Evidence(f"iteration {timer.iteration[i]}: {time[i] * 1e3:.1f} ms, the median one {usual * 1e3:.1f} ms")
                for i in worst]  # fmt: skip
    return [Finding("slow iterations", "all", (), tuple(steps.tolist()), lost, 0.0, tuple(evidence), detail,
                    "see what runs then: saving, evaluation, garbage collection, storage, other jobs")]  # fmt: skip
