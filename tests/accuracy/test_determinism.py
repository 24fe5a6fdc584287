"""Equal inputs and unequal outputs; reruns."""

from __future__ import annotations

import numpy as np
import pytest
from locating_rows import chain, operator

from telekit.accuracy.checks.determinism import Watch, check_scatter, diff_check, first_stale, rerun, same_set
from telekit.errors import InputError


def test_only_the_first_operator_with_equal_inputs_counts():
    found = diff_check(chain(["a", "b", "c"], wrong="b", change=lambda x: x + 1e-6))
    assert [f.operator for f in found.found] == ["Module.b.Linear"]
    assert found.first is not None and not found.first.order_only


def test_nothing_found_is_not_proof():
    assert "absence under dump is not absence" in diff_check(chain(["a", "b"])).text


def test_an_order_alone_is_told():
    x = np.arange(8.0)
    found = diff_check(operator("Functional.topk.0", 0, [(x, x)], [(x[::-1].copy(), x)]))
    assert found.first is not None and found.first.order_only


def test_inputs_that_are_not_known_decide_nothing():
    x = np.arange(8.0)
    found = diff_check(operator("Functional.f.0", 0, [], [(x + 1, x)]))
    assert not found.found and found.undecided == 1


def test_set_equality_of_slots():
    assert same_set([[1, 2], [3, 4]], [[2, 1], [4, 3]])
    assert not same_set([[1, 2]], [[1, 3]])


def test_scatter_needs_indices_inside():
    with pytest.raises(InputError, match="from 0 to 2"):
        check_scatter([0, 0, 0], [3], [1], [[0, 0, 0]])


@pytest.mark.parametrize(
    ("again", "elsewhere", "verdict"),
    [
        (1.0, None, "transient error"),
        (2.0, None, "reproduced"),
        (2.0, 1.0, "persistent error"),
        (2.0, 2.0, "correct result"),
    ],
)
def test_rerun_machine(again, elsewhere, verdict):
    other = None if elsewhere is None else (lambda: elsewhere)
    assert rerun(2.0, lambda: again, other).verdict == verdict


def test_unexpectedly_large_is_ten_times_the_largest_so_far():
    watch = Watch()
    assert [watch.unexpected(v) for v in (1.0, 3.0, 29.0, 290.0, 280.0, float("nan"))] == [
        False,
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_buffer_that_was_not_refreshed():
    assert first_stale({"a": [1, 2], "b": [1, 2], "z": [0]}, {"a": [1, 2], "b": [1, 3], "z": [0]}) == ("a",)
