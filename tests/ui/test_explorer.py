"""Panels without a browser: they follow their controls, and say their errors."""

import threading

import altair as alt
import ipywidgets as W  # noqa: N812
import pytest

from telekit.errors import InputError, Problem
from telekit.ui.explorer import AS_FIRST_DRAWN, Explorer, sentence


def chart(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name)).mark_bar().encode(x="n:Q")


@pytest.fixture
def calls():
    return []


@pytest.fixture
def explorer(calls):
    def rows(experts, ep):
        calls.append((experts, ep))
        if experts % ep:
            raise ValueError(f"ep={ep} does not divide experts={experts} <b>")
        return {"each": [{"n": experts // ep}], "all": [{"n": experts}]}

    controls = {
        "experts": W.IntSlider(value=8, min=1, max=64, description="experts"),
        "ep": W.Dropdown(options=[1, 2, 3, 4], value=1, description="EP"),
    }
    return Explorer(
        controls,
        [chart("each"), chart("all")],
        rows,
        lambda experts, ep: f"{experts} over {ep}",
        lambda experts, ep: [f"{experts / ep:g} on each", f"{experts} in all"],
        title="Experts",
    )


def test_it_follows_its_controls(explorer):
    specs = [view.spec for view in explorer.views]
    explorer.controls["ep"].value = 4
    assert explorer.rows == {"each": [{"n": 2}], "all": [{"n": 8}]}
    assert explorer.titles == ["2 on each", "8 in all"]
    assert explorer.text == "8 over 4"
    assert all(view.spec is spec for view, spec in zip(explorer.views, specs, strict=True))


def test_several_moves_at_once_are_one(explorer, calls):
    calls.clear()
    assert explorer.set(experts=12, ep=3).error is None  # 8 over 3 on the way would be refused
    assert calls == [(12, 3)]
    assert explorer.values == {"experts": 12, "ep": 3}


def test_moves_on_several_threads_end_in_the_last_state():
    """A kernel hands out moves on threads of its own; a slow one, overtaken, must not be drawn over the newest."""
    reading, go_on = threading.Event(), threading.Event()

    def rows(a, b):
        if (a, b) == (1, 0):  # the first move reads its state, and is held up while the second one comes
            reading.set()
            assert go_on.wait(10)
        return {"t": [{"n": 10 * a + b}]}

    panel = Explorer(
        {"a": W.IntSlider(0), "b": W.IntSlider(0)},
        chart("t"),
        rows,
        lambda a, b: f"text {10 * a + b}",
        lambda a, b: [f"title {10 * a + b}"],
    )

    def move(name):
        panel.controls[name].value = 1

    first = threading.Thread(target=move, args=("a",))
    first.start()
    assert reading.wait(10)
    second = threading.Thread(target=move, args=("b",))
    second.start()
    second.join(0.3)  # without a lock it is through by now, and the first draws over it
    go_on.set()
    first.join(10), second.join(10)
    assert (panel.rows, panel.titles, panel.text) == ({"t": [{"n": 11}]}, ["title 11"], "text 11")


def test_rows_text_and_titles_belong_to_one_reading_of_the_controls():
    seen = []
    control = W.IntSlider(0)

    def rows(n):
        if n == 1:
            control.value = 2  # moves while it is being drawn, as another thread's would
        seen.append(("rows", n))
        return {"t": [{"n": n}]}

    panel = Explorer(
        {"n": control},
        chart("t"),
        rows,
        lambda n: seen.append(("text", n)) or f"text {n}",
        lambda n: seen.append(("title", n)) or [f"title {n}"],
    )
    seen.clear()
    panel.set(n=1)
    assert sorted(seen) == sorted((what, n) for what in ("rows", "text", "title") for n in (1, 2))
    assert (panel.rows, panel.titles, panel.text) == ({"t": [{"n": 2}]}, ["title 2"], "text 2")


def test_many_threads_that_set_controls_leave_a_panel_that_follows():
    panel = Explorer(
        {"a": W.IntSlider(0, max=999), "b": W.IntSlider(0, max=999)},
        chart("t"),
        lambda a, b: {"t": [{"n": a - b}]},
        lambda a, b: f"{a - b}",
    )

    def walk(k):
        for i in range(30):
            panel.set(a=i + k, b=i)

    threads = [threading.Thread(target=walk, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    difference = panel.values["a"] - panel.values["b"]
    assert panel.rows == {"t": [{"n": difference}]} and panel.text == f"{difference}"
    panel.controls["a"].value = 500
    assert panel.text == f"{500 - panel.values['b']}"


def test_an_unknown_control_is_refused(explorer):
    with pytest.raises(KeyError, match="tp"):
        explorer.set(tp=2)
    assert explorer.set(ep=2).rows["each"] == [{"n": 4}]  # and the panel still follows


def test_an_error_is_a_sentence_in_the_panel_and_the_old_chart_fades(explorer):
    explorer.set(ep=3)
    assert "ep=3 does not divide experts=8 &lt;b&gt;" in explorer.text
    assert isinstance(explorer.error, ValueError)
    assert all(view.stale for view in explorer.views)
    explorer.set(ep=2)
    assert explorer.error is None and explorer.text == "8 over 2"
    assert not any(view.stale for view in explorer.views)


def test_all_broken_rules_are_listed():
    error = InputError(
        [Problem("layout.tp", 3, "must divide 128"), Problem("layout.ep", 7, "must divide 256")]
    )
    said = sentence(error)
    assert said.count("<li>") == 2 and "layout.tp = 3: must divide 128" in said and "2 rules" in said
    assert "<li>" not in sentence(InputError(error.problems[:1]))


def test_the_bundle_says_something_without_a_kernel(explorer):
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == "<panel: Experts>"
    assert "8 over 1" in bundle["text/html"] and "<td>8</td>" in bundle["text/html"]


def test_long_tables_are_cut_in_the_fallback():
    explorer = Explorer({}, chart("t"), lambda: {"t": [{"n": i} for i in range(100)]})
    static = explorer._repr_mimebundle_()["text/html"]
    assert static.count("<tr>") == 1 + 24 and "76 more rows" in static


def test_displaying_puts_a_still_picture_beside_the_widget(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.publish_display_data", shown.append)
    explorer._ipython_display_()
    widget, *pictures = shown
    assert "application/vnd.jupyter.widget-view+json" in widget
    titles = [picture["application/vnd.vegalite.v5+json"]["title"] for picture in pictures]
    assert titles == [{"text": t, "subtitle": AS_FIRST_DRAWN} for t in ("8 on each", "8 in all")]
