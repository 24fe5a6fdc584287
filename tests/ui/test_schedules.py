"""Rows of pipeline charts: nothing that a simulation says is lost on the way to the page."""

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest

from telekit.pipeline.order import PAIR
from telekit.ui import exports
from telekit.ui import schedules as charts
from telekit.ui.gantt import gantt
from telekit.ui.known_schedules import Case, timed

SMALL = [
    Case("1f1b", 4, 8),
    Case("interleaved-1f1b", 4, 8, chunks=3, comm=0.1),
    Case("zb-1p", 4, 8, weight=0.5),
    Case("dualpipe", 4, 8),
    Case("v-min", 6, 12),
]
LARGE = [Case("zb-v", 16, 256), Case("interleaved-1f1b", 16, 128, chunks=8), Case("dualpipe", 12, 128)]

small = pytest.mark.parametrize("case", SMALL, ids=lambda c: c.schedule)
large = pytest.mark.parametrize("case", LARGE, ids=lambda c: c.schedule)


def busy(found):
    """Time that each device works, from its own operations."""
    return [float(found.duration_s[found.order.device == d].sum()) for d in range(found.order.stages)]


def drawn(rows, stages):
    return [
        sum((r["end"] - r["start"]) * r["share"] for r in rows["gantt"] if r["lane"] == d)
        for d in range(stages)
    ]


@pytest.mark.parametrize("case", SMALL + LARGE, ids=lambda c: f"{c.schedule}-{c.stages}")
def test_the_time_that_is_drawn_is_the_time_that_is_worked(case):
    found = timed(case)
    rows = charts.timeline_rows(found)
    assert len(rows["gantt"]) <= charts.MAX_MARKS
    assert drawn(rows, case.stages) == pytest.approx(busy(found), rel=2e-3)


@small
def test_few_blocks_carry_their_micro_batch_and_later_chunks_are_paler(case):
    found = timed(case)
    order, rows = found.order, charts.timeline_rows(found)
    pairs = int((order.kind == PAIR).sum())
    assert len(rows["gantt"]) == order.kind.size + pairs
    shades = {row["shade"] for row in rows["gantt"]}
    assert len(shades) == order.chunks and max(shades) == 1.0
    assert min(shades) == pytest.approx(1 - charts.PALER if order.chunks > 1 else 1.0)
    first = {row["lane"]: row["text"] for row in reversed(rows["written"]) if row["lane"] == 0}
    assert first[0] == "0"


def test_a_pair_is_two_marks_each_with_its_own_micro_batch_and_chunk():
    found = timed(Case("dualpipe", 4, 8))
    order, rows = found.order, charts.timeline_rows(found)
    at = int(np.flatnonzero(order.kind == PAIR)[0])
    lane, start = int(order.device[at]), float(found.start_s[at])
    ahead, behind = (
        next(r for r in rows["gantt"] if (r["lane"], r["start"], r["kind"]) == (lane, start, kind))
        for kind in ("forward", "backward")
    )
    assert ahead["bottom"] == behind["top"] == lane and ahead["end"] == behind["end"]
    assert ahead["shade"] != behind["shade"]  # they belong to the two directions
    middle = (ahead["start"] + ahead["end"]) / 2
    texts = {r["kind"]: r["text"] for r in rows["written"] if r["at"] == middle and round(r["lane"]) == lane}
    assert texts == {
        "forward": str(order.micro_batch[at]),
        "backward": str(order.other_micro_batch[at]),
    }


@small
def test_what_a_device_holds_is_counted_from_its_own_operations(case):
    found = timed(case)
    share = case.stages / found.order.parts
    rows = charts.held_rows(found, 0)["held"]
    for device in range(case.stages):
        steps = [(r["time"], r["held"]) for r in rows if r["device"] == device]
        for (begin, held), (end, _) in pairwise(steps):
            if end > begin:
                assert held == pytest.approx(share * alive(found, device, (begin + end) / 2)), (device, begin)
        assert steps[0][0] == 0 and steps[-1] == (float(found.makespan_s), 0.0)


def alive(found, device, now):
    """Micro-batches of chunks whose forward has begun and whose backward, or its W, has not ended."""
    order, count = found.order, 0
    mine = order.device == device
    for i in np.flatnonzero(mine):
        name = order.describe(int(i))
        begun, over = found.start_s[i] < now, found.end_s[i] < now
        count += begun if name[0] == "F" else 0
        count -= over if name[0] in "BW" or "&B" in name else 0
    return count


@large
def test_many_steps_become_few_and_keep_the_peak(case):
    found = timed(case)
    rows = charts.held_rows(found, case.stages - 1)
    assert len(rows["held"]) <= charts.MAX_STEPS + 3 * case.stages
    for device in range(case.stages):
        levels = [r["held"] for r in rows["held"] if r["device"] == device]
        assert max(levels) == pytest.approx(found.peak_activations[device]) and levels[-1] == 0
    assert rows["most"][0]["text"].startswith(f"device {case.stages - 1}: ")


def test_a_schedule_is_beaten_by_one_that_is_as_good_in_one_and_better_in_the_other():
    some = {
        "a": (0.1, 8.0, 1),
        "b": (0.1, 9.0, 1),
        "c": (0.2, 4.0, 1),
        "d": (0.3, 4.0, 2),
        "e": (0.1, 8.0, 1),
    }
    assert [name for name in some if charts.beaten(name, some)] == ["b", "d"]
    rows = charts.basis_rows(some)["basis"]
    assert [row["schedule"] for row in rows] == ["a", "e", "b", "c", "d"]
    assert rows[-1]["held_text"] == "4 · weights twice" and rows[-1]["bubble_text"] == "30.0%"


def test_a_picture_is_on_white_since_pale_blocks_turn_dark_on_nothing(tmp_path):
    found = timed(Case("interleaved-1f1b", 4, 8))
    target = exports.save(gantt(), tmp_path / "gantt.png", charts.timeline_rows(found))
    data = target.read_bytes()
    at = data.index(b"IDAT")
    size = struct.unpack(">I", data[at - 4 : at])[0]
    pixels = zlib.decompressobj().decompress(data[at + 4 : at + 4 + size])
    assert tuple(pixels[1:5]) == (255, 255, 255, 255)  # the first pixel; each row begins with its filter
