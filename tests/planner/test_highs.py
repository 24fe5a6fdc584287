"""HiGHS behind a pipe: a hang is ended, an error is said, and nothing outlives its caller."""

import os
import subprocess
import sys
import time

import pytest
from test_solver import knapsack

from telekit.errors import TelekitError
from telekit.planner import highs
from telekit.planner.solver import solve

NOTHING = {"cost": [], "lower": [], "upper": [], "whole": [], "row_lower": [], "row_upper": [],
           "start": [0], "index": [], "value": []}  # fmt: skip


@pytest.fixture(autouse=True)
def no_idle_processes():
    """Each test starts, and leaves, without processes of others."""
    highs._end_all()
    yield
    highs._end_all()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(pid):
    for _ in range(200):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


def test_a_process_is_kept_for_the_next_solve():
    with highs.process() as first:
        pass
    with highs.process() as second, highs.process() as third:
        assert second is first
        assert third is not first
    assert solve(knapsack([3, 4], [5, 6], 7)).objective == 18
    assert len(highs._idle) == 2


def test_a_solve_that_hangs_is_ended_and_the_next_one_works(monkeypatch):
    """HiGHS 1.16 can loop in its presolve, past its time limit."""
    deaf = "import sys, time; sys.stdin.readline(); time.sleep(600)"
    monkeypatch.setattr(highs, "COMMAND", (sys.executable, "-c", deaf))
    monkeypatch.setattr(highs, "GRACE_S", 0.2)
    with highs.process() as stuck:
        assert stuck.ask(0.1, model=NOTHING) is None
        assert not stuck.lives
    found = solve(knapsack([3, 4], [5, 6], 7), time_limit_s=0.1)
    assert (found.status, found.objective) == ("unknown", None)
    monkeypatch.undo()
    assert solve(knapsack([3, 4], [5, 6], 7)).status == "optimal"


def test_a_crash_is_no_answer(monkeypatch):
    monkeypatch.setattr(highs, "COMMAND", (sys.executable, "-c", "raise SystemExit(1)"))
    assert solve(knapsack([3, 4], [5, 6], 7)).status == "unknown"


def test_what_highs_refuses_is_said():
    with highs.process() as process, pytest.raises(TelekitError, match="HiGHS cannot solve this: KeyError"):
        process.ask(1.0, model={})


def test_an_exception_meanwhile_ends_the_process():
    with pytest.raises(KeyboardInterrupt), highs.process() as process:
        raise KeyboardInterrupt
    assert not alive(process.pid)
    assert not highs._idle


@pytest.mark.skipif(os.name != "posix", reason="fork and parents as POSIX has them")
def test_the_process_ends_with_its_parent():
    code = (
        "import os; from telekit.planner.highs import Process; print(Process().pid, flush=True); os._exit(0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert wait_for_end(int(run.stdout))


@pytest.mark.skipif(os.name != "posix", reason="fork and parents as POSIX has them")
def test_a_fork_does_not_use_its_parent_s_process(monkeypatch):
    with highs.process() as mine:
        pass
    monkeypatch.setattr(highs.os, "getpid", lambda: mine.owner + 1)  # as in a forked child
    assert not mine.lives
    with highs.process() as other:
        assert other is not mine
    monkeypatch.undo()
    mine.end()
    other.end()
