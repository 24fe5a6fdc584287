"""What a schema takes, in plain words; and that no message of a job's fields is in pydantic's."""

import copy
import math
import re

import pytest

from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.schemas import field_at, fields_of, values
from telekit.training.config import TrainConfig

LEAKS = re.compile(r"nput should|valid |tuple|dict|literal|instance|[Vv]alue error|typing|constrained")
WRONG = (
    None, True, -1, 0, 1.5, "x", "8", [], ["x"], [1], [[None]], {}, {"x": 1}, {"full": "y"}, {1: 2}, math.nan, 10**40,
)  # fmt: skip
GOOD = {"model": "llama-3.1-8b", "cluster": {"device": "h100", "nodes": 1}}


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        (ParallelConfig, ["tp"], "a whole number from 1 to 1,048,576"),
        (ParallelConfig, ["dp"], "a whole number from 1 to 1,048,576 or null"),
        (ParallelConfig, ["zero"], "a whole number from 0 to 3"),
        (ParallelConfig, ["moe_expert_capacity_factor"], "a number above 0 and up to 1000 or null"),
        (ParallelConfig, ["cp_comm_type"], "p2p or a2a"),
        (ParallelConfig, ["tp_comm_overlap"], "true or false"),
        (ClusterConfig, ["name"], "text that is not empty"),
        (ClusterConfig, ["device", "kernels", "units"], "a whole number from 1 to 1,048,576"),
        (
            ClusterConfig,
            ["tiers", 0, "curves", "all-reduce", "ranks"],
            "a list of whole numbers from 2 to 1,048,576",
        ),
    ],
)
def test_values_in_words(schema, path, words):
    assert values(field_at(schema, path)) == words


def test_a_path_may_lead_nowhere():
    assert field_at(ClusterConfig, ["device", "kernels", "cores"]) is None
    assert field_at(ParallelConfig, ["tp", 0]) is None
    assert fields_of(field_at(ClusterConfig, ["tiers", 0]))[:2] == ("sources", "name")
    assert fields_of(field_at(ParallelConfig, ["tp"])) == ()


def _messages(make):
    """Rules of every problem that a wrong value raises; none where it is taken."""
    try:
        make()
    except InputError as error:
        return [problem.rule for problem in error.problems]
    return []


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_no_field_of_layout_and_training_speaks_of_its_validator(wrong):
    for section, schema in (("layout", ParallelConfig), ("train", TrainConfig)):
        for field in schema.model_fields:
            for rule in _messages(lambda s=section, f=field: Job.read(GOOD | {s: {f: wrong}})):
                assert not LEAKS.search(rule), (section, field, rule)


def _paths(record, path=()):
    """Path of every field of a record, of a list's first entry alone."""
    inner = (
        record.items()
        if isinstance(record, dict)
        else enumerate(record[:1])
        if isinstance(record, list)
        else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from _paths(value, (*path, key))


@pytest.mark.parametrize("wrong", [None, -1, "x", ["x"], {"x": 1}], ids=repr)
def test_no_field_of_a_cluster_speaks_of_its_validator(wrong):
    full = load_cluster({"device": "tpu-v6e", "nodes": 2}).model_dump(mode="json")
    for path in _paths(full):
        record = copy.deepcopy(full)
        place = record
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        for rule in _messages(lambda r=record: load_cluster(r)):
            assert not LEAKS.search(rule), (path, rule)
