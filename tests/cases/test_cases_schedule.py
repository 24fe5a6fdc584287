"""Faults and confusions of public tools about pipeline schedules, each with its right answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from telekit.pipeline.formulas import FORMULAS, on_one_basis
from telekit.pipeline.order import PAIR
from telekit.pipeline.registry import Passes, build, times
from telekit.pipeline.schedules import warm_up
from telekit.pipeline.simulate import run
from telekit.pipeline.summary import summarize


def simulated(name, stages, micro_batches, passes=Passes(), **options):  # noqa: B008  # a tuple
    order = build(name, stages, micro_batches, passes=passes, **options)
    return run(order, times(order, passes))


def one_whole_backward(forward, backward):
    """B as Megatron-LM and DualPipe write it; the simulation halves it."""
    return Passes(forward, backward / 2, backward / 2)


def test_sc01_dualpipe_with_and_without_overlap_is_two_answers():
    """p 8, m 20, F 1, B 1, W 1: 60 of work. A pair that overlaps nothing takes 3, one that hides a forward 2."""
    assert simulated("1f1b", 8, 20, one_whole_backward(1.0, 2.0)).makespan_s == 60 + 21
    assert simulated("zb-1p", 8, 20).makespan_s == 60 + 7
    for name, copies in (("dualpipe", 2), ("dualpipe-v", 1)):
        order = build(name, 8, 20)
        assert (order.kind == PAIR).any()
        assert order.part.size / order.parts == copies
    as_sum = summarize("dualpipe", 8, 20, passes=Passes(pair=3.0))
    assert as_sum.simulation.makespan_s == 60 + 6
    assert summarize("dualpipe", 8, 20).simulation.makespan_s == 60 + 6
    hidden = summarize("dualpipe", 8, 20, passes=Passes(pair=2.0))
    assert hidden.simulation.makespan_s == 52
    assert any("(F&B) takes 2: 1 less" in line for line in hidden.assumptions)
    assert any("(F&B) takes 3: as long as" in line for line in as_sum.assumptions)


def test_sc02_the_bubble_of_zb1p_is_one_number_under_both_names_of_b():
    """(P - 1)(F + B - 2 W) where B holds W, (P - 1)(F + B - W) where it does not: 7 for p 8."""
    with_w = on_one_basis(FORMULAS["dualpipe_ZB1P"], 8, 20)
    without_w = on_one_basis(FORMULAS["zb_formula_ZB-H1"], 8, 20)
    assert with_w.idle == without_w.idle == 7
    assert FORMULAS["dualpipe_ZB1P"].b_holds_w
    assert not FORMULAS["zb_formula_ZB-H1"].b_holds_w
    timed = simulated("zb-h1", 8, 20)
    assert timed.makespan_s - timed.busy_s.max() == 7
    assert "for inputs and 1 for weights" in summarize("zb-h1", 8, 20).assumptions[0]


def test_sc05_a_utilisation_is_no_bubble():
    """PP 8, v 2, M 16: M / (M + (PP - 1) / v) = 0.8205 is utilisation, the bubble 0.1795."""
    found = on_one_basis(FORMULAS["dualpipe_issue_8"], 8, 16, 2)
    assert found.utilisation == pytest.approx(0.8205, abs=5e-5)
    assert found.of_total == pytest.approx(0.1795, abs=5e-5)
    assert simulated("interleaved-1f1b", 8, 16, chunks=2).bubble_fraction == pytest.approx(found.of_total)


def test_sc06_gpipe_and_1f1b_take_equally_long():
    """P 8, M 32, F = B = 1: both 78 and 0.1795; what differs is what they hold. 71 is not the end of the step."""
    gpipe, plain = (simulated(name, 8, 32, one_whole_backward(1.0, 1.0)) for name in ("gpipe", "1f1b"))
    assert gpipe.makespan_s == plain.makespan_s == 78
    assert gpipe.bubble_fraction == plain.bubble_fraction == pytest.approx(0.1795, abs=5e-5)
    assert gpipe.peak_activations.tolist() == [32] * 8
    assert plain.peak_activations.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    last_of_each = [plain.end_s[plain.order.device == s].max() for s in range(8)]
    assert last_of_each == [78, 77, 76, 75, 74, 73, 72, 71]


def test_sc07_warm_up_of_the_interleaved_schedule():
    """P 4, v 2, M 8, groups of 4: 2 (P - r - 1) + (v - 1) P chunks before the first pair."""
    assert warm_up("interleaved-1f1b", 4, 8, 2).tolist() == [10, 8, 6, 4]
    order = build("interleaved-1f1b", 4, 8)
    first_backward = [int(np.argmax(order.kind[order.device == s] == 1)) for s in range(4)]
    assert first_backward == [11, 9, 7, 5]  # one more forward comes right before it


def test_sc10_zero_bubble_pays_where_micro_batches_are_few():
    """P 8: 1F1B's bubble is 7/23 at M 16, and 7/519 at M 512, where interleaving and zero-bubble gain little."""
    few, many = (simulated("1f1b", 8, m, one_whole_backward(1.0, 1.0)) for m in (16, 512))
    assert few.bubble_fraction == pytest.approx(7 / 23)
    assert many.bubble_fraction == pytest.approx(7 / 519)
    gain = {
        m: simulated("1f1b", 8, m).makespan_s / simulated("zb-1p", 8, m).makespan_s - 1 for m in (16, 512)
    }
    assert gain[16] == pytest.approx(14 / 55)
    assert gain[512] < 0.01
    shown = summarize("zb-1p", 8, 512).to_dict()
    assert {"makespan", "peak_activations"} <= set(shown)


def test_sc11_dualpipe_v_holds_the_model_once_on_the_same_devices():
    """DualPipeV with PP stages runs on PP / 2 devices, of which each then holds two stages."""
    basis = {
        name: on_one_basis(FORMULAS[f"dualpipe_{name}"], 8, 32) for name in ("1F1B", "DualPipe", "DualPipeV")
    }
    assert {name: found.copies for name, found in basis.items()} == {"1F1B": 1, "DualPipe": 2, "DualPipeV": 1}
    folded, double = build("dualpipe-v", 8, 32), build("dualpipe", 8, 32)
    assert folded.part.size == folded.parts == 16
    assert (double.part.size, double.parts) == (16, 8)
    for name, found in (("dualpipe", basis["DualPipe"]), ("dualpipe-v", basis["DualPipeV"])):
        timed = simulated(name, 8, 32)
        assert timed.makespan_s - timed.busy_s.max() == found.idle
        assert timed.peak_activations.max() == found.peak


def test_sc13_larger_micro_batches_raise_the_bubble():
    """256 sequences on DP 8 and PP 8: micro-batches of 1, 2, 4 make 32, 16, 8 of them."""
    bubbles = []
    for size in (1, 2, 4):
        micro_batches = 256 // 8 // size
        bubbles.append(simulated("1f1b", 8, micro_batches, Passes(size, size, size)).bubble_fraction)
    assert bubbles == pytest.approx([0.179, 0.304, 0.467], abs=5e-4)


def test_sc16_total_steps_are_half_steps():
    """4 stages, 8 micro-batches: 2 (8 + 4 - 1) = 22, a forward or a backward each."""
    assert simulated("1f1b", 4, 8, one_whole_backward(1.0, 1.0)).makespan_s == 22


def test_nb02_a_chart_of_12288_operations_stays_small():
    from telekit.ui.gantt import gantt_rows

    timed = simulated("zb-h1", 16, 256)
    columns = timed.marks()
    assert {len(column) for column in columns.values()} == {12_288}
    rows = gantt_rows(**columns)
    assert len(rows["gantt"]) <= 1500
    assert len(json.dumps(rows)) < 300_000
    drawn = sum((row["end"] - row["start"]) * row["share"] for row in rows["gantt"])
    assert drawn == pytest.approx(12_288, rel=2e-3)
