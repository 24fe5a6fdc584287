import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT, dependencies
from telekit.pipeline.registry import EVERY, Passes, build, closed_form, times
from telekit.pipeline.simulate import run
from telekit.pipeline.zero_bubble import WEIGHT_SHARE_OF_PAPER


@st.composite
def cases(draw):
    """A schedule, sizes that it allows, and times."""
    name = draw(st.sampled_from(sorted(EVERY)))
    schedule, options = EVERY[name], {}
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    if name in ("dualpipe", "seqsmartvpp"):
        stages *= 2
    if name in ("dualpipe", "dualpipe-v"):
        micro_batches = 2 * stages + 2 * draw(st.integers(0, 4))
    if name.startswith("interleaved"):
        stages = max(stages, 2)
        micro_batches = stages * draw(st.integers(1, 3))
        options["chunks"] = draw(st.integers(2, 3))
        if name in ("interleaved-sapp", "interleaved-less-memory"):
            micro_batches += draw(st.integers(0, stages - 1))
    if "group_size" in schedule.options and stages > 1 and micro_batches >= stages and draw(st.booleans()):
        sizes = [n for n in range(stages, micro_batches + 1) if not 0 < micro_batches % n < stages]
        options |= {"group_size": draw(st.sampled_from(sizes)), "chunks": draw(st.integers(2, 3))}
    if "sequence_chunks" in schedule.options:
        options |= {"sequence_chunks": draw(st.integers(1, 3)), "chunks": draw(st.integers(1, 2))}
    if name == "zb-1p" and draw(st.booleans()):
        options["memory_limit"] = draw(st.integers(1, 2 * stages))
    one = st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.0]) | st.floats(0.2, 3.0)
    if draw(st.booleans()):
        one = st.just(1.0)
    forward, backward, weight = draw(one), draw(one), draw(one)
    share = draw(st.none() | st.floats(0.6, 1.0))
    pair = None if share is None else share * (forward + backward + weight)
    passes = Passes(forward, backward, weight, pair, draw(st.sampled_from([0.0, 0.0, 0.1, 1.5])))
    return name, stages, micro_batches, options, passes


def built(case):
    name, stages, micro_batches, options, passes = case
    order = build(name, stages, micro_batches, **options, passes=passes)
    return order, run(order, times(order, passes))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_every_pass_runs_exactly_once(case):
    """Counted one by one, from the columns alone."""
    order, _ = built(case)
    runs = {"F": {}, "B": {}, "W": {}}
    for n, kind in enumerate(order.kind.tolist()):
        piece = 0 if order.piece is None else int(order.piece[n])
        own = int(order.part[order.chunk[n], order.device[n]]), int(order.micro_batch[n]), piece
        halves = {FORWARD: "F", BACKWARD: "BW", INPUT: "B", WEIGHT: "W", PAIR: "F"}[kind]
        due = [(letter, own) for letter in halves]
        if kind == PAIR:
            other = (
                int(order.part[order.other_chunk[n], order.device[n]]),
                int(order.other_micro_batch[n]),
                piece,
            )
            due += [("B", other), ("W", other)]
        for letter, key in due:
            runs[letter][key] = runs[letter].get(key, 0) + 1
    each = order.parts * order.micro_batches * order.pieces
    for counts in runs.values():
        assert len(counts) == each
        assert set(counts.values()) == {1}


@given(cases())
@settings(max_examples=200, deadline=None)
def test_dependencies_are_kept_and_nothing_is_faster_than_it_can_be(case):
    order, timed = built(case)
    passes = case[-1]
    before, after = dependencies(order)
    lag = np.where(order.device[before] != order.device[after], passes.comm, 0.0)
    assert (timed.start_s[after] >= timed.end_s[before] + lag - 1e-9).all()
    same = order.device[1:] == order.device[:-1]
    assert (timed.start_s[1:] >= timed.end_s[:-1] - 1e-9)[same].all()
    assert timed.start_s.min() >= 0
    if order.part.size == order.parts and order.pieces == 1 and not (order.kind == PAIR).any():
        crossings = (np.diff(np.argsort(order.part, axis=None) % order.stages) != 0).sum()
        way = order.stages * (passes.forward + passes.backward_input) + 2 * crossings * passes.comm
        assert timed.makespan_s >= way - 1e-9
    busiest = max(timed.duration_s[order.device == d].sum() for d in range(order.stages))
    assert timed.makespan_s >= busiest - 1e-9


@given(cases(), st.floats(0.0, 1.0))
@settings(max_examples=150, deadline=None)
def test_memory_is_never_negative_and_zero_at_the_end(case, share):
    order, timed = built(case)
    weight = np.linspace(1.0, 2.0, order.part.size).reshape(order.part.shape)
    for moments, held in timed.memory(weight, share * weight):
        assert (np.diff(moments) >= -1e-9).all()
        assert (held >= 0).all()
        assert held[-1] == 0
    name, stages, micro_batches, options, _ = case
    most = {
        "zb-1p": stages,
        "zb-v": stages,
        "1f1b": stages,
        "gpipe": micro_batches,
        "v-half": stages // 2 + 1,
    }
    most |= {
        "v-min": (stages + 1) // 3 + 1,
        "dualpipe": stages + 1,
        "dualpipe-v": stages + 0.5,
        "zb-h1": stages,
    }
    if name in most:
        limit = options.get("memory_limit", most[name])
        assert timed.peak_activations.max() <= min(limit, micro_batches) + 1e-9
    if name == "zb-2p":  # whose limit counts what the weight half needs, as its paper does
        ones = np.ones((1, stages))
        assert timed.peak_held(ones, WEIGHT_SHARE_OF_PAPER * ones).max() <= 2 * stages + 1e-9


@given(cases())
@settings(max_examples=300, deadline=None)
def test_simulated_equals_the_closed_form_where_there_is_one(case):
    name, stages, micro_batches, options, passes = case
    sizes = {key: options[key] for key in ("chunks", "group_size", "sequence_chunks") if key in options}
    formula = closed_form(name, stages, micro_batches, passes=passes, **sizes)
    assume(formula is not None)
    assert built(case)[1].makespan_s == pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize("name", [name for name, s in EVERY.items() if s.formula is not None])
def test_each_closed_form_is_met_at_usual_sizes(name):
    """So that the property above is not empty for any of them."""
    for stages, micro_batches in ((4, 8), (8, 32)):
        order = build(name, stages, micro_batches)
        formula = closed_form(name, stages, micro_batches)
        assert formula == pytest.approx(run(order, times(order, Passes())).makespan_s)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_order_for_the_same_arguments(name):
    assert build(name, 2, 4) is build(name, 2, 4)
    assert build(name, 2, 4).schedule == name
    assert EVERY[name].says
    assert EVERY[name].source


@pytest.mark.parametrize(
    ("arguments", "fields", "hint"),
    [
        (("zigzag", 4, 8), ["schedule"], "known: gpipe, 1f1b"),
        (("1f1b", 0, 8), ["stages"], "stages 1 works"),
        (("zb-h1", 4, 2.5), ["micro_batches"], "micro_batches 1 works"),
        (("v-half", 4, 10**9), ["micro_batches"], "micro_batches"),
        (("1f1b", 4, 8, 2), ["chunks"], "chunks 1 works"),
        (("zb-v", 4, 8, 3), ["chunks"], "chunks 2 works"),
        (("interleaved-1f1b", 4, 10), ["micro_batches"], "micro_batches 8 works"),
        (("interleaved-1f1b", 4, 8, 2, 5), ["group_size"], "works"),
        (("1f1b", 4, 8, None, 4), ["group_size"], "interleaved-1f1b"),
        (("1f1b", 4, 8, None, None, 2), ["sequence_chunks"], "leave it out"),
        (("zb-v", 4, 8, None, None, None, 3.0), ["memory_limit"], "zb-1p or zb-2p"),
        (("dualpipe", 5, 20), ["stages"], "stages 4 works"),
        (("dualpipe", 4, 6), ["micro_batches"], "micro_batches 8 works"),
        (("dualpipe", 4, 9), ["micro_batches"], "micro_batches 8 works"),
        (("dualpipe-v", 4, 6), ["micro_batches"], "micro_batches 8 works"),
        (("zb-1p", 4, 8, None, None, None, 0.5), ["memory_limit"], "memory_limit 1 works"),
    ],
)
def test_what_a_schedule_forbids_is_named_with_a_near_value(arguments, fields, hint):
    with pytest.raises(InputError) as caught:
        build(*arguments)
    assert [problem.field for problem in caught.value.problems] == fields
    assert hint in caught.value.problems[0].suggestion


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("passes", "fields"),
    [
        (Passes(forward=0.0), ["forward"]),
        (Passes(backward_input=float("nan"), backward_weight=-1.0), ["backward_input", "backward_weight"]),
        (Passes(pair=0.0, comm=-1.0), ["pair", "comm"]),
        (Passes(comm=float("inf")), ["comm"]),
    ],
)
def test_times_that_are_none_are_named_before_any_order_is_made(name, passes, fields):
    with pytest.raises(InputError) as caught:
        build(name, 4, 8, passes=passes)
    assert [problem.field for problem in caught.value.problems] == fields


# Peers' makespan and peak activations (micro-batches of a full stage), F = B = W = 1, a pair one block of 3: PyTorch's
# pipelining, zero-bubble's generators, PP-Schedule-Visualization and Primus agree where they run, else the best.
PEERS = {
    (4, 8): (33, 4, 28.5, 5.5, 27, 4, 27, 8, 25.5, 4, 26.5, 3, 29.5, 2, 26, 5, 27, 4.5),
    (4, 16): (57, 4, 52.5, 5.5, 51, 4, 51, 8, 49.5, 4, 50.5, 3, 53.5, 2, 50, 5, 51, 4.5),
    (4, 64): (201, 4, 196.5, 5.5, 195, 4, 195, 8, 193.5, 4, 194.5, 3, 197.5, 2, 194, 5, 195, 4.5),
    (8, 8): (45, 8, 34.5, 8, 31, 8, 31, 8, 27.5, 8, 32.5, 5, 37.5, 4),
    (8, 16): (69, 8, 58.5, 11.5, 55, 8, 55, 16, 51.5, 8, 56.5, 5, 61.0, 4, 54, 9, 55, 8.5),
    (8, 32): (117, 8, 106.5, 11.5, 103, 8, 103, 16, 99.5, 8, 104.5, 5, 109.5, 4, 102, 9, 103, 8.5),
    (8, 64): (213, 8, 202.5, 11.5, 199, 8, 199, 16, 195.5, 8, 200.5, 5, 205.5, 4, 198, 9, 199, 8.5),
    (16, 16): (93, 16, 70.5, 16, 63, 16, 63, 16, 55.5, 16, 68.5, 9, 77.5, 6),
    (16, 32): (141, 16, 118.5, 23.5, 111, 16, 111, 32, 103.5, 16, 116.5, 9, 125.5, 6, 110, 17, 111, 16.5),
    (16, 64): (237, 16, 214.5, 23.5, 207, 16, 207, 32, 199.5, 16, 212.5, 9, 221.5, 6, 206, 17, 207, 16.5),
}
COLUMNS = ("1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v")


@pytest.mark.parametrize(("sizes", "row"), PEERS.items())
def test_no_peer_is_faster_or_holds_less(sizes, row):
    for name, makespan, peak in zip(COLUMNS, row[::2], row[1::2], strict=False):
        order = build(name, *sizes)
        timed = run(order, times(order, Passes(pair=3.0)))
        assert timed.makespan_s <= makespan + 1e-9, name
        assert timed.peak_activations.max() <= peak + 1e-9, name
