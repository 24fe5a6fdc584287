"""Small panels for the browser tests, in place of a chapter's: they err, take long and can be counted."""

import threading

import altair as alt
import ipywidgets as W  # noqa: N812

from telekit.ui.explorer import Explorer
from telekit.ui.task import Task

AT_WORK = threading.Event()


def _rows(experts: int, ep: int) -> dict:
    if experts % ep:
        raise ValueError(f"ep={ep} does not divide experts={experts}")
    return {"load": [{"rank": i, "experts": experts // ep} for i in range(ep)]}


def explorer() -> Explorer:
    chart = alt.Chart(alt.NamedData("load"), width=300, height=120, description="Experts of each rank")
    return Explorer(
        {
            "experts": W.IntSlider(value=8, min=4, max=64, description="experts"),
            "ep": W.Dropdown(options=[1, 2, 3, 4], value=2, description="EP ranks"),
        },
        chart.mark_bar().encode(x="rank:O", y="experts:Q"),
        _rows,
        lambda experts, ep: f"<b>{experts // ep}</b> experts on each of {ep} ranks",
        lambda experts, ep: [f"Each rank holds {experts // ep} of {experts} experts"],
        title="Who holds the experts?",
    )


def long_task() -> W.HBox:
    """Work that ends only when it is stopped."""

    def work(progress):
        for i in range(10**6):
            progress(i, 10**6, f"step {i}")
            AT_WORK.wait(0.02)

    task = Task(work, lambda _: None, "Work")
    box = W.HBox([task.button, task.halt, task.bar, task.note])
    box.add_class("sample-task")
    return box
