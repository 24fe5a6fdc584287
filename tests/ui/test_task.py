"""Long work behind a button: it does not block, it can be stopped, it says how it ended."""

import threading

import pytest

from telekit.ui.task import Task

WAIT_S = 30.0


def test_work_runs_while_the_caller_goes_on():
    gate, shown = threading.Event(), []

    def work(progress):
        progress(0, 2, "first half")
        assert gate.wait(WAIT_S)
        progress(2, 2, "all of it")
        return 42

    task = Task(work, shown.append, "Plan")
    task.button.click()
    assert task.running and task.button.disabled and not task.halt.disabled
    gate.set()
    assert task.wait(WAIT_S) == 42
    assert shown == [42] and task.error is None
    assert (task.bar.value, task.bar.bar_style) == (1.0, "success")
    assert not task.button.disabled and task.halt.disabled


def test_it_can_be_stopped():
    begun, stopped = threading.Event(), threading.Event()

    def work(progress):
        for i in range(10**9):
            progress(i, 10**9, f"layout {i}")
            begun.set()
            assert not i or stopped.wait(WAIT_S)
        raise AssertionError("never stopped")

    task = Task(work, lambda _: pytest.fail("a stopped task has nothing to show"))
    task.start()
    assert begun.wait(WAIT_S)
    task.halt.click()
    stopped.set()
    assert task.wait(WAIT_S) is None
    assert not task.running and task.error is None and "stopped" in task.note.value


def test_a_second_press_does_not_start_a_second_run():
    gate, runs = threading.Event(), []

    def work(progress):
        runs.append(1)
        assert gate.wait(WAIT_S)

    task = Task(work, lambda _: None)
    task.start()
    task.start()
    gate.set()
    task.wait(WAIT_S)
    assert runs == [1]


@pytest.mark.parametrize("where", ["work", "done"])
def test_an_error_is_said_beside_the_button(where):
    def fail(_):
        raise ValueError("no layout fits <64 GiB>")

    task = Task(fail, lambda _: None) if where == "work" else Task(lambda _: 1, fail)
    task.start()
    task.wait(WAIT_S)
    assert isinstance(task.error, ValueError)
    assert "no layout fits &lt;64 GiB&gt;" in task.note.value
    assert task.bar.bar_style == "danger" and not task.button.disabled


def test_progress_is_thinned_but_its_end_is_shown(monkeypatch):
    notes = []
    task = Task(lambda progress: [progress(i, 5000, f"step {i}") for i in range(5001)], lambda _: None)
    task.note.observe(lambda change: notes.append(change.new), "value")
    monkeypatch.setattr("time.monotonic", lambda: 1.0)  # a clock that stands still: only first and last pass
    task.start()
    task.wait(WAIT_S)
    assert len(notes) == 3  # step 0, step 5000, and how it ended
    assert "step 5000" in notes[1]
