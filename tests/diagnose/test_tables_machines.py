"""Metrics of machines as CSV: Minder without earlier runs names who stays unlike the others, and nobody else."""

import json

import numpy as np
import pytest

from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.minder.detect import Rules, detect
from telekit.diagnose.minder.generate import FAULT_KINDS, MachineFault, draw_fault, generate
from telekit.diagnose.minder.metrics import MachineMetrics, align
from telekit.diagnose.minder.model import mean_distances
from telekit.diagnose.minder.untrained import untrained
from telekit.errors import InputError

BEGIN = 1_700_000_000


def named(metrics, stride=4):
    return detect(untrained(metrics), metrics, Rules(all_metrics=True), stride=stride).machines


def write(path, run, who="machine", names=None, keep=None):
    """One row a machine and second; a missing sample is an empty cell."""
    metrics = run.metrics
    kept = [i for i, n in enumerate(metrics.names) if keep is None or n in keep]
    lines = ["timestamp," + who + "," + ",".join(metrics.names[i].replace("%", "(%)") for i in kept)]
    for m, machine in enumerate(names or metrics.machines):
        for t in range(metrics.samples):
            cells = (metrics.values[i, m, t] for i in kept)
            lines.append(
                f"{BEGIN + t},{machine}," + ",".join("" if np.isnan(c) else f"{c:.6g}" for c in cells)
            )
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("seed", range(6))
def test_no_alert_without_a_fault(seed):
    assert not named(generate(16, 900, seed=seed).metrics), "glitches pass"
    assert not named(generate(16, 900, slow_down=(300, 0.5), seed=seed).metrics), "all machines slow down"
    assert not named(generate(16, 900, missing=0.2, seed=seed).metrics)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_two_minutes_are_a_glitch_and_four_minutes_are_a_fault(kind):
    right = 0
    for seed in range(3):
        run = generate(16, 900, MachineFault(kind, 5, 300, 420), glitches_per_hour=0, seed=seed)
        assert not named(run.metrics)
        run = generate(16, 900, MachineFault(kind, 5, 300, 580), glitches_per_hour=0, seed=seed)
        found = named(run.metrics)
        assert found <= {"machine-5"}
        right += bool(found)
    assert right >= 2


def test_faults_drawn_by_chance():
    right = wrong = 0
    for seed in range(20):
        run = generate(16, 900, draw_fault(900 + seed), seed=900 + seed)
        found = named(run.metrics)
        right, wrong = right + (found == run.faulty), wrong + bool(found - run.faulty)
    assert right >= 17 and wrong == 0


def test_small_lasting_differences_and_constant_metrics_are_nothing():
    random = np.random.default_rng(0)
    values = np.stack([68 + 1e-4 * random.standard_normal((8, 600)), np.full((8, 600), 3.0)])
    values[0, 2] += 1.0  # 1.5 % of the level, ten thousand deviations away
    model = untrained(MachineMetrics(("memory GB", "constant"), tuple("abcdefgh"), values))
    assert list(model.metrics) == ["memory GB"]
    assert not named(MachineMetrics(("memory GB",), tuple("abcdefgh"), values[:1]))
    values[0, 2] += 30.0
    assert named(MachineMetrics(("memory GB",), tuple("abcdefgh"), values[:1])) == {"c"}


@pytest.mark.parametrize("who", ["machine", "rank"])
def test_the_csv(tmp_path, who):
    run = generate(12, 700, MachineFault("nic-drop", 7, 200, 600), missing=0.02, seed=3)
    names = [str(i) for i in range(12)] if who == "rank" else None
    write(tmp_path / "m.csv", run, who, names)
    found = diagnose(tmp_path)
    (finding,) = found.findings
    assert (finding.kind, finding.cause) == ("unlike machine", "unknown")
    assert (finding.ranks, finding.machines) == (((7,), ()) if who == "rank" else ((), ("machine-7",)))
    evidence = finding.evidence[0]
    assert 170 <= evidence.start_s - BEGIN <= 230 and evidence.end_s - evidence.start_s == pytest.approx(
        240, abs=5
    )
    assert "2023-11-14 22:1" in evidence.text and finding.detail in evidence.text
    words = {n.split()[0] for n in FAULT_KINDS["nic-drop"]}
    assert finding.detail.split("_")[0] in words, "a metric that the fault moves"
    assert any("without metrics of healthy runs" in n for n in found.tables[0].notes)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["stragglers"][0].get("machine") == (None if who == "rank" else "machine-7")
    assert document["stragglers"][0]["rank"] == (7 if who == "rank" else None)


def test_one_file_a_rank_a_long_form_and_a_late_fault_of_a_long_run(tmp_path):
    run = generate(6, 3600, MachineFault("gpu-drop", 4, 2500, 3100), glitches_per_hour=0, seed=1)
    power = run.metrics.filled("gpu power W")
    for rank in range(6):
        rows = "".join(f"{10 * t},{power[rank, 10 * t]:.5g}\n" for t in range(360))
        (tmp_path / f"rank_{rank}.csv").write_text("time,power (W)\n" + rows)
    found = diagnose(tmp_path)
    assert [f.ranks for f in found.findings] == [(4,)] and "one" not in found.tables[0].says
    assert 2400 <= found.findings[0].evidence[0].start_s <= 2600
    assert "10 s" in found.tables[0].says
    (tmp_path / "long").mkdir()
    rows = [f"{10 * t},host{m},power,{power[m, 10 * t]:.5g}\n" for t in range(360) for m in range(6)]
    (tmp_path / "long" / "m.csv").write_text("time,host,metric,value\n" + "".join(rows))
    assert [f.machines for f in diagnose(tmp_path / "long").findings] == [("host4",)]


def test_a_machine_that_stops_reporting_is_said_and_not_called_faulty(tmp_path):
    """Averages are of what was measured: a sample that is missing is not made up for hours."""
    run = generate(8, 900, glitches_per_hour=0, seed=1)
    values = run.metrics.values[[run.metrics.names.index("gpu power W")]]
    values[:, 2, 300:880] *= 0.5
    values[:, 5, 400:] = np.nan
    values[:, 2, 420:440] = np.nan
    rows = [f"{BEGIN + t},machine-{m},{values[0, m, t]:.5g}" for m in range(8) for t in range(900)
            if np.isfinite(values[0, m, t])]  # fmt: skip
    path = tmp_path / "metrics.csv"
    path.write_text("timestamp,machine,power\n" + "\n".join(rows) + "\n")
    found = diagnose(path)
    assert [f.machines for f in found.findings] == [("machine-2",)]
    (report,) = found.tables
    assert "machine-5 not reporting since 2023-11-14 22:20:00 UTC" in report.says
    assert any("machine-2: not reporting from" in note for note in report.notes)
    (evidence,) = found.findings[0].evidence
    begin, end = (round(t - BEGIN) for t in (evidence.start_s, evidence.end_s))
    measured = np.nanmean(values[0, 2, begin:end])
    assert float(evidence.text.split("power ")[1].split(" on average")[0]) == pytest.approx(
        measured, rel=2e-3
    )


def test_what_cannot_be_compared_is_said(tmp_path):
    write(tmp_path / "m.csv", generate(2, 300, seed=0))
    assert any("takes 3" in n for n in diagnose(tmp_path).tables[0].notes)
    write(tmp_path / "m.csv", generate(4, 100, seed=0))
    assert any("shorter than the 240 s" in n for n in diagnose(tmp_path).tables[0].notes)
    (tmp_path / "m.csv").write_text("time,power\n1,2\n2,3\n")
    with pytest.raises(InputError, match="no column says whose"):
        diagnose(tmp_path)
    rows = "".join(f"{t},{m},{5 + t % 2}\n" for t in range(20) for m in "abc")
    (tmp_path / "m.csv").write_text("time,machine,power\n" + rows + "oops,a,3\n3,,4\n1e300,b,5\n5,b,x\n5,b")
    found = diagnose(tmp_path)
    assert found.tables[0].rows[0]["median"] == 5.5 and "3 machines, 1 metrics, 20 s" in found.tables[0].says
    told = " ".join(map(str, found.problems))
    for reason in ("2: a sample without a time or machine", "1: a sample is over 30 days", "has not as many cells",
                   "'power' is no number"):  # fmt: skip
        assert reason in told


def test_a_table_cut_inside_its_last_cell_is_reported(tmp_path):
    path = tmp_path / "metrics.csv"
    write(path, generate(4, 60, seed=1))
    whole = diagnose(path)
    path.write_text(path.read_text()[:-4])
    cut = diagnose(path)
    assert not any("no end" in str(p) for p in whole.problems)
    assert [p.lost for p in cut.problems if "no end" in p.reason and p.count == 1] == [False]
    assert len(cut.tables[0].rows) == len(whole.tables[0].rows)


def test_samples_in_any_order_are_put_where_they_belong():
    random = np.random.default_rng(4)
    time, machine = random.integers(0, 50, 400) + random.uniform(-0.3, 0.3, 400), random.integers(0, 5, 400)
    metric, value = random.integers(0, 3, 400), random.standard_normal(400)
    value[::17] = np.nan
    found = align(time, [f"m{m}" for m in machine], [f"x{k}" for k in metric], value)
    wanted = {}
    for i in np.argsort(time, kind="stable"):  # of several on one place the last in time
        if np.isfinite(value[i]):
            wanted[metric[i], machine[i], round(time[i])] = value[i]
    first = round(found.start_s)
    for k, m, t in np.ndindex(found.values.shape):
        expected = wanted.get((k, m, t + first), np.nan)
        assert found.values[k, m, t] == pytest.approx(expected, nan_ok=True)


def test_many_machines_are_compared_as_few_are():
    random = np.random.default_rng(5)
    points = random.standard_normal((3, 80, 8))
    apart = np.sqrt(((points[:, :, None] - points[:, None]) ** 2).sum(axis=-1)).sum(axis=2) / 79
    assert mean_distances(points) == pytest.approx(apart, rel=1e-4)
