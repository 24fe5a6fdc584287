"""Charts as files: what is written opens without a network."""

import re
import xml.etree.ElementTree as ET

import altair as alt
import pytest

from telekit.errors import InputError
from telekit.ui.exports import save
from telekit.ui.live import LiveChart

CHART = alt.Chart(alt.NamedData("t")).mark_bar().encode(x="n:Q", y="name:N")
ROWS = {"t": [{"name": "attention", "n": 3}, {"name": "experts", "n": 5}]}


def test_svg_shows_the_rows(tmp_path):
    svg = ET.fromstring(save(CHART, tmp_path / "c.svg", ROWS, "Experts take more").read_text())
    words = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"attention", "experts", "Experts take more"} <= set(words)


def test_png_is_twice_the_screen(tmp_path):
    png = save(CHART, tmp_path / "c.png", ROWS).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20]) > 600  # the plot alone is 300 wide


def test_html_loads_nothing_from_outside(tmp_path):
    page = save(LiveChart(CHART, ROWS, "live"), tmp_path / "c.HTML").read_text()
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)
    assert '"experts"' in page


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"one of svg, png, html"):
        save(CHART, tmp_path / "c.gif", ROWS)
