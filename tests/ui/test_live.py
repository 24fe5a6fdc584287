"""Live charts: rows travel, specifications stay, nothing in an output names a web address."""

import json

import altair as alt
import numpy as np
import pandas as pd
import pytest

from telekit.ui.live import VEGALITE_MIME, LiveChart, Still, plain, table_names


def two_tables() -> alt.TopLevelMixin:
    bars = alt.Chart(alt.NamedData("parts")).mark_bar().encode(x="GB:Q", y="part:N")
    return alt.layer(bars, alt.Chart(alt.NamedData("limit")).mark_rule().encode(x="GB:Q"))


ROWS = {"parts": [{"part": "weights", "GB": 12.5}], "limit": [{"GB": 64}], "other": [{"x": 1}]}


def test_a_chart_takes_only_the_tables_it_names():
    chart = LiveChart(two_tables(), ROWS, "Weights fit")
    assert set(chart.datasets) == {"parts", "limit"}
    assert list(dict.fromkeys(table_names(chart.spec))) == ["parts", "limit"]


def test_showing_new_rows_leaves_the_specification_alone():
    chart = LiveChart(two_tables(), ROWS, "before")
    spec = chart.spec
    chart.stale = True
    chart.show(ROWS | {"limit": [{"GB": 80}]}, "after")
    assert chart.spec is spec
    assert chart.datasets["limit"] == [{"GB": 80}]
    assert (chart.title, chart.stale) == ("after", False)


def test_a_chart_is_laid_out_anew_only_when_asked():
    chart = LiveChart(two_tables(), ROWS)
    chart.show(ROWS)
    assert chart.laid_out == 0
    chart.show(ROWS, lay_out=True)
    assert chart.laid_out == 1


def test_a_missing_table_is_an_error_not_an_empty_chart():
    with pytest.raises(KeyError, match="limit"):
        LiveChart(two_tables(), {"parts": []})


def test_rows_become_plain_json():
    frame = pd.DataFrame({"x": np.arange(2), "y": [0.5, 1.5]})
    rows = plain({"frame": frame, "list": [{"x": np.float64(2.0), "name": "a"}]})
    assert json.loads(json.dumps(rows)) == {
        "frame": [{"x": 0, "y": 0.5}, {"x": 1, "y": 1.5}],
        "list": [{"x": 2.0, "name": "a"}],
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan")])
def test_rows_refuse_what_json_cannot_carry(value):
    with pytest.raises(ValueError, match=r"parts\.GB is (nan|inf)"):
        plain({"parts": [{"GB": value}]})


def test_a_still_chart_needs_no_kernel_and_no_network():
    still = Still(two_tables(), ROWS, "Weights fit", "a note")
    bundle = still._repr_mimebundle_()
    assert set(bundle) == {VEGALITE_MIME, "text/plain"}
    assert "http" not in json.dumps(bundle)
    assert bundle[VEGALITE_MIME]["title"] == {"text": "Weights fit", "subtitle": "a note"}
    assert bundle["text/plain"] == "<chart: Weights fit>"


def test_a_still_of_a_live_chart_shows_what_is_shown_now():
    chart = LiveChart(two_tables(), ROWS, "before")
    chart.show(ROWS | {"parts": [{"part": "weights", "GB": 99.0}]}, "after")
    still = chart.still()
    assert still.spec["datasets"]["parts"] == [{"part": "weights", "GB": 99.0}]
    assert still.title == "after"


def test_under_voila_a_still_is_a_picture(monkeypatch):
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5")
    bundle = Still(two_tables(), ROWS, "Weights fit")._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg") and "Weights fit" in bundle["image/svg+xml"]


def test_reprs_are_the_same_twice():
    chart = LiveChart(two_tables(), ROWS)
    assert repr(chart) == "<live chart: parts, limit>"
    assert repr(Still(two_tables(), ROWS)) == "<chart: parts, limit>"
