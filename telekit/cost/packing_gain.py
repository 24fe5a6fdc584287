"""What balancing packed samples gains a whole job: the packing floor's comparison, with the step's other costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cost.layers import Site
from telekit.cost.step import StepCost, step_cost
from telekit.errors import InputError, bad, from_pydantic
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.gain import Gain, Setting, gain
from telekit.packing.plan import Plan
from telekit.packing.timing import pipeline_s
from telekit.pipeline.simulate import SIMULATED
from telekit.training.config import TrainConfig
from telekit.training.documents import LengthDistribution

TOKENS_OF_36B = 512 * 8192
"""Tokens of a global batch of TeleChat3-36B's published layout: 128 ranks, 4 micro-batches, 8,192 tokens."""


def setting_of(job: Job) -> Setting:
    """Read a job as balancing sees it, with what no sample changes: gradient reduction left open, the optimizer.

    Raises
    ------
    InputError
        For a layout that breaks a rule.
    """
    problems = job.problems()
    if problems:
        raise InputError(problems)
    cost = step_cost(Site(job.model, job.cluster, job.train, job.layout))
    found = Setting.of(job, float(cost.comm_s), float(cost.dp_comm_s + cost.optimizer_s + cost.waiting_s))
    found = replace(found, plan=_leveled(job, cost, found.plan))
    if job.layout.cp == 1:
        return found
    return replace(
        found, assumptions=(*found.assumptions, f"{job.layout.cp} context ranks share each document evenly.")
    )


def _leveled(job: Job, cost: StepCost, plan: Plan) -> Plan:
    """Complete a plan so that equal micro-batches take what :func:`telekit.cost.estimate.estimate` says."""
    forward, backward = np.asarray(cost.forward_s), np.asarray(cost.backward_s)
    weight, pair = cost.weight_s / backward, 1 - cost.hidden_s / (forward + backward)
    plan = replace(plan, weight_share=_rows(weight), pair_share=_rows(pair))
    if job.layout.schedule in SIMULATED:
        return plan
    f, b = (np.broadcast_to(x, (job.micro_batches, *x.shape)) for x in (forward, backward))
    return replace(plan, level=float(cost.pipeline_s / pipeline_s(f, b, plan)[0]))


def _rows(table: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())


def resized(job: Job, seq_len: int, dp: int, micro_batches: int, cp: int | None = None) -> Job:
    """Return a job with other samples, ranks and micro-batches; its devices follow.

    Raises
    ------
    InputError
        For numbers that a job does not take.
    """
    degrees = {"dp": dp} if cp is None else {"dp": dp, "cp": cp}
    batch = dp * micro_batches * job.layout.micro_batch
    try:
        layout = ParallelConfig.model_validate({**dict(job.layout), **degrees})
        train = TrainConfig.model_validate({**dict(job.train), "seq_len": seq_len, "global_batch": batch})
        devices = layout.tp * layout.cp * layout.pp * dp
        cluster = ClusterConfig.model_validate({**dict(job.cluster), "devices": devices})
    except ValidationError as error:
        raise from_pydantic(error) from None
    return Job(job.model, cluster, train, layout)


def packing_gain(job: Job, lengths: LengthDistribution | Any, **options: Any) -> Gain:
    """Compare policies for a job; ``options`` as in :func:`telekit.packing.gain.gain`."""
    return gain(setting_of(job), lengths, **options)


def telechat3_36b(seq_len: int = 8192) -> Job:
    """TeleChat3-36B's published layout on 2,048 Ascend 910B, and the same stretched to longer sequences.

    Published (github:Tele-AI/TeleChat3, finetune_telechat3_36b.yaml): DP 128, TP 8, PP 2 with two chunks a stage, 4
    micro-batches of one sequence of 8,192 tokens. Its scheduler, seqpipe, is taken as interleaved 1F1B. Longer
    sequences keep the tokens of a device and of a global batch: context parallelism takes the factor over from data
    parallelism (CP 4, DP 32 at 32,768; CP 16, DP 8 at 131,072), so that memory stays as it is.

    Raises
    ------
    InputError
        For a length that is not 8,192 times 1, 2, 4, ... 128.
    """
    if seq_len not in {8192 << k for k in range(8)}:
        raise bad("seq_len", seq_len, "must be 8192 times 1, 2, 4, ... 128", "32768 works")
    factor = seq_len // 8192
    layout = ParallelConfig(tp=8, pp=2, vpp=2, cp=factor, dp=128 // factor, schedule="interleaved-1f1b")
    train = TrainConfig(seq_len=seq_len, global_batch=TOKENS_OF_36B // seq_len)
    return Job(load_model("telechat3-36b"), load_cluster("telechat3-910b-2048"), train, layout)


def llama_like(
    layers: int, hidden: int, inner: int | None = None, heads: int | None = None
) -> dict[str, Any]:
    """Fields of a dense model with Llama's proportions: heads of 128, feed-forward blocks of 8/3 of the width."""
    heads = heads or max(hidden // 128, 1)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner or -(-8 * hidden // (3 * 256)) * 256,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
