"""Reading speed and memory of a large Kineto trace; TELEKIT_BENCH_BYTES=1000000000 makes it the full size."""

import json
import os
import subprocess
import sys

import pytest

SIZE = int(os.environ.get("TELEKIT_BENCH_BYTES", 32_000_000))
MEASURE = """
import json, sys, time
from pathlib import Path
from telekit.diagnose.readers import read
before = time.perf_counter()
trace = read(sys.argv[1]).traces[0]
seconds = time.perf_counter() - before
status = Path("/proc/self/status").read_text()  # not ru_maxrss: a child inherits its parent's
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({"events": len(trace), "seconds": seconds, "cpu_seconds": time.process_time(),
                  "problems": len(trace.problems),
                  "peak_bytes": peak}))
"""


def events(i):
    """One operator, its launch and its kernel, as Kineto writes them."""
    at = 1_700_000_000_000_000 + 40 * i
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 4021,
        "tid": 4021,
        "ts": f"{at}.125",
        "dur": "31.500",
        "args": {
            "External id": i,
            "Record function id": 0,
            "Sequence number": i,
            "Fwd thread id": 0,
            "Ev Idx": i,
            "Input Dims": [[4096, 4096], [4096, 1024]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
        },
    }
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 4021,
        "tid": 4021,
        "ts": f"{at + 5}.250",
        "dur": "4.875",
        "args": {"External id": i, "cbid": 211, "correlation": i},
    }
    kernel = {"ph": "X", "cat": "kernel", "name": f"sm90_xmma_gemm_bf16bf16_tilesize128x128x64_{i % 97}", "pid": 0,
              "tid": 7, "ts": f"{at + 12}.375", "dur": "22.750",
              "args": {"External id": i, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": i,
                       "registers per thread": 168, "shared memory": 213_004, "blocks per SM": 0.97,
                       "warps per SM": 7.8,
                       "grid": [8, 16, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19}}  # fmt: skip
    flow = {
        "ph": "s",
        "id": i,
        "pid": 4021,
        "tid": 4021,
        "ts": f"{at + 5}.250",
        "cat": "ac2g",
        "name": "ac2g",
    }
    for event in (op, launch, kernel, flow):  # Kineto writes times as bare numbers and one member a line
        text = json.dumps(event, indent=2)
        for key in ("ts", "dur"):
            if key in event:
                text = text.replace(f'"{event[key]}"', event[key])
        yield text


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "rank0.json"
    count = written = 0
    with path.open("w") as file:
        written += file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [\n')
        while written < SIZE:
            written += file.write(",\n".join(events(count)) + ",\n")
            count += 1
        file.write('{"name": "Iteration Start", "ph": "i", "s": "g", "ts": 0}\n]}\n')
    return path, count


def test_bench_read(benchmark, large):
    path, count = large

    def run():
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    found = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info.update(found, file_bytes=path.stat().st_size)
    assert found["events"] == 3 * count and found["problems"] == 0
    assert found["peak_bytes"] < 1_000_000_000
