import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_cases import draw_lines, placement

from telekit.errors import InputError
from telekit.pipeline.case import make_case
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, WEIGHT, Op, from_lists
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times


@st.composite
def drawn(draw):
    """A case, a random order of it, and the times both are of."""
    name = draw(st.sampled_from(["line", "ring", "V"]))
    part = placement(name, draw(st.integers(1, 4)))
    micro_batches, split = draw(st.integers(1, 5)), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    times = Times(
        *(rng.uniform(0.5, 2.0, part.shape) for _ in range(3)),
        comm=draw(st.sampled_from([0.0, 0.3])),
        recompute=draw(st.sampled_from([0.0, 0.2])),
        micro_batch=rng.uniform(0.5, 2.0, micro_batches) if draw(st.booleans()) else None,
    )
    lines = draw_lines(rng, part, micro_batches, split=rng.random() if split else 0.0)
    order = from_lists("drawn", lines, part, micro_batches)
    return make_case(part, micro_batches, times, split=split), order, times


@given(drawn())
@settings(max_examples=150)
def test_a_case_times_orders_as_the_simulation_does(drawn_case):
    case, order, times = drawn_case
    lines = case.lines(order)
    timed = run(order, times)
    if case.halves == 2 or not (order.kind == BACKWARD).any():
        assert case.makespan(lines) == pytest.approx(timed.makespan_s)
    else:  # halves let the neighbour start a little earlier
        assert case.makespan(lines) <= timed.makespan_s * (1 + 1e-12)
    again = case.order("again", lines)
    assert case.lines(again) == lines
    assert run(again, times).makespan_s == pytest.approx(case.makespan(lines))


@given(drawn())
@settings(max_examples=100)
def test_no_order_ends_before_the_bound(drawn_case):
    case, order, _ = drawn_case
    end = case.ends(case.lines(order))
    assert case.bound <= max(end) * (1 + 1e-12)
    slack = 1e-9 * max(end)
    starts = [e - d for e, d in zip(end, case.duration, strict=True)]
    in_turn = all(
        line[i] < line[j]
        for line in case.lines(order)
        for i in range(len(line))
        for j in range(i, len(line))
        if line[i] // case.micro_batches == line[j] // case.micro_batches and i != j
    )
    if in_turn:  # where micro-batches are alike, heads and tails are of such orders
        assert all(h <= s + slack for h, s in zip(case.head, starts, strict=True))
        assert all(e + t <= max(end) + slack for e, t in zip(end, case.tail, strict=True))


@given(drawn(), st.floats(0.5, 4.0))
@settings(max_examples=100)
def test_what_fits_is_what_the_simulation_holds(drawn_case, cap):
    case, order, times = drawn_case
    chunks = len(case.part)
    if cap < 1:
        with pytest.raises(InputError, match="cap 1 works"):
            make_case(case.part, case.micro_batches, times, cap, split=case.halves == 3)
        return
    capped = make_case(case.part, case.micro_batches, times, cap, split=case.halves == 3)
    lines = capped.lines(order)
    again = capped.order("again", lines)
    assert capped.fits(lines) == bool((run(again, times).peak_activations <= cap + 1e-9).all())
    assert capped.bound >= case.bound * (1 - 1e-12)  # sums in another order
    assert chunks == 1 or capped.bound == case.bound


def test_the_bound_of_one_device_is_jacksons():
    """Three jobs by hand: heads 0, 2, 3, lengths 4, 2, 1, tails 1, 5, 9: preempted, 3..4 for the last, and so on."""
    from telekit.pipeline.case import _alone

    # 0-2 first; at 2 the second (tail 5) takes over; at 3 the third (tail 9); 4-5 second; 5-7 first.
    assert _alone([0.0, 2.0, 3.0], [4.0, 2.0, 1.0], [1.0, 5.0, 9.0]) == max(4 + 9, 5 + 5, 7 + 1)


def test_a_cap_raises_the_bound():
    """p 2, one micro-batch at a time: each waits for the whole way there and back."""
    ones = np.ones((1, 2))
    case = make_case([[0, 1]], 3, Times(ones, ones, ones), cap=1)
    assert case.bound == 3 * 5.0  # F F I I W, then the next


def test_unlike_micro_batches_may_overtake_the_bound_of_those_in_turn():
    """The short-then-long one first: both devices wait for less than in the order given."""
    own = np.array([[[10.0, 1.0]], [[1.0, 10.0]]])
    tiny = np.full((2, 1, 2), 0.01)
    times = Times(own, tiny, tiny, by_micro_batch=True)
    case = make_case([[0, 1]], 2, times, split=False)
    given = case.makespan([[0, 1, 4, 5], [2, 3, 6, 7]])
    other = case.makespan([[1, 0, 4, 5], [3, 2, 6, 7]])
    assert case.bound <= other < given


def test_orders_of_other_cases_are_none():
    ones = np.ones((1, 2))
    whole = make_case([[0, 1]], 1, Times(ones, ones, ones), split=False)
    both = [[Op(FORWARD, 0), Op(BACKWARD, 0)]] * 2
    halves = [[Op(FORWARD, 0), Op(INPUT, 0), Op(WEIGHT, 0)]] * 2
    assert whole.lines(from_lists("a", both, [[0, 1]], 1)) == [[0, 2], [1, 3]]
    assert whole.lines(from_lists("a", halves, [[0, 1]], 1)) is None
    assert whole.lines(from_lists("a", both, [[1, 0]], 1)) is None
    twice = [[Op(FORWARD, i) for i in (0, 1)] + [Op(BACKWARD, i) for i in (0, 1)]] * 2
    assert whole.lines(from_lists("a", twice, [[0, 1]], 2)) is None


def test_a_deadlock_has_no_end():
    ones = np.ones((1, 2))
    case = make_case([[0, 1]], 1, Times(ones, ones, ones), split=False)
    assert case.ends([[2, 0], [1, 3]]) is None
    assert case.makespan([[2, 0], [1, 3]]) == np.inf


@pytest.mark.parametrize(
    ("arguments", "field", "rule", "hint"),
    [
        ({"cap": 0.5}, "cap", "all are held", "cap 1 works"),
        ({"cap": [1.0, 2.0, 3.0]}, "cap", "one number", "one number works"),
        ({"cap": float("nan")}, "cap", "all are held", "cap 1 works"),
        ({"weight": [[1.0, -1.0]]}, "weight", "not negative", "leave it out"),
        ({"part": [[0, 0]]}, "part", "each model part", "1F1B's works"),
        ({"part": [[0, 1], [1, 0]]}, "part", "each model part", "1F1B's works"),
        ({"times": Times([[1.0, 0.0]], [[1.0] * 2], [[1.0] * 2])}, "forward", "more than 0", "1 works"),
        ({"times": Times(*[np.ones((3, 1, 2))] * 3)}, "times", "one duration set", "no leading axes"),
        ({"micro_batches": 0}, "micro_batches", "at least 1", "micro_batches 1 works"),
    ],
)
def test_bad_cases(arguments, field, rule, hint):
    ones = np.ones((1, 2))
    good = {"part": [[0, 1]], "micro_batches": 2, "times": Times(ones, ones, ones)}
    with pytest.raises(InputError) as caught:
        make_case(**good | arguments)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert rule in problem.rule and hint in problem.suggestion
