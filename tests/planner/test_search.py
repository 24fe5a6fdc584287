"""The search against brute force: every layout estimated one by one, its answer re-checked through estimate."""

import dataclasses
import random
from itertools import product

import pytest

from telekit.cost.estimate import estimate
from telekit.errors import InputError
from telekit.job import Job, layout_dict
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.planner.candidates import options, tables
from telekit.planner.placing import place_layers, stage_problem
from telekit.planner.search import plan
from telekit.planner.stages import peak_memory, simulated_makespan

SMALL = {
    "model": "deepseek-v2-lite",
    "cluster": {"device": "a100-40gb", "nodes": 2},
    "train": {"seq_len": 4096, "global_batch": 128},
}


def job(**change):
    return Job.read(SMALL | change)


@pytest.fixture(scope="module")
def found():
    return plan(job(), top=3, time_limit_s=10)


def brute_force(base):
    """Every layout of the search space, one by one, with evenly spread layers."""
    values = options(base)
    for pp, vpp, recompute in product(values["pp"], values["vpp"], values["recompute"]):
        if pp * vpp > base.model.num_layers + 2 or (vpp > 1 and pp == 1):  # both ends may stand alone
            continue
        for tp, cp, ep, etp, micro in product(*(values[n] for n in ("tp", "cp", "ep", "etp", "micro_batch"))):
            if base.cluster.devices % (tp * cp * pp):
                continue
            update = {"pp": pp, "vpp": vpp, "recompute": recompute, "tp": tp, "cp": cp, "ep": ep, "etp": etp,
                      "micro_batch": micro, "dp": base.cluster.devices // (tp * cp * pp),
                      "schedule": "interleaved-1f1b" if vpp > 1 else "1f1b"}  # fmt: skip
            yield base.with_layout(base.layout.model_copy(update=update))


def test_counts_and_best_against_brute_force(found):
    everything = [estimate(one) for one in brute_force(job())]
    assert found.searched == len(everything)
    assert found.valid == sum(e.fits for e in everything)
    assert found.rejected["memory"] == sum(e.valid and not e.fits for e in everything)
    best = min(e.step_time_s for e in everything if e.fits)
    assert found.best.step_time_s <= best
    assert found.search_bound_s <= found.best.step_time_s
    assert found.search_bound_s <= best


def test_every_plan_estimates_to_the_same_numbers_and_fits(found):
    for one in found.plans:
        again = estimate(Job.read(SMALL | {"layout": layout_dict(one.layout)}))
        assert again.fits
        assert again.step_time_s == one.step_time_s
        assert again.peak_bytes == one.peak_bytes <= again.capacity_bytes


def test_plans_are_sorted_and_proofs_are_of_their_own_pipeline(found):
    times = [p.step_time_s for p in found.plans]
    assert times == sorted(times) and len(times) == 3
    for one in found.plans:
        makespan = one.makespan_s
        assert one.proof.bound <= makespan * (1 + 1e-9)
        if one.proof.status == "optimal":
            assert one.proof.bound == pytest.approx(makespan, rel=1e-5)
        else:
            assert one.proof.gap == pytest.approx(1 - one.proof.bound / makespan, abs=1e-6)


def test_given_fields_are_kept():
    fixed = {"pp": 2, "tp": 2, "recompute": "full", "micro_batch": 2}
    for one in plan(job(layout=fixed), top=2, time_limit_s=4).plans:
        assert {name: getattr(one.layout, name) for name in ("pp", "tp", "micro_batch")} == {
            "pp": 2, "tp": 2, "micro_batch": 2}  # fmt: skip
        cells = [cell for row in one.layout.stages for cell in row]
        assert all(set(cell.options(one.layout.option)) == {"full"} for cell in cells)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe", "dualpipe-v", "gpipe"])
def test_other_schedules_are_searched_when_asked_for(schedule):
    batch = 16 if schedule == "gpipe" else 128  # which holds the losses of all micro-batches
    train = {"seq_len": 4096, "global_batch": batch}
    found = plan(job(layout={"schedule": schedule, "pp": 4}, train=train), top=1, time_limit_s=3)
    assert found.best.layout.schedule == schedule
    assert found.best.estimate.fits
    if schedule != "gpipe":
        assert found.best.proof.status == "unknown" and found.best.proof.bound is None


def test_nothing_fits():
    small = job(cluster={"device": "a100-40gb", "devices": 1}, model="llama-3.1-70b")
    found = plan(small, top=1, time_limit_s=2)
    assert found.plans == () and found.rejected["memory"] > 0
    with pytest.raises(InputError, match="memory"):
        _ = found.best


def test_progress_is_told():
    told = []
    plan(
        job(layout={"pp": 2, "tp": 1, "micro_batch": 1}),
        top=1,
        time_limit_s=2,
        progress=lambda *a: told.append(a),
    )
    assert any("costing" in what for *_, what in told) and any("placing" in what for *_, what in told)
    assert all(0 <= done <= total for done, total, _ in told)


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "gpt-oss-120b", "llama-3.1-8b", "gpt3-175b"])
@pytest.mark.parametrize("choices", [("none",), ("none", "selective", "full"), ("full",)], ids="/".join)
def test_the_problem_counts_what_the_estimate_counts(name, choices):
    """Makespan and peak of the placement problem are those of the estimate of the written layout."""
    one = Job.read(SMALL | {"model": name, "cluster": {"device": "b200", "nodes": 32},
                            "layout": {"pp": 4, "tp": 8, "ep": 8 if load_model(name).moe else 1}})  # fmt: skip
    problem = stage_problem(one, choices)
    placed = place_layers(one, choices, 3.0)
    again = estimate(one.with_layout(placed.layout))
    assert sum(stage.layers for stage in again.stages) == one.model.num_layers
    from telekit.planner.stages import place

    direct = place(problem, time_limit_s=3.0)
    pipeline = again.step_time_s - sum(again.breakdown_s[k] for k in ("dp_comm", "optimizer", "waiting"))
    assert pipeline == pytest.approx(simulated_makespan(problem, direct.placement), rel=1e-9)
    assert again.peak_bytes <= peak_memory(problem, direct.placement).max() * (1 + 1e-12)


def a_plan(model, devices, layout, device="b300", **train):
    return Job.read({"model": model, "cluster": {"device": device, "devices": devices},
                     "train": {"seq_len": 4096} | train, "layout": layout})  # fmt: skip


def test_a_proof_covers_every_placement_of_alternating_kinds():
    """gpt-oss alternates two kinds of attention; stages may be cut between any two layers."""
    base = a_plan("gpt-oss-120b", 8, {"pp": 4, "recompute": "none"}, global_batch=32)
    found = plan(base, top=1, time_limit_s=10).best
    rng = random.Random(0)
    for _ in range(300):
        cuts = sorted(rng.sample(range(1, 36), 3))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 36], strict=True)]
        other = estimate(base.with_layout(found.layout.model_copy(update={"stages": staged([sizes])})))
        if other.fits:
            assert makespan_of(other) >= found.proof.bound * (1 - 1e-9)


def staged(rows):
    return ParallelConfig.model_validate({"stages": rows}).stages


def makespan_of(found):
    return found.step_time_s - sum(found.breakdown_s[k] for k in ("dp_comm", "optimizer", "waiting"))


def test_a_bound_covers_placements_that_recompute_though_nothing_must():
    base = a_plan("llama-3.1-8b", 16, {"tp": 4, "pp": 2, "vpp": 2, "micro_batch": 2}, "v100", global_batch=128,
                  precision="fp16")  # fmt: skip
    found = plan(base, top=1, time_limit_s=6)
    rng = random.Random(1)
    for _ in range(300):
        sizes = [rng.randint(6, 10) for _ in range(3)]
        cells = [
            {"layers": n, "recompute": {"selective": rng.randint(0, 2)}} for n in (*sizes, 32 - sum(sizes))
        ]
        layout = found.best.layout.model_copy(update={"stages": staged([cells[:2], cells[2:]])})
        other = estimate(base.with_layout(layout))
        if other.fits:
            assert other.step_time_s >= found.search_bound_s
            assert makespan_of(other) >= found.best.proof.bound * (1 - 1e-9)


def test_the_bound_of_dualpipe_counts_what_it_hides():
    base = a_plan("deepseek-v3", 2048, {"pp": 16, "ep": 64, "tp": 1, "micro_batch": 1, "schedule": "dualpipe",
                                        "recompute": "selective"}, "h800", global_batch=15360, precision="fp8",
                  state_dtype="bf16", fp8_param_gather=True, activation_func_fp8_input_store=True,
                  wgrad_buffers="transient")  # fmt: skip
    found = plan(base, top=1, time_limit_s=2)
    assert found.search_bound_s <= found.best.step_time_s


def test_few_sequences_are_split_over_context_ranks():
    found = plan(a_plan("llama-3.1-8b", 64, {}, "h100", seq_len=8192, global_batch=4), top=1, time_limit_s=5)
    assert found.best.layout.cp > 1


def test_given_fields_that_leave_nothing_are_said():
    for layout, word in (({"pp": 5}, "layout.pp"), ({"pp": 1, "vpp": 2}, "layout")):
        with pytest.raises(InputError, match=word):
            plan(job(layout=layout), top=1, time_limit_s=1)


def test_both_ends_may_stand_alone():
    """27 layers on 28 parts: the search looks at them, and its estimate is that of the stages written out."""
    layout = {"pp": 4, "vpp": 7, "ep": 4, "micro_batch": 1, "tp": 1, "cp": 1, "etp": 1}
    wide = job(layout=layout)
    assert [(shape.base.pp, shape.base.vpp) for shape in tables(wide)] == [(4, 7)]
    found = plan(wide, top=1, time_limit_s=2)
    rows = [[1, 1, 1, 1]] * 6 + [[1, 1, 1, 0]]
    choices = ("none", "selective", "full")
    written = [estimate(job(layout=layout | {"stages": rows, "recompute": choice})) for choice in choices]
    assert found.best.step_time_s <= min(one.step_time_s for one in written if one.fits)
    assert [shape.base.vpp for shape in tables(job(layout=layout | {"vpp": 8}))] == []


def test_the_space_has_no_row_twice():
    rows = set()
    for shape in tables(job()):
        for i in range(len(shape.table)):
            row = shape.table.row(i, shape.base)
            key = (row.pp, row.vpp, row.tp, row.cp, row.dp, row.ep, row.etp, row.micro_batch)
            assert key not in rows
            rows.add(key)
    assert rows


def test_jobs_stay_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        job().layout = None
