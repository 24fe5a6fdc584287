"""Memory of states and activations against published sums and a plain recount."""

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site
from telekit.cost.memory import stage_parameters, state_bytes
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import assign
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig
from telekit.model.count import count
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig
from telekit.units import GIB

H800 = load_cluster({"device": "h800", "nodes": 256})


def site(model, layout, **train):
    return Site(model, H800, TrainConfig(**train), layout)


def total_of(found):
    return found.dense + found.expert


@pytest.mark.parametrize("zero, per_parameter", [(0, 16.0), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)])
def test_zero_stages_are_the_papers(zero, per_parameter):
    """ZeRO, figure 1: 7.5 B parameters over 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    attention = GroupedQueryAttention(heads=32, kv_heads=32, head_dim=128)
    kind = LayerKind(name="gpt", attention=attention, mlp=FeedForward(ffn_hidden_size=16384, gated=False))
    model = ModelConfig(name="7.5b", hidden_size=4096, vocab_size=51200, kinds=(kind,), pattern=(0,) * 36)
    layout = ParallelConfig(dp=64, zero=zero)
    found = state_bytes(site(model, layout, grad_dtype="bf16"), assign(model, layout))
    parameters = float(total_of(stage_parameters(site(model, layout), assign(model, layout)))[0])
    assert parameters == count(model).total
    assert float(sum(found.values())[0]) == pytest.approx(parameters * per_parameter, rel=1e-12)


def test_ms04_experts_are_split_by_ep_and_etp_not_by_tp():
    """Megatron-LM issue 4050: Mixtral-8x7B on 16 devices, TP 2, EP 8: 6,440,620,032 parameters a rank, 68.6 GiB."""
    model = load_model("mixtral-8x7b")
    layout = ParallelConfig(tp=2, ep=8, etp=1, dp=8)
    here = site(model, layout)
    assert float(total_of(stage_parameters(here, assign(model, layout)))[0]) == 6_440_620_032
    held = state_bytes(here, assign(model, layout))
    assert float(sum(held.values())[0]) / GIB == pytest.approx(68.6, abs=0.05)


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "telechat3-105b-a4.7b", "llama-3.1-70b", "gpt-oss-120b", "gpt3-175b"]
)
def test_stages_hold_every_parameter_once(name):
    model = load_model(name)
    layout = ParallelConfig(pp=4, dp=2)
    held = total_of(stage_parameters(site(model, layout), assign(model, layout)))
    copied = (
        model.tied_embeddings or model.mtp_layers
    )  # PC03: the MTP module looks tokens up on the last stage
    again = model.hidden_size * model.vocab_size if copied else 0
    assert float(held.sum()) == count(model).total + count(model).mtp + again


def test_dualpipe_holds_the_mirror_stage_too():
    model, plain = load_model("deepseek-v3"), ParallelConfig(pp=16, ep=64, dp=128)
    one = total_of(stage_parameters(site(model, plain, mtp=False), assign(model, plain)))
    two_way = ParallelConfig(pp=16, ep=64, dp=128, schedule="dualpipe")
    both = total_of(stage_parameters(site(model, two_way, mtp=False), assign(model, two_way)))
    assert both.tolist() == (one + one[::-1]).tolist()


def test_mtp_copies_the_embedding_to_the_last_stage():
    """Case PC03: DeepSeek-V3's last of 16 stages, three layers, head, MTP module and an embedding copy."""
    model, layout = load_model("deepseek-v3"), ParallelConfig(pp=16, ep=64, dp=128)
    held = [
        total_of(stage_parameters(site(model, layout, mtp=mtp), assign(model, layout)))[-1]
        for mtp in (True, False)
    ]
    experts = 256 * 3 * 7168 * 2048
    assert held[0] - held[1] == count(model).mtp - experts + experts / 64 + 129280 * 7168


def test_zero_3_gathers_two_layers_at_a_time():
    from telekit.cost.step import step_cost

    model = load_model("llama-3.1-8b")
    peak = {}
    for zero in (1, 2, 3):
        layout = ParallelConfig(dp=64, zero=zero)
        here = site(model, layout, global_batch=64, grad_dtype="bf16", wgrad_buffers="transient")
        peak[zero] = step_cost(here).memory
    layer = (count(model).total - 2 * 128256 * 4096 - 4096) // 32
    total, product = count(model).total, 2 * 2 * 14336 * 4096  # gate and up are one product
    head = 128256 * 4096 + 4096  # with the final norm: larger than a layer, and gathered beside the last one
    assert float(peak[3]["parameters"][0]) == 2 * total / 64 + 2 * (layer + head)
    assert float(peak[2]["gradients"][0]) == 2 * total / 64 + 2 * layer  # the layer's own are no second copy
    assert float(peak[1]["gradients"][0]) == 2 * total + product


def test_zero_3_gathers_an_end_only_where_it_stands():
    """Of four stages the middle ones gather two layers, the ends a layer and their matrix if that is more."""
    from telekit.cost.step import step_cost

    model, layout = load_model("llama-3.1-8b"), ParallelConfig(pp=4, dp=16, zero=3)
    here = site(model, layout, global_batch=64, grad_dtype="bf16", wgrad_buffers="transient")
    layer = (count(model).total - 2 * 128256 * 4096 - 4096) // 32
    held = total_of(stage_parameters(here, assign(model, layout)))
    gathered = step_cost(here).memory["parameters"] - 2 * held / 16
    head = 128256 * 4096
    assert gathered.tolist() == [2 * (layer + head), 4 * layer, 4 * layer, 2 * (layer + head + 4096)]


@pytest.mark.parametrize("recompute", ["full", "none"])
def test_activations_in_flight_on_the_first_stage(recompute):
    """A GPT layer keeps 32 sbh + 4as, with full recompute 2 sbh; 1F1B's first stage holds pp micro-batches."""
    model = load_model("gpt3-175b")
    from telekit.cost.step import step_cost

    layout = ParallelConfig(tp=8, pp=8, dp=1, recompute=recompute)
    cost = step_cost(site(model, layout, seq_len=2048, global_batch=64))
    sbh = 2048 * 12288
    per_layer = 2 * sbh / 8 if recompute == "full" else (32 * sbh + 4 * 96 * 2048) / 8
    assert float(cost.memory["activations"][0]) == pytest.approx(8 * 12 * per_layer, rel=1e-12)
    assert float(cost.memory["activations"][-1]) == pytest.approx(12 * per_layer, rel=1e-12)


def memory(model, layout, **train):
    from telekit.cost.step import step_cost

    return {
        k: np.broadcast_to(v, (layout.pp,)) for k, v in step_cost(site(model, layout, **train)).memory.items()
    }


def test_16_bit_gradients_of_every_shape_stay_or_the_largest():
    """Transformer Engine 2 keeps one of each shape: of a layer's four products, and of the head on the last stage."""
    model, layout = load_model("llama-3.1-70b"), ParallelConfig(tp=2, pp=2, dp=1)
    train = {"seq_len": 4096, "global_batch": 8}
    kept, once = (memory(model, layout, **train, wgrad_buffers=w)["gradients"] for w in ("kept", "transient"))
    sums = 4.0 * total_of(stage_parameters(site(model, layout), assign(model, layout)))
    products = [8192 * (8192 + 2 * 1024), 8192 * 8192, 2 * 28672 * 8192, 28672 * 8192]
    assert (kept - sums).tolist() == [sum(products), sum(products) + 2 * 8192 * 128256 / 2]
    assert (once - sums).tolist() == [max(products)] * 2


def test_experts_share_one_gradient_unless_they_are_one_parameter():
    model, layout = load_model("mixtral-8x7b"), ParallelConfig(ep=2, dp=2)
    train = {"seq_len": 4096, "global_batch": 8, "wgrad_buffers": "transient"}
    each, grouped = (
        memory(model, layout, **train, expert_weights=w)["gradients"][0] for w in ("each", "grouped")
    )
    assert grouped - each == 2 * (
        4 * 14336 * 4096 - 2 * 14336 * 4096
    )  # four experts' gate, or one's gate and up


@pytest.mark.parametrize(
    "fusion, bytes_each", [("none", 6), ("native", 6), ("te", 2), ("torch", 14)], ids=lambda x: str(x)
)
def test_the_loss_is_the_last_stages_peak(fusion, bytes_each):
    """Logits, the head's and the final norm's inputs, and the gradient of the stream."""
    model, layout = load_model("llama-3.1-8b"), ParallelConfig(pp=2, dp=1)
    found = memory(model, layout, seq_len=8192, global_batch=8, cross_entropy_fusion=fusion)
    assert found["logits"].tolist() == [0.0, bytes_each * 8192 * 128256 + 3 * 2 * 8192 * 4096]


def test_a_loss_fused_with_the_head_holds_a_piece_of_the_logits():
    """It costs no more at 64k tokens than at 4k; a layer's own passes are then the peak."""
    model, layout = load_model("llama-3.1-8b"), ParallelConfig(dp=1)
    long = memory(model, layout, seq_len=65536, global_batch=1, cross_entropy_fusion="linear")
    assert long["logits"].tolist() == [0.0] and long["recompute_workspace"][0] > 2 * 65536 * 2 * 14336


def test_the_embedding_gradient_is_the_peak_where_little_else_is():
    """Full recompute of a narrow stage: the layers' inputs are free by then, the vocabulary's gradient is not small."""
    model, layout = load_model("qwen3-0.6b"), ParallelConfig(dp=1, recompute="full")
    found = memory(model, layout, seq_len=128, global_batch=1, cross_entropy_fusion="te")
    assert found["logits"][0] == found["recompute_workspace"][0] - 64 * 2**20 == 0.0
    stream = 2 * 128 * 1024
    tables = 2 * model.vocab_size * 1024
    products = 2 * sum(size for size in (1024 * 4096, 2048 * 1024, 2 * 3072 * 1024, 3072 * 1024))
    assert found["gradients"][0] == 4 * count(model).total + products + tables + (
        tables + stream - 28 * stream
    )


def test_groups_of_recomputed_layers_keep_one_input_and_hold_all_of_them():
    model = load_model("llama-3.1-70b")
    one, four = (
        memory(
            model,
            ParallelConfig(tp=8, pp=4, dp=1, recompute="full", recompute_group=g),
            seq_len=4096,
            global_batch=64,
        )
        for g in (1, 4)
    )
    entry = 2 * 4096 * 8192 / 8
    layer = (2 * (6 * 8192 + 2 * 1024 + 3 * 28672) + 4 * 64) * 4096 / 8
    assert (one["activations"] - four["activations"]).tolist() == [(20 - 5) * n * entry for n in (4, 3, 2, 1)]
    assert four["recompute_workspace"][0] - one["recompute_workspace"][0] == 3 * layer


def test_offload_goes_layer_by_layer_and_takes_a_share_of_the_states():
    """Ten layers a stage, 8 to 1 micro-batches in flight: four layers stay, two in each direction."""
    model = load_model("llama-3.1-70b")
    held = [
        memory(
            model,
            ParallelConfig(tp=8, pp=8, dp=1, activation_offload=a, optimizer_offload=a),
            global_batch=64,
        )
        for a in (0.0, 0.5, 1.0)
    ]
    layer = held[0]["activations"][-1] / 10
    assert held[2]["activations"] == pytest.approx(np.full(8, 4 * layer), rel=1e-12)
    both = (held[0]["activations"] + held[2]["activations"]) / 2
    assert held[1]["activations"] == pytest.approx(both, rel=1e-12)
    assert (held[1]["optimizer"] == held[0]["optimizer"] / 2).all() and not held[2]["optimizer"].any()


def test_offload_of_an_interleaved_pipeline_goes_chunk_by_chunk():
    """Four stages of four chunks of five layers: the first holds 2 * 3 + 3 * 4 + 1 chunks, four of them at last."""
    model = load_model("llama-3.1-70b")
    layout = {"tp": 8, "pp": 4, "vpp": 4, "dp": 1, "schedule": "interleaved-1f1b"}
    none, all_ = (
        memory(model, ParallelConfig(**layout, activation_offload=a), global_batch=64)["activations"][0]
        for a in (0.0, 1.0)
    )
    assert all_ / none == pytest.approx(4 / 19, rel=1e-12)


def test_70b_under_fsdp_with_half_its_layers_on_the_host():
    """Two layers of what is offloaded are on the device: one that computes and one on its way."""
    model, peaks = load_model("llama-3.1-70b"), []
    for share in (0.0, 0.25, 0.5, 1.0):
        layout = ParallelConfig(dp=64, zero=3, micro_batch=2, activation_offload=share)
        peaks.append(memory(model, layout, seq_len=8192, global_batch=128)["activations"][0])
    layer = peaks[0] / 80
    assert (np.array(peaks) / layer).tolist() == pytest.approx([80, 60.5, 41, 2])


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 1, "dp": 4},
        {"pp": 4, "dp": 1},
        {"pp": 4, "dp": 1, "recompute": "full"},
        {"pp": 2, "vpp": 2, "dp": 2, "schedule": "interleaved-1f1b"},
        {"pp": 2, "vpp": 2, "dp": 2, "schedule": "zb-v"},
        {"pp": 4, "dp": 1, "schedule": "dualpipe"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.1-8b"])
def test_offload_never_raises_the_peak_of_any_stage(name, layout):
    """Where the embedding's gradient is the peak too: what its micro-batch frees is what it held on the device."""
    model, before = load_model(name), None
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        config = ParallelConfig(**layout, activation_offload=share)
        peak = sum(memory(model, config, seq_len=512, global_batch=32, cross_entropy_fusion="te").values())
        assert before is None or (peak <= before * (1 + 1e-12)).all()
        before = peak


@pytest.mark.parametrize("schedule, chunks", [("1f1b", 1), ("interleaved-1f1b", 2), ("dualpipe", 1)])
def test_offload_in_a_table_is_that_of_each_row(schedule, chunks):
    from telekit.cost.step import step_cost
    from telekit.layout.table import LayoutTable

    model = load_model("qwen3-30b-a3b")
    base = ParallelConfig(pp=4, vpp=chunks, dp=1, schedule=schedule, zero=2, activation_offload=0.6)
    columns = {name: np.ones(6) for name in ("tp", "cp", "etp", "expert_imbalance")}
    columns |= {"dp": np.array([1.0, 2, 4, 4, 8, 16]), "ep": np.array([1.0, 2, 4, 1, 8, 4])}
    columns["micro_batch"] = np.array([1.0, 1, 2, 4, 1, 2])
    table = LayoutTable.build(base, **columns)
    whole = step_cost(site(model, table, global_batch=256)).peak_bytes
    for row in range(6):
        one = step_cost(site(model, table.row(row, base), global_batch=256)).peak_bytes
        assert whole[row] == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("wgrad", ["kept", "transient"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stages", [1, 4, 32])
def test_zero_2_and_3_never_hold_more_than_they_replace(stages, dtype, wgrad):
    """Down to one layer a stage and two replicas, where two whole layers would be more than the stage has."""
    model = load_model("llama-3.1-8b")
    for replicas in (1, 2, 64):
        found = [
            memory(
                model,
                ParallelConfig(pp=stages, dp=replicas, zero=zero),
                global_batch=64 * replicas,
                grad_dtype=dtype,
                wgrad_buffers=wgrad,
            )
            for zero in (1, 2, 3)
        ]
        peak = [sum(one.values()) for one in found]
        assert (peak[1] <= peak[0]).all() and (peak[2] <= peak[1]).all()


def test_zero_3_without_overlap_holds_one_matrix_at_a_time():
    model = load_model("llama-3.1-8b")
    layout = ParallelConfig(dp=64, zero=3, overlap_param_gather=False, overlap_grad_reduce=False)
    found = memory(model, layout, global_batch=64, grad_dtype="bf16", wgrad_buffers="transient")
    shard, product = 2 * count(model).total / 64, 2 * 2 * 14336 * 4096
    head = 2 * (128256 * 4096 + 4096)  # larger than any product of a layer
    assert found["parameters"][0] == shard + head
    assert found["gradients"][0] == shard + product


@pytest.mark.parametrize(
    "schedule, chunks", [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipe-v", 2)]
)
def test_activations_peak_as_the_schedule_is_simulated(schedule, chunks):
    """Uneven chunks, weighed pass by pass in the order of the schedule: the closed form is exact at every stage."""
    from telekit.pipeline.closed_form import peak_held
    from telekit.pipeline.registry import build
    from telekit.pipeline.simulate import run
    from telekit.pipeline.times import Times

    rng = np.random.default_rng(1)
    for stages, micro_batches in ((4, 12), (6, 24)):
        weight = rng.uniform(1.0, 2.0, (chunks, stages))
        order = build(schedule, stages, micro_batches, chunks)
        ones = np.ones((chunks, stages))
        timed = run(order, Times(forward=ones, backward_input=ones, backward_weight=ones))
        assert peak_held(schedule, weight, micro_batches) == pytest.approx(timed.peak_held(weight), rel=1e-12)


def test_no_placement_beats_what_is_set_aside():
    """The planner's least and most hold for the estimate of every split of two stages."""
    from telekit.cost.layers import end_costs, layer_cost
    from telekit.cost.memory import memory_of, reserve

    model = load_model("deepseek-v2-lite")
    for first in (5, 13, 20):
        stages = ParallelConfig.model_validate({"pp": 2, "ep": 8, "dp": 8, "stages": [[first, 27 - first]]})
        here = site(model, stages, seq_len=4096, global_batch=64)
        costs, (_, head) = [layer_cost(k, here) for k in model.kinds], end_costs(here)
        found = memory_of(here, assign(model, stages), costs, head, 8.0).by_holder
        aside = reserve(here, costs, (0, 2))
        moment = found["dispatch"][0] + found["recompute_workspace"][0] - aside.standing
        assert aside.moment[0] <= moment <= aside.moment[1]


def test_a_capacity_under_the_mean_is_refused_and_padded_rows_travel():
    """MFU counts every token, so that dropped ones would be useful work; padded ones are work and traffic."""
    from telekit.cost.estimate import estimate
    from telekit.job import Job

    model, cluster = load_model("deepseek-v2-lite"), load_cluster({"device": "h800", "nodes": 1})
    train = TrainConfig(global_batch=64)

    def found(**layout):
        one = ParallelConfig(ep=8, dp=8, sequence_parallel=True, **layout)
        return estimate(Job(model, cluster, train, one))

    (problem,) = found(moe_expert_capacity_factor=0.5).problems
    assert problem.field == "layout.moe_expert_capacity_factor" and "MFU" in problem.rule
    assert "moe_expert_capacity_factor 1.0 works" in str(problem)
    padded, uneven = found(moe_expert_capacity_factor=1.5), found(expert_imbalance=1.5)
    assert padded.breakdown_s["ep_comm"] == uneven.breakdown_s["ep_comm"] > found().breakdown_s["ep_comm"]
    assert padded.mfu < found(moe_expert_capacity_factor=1.0).mfu == found().mfu


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_placement_with_offload_is_bounded_on_both_sides(share):
    """What the planner sums for evenly spread layers: never above the estimate without workspace, never below with."""
    from telekit.cost.estimate import estimate
    from telekit.job import Job
    from telekit.pipeline.closed_form import peak_held
    from telekit.planner.placing import stage_problem

    layout = ParallelConfig(tp=8, pp=4, dp=2, zero=3, activation_offload=share)
    cluster = load_cluster({"device": "h100", "nodes": 8})
    job = Job(load_model("llama-3.1-70b"), cluster, TrainConfig(global_batch=64), layout)
    sums = []
    for workspace in (False, True):
        problem = stage_problem(job, ("none",), workspace=workspace)
        (layer,) = problem.layers
        kept = peak_held("1f1b", np.full((1, 4), 20.0 * layer.options[0].activation_bytes), job.micro_batches)
        found = problem.constant_bytes + 20 * layer.parameter_bytes + kept
        sums.append(max(found[0] + problem.head.memory_bytes, found[-1] + problem.tail.memory_bytes))
    assert sums[0] <= estimate(job).peak_bytes <= sums[1]
