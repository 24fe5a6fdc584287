"""Sizes that are refused: which is named, that what is suggested works, and that refusing takes no walk."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.pipeline.registry import EVERY, build, get
from telekit.pipeline.sizes import MAX_STAGES, check_sizes

NAMES = {"stages", "micro_batches", "chunks", "group_size", "sequence_chunks", "memory_limit"}


def suggested(problems):
    """Field and value of each suggestion; a choice to be left out is None."""
    found = {}
    for problem in problems:
        near = re.fullmatch(r"(\w+) (\d+) works", problem.suggestion)
        assert near or problem.suggestion.startswith("leave it out"), str(problem)
        found[near[1] if near else problem.field] = int(near[2]) if near else None
    return found


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_all_that_is_suggested_works_at_once(data):
    name = data.draw(st.sampled_from(list(EVERY)))
    sizes = {"stages": data.draw(st.integers(-1, 9)), "micro_batches": data.draw(st.integers(-1, 24))}
    for option, most in (("chunks", 4), ("group_size", 30), ("sequence_chunks", 3)):
        if option in get(name).options or data.draw(st.integers(0, 4)) == 0:
            sizes[option] = data.draw(st.integers(0, most))
    try:
        build(name, **sizes)
    except InputError as fault:
        fields = [problem.field for problem in fault.problems]
        assert len(fields) == len(set(fields)) and set(fields) <= NAMES
        better = sizes | suggested(fault.problems)
        build(name, **better)


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("1f1b", (3_000_000, 8), {"stages": MAX_STAGES}),
        ("1f1b", (100, 100_000), {"micro_batches": 20_000}),
        ("1f1b", (10**9, 10**9), {"stages": MAX_STAGES, "micro_batches": 30}),
        ("1f1b", (10**5000, 8), {"stages": MAX_STAGES}),
        ("zb-1p", (1000, 200), {"stages": 500}),
        ("interleaved-1f1b", (4, 8, 10**8), {"chunks": 1250}),
        ("seq-1f1b", (4, 8, None, None, 10**9), {"sequence_chunks": 31_250}),
        ("interleaved-1f1b", (4, 8, None, 1_999_999), {"group_size": 8}),
        ("interleaved-1f1b", (4, 8, None, 3), {"group_size": 4}),
        ("interleaved-1f1b", (1, 8), {"stages": 2}),
        ("interleaved-1f1b", (4, 8, 0), {"chunks": 2}),
        ("dualpipe", (0, 8), {"stages": 2}),
        ("dualpipe-v", (4, 0), {"micro_batches": 8}),
        ("interleaved-1f1b", (40_000, 8), {"stages": 625, "micro_batches": 625}),
    ],
)
def test_the_size_at_fault_is_named(name, sizes, expected):
    with pytest.raises(InputError) as caught:
        build(name, *sizes)
    assert suggested(caught.value.problems) == expected


@pytest.mark.parametrize("sizes", [(3_000_000, 8), (8, 10**9), (10**6, 10**6, 10**6, 10**6), (2, 400, 1000)])
def test_too_many_operations_are_no_longer_too_many(sizes):
    names = ("stages", "micro_batches", "chunks", "pieces")
    problems = check_sizes(*sizes)
    assert problems
    better = dict(zip(names, sizes, strict=False)) | suggested(problems)
    assert check_sizes(**better) == []


@pytest.mark.parametrize(
    "limit", [0.5, 0, -3, float("nan"), float("inf"), "x", [1], None.__class__, 1j], ids=str
)
def test_a_memory_limit_that_is_none(limit):
    with pytest.raises(InputError) as caught:
        build("zb-1p", 4, 8, memory_limit=limit)
    assert suggested(caught.value.problems) in ({"memory_limit": 1}, {})


def test_a_memory_limit_beyond_all_is_no_limit():
    free = build("zb-1p", 4, 8, memory_limit=8)
    np.testing.assert_array_equal(build("zb-1p", 4, 8, memory_limit=1e30).kind, free.kind)


@pytest.mark.parametrize(
    "arguments",
    [([], 4, 8), (None, 4, 8), ("1f1b", 4.0, 8), ("1f1b", "4", 8), ("1f1b", np.arange(2), 8)],
    ids=str,
)
def test_no_raw_error(arguments):
    build("1f1b", 4, 8)
    with pytest.raises(InputError):
        build(*arguments)
