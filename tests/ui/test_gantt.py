"""Timelines: drawn as they are when few, aggregated without losing time when many."""

import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.ui import exports, style
from telekit.ui.gantt import gantt, gantt_rows
from telekit.ui.live import LiveChart, Still


def one_forward_one_backward(stages: int, micro_batches: int):
    """Operations of a pipeline with split backward, packed tightly on each device."""
    rows = []
    for stage in range(stages):
        warm, done, now = min(stages - stage, micro_batches), 0, float(stage)
        passes = ["forward"] * warm
        while done < micro_batches:
            passes += ["backward", "weight gradient"] + ["forward"] * (warm + done < micro_batches)
            done += 1
        for kind in passes:
            rows.append((stage, kind, now, now + 1.0))
            now += 1.0
    return [np.array(column) for column in zip(*rows, strict=True)]


def busy(lane, kind, start, end, share=None):
    total = defaultdict(float)
    for i, k, a, b, part in zip(
        lane, kind, start, end, share if share is not None else np.ones(len(lane)), strict=True
    ):
        total[int(i), str(k)] += (b - a) * part
    return dict(total)


def busy_of(table):
    return busy(*([row[c] for row in table] for c in ("lane", "kind", "start", "end", "share")))


def test_NB02_a_timeline_of_12288_operations_draws_and_stays_small(tmp_path):  # noqa: N802
    operations = one_forward_one_backward(16, 256)
    assert len(operations[0]) == 12_288
    rows = gantt_rows(*operations)
    assert len(rows["gantt"]) <= 1500
    assert busy_of(rows["gantt"]) == pytest.approx(busy(*operations), rel=2e-3)
    still = Still(gantt(), rows)
    assert len(json.dumps(still._repr_mimebundle_())) < 300_000
    assert exports.save(still, tmp_path / "gantt.svg").read_text().count("<path") > 1000
    assert LiveChart(gantt(), rows).datasets == rows


def test_warm_up_and_cool_down_stay_visible_after_aggregation():
    table = gantt_rows(*one_forward_one_backward(16, 256))["gantt"]
    first = next(row for row in table if row["lane"] == 0)
    assert first["kind"] == "forward" and first["share"] == 1.0
    middle = [row for row in table if row["lane"] == 0 and row["start"] < 400 < row["end"]]
    assert sorted(row["kind"] for row in middle) == ["backward", "forward", "weight gradient"]
    assert [row["share"] for row in middle] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_few_operations_are_drawn_as_they_are():
    operations = one_forward_one_backward(4, 8)
    table = gantt_rows(*operations)["gantt"]
    assert [(r["lane"], r["kind"], r["start"], r["end"]) for r in table] == list(
        zip(*operations, strict=True)
    )
    assert all(row["share"] == 1.0 and row["bottom"] - row["top"] == pytest.approx(0.84) for row in table)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["forward", "backward"]), st.floats(0, 2), st.floats(0.01, 2)
        ),
        min_size=50,
        max_size=120,
    ),
    st.integers(1, 49),
)
def test_no_time_is_lost_and_no_lane_overflows(steps, max_marks):
    now, operations = defaultdict(float), []
    for lane, kind, gap, length in steps:
        begin = now[lane] + gap
        now[lane] = begin + length
        operations.append((lane, kind, begin, now[lane]))
    columns = [np.array(c) for c in zip(*operations, strict=True)]
    table = gantt_rows(*columns, max_marks=max_marks)["gantt"]
    assert len(table) <= max(max_marks, 8)  # one mark a lane and kind is the least that shows all
    kept, whole = busy_of(table), busy(*columns)
    assert kept == pytest.approx(whole, rel=0.02, abs=1e-3 * columns[3].max())
    for lane in range(4):
        spans = [(r["top"], r["bottom"]) for r in table if r["lane"] == lane]
        assert all(lane - 0.421 <= top <= bottom <= lane + 0.421 for top, bottom in spans)


def test_a_kind_without_a_colour_is_refused():
    with pytest.raises(InputError, match=r"forwards.*has no colour.*forward, backward"):
        gantt_rows([0], ["forwards"], [0.0], [1.0])


def test_numbers_on_pale_blocks_are_in_the_pages_own_ink():
    """WCAG contrast of at least 3.2 on every block of a chart of 8 chunks, on a light page and on a dark one."""

    def light(colour):
        c = np.asarray(colour) / 255
        return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    def rgb(text):
        return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)

    for page, ink in (("#ffffff", "light"), ("#111111", "dark")):
        own = style.config(ink)["style"]["ink"]["color"]
        for kind in ("forward", "backward", "weight gradient"):
            for shade in 1 - 0.35 * np.arange(8) / 7:
                weak = shade < (0.78 if kind == "forward" else 0.95)
                mixed = shade * rgb(style.PASSES[kind]) + (1 - shade) * rgb(page)
                a, b = sorted((light(mixed), light(rgb(own if weak else "#ffffff"))))
                assert (b + 0.05) / (a + 0.05) >= 3.2, (page, kind, shade)
    texts = [layer for layer in gantt().to_dict()["layer"] if layer["mark"]["type"] == "text"]
    assert [t["mark"].get("style") or t["mark"]["color"] for t in texts] == ["white", "#24292f", "ink"]
    assert "datum.kind == 'forward' ? 0.78 : 0.95" in texts[2]["transform"][0]["filter"]
