"""How sizes print: what is shown reads back as what was meant, and GB is never mistaken for GiB."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telekit import units

BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
FLOPS = {"FLOP": 1, "kFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18}
COUNT = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def read(text, prefixes):
    """Read a printed size back, by a table of prefixes of our own."""
    number, unit = re.fullmatch(r"(\S+) ?(\S*)", text).groups()
    return float(number.replace(",", "")) * prefixes[unit]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.format_bytes(0), "0 B"),
        (units.format_bytes(80 * 2**30), "80.00 GiB"),
        (units.format_bytes(80e9), "74.51 GiB"),
        (units.format_bytes(-3 * 2**20), "-3.00 MiB"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(1.9e-6), "1.9 µs"),
        (units.format_seconds(7200), "7,200 s"),
        (units.format_flops(249.7e9), "249.7 GFLOP"),
        (units.format_flops(989e12, "FLOP/s"), "989 TFLOP/s"),
        (units.format_count(671_026_419_200), "671.0 B"),
        (units.format_count(960), "960"),
    ],
)
def test_known_figures(shown, expected):
    assert shown == expected


def test_gb_and_gib_are_two():
    assert units.gib(units.GIB) == 1
    assert units.gib(80 * units.GB) == pytest.approx(74.5058, abs=1e-4)
    assert (units.KIB, units.MIB, units.GIB) == (1024, 1024**2, 1024**3)


signed = st.floats(min_value=1e-6, max_value=9e20) | st.floats(min_value=-9e20, max_value=-1e-6)


@given(signed)
def test_bytes_read_back(value):
    assert read(units.format_bytes(value), BYTES) == pytest.approx(value, rel=6e-3, abs=0.5)


@given(st.floats(min_value=1e-6, max_value=1e9))
@example(999.6e-6)
@example(999.7)
def test_seconds_read_back_without_an_exponent(value):
    text = units.format_seconds(value)
    assert "e" not in text
    assert read(text, SECONDS) == pytest.approx(value, rel=6e-3)


@given(signed)
def test_flops_read_back(value):
    assert read(units.format_flops(value), FLOPS) == pytest.approx(value, rel=6e-4)


@given(st.integers(min_value=0, max_value=10**15))
def test_counts_read_back(value):
    assert read(units.format_count(value), COUNT) == pytest.approx(value, rel=6e-2, abs=0.5)


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_shown_sizes_keep_their_order(value):
    larger = value * 1.1
    assert read(units.format_bytes(value), BYTES) <= read(units.format_bytes(larger), BYTES)
    assert not math.isnan(read(units.format_flops(value), FLOPS))


def test_choices_read_as_a_sentence():
    assert [units.either(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a or b",
        "a, b or c",
    ]
