"""Failures and checkpoints: the renewal process played out, its first order, and the best interval searched for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.cost.scaling_failures import (
    Failures,
    best_interval_s,
    daly_interval_s,
    effective_rate,
    first_order_rate,
    job_mtbf_s,
    time_shares,
    young_interval_s,
)
from telekit.errors import InputError

CASES = [
    (600.0, Failures(5000.0, 300.0, 400.0, 30.0)),
    (1800.0, Failures(11135.0, 600.0, 900.0, 60.0)),
    (9000.0, Failures(6000.0, 0.0, 100.0, 500.0)),
]


def play(interval, failures, cycles=4000, seed=3):
    """Play the process cycle by cycle: draw the next failure, work, stall, fail, start again."""
    rng = np.random.default_rng(seed)
    spent = np.zeros((cycles, 4))  # useful, checkpoints, lost, down
    for cycle in range(cycles):
        while True:
            until = rng.exponential(failures.mtbf_s)
            if until >= interval:  # memoryless: what is left of it does not matter
                spent[cycle, :2] += interval - failures.stall_s, failures.stall_s
                break
            spent[cycle, 2:] += until, failures.detect_s + failures.recover_s
    return spent


@pytest.mark.parametrize(("interval", "failures"), CASES)
def test_the_process_played_out_spends_its_time_so(interval, failures):
    spent = play(interval, failures)
    whole, found = spent.sum(), time_shares(interval, failures)
    shares = (found.useful, found.checkpoints, found.lost, found.down)
    for column, share in enumerate(shares):
        residual = spent[:, column] - share * spent.sum(axis=1)  # ratio estimator
        assert abs(residual.sum()) / whole <= 4 * residual.std() * len(spent) ** 0.5 / whole + 1e-12
    assert sum(shares) == pytest.approx(1)
    assert effective_rate(interval, failures) == found.useful


def test_a_failure_that_a_log_of_the_whole_run_sees():
    """One clock for the whole run, failures at absolute times of running: the same share."""
    interval, f = CASES[1]
    rng = np.random.default_rng(11)
    saved = clock = 0.0
    alive = rng.exponential(f.mtbf_s)
    for _ in range(60_000):
        if alive >= interval:
            alive, clock, saved = alive - interval, clock + interval, saved + interval - f.stall_s
        else:
            clock, alive = clock + alive + f.down_s, rng.exponential(f.mtbf_s)
    assert saved / clock == pytest.approx(effective_rate(interval, f), rel=0.01)


@given(st.floats(0.001, 0.2), st.floats(0, 0.4), st.floats(0, 0.5))
def test_the_first_order_is_low_by_a_twelfth_of_the_square(x, stall, down):
    f = Failures(1.0, down, 0.0, stall * x)
    exact, first = effective_rate(x, f), first_order_rate(x, f)
    assert first <= exact
    assert 1 - first / exact == pytest.approx(x**2 / 12, rel=x, abs=1e-12)


@pytest.mark.parametrize("failures", [f for _, f in CASES])
def test_the_best_interval_beats_every_other(failures):
    best = best_interval_s(failures)
    top = effective_rate(best, failures)
    grid = failures.stall_s + np.geomspace(1, 20 * failures.mtbf_s, 4000)
    rates = np.array([effective_rate(c, failures) for c in grid])
    assert top >= rates.max() and grid[rates.argmax()] == pytest.approx(best, rel=0.01)
    assert best_interval_s(Failures(failures.mtbf_s, 9e9, 9e9, failures.stall_s)) == best


def test_young_and_daly_are_near_where_checkpoints_are_cheap():
    f = Failures(10_000.0, stall_s=10.0)
    best = best_interval_s(f)
    assert daly_interval_s(f) == pytest.approx(best, rel=1e-4)
    assert young_interval_s(f) == pytest.approx(best, rel=0.02)
    dear = Failures(100.0, stall_s=150.0)
    assert daly_interval_s(dear) == pytest.approx(best_interval_s(dear), rel=0.02)
    assert daly_interval_s(Failures(100.0, stall_s=300.0)) == 400.0
    assert best_interval_s(Failures(100.0)) == pytest.approx(0, abs=1e-9)


def test_the_best_interval_is_lamberts():
    from scipy.special import lambertw

    for ratio in (1e-4, 0.01, 0.3, 5.0):
        want = 1 + ratio + lambertw(-np.exp(-1 - ratio)).real
        assert best_interval_s(Failures(1.0, stall_s=ratio)) == pytest.approx(want, rel=1e-7)


def test_the_first_of_many_exponential_failures():
    drawn = np.random.default_rng(5).exponential(700.0, (40_000, 16)).min(axis=1)
    assert job_mtbf_s(700.0, 16) == pytest.approx(drawn.mean(), rel=0.03)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Failures(0.0), "mtbf_s"),
        (lambda: Failures(1.0, stall_s=-1.0), "stall_s"),
        (lambda: effective_rate(10.0, Failures(100.0, stall_s=10.0)), "longer than the stall"),
        (lambda: effective_rate(10.0, Failures(0.001)), "never ends"),
        (lambda: job_mtbf_s(1.0, 0), "at least one device"),
    ],
)
def test_impossible_values_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
