"""Panels of chapter 8 without a browser: what they show is what the package says."""

import pytest

import telekit
from telekit.errors import InputError
from telekit.ui import cases
from telekit.ui.panels import chapter08
from telekit.ui.panels.choosing import values_of

WAIT_S = 120.0


@pytest.fixture(scope="module")
def explorer():
    return chapter08.layout_explorer()


def test_it_starts_at_the_published_layout(explorer):
    explorer.set(**values_of("deepseek-v3-h800-2048"))
    found = telekit.estimate(cases.published("deepseek-v3-h800-2048"))
    shown = sum(row["seconds"] for row in explorer.rows["step"])
    assert shown == pytest.approx(found.step_time_s, rel=1e-12)
    assert f"{found.mfu:.1%}" in explorer.text and "120 micro-batches" in explorer.text


def test_starting_from_another_run_moves_every_control(explorer):
    explorer.controls["start"].value = "telechat3-105b-910b-256"
    assert explorer.values == values_of("telechat3-105b-910b-256")
    assert {row["stage"] for row in explorer.rows["memory"]} == set(range(8))
    explorer.controls["start"].value = "deepseek-v3-h800-2048"
    assert explorer.values == values_of("deepseek-v3-h800-2048")


def test_a_move_shows_the_estimate_of_that_layout(explorer):
    explorer.set(**values_of("deepseek-v3-h800-2048")).set(tp=2, ep=32)
    base = cases.published("deepseek-v3-h800-2048")
    layout = base.layout.model_copy(update={"tp": 2, "ep": 32, "dp": 64})
    found = telekit.estimate(base.with_layout(layout))
    assert sum(row["seconds"] for row in explorer.rows["step"]) == pytest.approx(found.step_time_s, rel=1e-12)


def test_all_broken_rules_are_said(explorer):
    explorer.set(**values_of("deepseek-v3-h800-2048")).set(micro_batch=16, pp=64)
    assert isinstance(explorer.error, InputError) and len(explorer.error.problems) >= 2
    assert all(p.field in explorer.text for p in explorer.error.problems)


@pytest.fixture(scope="module")
def planned():
    panel = chapter08.planner("telechat3-105b-910b-256", top=2, time_limit_s=2)
    panel.start().wait(WAIT_S)
    return panel


def test_before_planning_the_published_layout_stands_alone():
    panel = chapter08.planner("telechat3-105b-910b-256")
    assert {row["plan"] for row in panel.rows["ranking"]} == {"published: tp8 pp8 dp4 etp8"}
    assert panel.rows["rejected"] == [] and panel.plan is None and panel.error is None
    assert "--tensor-model-parallel-size 8" in panel.tabs.children[1].value


def test_planning_ranks_plans_beside_the_published_layout(planned):
    assert planned.task.error is None and planned.plan is not None
    names = list(dict.fromkeys(row["plan"] for row in planned.rows["ranking"]))
    assert [name.split()[0] for name in names] == ["1.", "2.", "published:"]
    assert f"{planned.plan.searched:,} layouts searched" in planned.text
    assert sum(row["layouts"] for row in planned.rows["rejected"]) <= sum(planned.plan.rejected.values())


@pytest.mark.parametrize("rank", [1, 2])
def test_each_plan_can_be_looked_at_and_taken_away(planned, rank):
    planned.choose(str(rank))
    found = planned.plan.plans[rank - 1]
    assert sum(row["seconds"] for row in planned.rows["step"]) == pytest.approx(found.step_time_s, rel=1e-12)
    job, megatron, mindformers, program, assumptions = (page.value for page in planned.tabs.children)
    assert f"pp: {found.layout.pp}" in job
    assert f"--pipeline-model-parallel-size {found.layout.pp}" in megatron
    assert f"pipeline_stage: {found.layout.pp}" in mindformers
    assert "subject to" in program and "<li>" in assumptions


def test_the_published_layout_can_be_looked_at_again(planned):
    planned.choose("published")
    found = telekit.estimate(cases.published("telechat3-105b-910b-256"))
    assert sum(row["seconds"] for row in planned.rows["step"]) == pytest.approx(found.step_time_s, rel=1e-12)
    planned.choose("1")


def test_answers_of_another_case_fade(planned):
    planned.set(devices=128)
    assert all(view.stale for view in planned.views)
    planned.set(devices=256)
    assert not any(view.stale for view in planned.views)


def test_a_search_can_be_stopped():
    panel = chapter08.planner("deepseek-v3-h800-2048", time_limit_s=60)
    panel.start().task.halt.click()
    assert panel.wait(WAIT_S) is None and panel.plan is None
    assert panel.task.error is None and "stopped" in panel.task.note.value
    assert {row["plan"] for row in panel.rows["ranking"]} == {"published: pp16 dp128 ep64"}


def test_a_schedule_can_be_asked_for():
    panel = chapter08.planner("telechat3-105b-910b-256", top=1, time_limit_s=1)
    panel.set(schedule="zb-h1").start().wait(WAIT_S)
    assert panel.task.error is None and panel.plan.best.layout.schedule == "zb-h1"
    assert "spread evenly" in panel.text and "No integer program" in panel.tabs.children[3].value


def test_a_case_that_no_layout_fits_says_why():
    panel = chapter08.planner("deepseek-v3-h800-2048", top=1, time_limit_s=1)
    panel.set(devices=8, global_batch=16, seq_len=131072).start().wait(WAIT_S)
    assert isinstance(panel.task.error, InputError) and "memory" in panel.task.note.value
    assert panel.plan is None


def test_sapps_case_is_as_published_and_its_step_is_proved():
    sapp, ours = chapter08.sapp_case().placements.values()
    assert (sapp.bottleneck, sapp.makespan) == (3780.0, 110_610.0)  # SAPP's own test, in today's times
    assert ours.makespan == ours.proof.bound == 107_460
    assert max(*sapp.peak_memory_mb, *ours.peak_memory_mb) <= 53_000
    assert "110,610" in repr(chapter08.sapp_case()) and "107,460" in chapter08.sapp_picture().title
