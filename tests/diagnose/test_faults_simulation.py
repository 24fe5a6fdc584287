"""The generated traces obey the rules of hosts, streams and collectives; checked from the traces alone."""

from dataclasses import replace

import numpy as np
import pytest

from telekit.diagnose.faults import FAULT_KINDS, TracedJob, draw_job, generate
from telekit.diagnose.faults.kineto import write_kineto
from telekit.diagnose.readers import read
from telekit.diagnose.trace import COLUMNS, KINDS
from telekit.errors import InputError

STILL = {"clock_offset_s": 0.0, "clock_drift": 0.0}
NS = 2e-9


@pytest.fixture(scope="module")
def run():
    """A healthy run on one true clock."""
    return generate(job=TracedJob.of(16, steps=2, **STILL))


def true_start(trace):
    """Starts from a base that all ranks share."""
    return trace.start_s + (trace.base_ns - 1_750_000_000_000_000_000) / 1e9


def test_one_trace_a_rank_with_columns_in_order(run):
    assert run.traces.ranks == tuple(range(16))
    for trace in run.traces:
        assert (np.diff(trace.start_s) >= 0).all()
        assert (trace.end_s >= trace.start_s).all()
        assert {KINDS[k] for k in np.unique(trace.kind)} == {
            "host", "launch", "kernel", "communication", "copy", "wait", "data",
        }  # fmt: skip
        assert trace.world_size == 16


def test_events_of_a_stream_and_calls_of_a_thread_do_not_overlap(run):
    for trace in run.traces:
        for lane, where in enumerate(trace.lanes):
            own = trace.lane == lane
            if not where.on_device:
                own &= trace.is_kind("launch", "wait", "data")
            assert (trace.start_s[own][1:] >= trace.end_s[own][:-1] - NS).all(), where


def test_a_kernel_starts_as_soon_as_everything_it_waits_for_is_there(run):
    job = run.job
    for trace in (run.traces.rank(0), run.traces.rank(11)):
        launch = trace.is_kind("launch")
        launched = dict(zip(trace.correlation[launch].tolist(), trace.end_s[launch].tolist(), strict=True))
        free, joined = -np.inf, -np.inf
        device = np.flatnonzero(trace.is_kind("kernel", "copy", "communication"))
        for i in device[np.argsort(trace.correlation[device], kind="stable")]:  # as issued
            start, ready = trace.start_s[i], launched[int(trace.correlation[i])] + job.device_launch_s
            assert start >= ready - NS
            if trace.is_kind("communication")[i]:
                if trace.names[trace.name[i]].find("ReduceScatter") < 0 or trace.bytes[i] == 16 * 2**20:
                    joined = max(
                        joined, trace.end_s[i] + 1e-6
                    )  # computing waits for all but the gradients' sums
                continue
            known = max(ready, max(free, joined) + 6e-7)
            if not trace.named("l2norm")[i]:  # which waits for the gradients, too
                assert start == pytest.approx(known, abs=NS)
            free = trace.end_s[i]


def test_a_collective_starts_moving_when_its_last_member_is_there(run):
    seen = {}
    for trace in run.traces:
        for i in np.flatnonzero(trace.is_kind("communication") & (trace.peer < 0)):
            group = trace.groups[trace.group[i]]
            key = group.ranks, int(trace.sequence[i])
            start = true_start(trace)[i]
            seen.setdefault(key, []).append(
                (start, start + trace.duration_s[i], int(trace.bytes[i]), trace.rank)
            )
    assert len({len(ranks) for ranks, _ in seen}) > 1
    for (ranks, _), members in seen.items():
        starts, ends, sizes, who = (np.array(c) for c in zip(*members, strict=True))
        assert tuple(sorted(who)) == ranks
        assert np.ptp(ends) <= 4e-9  # all leave together
        assert len(set(sizes)) == 1
        moving = ends[0] - starts.max()
        rate = run.job.inside_bytes_per_s if sizes[0] == 16 * 2**20 else run.job.network_bytes_per_s
        least = sizes[0] * (len(ranks) - 1) / len(ranks) / rate
        assert 0.9 * least < moving < 1.4 * least + 60e-6
    waited = [np.ptp([m[0] for m in members]) for members in seen.values()]
    assert max(waited) > 1e-4  # early ranks' kernels are long


def test_both_ends_of_a_pair_of_stages_finish_together(run):
    low, high = run.traces.rank(3), run.traces.rank(11)
    ends = []
    for trace, peer in ((low, 11), (high, 3)):
        rows = np.flatnonzero(trace.peer == peer)
        ends.append(true_start(trace)[rows] + trace.duration_s[rows])
    assert len(ends[0]) > 8
    assert ends[0] == pytest.approx(ends[1], abs=4e-9)


def test_the_host_runs_ahead_by_its_queue_at_most():
    base = TracedJob.of(8, steps=1, micro_batches=4, **STILL)
    for depth in (4, 40):
        trace = generate(job=replace(base, queue_depth=depth)).traces.rank(0)
        launches, device = trace.is_kind("launch"), trace.is_kind("kernel", "communication", "copy")
        ends = dict(zip(trace.correlation[device].tolist(), trace.end_s[device].tolist(), strict=True))
        ended = np.array([ends[c] for c in trace.correlation[launches].tolist()])
        done = trace.end_s[launches]
        held = done[depth:] - ended[:-depth]
        assert (held >= -NS).all()


def test_the_same_seed_gives_the_same_run_and_another_another():
    job = TracedJob.of(8, steps=1)
    one, same, other = (generate(job=job, seed=s).traces.rank(5) for s in (3, 3, 4))
    for column in COLUMNS:
        assert (getattr(one, column) == getattr(same, column)).all()
    assert len(one) == len(other)
    assert not np.array_equal(one.start_s, other.start_s)


def test_clocks_are_off_by_node_and_drift():
    job = TracedJob.of(16, steps=2, clock_offset_s=0.5, clock_drift=1e-3)
    plain, off = (generate(job=replace(job, **c), seed=1).traces for c in (STILL, {}))
    shift = []
    for a, b in zip(plain, off, strict=True):
        assert b.duration_s.sum() != pytest.approx(a.duration_s.sum(), rel=1e-7)
        by = b.base_ns - a.base_ns
        drift = b.span_s[1] / a.span_s[1] - 1
        shift.append((by, drift))
    assert len({round(by / 1e4) for by, _ in shift[:8]}) == 1  # one host, one clock
    assert shift[0][0] != pytest.approx(shift[8][0], rel=0.01)
    assert abs(shift[0][1]) < 5e-3
    assert shift[0][1] == pytest.approx(shift[7][1], rel=1e-2)


@pytest.mark.parametrize("kind", ["healthy", "memory-stalls", "checkpoint"])
def test_files_give_back_the_same_traces(kind, tmp_path):
    written = generate(kind, TracedJob.of(8, steps=2, layers=1), 2)
    paths = written.write(tmp_path)
    assert len(paths) == 8
    for mine, back in zip(written.traces, read(tmp_path), strict=True):
        assert not back.problems
        assert (back.rank, back.world_size, back.device, back.base_ns) == (
            mine.rank, mine.world_size, mine.device, mine.base_ns,
        )  # fmt: skip
        for column in set(COLUMNS) - {"name", "lane", "group"}:
            assert getattr(back, column) == pytest.approx(getattr(mine, column), abs=NS), column
        assert [back.names[i] for i in back.name] == [mine.names[i] for i in mine.name]
        assert [str(back.lanes[i]) for i in back.lane] == [str(mine.lanes[i]) for i in mine.lane]
        assert [back.groups[i] for i in back.group if i >= 0] == [
            mine.groups[i] for i in mine.group if i >= 0
        ]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    trace = generate(job=TracedJob.of(8, steps=1)).traces.rank(0)
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_kineto(trace, tmp_path / "taken")
    with pytest.raises(InputError, match="rank"):
        write_kineto(replace(trace, rank=None), tmp_path)


@pytest.mark.parametrize("ranks", [8, 16, 32, 64])
def test_drawn_jobs_run(ranks):
    jobs = [draw_job(ranks, seed, steps=1) for seed in range(3)]
    assert len({j.host_launch_s for j in jobs}) == 3
    assert len(generate(job=jobs[0]).traces) == ranks


def test_jobs_that_cannot_be_are_refused_with_all_reasons():
    with pytest.raises(InputError) as caught:
        TracedJob(ranks=12, tp=8, pp=2, ep=4, micro_batches=1)
    assert {p.field for p in caught.value.problems} == {"job.ranks", "job.micro_batches"}
    with pytest.raises(InputError) as caught:
        TracedJob(tp=0, kernel_scale=0, data_s=-1)
    assert len(caught.value.problems) == 3
    with pytest.raises(InputError):
        TracedJob.of(48)
    assert len(FAULT_KINDS) >= 13
