"""Steps that a trace lacks, numbers them twice or otherwise: nobody is accused, and it is said."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.diagnose.analysis.breakdown import break_down
from telekit.diagnose.analysis.clocks import align
from telekit.diagnose.analysis.common_steps import common
from telekit.diagnose.analysis.features import measure
from telekit.diagnose.analysis.steps import REGULAR, find_steps
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.marks import MARK, is_mark, step_marks
from telekit.diagnose.readers import read
from telekit.diagnose.trace import Group, Trace

JOB = TracedJob.of(16, layers=1, micro_batches=2, steps=6)


def without(trace, number, mark_only=False):
    """The trace without a step's events; or without its mark, so that nothing numbers them."""
    steps = find_steps(trace)
    mine = steps.of_event == np.searchsorted(steps.number, number)
    if not mark_only:
        return trace.select(~mine)
    return replace(trace, step=np.where(mine, -1, trace.step)).select(~(mine & is_mark(trace)))


def run(ranks, steps, lacks=(), offset_s=0.0, drift=0.0, numbers_from=None):
    """Plain jobs of a tenth of a second a step: kernel, collective; ``lacks`` are pairs of rank and step."""
    traces = []
    for rank in range(ranks):
        records = []
        for i in range(4 * steps):
            if (rank, i // 4) in lacks:
                continue
            at = i * 0.025
            begin, middle, end = (
                t * (1 + drift * rank) + offset_s * rank for t in (at, at + 0.018, at + 0.024)
            )
            step = i // 4 + (numbers_from or {}).get(rank, 0)
            records.append(
                {"name": "gemm", "kind": "kernel", "start_s": begin, "end_s": middle, "step": step}
            )
            records.append({
                "name": "ncclDevKernel_AllReduce", "kind": "communication", "start_s": middle, "end_s": end,
                "step": step, "lane": "9", "operation": "all-reduce", "sequence": i, "bytes": 1000,
                "group": Group("0", ranks, tuple(range(ranks))),
            })  # fmt: skip
        traces.append(Trace.of(records, rank=rank, world_size=ranks))
    return traces


@pytest.mark.parametrize("mark_only", [False, True])
@pytest.mark.parametrize("gone", range(6))
def test_a_step_that_one_rank_lacks_accuses_nobody(gone, mark_only):
    made = generate(job=JOB, seed=40 + gone)
    rank = 5 + gone
    traces = list(made.traces)
    traces[rank] = without(traces[rank], gone, mark_only)
    found = diagnose(traces)
    assert found.healthy, [str(f) for f in found.findings]
    assert found.ranks[rank].steps == 5 and found.ranks[rank].step_s == pytest.approx(
        found.ranks[rank - 4].step_s, rel=0.05
    )
    said = [n for n in found.notes if n.startswith(f"rank {rank}: step {gone} is not ")]
    assert len(said) == 1 and not any(n.startswith(f"rank {rank - 1}") for n in found.notes)
    inside = 0 < gone < 5  # at the ends the step is left out for all
    assert found.run.number.tolist() == [s for s in range(6) if inside or s != gone]
    assert [tuple(p) for p in np.argwhere(~found.run.present)] == ([(rank, gone)] if inside else [])


@pytest.mark.parametrize("kind", ["slow-device", "slow-data", "slow-link", "memory-stalls", "checkpoint"])
def test_a_fault_is_found_beside_a_hole(kind):
    made = generate(kind, JOB, seed=12)
    whole = diagnose(made.traces).findings[0]
    traces = list(made.traces)
    other = next(r for r in range(16) if r not in whole.ranks)
    traces[other] = without(traces[other], 3)
    found = diagnose(traces).findings[0]
    assert (found.kind, found.scope, found.ranks, found.steps) == (
        whole.kind,
        whole.scope,
        whole.ranks,
        whole.steps,
    )


def test_a_fault_is_found_in_the_one_step_that_another_rank_lacks():
    made = generate("late-rank", JOB, seed=5)
    (late,), (step,) = made.truth().ranks, made.truth().steps
    traces = list(made.traces)
    traces[late - 1] = without(traces[late - 1], step)
    (found,) = diagnose(traces).findings
    assert (found.kind, found.ranks, found.steps) == ("late", (late,), (step,))


def test_a_step_ends_where_a_hole_begins():
    (trace,) = run(1, 6, lacks={(0, 2), (0, 3)})
    steps = find_steps(trace)
    assert steps.number.tolist() == [0, 1, 2, 4, 5] and steps.missing.tolist() == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert steps.edges_s.tolist() == pytest.approx([0, 0.1, 0.199, 0.4, 0.5, 0.599])
    assert steps.seen.tolist() == [0, 1, 4, 5] and steps.incomplete == ()
    assert np.bincount(steps.of_event).tolist() == [8, 8, 0, 8, 8]
    assert break_down(trace, steps).wall_s.sum() == pytest.approx(0.599)
    found = diagnose(trace)
    assert found.ranks[0].steps == 4 and found.ranks[0].step_s == pytest.approx(
        (0.1 + 0.099 + 0.1 + 0.099) / 4
    )
    assert "steps 2 to 3 are in no trace" in found.notes


def test_every_tenth_step_marked_leaves_no_hole():
    records = []
    for number in range(0, 60, 10):
        if number != 40:
            records.append(
                {"name": f"iteration {number}", "kind": "host", "start_s": number, "end_s": number + 9.9}
            )
        records.append({"name": "gemm", "kind": "kernel", "start_s": number + 0.1, "end_s": number + 9})
    steps = find_steps(Trace.of(records))
    assert steps.seen.tolist() == [0, 10, 20, 30, 50] and steps.missing.sum() == 1
    short = [r | {"end_s": r["start_s"] + 1} for r in records]
    assert find_steps(Trace.of(short)).missing.sum() == 4  # nine of ten steps were not recorded


@pytest.mark.parametrize(("ranks", "steps"), [(4, 4), (6, 6), (8, 8), (12, 12)])
def test_ranks_that_each_lack_another_step_are_compared_and_aligned(ranks, steps):
    lacks = {(r, r) for r in range(ranks)}
    traces = run(ranks, steps, lacks, offset_s=11.56, drift=1e-5)
    measured = measure(traces)
    clocks = align(measured.traces, measured.collectives)
    true_s = np.linspace(0, 0.1 * steps, 7)
    for rank in range(ranks):
        own = true_s * (1 + 1e-5 * rank) + 11.56 * rank
        assert clocks.common_s(rank, own) == pytest.approx(true_s, abs=2e-6)
    assert set(clocks.part.tolist()) == {0} and clocks.jumps == ()
    found = diagnose(traces)
    assert found.healthy and found.clocks is not None
    assert found.run.number.tolist() == list(range(1, steps - 1))
    assert "rank 2: step 2 is not in its trace" in found.notes


def test_clocks_of_ranks_that_never_meet_are_parts():
    lacks = {(r, s) for r in range(4) for s in range(6) if (r < 2) != (s < 3)}
    measured = measure(run(4, 6, lacks, offset_s=3.0))
    clocks = align(measured.traces, measured.collectives)
    assert clocks.part.tolist() == [0, 0, 2, 2]
    assert clocks.offset_s == pytest.approx([0, 3, 0, 3])


def test_a_rank_that_counts_otherwise_is_compared_by_place():
    traces = run(4, 6, numbers_from={1: 100})
    found = diagnose(traces)
    assert found.healthy and found.run.number.tolist() == list(range(6)) and found.run.present.all()
    assert [n for n in found.notes if "their place" in n] == [
        "rank 1 counts its steps from 100, others from 0: they are compared by their place"
    ]
    assert not any("not in its trace" in n for n in found.notes)


def test_what_pairs_of_ranks_have_in_common_is_used():
    steps = [
        find_steps(t)
        for t in run(6, 12, {(r, s) for r in range(6) for s in range(12) if not 2 * r <= s < 2 * r + 3})
    ]
    shared = common(steps)
    assert shared.number.tolist() == [2, 4, 6, 8, 10]
    assert [np.flatnonzero(p).tolist() for p in shared.present] == [[0], [0, 1], [1, 2], [2, 3], [3, 4], [4]]
    filled = shared.filled(np.arange(30.0).reshape(6, 5))
    assert filled[1].tolist() == [5, 6, 5.5, 5.5, 5.5]


def marks(family, numbers, start, length, inside=0.0):
    return [
        {"name": f"{family}{n}", "kind": "host", "start_s": start + i * length + inside,
         "end_s": start + (i + 1) * length - inside}
        for i, n in enumerate(numbers)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("families", "wanted"),
    [
        (
            [marks("ProfilerStep#", range(5, 9), 0, 10), marks("iteration ", range(4), 0, 10, 0.5)],
            [5, 6, 7, 8],
        ),
        (
            [marks("iteration ", range(4), 0, 10), marks("ProfilerStep#", range(5, 9), 0, 10, 0.5)],
            [5, 6, 7, 8],
        ),
        ([marks("train_step ", range(4), 0, 10), marks("iter ", range(16), 0, 2.5, 0.1)], [0, 1, 2, 3]),
        ([marks("step ", [3], 0, 40), marks("iteration ", range(4), 0, 10)], [0, 1, 2, 3]),
    ],
)
def test_one_of_two_numberings_is_followed(families, wanted):
    records = [r for family in families for r in family]
    records += [
        {"name": "gemm", "kind": "kernel", "start_s": 10 * i + 2.0, "end_s": 10 * i + 9.0} for i in range(4)
    ]
    trace = Trace.of(records, rank=0)
    steps = find_steps(trace)
    assert steps.number.tolist() == wanted and steps.incomplete == () and not steps.missing.any()
    assert np.diff(steps.edges_s[:-1]).tolist() == [10, 10, 10]
    assert len(step_marks(trace).passed) == 1 and "not by those like" in steps.note
    assert steps.note in diagnose(trace).notes


def test_the_profilers_numbers_are_read_from_a_file(tmp_path):
    records = [("ProfilerStep#5", 0, 1000), ("iteration 0", 50, 950), ("ProfilerStep#6", 1000, 2000),
               ("iteration 1", 1050, 1950)]  # fmt: skip
    events = [
        {"ph": "X", "cat": "user_annotation", "name": n, "pid": 1, "tid": 1, "ts": a, "dur": b - a}
        for n, a, b in records
    ]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": t, "dur": 2}
        for t in (5, 100)
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = read(path)
    assert set(trace.step.tolist()) == {5, 6} and find_steps(trace).number.tolist() == [5, 6]


@pytest.mark.parametrize(
    "name", ["iteration 99999999999999999999", "step 9999999999", "ProfilerStep#" + "9" * 400]
)
def test_a_number_beyond_any_step_is_a_name(name):
    assert not MARK.match(name) and not MARK.match("step_fn")
    records = [{"name": name, "kind": "host", "start_s": 0, "end_s": 2}]
    records += [{"name": "gemm", "kind": "kernel", "start_s": 0.5, "end_s": 1}]
    assert find_steps(Trace.of(records)).found_by == "whole trace"
    assert MARK.match("iteration 999999999")["number"] == "999999999"


def regular_slowly(trace):
    """The rarest name that recurs regularly over half of the trace, name by name."""
    best = None
    for index, name in enumerate(trace.names):
        starts = trace.start_s[trace.name == index]
        gaps = np.diff(starts)
        if len(gaps) < 2 or gaps.sum() < 0.5 * (trace.span_s[1] - trace.span_s[0]) or gaps.mean() == 0:
            continue
        if gaps.std() < REGULAR * gaps.mean() and (best is None or len(starts) < best[0]):
            best = len(starts), name
    return "whole trace" if best is None else f"every {best[1]}"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=40))
def test_what_recurs_is_found_as_one_by_one(events):
    trace = Trace.of(
        [{"name": f"k{n}", "kind": "kernel", "start_s": t, "end_s": t + 1} for n, t in sorted(events)]
    )
    assert find_steps(trace).found_by == regular_slowly(trace)
