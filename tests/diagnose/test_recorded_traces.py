"""Traces that were recorded for the package with PyTorch's profiler on a CPU: read whole, and what they show."""

import gzip
import json

import numpy as np
import pytest

from telekit import catalog
from telekit.diagnose.readers import read

FOLDER = catalog.root() / "samples" / "traces"
FILES = sorted(FOLDER.glob("*.json.gz"))


def raw(path):
    """Everything the file says, by the standard library."""
    return json.loads(gzip.decompress(path.read_bytes()))


def test_all_four_are_there():
    assert [p.name.split(".")[0] for p in FILES] == [
        "torch_cpu_ddp_rank0", "torch_cpu_ddp_rank1", "torch_cpu_mlp", "torch_cpu_mlp_stack",
    ]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_event_is_read(path):
    document = raw(path)
    assert "torch.profiler" in document["source"]
    (trace,) = read(path)
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    assert len(trace) == len(events)
    assert not trace.problems
    assert sorted(trace.names[i] for i in trace.name) == sorted(e["name"] for e in events)
    assert trace.duration_s.sum() == pytest.approx(sum(e["dur"] for e in events) / 1e6, rel=1e-9)


def test_two_ranks_meet_in_all_reduces_and_the_one_with_more_work_waits_less():
    ranks = [read(path) for path in FILES[:2]]
    (first,), (second,) = ranks
    assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
    waits = []
    for trace in (first, second):
        reduced = trace.is_kind("communication")
        assert reduced.sum() == 3
        assert {trace.names[i] for i in trace.name[reduced]} == {"gloo:all_reduce"}
        waits.append(np.median(trace.duration_s[reduced]))
    extra = [trace.duration_s[trace.named("^aten::mm$")].sum() for trace in (first, second)]
    assert extra[1] > extra[0]
    assert waits[1] < waits[0]
