"""Tasks of chapter 5: their right answers found by brute force, and the design has one family of answers."""

from itertools import combinations, permutations

import numpy as np
import pytest

from telekit.exercises import chapter05 as tasks

CHECKS = [tasks.one_or_two, tasks.exchange, tasks.bound, tasks.equal_tokens, tasks.crossover, tasks.step]


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_pairs_are_counted_one_by_one():
    def pairs(n):
        return int(np.tril(np.ones((n, n), dtype=int)).sum())

    assert tasks.causal_pairs((1024,)) == pairs(1024) == 524_800
    assert tasks.causal_pairs((512, 512)) == 2 * pairs(512) == 262_656
    assert tasks.one_or_two(524_800 / 262_656).ok and tasks.one_or_two("1.998").ok
    assert tasks.one_or_two(2).ok is False


def test_the_best_exchange_is_that_of_all_exchanges():
    work = [24, 16, 12, 10]
    assert [tasks.work_ms(documents) for documents in tasks.SAMPLES] == work
    best = min(max(sum(pair), sum(work) - sum(pair)) for pair in combinations(work, 2))
    assert best == 34 and tasks.exchange(best).ok


def test_the_bound_is_kept_by_every_assignment_and_met_by_one():
    steps = {max(order[i] + order[i + 1] for i in range(0, 8, 2)) for order in set(permutations(tasks.WORKS))}
    assert min(steps) == 40 and tasks.bound(40).ok


def test_equal_tokens_take_what_the_formula_says():
    length = tasks._work().crossover
    assert round(length) == 59_047  # said in the exercise
    assert tasks.equal_tokens((length + 32768) / (length + 1024)).ok
    assert tasks.equal_tokens("1.53").ok


def test_the_crossover_is_where_flops_are_equal():
    h, kv, f = 6144, 1024, 24576
    matrices = 2 * (2 * h * h + 2 * h * kv + 3 * h * f)
    lengths = np.arange(1, 200_000)
    attention = 4 * h * (lengths + 1) / 2
    assert tasks.crossover(int(lengths[np.searchsorted(attention, matrices)])).ok
    assert tasks.crossover(tasks._work().crossover).ok is False


def test_what_is_held_is_what_1f1b_holds():
    assert tasks.Choice(32768, 2, "balanced").held == 32768  # two micro-batches of half of the layers
    assert tasks.Choice(131072, 8, "balanced").held == 4 * 131072 / 8  # four micro-batches are all there are
    assert tasks.Choice(32768, 2, "by work").held == 1.25 * 32768


def test_no_other_design_is_accepted():
    right = {
        (it.seq_len, it.stages, it.policy)
        for it in tasks._all()
        if tasks.step({"seq_len": it.seq_len, "pp": it.stages, "policy": it.policy}).ok
    }
    assert right == {(32768, 2, name) for name in ("longest-first", "karmarkar-karp", "balanced")}
    assert tasks.shortest().step_s <= min(tasks.Choice(*choice).step_s for choice in right)


@pytest.mark.parametrize(
    "answer",
    [7, [], {}, {"seq_len": 32768, "pp": 2}, {"seq_len": 32768, "pp": True, "policy": "balanced"},
     {"seq_len": [1], "pp": 2, "policy": "balanced"}, {"seq_len": 32768, "pp": 2, "policy": ["balanced"]}],
)  # fmt: skip
def test_what_is_no_choice_is_said(answer):
    assert tasks.step(answer).ok is False


def test_a_whole_number_may_be_a_float():
    assert tasks.step({"seq_len": 32768.0, "pp": np.int64(2), "policy": "balanced"}).ok
