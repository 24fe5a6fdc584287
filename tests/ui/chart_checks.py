"""What every chart is asked: it draws, and reads only the columns it is given."""

from __future__ import annotations

import vl_convert

from telekit.ui.live import Still, table_names


def assert_draws(chart, tables):
    """Draw the chart, and compare the tables and columns it names with those it is given."""
    still = Still(chart, tables, "title")
    assert "<path" in vl_convert.vegalite_to_svg(still.spec)
    assert set(table_names(still.spec)) == set(tables)
    columns = {column for table in tables.values() for row in table for column in row}
    assert set(fields(still.spec)) <= columns
    assert still.spec["description"]


def fields(spec):
    """Fields that the encodings of a specification read."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key == "field" and isinstance(value, str):
                yield value
            elif key != "datasets":
                yield from fields(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from fields(value)
