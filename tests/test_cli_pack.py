"""``telekit pack``: what it prints, and how it refuses."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from telekit.cli.app import app
from telekit.errors import InputError
from telekit.packing.batch import PACKERS, balance_batch
from telekit.packing.context import split

JOB = """
model: telechat3-36b
cluster: telechat3-910b-2048
train: {seq_len: 8192, global_batch: 512}
layout: {tp: 8, pp: 2, vpp: 2, schedule: interleaved-1f1b}
"""


def ran(*arguments):
    return CliRunner().invoke(app, ["pack", *map(str, arguments)])


def answer(*arguments):
    result = ran(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length\n" + "\n".join(map(str, [8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 8])) + "\n")
    return path


def test_a_file_is_balanced(lengths):
    found = answer(lengths, "--seq-len", 8, "--dp", 2, "--micro-batches", 2)
    # samples 8 | 8 | 4 4 | 4 4, then 2 2 2 2 and 8 are left: pairs 36 36 20 20
    assert found["imbalance_before"] == pytest.approx(72 / 56)
    assert found["imbalance_after"] == pytest.approx(found["lower_bound"]) == 1
    assert sorted(np.ravel(found["assignment"]).tolist()) == [0, 1, 2, 3]
    assert {min(rank)[0] for rank in found["assignment"]} == {0, 1}
    assert found["samples_left"] == 2
    assert found["documents"] == [[0], [1], [2, 3], [4, 5]]
    text = ran(lengths, "--seq-len", 8, "--dp", 2, "--micro-batches", 2).stdout
    assert "imbalance before      1.2857" in text


def test_the_work_of_context_ranks_is_that_of_the_busiest():
    found = balance_batch([4, 12] * 4, 16, 2, 2, cp=2)
    assert split([4, 12], 2, "per-sequence").pairs.max() > 44
    assert found.imbalance_before == found.imbalance_after == 1
    mixed = balance_batch([4, 12, 16, 16, 4, 12], 16, 2, 2, cp=2)
    a, b = split([4, 12], 2).pairs.max(), split([16], 2).pairs.max()
    assert mixed.imbalance_before == 1
    other = balance_batch([4, 12, 4, 12, 16, 16], 16, 2, 2, cp=2)
    assert other.imbalance_before == pytest.approx(2 * max(a, b) / (a + b))
    assert other.imbalance_after == 1


def test_a_job_says_how_long_a_step_takes(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    found = answer("wlb-llm", "--seq-len", 8192, "--dp", 8, "--micro-batches", 4, "--job", job)
    before, after = found["step_before"], found["step_after"]
    assert after["step_s"] < before["step_s"]
    assert len(after["busy_s"]) == 8
    assert before["imbalance"] == pytest.approx(found["imbalance_before"])
    assert found["lower_bound"] <= found["imbalance_after"] < found["imbalance_before"]
    assert found["work_unit"] == "seconds"
    again = answer("wlb-llm", "--seq-len", 8192, "--dp", 8, "--micro-batches", 4, "--job", job)
    assert again == found
    context = ("--seq-len", 32768, "--dp", 2, "--micro-batches", 4, "--cp", 4, "--job", job)
    assert "4 context ranks" in " ".join(answer("wlb-llm", *context)["assumptions"])


@pytest.mark.parametrize(
    "policy", ["as given", "longest-first", "karmarkar-karp", "optimal", "alike", "by work"]
)
def test_every_policy_runs(policy):
    found = answer(
        "wlb-llm", "--seq-len", 4096, "--dp", 4, "--micro-batches", 2, "--policy", policy, "--seed", 3
    )
    assert found["policy"] == policy
    assert sorted(np.ravel(found["assignment"]).tolist()) == list(range(8))
    if policy not in ("as given", "alike", "by work"):  # these promise nothing of the sums of ranks
        assert found["imbalance_after"] <= found["imbalance_before"]


@pytest.mark.parametrize("packer", PACKERS)
def test_every_packer_runs(packer):
    options = ("--seq-len", 32768, "--dp", 2, "--micro-batches", 2, "--pack", packer, "--samples", 8)
    assert answer("lognormal", *options)["padding_share"] < 0.5


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("8\n8\n", ("--dp", 4, "--micro-batches", 1), "dp 2 works"),
        ("8\n8\n", ("--dp", 1, "--micro-batches", 9), "the documents fill fewer"),
        ("8\n9\n", ("--dp", 1, "--micro-batches", 1), "longer than a sample of 8 tokens"),
        ("8\n0\n", ("--dp", 1, "--micro-batches", 1), "line 2"),
        ("8\n-1\n", ("--dp", 1, "--micro-batches", 1), "-1"),
        ("8\nnan\n", ("--dp", 1, "--micro-batches", 1), "nan"),
        ("8\n", ("--dp", 0, "--micro-batches", 0), "2 problems"),
        ("8\n", ("--dp", 1, "--micro-batches", 1, "--cp", 0), "cp = 0"),
        ("8\n", ("--dp", 1, "--micro-batches", 1, "--policy", "best"), "must be one of as given"),
        ("8\n", ("--dp", 1, "--micro-batches", 1, "--pack", "best"), "must be one of concatenate"),
    ],
)
def test_bad_input_is_refused(tmp_path, text, options, says):
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    result = ran(path, "--seq-len", 8, *options)
    assert isinstance(result.exception, InputError)  # the command's main turns it into exit 2
    assert says in str(result.exception)


def test_long_documents_may_be_cut(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("12\n4\n")
    assert answer(path, "--seq-len", 8, "--dp", 2, "--micro-batches", 1, "--cut")["documents"] == [
        [0],
        [0, 1],
    ]


def test_names_that_are_neither_file_nor_distribution_are_refused(tmp_path):
    for name, says in (("nothing", "lognormal"), (tmp_path / "none.csv", "none.csv")):
        result = ran(name, "--seq-len", 8, "--dp", 1, "--micro-batches", 1)
        assert isinstance(result.exception, InputError)
        assert says in str(result.exception)
    result = ran("wlb-llm", "--seq-len", 8, "--dp", 1, "--micro-batches", 1, "--samples", -1)
    assert "samples = -1" in str(result.exception)
    result = ran("constant", "--seq-len", 2**27, "--dp", 2**20, "--micro-batches", 2**20)
    assert "100,000,000" in str(result.exception)


def test_a_job_that_cannot_run_so_is_refused(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    result = ran("wlb-llm", "--seq-len", 8192, "--dp", 4, "--micro-batches", 1, "--job", job)
    assert isinstance(result.exception, InputError)  # interleaving takes a multiple of 2 micro-batches
