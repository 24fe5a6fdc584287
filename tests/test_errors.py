"""One error family: every problem in the text, with field, value, rule and what would work."""

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


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    inner: Inner

    @model_validator(mode="after")
    def _rule(self):
        if self.name == "bad":
            raise InputError([Problem("name", self.name, "is bad"), Problem("inner", 1, "is bad too")])
        return self


def _problems(record, prefix="train"):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(record)
    return [str(p) for p in from_pydantic(caught.value, prefix, "job.yaml").problems]


def test_pydantic_faults_become_ours_all_of_them():
    assert _problems({"inner": {"size": 0, "kind": "c", "sise": 1}}) == [
        "train.name = missing: this field is required",
        "train.inner.size = 0: input should be greater than or equal to 1",
        "train.inner.kind = c: must be one of 'a' or 'b'",
        "train.inner.sise = 1: no such field",
    ]


def test_our_own_problems_pass_through_a_validator():
    assert _problems({"name": "bad", "inner": {"size": 1}}) == ["name = bad: is bad", "inner = 1: is bad too"]


def test_without_a_prefix_the_path_starts_at_the_field():
    assert _problems({"name": "x", "inner": {}}, "") == ["inner.size = missing: this field is required"]
    assert _problems(7, "job")[0].startswith("job = 7: ")
