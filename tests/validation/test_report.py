"""The scoreboard where it is read: README carries the table that the shipped scoreboard makes."""

from pathlib import Path

from telekit import catalog
from telekit.validation import report
from telekit.validation.scoreboard import scoreboard_path

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- scoreboard: telekit validate --markdown -->\n", "<!-- end of scoreboard -->"


def shipped():
    return catalog.load(scoreboard_path())


def test_readme_has_the_table_of_the_shipped_scoreboard():
    """Who runs ``telekit validate --write`` puts what ``--markdown`` prints between the two comments."""
    _, rest = README.read_text(encoding="utf-8").split(BEGIN)
    table, _ = rest.split(END)
    assert table == report.markdown(shipped())


def test_the_table_has_a_row_a_group_and_the_sum():
    board = shipped()
    rows = report.markdown(board).splitlines()
    assert len(rows) == 2 + len(board["groups"]) + 1
    assert [row.split("|")[1].strip() for row in rows[2:-1]] == [group["name"] for group in board["groups"]]
    assert all(row.count("|") == len(report.HEAD) + 1 for row in rows)


def test_errors_of_held_out_rows_are_the_groups_own():
    board = shipped()
    for group, line in zip(board["groups"], report.lines(board), strict=False):
        mape = group["held_out"]["mape"]
        assert line[3] == ("" if mape is None else f"{100 * mape:.1f} %")


def test_readme_says_how_well_estimates_choose_and_what_falls_short():
    _, rest = README.read_text(encoding="utf-8").split("<!-- choosing: telekit.validation.report -->\n")
    said, _ = rest.split("<!-- end of choosing -->")
    assert said == report.choosing(shipped())
    assert said.count("short of the aim") == sum(
        plan["spearman"] < 0.9 or plan["regret"] > 0.03 for plan in shipped()["planning"]
    )


def test_readme_says_the_bias_that_is_missed():
    bias = shipped()["all"]["held_out"]["bias"]
    missed = f"bias of all held-out steps together, {bias:+.1%}, is beyond the aim of 3 %".replace(
        "%,", " %,"
    )
    assert (missed in README.read_text(encoding="utf-8").replace("\n", " ")) == (abs(bias) > 0.03)
