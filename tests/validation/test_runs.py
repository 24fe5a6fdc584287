"""Published steps as jobs: every row is read or has a reason, and traps of the sources do not catch the readers."""

import hashlib
from collections import Counter, defaultdict

import numpy as np
import pytest

from telekit.model.count import count
from telekit.model.flops import training_flops_per_token
from telekit.validation.kernel_rows import kernel_rows, unmapped_kernels
from telekit.validation.memory_runs import expert_slopes, memory_runs, unmapped_memory
from telekit.validation.readings import megatron_flops, rows
from telekit.validation.run_models import MPT, gpt, mpt
from telekit.validation.runs import (
    FEWEST_TO_SPLIT,
    GROUPS,
    configuration,
    group_of,
    odd,
    published_runs,
    unmapped_rows,
)

# mapped and unmapped rows of each group
EXPECTED = {
    "simumax-b200": (33, 0),
    "megatron-sc21": (12, 0),
    "zero-3-of-2021": (6, 0),
    "korthikanti": (4, 5),
    "mt-nlg": (3, 0),
    "megascale": (4, 19),
    "llama-3": (2, 0),
    "deepseek-v3": (1, 1),
    "megascale-moe": (5, 1),
    "moe-folding": (5, 31),
    "megatron-bridge": (175, 9),
    "megatron-core-moe": (7, 3),
    "moe-model-zoo": (8, 0),
    "megatron-lm": (2, 0),
    "torchtitan": (6, 2),
    "kwai": (34, 0),
    "vtrain-multi-node": (36, 0),
    "vtrain-single-node": (175, 0),
    "mpt": (144, 0),
    "telechat": (3, 1),
    "other": (0, 24),
}


def run_of(name):
    return next(run for run in published_runs() if run.id == name)


def test_every_row_is_read_or_has_a_reason():
    read, left = Counter(r.group for r in published_runs()), Counter(r.group for r in unmapped_rows())
    assert {name: (read[name], left[name]) for name in GROUPS} == EXPECTED
    assert len(published_runs()) + len(unmapped_rows()) == len(rows("throughput")) == 761
    assert all(row.reason for row in unmapped_rows())


def test_every_job_is_valid_and_takes_the_devices_of_its_row():
    devices = {row["id"]: row.get("n_gpus") for row in rows("throughput")}
    for run in published_runs():
        assert run.job.problems() == ()
        assert run.job.cluster.devices == devices[run.id]
        assert run.measured_step_s > 0


def test_stated_degrees_are_kept():
    stated = {row["id"]: row for row in rows("throughput")}
    for run in published_runs():
        row, layout = stated[run.id], run.job.layout
        for name in ("tp", "pp", "cp", "dp"):
            assert getattr(layout, name) == row.get(name, getattr(layout, name)), (run.id, name)
        if "ga" in row and "typo" not in row.get("notes", ""):
            assert run.job.micro_batches == row["ga"], run.id
        if "gbs" in row:
            assert run.job.train.global_batch == row["gbs"]


def test_derived_steps_agree_with_the_sources_own_arithmetic():
    stated = {row["id"]: row.get("step_time_s_derived") for row in rows("throughput")}
    checked = [run for run in published_runs() if stated[run.id]]
    assert len(checked) > 200
    for run in checked:
        assert run.measured_step_s == pytest.approx(stated[run.id], rel=2e-3), run.id


def test_virtual_stages_of_sc21_count_layers():
    assert run_of("sc21_t1_76p1b").job.layout.vpp == 3  # 60 layers, 4 stages, 5 layers a virtual stage
    assert run_of("sc21_t1_310p1b").job.layout.vpp == 2
    assert run_of("korth_175b_full").job.layout.vpp == 3  # here the column is virtual stages


def test_recompute_counts_in_the_flops_of_sc21_alone():
    row = next(r for r in rows("throughput") if r["id"] == "sc21_t1_39p1b")
    s, h, layers, vocab = row["seq_len"], row["hidden"], row["layers"], row["vocab"]
    theirs = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    model = gpt(h, row["heads"], layers, vocab, s)
    assert megatron_flops(model, s) == pytest.approx(theirs, rel=1e-12)
    without = 72 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert s * training_flops_per_token(model, s, attention="full") == pytest.approx(without, rel=1e-12)


def test_configurations_are_split_whole_and_small_groups_are_held_out():
    sides, configurations = defaultdict(set), defaultdict(set)
    for run in published_runs():
        sides[run.configuration].add(run.in_fit)
        configurations[run.group].add(run.configuration)
    assert all(len(side) == 1 for side in sides.values())
    for group, found in configurations.items():
        share = sum(True in sides[one] for one in found) / len(found)
        if len(found) < FEWEST_TO_SPLIT:
            assert share == 0
        else:
            assert 0.2 < share < 0.8, group


def test_no_held_out_row_shares_a_configuration_with_a_fitted_row():
    """By the jobs themselves, whatever their source says or leaves out: model, devices, formats, degrees."""

    def job(run):
        it, layout = run.job, run.job.layout
        model = it.model.model_dump_json(exclude={"name", "source"})
        recipe = it.train.fp8_recipe if it.train.precision == "fp8" else None
        split = tuple(getattr(layout, name) for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero"))
        return (model, it.cluster.device.name, it.cluster.devices, it.train.seq_len, it.train.precision, recipe,
                layout.micro_batch, split)  # fmt: skip

    fitted = {job(run) for run in published_runs() if run.in_fit}
    assert len(fitted) > 200
    assert not [run.id for run in published_runs() if not run.in_fit and job(run) in fitted]


def test_the_same_job_of_two_sources_lies_on_one_side():
    """Megatron-Core's MoE report and Megatron-Bridge's table; one column says FSDP 0, the other nothing."""
    report, table = run_of("mcoremoe_1"), run_of("mbridge_26.04.01_089")
    assert report.group != table.group and report.configuration == table.configuration
    assert not report.in_fit and not table.in_fit  # the report is too small a group to be fitted on


def test_the_split_is_by_a_hash_that_stays():
    """Frozen: a change of the key would reshuffle what constants were fitted on."""
    assert configuration(run_of("mbridge_26.04.01_089").job) == (
        "671026419200 parameters, 61 layers of 7168, on 256 gb200, seq_len 4096, fp8 mxfp8, "
        "tp 1 cp 1 pp 4 vpp 4 dp 64 ep 64 etp 1 zero 1 micro_batch 1"
    )
    assert Counter(run.group for run in published_runs() if run.in_fit) == {
        "megatron-bridge": 85, "kwai": 19, "vtrain-multi-node": 20, "vtrain-single-node": 95, "mpt": 67,
        "simumax-b200": 19,
    }  # fmt: skip
    for text in ("a", "b", "c", "abc"):
        assert odd(text) == (hashlib.sha256(text.encode()).digest()[0] % 2 == 1)


def test_micro_batches_alone_make_no_configuration():
    same = [r for r in published_runs("simumax-b200") if "llama3_70b_l12_tp1_pp2" in r.id]
    assert len(same) == 3
    assert len({run.configuration for run in same}) == 1
    assert len({run.job.micro_batches for run in same}) == 3


def test_mpt_counts_equal_the_published_parameters():
    for row in rows("throughput"):
        if row["id"].startswith("mpt_"):
            size = row["model"].removeprefix("MPT-")
            ours = count(mpt(size, row["seq_len"])).total
            assert ours == pytest.approx(row["num_params"], rel=1e-3), row["id"]
            if "layers" in row:
                assert MPT[size] == (row["layers"], row["hidden"], row["heads"])


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("sc21_t1_39p1b", 39.1),
        ("sc21_t1_310p1b", 310.1),
        ("sc21_t2_ptdp_529p6_560", 529.6),
        ("korth_1000b_full", 1008),
    ],
)
def test_models_of_rows_have_their_published_size(name, billions):
    assert count(run_of(name).job.model).total == pytest.approx(billions * 1e9, rel=0.01)


def test_every_memory_and_kernel_row_is_read_or_has_a_reason():
    assert len(memory_runs()) + len(unmapped_memory()) == len(rows("memory")) == 154
    read = {row.id for row in kernel_rows()} | {row.id for row in unmapped_kernels()}
    assert read == {row["id"] for row in rows("op_efficiency")}
    assert Counter(run.group for run in memory_runs())["memory-simumax-b200"] == 33
    assert all(run.measured_bytes > 2**30 for run in memory_runs())


def test_kernel_rows_have_the_sources_utilisation():
    published = {row["id"]: row for row in rows("op_efficiency")}
    for kernel in kernel_rows("kernels-gemm-h800"):
        row = kernel.row
        rate = 2 * row["m"] * row["k"] * row["n"] / row["time_s"]
        assert rate / 1979e12 == pytest.approx(published[kernel.id]["mfu"], rel=0.01)
    ratios = []
    for kernel in kernel_rows("kernels-grouped-gemm-h800"):
        row = kernel.row
        mfu = 2 * row["m"] * row["groups"] * row["k"] * row["n"] / row["time_s"] / 1979e12
        up = row["n"] == 2 * published[kernel.id]["intermediate_size"]
        ratios.append(mfu / published[kernel.id]["up_mfu" if up else "down_mfu"])
    # the source's two columns are two measurements, up to 15 % apart
    assert np.median(ratios) == pytest.approx(1, abs=0.02)
    assert max(abs(r - 1) for r in ratios) < 0.16


def test_expert_slopes_pair_dry_runs():
    pairs = expert_slopes()
    assert len(pairs) == 11
    for few, many in pairs:
        assert (few.job.layout.ep, many.job.layout.ep) == (4, 8)
        assert few.measured_bytes > many.measured_bytes


def test_groups_are_found_by_id():
    assert group_of("vtrain_single_0000") == "vtrain-single-node"
    assert group_of("sc21_t2_zero3_174p6_384") == "zero-3-of-2021"
