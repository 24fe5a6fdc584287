"""What the host issues: everything, all but the experts, or nothing."""

import pytest

from telekit.job import load_job
from telekit.operators import host
from telekit.operators.layer import layer_operators
from telekit.operators.transfers import layer_transfers

JOB = load_job({
    "model": "qwen3-30b-a3b", "cluster": {"device": "h100", "devices": 8},
    "train": {"seq_len": 4096, "global_batch": 64}, "layout": {"tp": 2, "ep": 4},
})  # fmt: skip


@pytest.mark.parametrize("graphs", ["none", "partial", "full"])
def test_launches_and_calls(graphs):
    kind = JOB.model.kinds[0]
    operators = layer_operators(JOB.model, kind, JOB.train, JOB.layout)
    issued = {op.name: float(host.launches(op, graphs)) for op in operators}
    assert (issued["qkv_projection"] > 0) == (graphs == "none") == (issued["router"] > 0)
    assert (issued["expert_fc1"] > 0) == (graphs != "full")
    transfers = {t.name: t for t in layer_transfers(JOB.model, kind, JOB.train, JOB.layout)}
    assert host.calls(transfers["dispatch"], 1, "none") == (0.0, 0.0)
    assert (host.calls(transfers["dispatch"], 4, graphs)[0] == 1.0) == (graphs != "full")
    assert (host.calls(transfers["attention_all_gather"], 2, graphs)[0] == 1.0) == (graphs == "none")
