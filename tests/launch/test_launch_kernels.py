"""Formats, attention kernels, fused experts and graphs of a job, as Megatron-LM and MindFormers are told of them."""

import shlex

import pytest
import yaml

from telekit.job import Job
from telekit.launch import megatron, mindformers


def job(model="deepseek-v2-lite", device="gb200", train=None, **layout):
    return Job.read({"model": model, "cluster": {"device": device, "devices": 8},
                     "train": {"global_batch": 64} | (train or {}), "layout": layout})  # fmt: skip


def flags(it):
    """Options of Megatron-LM, each with its words."""
    found = {}
    for line in megatron.arguments(it).splitlines():
        if not line.startswith("#"):
            name, *words = shlex.split(line)
            found[name.removeprefix("--")] = words
    return found


@pytest.mark.parametrize(
    "recipe, form",
    [("delayed", "hybrid"), ("tensorwise", "hybrid"), ("blockwise", "e4m3"), ("mxfp8", "e4m3")],
)
def test_each_fp8_recipe_is_said(recipe, form):
    found = flags(job(train={"precision": "fp8", "fp8_recipe": recipe}))
    assert (found["fp8-recipe"], found["fp8-format"]) == ([recipe], [form]) and "bf16" in found


def test_fp4_is_said_and_fp8_with_it_is_not():
    found = flags(job(train={"precision": "fp4"}, ep=8))
    assert (found["fp4-format"], found["fp4-recipe"]) == (["e2m1"], ["nvfp4"])
    assert "fp8-format" not in found and "moe-grouped-gemm" in found


def test_unfused_attention_drops_out_as_the_memory_model_says():
    found = flags(job("megatron-gpt-1.7b", "a100-80gb", {"attention_kernel": "unfused", "seq_len": 2048}))
    assert (found["attention-backend"], found["attention-dropout"], found["hidden-dropout"]) == (
        ["unfused"], ["0.1"], ["0.1"])  # fmt: skip
    plain = flags(job("megatron-gpt-1.7b", "a100-80gb", {"seq_len": 2048}))
    assert (
        plain["attention-dropout"] == plain["hidden-dropout"] == ["0.0"] and "attention-backend" not in plain
    )


@pytest.mark.parametrize(
    "graphs, model, impl, scope",
    [("full", "llama-3.1-8b", "local", ["full_iteration"]),
     ("partial", "llama-3.1-8b", "transformer_engine", ["attn", "mlp"]),
     ("partial", "deepseek-v2-lite", "transformer_engine", ["attn", "moe_router", "moe_preprocess"])],
)  # fmt: skip
def test_graphs(graphs, model, impl, scope):
    found = flags(job(model, cuda_graphs=graphs))
    assert (found["cuda-graph-impl"], found["cuda-graph-scope"]) == (
        [impl],
        scope,
    ) and "te-rng-tracker" in found


def test_graphs_with_full_recompute_are_refused_there():
    written = megatron.arguments(job(cuda_graphs="full", recompute="full"))
    assert "--cuda-graph" not in written and "refuses them with full recompute" in written


@pytest.mark.parametrize(
    "dispatcher, flag", [("hybridep", "moe-flex-dispatcher-backend"), ("deepep", "moe-enable-deepep")]
)
def test_dispatchers_that_send_a_token_once_to_a_node(dispatcher, flag):
    found = flags(job(ep=8, dispatcher=dispatcher, fused_experts=True))
    assert found["moe-token-dispatcher-type"] == ["flex"] and flag in found
    assert "use-transformer-engine-op-fuser" in found
    alone = flags(job(ep=1, dispatcher=dispatcher))
    assert alone["moe-token-dispatcher-type"] == ["alltoall"] and flag not in alone


def test_mindformers_says_what_it_does_not_set():
    many = {"activation_offload": 0.5, "moe_expert_capacity_factor": 1.5, "cuda_graphs": "partial",
            "fused_experts": True, "recompute": "full", "recompute_group": 2}  # fmt: skip
    text = mindformers.config(job(device="ascend-910b", train={"optimizer": "came"}, ep=8, **many))
    said = [line for line in text.splitlines() if line.startswith("# not set here is")]
    assert len(said) == 6
    assert "not set here" not in mindformers.config(job(device="ascend-910b", ep=8))


def test_mindformers_on_attention_and_hybridep():
    old = yaml.safe_load(mindformers.config(job(train={"attention_kernel": "unfused"})))["model"][
        "model_config"
    ]
    assert (old["use_flash_attention"], old["attention_dropout"], old["hidden_dropout"]) == (False, 0.1, 0.1)
    text = mindformers.config(job(ep=8, dispatcher="hybridep"))
    assert "HybridEP is not in MindFormers" in text
