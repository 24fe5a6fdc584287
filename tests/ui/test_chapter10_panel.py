"""Panels of chapter 10 without a browser, and what the chapter says."""

import json
import math
from itertools import pairwise

import pytest
from chart_checks import assert_draws

from telekit import catalog
from telekit.cost.estimate import estimate
from telekit.cost.scaling_failures import effective_rate
from telekit.errors import InputError
from telekit.ui import known_scaling as known
from telekit.ui import results
from telekit.ui import scaling_charts as charts
from telekit.ui.panels import chapter10
from telekit.validation.megascale import columns
from telekit.validation.runs import published_runs

MAKERS = {
    "errors": chapter10.errors_explorer,
    "curves": chapter10.curves_explorer,
    "bends": chapter10.bends_explorer,
    "run": chapter10.run_explorer,
}


@pytest.fixture(scope="module")
def panels():
    return {name: make() for name, make in MAKERS.items()}


def begin(panels, name):
    panel = panels[name]
    return panel.set(**MAKERS[name]().values)


@pytest.mark.parametrize("name", MAKERS)
def test_charts_read_only_columns_that_their_rows_have(panels, name):
    panel = begin(panels, name)
    for view, chart in zip(panel.views, panel._charts, strict=True):
        assert_draws(chart, view.datasets)


# --- predicted against measured -----------------------------------------------------------------------------


def test_the_picture_has_one_point_a_run_as_the_models_estimate_it(panels):
    rows = {row["id"]: row for row in begin(panels, "errors").rows["runs"]}
    runs = [run for run in published_runs() if run.verified]
    assert set(rows) == {run.id for run in runs}
    for run in published_runs("llama-3"):
        row = rows[run.id]
        assert row["measured"] == pytest.approx(run.measured_step_s, rel=1e-5)
        assert row["estimated"] == pytest.approx(estimate(run.job).step_time_s, rel=1e-4)
    assert {run.id for run in runs if run.in_fit} == {
        i for i, r in rows.items() if r["split"] == results.FITTED
    }


def test_scores_are_the_scoreboards(panels):
    held = begin(panels, "errors").set(split=results.HELD).rows["runs"]
    board = known.scoreboard()["all"]["held_out"]
    assert len(held) == board["rows"]
    assert sum(abs(row["error"]) for row in held) / len(held) == pytest.approx(board["mape"], rel=1e-4)
    assert sum(row["error"] for row in held) / len(held) == pytest.approx(board["bias"], rel=1e-3, abs=1e-5)


def test_errors_beyond_the_edge_are_drawn_at_it(panels):
    for row in begin(panels, "errors").rows["runs"]:
        assert row["shown"] == max(-results.EDGE, min(row["error"], results.EDGE))


def test_a_highlighted_source_is_said_with_its_worst(panels):
    panel = begin(panels, "errors").set(source="Kwai")
    chosen = {row["group"] for row in panel.rows["runs"] if row["chosen"]}
    assert chosen == {"kwai"} and "kwai: " in panel.text and panel.titles[0].startswith("34 rows")


def test_memory_has_no_fitted_rows_and_says_so(panels):
    panel = begin(panels, "errors").set(kind="memory", split=results.FITTED)
    assert isinstance(panel.error, InputError) and "held out" in panel.text


def test_every_group_has_a_family_of_its_own_or_is_among_the_others():
    groups = {group["name"] for group in known.scoreboard()["groups"]}
    named = [group for _, members in results.FAMILIES.values() for group in members]
    assert set(named) <= groups and len(named) == len(set(named))


# --- curves -------------------------------------------------------------------------------------------------


def test_published_points_are_the_tables(panels):
    panel = begin(panels, "curves")
    found = {(row["method"], row["devices"]): row["total"] for row in panel.rows["published"]}
    for row in known.table_rows(6144):
        assert found[row["method"], row["n_gpus"]] == pytest.approx(1e3 * row["tokens_per_s_k"], rel=0.005)
    panel.set(share="mfu")
    shares = {(row["method"], row["devices"]): row["share"] for row in panel.rows["published"]}
    for row in known.table_rows(6144):
        most = 0.002 if row["method"] == known.MEGATRON else 0.009
        assert shares[row["method"], row["n_gpus"]] == pytest.approx(row["mfu_pct"] / 100, abs=most)


@pytest.mark.parametrize("name", known.CURVES)
def test_every_curve_begins_at_one_and_stays_below(panels, name):
    panel = begin(panels, "curves").set(run=name)
    assert panel.error is None
    shares = [row["share"] for row in panel.rows["ours"]]
    assert shares[0] == 1 and all(a > b for a, b in pairwise(shares))


# --- what bends the curve -----------------------------------------------------------------------------------


def total(panel, devices):
    return sum(row["share"] for row in panel.rows["spent"] if row["devices"] == devices)


def share(panel, part, devices):
    return next(r["share"] for r in panel.rows["spent"] if (r["part"], r["devices"]) == (part, devices))


def keeps(panel, line, devices):
    return next(r["share"] for r in panel.rows["efficiency"] if (r["line"], r["devices"]) == (line, devices))


def test_parts_of_the_time_are_all_of_it(panels):
    panel = begin(panels, "bends")
    for devices in chapter10.DEVICES:
        assert total(panel, devices) == pytest.approx(1)


def test_failures_cost_what_the_renewal_model_says(panels):
    panel = begin(panels, "bends")
    values = panel.values
    failures = chapter10._failures(values["mtbf"], 12288, values["stall"])
    lost = sum(share(panel, part, 12288) for part in ("checkpoints", "work lost", "downtime"))
    assert 1 - lost == pytest.approx(effective_rate(60 * values["minutes"], failures))
    panel.set(mtbf=math.inf)
    assert share(panel, "downtime", 12288) == 0
    assert keeps(panel, "with failures", 12288) == pytest.approx(keeps(panel, "steps alone", 12288))


def test_what_the_questions_lead_to(panels):
    """Said in the chapter: each question has the answer that it hints at."""
    panel = begin(panels, "bends")
    usual = {name: share(panel, name, 12288) for name in charts.SPENT}
    panel.set(batch=1536)
    grown = {name: share(panel, name, 12288) - usual[name] for name in charts.SPENT}
    assert set(sorted(grown, key=grown.get)[-2:]) == {"bubble", "data-parallel traffic"}
    panel.set(batch=6144, weak=True)
    assert keeps(panel, "steps alone", 12288) > 0.95
    panel.set(weak=False, network=0.25)
    slow = keeps(panel, "steps alone", 12288)
    assert panel.set(batch=12288).error is None and keeps(panel, "steps alone", 12288) > slow
    begin(panels, "bends").set(jitter=5.0)
    normal = {n: share(panel, "waiting for the slowest", n) for n in (256, 12288)}
    panel.set(jitter=0.5, spread="pareto")
    heavy = {n: share(panel, "waiting for the slowest", n) for n in (256, 12288)}
    assert heavy[256] < normal[256] and heavy[256] < 0.05 < heavy[12288]


def test_a_batch_that_is_too_small_ends_the_curve(panels):
    panel = begin(panels, "bends").set(batch=768)
    assert max(row["devices"] for row in panel.rows["spent"]) == 6144 and "too few" in panel.text
    assert isinstance(panel.set(weak=True).error, InputError)


# --- a whole run --------------------------------------------------------------------------------------------


def test_hours_of_a_run_sum_to_its_title(panels):
    panel = begin(panels, "run")
    assert panel.titles[1].startswith(f"{sum(row['hours'] for row in panel.rows['hours']):.2f} M")
    panel.set(mtbf=math.inf)
    assert panel.titles[0].startswith("It never fails") and panel.rows["rates"] == []


def test_the_best_interval_is_the_top_of_the_curve(panels):
    panel = begin(panels, "run").set(run="Llama-3.1-405B", minutes=60)
    marks = {row["text"]: row for row in panel.rows["marks"]}
    assert (
        marks["best"]["rate"] >= max(r["rate"] for r in panel.rows["rates"] if r["formula"] == "exact") - 1e-9
    )
    assert marks["yours"]["minutes"] == 60


def test_twice_the_devices_take_more_than_half_the_days(panels):
    """Said in the chapter."""
    once, twice = (chapter10._whole("DeepSeek-V3", x, 50.677, 30, 30)[0] for x in (1.0, 2.0))
    assert 0.5 * once.days < twice.days < once.days and twice.device_hours > once.device_hours


# --- said in the chapter ------------------------------------------------------------------------------------


def cells(table, *columns):
    places = [table.header.index(name) for name in columns]
    return [tuple(row[place] for place in places) for row in table.rows]


def test_four_cells_of_megascales_table_contradict_their_rows():
    table = known.megascale_table()
    odd = {row[:2] for row in table.rows if row[-1]}
    assert odd == {
        ("Megatron-LM", "256"),
        ("Megatron-LM", "512"),
        ("Megatron-LM", "1,024"),
        ("MegaScale", "12,288"),
    }
    for row in known.table_rows():
        points = columns(row, known.gpt_175b().model).mfu_points
        assert abs(points) <= (0.1 if row["method"] == known.MEGATRON else 0.8)
    at = {(row["method"], row["n_gpus"]): row for row in known.table_rows()}
    ends = at[known.MEGASCALE, 12288], at[known.MEGATRON, 12288]
    assert ends[0]["mfu_pct"] / ends[1]["mfu_pct"] == pytest.approx(1.34, abs=0.005)
    assert ends[0]["tokens_per_s_k"] / ends[1]["tokens_per_s_k"] == pytest.approx(1.35, abs=0.005)


def test_errors_fall_as_devices_become_many():
    errors = [float(cell.rstrip("%")) for (cell,) in cells(known.megascale_table(), "error") if cell]
    for curve in (errors[:4], errors[4:]):
        assert curve[0] - curve[-1] > 4 and min(curve) == curve[-1]
    assert max(map(abs, errors)) < 12


def test_megatron_loses_about_twice_what_ours_does():
    kept = chapter10._ends("GPT 175B, batch 6,144")
    assert kept[known.MEGATRON] == pytest.approx(0.846, abs=0.001)
    assert 1.6 < (1 - kept[known.MEGATRON]) / (1 - kept[charts.OURS]) < 2.5
    assert kept[known.MEGASCALE] > 0.92


def test_weak_scaling_hardly_bends():
    for row in known.weak_table().rows:
        assert all(float(cell.rstrip("%")) >= 97.9 for cell in row[2::2] if cell.endswith("%"))


def test_normal_jitter_adds_less_than_two_deviations_from_64_to_12288():
    rows = {row[0]: row[1:] for row in known.slowest_table().rows}
    assert (
        float(rows["12,288"][0]) - float(rows["64"][0])
        < 2
        < 20
        < float(rows["12,288"][2]) - float(rows["64"][2])
    )


def test_hours_of_whole_runs():
    (deepseek, llama) = known.whole_runs().rows
    assert deepseek[6] == "100.1%" and 1 / float(llama[6].rstrip("%")) * 100 == pytest.approx(1.125, abs=0.01)
    for row in (deepseek, llama):
        assert 80 < float(row[7].rstrip("%")) < 100


def test_no_interval_reaches_ninety_per_cent_on_16384_devices():
    rows = known.checkpoint_table().rows
    useful = [float(row[6].rstrip("%")) for row in rows if row[0] == "16,384"]
    assert max(useful) < 90 and all("3.1 h" in row[1] for row in rows if row[0] == "16,384")
    assert known.llama_mtbf_s() / 3600 == pytest.approx(54 * 24 * 16384 / 419)


def test_telechats_speeds_are_said_as_they_came_out():
    rows = known.telechat_speeds().rows
    ratio = {(row[0], row[2]): float(row[5]) for row in rows}
    near = [key for key, value in ratio.items() if abs(value - 1) <= 0.2]
    assert near == [("TeleChat3-36B", "8,192")]
    assert all(value < 1 for (name, _), value in ratio.items() if "105B" in name)
    for seq_len, share in ((4096, 37), (32768, 49)):
        found = estimate(known.telechat_job("TeleChat3-105B-A4.7B", seq_len))
        assert round(100 * found.breakdown_s["bubble"] / found.step_time_s) == share
    assert "37 % to be bubble at 4,096 tokens and 49 % at 32,768" in chapter()


def chapter():
    """Return the prose of the chapter in one line."""
    cells = json.loads((catalog.notebooks() / "10_results_and_scaling.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    return " ".join(" ".join("".join(c["source"]).split()) for c in cells if c["cell_type"] == "markdown")


def test_mt_nlg_is_a_third_longer_than_ours():
    longer = [run.measured_step_s / estimate(run.job).step_time_s for run in published_runs("mt-nlg")]
    said = f"about a third longer than ours ({min(longer):.2f} to {max(longer):.2f} times)"
    assert said in chapter() and min(longer) < 4 / 3 < max(longer)
    steps = [row for row in known.scoreboard()["rows"] if row["kind"] == "step_time" and row["verified"]]
    assert len(steps) > 600 and len({row["group"] for row in steps}) == 20
    assert (min(row["devices"] for row in steps), max(row["devices"] for row in steps)) == (2, 16384)


def test_from_ninety_minutes_on_doubling_6144_devices_adds_nothing():
    """The question of the third panel, with a device that fails every 10,000 h: at 30 minutes they add a third."""
    values = chapter10.bends_explorer().values | {"mtbf": 10.0}
    gains = {}
    for minutes in chapter10.MINUTES:
        shares = {
            row["devices"]: row["share"]
            for row in chapter10._bends(**values | {"minutes": minutes})["efficiency"]
            if row["line"] == "with failures"
        }
        gains[minutes] = 2 * shares[12288] / shares[6144] - 1
    assert gains[30] == pytest.approx(1 / 3, abs=0.01)
    assert min(m for m, gain in gains.items() if m >= 30 and gain <= 0) == 90
    assert "At *save* 30 min, what do the second 6,144 devices add?" in chapter()


def test_what_is_said_of_choosing_is_the_scoreboards():
    board, text = known.scoreboard(), chapter()
    first = board["planning"][0]
    assert first["spearman"] < 0.9 and first["regret"] > 0.03 and len(first["odd"]) == 2
    assert (
        all(share in " ".join(first["odd"]) for share in ("9.4%", "3.1%")) and "(by 9.4 % and 3.1 %)" in text
    )
    assert "10 to 19 % slower than ours" in text  # tests/validation/test_scoreboard.py
    assert board["planning"][-1]["regret"] == 0 and board["planning"][-1]["plans"] == 5
    errors = [abs(row["error"]) for row in board["expert_slopes"]]
    assert f"{sum(error <= 0.02 for error in errors)} of {len(errors)} pairs are within 2 %" in text
    gap = {row["schedule"]: row for row in board["closed_form"]}["interleaved-1f1b"]
    assert f"{-gap['mean']:.1%} lower on average and {-gap['least']:.1%} at worst" in text.replace(" %", "%")
    table = {row[0]: row[2:] for row in known.gap_table().rows}
    assert table["gpipe"] == table["1f1b"] == ("+0.0%",) * 3
