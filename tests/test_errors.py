"""One error family: every problem in the text, with field, value, rule and what would work."""

import re
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from telekit.errors import InputError, Problem, TelekitError, bad, from_pydantic


def test_one_problem_is_one_line():
    error = bad("layout.tp", 3, "must divide heads=32", "2 or 4 would work", source="job.yaml")
    assert str(error) == "job.yaml: layout.tp = 3: must divide heads=32; 2 or 4 would work"
    assert isinstance(error, TelekitError) and isinstance(error, ValueError)


def test_many_problems_are_a_list():
    error = InputError([Problem("tp", 3, "is odd"), Problem("pp", 0, "is zero")], "job.yaml")
    assert str(error) == "job.yaml: 2 problems\n  - tp = 3: is odd\n  - pp = 0: is zero"


def test_the_same_problems_from_elsewhere():
    error = bad("tp", 3, "is odd")
    moved = error.within("other.yaml")
    assert moved.problems == error.problems
    assert str(moved) == "other.yaml: tp = 3: is odd"


def test_problems_as_json_are_strings():
    plain = Problem("tp", None, "is odd", "2").to_dict()
    assert plain == {"field": "tp", "value": "None", "rule": "is odd", "suggestion": "2"}


@given(st.text() | st.integers() | st.lists(st.integers(), max_size=100) | st.floats())
def test_a_value_never_floods_the_message(value):
    assert len(str(Problem("field", value, "rule"))) <= len("field = : rule") + 60


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    size: Annotated[int, Field(ge=1)]
    kind: Literal["a", "b"] = "a"
    cuts: Literal["even"] | dict[Literal["low", "high"], int] | tuple[float, ...] | None = None


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    inner: Inner

    @model_validator(mode="after")
    def _rule(self):
        if self.name == "bad":
            raise InputError([Problem("name", self.name, "is bad"), Problem("inner", 1, "is bad too")])
        return self


def _problems(record, prefix="train", kind=None):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(record)
    return [str(p) for p in from_pydantic(caught.value, prefix, "job.yaml", kind).problems]


def test_pydantic_faults_become_ours_all_of_them():
    assert _problems({"inner": {"size": 0, "kind": "c", "sise": 1}}) == [
        "train.name = missing: this field is required",
        "train.inner.size = 0: must be at least 1",
        "train.inner.kind = c: must be one of 'a' or 'b'",
        "train.inner.sise = 1: no such field",
    ]


def test_our_own_problems_pass_through_a_validator():
    assert _problems({"name": "bad", "inner": {"size": 1}}) == ["name = bad: is bad", "inner = 1: is bad too"]


def test_without_a_prefix_the_path_starts_at_the_field():
    assert _problems({"name": "x", "inner": {}}, "") == ["inner.size = missing: this field is required"]
    assert _problems(7, "job")[0].startswith("job = 7: ")


def test_with_the_schema_a_problem_says_what_would_work():
    record = {"name": "", "inner": {"size": "3", "kind": "c", "sise": 1, "zzz": 2}, "q": 1}
    assert _problems(record, kind=Outer) == [
        "train.inner.size = 3: must be a whole number from 1 on; write it without quotes",
        "train.inner.kind = c: must be a or b",
        "train.inner.sise = 1: no such field; did you mean size?",
        "train.inner.zzz = 2: no such field; known: size, kind, cuts",
        "train.q = 1: no such field; known: name, inner",
    ]


@pytest.mark.parametrize(
    ("cuts", "problem"),
    [
        (
            "odd",
            "inner.cuts = odd: must be even, a mapping of low or high to a whole number, a list of numbers or null",
        ),
        ({"mid": 1}, "inner.cuts.mid = mid: must be low or high"),
        ({"low": 1.5}, "inner.cuts.low = 1.5: must be a whole number"),
    ],
)
def test_a_field_of_several_types_is_one_problem_in_plain_words(cuts, problem):
    assert problem in _problems({"name": "x", "inner": {"size": 1, "cuts": cuts}}, "", Outer)
    assert not re.search(
        "literal|valid|dict|tuple|instance", " ".join(_problems({"inner": {"cuts": cuts}}, "", Outer))
    )
