"""Faults: every point can be reached, a fault stays where it is put, and the teaching faults show where they say."""

from fnmatch import fnmatchcase

import numpy as np
import pytest

from telekit.accuracy.miniature import (
    Config,
    Fault,
    Layout,
    dump,
    points,
    replicas,
    run,
    scaled,
    skip,
    twice,
    with_settings,
)
from telekit.accuracy.miniature.faults import FAULTS, fault_named, play
from telekit.errors import InputError

CONFIG = Config(layers=1, hidden=16, heads=2, kv_heads=2, ffn=8, vocabulary=16, sequence=8, experts=4, shared_ffn=8,
                precision="fp64")  # fmt: skip
LAYOUT = Layout(tp=2, cp=2, dp=2, ep=2, sequence_parallel=True)


def seen(result):
    """Every number that a run shows."""
    found = {(t.step, t.name): t.load() for t in dump(result)}
    return found | {"losses": result.losses, "aux": result.aux_losses, "norms": result.grad_norms}


def differing(a, b):
    assert list(a) == list(b)
    return [key for key in a if not np.array_equal(a[key], b[key], equal_nan=True)]


@pytest.mark.parametrize(
    "layout", [Layout(tp=2, dp=2), LAYOUT, Layout(cp=2, cp_comm_type="all_gather")], ids=str
)
def test_every_point_is_alive(layout):
    """What comes out of each operator, collective, gradient and update matters to something that is shown."""
    clean = seen(run(CONFIG, layout, steps=1))
    for point in points(CONFIG, layout):
        whole_numbers = point.name.endswith((".plan", ".indices.all_gather"))
        if point.kind in ("config", "data") or whole_numbers or point.name == "loss.all_reduce_max":
            continue  # the last only guards against overflow
        there = seen(run(CONFIG, layout, steps=1, fault=Fault(point.name, scaled(1.5))))
        assert differing(there, clean), point.name


def test_a_fault_sees_every_point_and_the_run_without_one_is_the_same():
    names = []
    watched = run(CONFIG, LAYOUT, steps=2, fault=lambda event: names.append((event.step, event.point)))
    assert differing(seen(watched), seen(run(CONFIG, LAYOUT, steps=2))) == []
    listed = [p.name for p in points(CONFIG, LAYOUT)]
    assert list(dict.fromkeys(name for step, name in names if step == 0)) == listed


def test_skipping_and_doubling_a_sum():
    """Two ranks' terms: skipped each keeps its own, doubled both get twice the sum."""
    layout, name = Layout(tp=2), "embedding.word_embeddings.all_reduce"
    key = "Module.embedding.word_embeddings.VocabParallelEmbedding.forward.0.output.0"

    def on_ranks(fault):
        done = run(CONFIG, layout, steps=1, fault=fault)
        return [t.load() for t in dump(done, merged=False) if t.name == key]

    right, kept, more = (on_ranks(f) for f in (None, Fault(name, skip), Fault(name, twice)))
    np.testing.assert_array_equal(kept[0] + kept[1], right[0])
    assert not np.array_equal(kept[0], kept[1])
    for value in more:
        np.testing.assert_array_equal(value, 2 * right[0])


def test_a_fault_keeps_to_its_ranks_steps_and_micro_batches():
    layout = Layout(tp=2, dp=2, micro_batches=2)
    fault = Fault("*.linear_fc2.all_reduce", scaled(2.0), steps=[1], micro_batches=[1], ranks=[3])
    dense = Config(layers=1, precision="fp64")
    there, clean = (
        {(t.step, t.rank, t.name): t.load() for t in dump(run(dense, layout, fault=f), merged=False)}
        for f in (fault, None)
    )
    output = "Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.1.output.0"
    same_operator = [key for key in clean if "linear_fc2.RowParallelLinear.forward" in key[2]]
    assert {step for step, _, _ in same_operator} == {0, 1}
    wrong = [key for key in same_operator if not np.array_equal(there[key], clean[key])]
    assert wrong == [(1, 3, output)]
    np.testing.assert_array_equal(there[1, 3, output], 2 * clean[1, 3, output])


def test_a_setting_changed_on_the_way_there_is_changed_on_the_way_back():
    """An epsilon in the config and the same epsilon planted at each norm are one fault."""
    from dataclasses import replace

    by_config = Fault("config", lambda event: replace(event.inputs[0], norm_eps=0.1))
    planted = [Fault("*layernorm", with_settings(eps=0.1))]
    a, b = (seen(run(CONFIG, Layout(tp=2), fault=f)) for f in (by_config, planted))
    assert differing(a, b) == []
    assert differing(a, seen(run(CONFIG, Layout(tp=2))))


def test_of_several_faults_the_first_that_answers_counts():
    faults = [Fault("*.mlp_bda", scaled(2.0)), Fault("*_bda", scaled(3.0))]
    found = {t.name: t.load() for t in dump(run(CONFIG, steps=1, fault=faults))}
    for name, factor in (("mlp_bda", 2), ("self_attn_bda", 3)):
        api = f"Module.decoder.layers.0.{name}.BiasDropoutAdd.forward.0"
        terms = found[f"{api}.input.0"] + found[f"{api}.input.1"]
        np.testing.assert_allclose(found[f"{api}.output.0"], factor * terms, rtol=1e-15)


def test_an_order_drawn_anew_is_not_deterministic():
    random = np.random.default_rng(5)
    orders = ("ring", "tree", "sequential")
    drawn = Fault("*.linear_proj.all_reduce", lambda event: event.call(order=orders[random.integers(3)]))
    config, layout = Config(kv_heads=4, precision="bf16"), Layout(tp=4)
    assert len({run(config, layout, fault=drawn).losses for _ in range(6)}) > 1


@pytest.mark.parametrize("name", FAULTS)
def test_a_teaching_fault_shows_first_where_it_says(name):
    fault = fault_named(name)
    target, golden = play(name, precision="fp64")
    a, b = seen(target), seen(golden)
    _, first = differing(a, b)[0]
    assert fnmatchcase(first, fault.first), first
    phases = {"forward": ".forward.", "optimizer": "Optimizer."}
    if fault.phase == "backward":
        assert "parameters_grad" in first or ".backward." in first or first.startswith("Gradient.")
    else:
        assert phases[fault.phase] in first
    if fault.phase != "forward":
        assert target.losses[0] == golden.losses[0]
    assert run(fault.config, fault.layout, steps=1).losses  # the default precision runs too


def test_the_stories_of_teaching_faults_are_true():
    """What each story claims of losses and norms, measured."""

    def factor(name, step=0):
        target, golden = play(name, precision="fp64")
        return target.losses[step] / golden.losses[step] - 1, target.grad_norms[step] / golden.grad_norms[
            step
        ]

    assert 0 < abs(factor("row-parallel-sum-missing")[0]) < 0.01
    target, golden = play("gradients-divided-by-dp", 100)
    np.testing.assert_allclose(target.losses, golden.losses, rtol=1e-4)
    np.testing.assert_allclose(target.grad_norms, np.array(golden.grad_norms) / 4, rtol=2e-3)
    assert abs(factor("gate-and-up-cut-as-one")[0]) < 1e-3
    target, golden = play("mask-sees-one-too-far", 60, lr=3e-3)
    assert abs(target.losses[0] - golden.losses[0]) < 5e-3
    assert np.mean(target.losses[-20:]) < np.mean(golden.losses[-20:]) - 0.05
    assert 0.005 < factor("rotary-base")[0] < 0.015
    loss, norm = factor("residual-missing")
    assert loss < 0 and norm > 2
    target, golden = play("residual-missing", 60, lr=3e-3)
    assert np.mean(target.losses[-20:]) > np.mean(golden.losses[-20:]) + 0.3
    assert 0.98 < factor("router-gradient-not-summed")[1] < 0.995
    assert 1.3 < factor("expert-gradients-times-ep")[1] < 1.4
    assert factor("last-micro-batch-only")[1] < 0.7
    assert factor("no-bias-correction") == (0, 1)
    assert factor("no-bias-correction", 1)[0] > 1e-3
    for step in (0, 1):
        assert factor("state-lost-on-resume", step) == (0, 1)


def test_unequal_replicas_show_a_missing_sum():
    for name, what in (("norm-gradients-not-summed", "grad"), ("row-parallel-sum-missing", "parameter")):
        target, golden = play(name)
        assert [r for r in replicas(target, what) if r.unequal]
        assert not [r for r in replicas(golden, what) if r.unequal]


def test_the_cut_gate_has_the_same_elements():
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    target, golden = play("gate-and-up-cut-as-one", steps=1)
    key = "Module.decoder.layers.0.mlp.linear_fc1.ColumnParallelLinear.forward.0.parameters.weight"
    a, b = (dump(r).named(key)[0].load() for r in (target, golden))
    assert a.shape == b.shape == golden.weight(name).shape
    assert not np.array_equal(a, b)
    np.testing.assert_array_equal(np.sort(a, axis=None), np.sort(b, axis=None))


def test_an_unknown_fault_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="residual-missing"):
        fault_named("nothing")
