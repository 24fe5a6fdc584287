"""Rules one by one, what they suggest, and a table against its rows (`test_rules_by_building` has the oracle)."""

import dataclasses
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import load_cluster
from telekit.cost.estimate import estimate
from telekit.job import Job
from telekit.launch import megatron
from telekit.layout.config import SCHEDULES, ParallelConfig
from telekit.layout.repairs import nearest_divisor, whole_batches
from telekit.layout.rules import RULES, Case, broken_rows, check, check_table, say_batch
from telekit.layout.schedules import default_chunks, smallest_group
from telekit.layout.suggestions import Suggestion
from telekit.layout.table import COLUMNS, LayoutTable
from telekit.model.attention import (
    CompressedAttention,
    Indexer,
    Mamba2,
    MultiHeadLatentAttention,
    NoAttention,
)
from telekit.model.config import FeedForward, LayerKind, NoFeedForward
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

MIXTRAL = load_model("mixtral-8x7b")


@cache
def cluster(devices):
    return load_cluster({"device": "h100", "devices": devices, "devices_per_node": devices})


def case(layout, devices=16, model=MIXTRAL, **train):
    return Case(model, cluster(devices), TrainConfig(**{"seq_len": 4096, "global_batch": 64} | train), layout)


def names(broken):
    return {p.field for p in broken}


@pytest.mark.parametrize(
    "layout, train, field",
    [
        (dict(tp=3, dp=1), {}, "layout.tp"),
        (dict(tp=16, dp=1), {}, "layout.tp"),  # 8 key/value heads
        (dict(ep=3, dp=16), {}, "layout.ep"),
        (dict(etp=3, dp=16), {}, "layout.etp"),
        (dict(ep=8, etp=4, dp=16), {}, "layout.ep"),
        (dict(tp=2, dp=8, sequence_parallel=False), {}, "layout.sequence_parallel"),
        (dict(ep=8, dp=16, dispatcher="alltoall_deredundency"), {}, "layout.dispatcher"),  # a node of 16
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


def test_ends_may_be_empty():
    assert check(case(ParallelConfig.model_validate({"pp": 4, "dp": 4, "stages": [[0, 16, 16, 0]]}))) == ()


def test_suggestions_would_work():
    (problem,) = (p for p in check(case(ParallelConfig(tp=3, dp=1), 3)) if "key/value" in p.rule)
    assert problem.suggestion == "tp 1, dp 3 and global_batch 63 work"
    assert nearest_divisor(61, 16) == 1


def random_table(rows, **shape):
    rng = np.random.default_rng(1)
    columns = {n: rng.choice([1, 2, 3, 4, 8, 16], rows).astype(float) for n in COLUMNS[:-1]}
    base = ParallelConfig(**{"pp": 2} | shape)
    return base, LayoutTable.build(base, **columns)


SHAPES = (
    {},
    {"sequence_parallel": False, "tp_comm_overlap": True},
    {"cp_comm_type": "a2a", "tp_comm_overlap": True},
    {"schedule": "interleaved-1f1b", "vpp": 3, "cp_comm_type": "a2a"},
    {"schedule": "dualpipe"},
    {"schedule": "zb-v", "vpp": 2},
    {"schedule": "zb-h1", "vpp": 2},
    {"pp": 3, "schedule": "seqsmartvpp"},
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_table_breaks_the_rules_that_its_rows_break_one_by_one(shape):
    """2,000 random layouts in all, rule by rule."""
    base, table = random_table(250, **shape)
    here = case(table, 32)
    broken = broken_rows(here)
    single = [case(table.row(i, base), 32) for i in range(len(table))]
    for rule in RULES:
        alone = [not np.all(rule.holds(one)) for one in single]
        assert broken.get(rule.name, np.zeros(len(table), dtype=bool)).tolist() == alone, rule.name
    valid, rejected = check_table(here)
    assert valid.tolist() == [not check(one) for one in single]
    assert rejected == {name: int(rows.sum()) for name, rows in broken.items()}


def test_a_hundred_thousand_rows_ask_each_rule_once(monkeypatch):
    asked = []

    def counting(rule):
        return dataclasses.replace(rule, holds=lambda c: asked.append(rule.name) or rule.holds(c))

    monkeypatch.setattr("telekit.layout.rules.RULES", tuple(map(counting, RULES)))
    base, table = random_table(100_000)
    valid, _ = check_table(case(table, 32))
    assert asked == [rule.name for rule in RULES]
    assert 0 < valid.sum() < len(table)
    for row in (0, 12_345, *np.flatnonzero(valid)[:20]):
        assert valid[row] == (not check(case(table.row(int(row), base), 32)))


def other_layers(attention, mlp=MIXTRAL.kinds[0].mlp, tp=2, cp=1):
    """Blocks with another attention on 16 devices."""
    kind = LayerKind(name="other", attention=attention, mlp=mlp)
    model = MIXTRAL.model_copy(update={"kinds": (kind,), "pattern": (0,) * 32})
    return case(ParallelConfig(tp=tp, cp=cp, dp=16 // tp // cp), model=model)


MAMBA = Mamba2(heads=64, head_dim=64, groups=8, state_size=128, conv_kernel=4)
SPARSE = MultiHeadLatentAttention(
    heads=64, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=64,
    indexer=Indexer(heads=4, head_dim=64, top_k=64),
)  # fmt: skip


def test_context_parallelism_of_other_layers_is_refused():
    """A recurrent layer hands on its state, or exchanges heads: neither is what a ring of keys and values costs."""
    (problem,) = check(other_layers(MAMBA, cp=2))
    assert (
        problem.field == "layout.cp"
        and "mamba2 layers" in problem.rule
        and problem.suggestion == "cp 1 and dp 8 work"
    )
    assert check(other_layers(MAMBA)) == ()
    assert "an indexer's choice of keys" in check(other_layers(SPARSE, cp=2))[0].rule
    assert (
        check(other_layers(SPARSE))
        == check(other_layers(SPARSE.model_copy(update={"indexer": None}), cp=2))
        == ()
    )


def test_groups_of_a_state_space_layer_are_split_over_tp():
    (problem,) = check(other_layers(MAMBA, tp=16))
    assert "key/value heads (8)" in problem.rule and problem.suggestion == "tp 8 and dp 2 work"


def test_groups_of_an_output_projection_are_split_over_tp():
    compressed = CompressedAttention(
        heads=64, head_dim=64, q_lora_rank=64, output_groups=4, output_lora_rank=64, window=128
    )
    (problem,) = check(other_layers(compressed, tp=8))
    assert "groups of the attention's output projection (4)" in problem.rule
    assert problem.suggestion == "tp 4 and dp 4 work"


def test_layers_without_attention_or_feed_forward_ask_for_nothing():
    nothing = other_layers(NoAttention(), NoFeedForward(), cp=2)
    assert check(nothing) == ()
    assert nothing.widths("heads") == nothing.widths("ffn_hidden_size") == []
    bare = SimpleNamespace(kinds=(SimpleNamespace(attention=NoAttention(), mlp=None),), mtp_layers=0)
    assert Case(bare, None, None, None).widths("ffn_hidden_size") == []


def test_the_block_of_an_mtp_module_is_split_too():
    """Its widths may be its own: 24 numbers do not go over 16 ranks."""
    plain = load_model("llama-3.1-8b")
    block = plain.kinds[0].model_copy(update={"mlp": FeedForward(ffn_hidden_size=24)})
    mtp = plain.model_copy(update={"mtp_layers": 1, "mtp_kind": block})
    layout = ParallelConfig(tp=16, dp=1)
    assert [p.rule for p in check(case(layout, model=mtp)) if "feed-forward" in p.rule]
    for spared in (check(case(layout, model=plain)), check(case(layout, model=mtp, mtp=False))):
        assert not [p.rule for p in spared if "feed-forward" in p.rule]


@pytest.mark.parametrize("pp, m", [(p, m) for p in (1, 2, 3, 6) for m in range(1, 30)])
def test_groups_of_micro_batches_are_those_megatron_core_runs(pp, m):
    """Its two checks, in its own order; the group is the first size that passes both."""

    def passes(n):
        if n > m or n < pp:
            return False
        return not 0 < m % n < pp

    sizes = [n for n in range(1, 40) if passes(n)]
    assert smallest_group(pp, m) == (sizes[0] if sizes else None)


def test_a_v_shape_with_other_chunks_is_refused_not_crashed():
    """Its parts cannot be found; the rules that do not need them are still listed."""
    for vpp, rows in ((1, [[16, 16]]), (3, [[6, 6], [6, 6], [4, 4]])):
        layout = ParallelConfig.model_validate(
            {"pp": 2, "dp": 8, "vpp": vpp, "schedule": "zb-v", "stages": rows}
        )
        assert names(check(case(layout))) == {"layout.vpp"}
    lost = ParallelConfig.model_validate(
        {"pp": 2, "dp": 8, "vpp": 1, "schedule": "zb-v", "stages": [[16, 15]]}
    )
    assert names(check(case(lost))) == {"layout.vpp", "layout.stages"}


@settings(deadline=None)
@given(st.integers(1, 10**5), st.integers(1, 2**20))
def test_the_nearest_divisor_is_nearest(number, value):
    best = nearest_divisor(number, value)
    assert number % best == 0
    assert not any(number % d == 0 and abs(d - value) < abs(best - value) for d in range(1, number + 1))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(1, 9), st.integers(1, 3), st.integers(1, 200))
def test_the_batch_that_is_suggested_is_the_nearest(schedule, pp, dp, batch):
    layout = ParallelConfig(pp=pp, dp=dp, micro_batch=2, schedule=schedule, vpp=default_chunks(schedule))
    about = [r for r in RULES if r.field == "layout.micro_batch"]

    def works(size):
        return all(r.holds(case(layout, pp * dp, global_batch=size)) for r in about)

    there = case(layout, pp * dp, global_batch=batch)
    (nearest,) = whole_batches(there).values()
    possible = [size for size in range(1, 300) if works(size)]
    assert works(nearest) and abs(nearest - batch) == min(abs(size - batch) for size in possible)
    least, words = possible[0], say_batch(there, Suggestion(whole_batches(there), valid=True))
    assert ("the smallest that does" in words) == (nearest == least)
    assert nearest == least or words.endswith(f"the smallest is {least}")


@pytest.mark.parametrize("field", ["tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_absurd_degrees_are_answered_at_once(field, schedule):
    layout = ParallelConfig.model_validate({"dp": 1, "schedule": schedule, field: 2**20})
    assert all(p.suggestion for p in check(case(layout)))


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


def test_a_published_run_with_two_ends_alone_is_valid():
    """Qwen3-235B-A22B's 94 layers on 96 parts: ``best_practice/qwen3/readme.md`` (e8650517d6) of
    github:yanring/Megatron-MoE-ModelZoo.
    """
    data = {
        "model": "qwen3-235b-a22b",
        "cluster": {"device": "h100", "devices": 256},
        "train": {"seq_len": 4096, "global_batch": 2048},
        "layout": {"tp": 2, "pp": 32, "vpp": 3, "ep": 8, "etp": 1, "recompute": ["layernorm", "moe_act"]},
    }
    job = Job.read(data)
    assert job.problems() == () and job.layout.dp == 4
    assert megatron.layout_string(job) == "E|(t|)*94L"
    rows = [[0, *[1] * 31], [1] * 32, [*[1] * 31, 0]]
    written = Job.read(data | {"layout": data["layout"] | {"stages": rows}})
    assert estimate(job).step_time_s == estimate(written).step_time_s > 0
    assert [stage.layers for stage in estimate(job).stages] == [2, *[3] * 30, 2]
    (problem,) = Job.read(data | {"layout": data["layout"] | {"vpp": 4}}).problems()
    assert "94 layers do not reach 128 parts" in problem.rule and problem.suggestion == "vpp 3 works"
