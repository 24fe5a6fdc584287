"""Validity against building the rank groups by brute force, and a table against its rows."""

import random

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.layout.rules import RULES, Case, check, check_table, nearest_divisor
from telekit.layout.table import COLUMNS, LayoutTable
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

MIXTRAL = load_model("mixtral-8x7b")


def case(layout, devices=16, model=MIXTRAL, **train):
    cluster = load_cluster({"device": "h100", "devices": devices})
    return Case(model, cluster, TrainConfig(**{"seq_len": 4096, "global_batch": 64} | train), layout)


def names(broken):
    return {p.field for p in broken}


def groups_can_be_built(layout, devices):
    """Lay ranks out in Megatron-Core's order and cut them into groups, as its parallel state does."""
    if layout.tp * layout.cp * layout.dp * layout.pp != devices:
        return False
    ranks = list(range(devices))
    stage = devices // layout.pp
    for start in range(0, devices, stage):
        mine = ranks[start : start + stage]
        experts = layout.ep * layout.etp
        if len(mine) % experts:
            return False
        groups = [mine[i : i + experts] for i in range(0, len(mine), experts)]
        if sorted(r for g in groups for r in g) != mine:
            return False
    return True


def test_valid_exactly_when_groups_can_be_built():
    rng = random.Random(0)
    seen = {True: 0, False: 0}
    for _ in range(2000):
        devices = rng.choice([8, 16, 24, 32])
        layout = ParallelConfig(
            tp=rng.choice([1, 2, 4, 8]),
            cp=rng.choice([1, 2]),
            pp=rng.choice([1, 2, 4]),
            dp=rng.choice([1, 2, 3, 4, 8]),
            ep=rng.choice([1, 2, 4, 8]),
            etp=rng.choice([1, 2, 4]),
        )
        found = names(
            p for p in check(case(layout, devices, global_batch=24)) if p.field in ("layout.dp", "layout.ep")
        )
        buildable = groups_can_be_built(layout, devices)
        seen[buildable] += 1
        assert (not found) == buildable, (layout, devices, found)
    assert min(seen.values()) > 50


@pytest.mark.parametrize(
    "layout, train, field",
    [
        (dict(tp=3, dp=1), {}, "layout.tp"),
        (dict(tp=16, dp=1), {}, "layout.tp"),  # 8 key/value heads
        (dict(ep=3, dp=16), {}, "layout.ep"),
        (dict(etp=3, dp=16), {}, "layout.etp"),
        (dict(ep=8, etp=4, dp=16), {}, "layout.ep"),
        (dict(tp=2, dp=8, sequence_parallel=False), {}, "layout.sequence_parallel"),
        (dict(cp=2, dp=8), {"seq_len": 4097}, "layout.cp"),
        (dict(dp=16, micro_batch=3), {}, "layout.micro_batch"),
        (dict(pp=4, dp=4, vpp=2, schedule="1f1b"), {}, "layout.vpp"),
        (dict(pp=4, dp=4, schedule="interleaved-1f1b"), {}, "layout.vpp"),
        (dict(pp=4, vpp=2, dp=4, schedule="interleaved-1f1b"), {"global_batch": 24}, "layout.micro_batch"),
        (dict(pp=4, dp=4, schedule="zb-v"), {}, "layout.vpp"),
        (dict(pp=4, dp=4, schedule="dualpipe"), {"global_batch": 16}, "layout.micro_batch"),
        (dict(pp=1, dp=16, schedule="seqsmartvpp"), {}, "layout.pp"),
        (dict(pp=16, vpp=4, dp=1, schedule="interleaved-1f1b"), {}, "layout.stages"),  # 32 layers, 64 chunks
        (dict(pp=2, dp=8, stages=[[16]]), {}, "layout.stages"),
        (dict(pp=2, dp=8, stages=[[16, 15]]), {}, "layout.stages"),
        (dict(pp=2, dp=8, stages=[[16, {"layers": 16, "recompute": {"full": 17}}]]), {}, "layout.stages"),
        (dict(pp=4, dp=4, stages=[[16, 0, 8, 8]]), {}, "layout.stages"),
    ],
)
def test_each_rule_is_named(layout, train, field):
    broken = check(case(ParallelConfig.model_validate(layout), **train))
    assert field in names(broken)
    assert all(p.rule and "{" not in p.rule for p in broken)


def test_pv05_ep_may_exceed_dp():
    """Megatron-Bridge issue 4980: 32 devices, CP 16, DP 2, EP 32, 256 experts: valid, EDP 1."""
    layout = ParallelConfig(cp=16, ep=32, dp=2)
    assert check(case(layout, 32, load_model("deepseek-v3"), seq_len=65536)) == ()
    assert layout.edp == 1


def test_ends_may_be_empty():
    assert check(case(ParallelConfig.model_validate({"pp": 4, "dp": 4, "stages": [[0, 16, 16, 0]]}))) == ()


def test_suggestions_would_work():
    (problem,) = (p for p in check(case(ParallelConfig(tp=3, dp=1), 3)) if "key/value" in p.rule)
    assert problem.suggestion == "tp 2 works"
    assert nearest_divisor(61, 16) == 1


def test_a_table_rejects_the_rows_that_one_by_one_are_rejected():
    rng = np.random.default_rng(1)
    columns = {n: rng.choice([1, 2, 3, 4, 8, 16], 1000).astype(float) for n in COLUMNS[:-1]}
    base = ParallelConfig(pp=2)
    table = LayoutTable.build(base, **columns)
    valid, rejected = check_table(case(table, 32))
    singles = [check(case(table.row(i, base), 32)) for i in range(len(table))]
    assert valid.tolist() == [not s for s in singles]
    assert 0 < valid.sum() < 1000
    assert sum(rejected.values()) == sum(map(len, singles))
    assert set(rejected) <= {rule.name for rule in RULES}


def test_the_published_layouts_are_valid():
    """DeepSeek-V3 (arXiv 2412.19437 section 3.2) and TeleChat3-105B (its public pre-training YAML)."""
    deepseek = {
        "model": "deepseek-v3",
        "cluster": "deepseek-v3-h800-2048",
        "train": {"seq_len": 4096, "global_batch": 15360, "precision": "fp8"},
        "layout": {"pp": 16, "ep": 64, "schedule": "dualpipe"},
    }
    uneven = {"layout": deepseek["layout"] | {"stages": [[3, *[4] * 14, 2]]}}
    telechat = {
        "model": "telechat3-105b-a4.7b",
        "cluster": "telechat3-910b-256",
        "train": {"seq_len": 4096, "global_batch": 32},
        "layout": {"tp": 8, "pp": 8, "dp": 4, "etp": 8, "recompute": "full", "schedule": "seqsmartvpp"},
    }
    for data in (deepseek, deepseek | uneven, telechat):
        assert Job.read(data).problems() == ()
