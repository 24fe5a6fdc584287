"""What issue-level promises the shipped scoreboard keeps: bounds of accuracy, group by group, on rows held out."""

import pytest

from telekit import catalog
from telekit.validation.memory_runs import memory_runs
from telekit.validation.scoreboard import group_names, score, scoreboard_path
from telekit.validation.scoring import scored

# group, and the largest mean absolute error of its held-out rows that is let pass
BOUNDS = {
    "memory-simumax-b200": 0.01,
    "memory-kwai": 0.03,
    "megatron-sc21": 0.06,
    "korthikanti": 0.06,
    "megascale": 0.06,
    "vtrain-multi-node": 0.08,
    "llama-3": 0.08,
    "deepseek-v3": 0.08,
    "simumax-b200": 0.05,
    "megatron-bridge": 0.12,
    "vtrain-single-node": 0.20,
}

# ranking of published layouts: Spearman and loss by choosing with ours, and what is let pass. The first falls short of
# 0.9 and 3 %: five of its fifteen plans were measured 10 to 19 % slower than ours, two of them slower per sample than
# at a smaller micro-batch; the other ten rank without a fault (tests/validation/test_scoreboard.py).
RANKINGS = {"rank_vtrain_18p4b_256_1024": (0.70, 0.045), "rank_vtrain_175b_512_1536": (0.90, 0.03)}


@pytest.fixture(scope="module")
def shipped():
    return catalog.load(scoreboard_path())


@pytest.mark.parametrize("name", BOUNDS)
def test_held_out_rows_are_within_their_bound(name):
    found = score([row for row in scored(name, group_names()[name]) if not row.in_fit])
    assert found.rows > 0
    assert found.mape <= BOUNDS[name]


def test_the_shipped_scoreboard_is_the_models_own(shipped):
    """Scores of the file are those of the code beside it: who changes a model runs ``telekit validate --write``."""
    for group in shipped["groups"]:
        ours = score([row for row in scored(group["name"], group["kind"]) if row.verified])
        assert ours.rows == group["rows"]
        assert ours.mape == pytest.approx(group["mape"], rel=1e-4), group["name"]


def test_memory_of_experts_over_ep(shipped):
    """Pairs whose stages the source leaves open (PP 4) and one that contradicts the rest (PP 2) apart."""
    stages = {run.id: run.job.layout.pp for run in memory_runs("memory-dry-run")}
    known = [slope for slope in shipped["expert_slopes"] if stages[slope["id"]] >= 8]
    assert len(known) == 8
    assert all(abs(slope["error"]) <= 0.02 for slope in known)


def test_published_best_plans_stand_near_the_top(shipped):
    lost = [plan["shortfall"] for plan in shipped["best_plans"]]
    assert len(lost) == 25
    assert sum(lost) / len(lost) <= 0.03


def test_all_held_out_steps_together(shipped):
    """The aim for the bias, 3 %, is missed by 0.9 points: README says so."""
    held = shipped["all"]["held_out"]
    assert held["rows"] > 300
    assert held["mape"] <= 0.10 and abs(held["bias"]) <= 0.04


@pytest.mark.parametrize("name", RANKINGS)
def test_open_rankings_stand_as_they_are(shipped, name):
    """The 18.4B one is a known shortfall (must be 0.9 and 3 %); a change of the models shows here either way."""
    found = {one["id"]: one for one in shipped["planning"]}[name]
    spearman, regret = RANKINGS[name]
    assert found["spearman"] >= spearman and found["regret"] <= regret
