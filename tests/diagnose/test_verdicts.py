"""Faults in a toy job: cause, ranks and evidence of the verdict; nothing where nothing is wrong."""

from __future__ import annotations

import json

import pytest
from toy_job import Toy

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import TracedJob, generate
from telekit.diagnose.trace import Trace, TraceSet

ALL, NODE = tuple(range(16)), tuple(range(8, 16))
FAULTS = {
    "slow device": ("device", {"ranks": [5], "factor": 1.12}, (5,), "rank"),
    "slow device in some steps": ("device", {"ranks": [5], "factor": 1.3, "steps": [1, 4]}, (5,), "rank"),
    "slow node": ("device", {"ranks": NODE, "factor": 1.15}, NODE, "node"),
    "frequency drop after idle": ("frequency", {"ranks": [4], "window": 3e-3, "factor": 1.5}, (4,), "rank"),
    "frequency drop everywhere": ("frequency", {"window": 3e-3, "factor": 1.5}, ALL, "all"),
    "slow link": ("nic", {"ranks": [6], "factor": 3}, (2, 6, 10, 14), "group"),
    "slow launch": ("launch", {"ranks": [3], "factor": 30}, (3,), "rank"),
    "slow launch everywhere": ("launch", {"factor": 30}, ALL, "all"),
    "pause": ("pause", {"ranks": [9], "steps": [2], "seconds": 8e-3}, (9,), "rank"),
    "late": ("pause", {"ranks": [9], "steps": [2], "seconds": 0.2}, (9,), "rank"),
    "memory": ("malloc", {"ranks": [1], "seconds": 2e-3}, (1,), "rank"),
    "checkpoint": ("save", {"steps": [3], "seconds": 0.05}, ALL, "all"),
    "slow data loading": ("data", {"ranks": [7], "seconds": 4e-3}, (7,), "rank"),
    "slow data everywhere": ("data", {"seconds": 4e-3}, ALL, "all"),
    "expert imbalance": ("experts", {"ranks": [2], "factor": 1.6}, (2,), "rank"),
}
KIND = {
    "slow node": "slow device",
    "frequency drop everywhere": "frequency drop after idle",
    "slow launch everywhere": "slow launch",
    "slow data everywhere": "slow data loading",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name):
    knob, parameters, ranks, scope = FAULTS[name]
    found = diagnose(Toy(4, 1, 4, seed=1, faults={knob: parameters}).run())
    first = found.findings[0]
    assert (first.kind, first.scope, set(first.ranks)) == (KIND.get(name, name), scope, set(ranks))
    assert found.verdict == first.kind
    assert first.evidence and 0 < first.share <= 1
    if "steps" in parameters:
        assert set(first.steps) == set(parameters["steps"])
    for item in first.evidence:  # what it points at is there
        trace = found.run.traces[item.rank]
        if item.event:
            assert item.event["name"] in trace.names
            at = trace.start_s == item.event["start_s"]
            assert item.event["name"] in {trace.names[i] for i in trace.name[at]}


def test_a_slow_pair_of_stages():
    found = diagnose(Toy(2, 4, 2, seed=2, faults={"p2p": {"ranks": [1, 5], "factor": 20}}).run())
    first = found.findings[0]
    assert (first.kind, first.cause, set(first.ranks)) == ("slow point-to-point", "link", {1, 5})


def test_a_rank_that_never_arrives():
    traces = list(Toy(4, 1, 2, seed=3, steps=5).run())
    for rank, trace in enumerate(traces):
        cut = trace.start_s[trace.named("nccl.*tp")][
            -4 if rank // 4 == 1 else -1
        ]  # rank 6 stops, its group waits
        if rank == 6:
            traces[rank] = trace.select(trace.start_s < cut)
        elif rank // 4 == 1:
            keep = trace.select(trace.start_s <= cut)
            end = keep.end_s.copy()
            end[keep.named("nccl") & (keep.start_s == cut)] += 5.0
            traces[rank] = Trace(**{**vars(keep), "end_s": end})
    found = diagnose(TraceSet.of(traces))
    assert (found.verdict, found.findings[0].ranks) == ("stuck", (6,))


@pytest.mark.parametrize("seed", range(8))
def test_no_alarm_on_a_healthy_job(seed):
    shape = [(4, 1, 4), (8, 1, 2), (2, 2, 4), (4, 2, 2)][seed % 4]
    job = Toy(*shape, steps=3 + seed % 4, seed=100 + seed, jitter=0.01 + 0.005 * seed, heavy=seed % 2 == 1,
              node_jitter=0.01)  # fmt: skip
    found = diagnose(job.run())
    assert found.healthy, [str(f) for f in found.findings]
    assert found.verdict == "healthy"


def test_the_document_is_strict_json():
    found = diagnose(Toy(2, 1, 4, seed=1, faults={"device": {"ranks": [3], "factor": 1.5}}).run())
    text = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {"verdict", "ranks", "stragglers", "evidence"} <= set(text)
    assert [(s["rank"], s["cause"]) for s in text["stragglers"]] == [(3, "device")]
    assert len(text["ranks"]) == 8


def test_one_trace_says_what_bounds_it():
    job = Toy(1, 1, 1, steps=4, faults={"launch": {"factor": 60}}).run()
    found = diagnose(job)
    assert (found.bound, found.verdict) == ("host", "slow launch")
    assert diagnose(Toy(1, 1, 1, steps=4).run()).bound == "compute"
    assert diagnose(Toy(1, 1, 1, steps=4, faults={"data": {"seconds": 0.01}}).run()).bound == "data"


def kineto(trace):
    """A trace as Chrome's JSON, as far as the command needs it."""
    cat = {"kernel": "kernel", "communication": "kernel", "launch": "cuda_runtime", "host": "user_annotation",
           "wait": "cuda_runtime", "data": "user_annotation"}  # fmt: skip
    events = []
    for i in range(len(trace)):
        e = trace.event(i)
        args = {"stream": 7, "device": 0} if e["kind"] in ("kernel", "communication") else {}
        if trace.correlation[i] >= 0:
            args["correlation"] = int(trace.correlation[i])
        if e["group"]:
            args |= {"Process Group Name": e["group"], "Collective name": "allreduce", "Group size": 4}
        events.append({"ph": "X", "cat": cat[e["kind"]], "name": e["name"], "pid": 0 if args.get("stream") else 1,
                       "tid": args.get("stream", 1), "ts": e["start_s"] * 1e6,
                       "dur": (e["end_s"] - e["start_s"]) * 1e6, "args": args})  # fmt: skip
    return {"traceEvents": events, "distributedInfo": {"rank": trace.rank, "world_size": trace.world_size}}


@pytest.mark.parametrize(("faults", "code"), [({}, 0), ({"device": {"ranks": [2], "factor": 1.5}}, 1)])
def test_the_command(tmp_path, telekit, faults, code):
    for trace in Toy(2, 1, 4, steps=4, seed=5, faults=faults).run():
        (tmp_path / f"rank{trace.rank}.json").write_text(json.dumps(kineto(trace)))
    status, out, err = telekit("diagnose", tmp_path, "--json")
    found = json.loads(out)
    assert (status, err) == (code, "")
    assert [s["rank"] for s in found["stragglers"]] == ([2] if code else [])
    assert found["critical_path"]["rank"] == 2 or not code, "the rank that the others wait for"
    assert {"launching", "streams", "together_s"} <= set(found["ranks"][0])
    status, out, _ = telekit("diagnose", tmp_path)
    assert status == code
    assert ("slow device" in out) == bool(code)
    assert f"critical path of rank {found['critical_path']['rank']}, step" in out


def test_the_command_refuses_what_is_not_there(tmp_path, telekit):
    status, out, err = telekit("diagnose", tmp_path / "nothing")
    assert (status, out) == (2, "")
    assert "nothing" in err and "Traceback" not in err


@pytest.mark.parametrize("kind", ["slow-launch", "slow-launch-everywhere"])
def test_a_slow_launch_is_shown_where_the_host_launches(kind):
    """The longest idle time of a step is that in which its batch is fetched, on every rank."""
    found = diagnose(generate(kind, TracedJob.of(16, layers=1, micro_batches=2, steps=5), seed=3).traces)
    evidence = found.findings[0].evidence[0]
    assert found.findings[0].kind == "slow launch"
    assert evidence.event["kind"] in ("launch", "host")
    assert evidence.event["name"] in evidence.text
    assert "DataLoader" not in evidence.text
