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


@pytest.mark.parametrize("answer", [90.19, "90.19", 90.5, 89.7, 90, "90.19 GiB", " 90.19gib ", "9.019e1 GiB"])
def test_a_right_number_passes(answer):
    assert check.number(answer, 90.19, unit="GiB")


@pytest.mark.parametrize(
    ("answer", "want", "unit"),
    [
        ("12.88 B", 12.88, "B"), ("12.88 billion", 12.88, "B"), ("26.1 %", 26.1, "%"), ("26.1 per cent", 26.1, "%"),
        ("20,480", 20480, "tokens"), ("20,480 tokens", 20480, ""), ("1,234,567.5", 1234567.5, ""), ("-3", -3, ""),
    ],
)  # fmt: skip
def test_a_number_may_be_text_with_its_unit_and_commas_between_thousands(answer, want, unit):
    assert check.number(answer, want, unit=unit or "tokens").ok


@pytest.mark.parametrize("answer", ["12.88 GB", "12,88", "1,2345", "12.88.1", "B", "", "12 88"])
def test_text_that_could_mean_another_number_is_refused(answer):
    feedback = check.number(answer, 12.88, unit="B")
    assert feedback.ok is False and "write it in B, such as 12.3 or '12.3 B'" in feedback.message


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
    feedback = check.number(want * factor, want, unit="GiB")
    assert feedback.ok is False and slip in feedback.message


@pytest.mark.parametrize("unit", ["chunks", "micro-batches of a full stage", "B", "%", "units of time", ""])
@pytest.mark.parametrize("factor", [1.024**3, 1.024**2, 2.0**30, 8, 4, 3, 2])
def test_bytes_are_spoken_of_only_where_they_are_asked_for(unit, factor):
    for wrong in (30 * factor, 30 / factor):
        said = check.number(wrong, 30, unit=unit).message
        assert not any(word in said for word in ("byte", "GiB", "MiB", "bits")), said


@pytest.mark.parametrize(
    ("answer", "want", "unit"),
    [
        ("11.5 micro-batches", 11.5, "micro-batches of a full stage"), ("7 units", 7, "units of time"),
        ("1 micro-batch", 1, "micro-batches"), ("4 chunk", 4, "chunks"), ("23/2", 11.5, "micro-batches"),
        ("23 / 2 micro-batches", 11.5, "micro-batches"), ("7/15", 700 / 15, "%"), ("700/15", 700 / 15, "%"),
        ("700/15 %", 700 / 15, "%"),
    ],
)  # fmt: skip
def test_fractions_and_a_unit_by_its_first_word_are_read(answer, want, unit):
    assert check.number(answer, want, unit=unit).ok


@pytest.mark.parametrize("answer", ["4/0", "1/2/3", "4 ducks", "4 chu", "/2", "7/"])
def test_other_fractions_and_words_are_refused(answer):
    assert check.number(answer, 4, unit="chunks").ok is False


def test_a_rounded_answer_is_right_where_the_exercise_says_to_how_many_digits():
    assert check.number(1.3, 1.3487, digits=2).ok and check.number(1.35, 1.3487, digits=2).ok
    assert check.number(1.4, 1.3487, digits=2).ok is False and check.number(1.3, 1.3487).ok is False


def test_a_slip_that_an_exercise_knows_is_named_before_a_common_one():
    slips = {"that is forward alone": 10.0, "one expert is missing": 27.5}
    assert check.number(10, 30.0, slips=slips).message == "10 is not it: that is forward alone."
    assert (
        check.number("27.5", 30.0, unit="B", slips=slips).message
        == "27.5 B is not it: one expert is missing."
    )
    assert "factor of 2" in check.number(60, 30.0, slips=slips).message
    assert check.number(30, 30.0, slips=slips).ok


def test_a_slip_as_rounded_as_a_question_prints_it_is_named_and_the_nearest_first():
    slips = {"of the parameters": 1.7302, "of the layers": 1.68}
    assert "of the parameters" in check.number(1.72, 4.1, slips=slips).message
    assert "of the layers" in check.number(1.69, 4.1, slips=slips).message
    assert check.number(1.7, 1.71, slips=slips).ok


def test_a_message_ends_once():
    assert check.number(0.9019, 90.19).message.endswith("per cent?")
    assert check.number(45.095, 90.19, unit="GiB").message.endswith("both ways.")


HUGE = 10**5000  # more digits than Python writes


@pytest.mark.parametrize(
    "answer",
    [
        ["no input"],
        {1: 2},
        10**400,
        -(10**400),
        HUGE,
        [HUGE],
        {1: HUGE},
        object(),
        b"12",
        1 + 2j,
        (),
        "9" * 6000,
    ],
    ids=lambda a: type(a).__name__,
)
def test_no_answer_ends_in_a_traceback(answer):
    for feedback in (
        check.number(answer, 90.19, unit="GiB"),
        check.choice(answer, "no input", {"no input": "right", "both": "wrong"}),
    ):
        assert feedback.ok is False and len(feedback.message) < 200 and repr(feedback)


@pytest.mark.parametrize("answer", ["many", [1, 2], float("nan"), float("inf"), 17.0])
def test_other_wrong_answers_are_wrong_without_a_crash(answer):
    feedback = check.number(answer, 90.19, hint="Count the layers.")
    assert feedback.ok is False and "slip" not in feedback.message


def test_choice_explains_itself():
    why = {"memory": "Right: the cap binds.", "time": "No: it is faster."}
    assert check.choice("memory", "memory", why).ok
    assert check.choice("time", "memory", why) == check.Feedback(False, "No: it is faster.")
    assert "'memory', 'time'" in check.choice("speed", "memory", why).message


@pytest.mark.parametrize("answer", ["no input", "No Input", "no_input", "NO-INPUT", "  no   input "])
def test_a_choice_may_be_written_in_any_case_and_with_any_separator(answer):
    why = {"no input": "Right.", "both": "No."}
    assert check.choice(answer, "no input", why) == check.Feedback(True, "Right.")


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
