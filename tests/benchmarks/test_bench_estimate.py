"""How long an estimate takes, alone and as rows of a table; and the tables of a whole search."""

import numpy as np
import pytest

from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import Job
from telekit.layout.table import LayoutTable
from telekit.planner.search import plan

DEEPSEEK = Job.read(
    {
        "model": "deepseek-v3",
        "cluster": "deepseek-v3-h800-2048",
        "train": {"seq_len": 4096, "global_batch": 15360, "precision": "fp8", "state_dtype": "bf16"},
        "layout": {"pp": 16, "ep": 64, "recompute": "selective"},
    }
)


def test_one_estimate_with_its_simulation(benchmark):
    assert benchmark(estimate, DEEPSEEK).valid


@pytest.mark.parametrize("rows", [1_000, 10_000])
def test_rows_of_a_table(benchmark, rows):
    rng = np.random.default_rng(0)
    columns = {name: rng.choice([1, 2, 4, 8], rows) for name in ("tp", "ep", "etp", "micro_batch", "dp")}
    table = LayoutTable.build(DEEPSEEK.layout, **columns)
    cost = benchmark(step_cost, Site(DEEPSEEK.model, DEEPSEEK.cluster, DEEPSEEK.train, table))
    assert cost.step_s.shape == (rows,)


def test_the_tables_of_a_search(benchmark):
    found = benchmark.pedantic(plan, args=(Job.read({"model": "deepseek-v3", "cluster": "deepseek-v3-h800-2048"}),),
                               kwargs={"top": 1, "time_limit_s": 0.0}, rounds=2)  # fmt: skip
    assert found.searched > 10_000
