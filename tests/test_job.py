"""A job from and to YAML, and every kind of bad input: one message with file, field, value and rule."""

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.job import Job, _wrapped, defaults, load_job
from telekit.launch import megatron

GOOD = {
    "model": "deepseek-v3",
    "cluster": {"device": "h800", "nodes": 256},
    "train": {"seq_len": 4096, "global_batch": 15360},
    "layout": {"tp": 1, "pp": 16, "ep": 64, "schedule": "dualpipe"},
}


def refused(data) -> InputError:
    with pytest.raises(InputError) as caught:
        load_job(data)
    return caught.value


def test_dp_follows_from_the_device_count():
    assert load_job(GOOD).layout.dp == 128


def test_virtual_stages_mean_interleaving_unless_a_schedule_is_given():
    layout = {"pp": 4, "vpp": 2}
    assert load_job(GOOD | {"layout": layout}).layout.schedule == "interleaved-1f1b"
    assert load_job(GOOD | {"layout": layout | {"schedule": "zb-v"}}).layout.schedule == "zb-v"


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"pp": 16, "ep": 8, "recompute": ["moe_act"], "expert_imbalance": 1.5},
        {"pp": 2, "stages": [[30, {"layers": 31, "recompute": {"full": 2}}]]},
        {"pp": 4, "vpp": 2, "tp": 2, "zero": 0},
    ],
)
def test_yaml_round_trip(tmp_path, layout):
    job = load_job(GOOD | {"layout": layout})
    path = tmp_path / "job.yaml"
    path.write_text(job.to_yaml())
    again = load_job(path)
    assert (again.model, again.cluster, again.train, again.layout) == (
        job.model,
        job.cluster,
        job.train,
        job.layout,
    )


@given(st.dictionaries(st.text("ab", min_size=1), st.text("xyz ,:'\"\n\té{}[]#", max_size=120), min_size=1))
def test_lines_break_only_where_yaml_reads_a_space(value):
    flow = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    assert yaml.safe_load(_wrapped(f"n: {flow}", 40)) == {"n": value}
    words = yaml.safe_dump({name: "word" for name in "abcdefghijkl"}, default_flow_style=True, width=999)
    assert all(len(line) <= 40 for line in _wrapped(f"n: {words}", 40).splitlines())


def test_json_is_read_too(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(GOOD))
    assert load_job(path).layout == load_job(GOOD).layout


def test_model_path_is_beside_the_job(tmp_path):
    from telekit import catalog

    (tmp_path / "config.json").write_text(json.dumps(catalog.record("models", "mixtral-8x7b")["config"]))
    path = tmp_path / "job.yaml"
    path.write_text("model: config.json\ncluster: {device: h100, nodes: 2}\n")
    assert load_job(path).model.num_layers == 32


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model": None}, ["model"]),
        ({"model": "deepseek-v9"}, ["deepseek-v9", "did you mean"]),
        ({"cluster": {"device": "h900", "nodes": 2}}, ["h900", "cluster.device"]),
        ({"cluster": {"device": "h800", "nodes": -1}}, ["nodes", "-1"]),
        ({"cluster": {"device": "h800", "nodes": float("nan")}}, ["nodes", "nan"]),
        ({"train": {"seq_len": "long"}}, ["train.seq_len", "long"]),
        ({"train": {"seq_len": None}}, ["train.seq_len"]),
        ({"train": {"global_batch": 10**30}}, ["train.global_batch"]),
        ({"train": {"seqlen": 1}}, ["train.seqlen", "no such field"]),
        ({"train": [1]}, ["train", "mapping"]),
        ({"layout": {"tp": 0}}, ["layout.tp", "0"]),
        ({"layout": {"tp": True}}, ["layout.tp", "True"]),
        ({"layout": {"schedule": "best"}}, ["layout.schedule", "best", "1f1b"]),
        ({"lay_out": {}}, ["lay_out", "no such section"]),
    ],
)
def test_bad_fields_are_named(change, words):
    text = str(refused(GOOD | change))
    for word in words:
        assert word in text


def test_every_fault_is_listed_at_once():
    bad = {
        "model": "nope",
        "cluster": {"device": "h800", "nodes": 0},
        "train": {"seq_len": -1, "x": 1},
        "layout": {"tp": 0.5},
    }
    fields = {p.field for p in refused(bad).problems}
    assert {"model", "cluster.nodes", "train.seq_len", "train.x", "layout.tp"} <= fields


@pytest.mark.parametrize(
    "text, words",
    [
        ("model: [", ["line 1"]),
        ("model: !!python/object:os.system {}", ["tag", "line 1"]),
        ("model: !custom x", ["tag"]),
        ("model: &a x\ncluster: *a", ["anchors"]),
        ("model: a\nmodel: b", ["twice"]),
        ("- 1", ["mapping"]),
        ("", ["mapping"]),
        ("model: deepseek-v3\n", ["cluster", "required"]),
        ("[" * 10_000, ["deep"]),
        ("model: deepseek-v3\ncluster: {device: h800, nodes: .inf}", ["nodes"]),
        ("? {a: 1}\n: 2", ["plain text"]),
    ],
)
def test_broken_yaml_names_its_place(tmp_path, text, words):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    message = str(refused(path))
    assert str(path) in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "text, word",
    [('{"model": NaN}', "NaN"), ('{"a": 1, "a": 2}', "twice"), ("{", "line 1"), ("[" * 100_000, "deep")],
)
def test_broken_json_names_its_place(tmp_path, text, word):
    path = tmp_path / "job.json"
    path.write_text(text)
    assert word in str(refused(path))


def test_unreadable_files(tmp_path):
    assert "cannot be read" in str(refused(tmp_path / "none.yaml"))
    assert "cannot be read" in str(refused(tmp_path))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in str(refused(tmp_path / "bytes.yaml"))
    (tmp_path / "big.yaml").write_bytes(b"#" * 10_000_001)
    assert "at most" in str(refused(tmp_path / "big.yaml"))


def test_all_broken_layout_rules_are_listed():
    job = load_job(GOOD | {"layout": {"tp": 3, "pp": 5, "ep": 7, "etp": 5, "schedule": "dualpipe", "vpp": 3}})
    fields = [p.field for p in job.problems()]
    assert {"layout.tp", "layout.ep", "layout.etp", "layout.vpp", "layout.pp"} <= set(fields)
    assert not {"layout.dp", "layout.micro_batch"} & set(fields)  # nobody wrote dp, and there is none
    assert all(p.rule for p in job.problems())


def test_defaults_can_be_listed():
    listed = defaults()
    assert listed["layout"]["zero"] == 1 and listed["train"]["precision"] == "bf16"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
paths = st.sampled_from(
    [
        (s, f)
        for s, fields in (
            ("train", ("seq_len", "global_batch", "precision", "mtp")),
            ("layout", ("tp", "pp", "stages", "recompute", "zero", "dp")),
            ("cluster", ("device", "nodes", "devices", "tiers")),
        )
        for f in fields
    ]
    + [("model", ""), ("train", ""), ("layout", ""), ("cluster", "")]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(paths, values)
def test_whatever_is_written_gives_a_job_or_one_clear_error(path, value):
    section, field = path
    changed = dict(GOOD)
    changed[section] = {**GOOD[section], field: value} if field else value
    try:
        job = load_job(changed)
    except InputError as error:
        assert error.problems and str(error)
    else:
        assert isinstance(job, Job)
        assert isinstance(job.problems(), tuple)


def test_an_open_job_is_written_back_open():
    job = load_job(GOOD | {"layout": {"tp": 1, "dp": None}})
    assert job.given == ("tp",)
    assert load_job(job.to_dict()).given == ("tp",)


@pytest.mark.parametrize("number", ["010000", "1:08:16", "0x1000"])
def test_numbers_are_decimal_or_refused(tmp_path, number):
    path = tmp_path / "job.yaml"
    path.write_text(
        f"model: deepseek-v3\ncluster: {{device: h800, nodes: 2}}\ntrain: {{seq_len: {number}}}\n"
    )
    assert "train.seq_len" in str(refused(path))


def test_a_catalog_name_is_not_a_folder_beside_the_job(tmp_path):
    (tmp_path / "llama-3.1-8b").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text("model: llama-3.1-8b\ncluster: {device: h100, nodes: 2}\n")
    assert load_job(path).model.hidden_size == 4096


def test_a_precision_the_device_does_not_have_is_named():
    assert "train.precision" in str(
        refused(GOOD | {"train": {"precision": "fp8"}, "cluster": {"device": "a800", "nodes": 2}})
    )


def test_a_path_too_long_is_one_message():
    assert "model" in str(refused(GOOD | {"model": "a." + "b" * 5000}))


def test_special_files_are_not_read():
    assert "regular file" in str(refused("/dev/zero"))


def test_a_choice_of_types_is_one_problem():
    (problem,) = refused(GOOD | {"layout": {"recompute": "half"}}).problems
    assert problem.field == "layout.recompute" and "selective" in problem.rule


SIXTY_ONE = GOOD | {"train": {"global_batch": 16384, "mtp": False}}
"""DeepSeek-V3's 61 layers without its MTP module, as in Megatron-LM issue 1852."""


def with_string(text, **layout):
    return SIXTY_ONE | {"layout": {"pp": 16, "ep": 64, "stages": text} | layout}


def test_pv17_a_layout_string_in_a_job(tmp_path):
    """Read as counts, chunks and schedule following, and written back as counts."""
    job = load_job(with_string("Et|(tt|)*30L"))
    assert job.problems() == ()
    assert (job.layout.vpp, job.layout.schedule, job.layout.dp) == (2, "interleaved-1f1b", 128)
    counts = [[cell.layers for cell in row] for row in job.layout.stages]
    assert counts == [[1] + [2] * 15, [2] * 15 + [0]]
    assert megatron.layout_string(job) == "Et|(tt|)*30L"
    path = tmp_path / "job.yaml"
    path.write_text(job.to_yaml())
    assert load_job(path).layout == job.layout
    assert load_job(with_string("Et|(tt|)*30L", vpp=2)).layout == job.layout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Et*3|(tt|)*29|L", ["leaves part 30 of 32 (counted from 0) empty: the pipeline waits at it"]),
        (
            "Et|(tt|)*29|L",
            ["places 59 layers; the model has 61", "leaves part 30 of 32 (counted from 0) empty"],
        ),
        ("Et|(tt|)*30mL", ["places 1 MTP modules; the model trains 0"]),
        ("Et|(tt|)*30", ["must begin with the one E and end with the one L"]),
        ("Et|(tx|)*30L", ["cannot be read from letter 4"]),
        ("Et|t|tL", ["has 3 parts, not whole rows of pp = 16"]),
    ],
)
def test_pv17_a_layout_string_that_is_wrong_gives_its_readers_message(text, words):
    problems = refused(with_string(text)).problems
    assert {p.field for p in problems} == {"layout.stages"} and len(problems) == len(words)
    assert all(word in problem.rule for word, problem in zip(words, problems, strict=True))


def test_mtp_modules_of_a_string_are_those_of_the_model():
    trained = with_string("Et|(tt|)*30mL") | {"train": {"global_batch": 16384}}
    assert load_job(trained).problems() == ()
    assert "here they stand in the last" in str(
        refused(GOOD | {"layout": {"pp": 16, "ep": 64, "stages": "Et*3|(tt|)*29m|L"}})
    )


def test_faults_of_a_string_stand_beside_the_others():
    fields = {p.field for p in refused(with_string("Et|tx", tp=0) | {"train": {"seq_len": -1}}).problems}
    assert fields == {"layout.stages", "layout.tp", "train.seq_len"}


def test_written_rows_say_how_many_chunks_there_are():
    layout = {"pp": 2, "stages": [[16, 15], [15, 15]]}
    job = load_job(SIXTY_ONE | {"layout": layout})
    assert (job.layout.vpp, job.layout.schedule) == (2, "interleaved-1f1b") and job.problems() == ()
    assert load_job(job.to_dict()).layout == job.layout
    one = load_job(SIXTY_ONE | {"layout": layout | {"schedule": "1f1b"}})
    assert one.layout.vpp == 1 and [p.field for p in one.problems()] == ["layout.stages"]
