"""Panels of chapter 9 on methods, without a browser: Minder, Mycroft, and a straggler to find."""

import json
import math
import re

import pytest
from chart_checks import assert_draws

from telekit.diagnose.minder.detect import CALL_S, PULL_S, detect
from telekit.diagnose.minder.generate import FAULT_KINDS as MACHINE_FAULTS
from telekit.diagnose.mycroft.faults import FAULT_KINDS
from telekit.ui import known_detectors as detectors
from telekit.ui.minder_charts import FAULTY, NAMED, OTHERS
from telekit.ui.panels import chapter09_game as game
from telekit.ui.panels import chapter09_minder as minder
from telekit.ui.panels import chapter09_mycroft as mycroft

MAKE = {"minder": minder.minder_explorer, "mycroft": mycroft.mycroft_explorer}


@pytest.fixture(scope="module")
def panels():
    made = {name: make() for name, make in MAKE.items()}
    return {name: (panel, panel.values) for name, panel in made.items()}


@pytest.fixture
def begin(panels):
    def go(name, **values):
        panel, first = panels[name]
        panel.set(**(first | values))
        assert panel.error is None
        return panel

    return go


@pytest.mark.parametrize("name", [*MAKE, "game"])
def test_charts_draw_what_they_are_given(name):
    panel = MAKE.get(name, game.game_explorer)()
    views = {
        "minder": (minder.charts.heat_map(), minder.charts.score_chart()),
        "mycroft": (mycroft.charts.graph_chart(), mycroft.charts.flow_chart()),
        "game": (game.charts.spent_chart(), game.charts.evidence_chart()),
    }[name]
    if name == "game":
        panel.set(answer=True)  # a row for the mark too
    for chart, view in zip(views, panel.views, strict=True):
        assert_draws(chart, view.datasets)


# --- Minder -------------------------------------------------------------------------------------------------


def test_the_first_view_shows_an_alert_after_four_minutes(begin):
    panel = begin("minder")
    assert panel.titles == [
        "Machine 5 is faulty, minutes 4 to 10: gpu power W",
        "Alert: machine-5, 3.9 min after the fault began",
    ]
    (mark,) = panel.rows["alerts"]
    assert mark["right"] == "alert: machine-5" and mark["minute"] - mark["from"] == pytest.approx(4)
    assert len(panel.rows["heat"]) == 16 * 45
    assert {row["kind"] for row in panel.rows["scores"]} == {FAULTY, OTHERS}
    assert "linear embedding" in panel.text and "stands in for" in panel.text


@pytest.mark.parametrize("minutes", [0.5, 1, 2, 3, 4, 5, 6])
def test_the_edge_between_a_glitch_and_a_fault_is_at_four_minutes(begin, minutes):
    panel = begin("minder", minutes=minutes)
    assert panel.titles[1].startswith("Alert: machine-5" if minutes >= 4 else "No alert: ")
    assert bool(panel.rows["alerts"]) == (minutes >= 4)


@pytest.mark.parametrize("kind", MACHINE_FAULTS)
def test_every_kind_is_named_within_six_minutes(begin, kind):
    panel = begin("minder", kind=kind, glitches=0)
    after = re.fullmatch(r"Alert: machine-5, (\d\.\d) min after the fault began", panel.titles[1])
    assert after and 3.5 <= float(after[1]) <= 6


def test_said_in_the_chapter_of_minder(begin):
    slow = begin("minder", faulty=0, pace=0.5).titles
    assert slow[0].startswith("No machine is faulty: ") and slow[1] == "No alert, and rightly so"
    for faulty in (0, 1):
        off = begin("minder", continuity_s=0.0, faulty=faulty)
        assert off.titles[1].endswith("and wrongly")
        assert NAMED in {row["kind"] for row in off.rows["scores"]}
    two = begin("minder", faulty=2)
    assert two.titles[1].startswith("Alert: machine-11,"), "the first metric with an alert ends the call"
    both = begin("minder", faulty=2, goes_on=True)
    assert both.titles[1].startswith("Alert: machine-11, machine-5,") and "<b>2</b> of 2" in both.text
    three = begin("minder", faulty=3, kind="cpu-contention")
    assert three.titles[1].startswith("No alert")
    highest, threshold = math.sqrt(13 / 3), minder.Rules().threshold_of(16)
    assert f"{highest:.2f}, {threshold:.2f}" == "2.08, 2.12"


def test_a_slow_down_of_all_is_there_to_be_seen(begin):
    rows = begin("minder", faulty=0, pace=0.5, metric="gpu power W").rows["heat"]
    early = [row["value"] for row in rows if row["to"] <= 5]
    late = [row["value"] for row in rows if row["from"] >= 6]
    assert sum(late) / len(late) < 0.75 * sum(early) / len(early)


def test_a_fault_that_is_no_further_than_healthy_machines_is_said(begin):
    panel = begin("minder", faulty=3, seed=2)
    assert (
        panel.titles[1]
        == "No alert: above the threshold long enough, but no further away than healthy machines get"
    )


def test_said_in_the_chapter_of_continuity():
    got = {row[0]: row[1:] for row in detectors.continuity().rows}
    precision = {name: float(row[3]) for name, row in got.items()}
    ours = [precision[f"ours, {c}"] for c in ("one window", "1 min", "2 min", "4 min")]
    assert ours == sorted(ours) and ours[0] < 0.1, "of one window nearly every call names a healthy machine"
    assert got["ours, 4 min"][:3] == ("19", "1", "1"), "one alert in twenty is wrong"
    assert precision["paper's, one window"] < precision["paper's, 4 min"]
    assert precision["published, without continuity"] == 0.757 and precision["published, 4 minutes"] == 0.904


def test_said_in_the_chapter_of_the_longest_wait():
    """A fault that begins a moment too late for one call waits for the next: 4 and 8 minutes."""
    run = minder.generate(
        16, 1000, minder.MachineFault("gpu-drop", 5, 265, 1000), glitches_per_hour=0, seed=1
    )
    calls = [run.metrics.between(at_s - PULL_S, at_s) for at_s in (CALL_S, 2 * CALL_S)]
    early, late = (detect(minder.model(), part, stride=4) for part in calls)
    assert not early.alerts and late.machines == {"machine-5"}
    assert (CALL_S - 265) / 60 < 4 and 11.5 < (2 * CALL_S - 265) / 60 < 12


# --- Mycroft ------------------------------------------------------------------------------------------------


def test_the_first_view_walks_to_the_dark_card(begin):
    panel = begin("mycroft")
    assert panel.titles[0] == "11.0 s: 8 waits for 0, 0 for 1, 1 for 5: not transmitted"
    assert [row["text"] for row in panel.rows["waits"] if row["kind"] == "walk"] == [
        "8 waits for 0 (pp)", "0 waits for 1 (tp)", "1 waits for 5 (dp)",
    ]  # fmt: skip
    stuck = {row["counter"]: row["chunks"] for row in panel.rows["flows"] if row["flow"] == "5 → 7"}
    assert stuck["ready"] > stuck["transmitted"] == stuck["done"]
    at = mycroft.charts.places(mycroft.JOB)
    assert panel.rows["culprit"] == [{"x": at[5].x, "y": at[5].y}]
    assert "<b>ready &gt; transmitted</b>" in panel.text and "<b>3.0 s</b> from fault to alarm" in panel.text


@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("rank", [0, 5, 10, 15])
def test_every_kind_is_found_where_it_was_planted(begin, kind, rank):
    panel = begin("mycroft", kind=kind, rank=rank)
    assert f"<b>rank {rank}: {FAULT_KINDS[kind].cause}</b> found" in panel.text
    assert f"for rank {rank}: {FAULT_KINDS[kind].cause}" in panel.titles[1]
    seconds = float(re.search(r"<b>([\d.]+) s</b> from fault to alarm", panel.text)[1])
    assert 0 < seconds <= 15
    counters = panel.rows["flows"]
    for flow in {row["flow"] for row in counters}:
        ready, transmitted, done = (row["chunks"] for row in counters if row["flow"] == flow)
        assert ready >= transmitted >= done >= 0


@pytest.mark.parametrize("at", [mycroft.TIMES[0], 0.0, mycroft.TIMES[-1]])
def test_a_healthy_job_raises_no_alarm_though_walks_end_somewhere(begin, at):
    panel = begin("mycroft", kind=mycroft.NOTHING, at=at)
    assert "no alarm" in panel.text
    blame = [row["seconds"] for row in panel.rows["blame"]]
    assert max(blame, default=0) < 1


def test_said_in_the_chapter_of_mycroft(begin):
    before = begin("mycroft", at=-3.0)
    assert before.titles == [
        "8.0 s: rank 8 holds up its own ring: not transmitted", "Nobody keeps others waiting longer than usual",
    ]  # fmt: skip
    assert "no alarm" in begin("mycroft", kind="gpu-slow", size=0.1).text
    ends = {
        begin("mycroft", kind="gpu-slow", at=at).rows["culprit"][0]["x"]
        for at in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
        if begin("mycroft", kind="gpu-slow", at=at).rows["culprit"]
    }
    assert len(ends) > 1, "walks of a job that runs end at one rank now, at another then"
    for name in ("5", "10"):
        assert "s</b> from fault" in begin("mycroft", kind="process-stuck", rank=int(name)).text


def test_said_in_the_chapter_of_the_seven_kinds():
    table = detectors.seven_faults()
    assert "alarm within 15 s: 42 of 42" in table.title and len(table.rows) == 7
    for row in table.rows:
        assert row[2] == "6 of 6" and 2 < float(row[3]) <= float(row[4]) <= float(row[5]) < 5


def test_a_job_that_stands_still_has_no_blue_rank(begin):
    panel = begin("mycroft", kind="gpu-hang", at=4.0)
    assert {row["state"] for row in panel.rows["ranks"]} == {mycroft.charts.WAITS, mycroft.charts.SENDS}
    stuck = begin("mycroft", kind="process-stuck", at=4.0)
    outside = [row["rank"] for row in stuck.rows["ranks"] if row["state"] == mycroft.charts.OUTSIDE]
    assert outside == [5]


# --- the game -----------------------------------------------------------------------------------------------

GUESS = {"slow-data": ("8", "data"), "slow-pair": ("6", "link"), "monitoring": ("node 0", "host")}


@pytest.fixture(scope="module")
def rounds():
    return game.game_explorer()


@pytest.mark.parametrize("number", range(1, game.ROUNDS + 1))
def test_a_diagnosis_solves_every_round(number):
    """Else the round could not be won on its evidence."""
    truth, found = game.hidden(number).truth(), game.diagnosed(number)
    assert found.verdict == (truth.finding or "healthy")
    people, _ = game.accepted(truth)
    if truth.is_fault and truth.scope in ("rank", "pair", "several"):
        assert {str(rank) for rank in found.findings[0].ranks} <= people
    elif truth.is_fault:
        assert set(found.findings[0].ranks) == set(truth.ranks)


def test_each_kind_is_hidden_once():
    kinds = [game.hidden(number).truth().kind for number in range(1, game.ROUNDS + 1)]
    assert sorted(kinds) == sorted(game.HIDDEN) and game.ROUNDS == 17
    healthy = [number for number in range(1, 18) if not game.hidden(number).truth().is_fault]
    assert len(healthy) == 2, "said in the chapter"


@pytest.mark.parametrize("number", range(1, game.ROUNDS + 1))
def test_nothing_gives_the_answer_away(rounds, number):
    rounds.set(number=number)
    for look in game.charts.LOOKS:
        rounds.set(look=look)
        shown = json.dumps(rounds.rows) + rounds.text + " ".join(rounds.titles)
        assert rounds.error is None and rounds.rows["named"] == []
        for word in ("Planted", "Diagnosis", "slow-", "finding", game.hidden(number).truth().kind):
            assert word not in shown
        columns = {frozenset(row) for row in rounds.rows["evidence"]}
        assert columns == {frozenset(("rank", "column", "order", "value", "shade", "text"))}


def test_the_first_whole_guess_counts(rounds):
    rounds.points.clear()
    rounds.set(number=1, who="3")
    assert not rounds.points, "half a guess is none"
    rounds.set(why="data")
    assert rounds.points == {1: 1} and "✗ rank 3 waits" in rounds.text and "✓ why is right" in rounds.text
    rounds.set(who="8")
    assert rounds.points == {1: 1} and "✓ who is right; ✓ why is right" in rounds.text
    rounds.set(number=2)
    assert (rounds.values["who"], rounds.values["why"], rounds.values["answer"]) == ("?", "?", False)
    rounds.set(answer=True)
    assert rounds.points == {1: 1, 2: 0} and "Planted:" in rounds.text
    assert {row["rank"] for row in rounds.rows["named"]} == {6, 14}
    rounds.set(who="6", why="link")
    assert rounds.points == {1: 1, 2: 0} and "1 of 4" in rounds.text
    rounds.set(number=1)
    assert "1 of 2</b> points this round" in rounds.text


@pytest.mark.parametrize("number", range(1, game.ROUNDS + 1))
def test_the_right_guess_is_right_and_wrong_ones_hear_why(rounds, number):
    people, cause = game.accepted(game.hidden(number).truth())
    for who in rounds.controls["who"].options[1:]:
        for why in {cause, "link", "nothing"}:
            told = game.verdict_on(number, who, why)
            assert ("✓ who" in told) == (who in people) and ("✓ why" in told) == (why == cause)
    assert game.judged(number, sorted(people)[0], cause) == (True, True)


def test_known_rounds_have_known_answers():
    for number in range(1, game.ROUNDS + 1):
        truth = game.hidden(number).truth()
        if truth.kind in GUESS:
            assert game.judged(number, *GUESS[truth.kind]) == (True, True)


def test_own_time_is_left_of_the_waiting(rounds):
    rounds.set(number=1)
    waiting = {row["order"] for row in rounds.rows["spent"] if row["what"] == "waiting for a rank"}
    others = {row["order"] for row in rounds.rows["spent"] if row["what"] != "waiting for a rank"}
    assert min(waiting) > max(others)
    by_rank = {}
    for row in rounds.rows["spent"]:
        by_rank[row["rank"]] = by_rank.get(row["rank"], 0.0) + row["ms"]
    assert max(by_rank.values()) == pytest.approx(min(by_rank.values()), rel=0.02), (
        "all steps are equally long"
    )
