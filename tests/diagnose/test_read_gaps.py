"""What a reader could lose or guess without a word: each is read, or said."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.readers import read
from telekit.diagnose.readers.finish import GUESSED, rank_of
from telekit.diagnose.readers.jsonstream import JsonEvents
from telekit.diagnose.trace import Trace
from telekit.errors import InputError


def event(**change):
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 10, "dur": 5} | change


def kernel(**change):
    return event(cat="kernel", name="gemm", pid=0, tid=7) | change


def kept(tmp_path, text, name="trace.json"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def one(tmp_path, text, name="trace.json"):
    return read(kept(tmp_path, text, name)).traces[0]


def reasons(found):
    return " | ".join(p.reason for p in found.problems)


EVENTS = [event(ts=10 * i, name=f"op{i}") for i in range(4)]


@pytest.mark.parametrize("after", ['{"traceEvents": []}', json.dumps(EVENTS), "GARBAGE", "}", "1"])
@pytest.mark.parametrize("first", [json.dumps({"traceEvents": EVENTS}), json.dumps(EVENTS)])
def test_what_stands_after_a_trace_is_said(tmp_path, first, after):
    trace = one(tmp_path, f"{first}\n{after}")
    assert len(trace) == 4
    if after.startswith("{") and first.startswith("["):
        assert "closes the list early" in reasons(trace)
    else:
        second = after[0] in "[{"
        assert ("a second trace stands" if second else "text stands after the end") in reasons(trace)
    assert not one(tmp_path, f"{first} \n").problems


def test_one_object_a_line_is_read(tmp_path):
    lines = [json.dumps(e) for e in EVENTS]
    trace = one(tmp_path, "\n".join(lines))
    assert [trace.names[i] for i in trace.name] == ["op0", "op1", "op2", "op3"]
    assert "one object after the other" in reasons(trace)
    lines[1] = lines[1].replace('"pid"', '"pid')
    trace = one(tmp_path, "\n".join([*lines, "rest"]))
    assert len(trace) == 3
    assert "is not JSON" in reasons(trace)
    assert "text stands after" in reasons(trace)


def test_bad_escapes_cost_no_pass_over_the_text_each(tmp_path, monkeypatch):
    """A JSON error counts the lines of the text before it: with one such an event that was quadratic."""
    seen = []
    original = json.JSONDecodeError.__init__

    def counted(self, msg, doc, pos):
        seen.append(len(doc))
        original(self, msg, doc, pos)

    monkeypatch.setattr(json.JSONDecodeError, "__init__", counted)
    rows = [json.dumps(event(ts=i)).replace("aten::mul", rf"C:\model\{i}.py: forward") for i in range(3000)]
    text = '{"traceEvents": [' + ", ".join(rows) + "]}"
    trace = one(tmp_path, text)
    assert len(trace) == 3000
    assert next(p for p in trace.problems if "bad escapes" in p.reason).count == 3000
    assert trace.names[trace.name[5]] == r"C:\model\5.py: forward"
    assert sum(seen) < 5 * len(text)


@pytest.mark.parametrize("phase", ["", "sf", "ti", "(),", "Xx"])
def test_a_phase_is_one_letter(tmp_path, phase):
    assert "phase that is not known" in reasons(one(tmp_path, json.dumps([event(ph=phase), event()])))
    assert not one(tmp_path, json.dumps([event(ph="s"), event()])).problems


def test_what_lasts_over_a_day_is_left_out(tmp_path):
    trace = one(tmp_path, json.dumps([event(), kernel(ts=20), event(ts=12, dur=1e12, name="endless")]))
    assert len(trace) == 2
    assert "lasts over a day" in reasons(trace)
    assert trace.span_s[1] < 1e-3
    alone = one(tmp_path, json.dumps([kernel(dur=1e12)]))
    assert not len(alone)
    assert "lasts over a day" in reasons(alone)


def test_kernels_of_one_graph_run_side_by_side(tmp_path):
    """Three kernels of one launch: the device is busy for 100 us, from the first one's start to its end."""
    rows = [event(cat="cuda_runtime", name="cudaGraphLaunch", ts=0, dur=1, args={"correlation": 5})]
    rows += [
        kernel(ts=a, dur=b - a, name=f"k{a}", args={"correlation": 5}) for a, b in ((1, 101), (3, 5), (6, 8))
    ]
    found = diagnose(read(kept(tmp_path, json.dumps(rows))))
    assert found.ranks[0].seconds["compute"] == pytest.approx(100e-6)
    assert not found.problems
    apart = [r if r["cat"] != "kernel" else r | {"args": {"correlation": int(r["ts"])}} for r in rows]
    found = diagnose(read(kept(tmp_path, json.dumps(apart))))
    assert found.ranks[0].seconds["compute"] == pytest.approx((2 + 2 + 2) * 1e-6)
    assert any("ran into the next" in p.reason for p in found.problems)


def test_events_of_one_start_are_left():
    rows = [{"name": n, "kind": "kernel", "start_s": a, "end_s": b}
            for n, a, b in (("a", 0, 10), ("b", 0, 2), ("c", 12, 13))]  # fmt: skip
    assert diagnose(Trace.of(rows, rank=0)).ranks[0].seconds["compute"] == 11


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank3.json", 3),
        ("trace_rank_12.pt.trace.json.gz", 12),
        ("worker7_1730000000.pt.trace.json", 7),
        ("run/rank-5/trace.json", 5),
        ("host_rank8.run/rank1.json", 1),
        ("npu4.json", 4),
        ("trace-gpu11.json.gz", 11),
        ("lora-rank64/trace.json", None),
        ("lora_rank_64_trace.json", None),
        ("lowrank16/trace.json", None),
        ("top_rank_2024/trace.json", None),
        ("rank-2025-01-01/a.json", None),
        ("dp_rank_1_tp_rank_3.json", None),
        ("dp_rank_1_rank_9.json", 9),
        ("rank1_rank2.json", None),
        ("gpu8_run.json", None),
        ("h100gpu4.json", None),
        ("r3.json", None),
    ],
)
def test_ranks_in_names(path, rank):
    assert rank_of(Path("/data") / path) == rank


def test_a_rank_from_a_name_is_said_and_not_given_twice(tmp_path):
    text = json.dumps([event(), kernel(ts=20)])
    assert GUESSED in one(tmp_path / "a", text, "rank3.json").notes
    said = json.dumps({"distributedInfo": {"rank": 4}, "traceEvents": [event(), kernel(ts=20)]})
    assert GUESSED not in one(tmp_path / "b", said, "rank3.json").notes
    kept(tmp_path, text, "c/worker9/one.json")
    kept(tmp_path, text, "c/worker9/two.json")
    kept(tmp_path, said, "c/other.json")
    found = read(tmp_path / "c")
    assert found.ranks == (4, None, None)
    assert any("rank 9, which others have too" in note for note in found.notes)


def test_a_name_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be looked up"):
        read(tmp_path / ("z" * 300))


def test_columns_of_one_name_are_all_kept(tmp_path):
    (table,) = read(kept(tmp_path, "time,machine,gpu util,gpu_util\n0,a,1,2\n1,a,3,4\n", "m.csv")).tables
    assert table.columns["gpu_util"].tolist() == [1, 3]
    assert table.columns["gpu_util_2"].tolist() == [2, 4]
    assert "several columns are called" in reasons(table)


def test_step_times_below_0_are_missing(tmp_path):
    header = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
    (table,) = read(
        kept(tmp_path, header + "0,1,100,5,2,7,-20\n0,2,90,5,2,7,20\n", "step_trace_time.csv")
    ).tables
    assert math.isnan(table.columns["free_s"][0])
    assert table.columns["free_s"][1] == pytest.approx(20e-6)
    assert "below 0" in reasons(table)


def test_many_rows_are_read_as_few_are(tmp_path):
    """Across the chunks in which rows are converted, odd cells included."""
    rows = [
        f"{i},n{i % 3},{'n/a' if i % 1000 == 7 else '50%' if i % 1000 == 8 else i / 4}" for i in range(10_000)
    ]
    rows[5000] = "5000,n2,word"
    (table,) = read(kept(tmp_path, "time,machine,power\n" + "\n".join(rows) + "\n", "m.csv")).tables
    expected = np.arange(10_000) / 4
    expected[7::1000], expected[8::1000], expected[5000] = np.nan, 0.5, np.nan
    np.testing.assert_array_equal(table.columns["power"], expected)
    assert table.labels["machine"] == tuple(f"n{i % 3}" if i != 5000 else "n2" for i in range(10_000))
    (problem,) = table.problems
    assert problem.places == ("line 5002",)


def test_a_stream_of_events_does_not_depend_on_its_pieces():
    from telekit.diagnose.builder import ProblemCounter

    rows = [json.dumps(event(ts=i)).replace("aten::mul", "C:\\model" if i % 3 else "x") for i in range(40)]
    for text in ('{"traceEvents": [' + ", ".join(rows) + "]}", "\n".join(rows)):
        for size in (1, 7, 64, 10_000):
            pieces = iter([text[i : i + size] for i in range(0, len(text), size)])
            assert len(list(JsonEvents(pieces, ProblemCounter()))) == 40
