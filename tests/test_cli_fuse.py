"""``telekit fuse``: JSON alone on standard output, exit codes, one message for bad input."""

import json
from functools import partial

import pytest

from telekit.fusion.subgraphs import SUBGRAPHS, swiglu


@pytest.fixture
def fuse(telekit):
    """Run this one command: (exit status, standard output, standard error)."""
    return partial(telekit, "fuse")


@pytest.mark.parametrize("name", sorted(SUBGRAPHS))
def test_every_subgraph_is_priced(fuse, name):
    words = ("--size", "V=4096") if "V" in SUBGRAPHS[name]().symbols() else ()
    status, out, err = fuse(name, "--json", *words)
    answer = json.loads(out)
    assert err == "" and (status == 1) == answer["verdict"].startswith("do not fuse")
    assert answer["fused"]["launches"] <= answer["unfused"]["launches"]
    assert answer["fused"]["step_s"] <= answer["unfused"]["step_s"] * 1.001
    assert answer["device"] == "ascend-910b" and answer["assumptions"]


def test_a_file_of_records_is_read(fuse, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(swiglu().to_records()))
    one, two = (
        json.loads(fuse(g, "--json", "--device", "h100", "--size", "T=64")[1]) for g in (path, "swiglu")
    )
    assert one.pop("graph") == "mine" and two.pop("graph") == "swiglu"
    assert one == two and one["sizes"] == {"T": 64, "F": 1536}


def test_a_person_reads_kernels_and_the_verdict(fuse):
    status, out, _ = fuse("rms-norm", "--size", "T=512")
    assert status == 0 and "fuse: 8 launches to 1" in out.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("layer-norm",), "no such subgraph"),
        (("swiglu", "--size", "T=x"), "a name and a whole number"),
        (("swiglu", "--size", "X=5"), "has no such size"),
        (("swiglu", "--size", "T=0"), "a whole number from 1"),
        (("swiglu", "--device", "tpu-v5p"), "memory on chip is not known"),
        (("none.json",), "cannot be read"),
    ],
)
def test_bad_input_is_exit_2_with_one_message(fuse, words, message):
    status, out, err = fuse(*words)
    assert (status, out) == (2, "") and message in err and "Traceback" not in err
