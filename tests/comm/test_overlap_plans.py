"""Plans: what waits for what, closed forms against the simulation, and what publications say of overlap."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.comm import overlap_formulas as formulas
from telekit.comm import overlap_plans as plans
from telekit.comm.overlap import COMPUTE, rate_of_units, simulate
from telekit.comm.overlap_search import best, best_bucket, best_chunks
from telekit.errors import InputError
from telekit.pipeline.dualpipe import dualpipe
from telekit.pipeline.order import BACKWARD, FORWARD, INPUT, PAIR, WEIGHT

TIMES = st.integers(0, 24)
PARTS = st.integers(1, 9)
RATES = st.integers(1, 8).map(lambda n: Fraction(n, 8))
LAYER = plans.LayerTimes(4, 3, 6, 5, 5, 7, 6, 2, 5, 3)


def ends(tasks, compute_rate=1, comm_rate=1):
    return float(simulate(tasks, compute_rate, comm_rate).makespan_s)


@given(st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES), RATES, RATES)
def test_shared_expert_closed_form(times, c, m):
    found = ends(plans.shared_expert(*times), c, m)
    assert found == pytest.approx(formulas.shared_expert_s(*times, float(c), float(m)))


def test_shared_expert_by_hand():
    """Dispatch 5 beside 3, experts 4, combine 2 beside 3: exposed is 2 and nothing."""
    run = simulate(plans.shared_expert(5, 4, 2, 3, 3))
    assert (run.makespan_s, run.exposed_s, run.lower_bound_s) == (12, 2, 11)
    assert run.serial_s == 17


@given(TIMES, TIMES, TIMES, PARTS, st.integers(0, 3), st.booleans())
def test_chunked_closed_form(dispatch, expert, combine, chunks, start, both_ways):
    tasks = plans.chunked(dispatch, expert, combine, chunks, start, Fraction(3, 4), both_ways)
    formula = formulas.chunked_s(dispatch, expert, combine, chunks, start, 0.75, both_ways)
    assert ends(tasks) == pytest.approx(formula)


@given(TIMES, TIMES, st.integers(1, 9), st.integers(0, 3), st.sampled_from(plans.TP_KINDS), RATES, RATES)
def test_tp_overlap_closed_form(gemm, comm, tp, start, kind, c, m):
    tasks = plans.tp_overlap(gemm, comm, tp, kind, start, Fraction(3, 4))
    formula = formulas.tp_overlap_s(gemm, comm, tp, start, 0.75, float(c), float(m))
    assert ends(tasks, c, m) == pytest.approx(formula)


@given(TIMES, TIMES, PARTS, st.integers(0, 3), RATES, RATES)
def test_buckets_closed_form(compute, comm, buckets, start, c, m):
    formula = formulas.dp_buckets_s(compute, comm, buckets, start, float(c), float(m))
    assert ends(plans.dp_buckets(compute, comm, buckets, start), c, m) == pytest.approx(formula)
    assert ends(plans.dp_gather(compute, comm, buckets, start), c, m) == pytest.approx(formula)


def test_closed_forms_take_columns():
    chunks, dispatch = np.arange(1, 9), np.array([[3.0], [12.0]])
    found = formulas.chunked_s(dispatch, 6.0, 4.0, chunks, 0.25)
    expected = [[ends(plans.chunked(d, 6.0, 4.0, n, 0.25)) for n in range(1, 9)] for d in (3.0, 12.0)]
    np.testing.assert_allclose(found, expected)
    assert formulas.pair_s([1.0, 5.0], 3.0).tolist() == [3.0, 5.0]


@settings(max_examples=40)
@given(st.lists(TIMES, min_size=10, max_size=10), st.integers(1, 4), RATES, RATES)
def test_every_plan_is_bounded(times, layers, c, m):
    layer = plans.LayerTimes(*times)
    for tasks in (
        plans.one_f_one_b(layer, layers),
        plans.dualpipe_pair(layer, layers, pp_s=times[0]),
        plans.chunked(*times[:3], layers),
        plans.dp_gather(times[0], times[1], layers, prefetched=True),
    ):
        run = simulate(tasks, c, m)
        assert 0 <= run.exposed_s <= run.comm_s
        assert run.lower_bound_s <= run.makespan_s
        assert c + m < 1 or run.makespan_s <= run.serial_s


@pytest.mark.parametrize("plan", [plans.one_f_one_b, plans.dualpipe_pair])
def test_two_micro_batches_keep_their_own_orders(plan):
    """Each micro-batch goes through its parts one after the other, layer after layer, and nothing is left out."""
    run = simulate(plan(LAYER, 3))
    span = {t.name: (a, b) for t, a, b in zip(run.tasks, run.start_s, run.end_s, strict=True)}
    assert len(span) == 30
    forward = ["ATTN(F)", "DISPATCH(F)", "MLP(F)", "COMBINE(F)"]
    backward = ["COMBINE(B)", "MLP(B)", "DISPATCH(B)", "ATTN(B)"]
    if plan is plans.dualpipe_pair:  # boundaries of its blocks: after the attention, after the combine
        forward, backward = forward[1:] + forward[:1], backward[1:] + backward[:1]
    for parts in (forward, backward):
        line = [span[f"{part} {layer}"] for layer in range(3) for part in parts]
        assert all(b <= a for (_, b), (a, _) in pairwise(line))
    for layer in range(3):
        for part in ("MLP", "ATTN"):
            assert span[f"{part}(B) {layer}"][1] <= span[f"{part}(W) {layer}"][0]
    assert run.compute_s == 3 * (4 + 6 + 7 + 6 + 5 + 3)
    assert run.comm_s == 3 * (3 + 5 + 5 + 2)


def test_one_layer_of_1f1b_by_hand():
    """Transfers of 2, computing of 3: only the combine of the end is partly in the open, or nothing."""
    run = simulate(plans.one_f_one_b(plans.LayerTimes(3, 2, 3, 2)))
    start = {task.name: a for task, a in zip(run.tasks, run.start_s, strict=True)}
    assert start == {
        "COMBINE(B)": 0, "ATTN(F)": 0, "DISPATCH(F)": 3, "MLP(B)": 3, "DISPATCH(B)": 6, "MLP(W)": 6,
        "MLP(F)": 9, "COMBINE(F)": 12, "ATTN(B)": 12, "ATTN(W)": 15,
    }  # fmt: skip
    assert (run.makespan_s, run.exposed_s, run.serial_s) == (18, 0, 26)


def test_dualpipe_hides_all_transfers_of_figure_4():
    """Where each transfer is shorter than the computing drawn above it, compute never waits."""
    run = simulate(plans.dualpipe_pair(plans.LayerTimes(3, 3, 4, 3), 4, pp_s=1))
    assert run.exposed_s == 0
    assert run.makespan_s == run.compute_s == 4 * (3 * 3 + 3 * 4)
    names = [task.name for task in run.tasks if task.stream == "comm"]
    assert names[-3:] == ["COMBINE(F) 3", "PP", "COMBINE(B) 3"]


def test_gather_of_parts_starts_with_the_own_one():
    run = simulate(plans.tp_overlap(8, 3, 4))
    start = {task.name: a for task, a in zip(run.tasks, run.start_s, strict=True)}
    assert [start[f"gemm {i}"] for i in range(4)] == [0, 2, 4, 6]
    assert [start[f"all-gather {i}"] for i in (1, 2, 3)] == [0, 1, 2]
    scatter = simulate(plans.tp_overlap(8, 3, 4, "reduce-scatter"))
    assert (scatter.makespan_s, scatter.exposed_s) == (8, 0)
    assert simulate(plans.tp_overlap(8, 3, 1)).comm_s == 0


def test_the_last_bucket_is_exposed():
    run = simulate(plans.dp_buckets(12, 6, 4))
    assert run.exposed_s == Fraction(6, 4)
    ragged = simulate(plans.dp_buckets(12, 2, [0.5, 0.4, 0.1]))
    assert ragged.exposed_s == pytest.approx(0.2)


def test_bucket_sizes():
    assert plans.bucket_shares(10, 4) == [Fraction(2, 5), Fraction(2, 5), Fraction(1, 5)]
    assert plans.bucket_shares(8, 4) == [Fraction(1, 2)] * 2
    assert plans.bucket_shares(3, 8) == [1]
    assert sum(plans.bucket_shares(10**12 + 7, 40_000_000 * 4)) == 1


def test_best_bucket_is_the_square_root_where_traffic_decides():
    """Equal buckets, traffic M above computing C: C/n + M + n a is least at n = sqrt(C / a) = 10."""
    sizes = {n: 14_400 // n for n in (1, 2, 4, 5, 8, 9, 10, 12, 15, 20, 40)}
    found = best_bucket(100, 200, 14_400, sizes.values(), start_s=1)
    assert found.choice == sizes[10]
    assert found.run.makespan_s == 100 / 10 + 200 + 10
    assert len(found.runs) == 11


def test_best_chunks_weighs_starts_and_lost_efficiency():
    free = best_chunks(8, 16, 8)
    assert free.choice == 16
    dear = best_chunks(8, 16, 8, start_s=1, choices=(1, 2, 4, 8))
    assert {n: run.makespan_s for n, run in dear.runs.items()} == {1: 34, 2: 26, 4: 24, 8: 32}
    assert dear.choice == 4
    assert best_chunks(8, 16, 8, efficiency=lambda n: Fraction(1, n)).choice == 1


@pytest.mark.parametrize("vpp", [1, 2, 6])
def test_published_megascale_data_parallel_overlap(vpp):
    """arXiv 2402.15627, 3.2: with the first all-gather prefetched, 1/(2 vpp) of the traffic stays in the open."""
    forward, backward, traffic = 30, 60, 20
    gather = simulate(plans.dp_gather(forward, traffic, vpp, prefetched=True))
    reduce = simulate(plans.dp_buckets(backward, traffic, vpp))
    assert gather.exposed_s + reduce.exposed_s == Fraction(2 * traffic, 2 * vpp)


def test_published_dualpipe_pair_lies_between_the_bound_and_no_overlap():
    """DeepSeek-V3 on 2048 H800 (arXiv 2505.09343, table 4): 1.13 s of F, 1.99 of B, 0.48 of W, 13.95 of pairs.

    Counts are the mean of DualPipe's devices at 16 stages and 120 micro-batches (the paper does not say whose times
    these are). Traffic is 30 to 40 % before overlap (Megatron-Core's report on EP 64), 20 of 132 SMs carry it.
    """
    lines, _ = dualpipe(16, 120)
    count = {
        kind: np.mean([sum(op.kind == kind for op in line) for line in lines])
        for kind in (FORWARD, BACKWARD, INPUT, WEIGHT, PAIR)
    }
    assert count[INPUT] == count[WEIGHT]
    alone = 1.13 / count[FORWARD] + (1.99 + 0.48) / (count[BACKWARD] + count[INPUT])
    published = 13.95 / count[PAIR]
    rate = float(rate_of_units(20, 132))
    bounds = [formulas.pair_s((1 - share) * alone, share * alone, rate) for share in (0.3, 0.4)]
    assert max(bounds) < published < alone
    assert bounds[0] == pytest.approx(published, rel=0.03)
    assert bounds[1] == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: plans.chunked(1, 1, 1, 0), "chunks"),
        (lambda: plans.chunked(1, 1, 1, 2.5), "chunks"),
        (lambda: plans.chunked(1, 1, 1, 2, efficiency=math.nan), "efficiency"),
        (lambda: plans.tp_overlap(1, 1, 2, "all-reduce"), "kind"),
        (lambda: plans.tp_overlap(1, 1, 2, efficiency=0), "efficiency"),
        (lambda: plans.one_f_one_b(LAYER, 0), "layers"),
        (lambda: plans.dp_buckets(1, 1, [0.5, 0.4]), "buckets"),
        (lambda: plans.dp_buckets(1, 1, [1.5, -0.5]), r"buckets\[0\]"),
        (lambda: plans.bucket_shares(10**9, 1), "bucket_bytes"),
        (lambda: plans.bucket_shares(0, 1), "total_bytes"),
        (lambda: best(lambda n: [], []), "choices"),
        (lambda: plans.chunked("1", 1, 1, 2), "time"),
        (lambda: simulate(plans.chunked(1, 1, 1, 2, start_s=math.nan)), r"dispatch 0\.work_s"),
        (lambda: simulate(plans.dualpipe_pair(plans.LayerTimes(1, -2, 1, 1))), r"DISPATCH\(F\)\.work_s"),
    ],
)
def test_wrong_plans_are_refused(build, field):
    with pytest.raises(InputError, match=field):
        build()


def test_computing_is_on_its_own_stream():
    for tasks in (plans.chunked(1, 1, 1, 2, both_ways=True), plans.dualpipe_pair(LAYER)):
        for task in tasks:
            computes = any(word in task.name for word in ("experts", "MLP", "ATTN"))
            assert (task.stream == COMPUTE) == computes
