"""How long balancing, work of many documents and the stream take; figures only, nothing is asserted of time."""

from __future__ import annotations

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.balance import as_given, balanced, karmarkar_karp, longest_first, lower_bound
from telekit.packing.pack import concatenate
from telekit.packing.stream import stream
from telekit.packing.work import WorkModel
from telekit.training.config import TrainConfig
from telekit.training.documents import distribution


def work_of(model="telechat3-36b", seq_len=8192):
    cluster = load_cluster({"device": "ascend-910b", "nodes": 256})
    return WorkModel.of(
        Job(load_model(model), cluster, TrainConfig(seq_len=seq_len), ParallelConfig(tp=8, pp=2))
    )


def batch(seq_len):
    """512 samples of WLB-LLM's documents."""
    packed = concatenate(distribution("wlb-llm").sample(512 * seq_len // 2500, 0), seq_len)
    return work_of(seq_len=seq_len).sample_s(packed)[:512]


@pytest.mark.parametrize("seq_len", [8192, 32768, 131072])
@pytest.mark.parametrize("policy", [longest_first, karmarkar_karp, balanced])
def test_bench_512_samples_onto_64_ranks(benchmark, policy, seq_len):
    work = batch(seq_len)
    found = benchmark(policy, work, 64, 8)
    assert found.imbalance < as_given(work, 64).imbalance


def test_bench_lower_bound(benchmark):
    work = batch(8192)
    assert benchmark(lower_bound, work, 64, 8) >= work.mean() * 8 * (1 - 1e-9)


@pytest.mark.parametrize("model", ["telechat3-36b", "deepseek-v4-pro"])
def test_bench_work_of_a_million_documents(benchmark, model):
    lengths = np.random.default_rng(0).integers(1, 8192, 10**6)
    work = work_of(model)
    assert benchmark.pedantic(work.seconds, (lengths,), rounds=3).shape == lengths.shape


@pytest.mark.parametrize(
    ("seq_len", "ranks", "look_ahead"), [(8192, 64, 8192), (131072, 64, 8192), (8192, 8, 64)]
)
def test_bench_stream_of_100_000_documents(benchmark, seq_len, ranks, look_ahead):
    """With few ranks and a short look-ahead a batch has few documents, and each costs more."""
    documents = np.array_split(distribution("wlb-llm").sample(100_000, 0), 25)
    seconds = work_of(seq_len=seq_len).seconds

    def run():
        return sum(len(b.packed.lengths) for b in stream(documents, seq_len, ranks, look_ahead, seconds, 2))

    assert benchmark.pedantic(run, rounds=3) >= 100_000
