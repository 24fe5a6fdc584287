"""Tasks of chapter 6: right answers from first principles, and a design with one family of answers."""

from itertools import product
from math import comb

import pytest

from telekit.exercises import chapter06 as tasks

CHECKS = [
    tasks.distinct_nodes,
    tasks.reported_by_nccl,
    tasks.where_gathering_loses,
    tasks.on_the_wire,
    tasks.exposed_with_interference,
    tasks.layer,
]


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_right_answers_by_hand():
    assert tasks.distinct_nodes(4 * (1 - comb(144, 4) / comb(192, 4))).ok
    assert tasks.reported_by_nccl(2**30 * 15 / 16 / (2**29 / 50e9) / 1e9).ok
    assert tasks.where_gathering_loses(next(n for n in range(2, 20) if n - 1 > 6 * (1 - 1 / n))).ok
    assert tasks.on_the_wire(43.5).ok
    computing_ends = 10 / (112 / 132)
    assert tasks.exposed_with_interference(14 - computing_ends).ok


@pytest.mark.parametrize("answer", [2.75, "2.748 nodes", 2.7477])
def test_distinct_nodes_may_be_rounded(answer):
    assert tasks.distinct_nodes(answer).ok


def test_drawing_with_replacement_is_told_from_without():
    assert tasks.distinct_nodes(4 * (1 - 0.75**4)).ok is False


def test_a_choice_is_priced_by_its_parts():
    found = tasks.chosen(16, "alltoall_deredundency", 1)
    token = 4096 * 2560 * 2
    way = 2 * 50e-6 + token / 20e9 + 4 * 7 / 8 * token / 150e9 * 1.0
    experts = 6 * 2560 * 1536 * 4 * 4096 / 180e12
    assert found.time_s == pytest.approx(2 * way + experts) and found.held == 12


def test_no_other_group_or_dispatcher_is_accepted():
    right = {
        it for it in product(tasks.EPS, tasks.FORMS, tasks.CHUNKS)
        if tasks.layer(dict(zip(("ep", "dispatcher", "chunks"), it, strict=True))).ok
    }  # fmt: skip
    assert right == {(16, "alltoall_deredundency", 4)}
    assert tasks.quickest().time_s == min(
        tasks.chosen(*it).time_s for it in product(tasks.EPS[1:], tasks.FORMS, tasks.CHUNKS)
    )
    assert tasks.chosen(8, "alltoall", 4).time_s < tasks.quickest().time_s  # would be quicker, does not fit


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (7, "Write ep, dispatcher and chunks"),
        ({"ep": 16, "dispatcher": "alltoall", "chunks": 3}, "chunks is one of"),
        ({"ep": True, "dispatcher": "alltoall", "chunks": 1}, "ep is one of"),
        ({"ep": 16, "dispatcher": ["alltoall"], "chunks": 1}, "dispatcher is one of"),
    ],
)
def test_a_strange_choice_hears_what_is_wrong_with_it(answer, said):
    feedback = tasks.layer(answer)
    assert feedback.ok is False and said in feedback.message
