"""Charts of models' sizes: their rows say what the count says, and every name they draw has its colour."""

import math

import pytest
import vl_convert

from telekit.model.count import count
from telekit.ui import sizes, style
from telekit.ui.live import Still, table_names

NAMES = ("deepseek-v3", "telechat3-36b", "qwen3-0.6b", "gpt-oss-120b")


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_add_up_to_the_count(name):
    counted, parts = count(name), sizes.parts_of(count(name))
    assert sum(stored for stored, _ in parts.values()) == counted.total
    assert sum(met for _, met in parts.values()) == counted.active
    assert list(parts) == list(style.COMPONENTS)


def test_a_token_meets_top_k_of_the_experts_and_all_of_the_rest():
    parts = sizes.parts_of(count("deepseek-v3"))
    for part, (stored, met) in parts.items():
        assert met == (stored * 8 // 256 if part == "routed experts" else stored), part


def test_only_what_changed_has_a_tick_where_it_was():
    was, now = count("llama-3.1-8b"), count("llama-3.1-70b")
    assert sizes.part_rows(was, was)["before"] == []
    ticks = {row["part"]: row["stored"] for row in sizes.part_rows(now, was)["before"]}
    assert ticks == pytest.approx(
        {part: stored / 1e9 for part, (stored, _) in sizes.parts_of(was).items() if stored}
    )
    for row in sizes.part_rows(was, now)["parts"]:  # the text stands clear of the longer of the two
        assert row["stored_end"] == sizes.parts_of(now)[row["part"]][0] / 1e9


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "0%"), (0.001, "<1%"), (0.5, "50%"), (0.999, ">99%"), (1.0, "100%"), (0.0149, "1%")],
)
def test_a_share_is_never_rounded_to_nothing_or_to_all(part, text):
    assert sizes.share(part) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(1.0261e12, "1,026 B"), (671.03e9, "671 B"), (4.676e9, "4.68 B"), (266e3, "0.266 M"), (99e6, "99 M")],
)
def test_billions_are_written_with_three_figures(size, text):
    assert sizes.billions(size) == text


def test_guides_lie_on_their_lines_and_inside_the_picture():
    points = [{"x": 2.0, "y": 3.0}, {"x": 500.0, "y": 40.0}]
    rows = sizes.guide_rows(points, {"1 in 10": (0.1, 1), "falling": (100.0, -1), "far away": (1e6, 1)})
    assert {row["guide"] for row in rows} == {"1 in 10", "falling"}
    for row in rows:
        c, power = {"1 in 10": (0.1, 1), "falling": (100.0, -1)}[row["guide"]]
        assert row["y"] == pytest.approx(c * row["x"] ** power)
        assert 2 <= row["x"] <= 500 and 3 * 0.999 <= row["y"] <= 40 * 1.001
    assert [row["end"] for row in rows] == [False, True, False, True]
    assert sizes.guide_rows([], {"1 in 10": (0.1, 1)}) == []


def test_no_name_covers_another():
    points = [{"model": f"model-{i}", "x": 10 + i % 3, "y": 10 + i // 3} for i in range(12)]
    points += [{"model": "far", "x": 1000, "y": 1000}]
    rows = sizes.named_rows(points, points)
    boxes = []
    for row in (row for row in rows if row["place"]):
        left = sizes.MARGIN + math.log(row["x"] / 10) / math.log(100) * (sizes.WIDTH - 2 * sizes.MARGIN)
        up = sizes.MARGIN + math.log(row["y"] / 10) / math.log(100) * (sizes.HEIGHT - 2 * sizes.MARGIN)
        boxes.append((left, left + 7 * len(row["model"]), sizes.HEIGHT - up + sizes.PLACES[row["place"]]))
    assert 1 < len(boxes) < len(rows) and rows[0]["place"] and rows[-1]["place"]
    for i, (left, right, y) in enumerate(boxes):
        for a, b, other in boxes[i + 1 :]:
            assert right < a or b < left or abs(y - other) >= 12 - 1e-9
    assert sizes.named_rows(points, []) == [] and sizes.named_rows(points[:1], points[:1])[0]["place"]


POINT = {"model": "m", "kind": "sparse", "x": 2.0, "y": 3.0, "text": "t", "ring": True}
TABLES = {
    "apart": (
        sizes.parts("stored", "stored [B]"),
        sizes.part_rows(count("mixtral-8x7b"), count("llama-3.1-8b")),
    ),
    "side by side": (
        sizes.side_by_side(),
        {
            "models": [POINT],
            "named": [POINT | {"place": "above"}],
            "guides": [{"guide": "g", "x": 2.0, "y": 3.0, "end": True}],
            "axes": [{"x_title": "x", "y_title": "y"}],
        },
    ),
    "6 N": (
        sizes.against_six_n(),
        {
            "ratio": [{"tokens": n, "ratio": n / 512, "size": next(iter(style.SIZES))} for n in (512, 1024)],
            "here": [
                {"tokens": 512, "ratio": 1.0, "size": next(iter(style.SIZES)), "text": "1", "place": "above"}
            ],
        },
    ),
    "errors": (sizes.error_bands(), {"errors": [{"band": "within 1 %", "models": 3, "text": "3"}]}),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_chart_draws_and_reads_only_columns_it_is_given(name):
    chart, tables = TABLES[name]
    still = Still(chart, tables, "title")
    assert "<path" in vl_convert.vegalite_to_svg(still.spec)
    assert set(table_names(still.spec)) == set(tables)
    columns = {column for table in tables.values() for row in table for column in row}
    assert set(fields(still.spec)) <= columns
    assert still.spec["description"]


def fields(spec):
    """Fields that the encodings of a specification read."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key == "field" and isinstance(value, str):
                yield value
            elif key != "datasets":
                yield from fields(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from fields(value)
