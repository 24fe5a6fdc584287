"""What Mycroft must do, with seeds: find the rank and the cause of seven kinds of fault, and be silent otherwise."""

import numpy as np
import pytest

from telekit.diagnose.mycroft.faults import (
    CAUSES,
    FAULT_KINDS,
    NOT_DELIVERED,
    NOT_STARTED,
    NOT_TRANSMITTED,
    WAITING,
    Fault,
    draw_fault,
)
from telekit.diagnose.mycroft.job import RingJob, groups_of
from telekit.diagnose.mycroft.rootcause import blame, find_root_cause
from telekit.diagnose.mycroft.telemetry import Counters, simulate
from telekit.diagnose.mycroft.trigger import SLOW, STUCK, Watch, first_trigger, watched_ranks
from telekit.diagnose.mycroft.walk import cause_of, walk
from telekit.errors import InputError

JOBS = {
    "tp2-pp2-dp4": RingJob(),
    "tp2-pp4-dp2": RingJob(tp=2, pp=4, dp=2),
    "dp8": RingJob(tp=1, pp=1, dp=8),
}
SEEDS = range(6)


@pytest.mark.parametrize(
    ("counters", "cause"),
    [
        ((0, 0, 0), NOT_STARTED),
        ((4, 1, 1), NOT_TRANSMITTED),
        ((4, 2, 1), NOT_TRANSMITTED),
        ((4, 4, 1), NOT_DELIVERED),
        ((3, 3, 3), WAITING),
    ],
)
def test_cause_table(counters, cause):
    assert cause_of(Counters(*counters, 8)) == cause
    assert CAUSES[cause]


def test_seven_kinds_cover_the_cause_table():
    assert len(FAULT_KINDS) == 7
    assert {kind.cause for kind in FAULT_KINDS.values()} == set(CAUSES)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_seven_kinds_are_localised(kind, name):
    job, right, stuck, detected_s, located_s = JOBS[name], 0, 0, [], []
    for seed in SEEDS:
        fault = draw_fault(kind, job, seed)
        found = find_root_cause(simulate(job, fault, seed))
        assert found is not None
        right += (found.rank, found.cause) == (fault.rank, fault.cause)
        detected_s.append(found.trigger.at_s - fault.start_s)
        located_s.append(found.located_s - fault.start_s)
        if fault.stops:
            stuck += found.kind == STUCK
        assert found.origin.path and found.says == CAUSES[found.cause]
    assert right == len(SEEDS)
    if FAULT_KINDS[kind].stops:
        assert stuck >= len(SEEDS) - 1, "what stopped a moment ago looks slow"
    else:
        assert not stuck
    assert min(detected_s) > 0 and max(detected_s) <= 15
    assert max(located_s) <= 20


@pytest.mark.parametrize("name", JOBS)
def test_no_alarm_on_healthy_runs(name):
    for seed in range(8):
        logs = simulate(JOBS[name], (), seed)
        assert first_trigger(logs) is None and find_root_cause(logs) is None


@pytest.mark.parametrize("name", JOBS)
def test_a_slow_down_of_all_ranks_has_no_root_cause(name):
    job = JOBS[name]
    faults = [Fault("gpu-slow", rank, 7.0, 3.0) for rank in range(job.ranks)]
    logs = simulate(job, faults, seed=1)
    assert find_root_cause(logs) is None


def test_a_fault_below_the_thresholds_makes_no_alarm():
    assert first_trigger(simulate(RingJob(), Fault("nic-slow", 3, 7.0, 1.3), 0)) is None


def test_the_walk_crosses_groups_to_the_rank_that_did_not_start():
    job = RingJob()
    fault = Fault("process-stuck", 5, 7.0)
    logs = simulate(job, fault)
    groups = groups_of(job)
    origins = {rank: walk(logs, rank, 12.0) for rank in range(job.ranks)}
    assert origins[5] is None, "it does not wait for anybody"
    assert all(
        origin.rank == 5 and origin.cause == NOT_STARTED for rank, origin in origins.items() if rank != 5
    )
    for origin in filter(None, origins.values()):
        here = [step.rank for step in origin.path] + [5]
        for step, following in zip(origin.path, here[1:], strict=True):
            assert step.waits_for == following
            assert any({step.rank, following} <= set(group) for group in groups[step.group].tolist())
    assert (
        len({step.group for step in max(origins.values(), key=lambda o: len(o.path) if o else 0).path}) >= 2
    )


def test_counters_at_the_origin_are_for_a_person_to_check():
    logs = simulate(RingJob(), Fault("link-lost", 6, 7.0))
    found = find_root_cause(logs)
    ready, transmitted, done, chunks = found.origin.counters
    assert ready >= transmitted > done and chunks >= ready
    assert found.origin.target >= 0 and found.origin.since_s >= 7.0 - 1.5


def test_blame_goes_to_the_slow_rank_and_not_in_the_healthy_window():
    logs = simulate(RingJob(), Fault("gpu-slow", 9, 7.0, 4.0))
    before, now = blame(logs, 5.0, 5.0)[0], blame(logs, 13.0, 5.0)[0]
    key = (9, NOT_STARTED)
    assert max(now, key=lambda each: now[each].max()) == key
    assert now[key].max() > before[key].max() + 1
    assert all(waits.min() >= 0 and waits.max() <= 5.0 + 1e-9 for waits in now.values())
    found = find_root_cause(logs)
    assert found.kind == SLOW and (found.rank, found.cause) == key


def test_watched_ranks_take_one_of_each_data_group_and_ten_at_most():
    for job in (*JOBS.values(), RingJob(tp=4, pp=4, dp=4, iterations=1), RingJob(tp=1, pp=1, dp=2)):
        ranks, groups = watched_ranks(job), groups_of(job)["dp"].tolist()
        assert len(ranks) == len(set(ranks)) == min(10, job.ranks)
        touched = sum(bool(set(group) & set(ranks)) for group in groups)
        assert touched == min(10, len(groups))


def test_a_shorter_window_detects_sooner():
    logs = simulate(RingJob(), Fault("nic-down", 2, 12.0))
    late, soon = (first_trigger(logs, Watch(window_s=each)) for each in (5.0, 3.0))
    assert 12 < soon.at_s < late.at_s
    assert first_trigger(logs, after_s=14.9).at_s >= 15.0


def test_a_watch_must_make_sense():
    with pytest.raises(InputError, match=r"2 problems(.|\n)*window_s(.|\n)*slow_ratio"):
        Watch(window_s=0, slow_ratio=1)


def test_progress_tells_the_time_of_each_look():
    seen = []
    find_root_cause(simulate(RingJob(), Fault("gpu-hang", 2, 7.0)), progress=seen.append)
    assert seen and seen == sorted(seen) and seen[0] >= 10


@pytest.mark.parametrize("kind", ["pcie-slow", "nic-slow"])
def test_a_slow_card_between_stages_alone_is_no_alarm(kind):
    """Sends of a few ms become 20 to 40 ms between micro-batches of 70 and 140 ms: nothing halves."""
    job = RingJob(tp=1, pp=4, dp=1)
    for seed in range(3):
        healthy, slow = simulate(job, seed=seed), simulate(job, draw_fault(kind, job, 500 + seed), seed=seed)
        assert first_trigger(slow) is None
        ends = [logs.end_s[np.isfinite(logs.end_s)].max() for logs in (healthy, slow)]
        assert 1.02 < ends[1] / ends[0] < 1.06
