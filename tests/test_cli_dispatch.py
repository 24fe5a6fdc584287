"""``telekit dispatch``: JSON alone on standard output, one message for bad input, numbers of the package."""

import json
from functools import partial

import numpy as np
import pytest

from telekit.comm.dispatch_summary import compare_dispatchers
from telekit.comm.routing import Routing


@pytest.fixture
def run(telekit):
    """Run this one command: (exit status, standard output, standard error)."""
    return partial(telekit, "dispatch")


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_the_reports_case(run):
    """EP 16 on nodes of 8, top-4 of 192: 2, 1 and 0.939 rows between nodes."""
    status, out, err = run(
        "--cluster", "ascend-910b", "--ep", 16, "--model", "telechat3-105b-a4.7b", "--json"
    )
    found = strict(out)
    assert (status, err) == (0, "")
    assert (found["experts"], found["top_k"], found["devices_per_domain"]) == (192, 4, 8)
    rows = {one["dispatcher"]: one["rows"]["outer"] for one in found["dispatchers"]}
    assert rows["alltoall"] == pytest.approx(2.0)
    assert rows["alltoall_deredundency"] == rows["allgather"] == 1.0
    assert rows["deepep"] == rows["hybridep"] == pytest.approx(0.939, abs=5e-4)
    times = {one["dispatcher"]: one["time_s"] for one in found["dispatchers"]}
    assert found["quickest"] == min(times, key=times.get)
    for one in found["dispatchers"]:
        assert one["time_s"] == pytest.approx(sum(phase["time_s"] for phase in one["phases"]))
        assert one["combine_bytes"]["outer"] == pytest.approx(
            one["rows"]["outer"] * 4096 * found["hidden"] * 2
        )


def test_the_table_names_every_dispatcher_and_the_quickest(run):
    status, out, _ = run("--cluster", "h800", "--ep", 64, "--groups", 8, "--group-limit", 4, "--fp8")
    assert status == 0
    found = compare_dispatchers("h800", 64, routing=Routing(256, 8, 8, 4), dispatch_bytes=1.03125)
    assert [line.split()[0] for line in out.splitlines()[3:8]] == [one.dispatcher for one in found.found]
    assert f"quickest: {found.quickest.dispatcher}" in out
    assert found.domains == 8 and "of 8 domains of 8" in out


def test_one_node_and_one_rank_are_answered(run):
    for ep in (1, 4):
        found = strict(run("--cluster", "h100", "--ep", ep, "--json")[1])
        assert all(one["rows"]["outer"] == 0 for one in found["dispatchers"])
    one = strict(run("--cluster", "h100", "--ep", 1, "--json")[1])
    assert all(d["dispatch_bytes"]["inner"] == 0 for d in one["dispatchers"])


def test_a_histogram_sets_the_imbalance(run, tmp_path):
    counts = np.ones(64)
    counts[:8] = 3
    np.save(tmp_path / "load.npy", counts)
    words = ("--cluster", "h100", "--ep", 8, "--top-k", 4, "--tokens", 100_000)
    found = strict(run(*words, "--histogram", tmp_path / "load.npy", "--json")[1])
    assert found["experts"] == 64
    assert found["imbalance"] == pytest.approx(3 / counts.mean(), rel=0.01)
    even = strict(run(*words, "--experts", 64, "--json")[1])
    assert even["imbalance"] < 1.02
    skewed = strict(run(*words, "--experts", 64, "--zipf", 1, "--json")[1])
    assert skewed["imbalance"] > 1.1
    assert strict(run(*words, "--imbalance", 2, "--json")[1])["imbalance"] == 2


def cautions(text):
    return [line for line in text.splitlines() if line.startswith("caution: ")]


def test_what_was_taken_for_granted_is_printed(run):
    """Routing that nobody gave, and times of kernels that nobody measured on the device."""
    free = cautions(run("--cluster", "h800", "--ep", 64)[1])
    assert len(free) == 2 and "--groups" in free[0]
    assert "no published time of alltoall, alltoall_deredundency, hybridep, allgather" in free[1]
    assert "kernels" not in free[1]  # DeepEP was measured there
    (limited,) = cautions(run("--cluster", "gb200", "--ep", 64, "--groups", 8, "--group-limit", 4)[1])
    assert "alltoall_deredundency, deepep, allgather" in limited
    assert "deepep with the kernels of H100 and H200" in limited
    found = strict(run("--cluster", "ascend-910b", "--ep", 16, "--json")[1])["assumptions"]
    assert any("no published time of alltoall, " in line for line in found)
    assert any("--groups" in line for line in found)


def test_groups_of_a_model_are_used_and_no_caution_is_needed(run):
    words = ("--cluster", "h800", "--ep", 64, "--model", "deepseek-v3")
    found = strict(run(*words, "--json")[1])
    assert (found["groups"], found["group_limit"]) == (8, 4)
    assert not any("--groups" in line for line in found["assumptions"])
    other = strict(run(*words, "--groups", 1, "--json")[1])
    assert other["groups"] == 1 and any("--groups" in line for line in other["assumptions"])


def test_the_largest_routings_are_answered(run):
    """Both once ran for minutes, or came out as nan; how many choices of groups were drawn is said."""
    words = ("--experts", 4096, "--top-k", 128, "--json")
    many = strict(
        run("--cluster", "h100", "--ep", 64, "--groups", 256, "--group-limit", 128, "--zipf", 1, *words)[1]
    )
    assert "Monte Carlo" in many["routing_method"]
    assert any("are by Monte Carlo" in line for line in many["assumptions"])
    assert 32 < many["distinct_devices"] < 64
    for exponent in (1, 3):
        status, out, err = run("--cluster", "h100", "--ep", 2048, "--zipf", exponent, *words)
        found = strict(out)
        assert (status, err) == (0, "") and found["routing_method"] == "exact"
        assert 100 < found["distinct_devices"] <= 128 and found["imbalance"] > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cluster", "h100", "--ep", 3), "must divide the 256 experts"),
        (("--cluster", "h100", "--ep", 0), "must divide the 256 experts"),
        (("--cluster", "h1000", "--ep", 8), "h100"),
        (("--cluster", "h100", "--ep", 8, "--top-k", 300), "top_k"),
        (("--cluster", "h100", "--ep", 8, "--groups", 7), "groups"),
        (("--cluster", "h100", "--ep", 8, "--top-k", 0), "top_k = 0"),
        (("--cluster", "h100", "--ep", 8, "--experts", 0), "experts = 0"),
        (("--cluster", "h100", "--ep", 8, "--groups", 0), "groups = 0"),
        (("--cluster", "h100", "--ep", 8, "--groups", 4, "--group-limit", 0), "group_limit = 0"),
        (("--cluster", "h100", "--ep", 8, "--model", "deepseek-v3", "--top-k", 0), "top_k = 0"),
        (("--cluster", "h100", "--ep", 8, "--model", "deepseek-v3", "--experts", 0), "experts = 0"),
        (("--cluster", "h100", "--ep", 8, "--model", "deepseek-v3", "--hidden", 0), "hidden = 0"),
        (("--cluster", "h100", "--ep", 8, "--tokens", 0), "tokens"),
        (("--cluster", "h100", "--ep", 8, "--hidden", 0), "hidden"),
        (("--cluster", "h100", "--ep", 8, "--imbalance", 0.5), "imbalance"),
        (("--cluster", "h100", "--ep", 12, "--experts", 12, "--top-k", 2), "groups fill whole nodes"),
        (("--cluster", "h100", "--ep", 8, "--model", "llama-3.1-8b"), "has no experts"),
        (("--cluster", "h100", "--ep", 8, "--histogram", "none.csv"), "cannot be read"),
        (("--cluster", "phi-3.5-moe-h100-512", "--ep", 1024, "--experts", 1024), "512 devices"),
    ],
)
def test_bad_input_is_one_message(run, words, said):
    status, out, err = run(*words, "--json")
    assert (status, out) == (2, "")
    assert said in err and "Traceback" not in err
