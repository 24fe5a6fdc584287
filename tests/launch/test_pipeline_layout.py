"""The layout string: what is written is read back, and what Megatron-LM's own examples say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.job import load_job
from telekit.launch import megatron
from telekit.launch.pipeline_layout import LayoutPart, chunks_of, read_layout, stages_of
from telekit.layout.config import ParallelConfig
from telekit.layout.rules import check


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
        ("Et|mtL", 2, "a layer (t) after an MTP module"),
        ("Et|m|tL", 3, "a layer (t) after an MTP module"),
    ],
)
def test_a_broken_layout_is_refused(text, pp, says):
    with pytest.raises(InputError) as caught:
        read_layout(text, pp)
    assert says in str(caught.value)


def faults(text, pp, num_layers, mtp=0):
    with pytest.raises(InputError) as caught:
        stages_of(text, pp, num_layers, mtp)
    return [problem.rule for problem in caught.value.problems], caught.value.problems[0].suggestion


def test_pv17_layers_are_counted_and_empty_parts_flagged():
    """Megatron-LM issue 1852: 61 layers on 16 stages of 2 chunks."""
    assert stages_of("Et|(tt|)*30L", 16, 61) == [[1] + [2] * 15, [2] * 15 + [0]]
    flagged, hint = faults("Et*3|(tt|)*29|L", 16, 61)
    assert len(flagged) == 1 and "part 30 of 32 (counted from 0) empty" in flagged[0]
    lost, _ = faults("Et|(tt|)*29|L", 16, 61)
    assert lost[0] == "places 59 layers; the model has 61" and "part 30 of 32" in lost[1] and len(lost) == 2
    placed = stages_of(hint.removesuffix(" works"), 16, 61)
    assert sum(map(sum, placed)) == 61 and min(map(min, placed)) > 0


@settings(max_examples=120, deadline=None)
@given(stage_counts(), st.integers(0, 2))
def test_what_is_written_is_read_as_stages(rows, mtp):
    job = job_of(rows, mtp)
    assert stages_of(megatron.layout_string(job), len(rows[0]), sum(map(sum, rows)), mtp) == rows


@pytest.mark.parametrize(
    ("text", "num_layers", "mtp", "says"),
    [
        ("Ett|t*3|ttmL", 7, 0, ["places 1 MTP modules; the model trains 0"]),
        ("Ett|t*3|ttL", 7, 1, ["places 0 MTP modules; the model trains 1"]),
        ("Ett|t*5m|L", 7, 1, ["has MTP modules in part 1"]),
        (
            "Ett||t*4m|m||L",
            7,
            1,
            ["places 6 layers", "places 2 MTP modules", "leaves part 1, 4 of 6", "in part 2, 3"],
        ),
        ("E|ttL|", 2, 0, None),
    ],
)
def test_every_fault_of_a_layout_is_listed(text, num_layers, mtp, says):
    if says is None:
        with pytest.raises(InputError, match="end with the one L"):
            stages_of(text, 3, num_layers, mtp)
        return
    found, hint = faults(text, 3, num_layers, mtp)
    assert len(found) == len(says)
    assert all(want in rule for want, rule in zip(says, found, strict=True))
    stages_of(hint.removesuffix(" works"), 3, num_layers, mtp)


def test_fewer_layers_than_stages_have_no_layout():
    assert faults("E|t|t|t|tL", 5, 2)[1] == "pp 4 at most"
    assert faults("E|t|L", 3, 2)[1] == "Et|t|L works"  # the two ends may be empty
    assert faults("E|t|t||||||L", 3, 7)[1] == "E|(t|)*7L works"
    assert faults("E|t|t||||||L", 3, 6)[1] == "Et|(t|)*4tL works (vpp 2)"


@pytest.mark.parametrize("text", [None, 5, b"Et|tL", ["E"], float("nan")])
def test_what_is_no_text_is_refused(text):
    for read in (lambda: read_layout(text, 2), lambda: stages_of(text, 2, 2)):
        with pytest.raises(InputError, match="must be text; Et"):
            read()


def test_a_layout_that_is_read_is_valid_where_it_is_used():
    rows = stages_of("Et|(tt|)*30L", 16, 61)
    job = job_of([[2] * 16, [2] * 15 + [0]])
    case = replace(job, model=job.model.model_copy(update={"pattern": (0,) * 61})).case
    layout = ParallelConfig.model_validate(job.layout.model_dump() | {"stages": rows})
    assert check(replace(case, layout=layout)) == ()


def dropped_by_floor(num_layers, pp, layers_per_chunk):
    """Layers that Megatron-LM once left out: each stage takes whole chunks only, of a floor of the layers."""
    left = num_layers
    while left >= pp * layers_per_chunk:
        left -= pp * layers_per_chunk
    return left


def test_pv02_two_layers_a_virtual_stage_lose_sixteen():
    """Megatron-LM issue 468: 80 layers on 16 stages trained as 64."""
    with pytest.raises(InputError) as caught:
        chunks_of(80, 16, 2)
    said = str(caught.value)
    assert "64 would be trained and 16 lost" in said and "16 * 2 = 32" in said and said.endswith("1 works")
    assert chunks_of(80, 16, 1) == 5 and chunks_of(80, 16, 5) == 1 and chunks_of(96, 16, 2) == 3


def test_pv01_layers_that_do_not_divide_get_a_layout():
    """Megatron-LM issue 1304: 30 layers on 4 stages."""
    with pytest.raises(InputError) as caught:
        chunks_of(30, 4, 7)
    (problem,) = caught.value.problems
    assert "28 would be trained and 2 lost" in problem.rule
    text = problem.suggestion.split("'")[1]
    assert stages_of(text, 4, 30) == [[7, 8, 8, 7]]


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9))
def test_chunks_are_whole_or_refused_with_something_that_works(num_layers, pp, each):
    lost = dropped_by_floor(num_layers, pp, each)
    if not lost:
        assert chunks_of(num_layers, pp, each) * pp * each == num_layers
        return
    with pytest.raises(InputError) as caught:
        chunks_of(num_layers, pp, each)
    (problem,) = caught.value.problems
    assert f"and {lost} lost" in problem.rule
    hint = problem.suggestion
    if "layout" in hint:
        assert sum(map(sum, stages_of(hint.split("'")[1], pp, num_layers))) == num_layers
    elif hint.startswith("pp"):
        assert num_layers < pp
    else:
        assert chunks_of(num_layers, pp, int(hint.split()[0])) >= 1


@pytest.mark.parametrize("numbers", [(8, 0, 1), (8, 2, 0)])
def test_chunks_of_nothing_are_refused(numbers):
    with pytest.raises(InputError, match="at least 1"):
        chunks_of(*numbers)
