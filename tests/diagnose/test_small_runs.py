"""Three ranks, of which one has a slow host; the threshold of outliers computed by hand; what is measured once."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from telekit.diagnose.analysis import features
from telekit.diagnose.diagnosis import diagnose
from telekit.diagnose.faults import Fault, TracedJob, generate
from telekit.diagnose.pairing import launch_of, launches_of
from telekit.diagnose.rules.outliers import Z, persistent, spread_below
from telekit.diagnose.trace import Trace

THREE = TracedJob(ranks=3, tp=1, pp=1, ep=1, layers=1, micro_batches=2, steps=5)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("times", [4.0, 10.0])
def test_one_of_three_hosts_launches_slowly(rank, times):
    run = generate(Fault("slow-launch", (rank,), tuple(range(THREE.steps)), times), THREE, seed=rank).traces
    first = diagnose(run).findings[0]
    assert (first.kind, first.scope, first.ranks, first.cause) == ("slow launch", "rank", (rank,), "host")


def test_three_healthy_hosts_are_healthy():
    assert all(diagnose(generate("healthy", THREE, seed=seed).traces).healthy for seed in range(4))


def test_launches_are_measured_once_a_rank(monkeypatch):
    measured = {"launch_cost": [], "launch_queue": []}
    for name, calls in measured.items():
        original = getattr(features, name)
        monkeypatch.setattr(features, name, lambda t, f=original, c=calls: c.append(t.rank) or f(t))
    job = TracedJob.of(16, layers=1, micro_batches=2, steps=4)
    assert not diagnose(generate("slow-launch-everywhere", job, seed=1).traces).healthy
    assert measured == {"launch_cost": list(range(16)), "launch_queue": list(range(16))}


def test_the_threshold_between_rows_by_hand():
    """Levels 0, 1, 2, 3 and x: lower quartile 1; quantiles 0.4 and 0.05 are 1.6 and 0.2, over 5 rows once more 4/5.

    The deviation is 1.4 / 1.3915 * 1.8 = 1.811, so that 6 of them above 1 begin at 11.866.
    """
    deviation = (1.6 - 0.2) / (norm.ppf(0.4) - norm.ppf(0.05)) * (1 + 4 / 5)
    assert deviation == pytest.approx(1.811, abs=5e-4) and Z == 6
    for x, flagged in ((11.86, False), (11.87, True)):
        values = np.repeat([[0.0], [1.0], [2.0], [3.0], [x]], 4, axis=1)
        assert spread_below(values[:, 0]) == pytest.approx(deviation, rel=1e-4)
        found = persistent(values, 0.1, 1e-9)
        assert [o.row for o in found] == ([4] if flagged else [])
        if flagged:
            assert found[0].score == pytest.approx((x - 1) / deviation, rel=1e-4)
            assert found[0].excess == pytest.approx(x - 1) and found[0].steps == (0, 1, 2, 3)


def test_the_threshold_within_rows_by_hand():
    """Rows at 0 and one at x, steps 1 to both sides: a median of 4 steps errs by 1.2533 * 1.4826 / 2 = 0.929."""
    error = math.sqrt(math.pi / 2) * 1 / norm.ppf(0.75) / math.sqrt(4)
    assert error == pytest.approx(0.929, abs=5e-4)
    for x, flagged in ((5.57, False), (5.58, True)):
        values = np.tile([-1.0, 1.0, -1.0, 1.0], (6, 1))
        values[2] += x
        assert [o.row for o in persistent(values, 0.1, 1e-9)] == ([2] if flagged else [])


def test_z_is_rare_in_a_large_healthy_run():
    """Six deviations above the lower quartile are 5.33 above the mean: of 512 normal ranks with probability 3e-5."""
    above_mean = Z + norm.ppf(0.25)
    assert 512 * norm.sf(above_mean) == pytest.approx(2.6e-5, rel=0.02)


def test_a_kernel_belongs_to_the_earliest_launch_of_its_id_or_to_none():
    records = [
        {"name": "launch", "kind": "launch", "start_s": 0.0, "end_s": 0.1, "correlation": 5},
        {"name": "launch", "kind": "launch", "start_s": 1.0, "end_s": 1.1, "correlation": 5},
        {"name": "launch", "kind": "launch", "start_s": 1.2, "end_s": 1.3},
        {"name": "tied", "kind": "kernel", "start_s": 2.0, "end_s": 3.0, "correlation": 5},
        {"name": "other id", "kind": "kernel", "start_s": 3.0, "end_s": 4.0, "correlation": 9},
        {"name": "no id", "kind": "kernel", "start_s": 4.0, "end_s": 5.0},
    ]
    trace = Trace.of(records)
    work = np.flatnonzero(trace.on_device)
    assert launches_of(trace).tolist() == [0, 1]
    assert launch_of(trace, work).tolist() == [0, -1, -1]
    assert launch_of(trace, work, np.array([1])).tolist() == [1, -1, -1]
    assert launch_of(trace.select(trace.on_device), np.arange(3)).tolist() == [-1, -1, -1]
