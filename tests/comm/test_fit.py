"""The fit gives back what made the data, says what it could not see, and a user's logs become a cluster."""

import itertools

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cluster.curves import Curve, bus_factor
from telekit.comm.calibrate import published_rows
from telekit.comm.collectives import collective_time_s
from telekit.comm.fit import fit_curve, hold_out, median_errors, relative_errors
from telekit.comm.measurements import Measurement
from telekit.comm.summary import collective
from telekit.comm.user_cluster import fit_cluster, write_cluster
from telekit.errors import InputError

TRUE = Curve(
    start_s=7e-6,
    step_s=1.5e-6,
    bandwidth_bytes_per_s=3.1e11,
    low_latency_ratio=2.6,
    ramp_s=28e-6,
    rank_exponent=0.3,
)
SWITCHED = Curve(
    start_s=7e-6, step_s=1.5e-6, bandwidth_bytes_per_s=3.1e11, low_latency_ratio=2.6, ramp_s=28e-6,
    rank_exponent=0.1, in_switch_share=0.84,
)  # fmt: skip
SIZES = [2**k for k in range(12, 33)]


def rows_of(curve, op="all-gather", noise=0.0, ranks=(2, 4, 8), sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Measurement(op, n, 1, s, float(curve.time_s(op, s, n) * np.exp(noise * rng.standard_normal())))
        for n in ranks
        for s in sizes
    ]


@pytest.mark.parametrize(
    ("curve", "op"), [(TRUE, "all-gather"), (SWITCHED, "all-reduce"), (TRUE, "all-to-all")]
)
def test_it_recovers_what_made_the_rows(curve, op):
    rows = rows_of(curve, op)
    fit = fit_curve(rows, link_bytes_per_s=4.5e11, in_switch_share=curve.in_switch_share)
    assert max(relative_errors(fit.curve, rows)) < 0.02
    assert fit.curve.bandwidth_bytes_per_s == pytest.approx(curve.bandwidth_bytes_per_s, rel=0.02)
    assert fit.curve.start_s == pytest.approx(curve.start_s, rel=0.1)
    assert fit.curve.step_s == pytest.approx(curve.step_s, rel=0.1)
    assert fit.curve.ranks == (2, 4, 8) and not fit.held


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Of parameters, and of what a person asks: a small and a large message, the bandwidth."""
    inside = total = 0
    for seed in range(20):
        fit = fit_curve(rows_of(TRUE, noise=0.05, seed=seed), link_bytes_per_s=4.5e11)
        for name, (low, high) in fit.intervals.items():
            assert low < getattr(fit.curve, name) < high
            inside += low <= getattr(TRUE, name) <= high
            total += 1
        for size in (2**12, 2**24, 2**32):
            low, high = fit.time_interval_s(size, 8)
            inside += low <= TRUE.time_s("all-gather", size, 8) <= high
            total += 1
        low, high = fit.bus_bandwidth_interval(8)
        inside += low <= TRUE.bus_bandwidth_bytes_per_s("all-gather", 8) <= high
        total += 1
    assert 0.85 <= inside / total <= 1.0


PLAIN = [(12e-6, 400e9), (6e-6, 150e9), (12e-6, 80e9), (40e-6, 20e9)]


@pytest.mark.parametrize("device", ["h100", "ascend-910b"])
def test_a_users_rows_win_over_the_catalog(tmp_path, device):
    """Links that are nothing like the catalog's: ``t = start + step (n - 1) + wire / rate`` with 2 % noise."""
    covered = {}
    for number, (op, ranks, (start_s, rate)) in enumerate(
        itertools.product(["all-reduce", "all-gather", "all-to-all"], [(8,), (2, 4, 8)], PLAIN)
    ):
        rng = np.random.default_rng(number)
        rate = min(rate, 0.9 * load_cluster({"device": device, "nodes": 1}).tiers[0].bandwidth_bytes_per_s)
        step_s = 0.1 * start_s if len(ranks) > 1 else 0.0

        def true_s(n, size, op=op, start_s=start_s, step_s=step_s, rate=rate):
            return start_s + step_s * (n - 1) + float(bus_factor(op, n)) * size / rate

        cells = [(n, size) for n in ranks for size in SIZES]
        rows = [
            Measurement(op, n, 1, size, true_s(n, size) * float(np.exp(0.02 * rng.standard_normal())))
            for n, size in cells
        ]
        fit = fit_cluster([csv(tmp_path / "log.csv", rows)], device=device, nodes=1)
        cluster, found = load_cluster(fit.record), fit.fits["node", op]
        priced = [float(collective_time_s(op, float(size), n, 1, cluster)) for n, size in cells]
        errors = [abs(time / true_s(n, size) - 1) for time, (n, size) in zip(priced, cells, strict=True)]
        assert np.median(errors) < 0.05 and max(errors) < 0.10, (op, ranks, start_s, rate)
        for size in (SIZES[0], 2**24, SIZES[-1]):  # one draw of noise a log: each size apart
            for n in ranks:
                low, high = found.time_interval_s(size, n)
                covered.setdefault((size, len(ranks)), []).append(low <= true_s(n, size) <= high)
        low, high = found.bus_bandwidth_interval(8)
        covered.setdefault(("rate", len(ranks)), []).append(low <= rate <= high)
    assert np.mean([one for each in covered.values() for one in each]) >= 0.9
    for key, each in covered.items():
        assert np.mean(each) >= 0.75, key  # 12 or 36 draws of 95 %: fewer than 10 of 12 once in 500


def test_reduction_in_the_switch_is_dropped_where_several_groups_deny_it(tmp_path):
    flat = Curve(**(TRUE.model_dump() | {"rank_exponent": 0.0}))
    for curve, switched in ((flat, False), (SWITCHED, True)):
        rows = rows_of(curve, "all-reduce", noise=0.02)
        fit = fit_cluster([csv(tmp_path / "log.csv", rows)], device="h100", nodes=1)
        found = fit.fits["node", "all-reduce"].curve
        assert (found.in_switch_bytes_per_s is not None) == switched
        assert median_errors(found, rows)[0] < 0.03


def test_more_noise_gives_wider_intervals():
    def width(noise):
        low, high = fit_curve(rows_of(TRUE, noise=noise), link_bytes_per_s=4.5e11).intervals[
            "bandwidth_bytes_per_s"
        ]
        return high / low

    assert 1 < width(0.01) < width(0.1)


def test_one_wild_row_in_twenty_moves_little():
    rows = rows_of(TRUE, noise=0.02)
    wild = [
        m if i % 20 else Measurement(m.op, m.ranks, 1, m.size_bytes, 4 * m.time_s) for i, m in enumerate(rows)
    ]
    curve = fit_curve(wild, link_bytes_per_s=4.5e11).curve
    assert median_errors(curve, rows)[0] < 0.04


def test_few_rows_hold_parameters_and_say_so():
    fit = fit_curve(rows_of(TRUE, ranks=(8,), sizes=[2**20, 2**26, 2**30]), link_bytes_per_s=4.5e11)
    assert {"step_s", "rank_exponent"} <= set(fit.held)
    assert [note.split()[0] for note in fit.notes] == list(fit.held)
    low, high = fit.intervals["step_s"]
    assert high / low > 5  # wide where the rows say nothing
    small = fit_curve(rows_of(TRUE, sizes=[2**k for k in range(12, 22)]), link_bytes_per_s=4.5e11)
    assert small.held and "start_s" not in small.held  # of the two protocols small messages show one


def test_refusals():
    rows = rows_of(TRUE)
    with pytest.raises(InputError, match="3 rows or more"):
        fit_curve(rows[:2], link_bytes_per_s=4.5e11)
    with pytest.raises(InputError, match="one op at a time"):
        fit_curve([*rows, Measurement("broadcast", 2, 1, 1, 1.0)], link_bytes_per_s=4.5e11)
    with pytest.raises(InputError, match="above 0"):
        fit_curve([*rows, Measurement("all-gather", 2, 1, 4, 0.0)], link_bytes_per_s=4.5e11)


def test_held_out_count_is_not_seen():
    rows = rows_of(TRUE)
    wrong = [m if m.ranks != 4 else Measurement(m.op, 4, 1, m.size_bytes, 3 * m.time_s) for m in rows]
    assert hold_out(wrong, 4, link_bytes_per_s=4.5e11)[0] == pytest.approx(2 / 3, abs=0.02)
    assert hold_out(rows, 4, link_bytes_per_s=4.5e11)[0] < 0.02


# --- a user's logs ------------------------------------------------------------------------------------------------


def csv(path, rows):
    lines = ["op,ranks,nodes,size_bytes,time_us"]
    lines += [f"{r.op},{r.ranks},{r.nodes},{r.size_bytes},{r.time_s * 1e6:.6f}" for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["mine.yaml", "mine.json"])
def test_logs_become_a_cluster_that_loads_and_predicts_them(tmp_path, name):
    rows = rows_of(TRUE, "all-gather", noise=0.02)
    fit = fit_cluster([csv(tmp_path / "node.csv", rows)], device="h100", nodes=4)
    cluster = load_cluster(write_cluster(tmp_path / name, fit))
    assert (cluster.devices, cluster.device.name) == (32, "h100")
    curve = cluster.tiers[0].curves["all-gather"]
    assert curve.source == "fitted to 63 rows of node.csv" and curve.verified
    assert median_errors(curve, rows)[0] < 0.03
    assert curve.errors.fit == pytest.approx(median_errors(curve, rows)[0], abs=1e-3)
    catalog = load_cluster({"device": "h100", "nodes": 4})
    assert cluster.tiers[0].curves["all-reduce"] == catalog.tiers[0].curves["all-reduce"]
    assert cluster.tiers[1] == catalog.tiers[1]
    assert set(fit.fits["node", "all-gather"].intervals) >= {"start_s", "bandwidth_bytes_per_s"}


def test_rows_over_nodes_give_the_outer_link(tmp_path):
    true = load_cluster({"device": "h100", "nodes": 4})
    outer = true.tiers[1].model_copy(update={"latency_s": 1.2e-5, "efficiency": 0.6})
    made = true.model_copy(update={"tiers": (true.tiers[0], outer)})
    rows = [
        Measurement("all-gather", n, n // 8, s, float(collective_time_s("all-gather", s, n, 1, made)))
        for n in (16, 32)
        for s in SIZES
    ]
    fit = fit_cluster([csv(tmp_path / "nodes.csv", rows)], device="h100", nodes=4)
    tier = load_cluster(fit.record).tiers[1]
    assert "42 rows of nodes.csv" in tier.sources["efficiency"].source
    curve, found = tier.curves["all-gather"], fit.fits["cluster", "all-gather"]
    assert (curve.unit_ranks, curve.ranks) == (8, (16, 32))
    assert median_errors(curve, rows)[0] < 0.03
    low, high = found.bus_bandwidth_interval(32)
    assert low < 8 * 0.6 * 50e9 * 1.1 and high > 8 * 0.6 * 50e9 * 0.9


@pytest.mark.parametrize("spread", [False, True])
def test_intervals_of_the_outer_link_cover_what_made_the_rows(tmp_path, spread):
    """Whole nodes, and one rank a node: a ring of four ranks on four nodes has a card each, not the node's links."""
    true = load_cluster({"device": "h100", "nodes": 4})
    values = {"latency_s": 1.2e-5, "efficiency": 0.6}
    made = true.model_copy(update={"tiers": (true.tiers[0], true.tiers[1].model_copy(update=values))})
    inside = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows = [
            Measurement(op, n, n if spread else n // 8, s, float(time * np.exp(0.03 * rng.standard_normal())))
            for op in ("all-gather", "all-to-all")
            for n in ((2, 4) if spread else (16, 32))
            for s in SIZES[::2]
            if (time := collective_time_s(op, s, n, 8 if spread else 1, made)) > 0
        ]
        link = fit_cluster([csv(tmp_path / "nodes.csv", rows)], device="h100", nodes=4).link
        assert link.rows == len(rows) and link.error < 0.05
        for name, value in values.items():
            low, high = link.intervals[name]
            assert low < getattr(link, name) < high < 2 * low
            inside.append(low <= value <= high)
    assert np.mean(inside) >= 0.9


def test_groups_that_lie_unevenly_are_left_out_and_said(tmp_path):
    even = [Measurement("all-gather", 16, 2, s, 3e-5 + s / 2e11) for s in SIZES]
    odd = [Measurement("all-gather", 9, 2, s, 3e-5 + s / 2e11) for s in SIZES[:4]]
    fit = fit_cluster([csv(tmp_path / "n.csv", even + odd)], device="h100", nodes=2)
    assert fit.link.rows == len(even)
    assert any("4 rows of groups that lie unevenly" in note for note in fit.notes)
    assert fit.fits["cluster", "all-gather"].curve.ranks == (16,)


def test_rows_inside_and_beyond_a_node_are_fits_of_their_own(tmp_path):
    """On GB200 a tray, the rack and the network each have their all-reduce."""
    rows = [
        Measurement("all-reduce", n, nodes, s, start + s / rate)
        for n, nodes, start, rate in ((4, 1, 1e-5, 3e11), (16, 4, 2e-5, 2.5e11), (144, 36, 6e-5, 5e10))
        for s in SIZES
    ]
    fit = fit_cluster([csv(tmp_path / "all.csv", rows)], device="gb200", nodes=36)
    assert set(fit.fits) == {(tier, "all-reduce") for tier in ("node", "supernode", "cluster")}
    assert len({found.curve.bandwidth_bytes_per_s for found in fit.fits.values()}) == 3


def test_logs_of_which_most_lines_are_flagged_are_refused(tmp_path):
    rows = rows_of(TRUE, ranks=(8,))
    wrong = [Measurement(r.op, 8, 1, r.size_bytes, r.time_s / 1000) for r in rows if r.size_bytes > 2**17]
    assert fit_cluster([csv(tmp_path / "few.csv", rows + wrong)], device="h100", nodes=1).problems
    with pytest.raises(InputError, match=r"15 lines.*are flagged, 8 are not"):
        fit_cluster([csv(tmp_path / "most.csv", rows[:8] + wrong)], device="h100", nodes=1)


@pytest.mark.parametrize("name", ["mine.yaml", "mine.json"])
@pytest.mark.parametrize("op", ["all-reduce", "all-to-all"])
def test_a_log_over_nodes_is_what_every_command_answers(tmp_path, name, op):
    """16 devices on 2 nodes, 25 us and 20 GB/s a card: the written file is read again, and prices its own rows."""
    share = (
        1.875 / 8 if op == "all-reduce" else 0.5
    )  # a node's eight cards share a ring; a message has its own
    rows = [Measurement(op, 16, 2, size, 25e-6 + share * size / 20e9) for size in SIZES]
    fit = fit_cluster([csv(tmp_path / "n.csv", rows)], device="h100", nodes=2)
    cluster = load_cluster(write_cluster(tmp_path / name, fit))
    for row in rows:
        answer = collective(op, cluster, 16, row.size_bytes)
        assert answer.time_s == pytest.approx(row.time_s, rel=0.1)
        estimated = float(collective_time_s(op, float(row.size_bytes), 16, 1, cluster))
        assert estimated == pytest.approx(answer.time_s, rel=1e-9)


def test_what_no_curve_describes_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        Measurement("all-gather", 8, 1, s, (1e-5 + s / 3e11) * float(np.exp(rng.normal(0.7, 0.6))))
        for s in SIZES
    ]
    with pytest.raises(InputError, match="no curve describes"):
        fit_cluster([csv(tmp_path / "wild.csv", rows)], device="a100-80gb", nodes=1)
    with pytest.raises(InputError, match="too few to fit anything"):
        fit_cluster([csv(tmp_path / "one.csv", rows[:1])], device="a100-80gb", nodes=1)


def test_what_does_not_fit_is_flagged_by_line(tmp_path):
    rows = rows_of(TRUE, sizes=SIZES[8:])
    busy = Measurement("all-gather", 8, 1, 2**30, 2**30 * bus_factor("all-gather", 8) / 600e9)
    wide = [
        Measurement("all-gather", 16, 1, 2**20, 1e-4),
        Measurement("all-gather", 64, 8, 2**20, 1e-4),
        busy,
    ]
    fit = fit_cluster([csv(tmp_path / "a.csv", [*rows, *wide])], device="h100", nodes=4)
    at = len(rows) + 2
    fields = [(p.field, p.rule.split(" fit ")[0][:12]) for p in fit.problems]
    assert [f for f, _ in fields] == [
        f"a.csv line {at}",
        f"a.csv line {at + 1}",
        f"a.csv line {at + 2} busbw",
    ]
    assert "2 nodes of 8" not in str(fit.problems) and "4 nodes of 8" in fit.problems[0].rule
    with pytest.raises(InputError, match="no row that fits"):
        fit_cluster([csv(tmp_path / "b.csv", wide)], device="h100", nodes=4)


def test_an_all_reduce_in_the_switch_is_said_to_be_no_wire_rate(tmp_path):
    rows = [r for r in published_rows()["H100", "all-reduce"] if r.ranks == 8]
    fit = fit_cluster([csv(tmp_path / "nvls.csv", rows)], device="h100", nodes=1)
    assert any("no wire rate" in note for note in fit.notes)
    assert fit.fits["node", "all-reduce"].curve.in_switch_bytes_per_s
    assert median_errors(fit.fits["node", "all-reduce"].curve, rows)[0] < 0.08


def test_too_few_rows_keep_the_catalog(tmp_path):
    rows = [*rows_of(TRUE), Measurement("broadcast", 8, 1, 2**24, 1e-4)]
    fit = fit_cluster([csv(tmp_path / "a.csv", rows)], device="a100-80gb", nodes=1)
    assert ("node", "broadcast") not in fit.fits
    assert any(note.startswith("broadcast over the node: 1 rows") for note in fit.notes)
    with pytest.raises(InputError, match=r"\.json, \.yaml"):
        write_cluster(tmp_path / "cluster.txt", fit)
