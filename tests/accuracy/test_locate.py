"""The first operator whose inputs are clean and whose output is not; and silence where rounding explains all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from locating_rows import chain, operator, row, tensor

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.compare import compare
from telekit.accuracy.graph.nodes import maker_of
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.miniature import Config, Fault, Layout, dump, run, scaled, skip, twice, with_settings

NAMES = [f"layers.{i}.{part}" for i in range(3) for part in ("linear_qkv", "linear_proj", "linear_fc1")]


def sizes(config, layout):
    return {k: getattr(layout, k) for k in ("tp", "cp", "dp", "ep")} | {"tokens": config.tokens}


def located(fault, config=None, layout=None, golden=None, steps=1):
    """Run with a fault and without, and locate."""
    config, layout = config or Config(), layout or Layout(tp=2)
    target, right = run(config, layout, steps, fault), run(config, golden or Layout(), steps)
    rows = compare(dump(target), dump(right), locate=False).rows
    ranks = list(dump(target, merged=False))
    return locate(
        rows, losses=(target.losses, right.losses), norms=(target.grad_norms, right.grad_norms),
        sizes=sizes(config, layout), replicas=ranks,
    )  # fmt: skip


def test_the_same_twice_is_clean():
    found = locate(chain(NAMES))
    assert found.clean and found.cause == kinds.NONE and not found.operator


def test_nothing_compared_is_not_called_clean_with_confidence():
    assert locate([]).confidence == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_operator_is_named_wherever_it_stands(name):
    found = locate(chain(NAMES, wrong=name))
    assert found.operator == f"Module.{name}.Linear"
    assert (found.phase, found.part) == ("forward", "output")
    assert found.cause == kinds.SCALED


def test_rows_may_come_in_any_order():
    rows = chain(NAMES, wrong=NAMES[4])
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert locate(mixed).operator == locate(rows).operator


def test_statistics_alone_locate_and_say_the_factor():
    found = locate(chain(NAMES, wrong=NAMES[3], statistics_only=True), sizes={"tp": 2})
    assert found.operator == f"Module.{NAMES[3]}.Linear"
    assert found.cause == kinds.SCALED and "tensor-parallel" in " ".join(found.evidence)


def test_a_container_is_not_blamed_for_what_is_inside_it():
    inner = chain(["block.fc"], wrong="block.fc")
    first, last = inner[0], inner[-1]
    pair = [(first.target.load(), first.golden.load())], [(last.target.load(), last.golden.load())]
    assert locate(operator("Module.block.MLP", 5, *pair) + inner).operator == "Module.block.fc.Linear"


def test_an_input_that_no_operator_made_is_blamed_by_who_usually_makes_it():
    x, w = np.random.default_rng(0).standard_normal((2, 16, 16))
    rows = operator("Module.layers.0.norm.RMSNorm", 0, [(x, x)], [(x, x)])
    rows += operator("Module.layers.0.o_proj.Linear", 1, [(x + 0.5, x)], [((x + 0.5) @ w, x @ w)])
    found = locate(rows)
    assert found.part == "input" and "core attention" in found.operator
    assert maker_of("Module.layers.0.mlp.down_proj.Linear") == "activation output"


def test_weights_that_differ_before_anything_ran():
    rows = chain(["a", "b"])
    x = np.random.default_rng(1).standard_normal((8, 8))
    rows += operator("Module.c.Linear", 9, [(x, x)], [(x @ (1.1 * x), x @ x)], parameters=[(1.1 * x, x)])
    found = locate(rows)
    assert (found.phase, found.part) == ("setup", "parameters")


def test_an_unknown_difference_is_called_unknown():
    noise = np.random.default_rng(5).standard_normal((16, 32))
    found = locate(chain(NAMES, wrong=NAMES[2], change=lambda x: x * np.exp(noise)))
    assert found.operator == f"Module.{NAMES[2]}.Linear"
    assert found.cause == kinds.UNKNOWN and found.confidence < 0.2


def test_bf16_rounding_that_grows_with_depth_is_no_fault():
    """Sixty layers, each rounded on its own: the error grows to many epsilons and no layer is to blame."""
    random = np.random.default_rng(2)
    golden = target = random.standard_normal((32, 64)).astype(ml_dtypes.bfloat16)
    rows = []
    for order in range(60):
        w = (random.standard_normal((64, 64)) / 8).astype(ml_dtypes.bfloat16)
        before = (target, golden)
        wide = w.astype(np.float32).T
        golden = (golden.astype(np.float32) @ wide).astype(ml_dtypes.bfloat16)
        a = target.astype(np.float32)
        parts = [(a[:, s] @ wide[s]).astype(ml_dtypes.bfloat16) for s in np.split(np.arange(64), 4)]
        target = parts[0]
        for part in parts[1:]:
            target = (target.astype(np.float32) + part.astype(np.float32)).astype(ml_dtypes.bfloat16)
        rows += operator(
            f"Module.layers.{order}.Linear", order, [before], [(target, golden)], parameters=[(w, w)]
        )
    last = rows[-1].metrics.relative_norm_error
    assert last > 2 * 2.0**-8
    assert locate(rows).clean


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, sequence_parallel=True), Layout(cp=2, dp=2), Layout(tp=2, cp=2, micro_batches=2),
        Layout(dp=4, reduce_order="tree"), Layout(cp=4, cp_comm_type="all_gather"),
    ],
)  # fmt: skip
def test_clean_layout_changes_in_bf16_are_clean(layout, experts):
    found = located(None, Config(precision="bf16", experts=experts), layout, steps=2)
    assert found.clean, found.evidence


LAYER = "decoder.layers.1"


@pytest.mark.parametrize(
    ("point", "change", "operator_", "phase", "cause"),
    [
        (f"{LAYER}.self_attention.linear_proj.all_reduce", skip, "linear_proj", "forward", kinds.MISSING_REDUCTION),
        (f"{LAYER}.mlp.linear_fc2.all_reduce", twice, "linear_fc2", "forward", kinds.DOUBLE_REDUCTION),
        (f"{LAYER}.mlp.linear_fc1.backward.all_reduce", skip, "linear_fc1", "backward", kinds.MISSING_REDUCTION),
        (f"{LAYER}.input_layernorm", with_settings(eps=1e-2), "input_layernorm", "forward", kinds.NORM_EPSILON),
        (f"{LAYER}.self_attention.rotary_pos_emb", with_settings(base=100.0), "rotary", "forward", kinds.ROTARY),
        (f"{LAYER}.self_attention.core_attention", with_settings(scale=1.0), "core_attention", "forward",
         kinds.SOFTMAX_SCALE),
        (f"{LAYER}.self_attention.core_attention", with_settings(offset=1), "core_attention", "forward", kinds.MASK),
        (f"{LAYER}.mlp_bda", lambda e: e.inputs[0], "mlp_bda", "forward", kinds.MISSING_TERM),
        (f"{LAYER}.mlp.linear_fc1.backward", scaled(0.5), "linear_fc1", "backward", kinds.GRADIENT_SCALING),
        (f"optimizer.{LAYER}.mlp.linear_fc1.weight.adam", with_settings(weight_decay=0.0), "linear_fc1", "optimizer",
         kinds.WEIGHT_DECAY),
        ("optimizer.*.adam", with_settings(beta2=0.999), "Optimizer", "optimizer", kinds.ADAM_BETA),
        ("optimizer.clip_grad", with_settings(largest=0.5), "clip_grad", "optimizer", kinds.CLIPPING),
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_fault_in_the_miniature_is_found_and_named(point, change, operator_, phase, cause, precision):
    found = located(Fault(point, change), Config(precision=precision))
    assert operator_ in found.operator and (found.phase, found.cause) == (phase, cause), found.evidence


def test_gradients_that_were_not_reduced_over_data_parallel_ranks():
    name = "decoder.layers.0.mlp.linear_fc2.weight"
    found = located(Fault(f"gradients.{name}.all_reduce", skip), layout=Layout(dp=2))
    assert name in found.operator and (found.phase, found.cause) == ("backward", kinds.MISSING_REDUCTION)


def test_only_another_rank_is_wrong_so_what_was_merged_is_right():
    fault = Fault(f"{LAYER}.input_layernorm", with_settings(eps=1.0), ranks=[1])
    found = located(fault)
    assert "input_layernorm" in found.operator and found.rank == 1 and found.cause == kinds.NORM_EPSILON


def test_bias_correction_that_counts_the_wrong_step_shows_in_the_second():
    found = located(Fault("optimizer.*.adam", with_settings(time=1)), steps=2)
    assert (found.phase, found.cause, found.step) == ("optimizer", kinds.BIAS_CORRECTION, 1)


@pytest.mark.parametrize(
    ("steps", "causes"), [(1, {kinds.LEARNING_RATE, kinds.BIAS_CORRECTION}), (2, {kinds.LEARNING_RATE})]
)
def test_a_tenth_of_the_learning_rate_is_a_missing_correction_until_the_second_step(steps, causes):
    """With beta1 = 0.9 a step without the first moment's correction is 0.1 times the right one, then 0.19 times."""
    found = located(Fault("optimizer.embedding*.adam", with_settings(lr=1e-4)), steps=steps)
    assert (found.phase, found.cause, found.step) == ("optimizer", kinds.LEARNING_RATE, 0)
    assert {c.kind for c in found.causes} == causes and "embedding" in found.operator


def test_weights_without_a_float32_master_are_named_by_their_format():
    def rounded(event):
        master, *moments = event.call()
        return master.astype(ml_dtypes.bfloat16).astype(master.dtype), *moments

    found = located(Fault("*.adam", rounded))
    assert (found.phase, found.cause) == ("optimizer", kinds.WRONG_DTYPE)


@pytest.mark.parametrize("layout", [Layout(tp=4), Layout(tp=2, dp=2), Layout(dp=4)])
def test_a_dump_that_begins_at_the_second_step_is_judged_by_what_the_first_update_left(layout):
    """Signs that Adam's first step took from rounding are no other weights; another learning rate is."""
    config = Config(kv_heads=4)
    golden = dump(run(config, Layout(), 2), steps=[1])
    for fault in (None, Fault("optimizer.*.adam", with_settings(lr=1.02e-3))):
        rows = compare(dump(run(config, layout, 2, fault), steps=[1]), golden, locate=False).rows
        found = locate(rows)
        assert found.clean == (fault is None), found.evidence


def test_curves_alone_say_the_phase():
    """MindFormers' order: first loss, first norm, second loss."""
    rows = chain(["a"])
    for losses, norms, phase in (
        (([1.2, 1.0], [1.0, 0.9]), ([1.0], [1.0]), "forward"),
        (([1.0, 0.9], [1.0, 0.9]), ([2.0], [1.0]), "backward"),
        (([1.0, 0.8], [1.0, 0.9]), ([1.0], [1.0]), "optimizer"),
        (([1.0, 0.9], [1.0, 0.9]), ([1.0], [1.0]), ""),
    ):
        found = locate(rows, losses=losses, norms=norms)
        assert found.phase == phase and found.clean == (not phase)


def test_a_gradient_that_is_none_for_an_expert_without_tokens_is_zero():
    x = np.ones((4, 4))
    rows = operator("Module.e.Linear", 0, [(x, x)], [(x, x)])
    zero = row("Module.e.Linear", "backward", "parameters_grad", "weight", None, np.zeros((4, 4)), 1)
    assert locate([*rows, zero]).clean


def test_an_overflow_is_named_before_anything_else():
    found = locate(chain(NAMES, wrong=NAMES[1], change=lambda x: np.where(x > 2, np.inf, x)))
    assert found.operator == f"Module.{NAMES[1]}.Linear" and found.cause == kinds.OVERFLOW


def test_replicas_given_apart_name_the_missing_reduction():
    random = np.random.default_rng(3)
    x, w = random.standard_normal((8, 32)), random.standard_normal((16, 32))
    parts = [x[:, s] @ w[:, s].T for s in (slice(0, 16), slice(16, 32))]
    rows = operator("Module.proj.Linear", 0, [(x, x)], [(parts[0], x @ w.T)], parameters=[(w, w)])
    ranks = [tensor("Module.proj.Linear.forward.0.output.0", p, rank=r) for r, p in enumerate(parts)]
    for replicas in (ranks, None):
        found = locate(rows, replicas=replicas, sizes={"tp": 2})
        assert found.cause == kinds.MISSING_REDUCTION and found.operator == "Module.proj.Linear"
