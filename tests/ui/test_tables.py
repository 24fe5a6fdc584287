"""Tables print as aligned lines, without blanks at their ends."""

from telekit.ui.tables import Table


def test_the_first_column_stands_left_and_the_others_right():
    shown = Table("sizes", ("model", "B"), (("llama", "8.03"), ("deepseek-v3", "671"), ("empty", "")))
    assert repr(shown).splitlines() == [
        "sizes",
        "model           B",
        "llama        8.03",
        "deepseek-v3   671",
        "empty",
    ]
