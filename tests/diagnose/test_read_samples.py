"""Real traces that others published: every event of a duration is read, to the nanosecond."""

import gzip
import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from telekit.diagnose.readers import read

SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")
FILES = sorted(Path(SAMPLES, "samples", "traces").glob("*.json*")) if SAMPLES else []
pytestmark = pytest.mark.skipif(
    not FILES, reason="TELEKIT_SAMPLES does not name a folder with samples/traces"
)
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


@pytest.fixture(scope="module", params=FILES, ids=lambda p: p.name)
def sample(request):
    """A file, its content by the standard library alone (times as exact decimals), and what we read of it."""
    path = request.param
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        content = json.load(file, parse_float=Decimal)
    return path, content, [e for e in content["traceEvents"] if e["ph"] == "X"], read(path).traces[0]


def test_no_event_is_lost(sample):
    path, content, expected, trace = sample
    assert len(trace) == len(expected) == trace.seen["X"]
    assert not [p for p in trace.problems if p.lost]
    assert Counter(trace.names[i] for i in trace.name) == Counter(e["name"] for e in expected)
    assert sum(trace.seen.values()) == len(content["traceEvents"])
    on_device = [e for e in expected if e.get("cat") in DEVICE]
    mine = trace.on_device & trace.is_kind("kernel", "communication", "copy")
    assert mine.sum() == len(on_device)
    info = content.get("distributedInfo", {})
    assert trace.rank == info.get("rank", 0 if "rank0" in path.name else None)
    assert trace.world_size == info.get("world_size")


def test_times_are_those_of_the_file(sample):
    _, content, expected, trace = sample
    base = content.get("baseTimeNanoseconds", 0)
    starts = sorted(int(e["ts"] * 1000) + base for e in expected)
    assert trace.base_ns == starts[0]
    assert np.rint(trace.start_s * 1e9).astype(np.int64).tolist() == [s - starts[0] for s in starts]
    drawn = {*DEVICE, "cuda_sync", "gpu_user_annotation"}
    total = sum(int(e["dur"] * 1000) for e in expected if e.get("cat") not in drawn)
    assert round(trace.duration_s[~trace.on_device].sum() * 1e9) == total
    device = sum(int(e["dur"] * 1000) for e in expected if e.get("cat") in DEVICE)
    work = trace.on_device & trace.is_kind("kernel", "communication", "copy")
    cut = device - round(trace.duration_s[work].sum() * 1e9)
    assert 0 <= cut <= 1000 * work.sum()  # streams may overlap by what was rounded to microseconds


def test_device_work_is_tied_to_its_launch(sample):
    _, _, expected, trace = sample
    launches = {e["args"]["correlation"] for e in expected if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    mine = set(trace.correlation[trace.is_kind("launch")].tolist())
    work = trace.on_device & trace.is_kind("kernel", "communication", "copy") & (trace.correlation >= 0)
    assert {c for c in trace.correlation[work].tolist() if c in launches} <= mine


def test_communication_is_told_apart(sample):
    path, _, _, trace = sample
    known = {
        "diff_control.json.gz": 60,
        "diff_test.json.gz": 64,
        "sampled_rank0.json.gz": 10,
        "simple_add.json.gz": 0,
    }
    if path.name in known:
        assert trace.is_kind("communication").sum() == known[path.name]
