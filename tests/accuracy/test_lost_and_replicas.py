"""What is lost in reading, and what only one rank holds, is at least a warning: in the result, in text, in JSON."""

import io
import json
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from dump_files import dump, npz

from telekit.accuracy.compare import compare
from telekit.accuracy.readers import tensors

RNG = np.random.default_rng(15)
A, B = (RNG.standard_normal((8, 4)).astype(np.float32) for _ in range(2))


def warned(target, golden, said):
    """Both sides are equal but for what is lost: a warning, and a problem that says so."""
    found = compare(target, golden)
    assert found.result == "warning" and not any(v.result == "error" for v in found.verdicts)
    assert any(p.lost and said in str(p) for p in found.problems), [str(p) for p in found.problems]


def safetensors(path, *tensors):
    entries, body = [], b""
    for name, array in tensors:
        said = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + array.nbytes],
        }
        entries.append(f"{json.dumps(name)}:{json.dumps(said)}")
        body += array.tobytes()
    head = ("{" + ",".join(entries) + "}").encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)
    return path


# ---- folders ----


def folders(tmp_path, make):
    """Two checkpoint folders with an equal tensor, and what ``make`` puts beside it."""
    for name, x in (("t", A), ("g", B)):
        npz(tmp_path / name / "m.npz", w=A)
        make(tmp_path / name, x)
    return tmp_path / "t", tmp_path / "g"


def raw(array):
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.ckpt", "mindspore"), ("x.CKPT", "mindspore"), ("__0_0.distcp", "distributed checkpoint"),
        ("weights", "no suffix"), ("x.tensor", "looks like npy"), ("a/b/c/d/e/f/g/h/i/x.npy", "folders deep"),
    ],
)  # fmt: skip
def test_files_that_are_not_read(tmp_path, name, said):
    def make(folder, x):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw(x))

    warned(*folders(tmp_path, make), said)


def test_a_bare_pickle_and_an_archive_without_a_suffix_are_said_texts_are_not(tmp_path):
    def make(folder, x):
        (folder / "state.pkl").write_bytes(pickle.dumps(x.tolist()))
        npz(folder / "z.npz", x=x).rename(folder / "archive")
        (folder / "README.md").write_text("PK")
        (folder / "LICENSE").write_text("free")

    t, g = folders(tmp_path, make)
    warned(t, g, "a bare pickle")
    warned(t, g, "an archive of arrays")
    assert len(compare(t, g).problems) == 4


def test_a_suffix_in_capitals_is_a_suffix(tmp_path):
    t, g = folders(tmp_path, lambda folder, x: (folder / "other.NPY").write_bytes(raw(x)))
    assert [r.name for r in compare(t, g).rows] == ["w", "other"] and compare(t, g).result == "error"


def test_tensors_beside_a_dump(tmp_path):
    for name, x in (("t", A), ("g", B)):
        safetensors(
            dump(tmp_path / name, {"Torch.mul.0.forward": ([A], [A])}) / "model.safetensors", ("w", x)
        )
    warned(tmp_path / "t", tmp_path / "g", "beside a dump")


def test_a_shard_that_the_index_names_and_nobody_has(tmp_path):
    for name in ("t", "g"):
        (tmp_path / name).mkdir()
        safetensors(tmp_path / name / "model-00001-of-00002.safetensors", ("w", A))
        index = {
            "weight_map": {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
        }
        (tmp_path / name / "model.safetensors.index.json").write_text(json.dumps(index))
    warned(tmp_path / "t", tmp_path / "g", "is not there")


# ---- members, keys, steps ----


@pytest.mark.parametrize("name", ["w", "w.NPY", "w.npy.bak"])
def test_members_of_an_npz_are_told_by_what_they_hold(tmp_path, name):
    for n, x in (("t", B), ("g", A)):
        with zipfile.ZipFile(tmp_path / f"{n}.npz", "w") as archive:
            archive.writestr(name, raw(x))
            archive.writestr("ok.npy", raw(A))
    found = compare(tmp_path / "t.npz", tmp_path / "g.npz")
    assert [(r.name, v.result) for r, v in zip(found.rows, found.verdicts, strict=True)] == [
        (name, "error"),
        ("ok", "pass"),
    ]


@pytest.mark.parametrize("name", ["w.npy/", "notes.txt"])
def test_members_that_are_no_arrays_are_lost(tmp_path, name):
    for n in ("t", "g"):
        with zipfile.ZipFile(tmp_path / f"{n}.npz", "w") as archive:
            archive.writestr("ok.npy", raw(A))
            archive.writestr(name, b"what")
    warned(tmp_path / "t.npz", tmp_path / "g.npz", "left out")


def test_repeated_keys(tmp_path):
    target = safetensors(tmp_path / "t.safetensors", ("w", A), ("w", B))
    warned(target, safetensors(tmp_path / "g.safetensors", ("w", A)), "stands twice")
    api = "Torch.mul.0.forward"
    for name, x in (("td", A), ("gd", B)):
        file = dump(tmp_path / name, {api: ([A], [A])}) / "step0" / "rank0" / "dump.json"
        entry = json.dumps({"output": [{"type": "float", "value": float(x[0, 0])}]})
        file.write_text(
            file.read_text().replace('"data": {', '"data": {', 1)[:-2] + f', "{api}": {entry}}}}}'
        )
    warned(tmp_path / "td", tmp_path / "gd", "stands twice")


def test_a_field_with_tensors_that_is_not_read(tmp_path):
    for name in ("t", "g"):
        file = dump(tmp_path / name, {"Torch.mul.0.forward": ([A], [A])}) / "step0" / "rank0" / "dump.json"
        file.write_text(
            file.read_text().replace('"input_kwargs": {}', '"outputs": [{"type": "int", "value": 1}]')
        )
    warned(tmp_path / "t", tmp_path / "g", "not a field")


def test_steps_of_one_side_and_steps_of_two_numbers(tmp_path):
    def steps(name, *numbers):
        for n in numbers:
            dump(tmp_path / name, {"Torch.mul.0.forward": ([A], [A])}, step=f"step{n}")
        return tmp_path / name

    warned(steps("t", 0), steps("g", 0, 1), "1 only in golden")
    warned(tmp_path / "t", steps("h", 1), "set beside step 1")


# ---- torch ----


class Tensor:
    """Stands for a tensor in a pickle made without torch; ``how`` names the class."""

    def __init__(self, array, how=""):
        self.array, self.how = array, how


class Storage:
    def __init__(self, array):
        self.array = array


def torch_file(path, tree, monkeypatch):
    """Write what torch.save writes: a pickle whose storages are members of the archive."""
    modules = {n: types.ModuleType(n) for n in ("torch", "torch._utils", "torch._tensor")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)

    def named(module, name):
        def call():
            raise AssertionError("is never called")

        call.__module__, call.__qualname__ = module, name
        setattr(modules[module], name, call)
        return call

    plain = named("torch._utils", "_rebuild_tensor_v2")
    others = {
        "subclass": named("torch._tensor", "_rebuild_from_type_v2"),
        "sparse": named("torch._utils", "_rebuild_sparse_tensor"),
        "quantized": named("torch._utils", "_rebuild_qtensor"),
    }
    kind = type("FloatStorage", (), {"__module__": "torch", "__qualname__": "FloatStorage"})
    modules["torch"].FloatStorage = kind
    stored = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            stored.append(value.array.tobytes())
            return ("storage", kind, str(len(stored) - 1), "cpu", value.array.size)

        def reducer_override(self, value):
            if not isinstance(value, Tensor):
                return NotImplemented
            a = value.array
            said = (Storage(a), 0, a.shape, tuple(s // a.itemsize for s in a.strides), False, OrderedDict())
            if value.how == "subclass":
                return others["subclass"], (plain, kind, said, {})
            if value.how == "sparse":
                return others["sparse"], ("layout", (Tensor(a),))
            return (others[value.how], said) if value.how else (plain, said)

    held = io.BytesIO()
    Pickler(held, 2).dump(tree)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", held.getvalue())
        for n, content in enumerate(stored):
            archive.writestr(f"archive/data/{n}", content)
    return path


def torch_pair(tmp_path, monkeypatch, target, golden):
    return tuple(
        torch_file(tmp_path / f"{n}.pt", {"w": Tensor(A)} | tree, monkeypatch)
        for n, tree in (("t", target), ("g", golden))
    )


@pytest.mark.parametrize(
    ("target", "golden", "result"),
    [
        ({"step": 100}, {"step": 200}, "error"), ({"lr": 1e-3}, {"lr": 5.0}, "error"),
        ({"on": True}, {"on": False}, "error"), ({"path": "a"}, {"path": "b"}, "warning"),
        ({"order": list(range(99))}, {"order": [*range(98), 97]}, "error"),
        ({"step": 100, "nan": float("nan")}, {"step": 100, "nan": float("nan")}, "pass"),
    ],
)  # fmt: skip
def test_scalars_of_a_torch_file_are_compared(tmp_path, monkeypatch, target, golden, result):
    assert compare(*torch_pair(tmp_path, monkeypatch, target, golden)).result == result


def test_a_long_list_of_numbers_is_one_array(tmp_path, monkeypatch):
    held = {"order": list(range(99)), "betas": (0.9, 0.95)}
    found = {t.name: t for t in tensors(torch_file(tmp_path / "a.pt", held, monkeypatch))}
    assert set(found) == {"order", "betas.0", "betas.1"}
    assert found["order"].load().tolist() == list(range(99)) and found["betas.1"].value == 0.95


def test_a_tensor_of_a_subclass_is_read(tmp_path, monkeypatch):
    sides = torch_pair(tmp_path, monkeypatch, {"x": Tensor(A, "subclass")}, {"x": Tensor(B, "subclass")})
    assert compare(*sides).result == "error"


@pytest.mark.parametrize("how", ["sparse", "quantized"])
def test_tensors_of_other_layouts_are_lost(tmp_path, monkeypatch, how):
    warned(*torch_pair(tmp_path, monkeypatch, {"x": Tensor(A, how)}, {"x": Tensor(B, how)}), "not read")


def test_an_array_of_numpy_in_a_torch_file_is_lost(tmp_path, monkeypatch):
    warned(*torch_pair(tmp_path, monkeypatch, {"x": A}, {"x": B}), "not read")


# ---- ranks ----


def ranks(folder, *held):
    for n, arrays in enumerate(held):
        npz(folder / f"rank{n}" / "m.npz", **arrays)
    return folder


NAN = np.full_like(A, np.nan)


@pytest.mark.parametrize("other", [5 * A, -A, NAN, A[:3], np.nextafter(A, np.inf)])
def test_replicas_that_differ_are_an_error_where_golden_s_agree(tmp_path, other):
    target = ranks(tmp_path / "t", {"norm.weight": A}, {"norm.weight": other})
    for golden in (
        ranks(tmp_path / "g1", {"norm.weight": A}),
        ranks(tmp_path / "g4", *[{"norm.weight": A}] * 4),
    ):
        found = compare(target, golden)
        part = found.verdicts[0].part("replicas")
        assert found.result == part.result == "error" and "rank 1" in part.note


def test_replicas_that_differ_in_golden_too_are_a_warning(tmp_path):
    target = ranks(tmp_path / "t", {"norm.weight": A}, {"norm.weight": B})
    golden = ranks(tmp_path / "g", *[{"norm.weight": x} for x in (A, B, A, B)])
    assert compare(target, golden).verdicts[0].part("replicas").result == "warning"
    equal = ranks(tmp_path / "e", *[{"norm.weight": A}] * 2)
    assert compare(equal, ranks(tmp_path / "o", {"norm.weight": A})).result == "pass"


def test_replicated_activations_that_differ_are_no_pass(tmp_path):
    for n, x in ((0, A), (1, B)):
        dump(tmp_path / "t", {"Torch.mul.0.forward": ([], [x])}, rank=f"rank{n}", task="tensor")
    golden = dump(tmp_path / "g", {"Torch.mul.0.forward": ([], [A])}, task="tensor")
    found = compare(tmp_path / "t", golden)
    assert found.verdicts[0].part("replicas").result == found.result == "warning"


def test_a_rank_that_lacks_a_replica_is_said(tmp_path):
    shards = {"q_proj.weight": A[:4], "norm.weight": A[0]}, {"q_proj.weight": A[4:]}
    found = compare(
        ranks(tmp_path / "t", *shards), ranks(tmp_path / "g", {"q_proj.weight": A, "norm.weight": A[0]})
    )
    part = {r.name: v for r, v in zip(found.rows, found.verdicts, strict=True)}["norm.weight"].part(
        "ranks without it"
    )
    assert part.result == found.result == "warning" and "rank 1" in part.note


def test_ranks_of_other_stages_and_experts_lack_nothing(tmp_path):
    def stage(n):
        return {f"layers.{n}.{w}.weight": A + n for w in ("norm", "up", "down")}

    def expert(n):
        return {"norm.weight": A, "router.weight": A, f"experts.{n}.up.weight": A + n}

    for name, held in (("stages", (stage(0), stage(1))), ("experts", (expert(0), expert(1)))):
        golden = {k: v for one in held for k, v in one.items()}
        found = compare(ranks(tmp_path / name, *held), ranks(tmp_path / f"{name} whole", golden))
        assert found.result == "pass", name
