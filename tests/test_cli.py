"""The commands: JSON alone on standard output, exit codes, and one message for bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from telekit import __version__

JOB = """
model: deepseek-v2-lite
cluster: {device: h800, nodes: 2}
train: {seq_len: 4096, global_batch: 256}
layout: {pp: 2, ep: 8, recompute: selective}
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_count_names_the_designs_fields(telekit):
    status, out, err = telekit("count", "deepseek-v3", "--json")
    found = strict(out)
    assert (status, err) == (0, "")
    assert found["total"] == 671_026_419_200
    names = {"total", "active", "active_without_input_embedding", "mtp", "vision", "by_component",
             "training_flops_per_token", "forward_flops_per_token"}  # fmt: skip
    assert names <= set(found)


def test_catalogs_are_listed(telekit):
    models = strict(telekit("models", "--json")[1])
    assert {"deepseek-v3", "telechat3-105b-a4.7b"} <= {m["name"] for m in models}
    assert all(m["source"] and m["total"] for m in models)
    clusters = strict(telekit("clusters", "--json")[1])
    assert {"h800", "ascend-910b", "deepseek-v3-h800-2048"} <= {c["name"] for c in clusters}
    assert all(c["source"] for c in clusters)


def test_estimate_names_the_designs_fields(telekit, job):
    status, out, _ = telekit("estimate", job, "--json")
    found = strict(out)
    assert status == 0 and found["valid"] and found["fits"]
    names = {"problems", "step_time_s", "tokens_per_s_per_device", "model_tflops_per_device", "mfu", "breakdown_s",
             "stages", "capacity_bytes", "assumptions"}  # fmt: skip
    assert names <= set(found)
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
    for stage in found["stages"]:
        assert sum(stage["memory_bytes"].values()) == pytest.approx(stage["peak_bytes"], rel=1e-12)
    assert sum(stage["layers"] for stage in found["stages"]) == 27


def test_over_capacity_still_gives_times_and_exits_1(telekit, job):
    job.write_text(JOB.replace("deepseek-v2-lite", "deepseek-v3"))
    status, out, _ = telekit("estimate", job, "--json")
    found = strict(out)
    assert status == 1 and found["valid"] and not found["fits"] and found["step_time_s"] > 0


def test_an_invalid_layout_lists_its_problems_and_exits_1(telekit, job):
    job.write_text(JOB.replace("ep: 8", "ep: 7, tp: 3"))
    status, out, _ = telekit("estimate", job, "--json")
    found = strict(out)
    assert status == 1 and not found["valid"] and found["step_time_s"] is None
    assert {"layout.tp", "layout.ep"} <= {p["field"] for p in found["problems"]}
    assert "not valid" in telekit("estimate", job)[1]


def test_defaults_are_listed(telekit):
    found = strict(telekit("estimate", "--defaults", "--json")[1])
    assert found["layout"]["tp"] == 1 and found["train"]["precision"] == "bf16"


@pytest.mark.parametrize("words", [("count", "nothing"), ("estimate", "nothing.yaml"), ("plan", "nothing.yaml"),
                                   ("count", "deepseek-v3", "--attention", "half"),
                                   ("count", "deepseek-v3", "--seq-len", "0"),
                                   ("balance", "nothing.json", "--stages", "4", "--micro-batches", "4"),
                                   ("estimate",), ("frobnicate",)], ids=lambda w: " ".join(w))  # fmt: skip
def test_bad_input_exits_2_with_a_message_and_no_traceback(telekit, words):
    status, out, err = telekit(*words)
    assert status == 2 and out == "" and err.strip() and "Traceback" not in err


def test_every_fault_of_a_job_is_in_the_one_message(telekit, job):
    job.write_text(JOB.replace("seq_len: 4096", "seq_len: .nan, speed: 1").replace("pp: 2", "pp: -2"))
    status, _, err = telekit("estimate", job)
    assert status == 2
    for word in (str(job), "train.seq_len", "train.speed", "layout.pp", "-2"):
        assert word in err


def test_as_a_process_json_is_alone_on_standard_output():
    done = subprocess.run([sys.executable, "-m", "telekit.cli", "count", "mixtral-8x7b", "--json"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert strict(done.stdout)["total"] == 46_702_792_704


def test_the_readmes_job_estimates_and_plans(telekit, tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    path = tmp_path / "job.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0])
    assert strict(telekit("estimate", path, "--json")[1])["fits"]
    status, out, _ = telekit("plan", path, "--top", "1", "--time-limit", "2", "--json")
    assert status == 0 and strict(out)["plans"]


def test_the_samples_balance(telekit):
    sample = Path(__file__).parents[1] / "data" / "samples" / "sapp-test.json"
    words = ("balance", sample, "--stages", 16, "--micro-batches", 16, "--memory-mb", 53000)
    status, out, _ = telekit(*words, "--json")
    found = strict(out)
    assert status == 0 and found["makespan"] == found["proof"]["bound"] == 107_460
    assert {"layers", "offset", "recompute", "bottleneck", "makespan", "peak_memory_mb", "proof"} <= set(
        found
    )
    assert "recompute: [[" in telekit(*words)[1]


def test_dualpipe_may_name_its_two_chunks(telekit, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: deepseek-v3\ncluster: {device: h800, nodes: 256}\n"
                    "train: {seq_len: 4096, global_batch: 15360}\n"
                    "layout: {tp: 1, cp: 1, pp: 16, vpp: 2, ep: 64, etp: 1, zero: 1, micro_batch: 1,\n"
                    "  sequence_parallel: true, recompute: selective, schedule: dualpipe}\n")  # fmt: skip
    assert strict(telekit("estimate", path, "--json")[1])["valid"]


def as_process(*arguments, **kwargs):
    command = [sys.executable, "-m", "telekit.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def test_the_version_needs_no_command():
    found = as_process("--version")
    assert (found.returncode, found.stdout.strip()) == (0, __version__)


def test_a_terminal_of_ascii_gets_what_it_can_show():
    found = as_process("models", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert found.returncode == 0 and "deepseek-v3" in found.stdout
    found = as_process("count", "deepseek-v3", "--json", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert json.loads(found.stdout)["total"] == 671_026_419_200


def test_a_reader_that_leaves_is_no_fault_and_a_full_disk_is_told():
    command = [sys.executable, "-m", "telekit.cli", "models", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(60) == 0 and running.stderr.read() == ""
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert found.returncode == 2 and found.stderr.startswith("telekit: cannot write")


def test_packed_documents_and_conventions_of_count():
    found = json.loads(
        as_process("count", "deepseek-v3", "--json", "--documents", "2048,1024,512,512").stdout
    )
    whole = json.loads(as_process("count", "deepseek-v3", "--json").stdout)
    assert found["training_flops_per_token"] < whole["training_flops_per_token"]
    assert whole["training_flops_by_convention"]["nvidia"] == pytest.approx(249.67e9, rel=1e-3)
    assert as_process("count", "deepseek-v3", "--documents", "1,x").returncode == 2
    trained = json.loads(as_process("count", "deepseek-v3", "--json", "--mtp").stdout)
    assert trained["training_flops_by_convention"]["nvidia"] == pytest.approx(260.015e9, rel=1e-3)
