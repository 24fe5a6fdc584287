"""Two thousand mutated jobs, clusters, layer files and layout strings: a valid object, or one clear error."""

from __future__ import annotations

import copy
import json
import random

import pytest

from telekit import catalog
from telekit.cluster.config import cluster_names, load_cluster
from telekit.errors import InputError
from telekit.job import Job, load_job
from telekit.launch.pipeline_layout import read_layout
from telekit.layout.stages import assign
from telekit.model.count import count
from telekit.planner.sapp_layers import read_layers

ODD = (None, True, False, 0, 1, -1, 2, 3, 7, 64, 10**6, 2**31, 10**400, 0.5, -1.5, float("nan"), float("inf"), "", "8",
       "auto", "none", [], [0], [[1]], [None], {}, {"a": 1}, [[[1]]] * 9)  # fmt: skip
JOBS = [catalog.record("jobs", name)["job"] for name in catalog.names("jobs")]
CLUSTERS = [load_cluster(name).model_dump(mode="json") for name in cluster_names()] + [
    job["cluster"] for job in JOBS
]
LAYERS = json.loads((catalog.root() / "samples/sapp-test.json").read_text())


def places(document):
    """Every container inside, itself first."""
    yield document
    inside = document.values() if isinstance(document, dict) else document
    for value in inside:
        if isinstance(value, dict | list) and value:
            yield from places(value)


def mutate(document, rng):
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.choice(list(places(document)))
        key = rng.choice(sorted(place)) if isinstance(place, dict) else rng.randrange(len(place))
        value, action = place[key], rng.random()
        if action < 0.1:
            del place[key]
            if not document:
                return document
        elif action < 0.2 and isinstance(place, dict):
            place[rng.choice(("tp", "layers", "devices", "Tp", "zzz", ""))] = copy.deepcopy(rng.choice(ODD))
        elif action < 0.7 and type(value) in (int, float):
            place[key] = rng.choice((2 * value, value + 1, value // 2, -value))
        else:
            place[key] = copy.deepcopy(rng.choice(ODD))
    return document


def attempt(read, document):
    """What the reader makes of it; None where it refuses."""
    try:
        return read(document)
    except InputError as error:
        assert error.problems and len(str(error)) < 20_000
        return None


def test_mutated_jobs():
    rng, valid = random.Random(1), 0
    for _ in range(1000):
        found = attempt(Job.read, mutate(rng.choice(JOBS), rng))
        if found is None or found.problems():
            continue
        valid += 1
        x = found.layout
        assert x.tp * x.cp * x.pp * x.dp == found.cluster.devices
        assert (x.tp * x.cp * x.dp) % (x.ep * x.etp) == 0
        assert found.train.global_batch % (x.dp * x.micro_batch) == 0
        assert assign(found.model, x).counts.sum() == found.model.num_layers
        assert load_job(found.to_dict()).layout == x
        assert count(found.model).total > 0
    assert valid > 50


def test_mutated_clusters():
    rng, valid = random.Random(2), 0
    for _ in range(400):
        found = attempt(load_cluster, mutate(rng.choice(CLUSTERS), rng))
        if found is not None:
            valid += 1
            assert found.devices >= 1 and all(peak > 0 for peak in found.device.peak_flops.values())
    assert valid > 20


def test_mutated_layer_files():
    rng, valid = random.Random(3), 0
    for _ in range(300):
        found = attempt(read_layers, mutate(LAYERS, rng))
        if found is not None:
            valid += 1
            assert found.runs()
    assert valid > 20


def test_mutated_layout_strings():
    rng, valid = random.Random(4), 0
    for _ in range(300):
        text = list(rng.choice(("Et*3|(tt|)*29m|L", "Et|(tt|)*30L", "E(t|)*3tL", "E|t*2|t*2m|L")))
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(text))
            text[at : at + 1] = rng.choice(
                (["t"], [], ["|"], ["*", "9" * 9], ["("], [")"], ["E"], ["é"], ["0"])
            )
        found = attempt(lambda t: read_layout(t, rng.choice((1, 2, 4, 16))), "".join(text))
        if found is not None:
            valid += 1
            assert sum(part.embedding for row in found for part in row) <= 1
    assert valid > 5


@pytest.mark.parametrize(
    "text", ["[", "{a: b: c}", "&a [*a]", "!!python/object:os.system x", "\x00", "- " * 100_000]
)
def test_text_that_is_no_document(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"job\.yaml"):
        load_job(path)
