"""Charts of models' sizes: their rows say what the count says, and every name they draw has its colour."""

import math

import pytest
from chart_checks import assert_draws

from telekit.model.count import count
from telekit.ui import sizes, style

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
    [
        (1.0261e12, "1,026 B"), (671.03e9, "671 B"), (4.676e9, "4.68 B"), (266e3, "0.266 M"), (99e6, "99 M"),
        (9.9994e12, "9,999 B"), (9.9996e12, "10 T"), (314.514e12, "315 T"), (999.6e9, "1,000 B"),
    ],
)  # fmt: skip
def test_billions_are_written_with_three_figures(size, text):
    assert sizes.billions(size) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1, "1.00"), (1.9712, "1.97"), (53.71, "53.7"), (3075.74, "3,076"), (9.996, "10"), (0.00412, "0.00412")],
)
def test_a_ratio_keeps_few_figures_and_no_exponent(ratio, text):
    assert sizes.times(ratio) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5.03e15, 5.66e15, "5.03 to 5.66 PB"), (10.7364e12, 12.0785e12, "10.7 to 12.1 TB"),
        (0.9e12, 1.01e12, "0.9 to 1.01 TB"), (9.54e9, 10.7e9, "9.54 to 10.7 GB"), (16e6, 18e6, "16 to 18 MB"),
        (2e18, 2.2e21, "2 to 2,200 EB"),
    ],
)  # fmt: skip
def test_bytes_of_states_take_a_prefix_that_fits(low, high, text):
    assert sizes.byte_range(low, high) == text


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (5.6, "5.6 days"), (105.2, "105 days"), (999.6, "2.74 years"), (3.8e6, "10,404 years"), (0.5, "12.0 hours"),
        (1 / 96, "15 minutes"), (1e-5, "under a minute"), (1, "1.0 days"),
    ],
)  # fmt: skip
def test_a_run_takes_years_days_hours_or_minutes(days, text):
    assert sizes.duration(days * 86400) == text


def test_guides_lie_on_their_lines_and_inside_the_picture():
    points = [{"x": 2.0, "y": 3.0}, {"x": 500.0, "y": 40.0}]
    guides = {"1 in 10": (0.1, 1), "falling": (100.0, -1), "far away": (1e6, 1)}
    rows = sizes.guide_rows(sizes.Room(points), points, guides)
    assert {row["guide"] for row in rows} == {"1 in 10", "falling"}
    for row in rows:
        c, power = guides[row["guide"]]
        assert row["y"] == pytest.approx(c * row["x"] ** power)
        assert 2 <= row["x"] <= 500 and 3 * 0.999 <= row["y"] <= 40 * 1.001
    assert [row["name"] for row in rows] == ["", "1 in 10", "", "falling"]


def box(points, row):
    """Rectangle of a row's name on the page: left, right, top, bottom."""

    def at(axis, length):
        low, high = math.log(min(p[axis] for p in points)), math.log(max(p[axis] for p in points))
        return sizes.MARGIN + (math.log(row[axis]) - low) / (high - low) * (length - 2 * sizes.MARGIN)

    width = sizes.CHARACTER * len(row.get("name", ""))
    left = (
        at("x", sizes.WIDTH)
        + row.get("dx", 0)
        - {"left": 0, "center": width / 2, "right": width}[row["align"]]
    )
    middle = sizes.HEIGHT - at("y", sizes.HEIGHT) + row.get("dy", 0)
    return left, left + width, middle - 6, middle + 6


def apart(one, other):
    return one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]


def test_no_name_covers_another_or_a_point():
    points = [{"model": f"model-{i}", "x": 10 + i % 4, "y": 10 + i // 4} for i in range(24)]
    points += [{"model": "a-model-at-the-right-edge", "x": 1000, "y": 500}]
    room = sizes.Room(points)
    guides = sizes.guide_rows(room, points, {"1 in 1": (1.0, 1), "1 in 2": (0.5, 1)})
    rows = [row for row in guides + sizes.named_rows(room, points[::-1]) if row["name"]]
    names = [row["name"] for row in rows]
    assert {"1 in 1", "1 in 2", "a-model-at-the-right-edge"} < set(names) and 4 < len(names) < len(points)
    boxes = [box(points, row) for row in rows]
    spots = [box(points, {"align": "left"} | p) for p in points]
    for i, one in enumerate(boxes):
        assert all(apart(one, other) for other in boxes[i + 1 :]), names[i]
        assert all(apart(one, (x - 4, x + 4, top + 2, bottom - 2)) for x, _, top, bottom in spots), names[i]
        assert one[0] >= 0 and one[1] <= sizes.WIDTH + sizes.BESIDE
    assert sizes.named_rows(room, []) == []


def test_a_point_alone_has_its_name():
    room = sizes.Room([{"x": 3.0, "y": 4.0}])
    assert sizes.named_rows(room, [{"model": "m", "x": 3.0, "y": 4.0}])[0]["name"] == "m"


POINT = {"model": "m", "kind": "sparse", "x": 2.0, "y": 3.0, "text": "t", "ring": True}
PLACE = {"name": "m", "align": "right", "dx": -9, "dy": 8}
TABLES = {
    "apart": (
        sizes.parts("stored", "stored [B]"),
        sizes.part_rows(count("mixtral-8x7b"), count("llama-3.1-8b")),
    ),
    "side by side": (
        sizes.side_by_side(),
        {
            "models": [POINT],
            "named": [POINT | PLACE],
            "guides": [{"guide": "g", "x": 2.0, "y": 3.0} | PLACE],
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
    "errors": (sizes.error_bands(), {"errors": [{"band": "1 to 3 %", "models": 3, "text": "3"}]}),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_chart_draws_and_reads_only_columns_it_is_given(name):
    chart, tables = TABLES[name]
    assert_draws(chart, tables)
