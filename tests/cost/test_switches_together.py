"""Every switch of layout and training together, on models that mix kinds of layers and under several chunks a device.

One layout and its row of a table agree to 1e-12, the breakdown has no negative part, and less work is never slower.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from telekit.cluster.config import load_cluster
from telekit.cost.estimate import estimate
from telekit.cost.layers import Pass, Site
from telekit.cost.step import StepCost, step_cost
from telekit.job import Job, load_job
from telekit.layout.config import DISPATCHERS, SCHEDULES, ParallelConfig
from telekit.layout.schedules import default_chunks
from telekit.layout.table import LayoutTable
from telekit.model.huggingface import load_model
from telekit.operators.saved import kept_bytes
from telekit.training.config import TrainConfig

MODELS = (
    "deepseek-v3", "kimi-linear-48b-a3b", "qwen3-235b-a22b", "llama-3.1-8b", "llama-3.3-nemotron-super-49b",
    "nemotron-h-56b", "qwen3-0.6b", "qwen3-next-80b-a3b",
)  # fmt: skip
"""Dense layers before experts, kinds that alternate, blocks without one half, experts alone, and dense alone."""
DEVICES = ("h800", "b200", "a100-80gb")
VALUES = [f.name for f in dataclasses.fields(StepCost) if f.name not in ("passes", "held")]
VALUES += ["forward", "backward", "weight_s", "hidden_s", "traffic_s", "memory"]


def choices(kind):
    """Choose among all values of every switch, by name."""
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in kind.items()})


SWITCHES = choices({
    "zero": (0, 1, 2, 3), "sequence_parallel": (False, True), "dispatcher": DISPATCHERS, "cp_comm_type": ("p2p", "a2a"),
    "recompute": ("none", "selective", "full", ("core_attn",), ("moe",), ("mlp",), ("layernorm", "mla_up_proj")),
    "recompute_group": (1, 2), "tp_comm_overlap": (False, True), "overlap_grad_reduce": (False, True),
    "overlap_param_gather": (False, True), "overlap_moe_comm": (False, True), "activation_offload": (0.0, 0.5, 1.0),
    "optimizer_offload": (0.0, 1.0), "moe_expert_capacity_factor": (None, 1.25), "fused_experts": (False, True),
    "cuda_graphs": ("none", "partial", "full"),
})  # fmt: skip
TRAINING = choices({
    "precision": ("bf16", "fp16", "fp8"), "fp8_recipe": ("delayed", "blockwise"), "grad_dtype": ("fp32", "bf16"),
    "state_dtype": ("fp32", "bf16"), "attention_kernel": ("flash", "unfused"), "optimizer": ("adamw", "muon"),
    "wgrad_buffers": ("kept", "transient"), "expert_weights": ("each", "grouped"), "mtp": (False, True),
    "cross_entropy_fusion": ("none", "native", "te", "linear", "torch"), "fp8_param_gather": (False, True),
    "activation_func_fp8_input_store": (False, True), "seq_len": (1024, 4096),
})  # fmt: skip
SHAPES = st.sampled_from([(schedule, pp) for schedule in SCHEDULES for pp in (2, 4)])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def base_of(shape, switches):
    schedule, pp = shape
    vpp = 3 if schedule == "interleaved-1f1b" else default_chunks(schedule)
    return ParallelConfig(pp=pp, vpp=vpp, schedule=schedule, dp=8, **switches)


def site_of(model, device, train, layout):
    cluster = load_cluster({"device": device, "nodes": 64})
    return Site(load_model(model), cluster, TrainConfig(global_batch=512, **train), layout)


@MANY
@given(st.sampled_from(MODELS), st.sampled_from(DEVICES), SHAPES, SWITCHES, TRAINING)
def test_one_layout_is_its_row_of_a_table(model, device, shape, switches, train):
    """Rows are as many as chunks, one more, and many: a number that is not a column would broadcast in one of them."""
    assume(train["precision"] != "fp8" or device != "a100-80gb")
    base = base_of(shape, switches)
    rng = np.random.default_rng(3)
    rows = 5
    columns = {name: rng.choice([1, 2, 4], rows) for name in ("tp", "cp", "dp", "ep", "etp", "micro_batch")}
    whole = LayoutTable.build(base, **columns, expert_imbalance=rng.uniform(1, 2, rows))
    for table in (whole, whole.take(np.arange(base.vpp)), whole.take(np.arange(1))):
        found = step_cost(site_of(model, device, train, table))
        for row in range(len(table)):
            agree(found, row, step_cost(site_of(model, device, train, table.row(row, base))))


def agree(table, row, single):
    for name in [*VALUES, "step_s", "peak_bytes"]:
        mine, other = getattr(table, name), getattr(single, name)
        pairs = {k: (mine[k], other[k]) for k in mine} if isinstance(mine, dict) else {"": (mine, other)}
        for key, (a, b) in pairs.items():
            a = np.broadcast_to(a, table.peak_bytes.shape) if name == "memory" else np.asarray(a, dtype=float)
            a = a[:, row] if a.ndim == 3 else (a[row] if a.ndim else a)
            a, b = np.broadcast_arrays(np.squeeze(a), np.squeeze(np.asarray(b, dtype=float)))
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-18, err_msg=f"{name} {key}")


def jobs():
    """Valid jobs with random switches."""

    def make(model, device, shape, switches, train, tp, micro_batch):
        layout = base_of(shape, switches).model_copy(
            update={"tp": tp, "micro_batch": micro_batch, "dp": None}
        )
        kinds = load_model(model)
        layout = layout.model_copy(update={"ep": 4 if kinds.moe else 1})
        cluster = load_cluster({"device": device, "devices": 8 * tp * shape[1]})
        return Job(kinds, cluster, TrainConfig(global_batch=512, **train), layout)

    found = st.builds(
        make, st.sampled_from(MODELS), st.sampled_from(DEVICES), SHAPES, SWITCHES, TRAINING, st.sampled_from((1, 2)),
        st.sampled_from((1, 2)),
    )  # fmt: skip
    return found.filter(
        lambda job: job.train.precision in job.cluster.device.peak_flops and not job.problems()
    )


def step_s(job, **device):
    """Seconds of a step, on a device with some fields changed."""
    changed = job.cluster.device.model_copy(update=device)
    cluster = job.cluster.model_copy(update={"device": changed})
    return float(step_cost(Site(job.model, cluster, job.train, job.layout)).step_s)


@MANY
@given(jobs())
def test_no_part_of_a_step_is_negative(job):
    found = estimate(job)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    assert min(found.breakdown_s.values()) >= -1e-9 * found.step_time_s


@MANY
@given(jobs())
def test_less_work_is_never_slower(job):
    """Graphs take work from the host, faster memory and links take time from the device and from it."""
    times = [
        step_s(dataclasses.replace(job, layout=job.layout.model_copy(update={"cuda_graphs": graphs})))
        for graphs in ("none", "partial", "full")
    ]
    assert times[1] <= times[0] * (1 + 1e-9) and times[2] <= times[1] * (1 + 1e-9)
    device = job.cluster.device
    now = step_s(job)
    assert step_s(job, memory_bandwidth_bytes_per_s=1.3 * device.memory_bandwidth_bytes_per_s) <= now * (
        1 + 1e-9
    )
    for name, factor in (
        ("host_launch_s", 0.5),
        ("launch_s", 0.5),
        ("host_link_bytes_per_s", 2.0),
        ("overlap_share", 0.0),
    ):
        kernels = device.kernels.model_copy(update={name: factor * getattr(device.kernels, name)})
        assert step_s(job, kernels=kernels) <= now * (1 + 1e-9), name


@MANY
@given(jobs())
def test_overlap_never_costs_more_than_none(job):
    for name in ("overlap_grad_reduce", "overlap_param_gather", "overlap_moe_comm", "tp_comm_overlap"):
        off, on = (
            step_s(dataclasses.replace(job, layout=job.layout.model_copy(update={name: flag})))
            for flag in (False, True)
        )
        assert on <= off * (1 + 1e-9), name


def test_passes_add_up_field_by_field():
    """In binary, so that no sum of other fields can be the right one."""
    whole = Pass({"compute": 1.0, "host": 2.0}, 4.0, 8.0, 16.0) + Pass({"compute": 32.0}, 64.0, 128.0, 256.0)
    assert whole == Pass({"compute": 33.0, "host": 2.0}, 68.0, 136.0, 272.0)


def test_offloading_in_a_pair_takes_its_link_all_the_same():
    """DualPipe's pair fills gaps of the host, but not the time that the host's link is busy, both ways at once."""
    layout = {"pp": 2, "schedule": "dualpipe", "activation_offload": 1.0}
    base = {"model": "qwen3-0.6b", "cluster": {"device": "b200", "devices": 2},
            "train": {"seq_len": 2048, "global_batch": 64}}  # fmt: skip
    for graphs in ("none", "full"):
        job = load_job(base | {"layout": layout | {"cuda_graphs": graphs}})
        cost = step_cost(Site(job.model, job.cluster, job.train, job.layout))
        pair = cost.forward_s + cost.backward_s - cost.hidden_s
        size = float(kept_bytes(job.model, job.model.kinds[0], job.train, job.layout)[0])
        way = job.model.num_layers / 2 * size / job.cluster.device.kernels.host_link_bytes_per_s
        assert np.all(pair >= way * (1 - 1e-12))
    assert np.all(cost.forward["offload"] > 0)  # graphs leave no gaps: its own wait is in the forward pass
