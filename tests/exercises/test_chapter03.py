"""Tasks of chapter 3: right answers from first principles, and a plan that no shorter one replaces."""

from itertools import product

import pytest

from telekit.accuracy.miniature import dump
from telekit.exercises import chapter03 as tasks

CHECKS = [tasks.phase, tasks.ratio, tasks.blind, tasks.over_the_bound, tasks.name_the_fault, tasks.dump_plan]
OPTIMIZER = ("step-2 loss", ("update of step 2", "nothing", "state-lost-on-resume"), "no-bias-correction")
BACKWARD = ("step-2 loss", "gradients-divided-by-dp", "norm-gradients-not-summed")
FORWARD = (
    "layers.0 linear_fc1",
    ("layers.1 linear_proj", "residual-missing", "row-parallel-sum-missing"),
    ("layers.0 rotary_pos_emb", "gate-and-up-cut-as-one", "rotary-base"),
)
PLAN = ("step-1 loss", ("step-1 norm", OPTIMIZER, BACKWARD), FORWARD)


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_the_bound_by_hand():
    assert tasks.over_the_bound(1.14 / 0.08289).ok  # the published bound of layer 0
    assert "epsilons" in tasks.over_the_bound(146).message


def test_the_hidden_fault_doubles_one_output_and_leaves_the_ranks_equal():
    target, golden = tasks.mystery()
    name = "Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0.output.0"
    own, right = (dump(side, steps=[0]).named(name)[0].load().astype(float) for side in (target, golden))
    assert abs(own - 2 * right).max() < 0.02 * abs(right).max()  # a few steps of bf16
    ranks = [t.load().tobytes() for t in dump(target, merged=False, steps=[0]) if t.name == name]
    assert len(ranks) == 2 and len(set(ranks)) == 1
    off = [e for e in tasks.mystery_errors() if e.epsilons("bfloat16") > 10]
    assert off[0].label == "layers.0.mlp.linear_fc2"


def test_the_story_of_the_phase_is_a_fault_that_exists():
    seen = tasks.seen("gradients-divided-by-dp")
    assert "step-1 norm" in seen and not {"step-1 loss", "step-2 loss"} & seen


def test_norms_are_blind_where_elements_are_not():
    assert tasks.blamed_by_norms() == "layers.0.mlp.activation_func"
    assert "layers.0 linear_fc1" in tasks.seen("gate-and-up-cut-as-one")


def test_every_suspect_shows_somewhere_and_no_two_alike():
    seen = [tasks.seen(name) for name in tasks.SUSPECTS]
    assert all(seen) and len(set(seen)) == len(seen) == 8
    for name, forward in zip(tasks.SUSPECTS, [True] * 4 + [False] * 4, strict=True):
        assert ("step-1 loss" in tasks.seen(name)) is forward, name


def test_the_plan_names_all_with_two_dumps_at_most():
    assert tasks.dump_plan(PLAN).ok
    ways = {name: tasks.follow(PLAN, name) for name in (*tasks.SUSPECTS, "nothing")}
    assert all(way.verdict == name for name, way in ways.items())
    assert max(len(way.dumps) for way in ways.values()) == 2 == tasks.fewest_dumps()
    assert tasks.dump_plan([PLAN[0], list(PLAN[1]), list(PLAN[2])]).ok  # lists do as well


def test_one_dump_is_not_enough():
    """The four forward faults agree on all that is free, and one dump has two answers."""
    free = {frozenset(tasks.FREE) & tasks.seen(name) for name in tasks.SUSPECTS[:4]}
    assert len(free) == 1
    for check, answers in product(tasks.DUMPS, [tasks.SUSPECTS[:4]]):
        assert len({check in tasks.seen(name) for name in answers}) <= 2


@pytest.mark.parametrize(("plan", "word"), [
    ("residual-missing", "not one name"),
    (("step-1 loss",), "a step is"),
    (7, "a step is"),
    (("step-1 loss", "nothing", 7), "a step is"),
    (("lost", "nothing", "rotary-base"), "no check"),
    (("step-1 loss", "nothing", "nobody"), "nobody"),
])  # fmt: skip
def test_what_is_no_plan_is_said(plan, word):
    verdict = tasks.dump_plan(plan)
    assert verdict.ok is False and word in verdict.message
