"""Panels of chapter 9 without a browser, and what the chapter says."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from chart_checks import assert_draws

from telekit.cluster.variability import expected_largest
from telekit.cost.estimate import estimate
from telekit.diagnose.analysis.breakdown import CATEGORIES
from telekit.diagnose.faults import FAULT_KINDS, HEALTHY
from telekit.diagnose.rules.finding import KINDS
from telekit.ui import cluster_charts as charts
from telekit.ui import known_cluster as known
from telekit.ui import rank_charts
from telekit.ui.panels import chapter09, chapter09_ranks

MAKERS = {
    "bound": chapter09.bound_explorer,
    "idle": chapter09.idle_explorer,
    "slowest": chapter09.slowest_explorer,
    "ranks": chapter09_ranks.ranks_explorer,
    "confusion": chapter09_ranks.confusion_explorer,
}


@pytest.fixture(scope="module")
def panels():
    return {name: make() for name, make in MAKERS.items()}


def begin(panels, name, **values):
    return panels[name].set(**(MAKERS[name]().values | values))


@pytest.mark.parametrize("name", MAKERS)
def test_charts_read_only_columns_that_their_rows_have(panels, name):
    panel = begin(panels, name)
    for view, chart in zip(panel.views, panel._charts, strict=True):
        assert_draws(chart, view.datasets)


# --- host-bound and device-bound ----------------------------------------------------------------------------


@pytest.mark.parametrize("launch", chapter09.LAUNCHES_US)
def test_the_step_is_the_slower_side(panels, launch):
    panel = begin(panels, "bound", launch=launch)
    wanted_us = launch + (chapter09.OPERATORS - 1) * max(launch, 20) + 20
    assert panel.rows["now"][0]["step"] == pytest.approx(wanted_us / 1e3)
    said = panel.titles[1]
    assert said.startswith("Just at the knee" if launch == 20 else "Host" if launch > 20 else "Device")


def test_kernels_of_a_layer_have_the_mean_that_the_slider_says():
    for lengths in chapter09.LENGTHS.values():
        assert np.mean(lengths) == pytest.approx(1.0) and chapter09.OPERATORS % len(lengths) == 0


def test_a_queue_evens_long_and_short_kernels_out(panels):
    uneven = {"lengths": chapter09.LAYER, "launch": 18}
    steps = {d: begin(panels, "bound", **uneven, depth=d).rows["now"][0]["step"] for d in chapter09.DEPTHS}
    assert steps[1024] == pytest.approx(16.0, rel=0.01)  # 800 kernels of 20 µs
    assert steps[1] > 1.3 * steps[1024]
    assert all(steps[a] >= steps[b] - 1e-9 for a, b in pairwise(chapter09.DEPTHS))
    assert "No sharp knee" in begin(panels, "bound", **uneven, depth=1).titles[1]


@pytest.mark.parametrize("launch", [10, 50])
def test_lanes_have_no_gap_and_a_line_for_each_launch(panels, launch):
    panel = begin(panels, "bound", launch=launch)
    for lane in ("host", "device"):
        rows = sorted((r["start"], r["end"], r["what"]) for r in panel.rows["lanes"] if r["lane"] == lane)
        assert rows[0][0] == 0 and rows[-1][1] == pytest.approx(1e6 * charts.SHOWN_S)
        assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(rows))
    for i, link in enumerate(panel.rows["links"]):
        assert link["from"] == pytest.approx((i + 1) * launch)
        assert link["to"] == pytest.approx(launch + i * max(launch, 20))


# --- idle mode ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", chapter09.WORKS_MS)
@pytest.mark.parametrize("window", [0.5, 3.0])
def test_the_jump_is_the_chapters_formula(panels, work, window):
    panel = begin(panels, "idle", idle=400, work=work, window=window)
    wanted = min(0.6 * work, (1 - 1 / 1.6) * window)
    assert panel.rows["here"][0]["ms"] == pytest.approx(0.4 + work + wanted)
    assert f"costs {1e3 * wanted:,.0f} µs" in panel.titles[0]
    below = panel.set(idle=300)  # at it, not over it
    assert below.rows["here"][0]["ms"] == pytest.approx(0.3 + work)


def test_the_two_lanes_of_time_are_those_of_the_curve(panels):
    panel = begin(panels, "idle", idle=500)
    ends = {lane: max(r["end"] for r in panel.rows["clock"] if r["lane"] == lane) for lane in charts.MODES}
    assert ends[charts.HELD] == pytest.approx(4 * 5.5)
    assert ends[charts.LOWERED] == pytest.approx(4 * panel.rows["here"][0]["ms"])


# --- the slowest of many ------------------------------------------------------------------------------------


def test_jitter_of_independent_devices_is_the_order_statistic(panels):
    rows = {(r["line"], r["devices"]): r["loss"] for r in begin(panels, "slowest").rows["jitter"]}
    assert rows["normal", 4096] == pytest.approx(0.005 * 3.63, rel=2e-3)
    for shape, spread in chapter09.SHAPES.items():
        for n in chapter09.DEVICES:
            assert rows[shape, n] == pytest.approx(0.005 * expected_largest(n, spread))


def test_devices_that_share_their_hosts_luck_are_fewer(panels):
    alone = begin(panels, "slowest").rows["jitter"]
    shared = begin(panels, "slowest", share=1.0).rows["jitter"]
    assert {r["devices"]: r["loss"] for r in shared if r["line"] == "normal"}[8] == 0  # one host: one draw
    assert all(a["loss"] > b["loss"] for a, b in zip(alone, shared, strict=True))


def test_bursts_cost_what_random_phases_do(panels):
    rows = begin(panels, "slowest").rows["bursts"]
    chance = np.random.default_rng(0)
    for row in rows:
        hosts = row["devices"] // chapter09.PER_NODE
        phase = chance.uniform(0, 15, (4000, 1 if row["line"] == "all at once" else hosts))
        assert row["loss"] == pytest.approx((phase < 2).any(1).mean() * 0.05 / 2, abs=7e-4)


# --- ranks beside each other --------------------------------------------------------------------------------


def test_every_ranks_step_is_covered_from_end_to_end(panels):
    panel = begin(panels, "ranks", clocks=chapter09_ranks.ALIGNED)
    _, found = chapter09_ranks._diagnosed("slow-device", 3)
    for rank in range(chapter09_ranks.RANKS):
        rows = [r for r in panel.rows["ranks"] if r["rank"] == rank]
        assert all(a["end"] == b["start"] and a["what"] != b["what"] for a, b in pairwise(rows))
        wall = float(found.run.wall_s[rank, 2])
        assert rows[-1]["end"] - rows[0]["start"] == pytest.approx(1e3 * wall, rel=1e-3)


def test_stacked_bars_are_the_mean_step(panels):
    panel = begin(panels, "ranks")
    _, found = chapter09_ranks._diagnosed("slow-device", 3)
    for i, rank in enumerate(found.run.ranks):
        total = sum(r["ms"] for r in panel.rows["spent"] if r["rank"] == rank)
        assert total == pytest.approx(1e3 * found.run.wall_s[i].mean())
    assert sorted(c for names in rank_charts.SPENT.values() for c in names) == sorted(CATEGORIES)


@pytest.mark.parametrize("fault", ["slow-device", "slow-launch", "slow-data", "memory-stalls"])
def test_the_straggler_is_the_one_that_does_not_wait(panels, fault):
    panel = begin(panels, "ranks", fault=fault)
    (rank,) = chapter09_ranks._diagnosed(fault, 3)[0].ranks
    assert panel.titles[1].startswith(f"Rank {rank} waits least")
    assert panel.rows["named"] == [{"rank": rank}]
    assert f"rank {rank}" in panel.text and KINDS[FAULT_KINDS[fault].finding] == FAULT_KINDS[fault].cause


def test_said_in_the_chapter_of_the_critical_path(panels):
    told = {f: begin(panels, "ranks", fault=f).text.rsplit("critical path of rank", 1)[1] for f in
            ("slow-device", "slow-launch-everywhere", "garbage-collection")}  # fmt: skip
    assert told["slow-device"].startswith(" 2, step 2 (34.7 ms): kernel 57%")
    assert "host 33%, launch 32%" in told["slow-launch-everywhere"], "two thirds"
    assert "): idle 63%" in told["garbage-collection"]


def test_clocks_part_and_meet(panels):
    def ends(panel):
        last = {r["rank"]: r["end"] for r in panel.rows["ranks"]}
        return max(last.values()) - min(last.values())

    raw = begin(panels, "ranks")
    assert ends(raw) > 10 and "ms apart" in raw.titles[0]
    aligned = raw.set(clocks=chapter09_ranks.ALIGNED)
    assert ends(aligned) < 0.5


def test_a_clock_that_is_set_is_said_and_is_no_fault(panels):
    panel = begin(panels, "ranks", fault="clock-jump")
    assert "Verdict:</b> healthy" in panel.text and "was set by" in panel.text and panel.rows["named"] == []


@pytest.mark.parametrize("fault", chapter09_ranks.FAULTS)
def test_the_panels_own_runs_are_diagnosed_rightly(fault):
    _, found = chapter09_ranks._diagnosed(fault, 3)
    assert found.verdict == chapter09_ranks.right_answer(fault)


# --- planted and found --------------------------------------------------------------------------------------


def test_the_matrix_holds_every_run_once(panels):
    record = chapter09_ranks.injected()
    cells = begin(panels, "confusion").rows["confusion"]
    assert sum(c["runs"] for c in cells) == sum(r["runs"] for r in record["rows"])
    for row in record["rows"]:
        assert 0 <= row["right_rank"] <= row["runs"]
        assert row["planted"] in (*FAULT_KINDS, HEALTHY) and row["answered"] in (*KINDS, HEALTHY)
    assert len({(r["planted"], r["answered"]) for r in record["rows"]}) == len(record["rows"])


def test_right_and_wrong_answers_are_counted_apart(panels):
    wrong = begin(panels, "confusion", show=chapter09_ranks.MISTAKES).rows["confusion"]
    faulty, right, ranks, healthy, alarms = chapter09_ranks.counts()
    assert sum(c["runs"] for c in wrong) == faulty - right + alarms
    assert ranks <= right <= faulty
    cells = begin(panels, "confusion").rows["confusion"]
    assert (
        sum(c["runs"] for c in cells if c["answered"] == HEALTHY and c["judged"] == "right")
        == healthy - alarms
    )


def test_right_answers_are_the_findings_that_the_chapter_names():
    right = chapter09_ranks.right_answer
    assert right("slow-node") == right("slow-device") == "slow device"
    assert right("monitoring") == right("garbage-collection") == "pause"
    assert right("clock-jump") == right(HEALTHY) == "healthy"


# --- said in the chapter ------------------------------------------------------------------------------------


def test_throughput_and_step_of_the_report():
    assert [round(100 * (1 - 1 / x)) for x in (1.25, 1.3)] == [20, 23]


def test_the_knee_of_telechat3():
    job = known.case(256)

    def step(launch_us):
        return estimate(known.with_kernels(job, {"host_launch_s": launch_us * 1e-6}))

    usual = step(20).step_time_s
    assert step(30).step_time_s == usual and step(40).step_time_s > 1.05 * usual
    assert 4 / 3 < step(60).step_time_s / usual < 1.4
    assert job.cluster.devices == 256 and known.case(4096).cluster.devices == 4096


def test_the_monitor_costs_seven_and_a_half_times_its_share():
    many, one = (1 - (1 - 2 / 15) ** 512) * 0.05 / 2, 0.05 / 15
    assert many / one == pytest.approx(7.5)
    assert round(100 * 0.05 / 15, 2) == 0.33 and round(100 * 2 / 15) == 13


def test_the_reports_three_causes_add_to_19_percent():
    longer = {row[0]: float(row[1].rstrip("%")) for row in known.causes_table().rows}
    three = [
        next(x for name, x in longer.items() if name.startswith(c))
        for c in ("idle mode", "busy hosts", "monitor")
    ]
    assert round(sum(three)) == 19
    at_60 = next(row for row in known.launches_table().rows if row[0] == "60 µs")
    assert float(at_60[3].rstrip("%")) > 30


def test_where_a_step_that_waits_for_its_host_grows():
    """On 256, from 20 to 100 us a launch: the parts' growth is the step's, and as the text says."""
    job, parts, steps = known.case(256), [], []
    for launch in (20e-6, 100e-6):
        found = known.estimate(known.with_kernels(job, {"host_launch_s": launch}))
        parts.append(found.breakdown_s)
        steps.append(found.step_time_s)
    grown = {name: parts[1][name] - parts[0][name] for name in parts[1]}
    assert sum(grown.values()) == pytest.approx(steps[1] - steps[0])
    assert steps[1] - steps[0] == pytest.approx(2.0, abs=0.05)
    said = {"host": 0.8, "recompute": 0.3, "bubble": 0.9, "dp_comm": -0.1}
    assert {name: round(grown[name], 1) for name in said} == said


def test_the_questions_launches_are_on_the_slider():
    assert {10, 15, 19, 21, 30} <= set(chapter09.LAUNCHES_US)
    steps = [chapter09._step_ms(x, 20, chapter09.ALIKE, 1024) for x in (10, 15, 19, 21, 30)]
    assert [round(s / steps[0], 2) for s in steps] == [1, 1, 1, 1.05, 1.5]


def test_the_idle_modes_table_holds_what_the_text_says():
    for planted, factor, slow, slow_found, *_ in known.idle_table().rows:
        assert float(factor) == pytest.approx(float(planted), rel=0.02)
        assert float(slow_found.split()[0]) == pytest.approx(float(slow.split()[0]), rel=0.1)


def test_recorded_traces_are_whole():
    for path in known.recorded_files():
        found = known.recorded(path.name)
        document = json.loads(gzip.decompress(path.read_bytes()))
        steps = [e for e in document["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep#")]
        wall = sum(e["dur"] for e in steps if e.get("ph") == "X") / 1e6
        (broken,) = found.run.breakdowns
        total = sum(broken.total_s().values())
        assert total == pytest.approx(float(broken.wall_s.sum()), rel=1e-9)
        assert total == pytest.approx(wall, rel=0.1)  # steps touch; their marks do not quite


def test_waiting_shows_only_where_both_ranks_are_read():
    rows = {row[0]: row for row in known.recorded_table().rows}
    alone, both = rows["ddp_rank0"], rows["ddp_rank0, both read"]
    assert (alone[4], alone[5]) == ("10.89", "0.00") and (both[4], both[5]) == ("3.11", "7.78")
    assert rows["ddp_rank1, both read"][4] == "3.11"
    pair = known.recorded(*(p.name for p in known.recorded_files() if "_ddp_" in p.name))
    assert pair.healthy and any(note.startswith("two ranks") for note in pair.notes)


def test_measured_values_are_near_the_planted_ones():
    found = known.measured()
    assert found.jitter.deviation == pytest.approx(0.02, rel=0.25) and found.jitter.spread == "exponential"
    assert found.host.host_launch_s / 45e-6 == pytest.approx(1.17, abs=0.005)
    cluster, _ = known.fitted()
    kernels, catalogued = cluster.device.kernels, known.case(256).cluster.device.kernels
    assert (kernels.jitter, kernels.host_launch_s) == (found.jitter.deviation, found.host.host_launch_s)
    assert kernels.launch_s == catalogued.launch_s
    both = estimate(replace(known.case(256), cluster=cluster)).step_time_s
    assert f"{both:.2f} s" in next(row for row in known.estimated_table().rows if row[1] == "measured: both")


def test_the_measured_shape_costs_more_than_a_normal_one():
    for row in known.shape_table().rows:
        normal, shape = (float(cell.rstrip("%")) for cell in row[1:])
        assert shape > 1.4 * normal
