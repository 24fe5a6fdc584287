"""Published runs: valid under the rules, and shown beside their published numbers."""

import pytest

import telekit
from telekit import catalog
from telekit.errors import InputError
from telekit.ui import cases

RUNS = catalog.names("jobs")


@pytest.mark.parametrize("name", RUNS)
def test_a_published_run_has_its_source_and_is_valid(name):
    record = catalog.record("jobs", name)
    assert record["name"] == name and record["source"] and record["title"] and "verified" in record
    found = cases.valid_estimate(cases.published(name))
    assert found.valid and found.step_time_s > 0


@pytest.mark.parametrize("name", RUNS)
def test_the_answer_stands_beside_the_published_number(name):
    shown, said = cases.beside(name), catalog.record("jobs", name)["published"]
    mine = telekit.estimate(cases.published(name))
    assert dict((what, value) for what, value, _ in shown.rows)["step [s]"] == mine.step_time_s
    assert [theirs for _, _, theirs in shown.rows if theirs] == list(said.values())
    assert repr(shown).count("not published") == len(shown.rows) - len(said)


def test_the_difference_is_said_with_its_sign():
    shown = cases.Beside("run", (("step [s]", 15.0, 20.0), ("peak [GiB]", 70.0, None)))
    assert [line.split() for line in repr(shown).splitlines()[2:]] == [
        ["step", "[s]", "15", "20", "-25%"],
        ["peak", "[GiB]", "70", "not", "published"],
    ]


def test_a_layout_that_breaks_rules_is_refused_with_all_of_them():
    job = telekit.load_job(
        {"model": "mixtral-8x7b", "cluster": {"device": "h100", "devices": 8}, "layout": {"tp": 3, "ep": 5}}
    )
    with pytest.raises(InputError) as refused:
        cases.valid_estimate(job)
    assert {p.field for p in refused.value.problems} >= {"layout.tp", "layout.ep"}


def test_the_picture_shows_every_stage():
    still = cases.memory_picture(cases.published("telechat3-105b-910b-256"))
    assert {row["stage"] for row in still.spec["datasets"]["memory"]} == set(range(8))
