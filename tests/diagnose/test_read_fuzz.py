"""Every format, cut, reordered, renamed and doubled: always an answer, what was lost told, the rest there."""

import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telekit.diagnose.readers import read
from telekit.errors import InputError

PATIENT = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def kineto(count=24):
    rows = [{"ph": "M", "name": "process_name", "pid": 4, "tid": 0, "args": {"name": "python"}}]
    for i in range(count):
        at = 1_700_000_000_000_000 + 100 * i
        rows.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4, "tid": 4,
                     "ts": f"{at}.125", "dur": 5, "args": {"correlation": i, "s": [{"a": 1}, {"b": [2]}]}})  # fmt: skip
        rows.append({"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": 7, "ts": at + 10.5, "dur": 80.25,
                     "args": {"correlation": i, "text": '}, {"ph": ]'}})  # fmt: skip
    return rows


def dumped(rows, bare):
    body = ",\n".join(json.dumps(r) for r in rows)
    return (
        f"[{body}]"
        if bare
        else f'{{"distributedInfo": {{"rank": 3}}, "traceEvents": [\n{body}\n], "traceName": "x"}}'
    )


def table(head, row, count=20):
    return (
        "\n".join([head, *(row.format(i=i, at=1000 + 100 * i, end=1080 + 100 * i) for i in range(count))])
        + "\n"
    )


FORMATS = {
    "kineto.json": dumped(kineto(), bare=False),
    "ascend_trace_view.json": dumped(kineto(), bare=True),
    "kernel_details.csv": table("Step Id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)",
                                '5,2,"op, {i}",MatMul,AI_CORE,"{at}.500\t",80'),
    "step_trace_time.csv": table("Step,Computing,Communication(Not Overlapped),Free", "{i},{at},20,{end}"),
    "op_statistic.csv": table("OP Type,Core Type,Count,Total Time(us)", "op{i},AI_CORE,{i},{at}"),
    "cuda_gpu_trace.csv": table("Start (ns),Duration (ns),CorrId,Device,Strm,Name", "{at},80,{i},GPU 0,7,k{i}"),
    "1_kernel_trace.csv": table('"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp",'
                                '"End_Timestamp"',
                                '"KERNEL_DISPATCH","Agent 4",1,"k{i}",{i},{at},{end}'),
    "metrics.csv": table("timestamp,machine,power_w", "{at},m{i},300.5"),
    "train.log": table("start", " iteration {i}/ 100 | elapsed time per iteration (ms): {at} |\n"
                                "(min, max) time across ranks (ms):\n    forward-backward ....: ({at}.0, {end}.0)"),
    "results.json": json.dumps({"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [
        {"start_timestamp": 100 * i, "end_timestamp": 100 * i + 80, "dispatch_info": {"kernel_id": i}}
        for i in range(20)]}}]}),
}  # fmt: skip
ROWS = {"kineto.json": 48, "ascend_trace_view.json": 48, "train.log": 40}


def counted(traces):
    return sum(map(len, traces.traces)) + sum(map(len, traces.tables))


def lost(traces):
    return sum(p.count for p in traces.all_problems if p.lost)


def sound(traces):
    """What holds of every answer."""
    for trace in traces.traces:
        assert np.isfinite(trace.start_s).all() and np.isfinite(trace.end_s).all()
        assert (trace.end_s >= trace.start_s).all() and (np.diff(trace.start_s) >= 0).all()
        assert (trace.name < len(trace.names)).all() and (trace.lane < len(trace.lanes)).all()
        assert (trace.group < max(len(trace.groups), 1)).all() and (trace.bytes >= 0).all()
        assert (trace.correlation >= -1).all()
        json.dumps([trace.event(i) for i in range(len(trace))]).encode()
    for found in traces.tables:
        assert {len(c) for c in (*found.columns.values(), *found.labels.values())} == {len(found)}
    for problem in traces.all_problems:
        assert problem.count >= 1 and problem.reason and str(problem)
    return traces


def attempt(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        return sound(read(path))
    except InputError as error:
        assert str(error)
        return None


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_lose_nothing(tmp_path, name):
    traces = attempt(tmp_path, name, FORMATS[name])
    assert counted(traces) == ROWS.get(name, 20) and not traces.all_problems


@pytest.mark.parametrize("name", FORMATS)
@PATIENT
@given(data=st.data())
def test_any_bytes_cut_flipped_or_moved(tmp_path, name, data):
    content = bytearray(FORMATS[name].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        length = data.draw(st.integers(1, 200))
        match data.draw(st.sampled_from(["cut", "end", "flip", "double", "insert"])):
            case "cut":
                del content[at : at + length]
            case "end":
                del content[at:]
            case "flip":
                content[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "double":
                content[at:at] = content[at : at + length]
            case "insert":
                content[at:at] = data.draw(
                    st.sampled_from([b'"', b"{", b"}", b"]", b"\\", b"\0", b"\n", b",", b"[[[[", b"1e999"])
                )
    attempt(tmp_path, name, bytes(content))


@pytest.mark.parametrize("name", [n for n in FORMATS if n.endswith(".csv")])
@PATIENT
@given(seed=st.integers(0, 2**32))
def test_rows_reordered_cut_and_doubled(tmp_path, name, seed):
    """Every row is there or told as lost; a row told twice of a device counts once."""
    chance = random.Random(seed)
    head, *rows = FORMATS[name].strip("\n").split("\n")
    chance.shuffle(rows)
    broken = set(chance.sample(range(len(rows)), 4))
    cut = [row.rsplit(",", 1)[0] if i in broken else row for i, row in enumerate(rows)]
    kept = [row for i, row in enumerate(cut) if i not in broken]
    doubled = chance.sample(kept, 3)
    traces = attempt(tmp_path, name, "\n".join([head, *cut, *doubled]))
    if traces.tables:
        assert counted(traces) == len(kept) + 3 and lost(traces) == 4
    else:
        assert counted(traces) == len(kept) and lost(traces) == 4 + 3


@pytest.mark.parametrize("name", [n for n in FORMATS if n.endswith(".csv")])
@pytest.mark.parametrize("column", range(7))
def test_a_renamed_column_is_a_readable_error_or_a_smaller_answer(tmp_path, name, column):
    head, rest = FORMATS[name].split("\n", 1)
    cells = head.split(",")
    cells[column % len(cells)] = "renamed"
    traces = attempt(tmp_path, name, ",".join(cells) + "\n" + rest)
    assert traces is None or counted(traces) == 20


@pytest.mark.parametrize("bare", [False, True])
@PATIENT
@given(seed=st.integers(0, 2**32))
def test_events_reordered_renamed_and_doubled(tmp_path, bare, seed):
    """What a change of one event costs is exactly that event."""
    chance = random.Random(seed)
    rows = kineto()
    whole = attempt(tmp_path, "a.json", dumped(rows, bare)).traces[0]
    chance.shuffle(rows)
    events = [i for i, r in enumerate(rows) if r["ph"] == "X"]
    no_time, no_phase, text, twice = chance.sample(events, 4)
    rows[no_time] = {("when" if k == "ts" else k): v for k, v in rows[no_time].items()}
    rows[no_phase] = {("phase" if k == "ph" else k): v for k, v in rows[no_phase].items()}
    rows[text] = rows[text] | {"dur": "a while"}
    rows.append(rows[twice])
    traces = attempt(tmp_path, "b.json", dumped(rows, bare))
    trace = traces.traces[0]
    assert len(trace) == len(whole) - 3 and lost(traces) == 4
    assert trace.rank == (None if bare else 3)
    assert {p.reason for p in trace.problems if p.lost} == {
        "its time (ts) is no number",
        "has no phase (ph)",
        "its duration (dur) is no number",
        "stands twice",
    }


@PATIENT
@given(seed=st.integers(0, 2**32))
def test_an_event_with_broken_text_costs_only_itself(tmp_path, seed):
    chance = random.Random(seed)
    rows = [json.dumps(r) for r in kineto()]
    at = chance.randrange(1, len(rows) - 1)
    mark = chance.choice(['"ts"', '"dur"', '"name"', '"args"', '"pid"'])
    rows[at] = rows[at].replace(
        mark, chance.choice([mark[:-1], mark[1:], mark + mark, "", "{", mark + " :"]), 1
    )
    traces = attempt(
        tmp_path, "x.json", '{"traceEvents": [' + ",\n".join(rows) + '], "distributedInfo": {"rank": 3}}'
    )
    assert counted(traces) >= 48 - 1 and traces.ranks == (3,)
    assert counted(traces) == 48 or lost(traces) >= 1


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("name", [n for n in FORMATS if n != "results.json"])
def test_a_file_that_ends_early_keeps_its_beginning(tmp_path, name, share):
    content = FORMATS[name]
    traces = attempt(tmp_path, name, content[: int(len(content) * share)])
    whole = ROWS.get(name, 20)
    if traces is not None:
        assert counted(traces) >= int(whole * share) - 3
    else:
        assert share == 0.05
