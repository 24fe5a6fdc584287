"""Charts: their rows say what the estimate says, and every name they draw has its colour."""

import pytest
from chart_checks import assert_draws

from telekit.cost.estimate import estimate
from telekit.ui import cases, charts, style
from telekit.units import GIB

RUNS = ("deepseek-v3-h800-2048", "telechat3-105b-910b-256", "llama-3.1-405b-h100-16384")


@pytest.fixture(scope="module", params=RUNS)
def found(request):
    return estimate(cases.published(request.param))


def test_the_bars_of_a_stage_add_up_to_its_peak(found):
    rows = charts.memory_rows(found)["memory"]
    for i, stage in enumerate(found.stages):
        drawn = sum(row["GiB"] for row in rows if row["stage"] == i)
        assert drawn == pytest.approx(stage.peak_bytes / GIB, rel=1e-12)


def test_the_bars_of_a_step_add_up_to_the_step(found):
    rows = charts.step_rows(found.breakdown_s)["step"]
    assert sum(row["seconds"] for row in rows) == pytest.approx(found.step_time_s, rel=1e-12)
    assert set(found.breakdown_s) <= set(charts.PARTS)


def test_every_name_that_is_drawn_has_a_colour(found):
    assert {row["part"] for row in charts.memory_rows(found)["memory"]} <= set(style.MEMORY)
    assert {row["meaning"] for row in charts.step_rows(found.breakdown_s)["step"]} <= set(style.TIME)


def test_the_axis_leaves_room_for_the_bars_and_the_name_of_the_line(found):
    (capacity,) = charts.memory_rows(found)["capacity"]
    assert capacity["GiB"] == found.capacity_bytes / GIB
    assert capacity["top"] > max(capacity["GiB"], found.peak_bytes / GIB)


def test_titles_state_the_finding(found):
    memory, step = charts.estimate_titles(found)
    fullest = max(range(len(found.stages)), key=lambda i: found.stages[i].peak_bytes)
    assert f"tage {fullest}" in memory and memory.startswith("It fits") == found.fits
    assert step.startswith(
        f"{found.breakdown_s['compute'] / found.step_time_s:.0%} of the step is arithmetic"
    )


def test_over_capacity_says_by_how_much(found):
    tight = charts.memory_title(type(found)(found.job, (), found.peak_bytes - 2.5 * GIB, found.stages))
    assert tight.endswith("2.5 GiB more than a device has")


def test_plans_are_ranked_in_the_order_given(found):
    rows = charts.ranking_rows([("b", found), ("a", found)])["ranking"]
    assert [(row["plan"], row["rank"]) for row in rows[:: len(charts.PARTS)]] == [("b", 0), ("a", 1)]


def test_rejections_begin_with_the_most_frequent():
    rows = charts.rejection_rows({"heads": 3, "schedule: batch": 40_000, "memory": 0}, most=2)["rejected"]
    assert rows == [
        {"reason": "batch", "rank": 0, "layouts": 40_000, "text": "40,000"},
        {"reason": "heads", "rank": 1, "layouts": 3, "text": "3"},
    ]


def test_a_layout_is_named_by_what_is_not_one():
    assert charts.layout_name(cases.published("telechat3-105b-910b-256").layout) == "tp8 pp8 dp4 etp8"


@pytest.mark.parametrize(
    ("chart", "rows"),
    [
        (charts.memory_by_stage(), charts.memory_rows),
        (charts.step_breakdown(), lambda e: charts.step_rows(e.breakdown_s)),
        (charts.plan_ranking(), lambda e: charts.ranking_rows([("1", e)])),
        (charts.rejections(), lambda e: charts.rejection_rows({"heads": 3})),
        (charts.stage_times(["a", "b"]), lambda e: {"stages": [{"stage": 0, "time": 1.0, "placement": "a"}]}),
    ],
)
def test_every_chart_draws_and_reads_only_columns_it_is_given(chart, rows, found):
    tables = rows(found)
    assert_draws(chart, tables)
