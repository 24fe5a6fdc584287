"""Folders that mix traces and tables, the texts for a newcomer, and clusters fitted to traces."""

import json

import pytest
import yaml
from table_files import step_times, timer_log, timers, write_cluster, write_operators

from telekit.cluster.config import load_cluster
from telekit.cluster.jitter import Jitter
from telekit.diagnose.cluster_values import FITTED, fitted_cluster, write_fitted
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.faults.kineto import write_kineto
from telekit.diagnose.fits import measure
from telekit.diagnose.trace import Trace, TraceSet
from telekit.errors import InputError

JOB = """
model: qwen3-30b-a3b
cluster: CLUSTER
train: {seq_len: 4096, global_batch: 64, precision: bf16}
layout: {tp: 1, pp: 1, ep: 8}
"""
SLOWEST_OF_8 = 1.4236
"""Expected largest of eight standard normal numbers (tables of order statistics)."""


@pytest.fixture(scope="module")
def traces():
    job = TracedJob.of(8, steps=3, host_launch_s=30e-6, jitter=Jitter(0.02, "normal"))
    return generate(job=job, seed=3).traces


def slow(rank, ranks=8, factor=1.3):
    return [factor if r == rank else 1.0 for r in range(ranks)]


def test_traces_and_tables_are_both_analysed(tmp_path, traces):
    for trace in traces:
        write_kineto(trace, tmp_path)
    alone = diagnose(tmp_path)
    assert alone.healthy and not alone.tables
    write_cluster(tmp_path / "c.csv", step_times(ranks=8, slow=slow(5)))
    (tmp_path / "train.log").write_text(timer_log(timers(ranks=8, slow=slow(5))))
    write_operators(tmp_path, [[("MatMulV3", "AI_CORE", 5, 1e5)]] * 3)
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph": ')
    both = diagnose(tmp_path)
    assert both.ranks == alone.ranks and both.bound == alone.bound and len(both.run.traces) == 8
    assert [t.kind for t in both.tables] == ["timers", "steps", "operators"]
    assert [(f.kind, f.ranks) for f in both.findings] == [("slow rank", (5,))], "told once"
    assert [[f.ranks for f in t.findings] for t in both.tables] == [[(5,)], [(5,)], []]
    assert any("bad.json" in p or "event" in p for p in map(str, both.problems))


def test_what_the_traces_found_stands_first(tmp_path):
    run = generate("slow-device", TracedJob.of(8, steps=4), 1)
    rank = run.truth().ranks[0]
    other = (rank + 3) % 8
    for trace in run.traces:
        write_kineto(trace, tmp_path)
    for here, wanted in ((rank, 1), (other, 2)):
        write_cluster(tmp_path / "c.csv", step_times(ranks=8, slow=slow(here)))
        found = diagnose(tmp_path)
        assert (found.findings[0].kind, found.findings[0].ranks) == ("slow device", (rank,))
        assert len(found.findings) == wanted and found.findings[-1].ranks == (here,)


def test_traces_that_cannot_be_compared_do_not_take_the_tables_with_them(tmp_path, traces):
    write_cluster(tmp_path / "c.csv", step_times(ranks=8, slow=slow(5)))
    (tmp_path / "a").mkdir()
    write_kineto(traces.rank(0), tmp_path)
    write_kineto(traces.rank(0), tmp_path / "a")
    found = diagnose(tmp_path)
    assert [f.ranks for f in found.findings] == [(5,)] and not found.ranks
    assert any("traces are not analysed" in str(p) and "rank" in str(p) for p in found.problems)
    with pytest.raises(InputError, match="is the rank of 2 traces"):
        diagnose(TraceSet.of([traces.rank(0), traces.rank(0)]))
    (tmp_path / "a" / "rank0.pt.trace.json.gz").unlink()
    (tmp_path / "rank0.pt.trace.json.gz").unlink()
    (tmp_path / "rank1.json").write_text('{"traceEvents": []}')
    found = diagnose(tmp_path)
    assert [f.ranks for f in found.findings] == [(5,)]
    assert any("no event that can be used" in str(p) for p in found.problems)


def test_kernel_details_are_a_trace(tmp_path):
    rows = "".join(f"{s},MatMul,AI_CORE,{1000 * s + 100 * i},90\n" for s in range(3) for i in range(8))
    for rank in range(3):
        text = f"Step Id,Name,Accelerator Core,Start Time(us),Duration(us)\n{rows}"
        (tmp_path / f"rank_{rank}_kernel_details.csv").write_text(text)
    found = diagnose(tmp_path)
    assert [r.rank for r in found.ranks] == [0, 1, 2] and not found.tables
    assert found.ranks[0].seconds["compute"] == pytest.approx(8 * 90e-6, rel=0.05)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("", None, "holds no trace or table"), ("missing", None, "No such file"),
     ("a.json", '{"a": 1}', "none of the formats"),
     ("a.csv", "a,b\n1,2\n", "step_trace_time.csv"), ("a.log", "iteration 5/ 9 | elapsed", "Megatron-LM"),
     ("a.json", '{"traceEvents": []}', "no event can be used"), ("a.md", "traceEvents", "none of the formats")],
)  # fmt: skip
def test_what_a_newcomer_may_give_is_answered_in_words(tmp_path, telekit, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    status, out, err = telekit("diagnose", tmp_path / name)
    assert (status, out) == (2, "") and said in err and "Traceback" not in err
    if "holds no" in said or "formats" in said:
        assert "--help" in err and "Kineto" in err


def test_the_help_lists_the_formats(telekit):
    _, out, _ = telekit("diagnose", "--help")
    for word in (
        "Kineto",
        "nsys",
        "rocprof",
        "Megatron-LM",
        "step_trace_time.csv",
        "op_statistic.csv",
        "rank3.json",
    ):
        assert word in out


def test_one_rank_alone_is_described(tmp_path, telekit, traces):
    path = write_kineto(traces.rank(2), tmp_path)
    status, out, _ = telekit("diagnose", path)
    assert status in (0, 1) and "\n2 " in out


def test_a_fitted_cluster_is_one_that_a_job_takes(tmp_path, telekit, traces):
    for trace in traces:
        write_kineto(trace, tmp_path / "traces")
    fitted = tmp_path / "fitted.yaml"
    words = ("diagnose", tmp_path / "traces", "--cluster", "h800", "--cluster-out", fitted)
    status, out, _ = telekit(*words, "--json")
    found = json.loads(out)["cluster"]
    wanted, known = measure(traces).kernels(), load_cluster({"device": "h800", "nodes": 1}).device.kernels
    assert status == 0 and found["file"] == str(fitted) and set(found["values"]) == set(FITTED)
    assert {"launch_call_s", "kernel_s", "host_bound"} < set(found["measured"]["host"])
    for name, value in found["values"].items():
        assert value["before"] == getattr(known, name)
        assert value["after"] == pytest.approx(wanted[name], rel=0.02)
    made = load_cluster(fitted)
    assert made.devices == 8 and made.device.kernels.launch_s == known.launch_s
    assert "fitted by telekit diagnose to 8 ranks" in made.device.kernels.sources["jitter"].source
    estimates = []
    for name in ("fitted.yaml", "{device: h800, nodes: 1}"):
        (tmp_path / "job.yaml").write_text(JOB.replace("CLUSTER", name))
        _, out, _ = telekit("estimate", tmp_path / "job.yaml", "--json")
        estimates.append(json.loads(out))
    said = [" ".join(e["assumptions"]) for e in estimates]
    assert (
        f"devices differ by {made.device.kernels.jitter:.1%}" in said[0]
        and "devices differ by 0.5%" in said[1]
    )
    assert f"issues an operator in {made.device.kernels.host_launch_s * 1e6:.0f} us" in said[0]
    assert f"issues an operator in {known.host_launch_s * 1e6:.0f} us" in said[1]
    parts, plain = (e["breakdown_s"] for e in estimates)
    assert made.device.kernels.host_launch_s < known.host_launch_s and parts["host"] < plain["host"]
    for part, jitter in ((parts, made.device.kernels.jitter), (plain, known.jitter)):
        own = part["compute"] + part["ep_comm"] + part["host"]
        assert part["waiting"] == pytest.approx(SLOWEST_OF_8 * jitter * own, rel=1e-4)
    assert {k: v for k, v in parts.items() if k not in ("host", "waiting")} == {
        k: v for k, v in plain.items() if k not in ("host", "waiting")
    }
    change = sum(parts[k] - plain[k] for k in ("host", "waiting"))
    assert estimates[0]["step_time_s"] - estimates[1]["step_time_s"] == pytest.approx(change, rel=1e-6)
    _, out, _ = telekit(*words)
    assert "jitter" in out and "0.005 ->" in out and "written:" in out


def test_a_cluster_file_is_changed_in_nothing_else(tmp_path, traces):
    base = load_cluster({"device": "h800", "nodes": 4})
    made, _ = fitted_cluster(traces, base)
    path = write_fitted(tmp_path / "x.json", made)
    again = load_cluster(path)
    plain, new = base.model_dump(), again.model_dump()
    for name in (*FITTED, "sources"):
        del plain["device"]["kernels"][name], new["device"]["kernels"][name]
    del plain["name"], new["name"]
    assert plain == new and again.name == "x"
    assert yaml.safe_load(write_fitted(tmp_path / "x.yaml", made).read_text())["devices"] == 32


def test_what_cannot_be_fitted_is_refused(tmp_path, telekit, traces):
    write_cluster(tmp_path / "c.csv", step_times(ranks=4))
    status, _, err = telekit("diagnose", tmp_path, "--cluster-out", tmp_path / "x.yaml")
    assert status == 2 and "--cluster" in err and "h800" in err
    status, _, err = telekit("diagnose", tmp_path, "--cluster", "h800", "--cluster-out", tmp_path / "x.yaml")
    assert status == 2 and "there are none" in err and not (tmp_path / "x.yaml").exists()
    with pytest.raises(InputError, match="neither what issuing costs"):
        fitted_cluster([Trace.of([{"name": "a", "kind": "host", "start_s": 0, "end_s": 1}], rank=0)], "h800")
    with pytest.raises(InputError, match="ends in"):
        write_fitted(tmp_path / "x.txt", fitted_cluster(traces, "h800")[0])
