"""What ranks must hold alike, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from telekit.accuracy.checks.replicas import (
    check_collective,
    check_replicas,
    compare_replicas,
    invariant_to_split,
    left_out,
    reduction_of,
    shared_gradient,
)
from telekit.errors import InputError


def test_ranks_that_agree_are_grouped():
    found = compare_replicas([np.ones(3), np.ones(3), 2 * np.ones(3), np.ones(3)])
    assert not found.equal and found.groups == ((0, 1, 3), (2,))
    assert found.spread == pytest.approx(0.5)
    assert compare_replicas([np.array([np.nan])] * 2).equal


def test_shapes_are_refused():
    with pytest.raises(InputError, match="shape"):
        compare_replicas([np.ones(2), np.ones(3)])
    with pytest.raises(InputError):
        compare_replicas([])


def test_a_verdict_for_each_tensor():
    verdict = check_replicas({"a": [[1.0], [1.0]], "b": [[1.0], [1.5]]})
    assert verdict.part("a").result == "pass" and "TP all-reduce" in verdict.part("b").note


def test_what_reduction_gives_golden():
    parts = [np.array([1.0, 2.0]), np.array([3.0, -1.0])]
    assert reduction_of(parts, np.array([4.0, 1.0])) == "their sum"
    assert reduction_of(parts, np.array([2.0, 0.5])) == "their mean"
    assert reduction_of(parts, np.array([1.0, -9.0])) == ""


def test_collectives():
    assert check_collective("all_reduce", [[1, 2], [1, 2]]).passed
    assert not check_collective("all_gather", [[1, 2], [1, 3]]).passed
    assert check_collective("reduce_scatter", [[1, 2], [3, 4]], total=[1, 2, 3, 4]).passed
    assert not check_collective("reduce_scatter", [[1, 2], [1, 2]]).passed
    with pytest.raises(InputError, match="all_reduce"):
        check_collective("gossip", [[1]])


def test_shared_gradient_by_hand():
    found = shared_gradient([[1, 2], [4, 8]], [7.5, 7.5])
    assert found.equal and found.expected == (1 + 2) / 2 + (4 + 8) / 2


def test_a_norm_without_one_parameter_and_with_one_counted_twice():
    norms = {"a": 3.0, "b": 4.0, "c": 12.0}
    assert left_out(norms, 13.0) == ()
    assert left_out(norms, (9 + 144) ** 0.5) == ("b is left out",)
    assert left_out(norms, (9 + 2 * 16 + 144) ** 0.5) == ("b is counted 2 times",)
    assert left_out(norms, 12.3) == ("unexplained",)


def test_a_term_that_depends_on_the_split():
    assert invariant_to_split({"tp1": 0.01, "tp2": 0.01}).passed
    assert not invariant_to_split({"tp1": 0.01, "tp2": 0.02}).passed
