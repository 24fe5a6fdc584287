"""Work of documents: held against the operators at each length, and against the cost of layers for whole samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.catalog import names
from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.operators.efficiency import times_s
from telekit.operators.layer import layer_operators
from telekit.packing.mixers import MIXING, block_pairs, causal_pairs, mixers
from telekit.packing.pack import concatenate
from telekit.packing.work import WorkModel
from telekit.training.config import TrainConfig

CLUSTER = load_cluster({"device": "h800", "nodes": 64})
LAYOUTS = {
    "plain": {},
    "tp": {"tp": 4, "recompute": "selective"},
    "cp": {"tp": 2, "cp": 4, "recompute": "full"},
    "ulysses": {"cp": 2, "cp_comm_type": "a2a", "micro_batch": 2},
    "pp": {"pp": 4, "recompute": ["core_attn", "moe"], "overlap_moe_comm": True, "ep": 8},
    "no sequence parallelism": {"tp": 8, "sequence_parallel": False, "micro_batch": 4},
}
EVERY = names("models")


def job(name, layout=None, **train):
    chosen = {"seq_len": 4096} | train
    return Job(load_model(name), CLUSTER, TrainConfig(**chosen), ParallelConfig(**(layout or {})))


def one_document(seq_len, samples=1):
    return concatenate(np.full(samples, seq_len), seq_len)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", EVERY)
def test_a_sample_of_one_document_costs_what_its_layers_do(name, layout):
    mine = job(name, layout, seq_len=8192)
    cost = step_cost(Site(mine.model, mine.cluster, mine.train, mine.layout))
    work = WorkModel.of(mine)
    forward, backward = work.stages_s(one_document(8192))
    each = mine.layout.micro_batch
    np.testing.assert_allclose(forward[0] * each, cost.forward_s, rtol=1e-10, atol=0)
    np.testing.assert_allclose(backward[0] * each, cost.backward_s, rtol=1e-10, atol=0)
    mean = (cost.forward_s + cost.backward_s).sum(axis=0).mean() / each
    assert work.sample_s(one_document(8192)) == pytest.approx([mean], rel=1e-10)
    assert work.seconds([8192]) == pytest.approx([mean], rel=1e-10)


LENGTHS = (1, 2, 3, 7, 127, 128, 129, 511, 1000, 2047, 2048, 2049, 4096, 5000, 8191, 8193, 20_000, 131_072)


@pytest.mark.parametrize("name", EVERY)
def test_mixers_at_any_length_are_the_operators_at_that_length(name):
    model, layout = load_model(name), ParallelConfig(tp=2, cp=2, dp=1)
    for kind in {k.attention.model_dump_json(): k for k in model.kinds}.values():
        found = mixers(model, kind, CLUSTER, TrainConfig(seq_len=4096), layout)
        ours = [m.seconds(np.array(LENGTHS)) for m in found]
        for at, length in enumerate(LENGTHS):
            train = TrainConfig(seq_len=length)
            operators = [op for op in layer_operators(model, kind, train, layout) if op.kind == MIXING]
            assert [m.name for m in found] == [op.name for op in operators]
            for (forward, backward), op in zip(ours, operators, strict=True):
                # all but the start of the kernel, which is a micro-batch's and not a document's
                expected = tuple(
                    t - CLUSTER.device.kernels.launch_s for t in times_s(op, CLUSTER.device, train)
                )
                assert (forward[at], backward[at]) == pytest.approx(expected, rel=1e-9), (op.name, length)


@pytest.mark.parametrize("name", EVERY)
def test_only_mixers_know_the_length_of_a_document(name):
    """Everything else, for the same tokens, costs the same: so it may be charged by the token."""
    model, layout = load_model(name), ParallelConfig(dp=1)
    halves = layout.model_copy(update={"micro_batch": 2})
    for kind in model.kinds:
        whole = layer_operators(model, kind, TrainConfig(seq_len=65536), layout)
        split = layer_operators(model, kind, TrainConfig(seq_len=32768), halves)
        for one, two in zip(whole, split, strict=True):
            if one.kind != MIXING:
                assert times_s(one, CLUSTER.device, TrainConfig()) == times_s(
                    two, CLUSTER.device, TrainConfig()
                )


@given(st.integers(1, 60), st.none() | st.integers(1, 70), st.none() | st.integers(1, 70))
def test_pairs_are_those_counted_one_by_one(length, window, chunk):
    counted = sum(
        1
        for query in range(length)
        for key in range(query + 1)
        if (window is None or query - key < window) and (chunk is None or query // chunk == key // chunk)
    )
    assert causal_pairs(np.array([length]), window, chunk)[0] == counted


@given(st.integers(1, 90), st.integers(1, 20), st.none() | st.integers(1, 9))
def test_block_pairs_are_those_counted_one_by_one(length, ratio, most):
    counted = sum(min((place // ratio), most or length) for place in range(1, length + 1))
    assert block_pairs(np.array([length]), ratio, most)[0] == counted


def test_a_packed_sample_is_its_documents():
    # graphs, since a host that is slower than the device makes no sum of documents
    layout = {"tp": 8, "pp": 2, "recompute": "selective", "cuda_graphs": "full"}
    work = WorkModel.of(job("telechat3-36b", layout))
    packed = concatenate(np.array([4096, 1024, 3072, 2048, 2048, 100]), 4096)
    each = work.seconds(packed.lengths)
    sums = np.bincount(packed.sample, weights=each, minlength=packed.samples)
    found = work.sample_s(packed)
    assert found[:3] == pytest.approx(sums[:3], rel=1e-12)
    assert found[0] > found[1] > found[2]
    padded = work.token_s * 3996 + sums[3]  # padding is computed, and mixes nothing
    assert found[3] == pytest.approx(padded, rel=1e-12)
    linear = np.array([4096, 8192]) * work.token_s + sum(work.mixing_s([4096, 8192]))
    assert work.seconds([4096, 8192]) == pytest.approx(linear, rel=1e-12)


def test_ring_attention_hides_less_behind_short_documents():
    work = WorkModel.of(job("llama-3.1-8b", {"cp": 8}, seq_len=65536))
    whole = concatenate(np.array([65536]), 65536)
    many = concatenate(np.full(64, 1024), 65536)
    linear = work.token_s * 65536
    mixing = [sum(float(x.sum()) for x in work.mixing_s(p.lengths)) for p in (whole, many)]
    assert work.sample_s(whole)[0] == pytest.approx(linear + mixing[0])
    assert work.sample_s(many)[0] > linear + mixing[1]


def test_crossover_of_plain_attention_follows_from_flops():
    """Where arithmetic bounds both, mixing equals the rest where pairs' seconds do: solved by hand."""
    work = WorkModel.of(job("llama-3.1-8b", seq_len=32768))
    mixing = float(sum(work.mixing_s([32768]))[0])
    by_pair, more = mixing / (32768 * 32769 / 2), CLUSTER.device.kernels.attention_half_keys
    alone = by_pair / (1 + more / 32768)  # each query computes as if it met so many keys more
    assert work.crossover == pytest.approx(2 * work.token_s / alone - 1 - more, abs=1.0)
    assert work.coefficient == pytest.approx(2 * work.token_s / by_pair, rel=1e-4)
    at = int(work.crossover)
    assert sum(work.mixing_s([at]))[0] >= work.token_s * at
    assert sum(work.mixing_s([at - 1]))[0] < work.token_s * (at - 1)


def test_linear_attention_never_crosses_and_windows_may_not():
    assert WorkModel.of(job("nemotron-h-56b")).crossover < np.inf  # it has a few layers of full attention
    windowed = load_model("mistral-7b")
    kinds = tuple(
        k.model_copy(update={"attention": k.attention.model_copy(update={"window": 512})})
        for k in windowed.kinds
    )
    model = windowed.model_copy(update={"kinds": kinds})
    work = WorkModel.of(model, CLUSTER, TrainConfig(), ParallelConfig())
    assert work.crossover == np.inf
    assert "at no length" in work.text()
    assert work.seconds([65536])[0] == pytest.approx(2 * work.seconds([32768])[0], rel=0.02)


def test_recompute_repeats_mixing_where_it_is_named():
    length = [4096]
    by_option = {
        option: float(WorkModel.of(job("llama-2-7b", {"recompute": option})).mixing_s(length)[1][0])
        for option in ("none", "selective", "full", ("mlp",))
    }
    once = float(WorkModel.of(job("llama-2-7b")).mixing_s(length)[0][0])
    assert by_option["none"] == by_option[("mlp",)]
    assert by_option["full"] == by_option["selective"] == pytest.approx(by_option["none"] + once)


def test_the_text_says_the_numbers():
    work = WorkModel.of(job("deepseek-v3.2", {"tp": 2}))
    text = work.text()
    assert f"{work.token_s * 1e9:.4g} ns a token" in text
    assert "core_attention: meets 2048 keys before at most" in text
    assert "indexer.scores: meets all keys before" in text
    assert f"{work.crossover:,.0f} tokens" in text


def test_refusals():
    work = WorkModel.of(job("llama-2-7b"))
    for wrong in ([0], [-1], [1.5], [float("nan")], "x"):
        with pytest.raises(InputError):
            work.seconds(wrong)
    with pytest.raises(InputError, match="samples of 4096 tokens"):
        work.sample_s(concatenate([8192], 8192))
    with pytest.raises(InputError, match="needs a job"):
        WorkModel.of(load_model("llama-2-7b"))
