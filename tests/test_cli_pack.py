"""``telekit pack``: what it prints, and how it refuses."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from telekit.cli.app import app
from telekit.errors import InputError
from telekit.packing import batch
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


EXPERTS = """
model: qwen3-30b-a3b
cluster: {device: h100, devices: 8}
train: {seq_len: 16384, global_batch: 32}
layout: {dp: 8, ep: 8}
"""  # of 4,096 tokens, a pass takes as long as the host issues it, whatever its documents


def test_ranks_that_meet_in_layers_are_made_alike(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(EXPERTS)
    options = ("--seq-len", 16384, "--dp", 8, "--micro-batches", 4, "--job", job)
    usual, balanced = answer("wlb-llm", *options), answer("wlb-llm", *options, "--policy", "balanced")
    assert usual["policy"] == "alike"
    assert usual["step_after"]["step_s"] < balanced["step_after"]["step_s"]
    assert usual["step_after"]["step_s"] < usual["step_before"]["step_s"]
    assert "do not bound it" in " ".join(ran("wlb-llm", *options).stdout.split())
    assert answer("wlb-llm", *options[:6])["policy"] == "balanced"


def test_a_step_is_said_by_tokens_where_documents_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "ROOM", 1.0)  # so that some find no room
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    options = ("--seq-len", 8192, "--dp", 4, "--micro-batches", 2, "--job", job, "--policy", "by work")
    found = answer("wlb-llm", *options)
    assert found["documents_left"] > 0
    before, after = (found[f"tokens_{when}"] for when in ("before", "after"))
    assert after < before == 8 * 8192
    ratio = found["step_before"]["step_s"] / found["step_after"]["step_s"]
    assert found["speedup"] == pytest.approx(ratio * after / before)
    assert f"{found['speedup']:.4f} times" in ran("wlb-llm", *options).stdout


@pytest.mark.parametrize(
    ("cp", "works"), [(3, "cp 2 works"), (65537, "cp 4096 works"), (8192, "cp 4096 works")]
)
def test_context_ranks_must_cut_the_sample(cp, works):
    result = ran("wlb-llm", "--seq-len", 8192, "--dp", 2, "--micro-batches", 2, "--cp", cp)
    assert isinstance(result.exception, InputError)
    assert "2 * cp must divide" in str(result.exception)
    assert works in str(result.exception)


def test_options_that_would_do_nothing_are_refused(lengths):
    sizes = ("--seq-len", 8, "--dp", 2, "--micro-batches", 1)
    for name, option in (
        ("wlb-llm", ("--field", "length")),
        (lengths, ("--samples", 4)),
        (lengths, ("--seed", 4)),
    ):
        result = ran(name, *sizes, *option)
        assert isinstance(result.exception, InputError)
        assert f"leave {option[0]} out" in str(result.exception)


def test_a_name_that_no_file_can_have_is_refused():
    for name in ("x" * 300, "x" * 300 + ".csv"):
        result = ran(name, "--seq-len", 8, "--dp", 2, "--micro-batches", 1)
        assert isinstance(result.exception, InputError)


def test_what_context_ranks_share_is_said_once(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("vpp: 2", "vpp: 2, cp: 2"))
    options = ("--seq-len", 8192, "--dp", 2, "--micro-batches", 2, "--job", job)
    for more in ((), ("--cp", 2)):
        said = answer("wlb-llm", *options, *more)["assumptions"]
        assert sum("context ranks" in line.lower() for line in said) == 1


def test_numpy_counts_are_counts():
    whole = np.int64
    plain = balance_batch([4, 12, 16, 16], 16, 1, 2)
    assert (
        balance_batch([4, 12, 16, 16], whole(16), whole(1), whole(2), whole(1)).to_dict() == plain.to_dict()
    )
