import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_oracle import evaluate, makespan, peaks
from order_cases import placement

from telekit.errors import InputError
from telekit.pipeline.case import make_case
from telekit.pipeline.order import Op, from_lists
from telekit.pipeline.registry import SCHEDULES, build
from telekit.pipeline.rule_orders import Builder, Rule, by_rules
from telekit.pipeline.search import best_order, mend, search
from telekit.pipeline.simulate import run
from telekit.pipeline.times import Times

LEFT_OUT = ("seq-1f1b", "seqsmartvpp")
"""Their pieces are other operations; a search of whole micro-batches is not compared with them."""


def named_orders(stages, micro_batches):
    """Every named schedule that these sizes allow."""
    for name in SCHEDULES:
        if name not in LEFT_OUT:
            try:
                yield build(name, stages, micro_batches)
            except InputError:
                continue


def lists(order):
    columns = (order.kind, order.micro_batch, order.chunk)
    none = np.full(order.kind.size, -1)
    other = [none if x is None else x for x in (order.other_micro_batch, order.other_chunk)]
    rows = [
        Op(k, i, c, 0, a, b) for k, i, c, a, b in zip(*(x.tolist() for x in (*columns, *other)), strict=True)
    ]
    return [rows[a:b] for a, b in zip(order.first[:-1], order.first[1:], strict=True)]


def timed(order, f, b, w, pair, comm):
    """Makespan and peaks by the oracle, of stages whose chunks share their time evenly."""
    share = order.stages / order.parts
    time = {"F": f, "B": b + w, "I": b, "W": w, "P": f + b + w if pair is None else pair}
    lines = lists(order)
    end = makespan(lines, order.part, lambda k, c, d, op: share * time[k][d], comm)
    return end, peaks(lines, lambda c, d: share)


@pytest.mark.parametrize("seed", range(200))
def test_never_worse_than_the_best_named_order_that_fits(seed):
    rng = np.random.default_rng(seed)
    p, m = int(rng.integers(1, 6)), int(rng.integers(1, 11))
    spread = rng.choice([0.0, 0.2, 1.0])
    f, b, w = (rng.uniform(1 - spread / 2, 1 + spread / 2, p) * rng.uniform(0.5, 1.5) for _ in range(3))
    pair = (f + b + w) * rng.uniform(0.7, 1.0) if rng.random() < 0.3 else None
    comm, cap = float(rng.choice([0.0, 0.05, 0.5])), float(rng.choice([1.0, 1.5, 2.0, p / 2 + 1, p, 2 * p]))
    named = list(named_orders(p, m))
    found = best_order(named, f, b, w, pair, comm, cap, effort=0.1)
    end, held = timed(found.order, f, b, w, pair, comm)
    assert end == pytest.approx(found.makespan)
    assert max(held) <= cap + 1e-9
    fitting = [e for e, h in (timed(x, f, b, w, pair, comm) for x in named) if max(h) <= cap + 1e-9]
    assert found.makespan <= min(fitting, default=np.inf) * (1 + 1e-9)
    assert found.bound <= found.makespan * (1 + 1e-9)


@given(
    st.sampled_from(["line", "ring", "V"]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.floats(1.0, 5.0),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_rules_write_whole_orders_that_fit_and_run(name, p, m, cap, split, seed):
    """No rule runs into a deadlock, however little may be held; the oracle knows nothing of the case."""
    part, rng = placement(name, p), np.random.default_rng(seed)
    times = [rng.uniform(0.5, 2.0, part.shape) for _ in range(3)]
    case = make_case(part, m, Times(*times, comm=0.1), cap, split=split)
    table = {"F": times[0], "B": times[1] + times[2], "I": times[1], "W": times[2]}
    for lines in by_rules(case):
        order = case.order("rule", lines)  # raises unless each pass is there once
        written = lists(order)
        _, ends = evaluate(written, part, lambda k, c, d, op: table[k][c, d], 0.1)
        assert max(map(max, ends)) == pytest.approx(case.makespan(lines))
        assert max(peaks(written, lambda c, d: 1 / len(part))) <= cap + 1e-9


@pytest.mark.parametrize(
    ("name", "p", "m", "cap", "best"),
    [
        ("line", 4, 8, 4, 27),
        ("line", 8, 16, 8, 55),
        ("line", 8, 16, 16, 55),
        ("V", 4, 8, 4, 25.5),
        ("V", 8, 8, 8, 27.5),
        ("V", 8, 16, 8, 51.5),
        ("ring", 4, 8, 4, 25.5),
    ],
)
def test_rules_alone_reach_the_zero_bubble_papers_schedules(name, p, m, cap, best):
    """ZB-1P's and ZB-V's makespans of facts' table, and proved: no order of the placement is shorter."""
    part = placement(name, p)
    ones = np.full(part.shape, 1 / len(part))
    found = search(part, m, Times(ones, ones, ones), cap)
    assert found.makespan == best
    assert found.proved and found.start == "rules"


def test_named_orders_are_mended():
    """V-Half under its own limit on unequal stages: the search starts from it and ends earlier."""
    part = placement("V", 4)
    rng = np.random.default_rng(1)
    f, b, w = (rng.uniform(0.3, 0.7, part.shape) for _ in range(3))
    times, named = Times(f, b, w), build("v-half", 4, 8)
    start = run(named, times).makespan_s
    alone = search(part, 8, times, 3.0, named=[named], effort=0)
    found = search(part, 8, times, 3.0, named=[named])
    assert found.makespan < alone.makespan <= start
    assert search(part, 8, times, 3.0, named=[named]).order.kind.tolist() == found.order.kind.tolist()


def test_mending_keeps_what_it_must():
    part = placement("line", 3)
    rng = np.random.default_rng(5)
    case = make_case(part, 5, Times(*(rng.uniform(0.5, 2, (1, 3)) for _ in range(3))), cap=2)
    lines = Builder(case, Rule([9.0] * 3, (2, 0, 1))).build()
    better = mend(case, lines, 300)
    assert case.fits(better) and case.makespan(better) <= case.makespan(lines)
    assert sorted(map(sorted, better)) == sorted(map(sorted, lines))
    assert mend(case, lines, 0) == lines


def test_a_pair_that_saves_time_wins_where_it_fits():
    """DualPipe with F&B 2 ends at 52 at p 8, m 20, below what any order without pairs can reach: 60."""
    named = [build("1f1b", 8, 20), build("dualpipe", 8, 20)]
    found = best_order(named, 1, 1, 1, pair=2, effort=0)
    assert (found.order.schedule, found.start, found.makespan) == ("dualpipe", "dualpipe", 52)
    held = best_order(named, 1, 1, 1, pair=2, cap=8, effort=0)
    assert held.makespan == 67 and held.order.schedule == "searched"


def test_a_named_order_that_is_best_keeps_its_name():
    found = best_order([build("gpipe", 4, 8), build("zb-1p", 4, 8)], 1, 1, 1, cap=4, effort=0)
    assert (found.order.schedule, found.start, found.makespan, found.proved) == ("zb-1p", "zb-1p", 27, True)


def test_whole_backwards_stay_whole():
    ones = np.ones((1, 4))
    found = search(
        [[0, 1, 2, 3]], 8, Times(ones, ones, ones), cap=4, split=False, named=[build("1f1b", 4, 8)]
    )
    assert set(found.order.kind.tolist()) == {0, 1}
    assert found.makespan == 33 and found.proved


def test_what_cannot_be_searched():
    with pytest.raises(InputError, match="at least one order"):
        best_order([], 1, 1, 1)
    with pytest.raises(InputError, match="cap 1 works"):
        best_order([build("1f1b", 4, 8)], 1, 1, 1, cap=0.9)
    with pytest.raises(InputError, match="cap = 1"):
        best_order([build("dualpipe", 4, 8)], 1, 1, 1, cap=1)
    with pytest.raises(InputError, match="more than 0"):
        best_order([build("1f1b", 4, 8)], 1, 0, 1)


def test_pieces_are_timed_but_not_mended():
    lines = [[Op(0, 0, 0, 0), Op(0, 0, 0, 1), Op(1, 0, 0, 1), Op(1, 0, 0, 0)]]
    order = from_lists("pieces", lines, [[0]], 1, 2)
    found = best_order([order], 1, 1, 1)
    assert found.makespan == 3
