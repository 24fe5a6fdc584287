"""Steps that used another state or weight than the one dumped, and losses that are one rank's: in the miniature run."""

import numpy as np
import pytest
from test_fault_injection import look

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.miniature import Config, Fault, Layout, run, skip

L0, L1 = "decoder.layers.0", "decoder.layers.1"
FC2 = f"optimizer.{L1}.mlp.linear_fc2.weight.adam"


def with_states(change):
    def changed(event):
        gradient, weight, first, second = event.inputs
        return event.call(gradient, weight, *change(first, second))

    return lambda: [Fault(FC2, changed, steps=[1])]


def halves(x):
    return np.concatenate(np.split(x, 2, axis=-2)[::-1], axis=-2)


def of_other_layer():
    kept = {}

    def keep(event):
        kept[event.step] = event.call()
        return kept[event.step]

    def take(event):
        return None if event.step == 0 else event.call(*event.inputs[:2], *kept[0][1:])

    return [Fault(f"optimizer.{L0}.mlp.linear_fc2.weight.adam", keep), Fault(FC2, take)]


def initial_weight():
    kept = {}

    def change(event):
        if event.step == 0:
            kept["weight"] = event.inputs[1].copy()
            return None
        return event.call(event.inputs[0], kept["weight"], *event.inputs[2:])

    return [Fault(FC2, change)]


FAULTS = {
    "halves": (with_states(lambda a, b: (halves(a), halves(b))), kinds.OPTIMIZER_STATE, "in other places: [1, 0]"),
    "second lost": (with_states(lambda a, b: (a, 0 * b)), kinds.OPTIMIZER_STATE, "second moment is made from zeros"),
    "other layer": (of_other_layer, kinds.OPTIMIZER_STATE, "that of Optimizer.decoder.layers.0.mlp.linear_fc2"),
    "old weight": (initial_weight, kinds.STALE, "the weight that the step before started from"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_another_state_is_named(name):
    make, kind, text = FAULTS[name]
    golden = run(Config(), seed=31)
    found = look(run(Config(), Layout(dp=2), seed=31, fault=make()), golden)
    assert "decoder.layers.1.mlp.linear_fc2" in found.operator
    assert found.cause == kind
    assert text in " ".join(found.evidence)


@pytest.mark.parametrize("layout", [Layout(dp=2), Layout(cp=2)])
def test_a_loss_that_is_one_ranks_share_is_named(layout):
    golden = run(Config(), seed=32)
    found = look(run(Config(), layout, seed=32, fault=Fault("loss.all_reduce", skip)), golden)
    assert found.cause == kinds.MISSING_REDUCTION
    assert "one rank's share, not reduced over ranks" in found.evidence[0]
