"""MindFormers YAML: fields that exist, the published TeleChat3 settings, and the layers it would really place."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit import catalog
from telekit.errors import InputError
from telekit.job import load_job
from telekit.launch import mindformers
from telekit.layout.config import SCHEDULES
from telekit.layout.schedules import default_chunks
from telekit.layout.stages import V_SHAPED

# Read in configs/telechat3/pretrain_telechat3_105b_a4b_4k.yaml of github:mindspore-lab/mindformers at
# f87626a9b9da, configs/telechat3/pretrain_telechat3_36b.yaml of github:mindspore-ai/mindformers at 01f2c6b607f5
# and docs/mindformers/docs/source_en/feature/configuration.md of github:mindspore-ai/docs at 046e44e74a24.
FIELDS = {
    "": "use_parallel use_legacy run_mode runner_config optimizer parallel_config parallel recompute_config model",
    "runner_config": "batch_size gradient_accumulation_steps",
    "optimizer": "type",
    "parallel_config": "data_parallel model_parallel context_parallel context_parallel_algo pipeline_stage "
    "expert_parallel micro_batch_num use_seq_parallel vocab_emb_dp",
    "parallel": "parallel_mode gradients_mean enable_alltoall full_batch dataset_strategy "
    "enable_parallel_optimizer parallel_optimizer_config pipeline_config",
    "parallel.parallel_optimizer_config": "gradient_accumulation_shard parallel_optimizer_threshold",
    "parallel.pipeline_config": "pipeline_interleave pipeline_scheduler",
    "recompute_config": "recompute select_recompute parallel_optimizer_comm_recompute mp_comm_recompute",
    "model": "model_config",
    "model.model_config": "vocab_size seq_length hidden_size intermediate_size num_hidden_layers "
    "max_position_embeddings position_embedding_type normalization hidden_act gated_linear_unit add_bias_linear "
    "tie_word_embeddings use_flash_attention attention_dropout hidden_dropout num_attention_heads "
    "num_key_value_heads head_dim attention_bias qk_layernorm multi_latent_attention mla_qkv_concat q_lora_rank "
    "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size first_k_dense_replace "
    "n_routed_experts num_experts_per_tok n_shared_experts moe_shared_expert_intermediate_size "
    "moe_router_enable_expert_bias scoring_func moe_grouped_gemm moe_token_dispatcher_type npu_nums_per_device "
    "num_nextn_predict_layers offset pp_interleave_num params_dtype compute_dtype",
}


def read(job):
    """Read the YAML of a job; every field must be one that MindFormers has."""
    found = yaml.safe_load(mindformers.config(job))
    for path, names in FIELDS.items():
        section = found
        for part in filter(None, path.split(".")):
            section = section.get(part, {})
        assert set(section) <= set(names.split()), path
    return found


def comments(job):
    return [line for line in mindformers.config(job).splitlines() if line.startswith("#")]


def a_job(model="telechat3-36b", nodes=2, train=None, device="ascend-910b", **layout):
    return load_job(
        {
            "model": model,
            "cluster": {"device": device, "nodes": nodes},
            "train": {"global_batch": 256} | (train or {}),
            "layout": layout,
        }
    )


def telechat3_105b(**layout):
    """Return the published setting: 256 NPUs, dp 4, tp 8, pp 8, 8 micro-batches of one sequence."""
    given = {"tp": 8, "pp": 8, "dp": 4, "ep": 1, "etp": 8, "recompute": "full", "schedule": "seqsmartvpp"}
    return a_job("telechat3-105b-a4.7b", 32, {"seq_len": 4096, "global_batch": 32}, **given | layout)


def test_the_published_telechat3_105b_setting():
    job = telechat3_105b()
    assert not job.problems()
    found = read(job)
    degrees = found["parallel_config"]
    assert (degrees["data_parallel"], degrees["model_parallel"], degrees["pipeline_stage"]) == (4, 8, 8)
    assert (degrees["micro_batch_num"], degrees["expert_parallel"]) == (8, 1)
    assert degrees["use_seq_parallel"]
    assert not degrees["vocab_emb_dp"]
    assert found["parallel"]["pipeline_config"] == {
        "pipeline_interleave": True,
        "pipeline_scheduler": "seqsmartvpp",
    }
    assert found["parallel"]["enable_parallel_optimizer"]
    assert found["parallel"]["enable_alltoall"]
    assert found["parallel"]["parallel_optimizer_config"] == {
        "gradient_accumulation_shard": False,
        "parallel_optimizer_threshold": 64,
    }
    assert found["recompute_config"]["recompute"] is True
    assert found["recompute_config"]["select_recompute"] is False
    assert found["recompute_config"]["mp_comm_recompute"]
    assert found["runner_config"]["batch_size"] == 1
    assert any("etp 8" in line for line in comments(job))


# The model section of that file, for the fields written here
TELECHAT3 = {
    "pp_interleave_num": 1,
    "vocab_size": 131072,
    "seq_length": 4096,
    "hidden_size": 2560,
    "intermediate_size": 7680,
    "num_hidden_layers": 45,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "add_bias_linear": False,
    "use_flash_attention": True,
    "multi_latent_attention": True,
    "mla_qkv_concat": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "qk_layernorm": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "params_dtype": "float32",
    "compute_dtype": "bfloat16",
    "num_nextn_predict_layers": 1,
    "position_embedding_type": "rope",
    "gated_linear_unit": True,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "n_routed_experts": 192,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 1536,
    "scoring_func": "sigmoid",
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "npu_nums_per_device": 8,
    "moe_router_enable_expert_bias": True,
}


def test_the_published_telechat3_105b_model():
    found = read(telechat3_105b())["model"]["model_config"]
    assert found | TELECHAT3 == found


def test_the_published_telechat3_36b_setting():
    """16 NPUs, dp 1, tp 8, pp 2 with two chunks; 14 of each chunk's 16 layers recomputed."""
    cell = {"layers": 16, "recompute": {"full": 14}}
    job = a_job(
        tp=8, pp=2, vpp=2, stages=[[cell, cell], [cell, cell]], train={"seq_len": 8192, "global_batch": 4}
    )
    found = read(job)
    shape = found["model"]["model_config"]
    assert found["recompute_config"]["recompute"] == [[14, 14], [14, 14]]
    assert (shape["pp_interleave_num"], shape["offset"]) == (2, 0)
    assert (shape["num_attention_heads"], shape["num_key_value_heads"], shape["hidden_size"]) == (48, 8, 6144)
    assert (shape["intermediate_size"], shape["hidden_act"]) == (24576, "swiglu")
    assert not shape["attention_bias"]
    assert "head_dim" not in shape  # 48 heads of 128 are the hidden size
    assert found["parallel_config"]["micro_batch_num"] == 4
    assert found["parallel"]["pipeline_config"]["pipeline_interleave"]
    assert found["parallel"]["dataset_strategy"] == [[1, 1]] * 4


def placed(found):
    """What MindFormers would do with each layer: (chunk, stage, recompute), from the numbers of the file alone.

    Layers of chunk v on stage s are the even share and the offset; zero_bubble_v runs its second chunk from the last
    stage back. The first so many layers of a cell are recomputed, and those after them, up to another count, in part.
    """
    shape, recompute = found["model"]["model_config"], found["recompute_config"]
    pp, chunks = found["parallel_config"]["pipeline_stage"], shape["pp_interleave_num"]
    scheduler = found["parallel"].get("pipeline_config", {}).get("pipeline_scheduler")
    share, left = divmod(shape["num_hidden_layers"], pp * chunks)
    offset = np.broadcast_to(np.array(shape["offset"]), (chunks, pp))
    assert offset.sum() == left, "MindFormers refuses another sum"

    def grid(value):
        value = {True: 10**9, False: 0}[value] if isinstance(value, bool) else value
        return np.broadcast_to(np.array(value), (chunks, pp))

    parts = recompute["select_recompute"]
    full, partly = grid(recompute["recompute"]), grid(next(iter(parts.values())) if parts else False)
    for v in range(chunks):
        back = scheduler == "zero_bubble_v" and v == 1
        for s in reversed(range(pp)) if back else range(pp):
            for depth in range(share + offset[v, s]):
                yield v, s, "full" if depth < full[v, s] else "selective" if depth < partly[v, s] else "none"


@st.composite
def cells(draw, chunks, stages):
    rows = []
    for _ in range(chunks):
        row = []
        for _ in range(stages):
            full, selective, none = (draw(st.integers(0, 3)) for _ in range(3))
            row.append(
                {"layers": full + selective + none + 1, "recompute": {"full": full, "selective": selective}}
            )
        rows.append(row)
    return rows


@st.composite
def uneven_jobs(draw):
    schedule = draw(
        st.sampled_from(["1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v", "seqsmartvpp", "gpipe"])
    )
    chunks, stages = default_chunks(schedule), draw(st.sampled_from([2, 4, 8]))
    rows = draw(cells(chunks, stages))
    job = a_job(tp=1, pp=stages, vpp=chunks, schedule=schedule, stages=rows)
    total = sum(cell["layers"] for row in rows for cell in row)
    return replace(job, model=job.model.model_copy(update={"pattern": (0,) * total}))


@settings(max_examples=120, deadline=None)
@given(uneven_jobs())
def test_every_layer_stands_where_the_layout_says_and_recomputes_what_it_says(job):
    layout = job.layout
    order = [(0, s) for s in range(layout.pp)]
    if layout.schedule in V_SHAPED:
        order += [(1, s) for s in range(layout.pp - 1, -1, -1)]
    elif layout.vpp == 2:
        order += [(1, s) for s in range(layout.pp)]
    want = [(v, s, c) for v, s in order for c in layout.stages[v][s].options("none")]
    assert list(placed(read(job))) == want
    assert not any("another order" in line for line in comments(job))


def test_select_recompute_counts_the_fully_recomputed_layers_too():
    """As SAPP's pipeline balance writes it: selective lists hold full layers and selective ones."""
    cells = [
        {"layers": 16, "recompute": {"full": f, "selective": s}} for f, s in ((2, 1), (1, 0), (0, 3), (0, 0))
    ]
    found = read(a_job(pp=4, stages=[cells]))["recompute_config"]
    assert found["recompute"] == [2, 1, 0, 0]
    assert set(map(tuple, found["select_recompute"].values())) == {(3, 1, 3, 0)}


def test_another_order_of_recompute_is_covered_and_said():
    stages = [[{"layers": 16, "recompute": ["none", "full", *["none"] * 14]}, *[16] * 3]]
    job = a_job(pp=4, stages=stages)
    assert read(job)["recompute_config"]["recompute"] == [2, 0, 0, 0]
    assert any("another order" in line for line in comments(job))


NAMES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved-1f1b": "1f1b",
    "seqsmartvpp": "seqsmartvpp",
    "zb-v": "zero_bubble_v",
    "dualpipe-v": "zero_bubble_v",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_mindspore_does_not_have_is_said(schedule):
    job = a_job(pp=8, vpp=default_chunks(schedule), schedule=schedule)
    assert not job.problems()
    found = read(job)
    assert found["parallel"]["pipeline_config"]["pipeline_scheduler"] == NAMES.get(schedule, "1f1b")
    said = any(f"schedule {schedule} is not in MindSpore" in line for line in comments(job))
    assert said == (schedule not in NAMES)
    assert found["parallel"]["pipeline_config"]["pipeline_interleave"] == (
        schedule in ("interleaved-1f1b", "seqsmartvpp", *V_SHAPED)
    )


def test_too_few_micro_batches_are_said():
    few = a_job(pp=8, train={"global_batch": 8})
    assert few.micro_batches == 4
    assert any("at least 8" in line for line in comments(few))
    assert not any("at least" in line for line in comments(a_job(pp=8, train={"global_batch": 16})))


@pytest.mark.parametrize("name", catalog.names("models"))
def test_every_model_gives_fields_that_exist(name):
    ep = 2 if a_job(name).model.moe else 1
    tp = 1 if name == "gpt2-xl" else 2  # it has 25 heads
    job = a_job(name, nodes=8, train={"seq_len": 2048}, tp=tp, pp=2, ep=ep, recompute="selective")
    found = read(job)
    assert len(list(placed(found))) == job.model.num_layers


def test_selective_recompute_names_cells_of_the_layer():
    job = a_job("deepseek-v3", nodes=32, pp=16, ep=16, recompute="selective")
    found = read(job)["recompute_config"]["select_recompute"]
    assert set(found) == {
        r"self_attention\.core_attention",
        r"(input_layernorm|pre_mlp_layernorm)",
        r"self_attention\.(linear_q_up_proj|linear_kv_up_proj)",
        r"mlp\.experts",
    }
    assert set(found.values()) == {True}
    assert any("moe_act" in line for line in comments(job))
    assert "*id" not in mindformers.config(job)


def test_without_a_pipeline_micro_batches_are_accumulated():
    found = read(a_job(tp=8, train={"global_batch": 12}))
    assert found["runner_config"] == {"batch_size": 1, "gradient_accumulation_steps": 6}
    assert found["parallel_config"]["micro_batch_num"] == 1
    assert "pipeline_config" not in found["parallel"]


def test_zero_levels():
    shards = {}
    for zero in range(4):
        found = read(a_job(zero=zero))
        inside = found["parallel"].get("parallel_optimizer_config", {}).get("gradient_accumulation_shard")
        again = found["recompute_config"]["parallel_optimizer_comm_recompute"]
        shards[zero] = (found["parallel"]["enable_parallel_optimizer"], inside, again)
    assert shards == {
        0: (False, None, False),
        1: (True, False, False),
        2: (True, True, False),
        3: (True, True, True),
    }


def test_dispatchers_and_precision_that_are_missing_are_said():
    ask = {"model": "mixtral-8x7b", "nodes": 4}
    for dispatcher, ep, etp, runs in (
        ("alltoall", 8, 1, "alltoall"),
        ("allgather", 8, 1, "alltoall"),
        ("deepep", 8, 1, "alltoall_deredundency"),
        ("deepep", 4, 1, "alltoall"),
        ("alltoall_deredundency", 8, 1, "alltoall_deredundency"),
        ("alltoall_deredundency", 4, 2, "alltoall"),  # whole nodes only with etp, which MindFormers has not
    ):
        job = a_job(**ask, ep=ep, etp=etp, dispatcher=dispatcher)
        assert read(job)["model"]["model_config"]["moe_token_dispatcher_type"] == runs
        assert any("stands instead" in line for line in comments(job)) == (dispatcher != runs)
    low = a_job(device="h800", train={"precision": "fp8", "state_dtype": "bf16", "master_dtype": "bf16"})
    assert read(low)["model"]["model_config"]["params_dtype"] == "bfloat16"
    assert any("fp8 is not" in line for line in comments(low))
    assert any("moments follow" in line for line in comments(low))


def test_context_parallel_and_foreign_devices():
    job = a_job("llama-3.1-8b", device="h100", cp=4)
    assert read(job)["parallel_config"]["context_parallel"] == 4
    assert any("Ascend only" in line for line in comments(job))
    assert not any("Ascend only" in line for line in comments(a_job()))


def test_what_the_model_section_cannot_say():
    said = " ".join(comments(a_job("gpt-oss-120b", ep=16)))
    assert "attention windows" in said
    assert "sinks" in said
    assert "grouped experts refuse add_bias_linear" in said
    assert "biases of only some" in " ".join(comments(a_job("telechat2-115b", nodes=8)))


def test_experts_without_sequence_parallelism_are_refused_and_that_is_said():
    """Its expert layer raises whatever etp is."""
    words = "MindFormers refuses experts under tensor parallelism without use_seq_parallel, whatever etp is"
    for on in (True, False):
        job = a_job("qwen3-30b-a3b", tp=2, etp=2, sequence_parallel=on)
        assert any(words in line for line in comments(job)) != on
    assert not any(words in line for line in comments(a_job(tp=2, sequence_parallel=False)))  # a dense model


def test_every_broken_rule_is_listed_and_nothing_is_written():
    with pytest.raises(InputError) as caught:
        mindformers.config(a_job(tp=5, micro_batch=7, dp=8))
    assert {problem.field for problem in caught.value.problems} >= {"layout.tp", "layout.micro_batch"}


@pytest.mark.parametrize(
    "name, said",
    [
        ("deepseek-v3.2", ["choice of keys"]),
        ("deepseek-v4-flash", ["compressed layers", "several residual streams", "choice of keys"]),
        ("gemma-4-26b-a4b", ["attention windows", "scales of the router", "other than two norms"]),
        ("hunyuan-large", ["parts of the attention"]),
        ("kimi-linear-48b-a3b", ["kda layers"]),
        ("llama-3.3-nemotron-super-49b", ["become whole ones", "takes the widest"]),
        ("minimax-text-01", ["lightning layers"]),
        ("nemotron-3-super-120b-a12b", ["mamba2 layers", "latent width", "become whole ones"]),
        (
            "qwen3-next-80b-a3b",
            ["gated-delta layers", "parts of the attention", "gate of the shared experts"],
        ),
        ("step-3.5-flash", ["parts of the attention", "attention windows"]),
    ],
)
def test_kinds_of_layers_that_no_field_names_are_said(name, said):
    lines = " ".join(comments(a_job(name, nodes=8)))
    assert all(words in lines for words in said)


def test_plain_models_get_no_such_notes():
    for name in ("telechat3-36b", "telechat3-105b-a4.7b", "deepseek-v3", "qwen3-235b-a22b"):
        lines = " ".join(comments(a_job(name, nodes=8)))
        assert not any(words in lines for words in ("layers are not in the file", "parts of the attention"))


def test_a_hybrid_gives_the_shape_of_its_attention():
    shape = read(a_job("nemotron-h-56b", nodes=8, tp=8))["model"]["model_config"]
    assert shape["num_attention_heads"] == 64 and shape["num_key_value_heads"] == 8
    assert shape["num_hidden_layers"] == 118 and shape["intermediate_size"] == 32768
