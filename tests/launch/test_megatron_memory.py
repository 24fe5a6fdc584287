"""What a job says of memory reaches Megatron-LM's arguments, and what does not is said."""

import shlex

from telekit.job import Job
from telekit.launch.megatron import arguments


def written(train=None, **layout):
    job = Job.read(
        {
            "model": "deepseek-v2-lite",
            "cluster": {"device": "h100", "nodes": 1},
            "train": {"seq_len": 4096, "global_batch": 64} | (train or {}),
            "layout": {"ep": 8} | layout,
        }
    )
    lines = arguments(job).splitlines()
    notes = [line for line in lines if line.startswith("#")]
    return shlex.split(" ".join(line for line in lines if not line.startswith("#"))), notes


def after(words, flag):
    return words[words.index(flag) + 1]


def test_flags_of_memory():
    words, _ = written({"precision": "fp8", "cross_entropy_fusion": "te", "fp8_param_gather": True,
                        "activation_func_fp8_input_store": True},
                       moe_expert_capacity_factor=1.25, optimizer_offload=0.5)  # fmt: skip
    assert after(words, "--cross-entropy-fusion-impl") == "te" and "--cross-entropy-loss-fusion" in words
    assert (
        after(words, "--moe-expert-capacity-factor") == "1.25"
        and "--moe-pad-expert-input-to-capacity" in words
    )
    assert after(words, "--optimizer-offload-fraction") == "0.5" and "--optimizer-cpu-offload" in words
    assert {"--fp8-param-gather", "--activation-func-fp8-input-store"} <= set(words)


def test_a_plain_job_has_none_of_them():
    words, notes = written()
    assert not [
        w for w in words if w.startswith(("--cross-entropy", "--fp8", "--optimizer-", "--moe-expert-cap"))
    ]
    assert not [n for n in notes if "host" in n or "activation is no module" in n]


def test_groups_of_recomputed_layers():
    words, _ = written(recompute="full", recompute_group=3)
    assert (after(words, "--recompute-method"), after(words, "--recompute-num-layers")) == ("uniform", "3")


def test_what_megatron_does_otherwise_is_said():
    words, notes = written({"optimizer": "came"}, recompute=["mlp_act", "moe_act"], activation_offload=0.4)
    assert after(words, "--recompute-modules") == "moe_act" and "mlp_act" not in words
    said = " ".join(notes)
    assert (
        "40% of the activations on the host" in said
        and "optimizer came" in said
        and "no module of its own" in said
    )
    words, _ = written(recompute=["mlp_act"])
    assert "--recompute-modules" not in words
