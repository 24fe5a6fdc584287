"""What bounds a device: its host, an idle mode, a monitor; each against brute force or a closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.cluster.regimes import IdleFrequency, Monitor, bound_by, issue
from telekit.errors import InputError


def test_kernels_shorter_than_their_launches_are_host_bound():
    # traceopt: kernels of 5 us launched every 12 us
    run = issue(12e-6, np.full(1000, 5e-6))
    assert run.busy_share == pytest.approx(5 / 12, abs=1e-3)
    assert run.queued_s == pytest.approx(np.zeros(1000))
    assert run.idle_s == pytest.approx(np.full(999, 7e-6))
    assert run.ahead.max() == 1
    assert bound_by(12e-6, 5e-6, 1000) == ("host", pytest.approx(run.end_s[-1]))


def test_kernels_longer_than_their_launches_are_device_bound():
    run = issue(12e-6, np.full(1000, 20e-6))
    assert run.busy_share == pytest.approx(1)
    assert np.diff(run.queued_s) == pytest.approx(np.full(999, 8e-6))
    assert bound_by(12e-6, 20e-6, 1000) == ("device", pytest.approx(run.end_s[-1]))
    assert run.ahead[-1] == pytest.approx(1000 * 8 / 20, abs=1)


def test_a_full_queue_holds_the_host_back_and_not_the_device():
    free, full = issue(1e-6, np.full(100, 10e-6)), issue(1e-6, np.full(100, 10e-6), queue_depth=4)
    assert full.end_s == pytest.approx(free.end_s)
    assert full.ahead.max() == 4
    assert full.launched_s[50] == pytest.approx(full.end_s[46])


times = st.lists(st.floats(0, 1e-3), min_size=1, max_size=20)


@given(times, times, st.integers(1, 8))
def test_issue_is_the_longest_path(host, kernel, depth):
    count = min(len(host), len(kernel))
    host, kernel = host[:count], kernel[:count]
    run = issue(host, kernel, depth)
    launched, ended = [], []
    for i in range(count):  # the recursion once more, by hand, over lists
        before = launched[-1] if launched else 0.0
        launched.append(max(before + host[i], ended[i - depth] if i >= depth else 0.0))
        ended.append(max(launched[-1], ended[-1] if ended else 0.0) + kernel[i])
    assert run.end_s == pytest.approx(ended, abs=1e-15)
    if depth >= count:  # no limit: the longest of all ways over the host, then over the device
        ways = [sum(host[: j + 1]) + sum(kernel[j:]) for j in range(count)]
        assert run.end_s[-1] == pytest.approx(max(ways), abs=1e-12)


def stepped(mode, work, idle, tick=1e-6):
    """Time each stretch in small ticks."""
    slow_left, found = 0.0, []
    for do, gap in zip(work, idle, strict=True):
        slow_left = mode.window_s if gap > mode.threshold_s else max(slow_left - gap, 0)
        time = 0.0
        while do > 1e-12:
            done = min(do, tick / mode.factor if slow_left > 0 else tick)
            used = done * (mode.factor if slow_left > 0 else 1)
            do, time, slow_left = do - done, time + used, slow_left - used
        found.append(time)
    return found


def test_the_idle_mode_against_ticks():
    mode = IdleFrequency(100e-6, 1.5, 300e-6)
    work, idle = [100e-6, 400e-6, 50e-6, 50e-6, 500e-6], [0, 150e-6, 20e-6, 200e-6, 90e-6]
    assert mode.work_s(work, idle) == pytest.approx(stepped(mode, work, idle), abs=3e-6)
    # the second stretch: 300 us slowly do 200 us of work, the other 200 us as usual
    assert mode.work_s([400e-6], [150e-6])[0] == pytest.approx(500e-6)
    assert mode.work_s([400e-6], [100e-6])[0] == pytest.approx(400e-6)  # not over the threshold


def test_a_higher_threshold_never_costs():
    work, idle = np.full(50, 2e-4), np.tile([5e-5, 2e-4, 1e-3], 17)[:50]
    costs = [IdleFrequency(t, 1.6, 1e-3).slowdown(work, idle) for t in (1e-5, 1e-4, 5e-4, 1e-2)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 1


@pytest.mark.parametrize("step_s", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("nodes", [1, 16, 512])
def test_monitors_against_drawn_phases(step_s, nodes):
    monitor = Monitor(1.0, 0.01)
    phases = np.random.default_rng(1).uniform(0, 1.0, (20_000, nodes))
    bursts = np.floor(step_s - phases) + 1  # that begin in [0, step): at phase, phase + 1, ...
    assert monitor.delay_s(step_s, nodes) == pytest.approx(0.01 * bursts.max(1).mean(), rel=0.02)
    assert monitor.delay_s(step_s, nodes, together=True) == pytest.approx(
        0.01 * bursts[:, 0].mean(), rel=0.04
    )


def test_bad_values_are_refused_together():
    with pytest.raises(InputError) as caught:
        IdleFrequency(-1, 0.5, -1)
    assert len(caught.value.problems) == 3
    for call in (lambda: Monitor(1, 2), lambda: Monitor(0, 0), lambda: issue([], []), lambda: issue([-1.0], [1.0]),
                 lambda: issue([1.0], [1.0], 0), lambda: bound_by(-1, 1, 1), lambda: Monitor(1, 0.5).delay_s(1, 0),
                 lambda: issue([float("nan")], [1.0])):  # fmt: skip
        with pytest.raises(InputError):
            call()
