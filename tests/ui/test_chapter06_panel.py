"""Panels of chapter 6 without a browser: rows by hand, the border of the map, what overlaps, and a log's truth."""

from math import comb, isclose

import pytest
from chart_checks import assert_draws

from telekit.errors import InputError
from telekit.ui import evidence, own_log, streams, traffic
from telekit.ui import known_communication as known
from telekit.ui.panels import chapter06, chapter06_evidence


@pytest.fixture(scope="module")
def one():
    return chapter06.traffic_explorer()


@pytest.fixture(scope="module")
def winners():
    return chapter06.map_explorer()


@pytest.fixture(scope="module")
def overlap():
    return chapter06.overlap_explorer()


@pytest.fixture(scope="module")
def gain():
    return chapter06_evidence.study_explorer()


@pytest.fixture(scope="module")
def own():
    return chapter06_evidence.log_explorer()


def begin(panel, make):
    return panel.set(**make().values)


def sent(panel, tier):
    return {
        row["dispatcher"]: row["KiB"] * 1024 / 5120 for row in panel.rows["traffic"] if row["tier"] == tier
    }


@pytest.mark.parametrize(("ep", "k"), [(16, 4), (16, 8), (32, 4), (32, 8), (64, 4), (64, 8)])
def test_rows_between_nodes_are_counted_by_hand(one, ep, k):
    begin(one, chapter06.traffic_explorer).set(ep=ep, top_k=k)
    n = ep // 8
    visited = n * (1 - comb(192 - 192 // n, k) / comb(192, k))
    rows = sent(one, "between nodes")
    assert rows["alltoall"] == pytest.approx(k * (1 - 1 / n))
    assert rows["alltoall_deredundency"] == pytest.approx(n - 1)
    assert rows["hybridep"] == rows["deepep"] == pytest.approx(visited * (1 - 1 / n))


def test_one_node_makes_the_hierarchical_form_the_flat_one(one):
    begin(one, chapter06.traffic_explorer).set(ep=8)
    assert "All ranks are on one node" in one.titles[0]
    assert set(sent(one, "between nodes").values()) == {0}
    times = {row["dispatcher"]: row["ms"] for row in one.rows["times"] if row["ep"] == 8}
    assert times["alltoall"] == pytest.approx(times["alltoall_deredundency"])
    assert times["hybridep"] < times["alltoall"]  # two experts on one device: the row goes there once


def test_the_lead_at_ep_16_is_lost_at_ep_32_and_won_back_by_top_8(one):
    begin(one, chapter06.traffic_explorer)
    times = {(row["dispatcher"], row["ep"]): row["ms"] for row in one.rows["times"]}
    assert times["alltoall_deredundency", 16] < times["alltoall", 16]
    assert times["alltoall_deredundency", 32] > times["alltoall", 32]
    one.set(top_k=8)
    times = {(row["dispatcher"], row["ep"]): row["ms"] for row in one.rows["times"]}
    assert times["alltoall_deredundency", 32] < times["alltoall", 32]


def test_zipf_lets_the_busiest_rank_decide_but_not_for_gathering(one):
    begin(one, chapter06.traffic_explorer)
    even = {row["dispatcher"]: row["ms"] for row in one.rows["times"] if row["ep"] == 16}
    one.set(routing="Zipf 1")
    uneven = {row["dispatcher"]: row["ms"] for row in one.rows["times"] if row["ep"] == 16}
    assert uneven["alltoall"] > 1.1 * even["alltoall"] and uneven["hybridep"] > 1.1 * even["hybridep"]
    assert uneven["allgather"] == even["allgather"]


def test_group_limits_lower_what_two_hops_send_and_nothing_else(one):
    begin(one, chapter06.traffic_explorer).set(ep=64)
    free = sent(one, "between nodes")
    one.set(routing="4 of 8 groups", top_k=4)
    limited = sent(one, "between nodes")
    assert limited["hybridep"] < free["hybridep"]
    assert limited["alltoall"] == free["alltoall"] and limited["allgather"] == free["allgather"]


def test_experts_that_do_not_divide_are_said_with_sizes_that_would_work(one):
    begin(one, chapter06.traffic_explorer).set(ep=256)
    assert isinstance(one.error, InputError) and "4, 8, 16, 32, 64 would work" in one.text
    assert one.set(experts=256).error is None


def test_the_border_of_the_map_is_nodes_below_top_k(winners):
    begin(winners, chapter06.map_explorer).set(ratio=32.0)
    for row in winners.rows["by_top_k"]:
        if row["winner"] == "AllGather form":
            assert row["nodes"] < row["level"]
        elif (
            1 < row["nodes"] < row["level"]
        ):  # at the border a gain of one row is soon eaten up inside the node
            assert row["nodes"] >= row["level"] - 2, row
    assert winners.rows["by_top_k_mark"] == [{"nodes": 2, "level": 4}]
    assert {(row["nodes"], row["level"]) for row in winners.rows["by_top_k_ties"]} >= {(2, 2), (4, 4), (8, 8)}
    assert winners.titles[0].startswith(
        "The AllGather form wins only where nodes < top-k; EP 16, top-4: AllGather form"
    )


def test_a_flat_network_leaves_nothing_to_the_gathering_form(winners):
    begin(winners, chapter06.map_explorer)
    at = {(row["nodes"], row["level"]): row["winner"] for row in winners.rows["by_ratio"]}
    assert at[2, 8] == "AllGather form" and at[2, 1.5] == "all-to-all" and at[4, 32] == "all-to-all"
    winners.set(device="ascend-910c", per_node=16)
    assert winners.rows["by_top_k_mark"] == []  # the report's nodes are of 8


def test_once_a_node_is_never_beaten_by_gathering_where_ranks_are_even(winners):
    begin(winners, chapter06.map_explorer)
    winners.set(forms=winners.controls["forms"].options[1][1])
    assert "AllGather form" not in {row["winner"] for row in winners.rows["by_top_k"]}


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_chunks_leave_their_share_of_the_traffic_exposed(overlap, chunks):
    begin(overlap, chapter06.overlap_explorer).set(chunks=chunks)
    assert sum(row["end"] - row["start"] for row in overlap.rows["bare"]) == pytest.approx(0.6 / chunks)
    assert overlap.titles[0] == (
        f"Chunked: {0.6 / chunks:.2f} of 0.60 communication is exposed; all ends after {1 + 0.6 / chunks:.2f}"
    )


def test_a_pair_hides_what_one_micro_batch_cannot(overlap):
    begin(overlap, chapter06.overlap_explorer).set(plan="DualPipe pair")
    assert overlap.rows["bare"] == [] and "all ends after 1.00" in overlap.titles[0]


def test_taken_units_cost_time_though_nothing_is_exposed():
    found = chapter06.overlapped("DualPipe pair", 0.6, 4, 20, 0.2, 0.0)
    assert float(found.exposed_s) == pytest.approx(0, abs=1e-9)
    assert float(found.makespan_s) == pytest.approx(1 + (1 - 112 / 132) * 0.6)


def test_half_of_the_computing_as_a_shared_expert_is_about_as_good_as_four_chunks():
    shared, chunked = (
        float(chapter06.overlapped(p, 0.6, 4, 0, 0.5, 0.0).exposed_s) for p in ("shared expert", "chunked")
    )
    assert shared == pytest.approx(0.3 - 0.5 / 3) and chunked == pytest.approx(0.15)


def test_no_plan_ends_before_its_lower_bound_or_after_all_in_a_row():
    for plan in streams.PLANS:
        for ratio in chapter06.COMM_RATIOS:
            for taken in (0, 20, 64):
                it = chapter06.overlapped(plan, ratio, 4, taken, 0.2, 0.02)
                bare = sum(b - a for a, b in streams.exposed(it))
                assert bare == pytest.approx(float(it.exposed_s), abs=1e-9)
                assert (
                    it.lower_bound_s - 1e-9 <= it.makespan_s <= it.serial_s + 1e-9 + (taken > 0) * it.serial_s
                )


def test_names_are_shortened_where_blocks_are():
    assert [streams.short(name) for name in ("dispatch 0", "combine 12", "MLP(B) 1", "experts 3")] == [
        "D0",
        "C12",
        "M(B)",
        "E3",
    ]


def test_the_study_is_said_as_it_came_out(gain):
    """What the chapter's text says of it."""
    found = known.study()
    _, _, high = found.interval
    assert found.base < found.study.claim and max(max(bar.gains) for bar in found.bars) < found.study.claim
    assert found.verdict == "at the edge" and abs(high - found.study.claim) < 0.01
    low, middle, top = found.interval_in_the_open
    assert [round(100 * x) for x in (low, middle)] == [3, 8] and 0.16 < top < 0.19
    assert f"{found.base:.1%}" == "4.9%"
    bars = {bar.input.name: bar for bar in found.bars}
    assert list(bars)[:2] == ["expert_imbalance", "network_efficiency"]
    assert min(bars["overlap_moe_comm"].gains) == min(min(bar.gains) for bar in found.bars) < 0.02
    assert 0.03 < found.share_beyond < 0.06 and found.overlapped.mean() == 0.5
    assert "no input alone brings it to 15%" in gain.titles[0] and "15% is at the edge" in gain.titles[1]
    table = repr(known.study_answer())
    assert f"{found.base:.1%}" in table and "lies at the edge" in table and "those with overlap" in table
    assert f"{found.share_beyond_in_the_open:.0%} reach 15%" in gain.text
    fixed = {row[0]: row[1:] for row in known.study_fixed().rows}
    assert fixed["ep"][0] == "16" and fixed["ep"][1].startswith("8: 0.0%, 32: -")
    assert fixed["host_launch_s"][1].endswith("6.6e-05: 0.5%")  # a slow host leaves nothing of it
    assert "no part of the interval" in known.study_fixed().title.replace("\n", " ")
    said = known.study_inputs()
    assert all(f"{item.name}: {item.says[:20]}" in said for item in found.study.inputs)


def test_a_moved_assumption_moves_yours_alone(gain):
    begin(gain, chapter06_evidence.study_explorer)
    before = {name: gain.rows[name] for name in ("bars", "draws")}
    assert isclose(gain.rows["answers"][2]["gain"], known.study().base)
    bar = next(bar for bar in known.study().bars if bar.input.name == "expert_imbalance")
    gain.set(expert_imbalance=1.5)
    assert gain.rows["answers"][2]["gain"] == pytest.approx(bar.gains[1])
    assert {name: gain.rows[name] for name in before} == before


def test_several_assumptions_at_once_reach_the_claim(gain):
    begin(gain, chapter06_evidence.study_explorer)
    gain.set(expert_imbalance=1.5, network_efficiency=0.5, tp=1)
    assert gain.rows["answers"][2]["gain"] > 0.15


def test_the_synthetic_logs_truth_is_found_again(own):
    begin(own, chapter06_evidence.log_explorer)
    found = own_log.measured("h100", own_log.synthetic_log())
    assert "SYNTHETIC" in own.values["text"].splitlines()[0]
    assert found.links.fabric_bytes_per_s == pytest.approx(270e9, rel=0.05)
    assert found.links.network_bytes_per_s == pytest.approx(38e9, rel=0.05)
    assert len(own.rows["points"]) == len(own_log.SIZES)
    assert all(
        row["low"] <= row["rate"] * 1.2 and row["high"] >= row["rate"] / 1.2 for row in own.rows["curve"]
    )
    times = {(row["dispatcher"], row["links"]): row["ms"] for row in own.rows["change"]}
    catalog, log = evidence.LINKS
    assert all(times[name, log] > times[name, catalog] for name in ("alltoall", "hybridep"))


def test_a_log_in_the_form_of_nccl_tests_is_read_back():
    for op, device in (("all-to-all", "H200"), ("all-gather", "H100")):
        rows = [r for r in own_log.published_rows()[device, op] if r.size_bytes >= 2**16]
        found = own_log.measured(device.lower(), own_log.published_log(device, op))
        assert len(found.rows) == len(rows) and not found.fit.problems
        assert sum(r.time_s for r in found.rows) == pytest.approx(sum(r.time_s for r in rows), rel=0.01)


def test_mistakes_in_a_log_are_named_by_line_and_the_rest_is_used(own):
    begin(own, chapter06_evidence.log_explorer)
    own.set(sample="synthetic, with mistakes in it")
    assert own.error is None and own.rows["points"]
    lines = own.values["text"].splitlines()
    assert f"line {len(lines)}" in own.text and "is cut off" in own.text
    assert own.text.count("multiply by 2") == 5


def test_what_is_no_log_is_said_in_the_panel(own):
    begin(own, chapter06_evidence.log_explorer)
    own.set(text="hello")
    assert (
        isinstance(own.error, InputError) and "no table of nccl-tests" in own.text and "/tmp" not in own.text
    )
    assert own.set(text="op,ranks,size_bytes,time_us\nall-to-all,8,1000000,-5\n").error is not None
    rows = "\n".join(f"all-to-all,8,{4**i * 65536},{20 + 4**i * 0.3}" for i in range(6))
    assert own.set(text="op,ranks,size_bytes,time_us\n" + rows).error is None
    assert "between nodes" not in own.text


def test_tables_hold_what_the_chapter_says():
    rows = {(row[0], row[2]): row[3:] for row in known.rows_between_nodes().rows}
    assert rows["EP 16", "4"] == ("2.000", "1.000", "0.939", "fewer")
    assert rows["EP 32", "4"][3] == "as many" and rows["EP 64", "4"][:2] == ("3.500", "7.000")
    pairs = known.flat_beside_fused()
    assert "8 of 8" in pairs.title
    worst = max(pairs.rows, key=lambda row: abs(float(row[-1].rstrip("%"))))
    assert (worst[0], worst[1], worst[-1]) == ("GB200", "64", "-20%")
    h100 = {row[1]: float(row[6]) for row in pairs.rows if row[0] == "H100"}
    assert max(h100, key=h100.get) == "16"
    over = [row for row in known.deepep_between_nodes().rows if float(row[2]) > 50]
    assert over and all(float(row[5]) < 50 for row in known.deepep_between_nodes().rows)
    last = known.dispatch_errors().rows[-1]
    assert last[1] == "155" and last[2] == "2%" and float(last[3].rstrip("%")) <= 18


def test_the_readings_of_open_rows_are_shown_with_their_reasons():
    rows = {row[:2]: row[2:] for row in known.dispatch_readings().rows}
    assert rows["HybridEP, H100", "4 of 8 groups"][0] == "read so"
    assert rows["HybridEP, H100", "any experts"] == ("", "4", "27%", "+37%")
    assert not any(group.startswith("all-to-all") for group, _ in rows)  # every copy is sent: nothing to read
    said = known.reading_reasons()
    assert "HybridEP: the source is silent" in said and "DeepEP-Ascend, normal: " in said
    assert max(map(len, repr(known.dispatch_readings()).splitlines())) <= known.COLUMNS


def test_held_out_errors_lie_where_the_chapter_says():
    held = {2: [], 4: [], 8: []}
    for row in known.fit_errors().rows:
        for overall, large in zip(row[4].split(", "), row[5].split(", "), strict=True):
            ranks = int(overall.split(":")[0])
            held[ranks].append([float(text.split(": ")[1].rstrip("%")) for text in (overall, large)])
    largest = {ranks: [max(column) for column in zip(*errors, strict=True)] for ranks, errors in held.items()}
    assert largest[4] == pytest.approx([7.6, 7.8], abs=0.2)
    assert largest[8] == pytest.approx([13.4, 11.2], abs=0.3)
    assert largest[2] == pytest.approx([14.8, 18.0], abs=0.5)


@pytest.mark.parametrize("name", ["one", "winners", "overlap", "gain", "own"])
def test_charts_read_only_columns_that_their_rows_have(name, request):
    panel = request.getfixturevalue(name)
    start = {
        "one": chapter06.traffic_explorer,
        "winners": chapter06.map_explorer,
        "overlap": chapter06.overlap_explorer,
        "gain": chapter06_evidence.study_explorer,
        "own": chapter06_evidence.log_explorer,
    }[name]
    begin(panel, start)
    for view, chart in zip(panel.views, panel._charts, strict=True):
        assert_draws(chart, view.datasets)


def test_every_dispatcher_of_the_panels_has_a_colour():
    assert set(traffic.COLOURS) == set(known.SHOWN) and set(traffic.FORMS) <= set(known.SHOWN)
