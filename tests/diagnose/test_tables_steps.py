"""Ascend's step times: what bounds, who is slow, who idles; toy ranks that wait for the slowest are the oracle."""

import json
import math

import numpy as np
import pytest
from table_files import STEPS, step_times, write_cluster, write_steps

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.tables.alike import blocks_of, waits_less
from telekit.errors import InputError


def run(folder, **how):
    write_cluster(folder / "cluster_step_trace_time.csv", step_times(**how))
    return diagnose(folder)


def slow(ranks, factors):
    found = np.ones(ranks)
    for rank, factor in factors.items():
        found[rank] = factor
    return found


@pytest.mark.parametrize("ranks", [4, 16, 128])
@pytest.mark.parametrize("steps", [1, 4])
def test_no_alarm_on_healthy_ranks(tmp_path, ranks, steps):
    for seed in range(5):
        found = run(tmp_path, ranks=ranks, steps=steps, jitter=0.005 * (1 + seed), seed=seed)
        assert (found.verdict, found.bound) == ("healthy", "compute"), [str(f) for f in found.findings]


@pytest.mark.parametrize("ranks", [4, 16, 128])
@pytest.mark.parametrize("seed", range(3))
def test_the_slow_rank_computes_most_and_waits_least(tmp_path, ranks, seed):
    rank = 5 * seed % ranks
    found = run(tmp_path, ranks=ranks, seed=seed, slow=slow(ranks, {rank: 1.2}))
    (finding,) = found.findings
    assert (finding.kind, finding.ranks, finding.cause) == ("slow rank", (rank,), "unknown")
    # 20 % of 600 ms, over a step of 600 + 100 + 50 + 120 ms
    assert finding.share == pytest.approx(120 / 870, rel=0.2)
    assert f"rank {rank}: computing" in finding.evidence[0].text


def test_computing_longer_without_anyone_waiting_is_no_fault(tmp_path):
    values = step_times(ranks=8, free=200e3)
    values[1][:] = 100e3
    values[0][3] += 120e3
    values[3][3] -= 120e3  # it idles less by as much: its step is as long, and nobody waits for it
    write_cluster(tmp_path / "c.csv", values)
    assert diagnose(tmp_path).healthy


def test_a_late_host_idles_and_the_others_wait(tmp_path):
    found = run(tmp_path, ranks=16, late=slow(16, {9: 4.0}))
    assert [(f.kind, f.ranks, f.cause) for f in found.findings] == [("late", (9,), "host")]


def test_a_slow_loader_idles_before_the_first_operator(tmp_path):
    values = step_times(ranks=16, late=slow(16, {9: 4.0}))
    values[4][9] += 140e3
    write_cluster(tmp_path / "c.csv", values)
    found = diagnose(tmp_path)
    assert [(f.kind, f.ranks, f.cause) for f in found.findings] == [("slow data loading", (9,), "data")]


@pytest.mark.parametrize(
    ("how", "bound", "verdict"),
    [({"free": 400e3}, "host", "host bound"), ({"free": 200e3, "preparing": 190e3}, "data", "slow data loading"),
     ({"transfer": 400e3}, "communication", "healthy"), ({}, "compute", "healthy")],
)  # fmt: skip
def test_what_bounds_all_ranks(tmp_path, how, bound, verdict):
    found = run(tmp_path, ranks=8, **how)
    assert (found.bound, found.verdict) == (bound, verdict)
    assert all(f.scope == "all" and f.ranks == tuple(range(8)) for f in found.findings)


def test_stages_with_unequal_work(tmp_path):
    found = run(tmp_path, ranks=16, slow=np.repeat([1, 1, 1, 1.3], 4))
    assert [(f.kind, f.ranks, f.cause) for f in found.findings] == [("uneven work", (12, 13, 14, 15), "load")]


def test_a_slow_node_is_no_stage_and_hides_no_slow_rank(tmp_path):
    found = run(tmp_path, ranks=32, slow=np.repeat([1, 1.3, 1, 1], 8))
    (finding,) = found.findings
    assert (finding.kind, finding.scope, finding.ranks) == ("slow rank", "node", tuple(range(8, 16)))
    values = np.repeat([1, 1.1, 1.2, 1.3], 8)
    values[3] = 1.5
    kinds = {f.kind: f.ranks for f in run(tmp_path, ranks=32, slow=values).findings}
    assert kinds == {"slow rank": (3,), "uneven work": tuple(range(24, 32))}


def test_blocks_and_waiting():
    level = np.repeat([1.0, 1.0, 2.0, 1.0], 4)
    found = blocks_of(level, 0.5)
    assert (found.size, found.heaviest, found.excess, found.alone) == (4, 2, 1.0, True)
    assert not blocks_of(np.repeat([1.0, 1.2, 1.4, 1.6], 4), 0.5).alone
    level[8:] = 1.0
    level[5] = 9.0
    assert blocks_of(level, 0.5) is None, "one slow rank makes no block"
    assert waits_less(np.array([1.0, 5.0, 5.0, 5.0]), 0, 4.0) and not waits_less(
        np.array([4.0, 5, 5, 5]), 0, 4.0
    )
    assert not waits_less(np.array([np.nan, 5.0]), 0, 1.0)


def test_files_of_ranks_say_what_the_cluster_file_says(tmp_path):
    values = step_times(ranks=6, seed=3, slow=slow(6, {2: 1.3}))
    write_cluster(tmp_path / "c.csv", values)
    (tmp_path / "many").mkdir()
    write_steps(tmp_path / "many", values)
    one, many = diagnose(tmp_path / "c.csv"), diagnose(tmp_path / "many")
    assert one.tables[0].rows == many.tables[0].rows and len(one.tables[0].rows) == 6
    row, wanted = one.tables[0].rows[2], [v[2].mean() * 1e-6 for v in values]
    got = [row[k] for k in ("computing_s", "exposed_s", "overlapped_s", "free_s", "preparing_s")]
    assert np.allclose(got, wanted, atol=1e-8)
    assert math.isclose(row["step_s"], wanted[0] + wanted[1] + wanted[3], abs_tol=1e-8)
    both = diagnose(tmp_path)  # the same twice: said, and counted once
    assert both.tables[0].rows == one.tables[0].rows
    assert any("stands twice" in str(p) for p in both.problems)


def test_two_ranks_are_not_judged_against_each_other(tmp_path):
    found = run(tmp_path, ranks=2, slow=[1, 1.5])
    assert found.healthy and any("two ranks" in n for n in found.tables[0].notes)


def test_missing_columns_and_dates_are_said(tmp_path):
    values = step_times(ranks=4)
    write_steps(tmp_path, values, drop=("Communication(Not Overlapped)",))
    found = diagnose(tmp_path)
    problems = [str(p) for p in found.problems]
    assert any("taken from Stage" in p for p in problems)
    assert found.tables[0].rows[0]["exposed_s"] == pytest.approx(values[1][0].mean() * 1e-6, abs=1e-8)
    path = tmp_path / "rank_0_step_trace_time.csv"
    path.write_text(
        STEPS + "0,5,14945901.5,50289541.4,14462809,64752350.5,377397,65612840,0,50289541.4,1.7e15\n"
    )
    found = diagnose(path)
    (row,) = found.tables[0].rows
    assert row["preparing_s"] is None and any(
        "Preparing is longer than Free" in str(p) for p in found.problems
    )
    assert found.bound == "communication" and row["step_s"] == pytest.approx(65.6128399)
    path.write_text("Device_id,Step,Computing,Free\n0,,80,20\n0,,70,30\n")
    found = diagnose(path)
    assert any("taken for 0" in str(p) for p in found.problems)
    assert (
        found.tables[0].rows[0]["step_s"] == pytest.approx(100e-6) and found.tables[0].rows[0]["steps"] == 2
    )


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    write_cluster(tmp_path / "c.csv", step_times(ranks=4, steps=2))
    text = (tmp_path / "c.csv").read_text().splitlines()
    cells = text[1].split(",")
    cells[3] = "oops"
    (tmp_path / "c.csv").write_text("\n".join([text[0], ",".join(cells), *text[2:]])[:-30])
    found = diagnose(tmp_path)
    told = " ".join(map(str, found.problems))
    assert (
        "is no number" in told and "has not as many cells" in told and "1: a step without computing" in told
    )
    assert found.tables[0].rows[0]["steps"] == 1 and len(found.tables[0].rows) == 4
    (tmp_path / "c.csv").write_text("Device_id,Step,Computing,Free\n0,1,x,y\n")
    with pytest.raises(InputError, match="no step has computing and free time"):
        diagnose(tmp_path)


def test_the_document_and_the_text(tmp_path, telekit):
    write_cluster(tmp_path / "c.csv", step_times(ranks=32, slow=slow(32, {7: 1.3})))
    status, out, err = telekit("diagnose", tmp_path, "--json")
    found = json.loads(out)
    assert (status, err) == (1, "")
    assert found["stragglers"][0] | {"share": 0} == {
        "rank": 7, "cause": "unknown", "kind": "slow rank", "scope": "rank", "share": 0,
    }  # fmt: skip
    (table,) = found["tables"]
    assert table["kind"] == "steps" and len(table["rows"]) == 32 and table["bound"] == "compute"
    status, out, _ = telekit("diagnose", tmp_path)
    assert status == 1 and "slow rank: rank 7" in out and "and 16 more" in out
    lines = [line for line in out.splitlines() if line.startswith("7 ")]
    assert lines and out.index(lines[0]) < out.index("\n0 "), "the rank with most of its own stands first"
