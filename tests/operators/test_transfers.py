"""What context ranks exchange: Ulysses' four all-to-alls and the ring's keys and values, by hand."""

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.comm.transfers import transfer_s
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site, layer_cost
from telekit.cost.step import step_cost
from telekit.job import load_job
from telekit.layout.config import ParallelConfig
from telekit.layout.table import LayoutTable
from telekit.model.config import NoFeedForward
from telekit.model.huggingface import load_model
from telekit.operators.transfers import layer_transfers
from telekit.training.config import TrainConfig

CLUSTER = load_cluster({"device": "h100", "nodes": 8})
TRAIN = TrainConfig(seq_len=32_768, global_batch=64)


def exchanged(model, layout):
    return [t for t in layer_transfers(model, model.kinds[0], TRAIN, layout) if t.group == "cp"]


@pytest.mark.parametrize(
    "name, widths",
    [
        ("llama-3.1-70b", [64 * 128, 8 * 128, 8 * 128, 64 * 128]),
        ("deepseek-v3", [128 * 192, 128 * 192, 128 * 128, 128 * 128]),
    ],
)
def test_ulysses_sends_queries_keys_values_and_output(name, widths):
    """A rank's tokens of its tensor rank's heads, in 16 bits; four all-to-alls each way."""
    layout = ParallelConfig(tp=2, cp=4, dp=8, micro_batch=3, cp_comm_type="a2a")
    found = exchanged(load_model(name), layout)
    tokens = 3 * 32_768 / 4
    assert [t.size_bytes for t in found] == [2 * tokens * width / 2 for width in widths]
    assert {(t.op, t.forward_calls, t.backward_calls, t.behind) for t in found} == {("all-to-all", 1, 1, "")}
    assert all(t.modules == ("core_attn",) for t in found)  # attention again means its exchange again


def test_ulysses_bytes_are_the_papers():
    """DeepSpeed-Ulysses, arXiv 2309.14509, section 3.2: 4 N h / P a link for plain multi-head attention."""
    model = load_model("gpt3-175b")
    layout = ParallelConfig(cp=8, dp=8, cp_comm_type="a2a")
    sent = sum(t.size_bytes for t in exchanged(model, layout))
    assert sent == 4 * 32_768 * 12_288 / 8 * 2


def test_the_ring_passes_whole_keys_and_values():
    model, layout = load_model("llama-3.1-70b"), ParallelConfig(tp=2, cp=4, dp=8)
    (ring,) = exchanged(model, layout)
    assert ring.size_bytes == 2 * 32_768 * 2 * 8 * 128 / 2 and ring.behind == "core_attention"


def test_an_all_to_all_is_not_hidden_and_takes_its_time_by_hand():
    """In a node of 8, each rank sends 3 of 4 parts over its own link: both passes alike, nothing behind attention."""
    model = load_model("llama-3.1-70b")
    layout = ParallelConfig(tp=2, cp=4, dp=8, cp_comm_type="a2a")
    cluster = load_cluster({"device": "ascend-910b", "nodes": 8})  # links without a measured curve
    link = cluster.tiers[0]
    sent = 2 * 8192 * (2 * 64 + 2 * 8) * 128 / 2
    want = sent * 3 / 4 / (link.bandwidth_bytes_per_s * link.efficiency) + 4 * link.latency_s
    cost = layer_cost(model.kinds[0], Site(model, cluster, TRAIN, layout))
    assert cost.forward.times_s["cp_comm"] == pytest.approx(want, rel=1e-12)
    assert cost.backward.times_s["cp_comm"] == pytest.approx(want, rel=1e-12)


def test_one_context_rank_exchanges_nothing():
    model = load_model("llama-3.1-70b")
    for kind in ("p2p", "a2a"):
        site = Site(model, CLUSTER, TRAIN, ParallelConfig(tp=8, dp=8, cp_comm_type=kind))
        assert all(transfer_s(t, site.layout, CLUSTER) == 0 for t in exchanged(model, site.layout))


def test_a_layer_without_attention_exchanges_nothing():
    from telekit.model.attention import NoAttention

    model = load_model("llama-3.1-8b")
    kind = model.kinds[0]
    no_attention = kind.model_copy(update={"attention": NoAttention()})
    no_mlp = kind.model_copy(update={"mlp": NoFeedForward()})
    layout = ParallelConfig(tp=2, cp=2, dp=16)
    names = {t.name.split("_")[0] for t in layer_transfers(model, no_attention, TRAIN, layout)}
    assert names == {"mlp"}
    names = {t.name.split("_")[0] for t in layer_transfers(model, no_mlp, TRAIN, layout)}
    assert names == {"attention", "ring"}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_table_of_exchanges_is_its_rows(recompute):
    """Rule 1 for the new field: one by one and as columns, equal to 1e-12."""
    model = load_model("deepseek-v3")
    base = ParallelConfig(pp=2, dp=1, recompute=recompute, cp_comm_type="a2a")
    rng = np.random.default_rng(3)
    columns = {
        name: rng.choice([1, 2, 4, 8], 40).astype(float) for name in ("tp", "cp", "dp", "ep", "micro_batch")
    }
    table = LayoutTable.build(base, **columns)
    whole = step_cost(Site(model, CLUSTER, TRAIN, table))
    for row in range(len(table)):
        single = step_cost(Site(model, CLUSTER, TRAIN, table.row(row, base)))
        for name in ("forward", "backward", "pipeline_s", "dp_comm_s", "optimizer_s", "peak_bytes"):
            mine, other = getattr(whole, name), getattr(single, name)
            pairs = [(mine[k], other[k]) for k in mine] if isinstance(mine, dict) else [(mine, other)]
            for columned, alone in pairs:
                columned = np.asarray(columned, dtype=float)
                columned = (
                    columned[:, row] if columned.ndim == 3 else columned[row] if columned.ndim else columned
                )
                np.testing.assert_allclose(np.squeeze(columned), np.squeeze(alone), rtol=1e-12, atol=1e-18)


def test_only_the_exchange_changes_an_estimate():
    """States, products and every other transfer are the same; a long ring over nodes costs more in the open."""
    times = {}
    for kind in ("p2p", "a2a"):
        job = load_job(
            {
                "model": "llama-3.1-70b",
                "cluster": {"device": "h100", "nodes": 8},
                "train": {"seq_len": 32_768, "global_batch": 16},
                "layout": {"tp": 2, "cp": 4, "pp": 4, "cp_comm_type": kind, "recompute": "full"},
            }
        )
        times[kind] = estimate(job)
        assert times[kind].valid
    ring, ulysses = times["p2p"], times["a2a"]
    for held in ("parameters", "gradients", "optimizer", "activations"):
        assert [s.memory_bytes[held] for s in ring.stages] == [s.memory_bytes[held] for s in ulysses.stages]
    for part in ("compute", "tp_comm", "dp_comm", "optimizer"):
        assert ring.breakdown_s[part] == ulysses.breakdown_s[part]
    assert ulysses.breakdown_s["cp_comm"] > ring.breakdown_s["cp_comm"] == 0.0
