"""DualPipe's pairs: expert traffic hides once, and no more work makes a step shorter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.step import step_cost
from telekit.job import load_job

DEEPSEEK = {
    "model": "deepseek-v3", "cluster": {"device": "h800", "devices": 2048},
    "train": {"global_batch": 15360, "precision": "fp8", "state_dtype": "bf16"},
    "layout": {"pp": 16, "ep": 64, "schedule": "dualpipe", "dispatcher": "deepep",
               "recompute": ["layernorm", "moe_act", "mla_up_proj"]},
}  # fmt: skip


def gpt(device="b200", precision="fp4", **layout):
    sizes = {"pp": 4, "ep": 16, "schedule": "dualpipe", "dispatcher": "deepep"}
    return load_job({
        "model": "gpt-oss-120b", "cluster": {"device": device, "devices": 256},
        "train": {"global_batch": 1024, "precision": precision}, "layout": sizes | layout,
    })  # fmt: skip


def test_dualpipe_hides_expert_traffic_whatever_the_layout_asks_for():
    plain, asked = (
        estimate(load_job(DEEPSEEK | {"layout": DEEPSEEK["layout"] | {"overlap_moe_comm": flag}}))
        for flag in (False, True)
    )
    assert asked.breakdown_s == plain.breakdown_s and asked.step_time_s == plain.step_time_s
    assert plain.breakdown_s["ep_comm"] > 0


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1.0, 3.5), st.floats(1.0, 3.5), st.sampled_from(("b200", "h100")),
    st.sampled_from(("none", "partial", "full")), st.sampled_from(("deepep", "alltoall")), st.sampled_from((4, 8, 16)),
)  # fmt: skip
def test_more_imbalance_is_never_faster(one, other, device, graphs, dispatcher, ep):
    low, high = sorted((one, other))
    fixed = {"ep": ep, "dispatcher": dispatcher, "cuda_graphs": graphs}
    precision = "bf16" if device == "h100" else "fp4"
    jobs = [gpt(device, precision, **fixed, expert_imbalance=uneven) for uneven in (low, high)]
    times = [estimate(job).step_time_s for job in jobs]
    assert times[1] >= times[0] * (1 - 1e-9)


@pytest.mark.parametrize("uneven", [1.0, 2.0, 3.0])
def test_a_pair_is_no_shorter_than_what_cannot_hide(uneven):
    """Not than its computing, its expert traffic, or what the host takes to issue both passes without device work."""
    job = gpt(expert_imbalance=uneven)
    cost = step_cost(Site(job.model, job.cluster, job.train, job.layout))
    pair = cost.forward_s + cost.backward_s - cost.hidden_s
    parts = ("compute", "recompute", "ep_comm")
    both = {key: cost.forward.get(key, 0.0) + cost.backward.get(key, 0.0) for key in parts}
    assert np.all(pair >= both["compute"] + both["recompute"])
    assert np.all(pair >= both["ep_comm"])
    alone = job.cluster.device.kernels.model_copy(update={"launch_s": 0.0})
    quick = job.cluster.device.model_copy(update={
        "kernels": alone, "memory_bandwidth_bytes_per_s": 1e19, "peak_flops": {"bf16": 1e19, "fp4": 1e19}
    })  # fmt: skip
    host = step_cost(Site(job.model, job.cluster.model_copy(update={"device": quick}), job.train, job.layout))
    issue = host.forward_s + host.backward_s - host.hidden_s
    assert np.all(pair >= 0.9 * issue)  # the traffic of the last one is in it, and the ends of the model


def test_the_parts_still_sum_to_the_step():
    found = estimate(gpt(expert_imbalance=2.0))
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    assert min(found.breakdown_s.values()) >= 0
