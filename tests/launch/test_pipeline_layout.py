"""The layout string: what is written is read back, and what Megatron-LM's own examples say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.job import load_job
from telekit.launch import megatron
from telekit.launch.pipeline_layout import LayoutPart, read_layout


def job_of(rows, mtp=0):
    """Return a job whose chunks (outer) and stages hold so many layers, ``mtp`` MTP modules at the end."""
    pp, vpp = len(rows[0]), len(rows)
    job = load_job(
        {
            "model": "llama-3.1-8b",
            "cluster": {"device": "h100", "nodes": pp},
            "train": {"global_batch": 4 * pp},
            "layout": {"tp": 8, "pp": pp, "vpp": vpp, "stages": rows},
        }
    )
    shape = {"pattern": (0,) * sum(map(sum, rows)), "mtp_layers": mtp}
    return replace(job, model=job.model.model_copy(update=shape))


@st.composite
def stage_counts(draw):
    pp = draw(st.integers(2, 12))
    vpp = draw(st.integers(1, 4))
    flat = draw(st.lists(st.integers(1, 9), min_size=pp * vpp, max_size=pp * vpp))
    flat[0] = draw(st.integers(0, 9))  # only the two ends may be empty
    flat[-1] = draw(st.integers(0, 9))
    return [flat[v * pp : (v + 1) * pp] for v in range(vpp)]


@settings(max_examples=120, deadline=None)
@given(stage_counts(), st.integers(0, 3))
def test_what_is_written_is_read_back(rows, mtp):
    text = megatron.layout_string(job_of(rows, mtp))
    read = read_layout(text, len(rows[0]))
    assert [[part.layers for part in row] for row in read] == rows
    ends = [(part.embedding, part.loss, part.mtp) for row in read for part in row]
    assert ends[0][:2] == (True, False)
    assert ends[-1] == (False, True, mtp)
    assert set(ends[1:-1]) <= {(False, False, 0)}


def test_runs_of_equal_stages_are_written_once():
    rows = [[3] + [2] * 15, [2] * 14 + [1, 0]]
    assert megatron.layout_string(job_of(rows, mtp=1)) == "Et*3|(tt|)*29t|mL"


# The examples of Megatron-LM: of the option's help text, and of the docstring of its reader.
EXAMPLES = {
    ("E|(t|)*3,m|m||L", 8): ["E", "t", "t", "t", "m", "m", "", "L"],
    ("Ettt|(tt|)*29,m|L", 32): ["Ettt", *["tt"] * 29, "m", "L"],
}


@pytest.mark.parametrize(("text", "pp"), EXAMPLES)
def test_megatron_examples(text, pp):
    (row,) = read_layout(text, pp)
    want = [LayoutPart(p.count("t"), p.count("m"), "E" in p, "L" in p) for p in EXAMPLES[text, pp]]
    assert list(row) == want


# Megatron-LM issue 1852, 61 layers on pp 16, vpp 2: how many parts, how many layers, which parts are empty
ISSUE_1852 = {
    "Et|(tt|)*30L": (32, 61, []),
    "Et*3|(tt|)*29|L": (32, 61, [30]),
    "Et|(tt|)*29|L": (32, 59, [30]),
}


@pytest.mark.parametrize("text", ISSUE_1852)
def test_an_empty_part_is_seen_and_not_lost(text):
    read = read_layout(text, 16)
    flat = [part for row in read for part in row]
    empty = [i for i, part in enumerate(flat) if part == LayoutPart()]
    assert (len(flat), sum(part.layers for part in flat), empty) == ISSUE_1852[text]


@pytest.mark.parametrize(
    ("text", "pp", "says"),
    [
        ("Et|tx|tL", 3, "letter 5, 'x'"),
        ("Et|(t|)tL", 3, "letter 4, '('"),
        ("E(t(t|)*2)*2L", 1, "letter 2, '('"),
        ("Et|t|tL", 2, "3 parts, not whole rows of pp = 2"),
        ("Et|tL", 0, "whole rows of pp = 0"),
        ("t|tL", 2, "one E"),
        ("tE|tL", 2, "one E"),
        ("Et|LLt", 2, "one L"),
        ("", 1, "one E"),
        ("Et*999999L", 1, "more than"),
        ("E" + "(t*9999|)*9999L", 1, "more than"),
        ("Et*99999999999999999999L", 1, "more than"),
        ("Et* 3L", 1, "letter 3, '*'"),
    ],
)
def test_a_broken_layout_is_refused(text, pp, says):
    with pytest.raises(InputError) as caught:
        read_layout(text, pp)
    assert says in str(caught.value)
