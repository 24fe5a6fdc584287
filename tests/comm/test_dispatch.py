"""Dispatchers: rows by following drawn tokens, bytes conserved over tiers, and what must hold for all inputs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import DISPATCHERS, dispatch, inter_node_rows, logical_to_wire, rows_per_token
from telekit.comm.dispatch_summary import compare_dispatchers
from telekit.comm.expert_links import domain_ranks, expert_links
from telekit.comm.routing import Routing
from telekit.comm.transfers import transfer_s
from telekit.cost.estimate import estimate
from telekit.errors import InputError
from telekit.job import load_job
from telekit.layout.config import DISPATCHERS as LAYOUT_DISPATCHERS
from telekit.layout.config import ParallelConfig
from telekit.layout.table import LayoutTable
from telekit.model.huggingface import load_model
from telekit.operators.transfers import FP8_SCALED, layer_transfers
from telekit.training.config import TrainConfig

LINKS = expert_links(load_cluster({"device": "h100", "nodes": 64}))
ASCEND = expert_links(load_cluster({"device": "ascend-910b", "nodes": 64}))
HIERARCHICAL = ("alltoall_deredundency", "deepep", "hybridep", "allgather")


def test_the_table_of_rows_between_nodes():
    """facts of the report: E 192, 8 a node; EP 16, 32, 64 with top-4 and top-8."""
    sizes = [(ep, k) for ep in (16, 32, 64) for k in (4, 8)]
    table = {
        "alltoall": [2.0, 4.0, 3.0, 6.0, 3.5, 7.0],
        "alltoall_deredundency": [1, 1, 3, 3, 7, 7],
        "deepep": [0.939, 0.997, 2.061, 2.714, 2.915, 4.646],
    }
    for dispatcher, rows in table.items():
        found = [inter_node_rows(dispatcher, k, ep, 8, 192) for ep, k in sizes]
        assert found == pytest.approx(rows, abs=5e-4), dispatcher


def counted(dispatcher, routing, ep, per_node, tokens=4000, seed=1):
    """Rows a token of a dispatcher, by following drawn tokens of every rank: (local, inner, outer)."""
    p = min(ep, per_node)
    device = routing.draw(tokens, seed) * ep // routing.experts
    mine = np.arange(tokens) % ep
    total = {"local": 0, "inner": 0, "outer": 0}

    def send(source, goal):
        same_node = source // p == goal // p
        total["local" if source == goal else "inner" if same_node else "outer"] += 1

    for rank, goals in zip(mine, device, strict=True):
        if dispatcher == "alltoall":
            for goal in goals:
                send(rank, goal)
        elif dispatcher == "deepep":
            for node in set(goals // p):
                arrival = node * p + rank % p  # the rank at the same place of that node
                if arrival != rank:
                    send(rank, arrival)
                for goal in set(goals[goals // p == node]):
                    send(arrival, goal)
        elif dispatcher == "allgather":
            for node in range(ep // p):
                arrival = node * p + rank % p
                if arrival != rank:
                    send(rank, arrival)
                for goal in range(node * p, node * p + p):
                    if goal != arrival:
                        send(arrival, goal)
        else:
            for node in range(ep // p):
                arrival = node * p + rank % p
                if arrival != rank:
                    send(rank, arrival)
                for goal in goals[goals // p == node]:
                    send(arrival, goal)
    return {tier: count / tokens for tier, count in total.items()}


@pytest.mark.parametrize("dispatcher", ["alltoall", "alltoall_deredundency", "deepep", "allgather"])
@pytest.mark.parametrize("shape", [(4, 8), (8, 8), (16, 8), (32, 8), (12, 4)])
def test_rows_are_those_of_tokens_that_are_followed(dispatcher, shape):
    routing, (ep, per_node) = Routing(96, 6, 12, 8), shape
    rows = rows_per_token(dispatcher, routing, ep, per_node)
    found = counted(dispatcher, routing, ep, per_node)
    for tier in ("inner", "outer"):
        assert getattr(rows, tier) == pytest.approx(found[tier], rel=0.04, abs=1e-12), tier
    if dispatcher != "allgather":  # there the own copy is not sent
        assert rows.local == pytest.approx(found["local"], rel=0.06)


cases = st.fixed_dictionaries(
    {
        "dispatcher": st.sampled_from(DISPATCHERS),
        "tokens": st.integers(1, 100_000),
        "hidden": st.integers(64, 16_384),
        "routing": st.sampled_from([Routing(256, 8, 8, 4), Routing(64, 6), Routing.zipf(128, 4)]),
        "ep": st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
        "per_node": st.sampled_from([1, 2, 4, 8, 16]),
        "links": st.sampled_from([LINKS, ASCEND]),
        "imbalance": st.sampled_from([1.0, 1.3]),
    }
)


def run(dispatcher, tokens, hidden, routing, ep, per_node, links, imbalance=1.0, **rest):
    return dispatch(dispatcher, tokens, hidden, 1.03125, 2, routing, ep, per_node, links, imbalance, **rest)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_bytes_are_conserved_over_tiers(case):
    found, k = run(**case), case["routing"].top_k
    ep, p = case["ep"], min(case["ep"], case["per_node"])
    nodes = ep / p
    for way, width in (("dispatch", 1.03125), ("combine", 2)):
        phases = getattr(found, f"{way}_phases")
        for tier in ("inner", "outer"):
            over = sum(getattr(phase, f"{tier}_bytes") for phase in phases)
            assert over == pytest.approx(found.sent_bytes(tier, way), abs=1e-6)
        total = sum(found.sent_bytes(tier, way) for tier in ("local", "inner", "outer"))
        row = case["tokens"] * case["hidden"] * width
        arriving = {
            "alltoall": k,
            "deepep_low_latency": k,
            "alltoall_deredundency": k + nodes - 1,
            "allgather": ep - nodes + nodes,
        }.get(
            case["dispatcher"],
            case["routing"].distinct_units(ep) + case["routing"].distinct_units(int(nodes)) * (1 - 1 / nodes),
        )
        assert total == pytest.approx(arriving * row, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_time_grows_with_tokens_hidden_and_falls_with_bandwidth(case):
    base = run(**case).time_s
    assert base >= 0
    assert run(**case | {"tokens": case["tokens"] + 100}).time_s >= base
    assert run(**case | {"hidden": case["hidden"] + 64}).time_s >= base
    assert run(**case | {"imbalance": case["imbalance"] + 0.5}).time_s >= base
    links = case["links"]
    for field in ("fabric_bytes_per_s", "network_bytes_per_s", "sm_bytes_per_s"):
        slower = replace(links, **{field: getattr(links, field) / 2})
        assert run(**case | {"links": slower}).time_s >= base


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_on_one_node_hierarchical_is_flat(ep):
    """Nothing crosses nodes; without rows to merge (top-1) even DeepEP's bytes are the all-to-all's."""
    one = Routing(64, 1)
    flat = run("alltoall", 4096, 7168, one, ep, 8, LINKS)
    for dispatcher in ("alltoall_deredundency", "deepep", "hybridep"):
        found = run(dispatcher, 4096, 7168, one, ep, 8, LINKS)
        assert found.sent_bytes("outer") == flat.sent_bytes("outer") == 0
        assert found.sent_bytes("inner") == pytest.approx(flat.sent_bytes("inner"))
        library = 2 * LINKS.library_start_s * (ep > 1)
        if dispatcher != "deepep":  # whose kernels cost what no library's do; HybridEP's start by themselves
            own = library if dispatcher == "hybridep" else 0.0
            assert found.time_s == pytest.approx(flat.time_s - own)
    several = Routing(64, 6)
    grouped = run("alltoall_deredundency", 4096, 7168, several, ep, 8, LINKS)
    assert grouped.time_s == pytest.approx(run("alltoall", 4096, 7168, several, ep, 8, LINKS).time_s)


def test_the_gathering_form_wins_only_with_fewer_nodes_than_top_k():
    """N - 1 < k (1 - 1/N) just where N < k: why EP 16 is the report's place for it (top-4, 8 a node)."""
    for k in (2, 4, 8):
        for nodes in (2, 4, 8, 16):
            gathered = inter_node_rows("alltoall_deredundency", k, 8 * nodes, 8, 192)
            flat = inter_node_rows("alltoall", k, 8 * nodes, 8, 192)
            assert (gathered < flat) == (nodes < k)
            assert inter_node_rows("deepep", k, 8 * nodes, 8, 192) <= min(flat, gathered)


def test_columns_equal_numbers():
    rng, n = np.random.default_rng(0), 200
    ep, tokens = rng.choice([4, 8, 16, 32, 64], n), rng.integers(1, 9000, n)
    hidden, imbalance = rng.choice([2048, 7168], n), rng.uniform(1, 2, n)
    routing = Routing(256, 8, 8, 4)
    for dispatcher in DISPATCHERS:
        for links in (LINKS, ASCEND):
            together = run(dispatcher, tokens, hidden, routing, ep, 8, links, imbalance)
            for i in range(0, n, 9):
                alone = run(
                    dispatcher, int(tokens[i]), int(hidden[i]), routing, int(ep[i]), 8, links, imbalance[i]
                )
                assert np.broadcast_to(together.time_s, n)[i] == pytest.approx(alone.time_s, rel=1e-12)


def test_the_slowest_rank_decides_what_the_routing_decides():
    for dispatcher in ("alltoall", "hybridep"):
        fair, skewed = (run(dispatcher, 10**6, 7168, Routing(64, 6), 16, 8, LINKS, i) for i in (1.0, 1.5))
        assert skewed.dispatch_s == pytest.approx(1.5 * fair.dispatch_s, rel=1e-3)
    fair, skewed = (
        run("alltoall_deredundency", 10**6, 7168, Routing(64, 6), 16, 8, LINKS, i) for i in (1.0, 1.5)
    )
    gather, exchange = skewed.dispatch_phases
    assert gather.time_s == fair.dispatch_phases[0].time_s
    assert exchange.time_s == pytest.approx(1.5 * fair.dispatch_phases[1].time_s, rel=1e-3)
    assert [p.name for p in skewed.dispatch_phases] == ["all-gather", "all-to-all"]
    assert [p.name for p in skewed.combine_phases] == ["all-to-all", "reduce-scatter"]


def test_folding_tensor_ranks_into_expert_ranks_keeps_rows_from_being_gathered():
    """etp 8 at ep 2 over two nodes, against ep 16: the latter sends what the former then gathers inside the node."""
    routing = Routing(192, 4)
    split = run("alltoall", 512, 2048, routing, 2, 8, LINKS, etp=8)
    folded = run("alltoall", 512, 2048, routing, 16, 8, LINKS)
    assert split.rows.outer == pytest.approx(folded.rows.outer) == 2.0
    gathered = split.dispatch_phases[-1]
    assert gathered.name == "expert tensor ranks" and split.combine_phases[0].name == gathered.name
    assert gathered.inner_bytes == pytest.approx(4 * 7 * 512 * 2048 * 1.03125)
    assert folded.time_s < split.time_s


def test_ports_that_are_shared_add_their_times():
    routing = Routing(256, 8)
    apart = replace(LINKS, library_start_s=0.0, fabric_latency_s=0.0, network_latency_s=0.0)
    found = [
        run("alltoall", 4096, 7168, routing, 16, 8, replace(apart, shared_ports=shared)).dispatch_s
        for shared in (False, True)
    ]
    inner = 8 * 7 / 16 * 4096 * 7168 * 1.03125 / apart.fabric_bytes_per_s
    outer = 4 * 4096 * 7168 * 1.03125 / apart.network_bytes_per_s
    assert found == pytest.approx([max(inner, outer), inner + outer])


def test_links_follow_the_cluster():
    fast = load_cluster({"device": "h100", "nodes": 4})
    tiers = [t.model_copy(update={"bandwidth_bytes_per_s": t.bandwidth_bytes_per_s / 2}) for t in fast.tiers]
    slow = fast.model_copy(update={"tiers": tuple(tiers)})
    assert expert_links(slow).network_bytes_per_s == expert_links(fast).network_bytes_per_s / 2
    tiers = [t.model_copy(update={"efficiency": t.efficiency / 2}) for t in fast.tiers]
    busy = fast.model_copy(update={"tiers": tuple(tiers)})
    assert expert_links(busy).fabric_bytes_per_s == pytest.approx(expert_links(fast).fabric_bytes_per_s / 2)
    plain = load_cluster({"device": "a100-80gb", "nodes": 2})
    assert expert_links(plain).network_bytes_per_s == 25e9 * plain.tiers[-1].efficiency  # none was fitted
    rack = expert_links(load_cluster({"device": "gb200", "nodes": 36}))
    assert (rack.domain, rack.fabric_bytes_per_s > 5 * rack.network_bytes_per_s) == (72, True)
    pod = expert_links(load_cluster({"device": "ascend-910c", "nodes": 48}))
    assert (pod.domain, pod.reach, pod.shared_ports) == (16, 768, True)
    assert any("arXiv 2603.07685" in text for text in rack.sources)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dispatcher": "magic"}, "dispatcher"),
        ({"ep": 12}, "ep"),
        ({"ep": 0}, "ep"),
        ({"ep": np.array([8, 12])}, "ep"),
        ({"tokens": -1}, "tokens"),
        ({"hidden": float("nan")}, "hidden"),
        ({"imbalance": 0.9}, "imbalance"),
        ({"etp": 0}, "etp"),
    ],
)
def test_bad_input_is_refused(changes, field):
    good = {
        "dispatcher": "alltoall",
        "tokens": 9,
        "hidden": 64,
        "routing": Routing(64, 2),
        "ep": 8,
        "per_node": 8,
    }
    with pytest.raises(InputError) as refused:
        run(**good | {"links": LINKS} | changes)
    assert [p.field for p in refused.value.problems] == [field]


def test_ranks_beyond_the_links_are_refused():
    pod = expert_links(load_cluster({"device": "ascend-910c", "nodes": 48}))
    with pytest.raises(InputError, match="768 devices that the links reach"):
        run("alltoall", 9, 64, Routing(4096, 2), 1024, 16, pod)


def test_the_own_node_is_taken_off_a_reported_bandwidth():
    assert logical_to_wire(np.array([40.0, 40.0]), np.array([1, 4])) == pytest.approx([0.0, 30.0])


MODELS = {"deepseek-v3": Routing(256, 8, 8, 4), "telechat3-105b-a4.7b": Routing(192, 4)}


def expert_transfers(dispatcher, ep, etp=1, name="telechat3-105b-a4.7b", precision="bf16"):
    model = load_model(name)
    layout = ParallelConfig(ep=ep, etp=etp, dp=64, dispatcher=dispatcher)
    kind = next(kind for kind in model.kinds if kind.mlp.kind == "moe")
    train = TrainConfig(seq_len=4096, global_batch=64, precision=precision)
    found = {t.name: t for t in layer_transfers(model, kind, train, layout) if t.expert}
    return layout, found, model


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        *((device, "bf16") for device in ("h100", "h800", "b200", "gb200", "ascend-910b", "ascend-910c")),
        *((device, "fp8") for device in ("h800", "gb200")),
    ],
)
@pytest.mark.parametrize("dispatcher", LAYOUT_DISPATCHERS)
def test_dispatch_and_estimate_say_the_same(device, precision, dispatcher):
    """One case, both commands: dispatch, combine and their gradients, one by one and as columns of a table."""
    for name, routing in MODELS.items():
        eps = [ep for ep in (2, 4, 8, 16, 32, 64, 128) if routing.experts % ep == 0]
        cluster = load_cluster({"device": device, "devices": 128})
        table = LayoutTable.build(
            ParallelConfig(dp=1, dispatcher=dispatcher),
            ep=np.array(eps, dtype=float),
            dp=128.0 + np.zeros(len(eps)),
        )
        _, items, model = expert_transfers(dispatcher, eps[0], name=name, precision=precision)
        columns = {one: np.ravel(transfer_s(item, table, cluster)) for one, item in items.items()}
        for row, ep in enumerate(eps):
            asked = compare_dispatchers(
                cluster,
                ep,
                4096,
                model.hidden_size,
                routing,
                FP8_SCALED if precision == "fp8" else 2.0,
                2.0,
                1.0,
            )
            want = next(one for one in asked.found if one.dispatcher == dispatcher)
            layout, items, _ = expert_transfers(dispatcher, ep, name=name, precision=precision)
            for one, time in (
                ("dispatch", want.dispatch_s),
                ("combine", want.combine_s),
                ("dispatch_backward", want.combine_s),
                ("combine_backward", want.dispatch_s),
            ):
                assert float(transfer_s(items[one], layout, cluster)) == pytest.approx(float(time), rel=1e-12)
                assert columns[one][row] == pytest.approx(float(time), rel=1e-12)


@pytest.mark.parametrize("dispatcher", LAYOUT_DISPATCHERS)
def test_an_estimate_pays_what_dispatch_prints(dispatcher):
    """48 layers of experts, 8 micro-batches, dispatch and combine forward and as much backward."""
    record = {
        "model": "qwen3-30b-a3b",
        "cluster": {"device": "h100", "devices": 16},
        "train": {"seq_len": 4096, "global_batch": 128},
        "layout": {"tp": 1, "ep": 16, "pp": 1, "recompute": "none", "dispatcher": dispatcher},
    }
    found = compare_dispatchers("h100", 16, 4096, 2048, Routing(128, 8), imbalance=1.0)
    one = next(one for one in found.found if one.dispatcher == dispatcher)
    spent = estimate(load_job(record)).breakdown_s["ep_comm"]
    assert spent == pytest.approx(48 * 8 * 2 * float(one.time_s), rel=1e-9)


@pytest.mark.parametrize("etp", [2, 4])
@pytest.mark.parametrize("dispatcher", LAYOUT_DISPATCHERS)
def test_ranks_that_share_an_expert_are_priced_alike(dispatcher, etp):
    cluster = load_cluster({"device": "h800", "nodes": 16})
    layout, items, model = expert_transfers(dispatcher, 16, etp)
    want = dispatch(
        dispatcher, 4096, model.hidden_size, 2, 2, Routing(192, 4), 16, 8, expert_links(cluster), etp=etp
    )
    for way, tensor in (("dispatch", "expert_tp_gather"), ("combine", "expert_tp_scatter")):
        both = sum(float(transfer_s(items[name], layout, cluster)) for name in (way, tensor))
        assert both == pytest.approx(float(getattr(want, f"{way}_s")), rel=1e-12)


def test_uneven_experts_slow_what_follows_the_routing_and_no_call_s_start():
    cluster = load_cluster({"device": "h100", "nodes": 8})
    layout, items, _ = expert_transfers("alltoall", 16)
    links = expert_links(cluster)
    start = links.library_start_s + links.fabric_latency_s + links.network_latency_s
    even, uneven = (
        float(transfer_s(items["dispatch"], layout.model_copy(update={"expert_imbalance": x}), cluster))
        for x in (1.0, 1.5)
    )
    assert uneven - start == pytest.approx(1.5 * (even - start))


@pytest.mark.parametrize("ep", [3, 6, 12, 24, 48, 96])
@pytest.mark.parametrize("etp", [1, 2, 3])
@pytest.mark.parametrize("dispatcher", LAYOUT_DISPATCHERS)
def test_groups_that_fill_no_whole_nodes_are_priced_too(dispatcher, ep, etp):
    """A search asks for every layout; what two nodes share for sure stays inside: 12 ranks on nodes of 8 go by 4."""
    for device, node in (("h100", 8), ("gb200", 72)):
        cluster = load_cluster({"device": device, "nodes": 72})
        layout, items, _ = expert_transfers(dispatcher, ep, etp)
        held = domain_ranks(cluster, ep, etp)
        assert ep % held == 0 and 1 <= held * etp <= max(node, etp)
        assert all(
            float(transfer_s(item, layout, cluster)) > 0
            for one, item in items.items()
            if etp > 1 or "tp" not in one
        )
    assert domain_ranks(load_cluster({"device": "h100", "nodes": 3}), 12) == 4


def test_a_group_beyond_the_supernode_takes_the_last_tier():
    cluster = load_cluster({"device": "ascend-910c", "devices": 3072})
    times = {}
    for ep, etp in ((96, 8), (192, 8)):
        layout, items, model = expert_transfers("alltoall", ep, etp)
        times[ep] = float(transfer_s(items["dispatch"], layout, cluster))
    network = cluster.tiers[-1]
    sent = 4096 * 4 * model.hidden_size * 2 * (1 - 2 / 192)
    assert times[192] > 2 * times[96]
    assert times[192] == pytest.approx(sent / network.rate_bytes_per_s, rel=0.05)


def test_group_limits_of_a_model_are_in_its_estimate():
    """DeepSeek-V3 visits at most 4 of 8 groups: over 8 nodes 3.72 instead of 5.3, and the network sees it."""
    cluster = load_cluster({"device": "h800", "nodes": 16})
    layout, items, model = expert_transfers("deepep", 64, name="deepseek-v3")
    assert (model.moe.groups, model.moe.group_limit) == (8, 4)
    limited = items["dispatch"]
    free = replace(limited, expert=replace(limited.expert, groups=1, group_limit=None))
    ratio = Routing(256, 8).distinct_units(8) / Routing(256, 8, 8, 4).distinct_units(8)
    links = expert_links(cluster)
    two = (float(transfer_s(item, layout, cluster)) - links.kernel_start_s for item in (free, limited))
    assert next(two) / next(two) == pytest.approx(ratio, rel=1e-9)


def test_on_one_node_the_estimate_pays_what_a_plain_all_to_all_costs():
    cluster, times = load_cluster({"device": "ascend-910b", "nodes": 8}), {}
    for dispatcher in ("alltoall", "alltoall_deredundency"):
        layout, found, _ = expert_transfers(dispatcher, 8)
        times[dispatcher] = sum(
            float(transfer_s(t, layout, cluster)) * t.forward_calls for t in found.values()
        )
    assert times["alltoall"] == pytest.approx(times["alltoall_deredundency"])


def test_racks_are_filled_so_that_groups_stay_whole():
    """GB200: 64 of 72 devices of a rack; published all-to-alls of HybridEP's table 7 (EP 16, 32, 64)."""
    published = {16: 743e-6, 32: 769e-6, 64: 930e-6}
    for devices in (144, 576):
        cluster = load_cluster({"device": "gb200", "devices": devices})
        for ep, time in published.items():
            assert domain_ranks(cluster, ep) == ep
            layout, items, _ = expert_transfers("alltoall", ep, name="deepseek-v3")
            assert float(transfer_s(items["dispatch"], layout, cluster)) == pytest.approx(time, rel=0.12)
        assert [int(domain_ranks(cluster, ep)) for ep in (72, 96, 128, 144)] == [72, 48, 64, 72]


def test_a_hint_for_ep_divides_the_experts_and_fills_nodes():
    with pytest.raises(InputError, match=r"groups fill whole nodes; (8|16) would work"):
        run("alltoall", 9, 64, Routing(192, 2), 12, 8, LINKS)
    with pytest.raises(InputError, match=r"ep = 512.*256 experts"):
        run("alltoall", 9, 64, Routing(256, 2), 512, 8, LINKS)
