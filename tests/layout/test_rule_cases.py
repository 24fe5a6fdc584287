"""Public reports of layouts that a framework took, or refused, wrongly: each test is named after its case.

The chunks of PV02 are read by ``launch/pipeline_layout``, and tested beside it; the strings of PV17 there and in
``tests/test_job.py``.
"""

from dataclasses import replace

from telekit.cluster.config import load_cluster
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.memory import stage_parameters
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.layout.notes import notes
from telekit.layout.rules import Case, check
from telekit.layout.stages import assign
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, MixtureOfExperts, ModelConfig
from telekit.model.count import count
from telekit.training.config import TrainConfig


def model(
    heads=8, kv_heads=8, layers=8, ffn=1024, experts=0, expert_ffn=1024, shared=0, vocab=32_000, **fields
):
    attention = GroupedQueryAttention(heads=heads, kv_heads=kv_heads, head_dim=128)
    mlp = FeedForward(ffn_hidden_size=ffn)
    if experts:
        mlp = MixtureOfExperts(num_experts=experts, top_k=1, expert_ffn_hidden_size=expert_ffn,
                               shared_ffn_hidden_size=shared)  # fmt: skip
    kind = LayerKind(name="layer", attention=attention, mlp=mlp)
    record = {
        "name": "case",
        "hidden_size": 1024,
        "vocab_size": vocab,
        "kinds": (kind,),
        "pattern": (0,) * layers,
    }
    return ModelConfig(**(record | fields))


def case(layout, devices, model, **train):
    cluster = load_cluster({"device": "h100", "devices": devices, "devices_per_node": devices})
    layout = ParallelConfig.model_validate(layout)
    return Case(model, cluster, TrainConfig(**({"seq_len": 4096, "global_batch": 96} | train)), layout)


def job_of(case):
    return Job(case.model, case.cluster, case.train, case.layout)


def broken(found):
    return [str(problem) for problem in check(found)]


GLM_45_AIR = {"heads": 96, "kv_heads": 8, "layers": 46, "experts": 128, "expert_ffn": 1408, "shared": 1408,
              "vocab": 151_552}  # fmt: skip


def test_pv01_layers_that_do_not_divide_are_all_placed():
    """Megatron-LM issue 1304: 30 layers on 4 stages; a floor keeps 28."""
    thirty = model(layers=30)
    auto = case({"pp": 4, "dp": 2}, 8, thirty)
    assert check(auto) == ()
    placed = assign(thirty, auto.layout).layers
    assert placed.tolist() == [[7, 8, 8, 7]] and placed.sum() == 30 and placed.max() == 8
    assert any("[7, 8, 8, 7], 8 at most and 30 in all" in note for note in notes(auto))
    (problem,) = broken(case({"pp": 4, "dp": 2, "stages": [[7, 7, 7, 7]]}, 8, thirty))
    assert "places 28 layers; the model has 30" in problem and "stages [[7, 8, 8, 7]] works" in problem


def test_pv02_stages_that_lose_layers_are_refused():
    """Megatron-LM issue 468: 80 layers on 16 stages, two layers a virtual stage, trained 64."""
    layout = {"pp": 16, "vpp": 2, "dp": 1, "schedule": "interleaved-1f1b", "stages": [[2] * 16] * 2}
    (problem,) = broken(case(layout, 16, model(layers=80)))
    assert "places 64 layers; the model has 80" in problem


def test_pv04_an_uneven_split_with_lighter_ends_is_proposed():
    """ms-swift issue 5737: GLM-4.5-Air's 46 layers on 4 stages with TP 8, EP 16, ETP 1."""
    layout = {"tp": 8, "pp": 4, "dp": 2, "ep": 16, "etp": 1}
    auto = case(layout, 64, model(**GLM_45_AIR))
    assert check(auto) == ()
    assert assign(auto.model, auto.layout).layers.tolist() == [[11, 12, 12, 11]]
    assert any("[11, 12, 12, 11]" in note and "the lighter ones" in note for note in notes(auto))
    (problem,) = broken(case(layout | {"stages": [[11] * 4]}, 64, model(**GLM_45_AIR)))
    assert "places 44 layers; the model has 46" in problem and "stages [[11, 12, 12, 11]] works" in problem


def test_pv05_ep_may_exceed_dp():
    """Megatron-Bridge issue 4980: 32 devices, CP 16, so DP 2; EP 32 with 256 experts: 8 a rank, EDP 1."""
    found = case({"cp": 16, "dp": 2, "ep": 32}, 32, model(experts=256))
    assert check(found) == ()
    assert found.layout.edp == 1 and found.layout.dp == 2 and 256 / found.layout.ep == 8


def test_pv08_every_factor_is_printed():
    """NeMo issue 14838: a product of 4 on 4 ranks is valid; a stale EP or ETP makes it 8, and is seen."""
    good = {"tp": 1, "pp": 2, "cp": 1, "dp": 2, "ep": 2, "etp": 1}
    assert check(case(good, 4, model(experts=8))) == ()
    for stale in ({"ep": 4}, {"etp": 2}):
        (problem,) = broken(case(good | stale, 4, model(experts=8)))
        layout = good | stale
        for name in ("tp", "cp", "dp", "pp", "ep", "etp"):
            assert f"{name} {layout[name]}" in problem
        assert "8 must divide the 4 devices" in problem
    (problem,) = broken(case(good | {"dp": 4}, 4, model(experts=8)))
    assert (
        "tp 1 * cp 1 * pp 2 * dp 4 = 8 must be the 4 devices (ep 2 and etp 1" in problem
        and "dp 2 works" in problem
    )


def test_pv09_a_bad_expert_degree_is_named_before_any_mesh():
    """torchtitan pull request 4258: dp 3, cp 2: EP 4 does not divide 6 ranks, EP 6 does not divide 64 experts."""
    (ranks,) = broken(case({"cp": 2, "dp": 3, "ep": 4}, 6, model(experts=64)))
    assert (
        "ep 4 = 4 must divide the tp 1 * cp 2 * dp 3 = 6 devices of a stage" in ranks
        and "ep 2 works" in ranks
    )
    (experts,) = broken(case({"cp": 2, "dp": 3, "ep": 6}, 6, model(experts=64)))
    assert "must divide the routed experts (64" in experts and "ep 2 works" in experts


def test_pv10_key_heads_are_never_cut():
    """torchtitan issue 2574: 16 heads, 2 key/value heads, TP 4."""
    (problem,) = broken(case({"tp": 4, "dp": 2}, 8, model(heads=16, kv_heads=2)))
    assert "must divide the key/value heads (2)" in problem and "2 copies of each" in problem
    assert problem.endswith("tp 2 and dp 4 work")
    assert check(case({"tp": 2, "dp": 4}, 8, model(heads=16, kv_heads=2))) == ()


def test_pv12_ulysses_deals_out_whole_key_heads():
    """LlamaFactory pull request 10794: 2 key/value heads on 4 Ulysses ranks would be [1, 1, 0, 0]."""
    two = model(heads=16, kv_heads=2)
    layout = {"cp": 4, "dp": 2, "cp_comm_type": "a2a"}
    (problem,) = broken(case(layout, 8, two))
    assert "[1, 1, 0, 0]" in problem and problem.endswith("cp_comm_type p2p works")
    (open_dp,) = broken(replace(case(layout, 8, two), given=("cp", "cp_comm_type")))
    assert open_dp.endswith("cp 2 works")
    assert check(case(layout | {"cp_comm_type": "p2p"}, 8, two)) == ()
    (with_tp,) = broken(case(layout | {"tp": 2, "dp": 1, "cp": 2} | {"pp": 2}, 8, two))
    assert "tp * cp = 4 must divide" in with_tp and "[1, 0]" in with_tp


def test_pv14_interleaving_names_m_pp_and_the_smallest_batch():
    """NeMo issue 14288: an error that read "should range in [PP=6, M=3]"."""
    layout = {"pp": 6, "vpp": 2, "dp": 2, "schedule": "interleaved-1f1b"}
    (problem,) = broken(case(layout, 12, model(layers=12), global_batch=6))
    assert "at least pp = 6 micro-batches" in problem and "M = 3" in problem and "Megatron-Core" in problem
    assert "global_batch 12 works, the smallest that does" in problem
    (between,) = broken(case(layout, 12, model(layers=12), global_batch=20))
    assert "global_batch 24 works, the smallest is 12" in between
    assert "takes M = 10 in groups of N = 10" in between
    for size in (12, 24):
        assert check(case(layout, 12, model(layers=12), global_batch=size)) == ()


def test_pv19_overlap_needs_sequence_parallelism():
    """TransformerEngine issue 746, and Megatron-LM's check, which also turns sequence parallelism off at TP 1."""
    layout = {"tp": 2, "dp": 4, "tp_comm_overlap": True}
    assert check(case(layout, 8, model())) == ()
    (problem,) = broken(case(layout | {"sequence_parallel": False}, 8, model()))
    assert "needs sequence_parallel" in problem and "sequence_parallel true works" in problem
    (alone,) = broken(case(layout | {"tp": 1, "dp": 8}, 8, model()))
    assert "tp_comm_overlap false works" in alone


def test_pc15_every_failing_constraint_is_listed_and_padding_said():
    """vLLM issue 31474: GLM-4.x with 151,552 tokens, 96 heads, 8 key/value heads on TP 6."""
    found = case({"tp": 6, "dp": 1}, 6, model(**GLM_45_AIR))
    problems = broken(found)
    assert [p.split(":")[0] for p in problems] == ["layout.tp = 6"] * 3
    assert "key/value heads (8)" in problems[0] and "shared experts' width (1408)" in problems[1]
    assert "cp * tp must divide the sequence (4096)" in problems[2]
    # tp 4 and 8 are nearer, and do not divide 6
    assert all(p.endswith("tp 2 and dp 3 work") for p in problems)
    assert check(case({"tp": 2, "dp": 3}, 6, model(**GLM_45_AIR))) == ()
    (padding,) = (note for note in notes(found) if "vocabulary" in note)
    assert "151,552 is padded to 151,554 for tp 6" in padding and "152,064" in padding


QWEN3_06B = {"heads": 16, "kv_heads": 8, "layers": 28, "ffn": 3072, "vocab": 151_936, "tied_embeddings": True}


def test_pc13_both_sums_are_said():
    """Megatron-DeepSpeed issue 99: Qwen3-0.6B on two stages holds its tied embedding twice."""
    plain = model(**QWEN3_06B)
    kind = plain.kinds[0].model_copy(
        update={"attention": plain.kinds[0].attention.model_copy(update={"qk_norm": "head"})}
    )
    qwen = plain.model_copy(update={"kinds": (kind,)})
    assert count(qwen).total == 596_049_920
    found = case({"pp": 2, "dp": 4}, 8, qwen)
    site = Site(qwen, found.cluster, found.train, found.layout)
    held = stage_parameters(site, assign(qwen, found.layout))
    assert float((held.dense + held.expert).sum()) == 751_632_384 == 596_049_920 + 151_936 * 1024
    lines = estimate(job_of(found)).assumptions
    assert any("596,049,920 in the model, 751,632,384 in the memory of all stages" in line for line in lines)
    for other in ({"dp": 8}, {"tp": 2, "dp": 4}):
        alone = estimate(job_of(case(other, 8, qwen)))
        assert alone.valid and not any("in the memory of all stages" in line for line in alone.assumptions)


def test_fl14_a_model_cut_short_is_refused_before_any_estimate():
    """Megatron-LM issue 1778: 20 layers, one stage, its last stage said to hold one."""
    found = estimate(job_of(case({"pp": 1, "dp": 8, "stages": [[1]]}, 8, model(layers=20))))
    assert not found.valid and found.step_time_s is None and found.mfu is None and found.stages == ()
    (problem,) = found.problems
    assert "places 1 layers; the model has 20" in problem.rule and problem.suggestion == "stages [[20]] works"
