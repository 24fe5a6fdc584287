"""Panels of chapter 4 without a browser: what they show is what the schedules are known for."""

import re

import pytest
import vl_convert

from telekit.errors import InputError
from telekit.pipeline.closed_form import pipeline_time_s
from telekit.ui import known_schedules as known
from telekit.ui import style
from telekit.ui.panels import chapter04

# makespan and most micro-batches held, F = B = W = 1, eight devices and sixteen micro-batches: the literature's
BASIS = {
    "gpipe": (69, 16),
    "1f1b": (69, 8),
    "interleaved-1f1b": (58.5, 11.5),
    "zb-1p": (55, 8),
    "zb-v": (51.5, 8),
    "v-half": (56.5, 5),
    "dualpipe": (54, 9),
    "dualpipe-v": (55, 8.5),
}


@pytest.fixture(scope="module")
def one():
    return chapter04.schedule_explorer()


@pytest.fixture(scope="module")
def basis():
    return chapter04.basis_explorer()


@pytest.fixture(scope="module")
def pays():
    return chapter04.pays_explorer()


def begin(panel, make):
    return panel.set(**make().values)


def test_it_starts_at_1f1b_and_says_its_bubble_three_ways(one):
    begin(one, chapter04.schedule_explorer)
    for figure in ("33", "27.3%", "37.5%"):
        assert f"<b>{figure}</b>" in one.text
    assert one.titles == [
        "1f1b ends after 33; a device idles 27.3% of it",
        "Device 0 holds most, 4 micro-batches; device 3 least, 1",
    ]
    assert "1.5 before its first start, 3 after its last end, 4.5 in between" in one.text
    assert "(p-1)/m: 37.5% of work; simulated 37.5%" in one.text


def test_gpipe_moves_the_memory_alone(one):
    begin(one, chapter04.schedule_explorer).set(schedule="gpipe")
    assert one.titles[0] == "gpipe ends after 33; a device idles 27.3% of it"
    assert one.titles[1] == "Every device holds up to 8 micro-batches"


def test_only_controls_that_a_schedule_has_can_be_moved(one):
    begin(one, chapter04.schedule_explorer)
    able = {}
    for name in ("1f1b", "interleaved-1f1b", "dualpipe", "zb-v"):
        one.set(schedule=name)
        able[name] = {key for key in ("chunks", "pieces", "overlap") if not one.controls[key].disabled}
        for key in ("chunks", "pieces"):  # and a number that does not count is not shown
            assert one.controls[key].readout is not one.controls[key].disabled
    assert able == {"1f1b": set(), "interleaved-1f1b": {"chunks"}, "dualpipe": {"overlap"}, "zb-v": set()}


def test_communication_and_a_slow_device_are_said_apart(one):
    begin(one, chapter04.schedule_explorer).set(comm=0.5, slower=0.5)
    parts = dict(
        (what, float(value))
        for value, what in re.findall(r"(-?[\d.]+) (before|after|in|for communication|for unequal)", one.text)
    )
    total = float(re.search(r"idles ([\d.]+) on average", one.text)[1])
    assert set(parts) == {"before", "after", "in", "for communication", "for unequal"}
    assert sum(parts.values()) == pytest.approx(total, abs=0.05)
    assert "for equal devices and free communication" in one.text


def test_sizes_that_a_schedule_does_not_take_are_said_with_some_that_work(one):
    begin(one, chapter04.schedule_explorer).set(schedule="dualpipe", micro_batches=4)
    assert isinstance(one.error, InputError) and "telekit-bad" in one.text and "works" in one.text
    assert one.set(micro_batches=8).error is None


def test_large_cases_stay_small_on_the_page(one):
    begin(one, chapter04.schedule_explorer)
    for name in ("1f1b", "interleaved-1f1b", "zb-v", "dualpipe"):
        one.set(schedule=name, stages=16, micro_batches=256)
        assert one.error is None
        assert len(one.rows["gantt"]) <= 900 and len(one.rows["held"]) <= 1700 and one.rows["written"] == []


def test_the_basis_is_the_literatures(basis):
    begin(basis, chapter04.basis_explorer)
    rows = {row["schedule"]: row for row in basis.rows["basis"]}
    for name, (makespan, held) in BASIS.items():
        assert rows[name]["bubble"] == pytest.approx(1 - 48 / makespan), name
        assert rows[name]["held"] == pytest.approx(held), name
    assert {n for n, row in rows.items() if row["kind"] == "nothing beats it"} == {"zb-v", "v-half", "v-min"}
    assert basis.titles[0] == "zb-v idles least, 6.8%" and basis.titles[1].startswith("v-min holds least, ")


def test_schedules_that_hold_alike_are_said_to(basis):
    begin(basis, chapter04.basis_explorer).set(stages=2, micro_batches=2)
    assert len({row["held_text"].split()[0] for row in basis.rows["basis"]}) == 1
    assert re.fullmatch(r"All hold 2; of these [\w-]+ idles least, [\d.]+%", basis.titles[1])
    svg = vl_convert.vegalite_to_svg(basis.views[1].still().spec)
    labels = [re.findall(r">([^<]*)</text>", part) for part in re.findall(r"role-axis-label.*?</g>", svg)]
    assert labels == [["0", "1", "2"]]  # and not 0 1 1 2 2


def test_a_shorter_overlapped_block_puts_dualpipes_in_front(basis):
    begin(basis, chapter04.basis_explorer).set(overlap=2 / 3)
    first, second = sorted(basis.rows["basis"], key=lambda row: row["bubble"])[:2]
    assert (first["schedule"], first["bubble_text"], first["held"]) == ("dualpipe-v", "5.0%", 8.5)
    assert (second["schedule"], second["bubble_text"]) == ("dualpipe", "5.1%")


def test_large_cases_are_redrawn_when_the_hand_lets_go(one):
    begin(one, chapter04.schedule_explorer)
    fluid = {}
    for name in ("1f1b", "zb-h1", "zb-v", "zb-1p"):
        one.set(schedule=name, stages=16, micro_batches=256)
        fluid[name] = one.controls["weight"].continuous_update
        assert ("when you let go" in one.text) is not fluid[name]
    assert fluid == {"1f1b": True, "zb-h1": True, "zb-v": False, "zb-1p": False}
    one.set(schedule="seq-1f1b", chunks=8, pieces=8)
    assert not one.controls["weight"].continuous_update
    one.set(schedule="zb-v", stages=4, micro_batches=8)
    assert one.controls["weight"].continuous_update


def test_what_does_not_run_at_these_sizes_is_listed_with_its_rule(basis):
    begin(basis, chapter04.basis_explorer).set(micro_batches=12)
    assert {row["schedule"] for row in basis.rows["basis"]}.isdisjoint({"dualpipe", "interleaved-1f1b"})
    assert "dualpipe: " in basis.text and "interleaved-1f1b: " in basis.text


def test_a_short_w_leaves_zero_bubble_schedules_with_holes(basis):
    begin(basis, chapter04.basis_explorer)
    equal = {row["schedule"]: row["bubble"] for row in basis.rows["basis"]}
    basis.set(weight=0.25)
    short = {row["schedule"]: row["bubble"] for row in basis.rows["basis"]}
    assert short["1f1b"] == pytest.approx(equal["1f1b"])  # its bubble does not ask what a backward is made of
    assert short["zb-1p"] > equal["zb-1p"] and short["zb-v"] > equal["zb-v"]


def test_communication_hits_hardest_what_holds_least(basis):
    begin(basis, chapter04.basis_explorer).set(comm=0.3)
    bubble = {row["schedule"]: row["bubble"] for row in basis.rows["basis"]}
    assert bubble["gpipe"] < bubble["1f1b"] < bubble["v-min"] == max(bubble.values())


def test_communication_leaves_1f1b_a_bubble_that_micro_batches_do_not_heal(pays):
    begin(pays, chapter04.pays_explorer).set(comm=0.3)
    last = {row["schedule"]: row["bubble"] for row in pays.rows["curves"] if row["micro_batches"] == 256}
    assert last["1f1b"] > 0.15 and 0.05 < last["dualpipe"] < last["1f1b"]
    assert max(last["interleaved-1f1b"], last["zb-h1"], last["zb-v"]) < 0.03


def test_curves_are_the_closed_forms(pays):
    begin(pays, chapter04.pays_explorer)
    curves = {}
    for row in pays.rows["curves"]:
        curves.setdefault(row["schedule"], {})[row["micro_batches"]] = row["bubble"]
    assert set(curves) == set(style.SCHEDULES)
    for m in (8, 64, 256):
        assert curves["1f1b"][m] == pytest.approx(7 / (m + 7))
        assert curves["interleaved-1f1b"][m] == pytest.approx(7 / (2 * m + 7))
        assert curves["zb-h1"][m] == pytest.approx(7 / (3 * m + 7))
    assert curves["zb-v"][64] == pytest.approx(3.5 / (3 * 64 + 3.5))
    assert 8 not in curves["dualpipe"] and curves["dualpipe"][64] == pytest.approx(6 / (3 * 64 + 6))


def test_what_can_be_saved_shrinks_with_micro_batches(pays):
    begin(pays, chapter04.pays_explorer)
    saved = []
    for micro_batches in (16, 32, 64, 128, 256):
        pays.set(micro_batches=micro_batches)
        saved.append(float(re.search(r"by ([\d.]+)%", pays.titles[0])[1]))
    assert saved == sorted(saved, reverse=True) and saved[-1] < 100 * 7 / (256 + 7) < 3


@pytest.mark.parametrize("comm", [0.0, 0.1])
def test_the_interleaving_trade_is_the_closed_form(pays, comm):
    begin(pays, chapter04.pays_explorer).set(comm=comm)
    totals = {}
    for row in pays.rows["trade"]:
        totals[row["chunks"]] = totals.get(row["chunks"], 0.0) + row["idle"]
    for v, total in totals.items():
        name, each = ("1f1b", 1.0) if v == 1 else ("interleaved-1f1b", 1 / v)
        forward = [[each] * 8] * v
        makespan = pipeline_time_s(name, forward, [[2 * each] * 8] * v, 16, comm_s=comm)
        assert comm <= each and total == pytest.approx(makespan - 48), v
    assert {row["chunks"]: row["text"] for row in pays.rows["on_top"]} == {
        1: "holds 8", 2: "holds 11.5", 4: "holds 9.75", 8: "holds 8.88",
    }  # fmt: skip


def test_published_values_are_met():
    for name, case, published in known.NAMED:
        if published is not None:
            assert float(known.timed(case).makespan_s) == published, name
    table = repr(known.named_values())
    assert "dualpipe, F&B 2" in table and table.count("78") == 4


def test_formulas_beside_simulations_agree_but_for_the_two_round_ones():
    for row in known.beside_formulas(8, 16).rows:
        formula, simulated = (float(text.rstrip("%")) for text in row[-2:])
        assert abs(formula - simulated) <= (0.35 if row[0] in ("v-half", "v-min") else 0.051), row


def test_formulas_say_what_they_give_and_of_what():
    rows = {row[0]: row for row in known.beside_formulas(8, 16).rows}
    gives = {name: (row[2], row[3]) for name, row in rows.items()}
    assert gives["gpipe"] == ("", f"{7 / 23:.1%} of all time")
    assert gives["1f1b"] == ("", f"{7 / 16:.1%} of work")
    assert gives["interleaved-1f1b"] == ("", f"{7 / 32:.1%} of work")
    assert gives["zb-h1"] == ("", "7 units") and gives["zb-1p"] == ("with W", "7 units")
    assert gives["dualpipe"] == ("with W", "6 units") and gives["dualpipe-v"] == ("with W", "7 units")
    assert gives["v-half"] == ("1F1B's bubble", f"{7 / 46:.1%} of span")
    assert gives["v-min"] == ("1F1B's bubble", f"{14 / 69:.1%} of span")


def test_a_formula_is_not_shown_for_times_that_it_is_not_for(one):
    begin(one, chapter04.schedule_explorer).set(schedule="zb-1p", weight=1.25)
    assert "(PP-1)(F+B-2W), is for W no longer than F and B." in one.text
    assert "Published formula" in one.set(weight=0.75).text
    assert "B/2 (B: 1F1B&#x27;s bubble)" in one.set(schedule="v-half", weight=1.0).text


def test_what_interleaving_holds_is_the_chapters_formula():
    for p, m, v in ((8, 8, 2), (8, 16, 2), (8, 24, 4), (4, 4, 8), (4, 12, 3)):
        held = known.timed(known.Case("interleaved-1f1b", p, m, chunks=v)).peak_activations[0]
        assert held == pytest.approx(min(m, (2 * (p - 1) + (v - 1) * p + 1) / v)), (p, m, v)


def test_pieces_of_sequences_lower_the_bubble_and_the_memory(one):
    begin(one, chapter04.schedule_explorer).set(schedule="seq-1f1b", chunks=1)
    for pieces in (1, 2, 4, 8):
        one.set(pieces=pieces)
        assert f"idles {3 / (8 * pieces + 3):.1%}" in one.titles[0]
        assert f"holds most, {(4 + pieces - 1) / pieces:.3g} " in one.titles[1]  # p - s + k - 1 pieces of k


def test_the_less_memory_variant_pays_with_communication_alone():
    def run(name, comm):
        found = known.timed(known.Case(name, 4, 8, comm=comm))
        return float(found.makespan_s), float(found.peak_activations.max())

    usual, lean = run("interleaved-1f1b", 0.0), run("interleaved-less-memory", 0.0)
    assert usual[0] == lean[0] and lean[1] < usual[1]
    assert run("interleaved-1f1b", 0.2)[0] < run("interleaved-less-memory", 0.2)[0]


def test_telechats_pipelines_have_the_bubble_of_their_chunks_and_pieces():
    for row, (_, case) in zip(known.telechat_runs().rows, known.TELECHAT, strict=True):
        units = case.chunks * case.pieces * case.micro_batches
        idle, causal = (float(text.rstrip("%")) for text in row[-3:-1])
        assert idle == pytest.approx(100 * (case.stages - 1) / (units + case.stages - 1), abs=0.051)
        assert causal >= idle and (causal == idle) == (case.pieces == 1)
