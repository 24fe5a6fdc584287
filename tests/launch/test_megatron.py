"""Megatron-LM arguments: options that exist, values they take, and in comments what they cannot say."""

import argparse
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.job import load_job
from telekit.launch import megatron
from telekit.launch.pipeline_layout import read_layout
from telekit.layout.config import DISPATCHERS, SCHEDULES
from telekit.layout.schedules import default_chunks
from telekit.layout.stages import assign
from telekit.model.config import PerLayerInputs

# What each option takes, read in megatron/training/arguments.py of github:NVIDIA/Megatron-LM at
# 000c4ac24f61159c138b0975def722c65245983c. None is a switch; a set, a choice; a list, several words of a choice.
MODULES = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
OPTIONS = {
    "accumulate-allreduce-grads-in-fp32": None,
    "add-qkv-bias": None,
    "attention-dropout": float,
    "bf16": None,
    "ckpt-format": {"torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"},
    "context-parallel-size": int,
    "data-parallel-sharding-strategy": {"no_shard", "optim", "optim_grads", "optim_grads_params"},
    "disable-bias-linear": None,
    "exp-avg-dtype": {"fp32", "fp16", "bf16", "fp8"},
    "exp-avg-sq-dtype": {"fp32", "fp16", "bf16", "fp8"},
    "expert-model-parallel-size": int,
    "expert-tensor-parallel-size": int,
    "ffn-hidden-size": int,
    "fp16": None,
    "fp8-format": {"e4m3", "hybrid"},
    "fp8-recipe": {"tensorwise", "delayed", "mxfp8", "blockwise", "custom"},
    "global-batch-size": int,
    "grad-reduce-in-bf16": None,
    "group-query-attention": None,
    "hidden-dropout": float,
    "hidden-size": int,
    "kv-channels": int,
    "kv-lora-rank": int,
    "main-grads-dtype": {"fp32", "bf16"},
    "make-vocab-size-divisible-by": int,
    "max-position-embeddings": int,
    "micro-batch-size": int,
    "moe-enable-deepep": None,
    "moe-ffn-hidden-size": int,
    "moe-grouped-gemm": None,
    "moe-layer-freq": str,
    "moe-router-enable-expert-bias": None,
    "moe-router-score-function": {"softmax", "sigmoid"},
    "moe-router-topk": int,
    "moe-shared-expert-intermediate-size": int,
    "moe-token-dispatcher-type": {"allgather", "alltoall", "flex"},
    "mtp-num-layers": int,
    "multi-latent-attention": None,
    "normalization": {"LayerNorm", "RMSNorm"},
    "num-attention-heads": int,
    "num-experts": int,
    "num-layers": int,
    "num-query-groups": int,
    "num-virtual-stages-per-pipeline-rank": int,
    "optimizer": {"adam", "sgd", "muon", "dist_muon"},
    "overlap-grad-reduce": None,
    "overlap-moe-expert-parallel-comm": None,
    "overlap-param-gather": None,
    "pipeline-model-parallel-layout": str,
    "pipeline-model-parallel-size": int,
    "position-embedding-type": {"learned_absolute", "rope", "mrope", "relative", "none"},
    "q-lora-rank": int,
    "qk-head-dim": int,
    "qk-layernorm": None,
    "qk-pos-emb-head-dim": int,
    "recompute-granularity": {"full", "selective"},
    "recompute-method": {"uniform", "block"},
    "recompute-modules": MODULES,
    "recompute-num-layers": int,
    "seq-length": int,
    "sequence-parallel": None,
    "softmax-type": {"learnable", "vanilla", "off-by-one"},
    "swiglu": None,
    "tensor-model-parallel-size": int,
    "untie-embeddings-and-output-weights": None,
    "use-distributed-optimizer": None,
    "use-megatron-fsdp": None,
    "use-precision-aware-optimizer": None,
    "v-head-dim": int,
    "vocab-size": int,
    "window-attn-skip-freq": str,
    "window-size": str,
}

# Read in public launch scripts of Megatron-LM 0.15 and after (DeepSeek-V3 on GB200 among them).
OPTIONS |= {
    "activation-func-fp8-input-store": None,
    "attention-backend": {"flash", "fused", "unfused", "local", "auto"},
    "cross-entropy-fusion-impl": {"native", "te", "linear"},
    "cross-entropy-loss-fusion": None,
    "cuda-graph-impl": {"none", "local", "transformer_engine"},
    "cuda-graph-scope": ["full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"],
    "fp4-format": {"e2m1"},
    "fp4-recipe": {"nvfp4"},
    "fp8-param-gather": None,
    "moe-flex-dispatcher-backend": {"deepep", "hybridep"},
    "no-check-for-nan-in-loss-and-grad": None,
    "te-rng-tracker": None,
    "use-transformer-engine-op-fuser": None,
}

# Read at 00caa53af309 of the same, in arguments.py and in the fields of transformer_config.py, which are arguments.
OPTIONS |= {
    "attention-output-gate": None,
    "dsa-indexer-head-dim": int,
    "dsa-indexer-n-heads": int,
    "dsa-indexer-topk": int,
    "experimental-attention-variant": {"gated_delta_net", "dsa"},
    "hybrid-override-pattern": str,
    "is-hybrid-model": None,
    "linear-attention-freq": str,
    "linear-conv-kernel-dim": int,
    "linear-key-head-dim": int,
    "linear-num-key-heads": int,
    "linear-num-value-heads": int,
    "linear-value-head-dim": int,
    "mamba-head-dim": int,
    "mamba-num-groups": int,
    "mamba-num-heads": int,
    "mamba-state-dim": int,
    "moe-latent-size": int,
    "moe-shared-expert-gate": None,
    "spec": ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"],
}


class Parser(argparse.ArgumentParser):
    """Megatron-LM's parser, as far as these options go; it raises where argparse would exit."""

    def __init__(self):
        super().__init__(allow_abbrev=False)
        for name, takes in OPTIONS.items():
            match takes:
                case None:
                    self.add_argument(f"--{name}", action="store_true")
                case set():
                    self.add_argument(f"--{name}", choices=sorted(takes))
                case list():
                    self.add_argument(f"--{name}", nargs="*", choices=takes)
                case _:
                    self.add_argument(f"--{name}", type=takes)

    def error(self, message):
        raise AssertionError(message)


def parsed(job):
    """Arguments of a job by option, those that were not given left out."""
    words = shlex.split(megatron.arguments(job), comments=True)
    assert len({word for word in words if word.startswith("--")}) == sum(w.startswith("--") for w in words)
    found = vars(Parser().parse_args(words))
    return {name.replace("_", "-"): value for name, value in found.items() if value not in (None, False)}


def comments(job):
    return [line for line in megatron.arguments(job).splitlines() if line.startswith("#")]


def a_job(model="llama-3.1-8b", nodes=2, device="h100", train=None, **layout):
    return load_job(
        {
            "model": model,
            "cluster": {"device": device, "nodes": nodes},
            "train": {"global_batch": 256} | (train or {}),
            "layout": layout,
        }
    )


DEEPSEEK = {"model": "deepseek-v3", "nodes": 256, "device": "h800", "train": {"global_batch": 15360}}

# DeepSeek-V3's config.json and paper (arXiv 2412.19437, 4.2), under Megatron-LM's names
DEEPSEEK_SHAPE = {
    "num-layers": 61,
    "hidden-size": 7168,
    "ffn-hidden-size": 18432,
    "num-attention-heads": 128,
    "multi-latent-attention": True,
    "q-lora-rank": 1536,
    "kv-lora-rank": 512,
    "qk-head-dim": 128,
    "qk-pos-emb-head-dim": 64,
    "v-head-dim": 128,
    "qk-layernorm": True,
    "vocab-size": 129280,
    "num-experts": 256,
    "moe-ffn-hidden-size": 2048,
    "moe-shared-expert-intermediate-size": 2048,
    "moe-router-topk": 8,
    "moe-layer-freq": "([0]*3+[1]*58)",
    "moe-router-enable-expert-bias": True,
    "moe-router-score-function": "sigmoid",
    "mtp-num-layers": 1,
    "normalization": "RMSNorm",
    "position-embedding-type": "rope",
    "swiglu": True,
    "untie-embeddings-and-output-weights": True,
    "disable-bias-linear": True,
    "pipeline-model-parallel-size": 16,
    "tensor-model-parallel-size": 1,
    "expert-model-parallel-size": 64,
    "expert-tensor-parallel-size": 1,
    "global-batch-size": 15360,
}


def test_deepseek_v3():
    found = parsed(a_job(**DEEPSEEK, pp=16, ep=64, schedule="dualpipe", dispatcher="deepep"))
    assert found | DEEPSEEK_SHAPE == found
    assert found["moe-token-dispatcher-type"] == "flex"
    assert found["moe-enable-deepep"]
    assert "sequence-parallel" not in found  # it has no effect at tp 1
    assert "make-vocab-size-divisible-by" not in found  # 129,280 is 1,010 times the default, 128


def degrees(model):
    """Two layouts that every model of the catalog takes: data and expert parallel only, and all kinds at once."""
    yield {"ep": 8 if model.moe else 1}
    tp = 1 if model.name == "gpt2-xl" else 2  # it has 25 heads
    yield {"tp": tp, "pp": 2, "vpp": 2, "recompute": "selective", "ep": 2 if model.moe else 1}


@pytest.mark.parametrize("name", catalog.names("models"))
@pytest.mark.parametrize("which", [0, 1])
def test_every_model_gives_options_that_exist(name, which):
    job = a_job(name, nodes=8)
    layout = list(degrees(job.model))[which]
    job = a_job(name, nodes=8, train={"seq_len": 2048}, **layout)
    found = parsed(job)
    assert found["num-layers"] == len(job.model.layers)
    placed = found.get("pipeline-model-parallel-layout")
    assert not (placed and found.get("is-hybrid-model"))
    if placed:
        read = read_layout(placed, job.layout.pp)
        assert [[part.layers for part in row] for row in read] == assign(
            job.model, job.layout
        ).layers.tolist()
    assert not ("pipeline-model-parallel-layout" in found and "num-virtual-stages-per-pipeline-rank" in found)


def test_every_value_of_every_other_field_gives_options_that_exist():
    mixed = [[{"layers": 4, "recompute": ["none", "full", "selective", "none"]}, *[4] * 7]]
    layouts = [
        *({"zero": zero, "overlap_grad_reduce": on} for zero in range(4) for on in (True, False)),
        *({"recompute": one} for one in ("none", "selective", "full", ["mlp"], ["moe_act"])),
        *({"ep": 8, "dispatcher": one, "overlap_moe_comm": True} for one in DISPATCHERS),
        {"pp": 8, "stages": mixed, "recompute": "none"},
    ]
    trains = [
        *({"precision": one} for one in ("fp32", "bf16", "fp16", "fp8")),
        {"grad_dtype": "bf16", "master_dtype": "bf16", "state_dtype": "bf16"},
    ]
    for layout in layouts:
        for train in trains:
            parsed(a_job("mixtral-8x7b", nodes=4, train=train, **layout))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_megatron_does_not_have_is_said(schedule):
    vpp = default_chunks(schedule)
    job = a_job("llama-3.1-8b", pp=8, vpp=vpp, schedule=schedule)
    assert not job.problems()
    said = any(f"schedule {schedule} is not in Megatron-LM" in line for line in comments(job))
    assert said == (schedule not in ("1f1b", "interleaved-1f1b"))
    found = parsed(job)
    assert found.get("num-virtual-stages-per-pipeline-rank", 1) == vpp
    v_said = any("V placement" in line for line in comments(job))
    assert v_said == (schedule in ("zb-v", "dualpipe-v"))


def test_even_stages_need_no_layout_string():
    found = parsed(a_job(pp=4, vpp=4, recompute="full"))
    assert found["num-virtual-stages-per-pipeline-rank"] == 4
    assert "pipeline-model-parallel-layout" not in found
    assert (found["recompute-method"], found["recompute-num-layers"]) == ("uniform", 1)
    assert "num-virtual-stages-per-pipeline-rank" not in parsed(a_job(pp=4))


def test_mtp_is_placed_by_the_layout_string_even_when_stages_are_even():
    job = a_job("telechat3-105b-a4.7b", nodes=3, tp=8, pp=3)
    assert parsed(job)["pipeline-model-parallel-layout"] == "Et*15|t*15|t*15mL"
    without = a_job("telechat3-105b-a4.7b", nodes=3, tp=8, pp=3, train={"mtp": False})
    assert not {"pipeline-model-parallel-layout", "mtp-num-layers"} & set(parsed(without))


CHOICE = st.sampled_from(["none", "selective", "full"])
STRENGTH = {"none": 0, "selective": 1, "full": 2}


def megatron_choices(found, rows):
    """What Megatron-LM recomputes, layer by layer: block takes the first so many of every chunk."""
    granularity = found.get("recompute-granularity", "none")
    for layers in rows:
        for depth in range(layers):
            inside = found.get("recompute-method") != "block" or depth < found["recompute-num-layers"]
            yield granularity if inside else "none"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(CHOICE, min_size=1, max_size=6), min_size=8, max_size=8))
def test_recompute_is_never_less_than_planned_and_a_difference_is_said(choices):
    job = a_job("llama-3.1-8b", pp=8)
    pattern = {"pattern": (0,) * sum(map(len, choices))}
    stages = (tuple({"layers": len(stage), "recompute": tuple(stage)} for stage in choices),)
    layout = job.layout.model_validate(job.layout.model_dump() | {"stages": stages})
    job = replace(job, model=job.model.model_copy(update=pattern), layout=layout)
    planned = [choice for stage in choices for choice in stage]
    done = list(megatron_choices(parsed(job), [len(stage) for stage in choices]))
    assert all(STRENGTH[d] >= STRENGTH[p] for d, p in zip(done, planned, strict=True))
    assert any("one recompute choice" in line for line in comments(job)) == (done != planned)


def test_the_largest_recompute_over_stages_stands_for_all():
    stages = [
        [{"layers": 4, "recompute": {"full": full, "selective": 0}} for full in (3, 2, 1, 0, 0, 0, 0, 0)]
    ]
    job = a_job(pp=8, stages=stages)
    found = parsed(job)
    assert (found["recompute-granularity"], found["recompute-method"]) == ("full", "block")
    assert found["recompute-num-layers"] == 3
    (line,) = [line for line in comments(job) if "recompute choice" in line]
    assert "6 full and 0 selective of 32 layers" in line


def test_selective_recompute_names_its_modules():
    assert parsed(a_job(recompute="selective"))["recompute-modules"] == ["core_attn", "layernorm"]
    latent = a_job(**DEEPSEEK, pp=16, ep=64, recompute="selective")
    assert set(parsed(latent)["recompute-modules"]) == {"core_attn", "layernorm", "moe_act", "mla_up_proj"}
    named = a_job(**DEEPSEEK, pp=16, ep=64, recompute=["mlp", "shared_experts"])
    assert parsed(named)["recompute-modules"] == ["mlp", "shared_experts"]
    assert "recompute-granularity" not in parsed(a_job(recompute=["moe_act"]))  # a dense model has none


def test_block_recompute_leaves_mtp_out_and_says_so():
    stages = [
        [
            *({"layers": 4, "recompute": {"full": 1}} for _ in range(15)),
            {"layers": 1, "recompute": {"full": 1}},
        ]
    ]
    job = a_job(**DEEPSEEK, pp=16, ep=64, stages=stages)
    assert any("MTP" in line for line in comments(job))


def test_windows_sinks_and_biases_of_gpt_oss():
    found = parsed(a_job("gpt-oss-120b", ep=16))
    assert found["window-size"] == "127,0"  # 128 keys, the query's own counted
    assert found["window-attn-skip-freq"] == "([1]+[0])*18"
    assert eval(found["window-attn-skip-freq"]) == [1, 0] * 18
    assert found["softmax-type"] == "learnable"
    assert "disable-bias-linear" not in found
    assert "moe-layer-freq" not in found


@pytest.mark.parametrize(
    ("model", "disabled", "qkv", "said"),
    [
        ("gpt3-175b", False, False, False),
        ("llama-3.1-8b", True, False, False),
        ("deepseek-v3", True, False, False),
        ("telechat2-115b", True, False, True),  # on two of its linear maps only
    ],
)
def test_biases(model, disabled, qkv, said):
    job = a_job(model, nodes=8, train={"seq_len": 2048})
    found = parsed(job)
    assert (found.get("disable-bias-linear", False), found.get("add-qkv-bias", False)) == (disabled, qkv)
    assert any("bias of" in line for line in comments(job)) == said


def test_bias_on_queries_keys_and_values_only():
    job = a_job()
    attention = job.model.kinds[0].attention.model_copy(update={"qkv_bias": True})
    kind = job.model.kinds[0].model_copy(update={"attention": attention})
    found = parsed(replace(job, model=job.model.model_copy(update={"kinds": (kind,)})))
    assert found["disable-bias-linear"]
    assert found["add-qkv-bias"]


def test_gpt3_shape():
    found = parsed(a_job("gpt3-175b", nodes=8, tp=8, train={"seq_len": 2048}))
    assert found["normalization"] == "LayerNorm"
    assert found["position-embedding-type"] == "learned_absolute"
    assert found["max-position-embeddings"] == 2048
    assert not {"swiglu", "untie-embeddings-and-output-weights", "group-query-attention"} & set(found)
    longer = a_job("gpt3-175b", nodes=8, train={"seq_len": 4096})
    assert any("2048 learned positions" in line for line in comments(longer))


@pytest.mark.parametrize(
    ("vocab", "unit", "said"), [(51200, None, False), (50264, 4, False), (50257, 1, True)]
)
def test_the_vocabulary_keeps_its_size_where_it_can(vocab, unit, said):
    job = a_job(tp=2)
    job = replace(job, model=job.model.model_copy(update={"vocab_size": vocab}))
    found = parsed(job)
    assert found.get("make-vocab-size-divisible-by") == unit
    padded = -(-vocab // (2 * (unit or 128))) * 2 * (unit or 128)
    assert (padded == vocab) == (not said)
    assert any("padded" in line for line in comments(job)) == said


def test_zero_levels():
    strategy = {z: parsed(a_job(zero=z)).get("data-parallel-sharding-strategy") for z in range(4)}
    assert strategy == {0: None, 1: None, 2: "optim_grads", 3: "optim_grads_params"}
    assert "use-distributed-optimizer" in parsed(a_job(zero=1))
    assert "overlap-param-gather" not in parsed(a_job(zero=0))  # nothing to gather
    late = a_job(zero=1, overlap_grad_reduce=False)
    assert "overlap-param-gather" not in parsed(late)
    assert any("overlap_grad_reduce" in line for line in comments(late))


def test_precision():
    assert {"bf16", "fp8-format", "fp8-recipe"} <= set(parsed(a_job(train={"precision": "fp8"})))
    assert not {"bf16", "fp16"} & set(parsed(a_job(train={"precision": "fp32"})))
    low = {"grad_dtype": "bf16", "master_dtype": "bf16", "state_dtype": "bf16"}
    found = parsed(a_job(train=low))
    assert found["use-precision-aware-optimizer"]
    assert (found["exp-avg-dtype"], found["exp-avg-sq-dtype"], found["main-grads-dtype"]) == ("bf16",) * 3
    assert found["grad-reduce-in-bf16"]
    assert any("master parameters stay in fp32" in line for line in comments(a_job(train=low)))
    assert any("moments stay in fp32" in line for line in comments(a_job(train=low, zero=0)))


def test_hidden_expert_traffic_where_megatron_can():
    ask = {"model": "mixtral-8x7b", "nodes": 4, "ep": 4, "overlap_moe_comm": True}
    assert parsed(a_job(**ask))["overlap-moe-expert-parallel-comm"]
    assert parsed(a_job(**ask, pp=4, vpp=2))["overlap-moe-expert-parallel-comm"]
    for against in ({"pp": 4}, {"recompute": "full"}, {"dispatcher": "allgather"}, {"recompute": ["moe"]}):
        job = a_job(**ask, **against)
        assert "overlap-moe-expert-parallel-comm" not in parsed(job)
        assert any("expert traffic is not hidden" in line for line in comments(job))


def refusals(**layout):
    """What TransformerEngine refuses of a job on context ranks, as its comments say."""
    return [line for line in comments(a_job(**layout)) if "TransformerEngine takes" in line]


@pytest.mark.parametrize("model", ["gpt-oss-120b", "gemma-3-27b"])
def test_windows_between_context_ranks_that_pass_keys_round_are_said(model):
    """TransformerEngine's assertion lets windows through for a2a and all_gather."""
    (line,) = refusals(model=model, cp=2)
    assert "attention windows with cp_comm_type a2a only; newer releases may take more" in line
    assert refusals(model=model, cp=2, cp_comm_type="a2a") == refusals(model=model) == []


def test_latent_attention_between_context_ranks_that_deal_out_heads_is_said():
    """Keys of 128 + 64 numbers, values of 128: TransformerEngine's assertion lets them through for p2p."""
    (line,) = refusals(model="deepseek-v2-lite", cp=2, cp_comm_type="a2a")
    assert "different widths (192 and 128 here) with cp_comm_type p2p only; newer releases" in line
    assert refusals(model="deepseek-v2-lite", cp=2) == []
    assert refusals(cp=2, cp_comm_type="a2a") == refusals(cp=2) == []


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (2, 1), (1, 2)])
def test_deepep_without_ranks_to_send_to_is_alltoall(ep, etp):
    """Megatron-Core's flex dispatcher asserts that ep and etp are not both 1."""
    job = a_job("qwen3-30b-a3b", ep=ep, etp=etp, dispatcher="deepep")
    found, alone = parsed(job), ep * etp == 1
    assert found["moe-token-dispatcher-type"] == ("alltoall" if alone else "flex")
    assert ("moe-enable-deepep" in found) != alone
    assert any("wants ep * etp above 1: alltoall stands instead" in line for line in comments(job)) == alone


def test_the_dispatcher_of_mindformers_is_not_megatrons():
    job = a_job("mixtral-8x7b", ep=8, dispatcher="alltoall_deredundency")
    assert parsed(job)["moe-token-dispatcher-type"] == "alltoall"
    assert any("alltoall_deredundency is MindFormers'" in line for line in comments(job))


def test_experts_without_sequence_parallelism_are_refused_and_that_is_said():
    job = a_job("qwen3-30b-a3b", tp=2, etp=2, sequence_parallel=False)
    assert any("refuses experts under tensor parallelism" in line for line in comments(job))
    assert not any("refuses experts" in line for line in comments(a_job("qwen3-30b-a3b", tp=2, etp=2)))


def test_every_broken_rule_is_listed_and_nothing_is_written():
    with pytest.raises(InputError) as caught:
        megatron.arguments(a_job(tp=3, micro_batch=7, dp=8))
    assert {problem.field for problem in caught.value.problems} >= {"layout.tp", "layout.micro_batch"}


def test_a_shell_reads_it_as_an_array():
    text = megatron.arguments(a_job(**DEEPSEEK, pp=16, ep=64, recompute="selective"))
    script = f'ARGS=(\n{text})\nprintf "%s\\n" "${{ARGS[@]}}"'
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert run.stdout.splitlines() == shlex.split(text, comments=True)
    assert "Et*3|(t*4|)*13t*3|t*3mL" in run.stdout


def test_comments_come_first_and_a_name_cannot_end_its_line():
    job = a_job()
    job = replace(job, model=job.model.model_copy(update={"name": "x\n$(touch y)\n--bf16"}))
    lines = megatron.arguments(job).splitlines()
    assert lines[0].startswith("# x $(touch y) --bf16 on 16 x h100: tp 1")
    kinds = [line.startswith("#") for line in lines]
    assert kinds == sorted(kinds, reverse=True)
    assert all(line.startswith(("#", "--")) for line in lines)


# --- kinds of layers ---------------------------------------------------------------------------------------


def test_qwen3_next_alternates_gated_delta_nets_and_gated_attention():
    found = parsed(a_job("qwen3-next-80b-a3b", ep=16))
    assert found["experimental-attention-variant"] == "gated_delta_net"
    assert found["linear-attention-freq"] == "([1]*3+[0])*12"
    names = ("conv-kernel-dim", "key-head-dim", "value-head-dim", "num-key-heads", "num-value-heads")
    assert [found[f"linear-{name}"] for name in names] == [4, 128, 128, 16, 32]
    assert (
        found["num-attention-heads"] == 16 and found["kv-channels"] == 256 and found["num-query-groups"] == 2
    )
    assert found["attention-output-gate"] and found["moe-shared-expert-gate"] and found["qk-layernorm"]


def test_nemotron_hybrids_are_patterns():
    job = a_job("nemotron-3-super-120b-a12b", nodes=16, ep=16)
    found, said = parsed(job), " ".join(comments(job))
    pattern, _, module = found["hybrid-override-pattern"].partition("/")
    letters = {"mamba2": "M", "gqa": "*", "moe": "E"}
    halves = [kind.attention.kind if kind.mlp.kind == "none" else kind.mlp.kind for kind in job.model.layers]
    assert pattern == "".join(letters[half] for half in halves) and len(pattern) == found["num-layers"] == 88
    assert module == "*E"
    names = ("num-heads", "head-dim", "num-groups", "state-dim")
    assert [found[f"mamba-{name}"] for name in names] == [128, 64, 8, 128]
    assert found["position-embedding-type"] == "none" and found["moe-latent-size"] == 1024
    assert "moe-layer-freq" not in found and "swiglu" not in found
    assert "pretrain_mamba.py" in said and "convolution" not in said
    other = job.model.model_copy(update={"kinds": tuple(_wider(kind) for kind in job.model.kinds)})
    assert any("convolution" in line for line in comments(replace(job, model=other)))


def _wider(kind):
    if kind.attention.kind != "mamba2":
        return kind
    return kind.model_copy(update={"attention": kind.attention.model_copy(update={"conv_kernel": 8})})


def test_a_hybrids_uneven_stages_are_not_kept_and_that_is_said():
    uneven = a_job("nemotron-h-56b", nodes=4, tp=8, pp=4)  # 118 layers
    assert "pipeline-model-parallel-layout" not in parsed(uneven)
    assert any("planned stages are not kept" in line for line in comments(uneven))
    even = a_job("nemotron-h-56b", nodes=4, tp=8, pp=2, recompute="selective")
    assert not any("planned stages" in line for line in comments(even))
    assert any("Mamba layers recompute nothing selectively" in line for line in comments(even))
    hidden = a_job("nemotron-3-nano-30b-a3b", ep=8, overlap_moe_comm=True)
    assert "overlap-moe-expert-parallel-comm" not in parsed(hidden)


def test_deepseek_v3_2_chooses_keys():
    job = a_job("deepseek-v3.2", nodes=64, device="h800", pp=8, ep=64)
    found = parsed(job)
    assert found["multi-latent-attention"] and found["experimental-attention-variant"] == "dsa"
    names = ("n-heads", "head-dim", "topk")
    assert [found[f"dsa-indexer-{name}"] for name in names] == [64, 128, 2048]
    assert any("--dsa-indexer-loss-coeff" in line for line in comments(job))


@pytest.mark.parametrize(
    "name, said",
    [
        ("deepseek-v4-flash", ["compressed layers", "4 residual streams"]),
        ("kimi-linear-48b-a3b", ["kda layers"]),
        ("minimax-text-01", ["lightning layers"]),
        ("mimo-v2-flash", ["value heads of a width of their own", "attention differs"]),
        ("step-3.5-flash", ["output_gate head"]),
        ("llama-4-scout", ["attention inside chunks"]),
        ("hunyuan-large", ["shared keys or values"]),
        ("gemma-4-26b-a4b", ["shared keys or values", "other than two norms", "scales of the router"]),
        ("llama-3.3-nemotron-super-49b", ["--heterogeneous-layers-config-path", "widths differ"]),
    ],
)
def test_a_part_without_an_argument_is_said(name, said):
    lines = " ".join(comments(a_job(name, nodes=4)))
    assert all(words in lines for words in said)
    assert "experimental-attention-variant" not in parsed(a_job(name, nodes=4))


def test_plain_models_get_no_such_notes():
    for name in ("llama-3.1-8b", "deepseek-v3", "qwen3-235b-a22b", "mixtral-8x7b"):
        lines = " ".join(comments(a_job(name, nodes=4)))
        assert not any(words in lines for words in ("layer spec", "differ", "left out", "no argument"))


def test_small_parts_of_a_trunk_are_said():
    job = a_job("llama-3.1-8b")
    own = PerLayerInputs(vocab_size=100, width=8)
    model = job.model.model_copy(update={"head_bias": True, "embedding_norm": True, "per_layer_inputs": own})
    lines = " ".join(comments(replace(job, model=model)))
    assert all(words in lines for words in ("bias of the output head", "norm of the embedding", "per-layer"))
