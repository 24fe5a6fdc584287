"""Megatron-LM's timers: which takes the step, who is out of line, who only waits."""

import gzip

import numpy as np
import pytest
from table_files import timer_log, timers

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.readers import read
from telekit.diagnose.tables.timers import ROLES, role_of
from telekit.errors import InputError


def run(folder, option="all", **how):
    values = timers(**how)
    elapsed = (values["forward-backward"] + values["optimizer"]).max(axis=0)
    (folder / "train.log").write_text(timer_log(values, option, elapsed))
    return diagnose(folder)


def one(ranks, rank, factor):
    found = np.ones(ranks)
    found[rank] = factor
    return found


@pytest.mark.parametrize(
    ("name", "role"),
    [("iteration-time", "whole"), ("forward-backward", "frame"), ("optimizer", "frame"), ("batch-generator", "data"),
     ("forward-compute", "work"), ("optimizer-inner-step", "work"), ("forward-recv", "wait"),
     ("all-grads-sync", "wait"),
     ("embedding-grads-all-reduce", "wait"), ("backward-send-forward-recv", "wait"), ("params-all-gather", "wait"),
     ("optimizer-clip-main-grad", "mixed"), ("save-checkpoint", "aside"), ("model-and-optimizer-setup", "aside"),
     ("train/valid/test-data-iterators-setup", "aside"), ("my-own-part", "work")],
)  # fmt: skip
def test_roles(name, role):
    assert role_of(name) == role and role in ROLES


@pytest.mark.parametrize("option", ["all", "minmax", "max"])
@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_no_alarm_on_healthy_ranks(tmp_path, option, ranks):
    for seed in range(4):
        found = run(tmp_path, option, ranks=ranks, jitter=0.005 * (1 + seed), seed=seed)
        assert (found.verdict, found.bound) == ("healthy", "compute"), [str(f) for f in found.findings]


@pytest.mark.parametrize("factor", [1.1, 1.4])
@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_the_slow_rank(tmp_path, ranks, factor):
    for seed in range(3):
        rank = 7 * seed % ranks
        found = run(tmp_path, ranks=ranks, seed=seed, slow=one(ranks, rank, factor))
        (finding,) = found.findings
        assert (finding.kind, finding.ranks) == ("slow rank", (rank,))
        # forward and backward of 800 ms; the step is theirs with 5 of loading, 20 of transfer and 60 of the optimizer
        assert finding.share == pytest.approx(800 * (factor - 1) / (800 * factor + 85), rel=0.25)
        assert "forward-compute +" in finding.evidence[0].text and "in exchanges" in finding.evidence[0].text
        assert "may not wait" not in finding.evidence[0].text


def test_extremes_show_that_some_rank_is_slow(tmp_path):
    found = run(tmp_path, "minmax", ranks=16, slow=one(16, 3, 1.4))
    (finding,) = found.findings
    assert (finding.kind, finding.ranks, finding.cause) == ("uneven work", (), "load")
    assert "some ranks" in str(finding) and "all-grads-sync" in finding.evidence[-1].text
    assert "--timing-log-option all" in finding.advice
    assert run(tmp_path, "max", ranks=16, slow=one(16, 3, 1.4)).healthy, "the largest alone shows no spread"


def test_a_slow_loader(tmp_path):
    found = run(tmp_path, ranks=16, slow_data=one(16, 5, 40))
    assert [(f.kind, f.ranks, f.cause) for f in found.findings] == [("slow data loading", (5,), "data")]
    found = run(tmp_path, "minmax", ranks=16, slow_data=one(16, 5, 40))
    assert [(f.kind, f.scope) for f in found.findings] == [("slow data loading", "several")]
    found = run(tmp_path, "minmax", ranks=16, data=200)
    assert [(f.kind, f.scope) for f in found.findings] == [
        ("slow data loading", "all")
    ] and found.bound == "data"


def test_stages_and_a_slow_rank_in_one(tmp_path):
    factors = np.repeat([1, 1.1, 1.2, 1.3], 8)
    factors[3] = 1.5
    found = run(tmp_path, ranks=32, slow=factors)
    assert {f.kind: f.ranks for f in found.findings} == {
        "slow rank": (3,),
        "uneven work": tuple(range(24, 32)),
    }


def test_waiting_is_told_apart_from_work(tmp_path):
    found = run(tmp_path, ranks=8, transfer=600)
    assert (found.bound, found.healthy) == ("communication", True)
    rows = {r["timer"]: r for r in found.tables[0].rows}
    assert rows["all-grads-sync"]["role"] == "wait" and rows["backward-compute"]["role"] == "work"
    assert "most of it: all-grads-sync" in found.tables[0].says


def test_the_numbers_are_those_of_the_log(tmp_path):
    values = timers(ranks=6, iterations=5, seed=4)
    elapsed = [1000.0, 1100.0, 1200.0, 1300.0, 1400.0]
    (tmp_path / "a.log").write_text(timer_log(values, "all", elapsed))
    rows = {r["timer"]: r for r in diagnose(tmp_path).tables[0].rows}
    assert rows["iteration-time"]["max_s"] == pytest.approx(1.25)  # the first iteration is left out
    for name, times in values.items():
        kept = np.round(times[:, 1:], 2) / 1e3
        assert rows[name]["max_s"] == pytest.approx(np.median(kept.max(axis=0)))
        assert rows[name]["min_s"] == pytest.approx(np.median(kept.min(axis=0)))
        assert rows[name]["slowest_rank"] == int(np.median(kept, axis=1).argmax())
        assert rows[name]["share"] == pytest.approx(np.median(kept.max(axis=0)) / 1.25)


def test_logs_of_ranks_are_put_together(tmp_path):
    values = timers(ranks=8, slow=one(8, 6, 1.4))
    for rank in range(8):
        mine = {name: times[[rank]] for name, times in values.items()}
        (tmp_path / f"rank_{rank}.log").write_text(timer_log(mine, "max"))
    found = diagnose(tmp_path)
    assert [(f.kind, f.ranks) for f in found.findings] == [("slow rank", (6,))]


def test_slow_iterations_and_saving(tmp_path):
    values = timers(ranks=4, iterations=30)
    elapsed = np.full(30, 900.0)
    elapsed[[9, 19, 29]] = 2700
    (tmp_path / "a.log").write_text(timer_log(values, "minmax", elapsed))
    (finding,) = diagnose(tmp_path).findings
    assert (finding.kind, finding.detail, finding.steps) == (
        "slow iterations",
        "every 10 iterations",
        (19, 29, 39),
    )
    assert finding.share == pytest.approx(3 * 1800 / (26 * 900 + 3 * 2700))
    save = (
        "(min, max) time across ranks (ms):\n    save-checkpoint ....................: (24895.07, 24895.13)\n"
    )
    (tmp_path / "a.log").write_text(timer_log(values, "minmax", np.full(30, 900.0)) + save)
    (finding,) = diagnose(tmp_path).findings
    assert (finding.kind, finding.steps) == ("checkpoint", (39,))
    assert finding.share == pytest.approx(24.89513 / (24.89513 + 29 * 0.9))


OLD = """
[2024-09-16 22:59:19.2][INFO][training_log:661] -  iteration=       7/  635782 | elapsed_time_per_iteration_ms=29570.0 |
(min, max) time across ranks (ms):
  forward-backward ...............................: (26094.39, 26095.09)
  optimizer ......................................: 3409.92
"""


def test_forms_of_older_versions(tmp_path):
    (tmp_path / "a.log").write_text(OLD)
    rows = {r["timer"]: r["max_s"] for r in diagnose(tmp_path).tables[0].rows}
    assert rows == {"iteration-time": 29.57, "forward-backward": 26.09509, "optimizer": 3.40992}
    assert rows == {r["timer"]: r["max_s"] for r in diagnose(tmp_path / "a.log").tables[0].rows}


@pytest.mark.parametrize("option", ["all", "minmax", "max"])
def test_a_log_cut_anywhere_gives_no_other_number(tmp_path, option):
    whole = timer_log(timers(ranks=3, iterations=2), option, [1234.5, 1235.5])
    path = tmp_path / "a.log"
    path.write_text(whole)
    (table,) = read(path).tables
    names = table.labels["timer"]
    known = {(n, *np.nan_to_num(row)) for n, *row in zip(names, *table.columns.values(), strict=True)}
    cuts = sorted({*range(0, len(whole), 7), *range(len(whole) - 40, len(whole))})
    for cut in cuts:
        path.write_text(whole[:cut])
        try:
            (part,) = read(path).tables
        except InputError:
            continue
        rows = {
            (n, *np.nan_to_num(row))
            for n, *row in zip(part.labels["timer"], *part.columns.values(), strict=True)
        }
        assert rows <= known
        if not whole[:cut].endswith("\n"):
            assert any("last line has no end" in str(p) for p in part.problems)
        assert len(diagnose(path).tables) == 1
    path.write_bytes(gzip.compress(whole.encode()))
    assert len(read(path).tables[0]) == len(table)


@pytest.mark.parametrize("seed", range(12))
def test_the_extremes_of_many_ranks_lie_apart_by_chance(tmp_path, seed):
    found = run(tmp_path, "minmax", ranks=256, jitter=0.03, seed=seed)
    assert found.healthy, [str(f) for f in found.findings]
    assert found.says.startswith("nothing found; not told: ") and "no trace" in found.says
