"""Tasks of chapter 4: their right answers are what the simulation says, and the design has one family of answers."""

import numpy as np
import pytest

from telekit.errors import InputError
from telekit.exercises import chapter04 as tasks
from telekit.pipeline.registry import EQUAL as ONE
from telekit.pipeline.registry import EVERY, build, times
from telekit.pipeline.simulate import run

CHECKS = [
    tasks.larger_micro_batch,
    tasks.chunks_needed,
    tasks.interleaved_activations,
    tasks.most_to_save,
    tasks.zero_bubble_idle,
    tasks.pipeline,
]


def simulated(name, micro_batches, chunks=None):
    order = build(name, 8, micro_batches, chunks=chunks)
    return run(order, times(order, ONE))


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_right_answers_are_simulated():
    assert tasks.larger_micro_batch(100 * simulated("1f1b", 8).bubble_fraction).ok
    enough = min(v for v in range(2, 9) if simulated("interleaved-1f1b", 16, v).bubble_fraction <= 0.1)
    assert tasks.chunks_needed(enough).ok
    assert tasks.interleaved_activations(simulated("interleaved-1f1b", 16, 2).peak_activations[0]).ok
    long = simulated("1f1b", 512)
    assert tasks.most_to_save(100 * (1 - 3 * 512 / long.makespan_s)).ok
    assert tasks.zero_bubble_idle(simulated("zb-1p", 16).makespan_s - 48).ok


def test_a_choice_is_simulated_at_its_own_times():
    found = tasks.chosen("1f1b", 2)
    each, comm, m, p = 0.3 + 0.7 * 2, 0.2, 32, 8
    assert found.makespan >= 3 * each * (m + p - 1) + 2 * (p - 1) * comm - 1e-9
    assert found.held == 16 and not found.fits and found.room == 10
    assert tasks.chosen("dualpipe", 1).room == 5


def test_nothing_that_fits_is_shorter_and_the_lean_schedule_affords_the_larger_micro_batch():
    best = tasks.shortest()
    assert (best.schedule, best.micro_batch, best.held) == ("v-half", 2, 10.0)
    assert tasks.pipeline({"schedule": "v-half", "micro_batch": 2}).ok
    faster = tasks.chosen("zb-v", 2)
    assert faster.makespan < best.makespan and not faster.fits


def test_no_other_schedule_is_accepted():
    """Whatever can be asked for, also numbers of chunks that the search of the shortest does not try."""
    right = set()
    for name in EVERY:
        for size in tasks.SIZES:
            for chunks in (None, 1, 2, 3, 4, 6, 8, 12, 16):
                try:
                    found = tasks.chosen(name, size, chunks)
                except InputError:
                    continue
                if found.fits and found.makespan <= tasks.WITHIN * tasks.shortest().makespan:
                    right.add((name, size))
    assert right == {("v-half", 2)}


@pytest.mark.parametrize("answer", [1.34, 1.349, 1.35, 1.3, "1.35 %", "7/519"])
def test_a_share_may_be_rounded_to_two_digits(answer):
    assert tasks.most_to_save(answer).ok


@pytest.mark.parametrize("answer", [1.4, 1.37, 1.2])
def test_other_shares_are_wrong(answer):
    assert tasks.most_to_save(answer).ok is False


@pytest.mark.parametrize("size", [2, 2.0, "2", np.int64(2), np.array(2)])
def test_a_whole_number_may_be_written_in_several_ways(size):
    assert tasks.pipeline({"schedule": "v-half", "micro_batch": size, "chunks": size}).ok


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"schedule": "1f1b", "micro_batch": np.array([1, 2])}, "holds 1, 2, 4, 8"),
        ({"schedule": "1f1b", "micro_batch": True}, "holds 1, 2, 4, 8"),
        ({"schedule": "1f1b", "micro_batch": 1, 3: 4, "x": 1}, "3, x: only"),
        ({"schedule": "interleaved-1f1b", "micro_batch": 1, "chunks": 2.5}, "whole number"),
        ({"schedule": "interleaved-1f1b", "micro_batch": 1, "chunks": "two"}, "whole number"),
        ({"schedule": "v-half", "micro_batch": 2, "chunks": 7}, "chunks 2 works"),
    ],
)
def test_a_strange_choice_hears_what_is_wrong_with_it(answer, said):
    feedback = tasks.pipeline(answer)
    assert feedback.ok is False and said in feedback.message


@pytest.mark.parametrize("answer", [7, [], {"schedule": ["1f1b"], "micro_batch": 1}, {"micro_batch": 1}])
def test_what_is_no_choice_is_said(answer):
    assert tasks.pipeline(answer).ok is False
