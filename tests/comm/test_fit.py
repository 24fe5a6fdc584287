"""The fit gives back what made the data, says what it could not see, and a user's logs become a cluster."""

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cluster.curves import Curve, bus_factor
from telekit.comm.calibrate import published_rows
from telekit.comm.collectives import collective_time_s
from telekit.comm.fit import fit_curve, hold_out, median_errors
from telekit.comm.measurements import Measurement
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
    in_switch_bytes_per_s=2.6e11,
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
    fit = fit_curve(rows_of(curve, op), link_bytes_per_s=4.5e11, in_switch=curve is SWITCHED)
    names = ["start_s", "step_s", "bandwidth_bytes_per_s", "low_latency_ratio", "ramp_s"]
    names.append("rank_exponent" if curve is TRUE else "in_switch_bytes_per_s")
    for name in names:
        assert getattr(fit.curve, name) == pytest.approx(getattr(curve, name), rel=0.03), name
    assert not fit.held


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    inside = total = 0
    for seed in range(20):
        fit = fit_curve(rows_of(TRUE, noise=0.05, seed=seed), link_bytes_per_s=4.5e11)
        for name, (low, high) in fit.intervals.items():
            assert low < getattr(fit.curve, name) < high
            inside += low <= getattr(TRUE, name) <= high
            total += 1
    assert 0.85 <= inside / total <= 1.0


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
    assert fit.held == ("step_s", "low_latency_ratio", "ramp_s", "rank_exponent")
    assert set(fit.intervals) == {"start_s", "bandwidth_bytes_per_s"}
    assert [note.split()[0] for note in fit.notes] == list(fit.held)
    small = fit_curve(rows_of(TRUE, sizes=[2**k for k in range(12, 22)]), link_bytes_per_s=4.5e11)
    assert small.held == ("ramp_s",)


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
    assert set(fit.fits["all-gather"].intervals) >= {"start_s", "bandwidth_bytes_per_s"}


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
    assert tier.efficiency == pytest.approx(0.6, rel=0.02) and tier.latency_s == pytest.approx(
        1.2e-5, rel=0.05
    )
    assert "42 rows of nodes.csv" in tier.sources["efficiency"].source


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
    assert fit.fits["all-reduce"].curve.in_switch_bytes_per_s
    assert median_errors(fit.fits["all-reduce"].curve, rows)[0] < 0.08


def test_too_few_rows_keep_the_catalog(tmp_path):
    rows = [*rows_of(TRUE), Measurement("broadcast", 8, 1, 2**24, 1e-4)]
    fit = fit_cluster([csv(tmp_path / "a.csv", rows)], device="a100-80gb", nodes=1)
    assert "broadcast" not in fit.fits and any(note.startswith("broadcast: 1 rows") for note in fit.notes)
    with pytest.raises(InputError, match=r"\.json, \.yaml"):
        write_cluster(tmp_path / "cluster.txt", fit)
