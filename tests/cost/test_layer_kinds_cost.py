"""Memory and steps of every catalog model and of the newer kinds of layers, against counts and plain recounts."""

import dataclasses

import pytest

from telekit import catalog
from telekit.cluster.config import load_cluster
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site, layer_cost
from telekit.cost.memory import stage_parameters
from telekit.cost.step import neighbour_s
from telekit.job import Job, load_job
from telekit.layout.config import ParallelConfig
from telekit.layout.stages import assign
from telekit.model.attention import NoAttention
from telekit.model.config import (
    FeedForward,
    GroupedQueryAttention,
    LayerKind,
    ModelConfig,
    NoFeedForward,
    PerLayerInputs,
)
from telekit.model.count import count
from telekit.model.huggingface import load_model
from telekit.operators.saved import exchange_bytes
from telekit.training.config import TrainConfig

H100 = load_cluster({"device": "h100", "nodes": 32})


def site(model, layout=ParallelConfig(), **train):  # noqa: B008
    return Site(model, H100, TrainConfig(**train), layout)


def held(model, layout=ParallelConfig(), **train):  # noqa: B008
    found = stage_parameters(site(model, layout, **train), assign(model, layout))
    return found.dense + found.expert


@pytest.mark.parametrize("name", catalog.names("models"))
def test_one_stage_holds_every_parameter_once(name):
    model, found = load_model(name), count(load_model(name))
    assert held(model).tolist() == [found.total + found.mtp]
    assert held(model, mtp=False).tolist() == [found.total]


@pytest.mark.parametrize("name", catalog.names("models"))
def test_stages_hold_every_parameter_once_but_a_copy_of_the_vocabulary(name):
    model, found = load_model(name), count(load_model(name))
    again = model.hidden_size * model.vocab_size if model.tied_embeddings or model.mtp_layers else 0
    assert held(model, ParallelConfig(pp=4)).sum() == found.total + found.mtp + again


def test_pc13_tied_embeddings_are_counted_once_and_held_twice():
    """Megatron-DeepSpeed issue 99: Qwen3-0.6B on two stages; 151,936 x 1,024 on the first and on the last."""
    model = load_model("qwen3-0.6b")
    assert count(model).total == 596_049_920
    assert held(model, ParallelConfig(pp=2)).sum() == 751_632_384


def test_pc18_the_final_norm_stands_on_the_last_stage_only():
    """Megatron-LM pull request 1345: 32 blocks of width 4,096 with two norms each, on four stages."""
    attention = GroupedQueryAttention(heads=32, kv_heads=32, head_dim=128)
    kind = LayerKind(name="block", attention=attention, mlp=FeedForward(ffn_hidden_size=11008))
    model = ModelConfig(name="l32", hidden_size=4096, vocab_size=32000, kinds=(kind,), pattern=(0,) * 32)
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    table = 32000 * 4096
    assert held(model, ParallelConfig(pp=4)).tolist() == [
        8 * block + table, 8 * block, 8 * block, 8 * block + table + 4096
    ]  # fmt: skip


def test_a_copy_for_a_tied_head_has_no_positions():
    """Megatron-Core's last stage allocates the head's weight alone: vocabulary by width."""
    model = load_model("gpt2-xl")
    assert held(model, ParallelConfig(pp=2)).sum() - held(model).sum() == 50257 * 1600


def test_what_mixes_residual_streams_is_whole_on_each_tensor_rank():
    """DeepSeek-V4: (2 + 4) * 4 maps of 4 * h, with their biases and three scales, twice a block; one at the head."""
    model = load_model("deepseek-v4-flash")
    plain = model.model_copy(update={"residual_streams": 1})
    h = model.hidden_size
    block = 2 * (24 * 4 * h + 24 + 3)
    head = 4 * 4 * h + 4 + 1
    for tp in (1, 8):
        layout = ParallelConfig(tp=tp)
        more = held(model, layout, mtp=False) - held(plain, layout, mtp=False)
        assert more.tolist() == [43 * block + head]


def test_latent_projections_of_experts_are_whole_on_each_rank():
    """Nemotron 3 Super: 4,096 to 1,024 and back in each of its expert layers, whatever ep and tp are."""
    model = load_model("nemotron-3-super-120b-a12b")
    wide = model.model_copy(
        update={"kinds": tuple(_without_latent(kind) for kind in model.kinds), "mtp_layers": 0}
    )
    layers = sum(kind.mlp.kind == "moe" for kind in model.layers)
    for ep, tp in ((1, 1), (8, 1), (64, 2)):
        layout = ParallelConfig(ep=ep, tp=tp, dp=64 // tp)
        difference = held(wide, layout) - held(model, layout, mtp=False)
        experts = 512 * 2 * 2688 * (4096 - 1024) / ep
        assert difference.tolist() == [layers * (experts - 2 * 4096 * 1024)]


def _without_latent(kind):
    if kind.mlp.kind != "moe":
        return kind
    return kind.model_copy(update={"mlp": kind.mlp.model_copy(update={"latent_size": None})})


def test_per_layer_embeddings_stand_on_the_first_stage():
    attention = GroupedQueryAttention(heads=4, kv_heads=4, head_dim=16)
    kind = LayerKind(name="block", attention=attention, mlp=FeedForward(ffn_hidden_size=96))
    own = PerLayerInputs(vocab_size=90, width=24)
    model = ModelConfig(name="own", hidden_size=64, vocab_size=100, kinds=(kind,), pattern=(0,) * 4,
                        embedding_norm=True, per_layer_inputs=own)  # fmt: skip
    assert held(model).sum() == count(model).total
    first, last = held(model, ParallelConfig(pp=2)).tolist()
    table = 90 * 24 * 4 + 24 * 4 * 64 + 24 + 64  # rows, their projection with its norm, the embedding's norm
    assert first - table == last - 64  # the final norm; both hold a vocabulary and two blocks


# --- activations and steps ---------------------------------------------------------------------------------


def test_full_recompute_keeps_all_residual_streams():
    model = load_model("deepseek-v4-flash")
    cost = layer_cost(model.kinds[0], site(model, ParallelConfig(dp=8), seq_len=4096))
    assert float(cost.activation_bytes[2]) == 2 * 4096 * 4 * model.hidden_size
    assert float(cost.activation_bytes[0]) > 10 * float(cost.activation_bytes[2])


def test_stages_hand_on_all_residual_streams():
    """H100 nodes of one stage each: 4 streams of 4,096 numbers in 16 bits over one link, its latency, NCCL's costs."""
    model, layout = load_model("deepseek-v4-flash"), ParallelConfig(pp=32, dp=8)
    tier = H100.tiers[1]
    rate = tier.bandwidth_bytes_per_s * tier.efficiency
    sent, library = 2 * 4096 * 4 * 4096 / rate, H100.tiers[0].curves["send-recv"]
    want = sent + tier.latency_s + library.start_s + float(library.protocol_s(sent))
    assert float(neighbour_s(site(model, layout, seq_len=4096))) == pytest.approx(want, rel=1e-9)


def test_a_block_without_halves_costs_nothing_under_any_layout():
    model = load_model("llama-3.3-nemotron-super-49b")
    kind = model.kinds[0].model_copy(update={"attention": NoAttention(), "mlp": NoFeedForward(), "norms": 0})
    for layout in (ParallelConfig(), ParallelConfig(tp=2, recompute="full")):
        cost = layer_cost(kind, site(model, layout))
        assert [float(b) for b in cost.activation_bytes] == [0.0, 0.0, 0.0]
        assert float(cost.forward.total_s) == float(cost.backward_with(2).total_s) == 0.0


def test_dispatch_buffers_hold_latent_vectors():
    model = load_model("nemotron-3-super-120b-a12b")
    four_copies = 4 * 2 * 4096 * 22 * 1024
    stream = 2 * 4096 * model.hidden_size
    here = site(model, ParallelConfig(ep=8, dp=8), seq_len=4096)
    held = [float(exchange_bytes(model, kind, here.train, here.layout)) for kind in model.kinds]
    assert max(held) == four_copies + 2 * stream


NEW = ("deepseek-v3.2", "deepseek-v4-flash", "gemma-4-26b-a4b", "hunyuan-large", "kimi-linear-48b-a3b",
       "llama-3.3-nemotron-super-49b", "minimax-text-01", "nemotron-3-super-120b-a12b", "nemotron-h-56b",
       "qwen3-next-80b-a3b", "step-3.5-flash")  # fmt: skip


@pytest.mark.parametrize("name", NEW)
def test_a_step_is_the_work_of_its_operators_and_no_faster_than_its_flops(name):
    """One device each for pp 1 and 2: compute is the same in sum, and the peak is never beaten."""
    made = load_model(name)
    ep = 8 if made.moe else 1
    times = []
    for pp in (1, 2):
        job = load_job({"model": name, "cluster": {"device": "h100", "devices": 8 * pp},
                        "train": {"seq_len": 4096, "global_batch": 64}, "layout": {"pp": pp, "ep": ep}})  # fmt: skip
        found = estimate(job)
        assert found.valid and 0 < found.mfu < 1
        times.append(found.breakdown_s["compute"] * pp)
    assert times[1] == pytest.approx(times[0], rel=1e-9)


def test_what_a_kind_of_layer_rests_on_is_said():
    said = {}
    for name in ("deepseek-v3", *NEW):
        made = load_model(name)
        job = load_job({"model": name, "cluster": {"device": "h100", "nodes": 8}, "train": {"global_batch": 64},
                        "layout": {"ep": 8 if made.moe else 1}})  # fmt: skip
        said[name] = " | ".join(estimate(job).assumptions)
    recurrent = {n for n, text in said.items() if "state-space layers" in text}
    assert recurrent == {
        "kimi-linear-48b-a3b", "minimax-text-01", "nemotron-3-super-120b-a12b", "nemotron-h-56b",
        "qwen3-next-80b-a3b",
    }  # fmt: skip
    assert {n for n, text in said.items() if "an indexer" in text} == {"deepseek-v3.2", "deepseek-v4-flash"}
    assert "compute 3.4 times that" in said["deepseek-v3.2"]  # (2 * 512 + 64) / (192 + 128)
    assert "4 residual streams" in said["deepseek-v4-flash"]
    assert "earlier layer's keys" in said["hunyuan-large"]
    assert all(word not in said["deepseek-v3"] for word in ("indexer", "residual streams", "state-space"))


def test_a_hybrid_job_survives_its_file():
    job = load_job(
        {"model": "nemotron-h-56b", "cluster": {"device": "h100", "nodes": 8}, "layout": {"tp": 8}}
    )
    again = Job.read(dataclasses.replace(job, written=None).to_dict())
    assert again.model == job.model
    assert estimate(again).step_time_s == estimate(job).step_time_s
