"""Rule 1: every formula on random layouts, one by one and as a table, equal to 1e-12."""

import dataclasses

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site
from telekit.cost.step import StepCost, step_cost
from telekit.layout.config import DISPATCHERS, SCHEDULES, ParallelConfig
from telekit.layout.schedules import default_chunks
from telekit.layout.table import COLUMNS, LayoutTable
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

CLUSTERS = {name: load_cluster({"device": name, "nodes": 64}) for name in ("h800", "a100-80gb", "h100")}
PER_CASE = 25
VALUES = [f.name for f in dataclasses.fields(StepCost) if f.name not in ("passes", "held")]
VALUES += ["forward", "backward", "weight_s", "hidden_s", "memory"]


def shapes():
    """40 pipeline shapes with 25 random rows each: 1,000 layouts over models, devices, schedules and flags."""
    rng = np.random.default_rng(7)
    models = ["deepseek-v3", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.1-70b", "gpt3-175b", "deepseek-v3.2",
              "deepseek-v4-flash", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "minimax-text-01", "hunyuan-large",
              "nemotron-h-56b", "nemotron-3-super-120b-a12b", "llama-3.3-nemotron-super-49b"]  # fmt: skip
    for i in range(40):
        schedule = SCHEDULES[i % len(SCHEDULES)]
        base = ParallelConfig(
            pp=int(rng.choice([2, 4, 8])),
            vpp=3 if schedule == "interleaved-1f1b" else default_chunks(schedule),
            dp=1,
            zero=int(rng.integers(0, 4)),
            sequence_parallel=bool(rng.integers(0, 2)),
            recompute=[("moe_act",), "none", "selective", "full"][i % 4],
            schedule=schedule,
            dispatcher=DISPATCHERS[i % len(DISPATCHERS)],
            overlap_grad_reduce=bool(rng.integers(0, 2)),
            overlap_moe_comm=bool(rng.integers(0, 2)),
        )
        yield models[i % len(models)], list(CLUSTERS)[i % 3], ["bf16", "fp16", "fp32"][i % 3], base, rng


def random_rows(base, rng):
    columns = {name: rng.choice([1, 2, 4, 8, 16], PER_CASE).astype(float) for name in COLUMNS[:-1]}
    columns["expert_imbalance"] = rng.uniform(1, 2, PER_CASE)
    return LayoutTable.build(base, **columns)


def close(table_value, row, single, what):
    mine = np.asarray(table_value, dtype=float)
    mine = mine[:, row, ...] if mine.ndim == 3 else (mine[row] if mine.ndim else mine)
    other = np.asarray(single, dtype=float)
    np.testing.assert_allclose(np.squeeze(mine), np.squeeze(other), rtol=1e-12, atol=1e-18, err_msg=what)


@pytest.mark.parametrize("case", list(shapes()), ids=lambda c: f"{c[3].schedule}-{c[0]}")
def test_one_by_one_and_as_a_table(case):
    name, device, precision, base, rng = case
    model, train = load_model(name), TrainConfig(seq_len=4096, global_batch=4096, precision=precision)
    table = random_rows(base, rng)
    whole = step_cost(Site(model, CLUSTERS[device], train, table))
    for row in range(PER_CASE):
        single = step_cost(Site(model, CLUSTERS[device], train, table.row(row, base)))
        for name in VALUES:
            mine, other = getattr(whole, name), getattr(single, name)
            pairs = {k: (mine[k], other[k]) for k in mine} if isinstance(mine, dict) else {"": (mine, other)}
            for key, (a, b) in pairs.items():
                a = np.broadcast_to(a, whole.peak_bytes.shape) if name == "memory" else a
                close(a, row, b, f"{name} {key}")
        close(whole.step_s, row, single.step_s, "step_s")
        close(whole.peak_bytes, row, single.peak_bytes, "peak_bytes")
