"""msprobe dump folders and checkpoint folders, in each mode, of many ranks; then hostile ones; then real ones."""

import json
import os
import zlib
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from telekit.accuracy.readers import Statistics, tensors
from telekit.errors import InputError


def said(dtype="torch.float32", shape=(2,), **more):
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape)} | more


def stats(high=1.0, low=-1.0, mean=0.0, norm=2.0):
    return {"Max": high, "Min": low, "Mean": mean, "Norm": norm}


def write_dump(folder, data, **more):
    folder.mkdir(parents=True, exist_ok=True)
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps(head | more | {"data": data}))
    return folder


def test_names_and_order_are_those_of_the_compared_table(tmp_path):
    data = {
        "Functional.linear.0.forward": {
            "output": [said()],
            "input_args": [said(), [{"type": "int", "value": 3}, None]],
            "input_kwargs": {"bias": said()},
            "is_recompute": True,
        },
        "Module.fc.Linear.forward.0": {
            "output": [said()], "parameters": {"weight": said()}, "input_args": [], "input_kwargs": {},
        },
        "Module.fc.Linear.backward.0": {"output": [said(), None], "input": [said()]},
        "Module.fc.Linear.parameters_grad.0": {"weight": [said()], "bias": None},
    }  # fmt: skip
    found = tensors(write_dump(tmp_path / "step0/rank0", data))
    assert found.problems == ()
    assert [t.name for t in found] == [
        "Functional.linear.0.forward.input.0",
        "Functional.linear.0.forward.input.1.0",
        "Functional.linear.0.forward.input.1.1",
        "Functional.linear.0.forward.input.bias",
        "Functional.linear.0.forward.output.0",
        "Module.fc.Linear.forward.0.parameters.weight",
        "Module.fc.Linear.forward.0.output.0",
        "Module.fc.Linear.backward.0.input.0",
        "Module.fc.Linear.backward.0.output.0",
        "Module.fc.Linear.backward.0.output.1",
        "Module.fc.Linear.parameters_grad.0.weight",
        "Module.fc.Linear.parameters_grad.0.bias",
    ]
    kinds = Counter(t.kind for t in found)
    assert kinds == {"tensor": 8, "scalar": 1, "none": 3}
    assert found[1].value == 3 and found[0].is_recompute and not found[5].is_recompute
    assert found[5].part == "parameters" and found[-1].part == "parameters_grad"
    assert {(t.step, t.rank) for t in found} == {(0, 0)}


def test_a_send_in_a_batch_gives_its_tensor(tmp_path):
    op = {
        "class_type": "torch.distributed.P2POp",
        "op": "isend",
        "peer": 1,
        "tag": 0,
        "group_id": "x",
        "tensor": said(),
    }
    found = tensors(write_dump(tmp_path, {"Distributed.batch_isend_irecv.0.forward": {"input_args": [[op]]}}))
    assert [t.name for t in found] == ["Distributed.batch_isend_irecv.0.forward.input.0.0"]


def test_statistics_are_read_as_they_can_be(tmp_path):
    """Rows 26, 27 and 33 of the complaints: None, "", "0", a bool tensor without mean and norm."""
    items = [
        said(**stats()), said(**stats("0", "", None, "nan")), said("torch.bool", **stats(True, False, None, None)),
        said(**stats("abc", [1], 10**400 if False else 2**70, 1.5)), said(is_nan=1), said(),
    ]  # fmt: skip
    found = tensors(write_dump(tmp_path, {"A.b.0.forward": {"input_args": items}}))
    assert found[0].statistics == Statistics(1.0, -1.0, 0.0, 2.0)
    odd = found[1].statistics
    assert (odd.max, odd.min, odd.mean) == (0.0, None, None) and np.isnan(odd.norm)
    assert found[2].statistics == Statistics(True, False, None, None) and found[2].dtype == "bool"
    assert found[3].statistics == Statistics(None, None, None, 1.5)
    assert found[4].is_nan is True and found[4].statistics is None and found[5].is_nan is None
    assert [p.place.rsplit(".", 2)[-2:] for p in found.problems] == [
        ["1", "Norm"], ["3", "Max"], ["3", "Min"], ["3", "Mean"],
    ]  # fmt: skip


def test_nan_and_inf_statistics_are_kept_and_noted(tmp_path):
    write_dump(tmp_path, {"A.b.0.forward": {"output": [said(**stats(float("inf"), float("nan")))]}})
    found = tensors(tmp_path)
    assert found[0].statistics.max == np.inf and np.isnan(found[0].statistics.min)
    assert [p.place for p in found.problems] == ["A.b.0.forward.output.0.Max", "A.b.0.forward.output.0.Min"]


def test_md5_mode_gives_the_checksum(tmp_path):
    crc = f"{zlib.crc32(np.array([1, 2, 3], np.float32).tobytes()):08x}"
    items = [said(md5=crc.upper()), said(md5="../../x"), said(md5=""), said(md5=7)]
    found = tensors(write_dump(tmp_path, {"A.b.0.forward": {"input_args": items}}))
    assert [t.md5 for t in found] == ["b20e96b1", None, None, None] and len(found.problems) == 2


@pytest.mark.parametrize(
    "data_dir", [None, "/home/other/run/step0/rank0/dump_tensor_data", "C:\\runs\\dump_tensor_data"]
)
def test_tensor_mode_finds_the_data_beside_it(tmp_path, data_dir):
    array = np.array([1.0, 2.0], dtype=np.float32)
    half = array.astype(ml_dtypes.bfloat16)
    fp8 = array.astype(ml_dtypes.float8_e5m2)
    items = [
        said(data_name="a.npy"), said("torch.bfloat16", data_name="b.npy"), said("BFloat16", data_name="a.npy"),
        said("torch.float8_e5m2", data_name="c.npy"), said(data_name="-1"), said(),
    ]  # fmt: skip
    write_dump(tmp_path, {"A.b.0.forward": {"input_args": items}}, task="tensor", dump_data_dir=data_dir)
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    for name, value in {"a": array, "b": half, "c": fp8}.items():
        np.save(folder / f"{name}.npy", value)
    found = tensors(tmp_path)
    assert found.problems == () and [t.has_data for t in found] == [True] * 4 + [False] * 2
    loaded = [t.load() for t in found[:4]]
    assert [a.dtype.name for a in loaded] == ["float32", "bfloat16", "float32", "float8_e5m2"]
    assert all(a.astype(float).tolist() == [1.0, 2.0] for a in loaded)
    with pytest.raises(InputError, match="no data"):
        found[5].load()


def test_tensor_mode_of_pytorch_reads_pt(tmp_path):
    here = Path(__file__).parent / "torch_saved.pt"
    write_dump(tmp_path, {"A.b.0.forward": {"input_args": [said(data_name="many.pt")]}})
    (tmp_path / "dump_tensor_data").mkdir()
    (tmp_path / "dump_tensor_data/many.pt").write_bytes(here.read_bytes())
    found = tensors(tmp_path)
    assert not found[0].has_data and "holds 14 tensors, not one" in found.problems[0].what


def test_many_steps_and_ranks_in_their_order(tmp_path):
    for step in (0, 10, 2):
        for rank in (1, 0):
            write_dump(tmp_path / f"step{step}" / f"rank{rank}", {"A.b.0.forward": {"output": [said()]}})
    found = tensors(tmp_path)
    assert [(t.step, t.rank) for t in found] == [(s, r) for s in (0, 2, 10) for r in (0, 1)]
    assert len(found.named("A.b.0.forward.output.0")) == 6 and found.problems == ()
    assert [(d.step, d.rank, d.task) for d in found.dumps][:2] == [(0, 0, "statistics"), (0, 1, "statistics")]


def test_processes_without_a_rank_stay_apart(tmp_path):
    for process in ("proc2016", "proc2017"):
        write_dump(tmp_path / "step0" / process, {"A.b.0.forward": {"output": [said()]}})
    assert [(t.rank, t.shard) for t in tensors(tmp_path)] == [(None, "proc2016"), (None, "proc2017")]


def test_stack_old_and_new_and_construct(tmp_path):
    write_dump(tmp_path, {})
    (tmp_path / "stack.json").write_text(
        json.dumps({"0": [["A.b.0.forward", "A.c.0.forward"], ["l1", "l2"]], "D": ["l3"]})
    )
    (tmp_path / "construct.json").write_text(
        json.dumps({"A": "M", "M": None, "N": "", "O": ["M", 0], "P": 3})
    )
    found = tensors(tmp_path)
    assert found.dumps[0].stack == {
        "A.b.0.forward": ("l1", "l2"),
        "A.c.0.forward": ("l1", "l2"),
        "D": ("l3",),
    }
    assert found.dumps[0].parents == {"A": "M", "M": None, "N": None, "O": "M", "P": None}
    assert [p.place for p in found.problems] == ["P"]


# ---- hostile dumps ----


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("/etc/passwd", "another folder"),
        ("../secret.npy", "another folder"),
        ("..", "another folder"),
        ("a\\..\\b.npy", "another folder"),
        ("C:secret.npy", "another folder"),
        ("link.npy", "link out"),
        ("loop.npy", "link out|cannot be read"),
        ("pipe.npy", "regular file"),
        ("a\0b.npy", "plain file name"),
        ("x" * 300, "plain file name"),
        (7, "plain file name"),
        (["a.npy"], "plain file name"),
        ("none.npy", "cannot be read"),
        ("folder.npy", "regular file"),
        ("text.txt", "neither"),
        ("short.npy", "truncated"),
        ("shape.npy", "differs from"),
        ("int.npy", "differs from"),
    ],
)
def test_a_hostile_data_name_is_refused_and_the_rest_read(tmp_path, name, what):
    secret = tmp_path / "secret.npy"
    np.save(secret, np.zeros(2, np.float32))
    items = [said(data_name=name), said(data_name="good.npy")]
    folder = write_dump(tmp_path / "dump", {"A.b.0.forward": {"input_args": items}}) / "dump_tensor_data"
    folder.mkdir()
    (folder / "link.npy").symlink_to(secret)
    (folder / "loop.npy").symlink_to("loop.npy")
    (folder / "folder.npy").mkdir()
    os.mkfifo(folder / "pipe.npy")
    (folder / "text.txt").write_text("x")
    np.save(folder / "good.npy", np.ones(2, np.float32))
    np.save(folder / "shape.npy", np.ones(3, np.float32))
    np.save(folder / "int.npy", np.ones(2, np.int32))
    (folder / "short.npy").write_bytes((folder / "good.npy").read_bytes()[:-1])
    found = tensors(tmp_path / "dump")
    assert [t.has_data for t in found] == [False, True] and found[1].load().tolist() == [1, 1]
    (problem,) = found.problems
    assert any(part in str(problem) for part in what.split("|"))
    assert "A.b.0.forward.input.0" in problem.file


def test_a_data_folder_that_is_a_link_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "else").mkdir()
    np.save(tmp_path / "else/a.npy", np.zeros(2, np.float32))
    write_dump(tmp_path / "dump", {"A.b.0.forward": {"input_args": [said(data_name="a.npy")]}})
    (tmp_path / "dump/dump_tensor_data").symlink_to(tmp_path / "else")
    found = tensors(tmp_path / "dump")
    assert not found[0].has_data and "link" in str(found.problems[0])


@pytest.mark.parametrize("data_dir", ["/etc", "..", "/", "a/..", "\0", 7])
def test_a_hostile_data_folder_opens_nothing_outside(tmp_path, data_dir):
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    entry = {"A.b.0.forward": {"input_args": [said(data_name="a.npy")]}}
    found = tensors(write_dump(tmp_path / "dump", entry, dump_data_dir=data_dir))
    assert not found[0].has_data and "cannot be read" in str(found.problems[0])


def test_malformed_items_are_noted_and_the_rest_read(tmp_path):
    deep = said()
    for _ in range(40):
        deep = [deep]
    items = [
        said(shape=(-1,)), said(shape=(2**61, 2**61)), said(dtype=7), 3, "x", deep, {"a": {"b": said()}}, said(),
    ]  # fmt: skip
    data = {"A.b.0.forward": {"input_args": items, "odd": 1}, "B": [], "C.d.0.forward": {"output": [said()]}}
    found = tensors(write_dump(tmp_path, data))
    assert [t.name.removeprefix("A.b.0.forward.") for t in found] == [
        "input.6.a.b", "input.7", "C.d.0.forward.output.0",
    ]  # fmt: skip
    assert len(found.problems) == 8


def test_duplicated_names_are_noted_and_the_first_kept(tmp_path):
    body = '{"A.b.0.forward": {"output": [%s]}, "A.b.0.forward": {"output": [%s]}}'
    body %= (json.dumps(said(**stats(1.0))), json.dumps(said(**stats(9.0))))
    (tmp_path / "dump.json").write_text(f'{{"data": {body}}}')
    found = tensors(tmp_path)
    assert len(found) == 1 and found[0].statistics.max == 1.0 and "twice" in found.problems[0].what


def test_a_kwarg_that_is_called_like_an_argument_is_a_duplicate(tmp_path):
    data = {"A.b.0.forward": {"input_args": [said()], "input_kwargs": {"0": said(shape=(3,))}}}
    found = tensors(write_dump(tmp_path, data))
    assert len(found) == 1 and found[0].shape == (2,) and "twice" in found.problems[0].what


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "line 1, column 2"),
        (b'{"data": ' + b"[" * 200_000, "too deep"),
        (b'{"data": ' + b'{"a":' * 200_000, "too deep"),
        (b'{"data": {"a": ' + b"9" * 5000 + b"}}", "digits"),
        (b"\xff\xfe{", "UTF-8"),
        (b"[]", "not an msprobe"),
        (b'{"data": 3}', "not an msprobe"),
        (b"", "line 1"),
    ],
)
def test_a_broken_dump_of_one_rank_is_noted_and_the_others_read(tmp_path, content, what):
    write_dump(tmp_path / "step0/rank1", {"A.b.0.forward": {"output": [said()]}})
    (tmp_path / "step0/rank0").mkdir()
    (tmp_path / "step0/rank0/dump.json").write_bytes(content)
    found = tensors(tmp_path)
    assert [t.rank for t in found] == [1]
    assert len(found.problems) == 1 and what in str(found.problems[0]) and "rank0" in found.problems[0].file
    with pytest.raises(InputError, match=what):
        tensors(tmp_path / "step0/rank0/dump.json")


def test_broken_companions_do_not_take_the_dump_with_them(tmp_path):
    write_dump(tmp_path, {"A.b.0.forward": {"output": [said()]}})
    (tmp_path / "stack.json").write_text('{"0": [[')
    (tmp_path / "construct.json").write_text("[]")
    found = tensors(tmp_path)
    assert len(found) == 1 and len(found.problems) == 2 and found.dumps[0].stack == {}


def test_problems_are_counted_beyond_the_bound(tmp_path):
    found = tensors(write_dump(tmp_path, {f"x{i}": 3 for i in range(1500)}))
    assert len(found.problems) == 1001 and "500 more" in found.problems[-1].what


# ---- checkpoint folders ----


def test_a_sharded_checkpoint_and_its_index(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    names = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
        "c": "../x.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    found = tensors(tmp_path)
    assert found.kind == "checkpoint" and [t.name for t in found] == ["a"]
    assert "another folder" in str(found.problems[0])
    del names["c"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert [p.place for p in tensors(tmp_path).problems] == ["model-00002-of-00002.safetensors", "b"]


def test_megatron_and_mindformers_folders_keep_their_shards_apart(tmp_path):
    here = Path(__file__).parent / "torch_checkpoint.pt"
    for shard in ("mp_rank_00", "mp_rank_01"):
        (tmp_path / "iter_0000100" / shard).mkdir(parents=True)
        (tmp_path / "iter_0000100" / shard / "model_optim_rng.pt").write_bytes(here.read_bytes())
    (tmp_path / "rank_3").mkdir()
    safetensors.numpy.save_file({"w": np.ones(2)}, tmp_path / "rank_3/net.safetensors")
    (tmp_path / "rank_3/net.ckpt").write_bytes(b"x")
    found = tensors(tmp_path)
    assert [(t.step, t.shard) for t in found.named("model.weight")] == [
        (100, "mp_rank_00"),
        (100, "mp_rank_01"),
    ]
    assert found.named("w")[0].rank == 3
    assert any("MindSpore checkpoint" in p.what for p in found.problems)


def test_a_file_for_each_tensor_is_named_by_its_path(tmp_path):
    (tmp_path / "layers.0").mkdir()
    np.save(tmp_path / "layers.0" / "weight.npy", np.ones(2))
    assert [t.name for t in tensors(tmp_path)] == ["layers.0.weight"]


def test_a_broken_file_is_noted_and_the_others_read(tmp_path):
    np.save(tmp_path / "good.npy", np.ones(2))
    (tmp_path / "bad.npy").write_bytes(b"\x80\x04K\x01.")
    (tmp_path / "cut.safetensors").write_bytes(b"\0\1")
    (tmp_path / "link.npy").symlink_to("/etc/passwd")
    (tmp_path / "self").symlink_to(tmp_path)
    found = tensors(tmp_path)
    assert [t.name for t in found] == ["good"] and len(found.problems) == 4


def test_an_empty_folder_says_so(tmp_path):
    found = tensors(tmp_path)
    assert not len(found) and "holds no dump" in found.problems[0].what


# ---- real dumps ----

SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")
needs_samples = pytest.mark.skipif(
    not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with samples/dumps"
)


def leaves(value):
    """Tensors, scalars and Nones of a dump, counted by a second, plain walk."""
    if value is None or (isinstance(value, dict) and isinstance(value.get("type"), str)):
        yield value
    elif isinstance(value, (list, dict)):
        for child in value.values() if isinstance(value, dict) else value:
            yield from leaves(child)


@needs_samples
@pytest.mark.parametrize(
    "folder", ["gpu/step0/proc2016", "gpu/step1/proc2016", "cross/mindspore", "cross/pytorch"]
)
def test_each_real_dump_is_read_whole(folder):
    path = Path(SAMPLES, "samples/dumps", folder)
    data = json.loads((path / "dump.json").read_text())["data"]
    plain = [
        item
        for entry in data.values()
        for key, part in entry.items()
        if key != "is_recompute"
        for item in leaves(part)
    ]
    found = tensors(path)
    assert found.problems == () and len(found) == len(plain)
    assert Counter(t.written_dtype for t in found if t.kind == "tensor") == Counter(
        i["dtype"] for i in plain if i is not None and "dtype" in i
    )
    total = sum(t.statistics.norm or 0 for t in found if t.statistics)
    assert total == pytest.approx(sum(i.get("Norm") or 0 for i in plain if i is not None), rel=1e-12)
    assert set(found.dumps[0].parents) == set(json.loads((path / "construct.json").read_text()))
    assert list(found.dumps[0].apis) == list(data) and found.dumps[0].stack


@needs_samples
def test_the_real_pair_of_steps_has_the_same_names():
    found = tensors(Path(SAMPLES, "samples/dumps/gpu"))
    assert found.kind == "dump" and found.problems == () and {t.step for t in found} == {0, 1}
    names = [
        {t.name.replace("parameters_grad.1", "parameters_grad.0") for t in found if t.step == s}
        for s in (0, 1)
    ]
    forward = [{n for n in each if ".forward" in n} for each in names]
    assert len(forward[0]) > 1000 and forward[0] == forward[1]


@needs_samples
def test_the_two_frameworks_write_one_name_for_a_dtype():
    """The MindSpore dump says BFloat16 and Bool, the PyTorch dump torch.bfloat16 and torch.bool."""
    for side in ("mindspore", "pytorch"):
        found = tensors(Path(SAMPLES, "samples/dumps/cross", side))
        kinds = {t.dtype for t in found if t.kind == "tensor"}
        assert kinds <= {"bfloat16", "float32", "bool", "int64", "int32", "uint8"}
        assert found.dumps[0].framework == side
