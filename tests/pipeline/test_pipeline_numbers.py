"""Times, caps and efforts that are none: an InputError that names them, never a raw one; huge ones stay finite."""

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.pipeline.numbers import MAX_TIME
from telekit.pipeline.registry import EQUAL, EVERY, Passes, build, closed_form, times
from telekit.pipeline.search import best_order, search
from telekit.pipeline.sequence import even_pieces
from telekit.pipeline.simulate import makespan, run, simulate
from telekit.pipeline.summary import summarize
from telekit.pipeline.times import Times
from telekit.pipeline.zero_bubble import WEIGHT_SHARE_OF_PAPER, zb_1p

ONE = np.ones((1, 4))
PART, HALF = np.arange(2)[None], np.ones((1, 2))
HALVES = Times(HALF, HALF, HALF)


def plain(**more):
    return run(
        build("1f1b", 4, 8), Times(**({"forward": ONE, "backward_input": ONE, "backward_weight": ONE} | more))
    )


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: plain(forward=ONE * 1e308), "forward"),
        (lambda: plain(forward="a"), "forward"),
        (lambda: plain(forward=None), "forward"),
        (lambda: plain(forward=[[1, 2], [1]]), "forward"),
        (lambda: plain(forward=ONE * 1j), "forward"),
        (lambda: plain(comm="x"), "comm"),
        (lambda: plain(piece=[5.0]), "piece"),
        (lambda: plain(piece=[0.5, 0.5]), "piece"),
        (
            lambda: run(build("seq-1f1b", 4, 8, sequence_chunks=2), Times(ONE, ONE, ONE, piece=[5.0, 5.0])),
            "piece",
        ),
        (lambda: build("1f1b", 4, 8, passes=Passes("a")), "forward"),
        (lambda: build("1f1b", 4, 8, passes=Passes(None)), "forward"),
        (lambda: build("1f1b", 4, 8, passes=Passes([1.0, 2.0])), "forward"),
        (lambda: closed_form("1f1b", 0, 8), "stages"),
        (lambda: simulate("1f1b", [[1, 2]], [[1, 2]], 4, comm_s=[1, 2]), "comm_s"),
        (lambda: makespan("1f1b", [["a", 1]], [[1, 2]], 4), "forward_s"),
        (lambda: makespan("1f1b", [[1e308, 1]], [[1, 2]], 4), "forward_s"),
        (lambda: search(PART, 2, HALVES, cap="x"), "cap"),
        (lambda: search([["a"]], 2, HALVES), "part"),
        (lambda: search([], 2, HALVES), "part"),
        (lambda: search([[0.5, 1]], 2, HALVES), "part"),
        (lambda: search(PART, 2, HALVES, effort=float("nan")), "effort"),
        (lambda: search(PART, 2, HALVES, time_limit_s=0), "time_limit_s"),
        (lambda: best_order([build("1f1b", 2, 4)], 1, 1, 1, cap=[1, 2, 3]), "cap"),
        (lambda: best_order([build("1f1b", 2, 4), build("1f1b", 4, 4)], 1, 1, 1), "named"),
        (lambda: zb_1p(4, 8, limit="x"), "limit"),
        (lambda: even_pieces("a", 4, 0.5), "seq_len"),
        (lambda: even_pieces(12, 4, "a"), "attention_share"),
    ],
)
def test_what_is_no_number_is_named(call, field):
    with pytest.raises(InputError) as caught:
        call()
    assert [problem.field for problem in caught.value.problems] == [field]
    assert caught.value.problems[0].suggestion


@pytest.mark.parametrize("name", EVERY)
def test_the_largest_times_stay_finite(name):
    most = Passes(*[MAX_TIME] * 5)
    found = summarize(name, 4, 8, passes=most).to_dict()
    unit = summarize(name, 4, 8, passes=Passes(*[1.0] * 5)).to_dict()
    for key in ("makespan", "bubble_fraction", "bubble_fraction_of_span"):
        assert found[key] == pytest.approx(unit[key] * (MAX_TIME if key == "makespan" else 1))
    assert build(name, 4, 8, passes=most).kind.size == build(name, 4, 8).kind.size


def test_no_time_at_all_is_no_bubble():
    found = simulate("1f1b", [[0.0] * 4], [[0.0] * 4], 8)
    bubbles = found.bubble_fraction, found.bubble_fraction_of_ideal, found.bubble_fraction_of_span
    assert (found.makespan_s, *bubbles) == (0, 0, 0, 0)


def test_a_search_that_has_no_time_gives_the_best_named_order_or_better():
    named = [build("1f1b", 16, 256), build("zb-h1", 16, 256)]
    found = best_order(named, 1, 1, 1, time_limit_s=1e-3)
    assert found.makespan <= min(run(order, times(order, EQUAL)).makespan_s for order in named)
    assert found.order.kind.size >= named[0].kind.size


@pytest.mark.parametrize(
    ("p", "m", "cap", "known"), [(8, 16, 4, 80), (8, 16, 2, 145), (8, 16, 6, 62), (4, 8, 2, 41)]
)
@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
def test_under_a_low_limit_it_is_no_longer_than_rules(name, p, m, cap, known):
    found = summarize(name, p, m, memory_limit=cap)
    assert found.simulation.makespan_s <= known
    assert found.simulation.peak_activations.max() <= cap


def test_the_peaks_of_zb_2p_are_said_as_it_counts_them():
    passes = Passes(18.513, 18.086, 9.331, None, 0.626)
    free, limited = (summarize("zb-2p", 8, 32, memory_limit=limit, passes=passes) for limit in (None, 16))
    data = free.to_dict()
    assert data["weight_share"] == WEIGHT_SHARE_OF_PAPER
    assert max(data["peak_activations"]) > 16 >= max(data["peak_activations_counted"])
    assert "as its paper counts them" in free.text() and "32/74" in free.text()
    data = limited.to_dict()
    assert data["weight_share"] == 1
    assert data["peak_activations_counted"] == data["peak_activations"]
    assert "32/74" in limited.text() and "as its paper counts them" not in limited.text()
    assert "32/74" not in summarize("zb-1p", 8, 32).text()
