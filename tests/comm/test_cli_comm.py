"""``telekit comm`` and ``telekit fit-links``: JSON alone on standard output, exit codes, one message for bad input."""

from __future__ import annotations

import json

import pytest

from telekit.cli.communication import read_bytes
from telekit.cluster.config import load_cluster
from telekit.comm.algorithms import ALGORITHMS, LIBRARIES
from telekit.comm.collectives import collective_time_s
from telekit.comm.summary import cluster_for, collective
from telekit.comm.transfers import transfer_s
from telekit.errors import InputError
from telekit.layout.config import ParallelConfig
from telekit.operators.transfers import Transfer


def asked(op="all-reduce", cluster="h800", devices=16, size="1GiB", *more):
    return "comm", op, "--cluster", cluster, "--devices", devices, "--bytes", size, *more


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.mark.parametrize("op", ALGORITHMS)
@pytest.mark.parametrize("devices", [2, 8, 24])
def test_json_has_the_designs_fields(telekit, op, devices):
    status, out, err = telekit(*asked(op, devices=devices), "--json")
    found = strict(out)
    assert (status, err) == (0, "")
    assert found["time_s"] > 0
    assert found["algbw_bytes_per_s"] == pytest.approx(2**30 / found["time_s"])
    factor = {"all-reduce": 2 * (devices - 1) / devices, "broadcast": 1, "send-recv": 1}
    ratio = found["busbw_bytes_per_s"] / found["algbw_bytes_per_s"]
    assert ratio == pytest.approx(factor.get(op, (devices - 1) / devices))
    inside = "measured-curve" if devices <= 8 else "links" if op == "send-recv" else "curve-and-links"
    assert found["algorithm"] == inside
    assert found["tiers"] and all(
        use["time_s"] == use["start_s"] + use["transfer_s"] for use in found["tiers"]
    )
    assert set(found["by_algorithm_s"]) <= set(LIBRARIES["NCCL"][op])


DEVICES = ("h100", "h800", "b200", "gb200", "ascend-910b", "ascend-910c", "tpu-v5p")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ALGORITHMS)
def test_without_an_algorithm_it_is_what_estimate_takes(device, op):
    """One price: the command's, the cost models', and a transfer's of a layer."""
    for ranks in (2, 4, 8, 16, 24, 72, 128):
        site = cluster_for(device, ranks)
        for size in (1e3, 1e6, 2.0**30):
            found = collective(op, device, ranks, size)
            assert found.time_s == found.estimate_time_s
            assert found.time_s == pytest.approx(
                float(collective_time_s(op, size, ranks, 1, site)), rel=1e-12
            )
            moved = Transfer("x", op, "tp", size, 1.0, 1.0)
            once = float(transfer_s(moved, ParallelConfig(tp=ranks, dp=1), site))
            assert found.time_s == pytest.approx(once, rel=1e-12)
            assert found.time_s >= max(use["time_s"] for use in found.tiers) * (1 - 1e-12)


def test_a_named_algorithm_is_answered_by_links_and_says_so(telekit):
    quick = strict(telekit(*asked(), "--json")[1])
    for name in ALGORITHMS["all-reduce"]:
        found = strict(telekit(*asked(), "--algorithm", name, "--json")[1])
        assert found["algorithm"] == name
        assert found["time_s"] == found["by_algorithm_s"][name]
        assert found["estimate_time_s"] == quick["time_s"]
        (said,) = (note for note in found["notes"] if "by the links alone" in note)
        assert ("NCCL does not offer it" in said) == (name not in ("ring", "tree"))
        assert quick["by_algorithm_s"].get(name, found["time_s"]) == found["time_s"]
        by_stage = {}
        for use in found["tiers"]:
            by_stage[use["stage"]] = max(by_stage.get(use["stage"], 0.0), use["time_s"])
        assert found["time_s"] >= sum(by_stage.values()) * (1 - 1e-9)


def test_inside_a_node_with_a_curve_it_is_what_estimate_takes(telekit):
    assert "all-reduce" in load_cluster({"device": "h100", "nodes": 1}).tiers[0].curves
    found = strict(telekit(*asked(cluster="h100", devices=8), "--json")[1])
    assert found["algorithm"] == "measured-curve" and [use["tier"] for use in found["tiers"]] == ["node"]
    assert found["time_s"] == found["estimate_time_s"]
    assert any("node: by a curve fitted to" in note and "github:" in note for note in found["notes"])
    links = strict(telekit(*asked(cluster="h100", devices=8), "--algorithm", "ring", "--json")[1])
    assert links["algorithm"] == "ring" and links["tiers"]


def test_a_group_beyond_the_measured_ones_is_flagged():
    """GB200's rows are of 2 and 4 ranks: 72 are extrapolated, and sums there climb trees, not 71 steps."""
    site = load_cluster({"device": "gb200", "devices": 72})
    curve = site.tiers[1].curves["all-reduce"].model_copy(update={"ranks": (2, 4)})
    rack = site.tiers[1].model_copy(update={"curves": {"all-reduce": curve}})
    site = site.model_copy(update={"tiers": (site.tiers[0], rack, site.tiers[2])})
    far = collective("all-reduce", site, 72, 65536)
    assert any("supernode: 72 ranks lie outside the measured 2, 4" in note for note in far.notes)
    assert far.time_s < far.by_algorithm_s["tree"] * 1.1
    near = collective("all-reduce", site, 4, 65536)
    assert not any("outside" in note for note in near.notes)


def test_an_ascend_lists_what_hccl_has():
    found = collective("all-reduce", "ascend-910b", 16, 1e6)
    assert set(found.by_algorithm_s) == {"ring", "recursive-halving-doubling"}
    named = collective("all-reduce", "ascend-910b", 16, 1e6, "tree")
    assert any("HCCL does not offer it" in note for note in named.notes)


def test_a_rack_that_is_not_full_is_said():
    said = [collective("all-gather", "gb200", ranks, 1e9).notes for ranks in (128, 144)]
    assert ["64 of its 72 devices take part" in " ".join(notes) for notes in said] == [True, False]


def test_one_price_in_one_output(telekit):
    """A rack's 8 ranks had two: the figure is printed once, and again only beside a named algorithm."""
    words = asked(cluster="gb200", devices=8)
    assert "telekit estimate" not in telekit(*words)[1]
    assert "telekit estimate" in telekit(*words, "--algorithm", "ring")[1]


def test_the_largest_cluster_is_answered(telekit):
    found = strict(telekit(*asked(cluster="h100", devices=2**20), "--json")[1])
    assert found["by_algorithm_s"].keys() == {"ring", "tree"} and 0 < found["time_s"] < 1


def test_text_says_the_same(telekit):
    status, out, _ = telekit(*asked())
    found = strict(telekit(*asked(), "--json")[1])
    assert status == 0
    assert out.startswith("all-reduce of 1.00 GiB on 16 devices of h800-16\n")
    assert f"{found['busbw_bytes_per_s'] / 1e9:.4g} GB/s" in out
    assert all(note in out for note in found["notes"])


def test_a_device_means_the_nodes_that_the_group_needs():
    assert cluster_for("h100", 8).devices == 8
    assert cluster_for("h100", 9).devices == 16
    assert cluster_for("h100", 4, 8).devices == 32
    assert cluster_for("deepseek-v3-h800-2048", 16).devices == 2048


def test_strided_groups_go_over_the_network():
    near = collective("all-gather", "h800", 4, 1e9)
    far = collective("all-gather", "h800", 4, 1e9, stride=8)
    assert [use["tier"] for use in far.tiers] == ["cluster"]
    assert far.time_s > 2 * near.time_s
    site = cluster_for("h800", 4, 8)
    assert far.time_s == pytest.approx(float(collective_time_s("all-gather", 1e9, 4, 8, site)), rel=1e-3)


@pytest.mark.parametrize(
    "text, size",
    [
        ("1073741824", 2**30),
        ("1e9", 1e9),
        ("1GiB", 2**30),
        ("64MB", 64e6),
        ("1.5 KiB", 1536),
        ("512B", 512),
        ("2kB", 2000),
        ("3TB", 3e12),
        ("1_000", 1000),
    ],
)
def test_sizes(text, size):
    assert read_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["64M", "1G", "1Gb", "8b", "1iB", "1Gi", "-1", "0x10", "many", "", "nan", "1e", "1 2"]
)
def test_sizes_that_are_none_or_may_be_several(text):
    with pytest.raises(InputError, match=r"bytes = .*(is no size|may mean several)"):
        read_bytes(text)


@pytest.mark.parametrize(
    "words, says",
    [
        (asked("all-together"), "known: all-reduce, all-gather"),
        (asked(devices=1), "devices = 1: must be a whole number of at least 2"),
        (asked(size="0"), "bytes = 0.0: must be more than 0"),
        (asked(size="1e400"), "bytes = inf"),
        (asked(size="64M"), "64MB (powers of 1000) or 64MiB (of 1024)"),
        (asked(cluster="telechat3-910b-256", devices=512), "telechat3-910b-256 has 256 devices"),
        (asked(cluster="h900"), "did you mean"),
        (asked(cluster="none.yaml"), "none.yaml"),
        (
            asked("broadcast", "h100", 8, "1e9", "--algorithm", "tree"),
            "no algorithm of broadcast; known: ring",
        ),
        (asked("all-gather", "h100", 12, "1e9", "--algorithm", "hierarchical"), "ring would work"),
        (asked("all-gather", "h100", 8, "1e9", "--stride", 0), "stride = 0"),
    ],
)
def test_bad_input_is_one_message(telekit, words, says):
    status, out, err = telekit(*words, "--json")
    assert (status, out) == (2, "")
    assert err.startswith("telekit: ") and says in err and "Traceback" not in err


def test_all_problems_at_once(telekit):
    _, _, err = telekit(*asked(devices=0, size="0"), "--stride", -1)
    assert "3 problems" in err


LOG = """# nThread 1 nGpus 8 minBytes 65536 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20 validation: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       65536         16384     float     sum      -1    19.54    3.35    5.87      0    19.50    3.36    5.88      0
      262144         65536     float     sum      -1    20.43   12.83   22.45      0    20.40   12.85   22.49      0
     1048576        262144     float     sum      -1    27.37   38.31   67.04      0    27.30   38.41   67.22      0
     4194304       1048576     float     sum      -1    54.19   77.40  135.44      0    54.10   77.53  135.68      0
    16777216       4194304     float     sum      -1   123.80  135.52  237.16      0   123.80  135.52  237.16      0
    67108864      16777216     float     sum      -1   324.70  206.68  361.69      0   324.70  206.68  361.69      0
   268435456      67108864     float     sum      -1  1112.50  241.29  422.26      0  1112.50  241.29  422.26      0
  1073741824     268435456     float     sum      -1  4029.40  266.48  466.33      0  4029.40  266.48  466.33      0
"""
"""Published rows of an 8-GPU H100 node (github:NVIDIA/dgxc-benchmarking, nccl/README.md), as nccl-tests prints."""


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_a_log_becomes_a_cluster_that_prices_its_own_rows(telekit, tmp_path, ending):
    log, out = tmp_path / "all_reduce.log", tmp_path / f"mine.{ending}"
    log.write_text(LOG, encoding="utf-8")
    words = ("fit-links", log, "--device", "h100", "--op", "all-reduce", "--out", out)
    status, said, err = telekit(*words, "--json")
    assert (status, err) == (0, "")
    fit = strict(said)["curves"]["all-reduce over the node"]
    assert fit["errors"]["fit"] < 0.05
    for name, (low, high) in fit["intervals"].items():
        assert low <= fit["parameters"][name] <= high
    found = strict(telekit(*asked(cluster=out, devices=8), "--json")[1])
    assert found["cluster"] == "mine" and found["algorithm"] == "measured-curve"
    assert found["time_s"] == pytest.approx(4029.4e-6, rel=0.1)
    status, text, _ = telekit(*words)
    assert status == 0 and "median error" in text and str(out) in text.replace("\n", "")


def test_a_log_over_nodes_gives_the_outer_link_with_its_intervals(telekit, tmp_path):
    log, out = tmp_path / "two.csv", tmp_path / "two.yaml"
    lines = [f"all_reduce,16,2,{2**k},{25 + 1.875 * 2**k / 160e3:.3f}" for k in range(12, 33)]
    log.write_text("op,ranks,nodes,size_bytes,time_us\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = ("fit-links", log, "--device", "h100", "--nodes", 2, "--out", out)
    document = strict(telekit(*words, "--json")[1])
    link, fit = document["link"], document["curves"]["all-reduce over the cluster"]
    for values, intervals in ((link, link["intervals"]), (fit["parameters"], fit["intervals"])):
        for name, (low, high) in intervals.items():
            assert low <= values[name] <= high
    assert set(link["intervals"]) == {"latency_s", "efficiency"}
    status, text, _ = telekit(*words)
    assert status == 0 and "links of the cluster: 21 rows" in text
    answer = strict(telekit(*asked(cluster=out, devices=16, size="64MiB"), "--json")[1])
    assert answer["time_s"] == pytest.approx(25e-6 + 1.875 * 2**26 / 160e9, rel=0.02)


def test_a_log_of_nothing_is_refused(telekit, tmp_path):
    log = tmp_path / "empty.log"
    log.write_text("nothing here\n", encoding="utf-8")
    status, out, err = telekit("fit-links", log, "--device", "h100", "--out", tmp_path / "x.yaml")
    assert (status, out) == (2, "") and err.startswith("telekit: ")
    assert not (tmp_path / "x.yaml").exists()
