"""Self-checks: right answers pass, wrong ones hear their likely slip, silence is no error."""

import pytest

from telekit.exercises import check


def test_silence_is_neither_right_nor_wrong():
    for feedback in (
        check.number(None, 3.0, unit="GiB"),
        check.choice(None, "a", {"a": ""}),
        check.design(None, []),
    ):
        assert feedback.ok is None and not feedback and "answer" in feedback.message


@pytest.mark.parametrize("answer", [90.19, "90.19", 90.5, 89.7, 90])
def test_a_right_number_passes(answer):
    assert check.number(answer, 90.19, unit="GiB")


@pytest.mark.parametrize(
    ("factor", "slip"),
    [
        (1.073741824, "GiB"), (1 / 1.073741824, "GiB"), (1.048576, "MiB"), (1000, "1000"), (1e-6, "1e6"),
        (1e9, "1e9"), (2**30, "2**30"), (8, "bits"), (1 / 8, "bits"), (4, "factor of 4"), (3, "factor of 3"),
        (0.5, "factor of 2"), (100, "per cent"), (-1, "sign"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("want", [90.19, 3.3e-4, 6.71e11])
def test_common_slips_are_named(factor, slip, want):
    feedback = check.number(want * factor, want)
    assert feedback.ok is False and slip in feedback.message


def test_a_slip_that_an_exercise_knows_is_named_before_a_common_one():
    slips = {"that is forward alone": 10.0, "one expert is missing": 27.5}
    assert check.number(10, 30.0, slips=slips).message == "10 is not it: that is forward alone."
    assert (
        check.number("27.5", 30.0, unit="B", slips=slips).message
        == "27.5 B is not it: one expert is missing."
    )
    assert "factor of 2" in check.number(60, 30.0, slips=slips).message
    assert check.number(30, 30.0, slips=slips).ok


@pytest.mark.parametrize("answer", ["many", [1, 2], float("nan"), float("inf"), 17.0])
def test_other_wrong_answers_are_wrong_without_a_crash(answer):
    feedback = check.number(answer, 90.19, hint="Count the layers.")
    assert feedback.ok is False and "slip" not in feedback.message


def test_choice_explains_itself():
    why = {"memory": "Right: the cap binds.", "time": "No: it is faster."}
    assert check.choice("memory", "memory", why).ok
    assert check.choice("time", "memory", why) == check.Feedback(False, "No: it is faster.")
    assert "'memory', 'time'" in check.choice("Memory", "memory", why).message


def test_a_design_hears_the_first_demand_it_misses():
    def fits(n):
        if n < 0:
            raise ValueError("n must be positive")
        return n < 5 or f"{n} is over 5"

    demands = [("it fits", fits), ("it is even", lambda n: n % 2 == 0)]
    assert check.design(4, demands).ok
    assert check.design(7, demands).message == "it fits: 7 is over 5."
    assert check.design(3, demands).message == "it is even: not met."
    assert check.design(-1, demands).message == "it fits: n must be positive"


def test_feedback_shows_in_a_notebook_and_escapes():
    feedback = check.Feedback(False, "<b> & co")
    assert "&lt;b&gt; &amp; co" in feedback._repr_html_()
    assert repr(feedback) == "✗ <b> & co"
