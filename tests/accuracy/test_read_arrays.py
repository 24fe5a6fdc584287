"""Tensor files: NumPy and safetensors write them, telekit reads them; then files made to do harm."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.readers import tensors
from telekit.errors import InputError

DTYPES = ["float32", "float64", "float16", "int64", "int8", "uint8", "bool", "complex64"]
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def arrays():
    rng = np.random.default_rng(3)
    plain = {d: rng.normal(size=(3, 4)).astype(d) for d in DTYPES if d != "complex64"}
    return plain | {"scalar": np.array(2.5), "empty": np.zeros((0, 3), np.float32)}


def same(tensor, array):
    loaded = tensor.load()
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == (array.shape, array.dtype.name, array.nbytes)
    assert loaded.dtype == array.dtype and loaded.tobytes() == array.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_npy_is_read_as_numpy_wrote_it(tmp_path, dtype, order):
    array = np.array(np.arange(12).reshape(3, 4) % 5, dtype=dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    (tensor,) = tensors(tmp_path / "a.npy")
    assert tensor.name == "a"
    same(tensor, array)


def test_big_endian_numbers_keep_their_values(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1.5, -2.0], dtype=">f4"))
    assert tensors(tmp_path / "a.npy")[0].load().tolist() == [1.5, -2.0]


def test_bf16_in_npy_is_two_raw_bytes(tmp_path):
    array = np.array([1.0, 2.5, -3.0], dtype=ml_dtypes.bfloat16)
    np.save(tmp_path / "a.npy", array)
    same(tensors(tmp_path / "a.npy")[0], array)


def test_fp8_in_npy_is_one_raw_byte_and_ambiguous(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3, dtype=ml_dtypes.float8_e4m3fn))
    with pytest.raises(InputError, match="one raw byte"):
        tensors(tmp_path / "a.npy")


def test_npy_is_mapped_not_read(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(1000))
    loaded = tensors(tmp_path / "a.npy")[0].load()
    base = loaded
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and not loaded.flags.writeable


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_as_numpy_wrote_it(tmp_path, save):
    save(tmp_path / "a.npz", **arrays())
    found = tensors(tmp_path / "a.npz")
    assert found.kind == "npz" and found.problems == ()
    assert {t.name for t in found} == set(arrays())
    for tensor in found:
        same(tensor, arrays()[tensor.name])


def test_safetensors_are_read_as_the_library_wrote_them(tmp_path):
    written = arrays() | {d: np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, d)) for d in EXTENDED[:1]}
    safetensors.numpy.save_file(written, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = tensors(tmp_path / "a.safetensors")
    assert {t.name for t in found} == set(written) and found.problems == ()
    for tensor in found:
        same(tensor, written[tensor.name])


@pytest.mark.parametrize(("code", "dtype"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_fp8_in_safetensors(tmp_path, code, dtype):
    array = np.array([0.5, 1.0, -2.0], dtype=getattr(ml_dtypes, dtype))
    write_safetensors(tmp_path / "a.safetensors", {"w": (code, [3], [0, 3])}, array.tobytes())
    same(tensors(tmp_path / "a.safetensors")[0], array)


def test_the_kind_is_what_the_file_holds(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.ones(2))
    np.save(tmp_path / "b.npy", np.ones(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.safetensors")
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    found = tensors(tmp_path / "a.safetensors")
    assert found.kind == "npz" and "is called .safetensors but is npz" in found.problems[0].what
    assert tensors(tmp_path / "b.npz").kind == "npy"


# ---- files made to do harm ----


class Harm:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_a_pickle_in_npy_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "run"
    array = np.empty(1, dtype=object)
    array[0] = Harm(mark)
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match="a pickle is never loaded"):
        tensors(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", bad=array, good=np.ones(2))
    found = tensors(tmp_path / "a.npz")
    assert [t.name for t in found] == ["good"] and "never loaded" in found.problems[0].what
    assert not mark.exists()


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.npz", "a.safetensors", "a.bin"])
def test_a_bare_pickle_is_refused_under_any_name(tmp_path, name):
    mark = tmp_path / "run"
    (tmp_path / name).write_bytes(pickle.dumps(Harm(mark)))
    with pytest.raises(InputError, match="bare pickle"):
        tensors(tmp_path / name)
    assert not mark.exists()


def test_structured_text_and_unknown_dtypes_are_refused(tmp_path):
    for array in (np.zeros(2, dtype=[("a", "f4")]), np.array(["x"]), np.zeros(1, dtype="M8[s]")):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(InputError, match="dtype"):
            tensors(tmp_path / "a.npy")


def npy(header, data=b"", version=1):
    text = header.encode()
    width = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, len(text)) + text + data


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}", b"\0" * 35), "truncated"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"), "counts"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s,)}" % ("9" * 40)), "counts"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("4294967296," * 9)), "more elements"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("1," * 40)), "counts"),
        (npy("{'descr': '<f4', 'fortran_order': False}"), "must have"),
        (npy("__import__('os').system('true')"), "not a Python literal"),
        (npy("[" * 9000), "not a Python literal"),
        (npy(" " * 70_000, version=2), "too long"),
        (b"\x93NUMPY\x02\0\xff\xff\xff\xff", "too long"),
        (b"\x93NUMPY\x01\0\x10", "ends before"),
        (b"\x93NUMPY\x09\0\x10\0", "not read"),
        (b"\x93NUM", "no tensor file"),
        (b"", "empty"),
    ],
)  # fmt: skip
def test_broken_npy_headers_are_refused_with_the_place(tmp_path, content, what):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(InputError, match=what) as error:
        tensors(tmp_path / "a.npy")
    assert "a.npy" in str(error.value)


def member_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_a_zip_bomb_is_refused_before_it_inflates(tmp_path):
    header = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**30},)}}")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.npy", member_bytes(np.ones(2)))
        with archive.open("bomb.npy", "w", force_zip64=True) as stream:
            stream.write(header)
            for _ in range(1024):
                stream.write(b"\0" * 2**20)
    assert (tmp_path / "a.npz").stat().st_size < 2**21
    found = tensors(tmp_path / "a.npz")
    assert [t.name for t in found] == ["good"]
    assert "zip bomb" in found.problems[0].what and found.problems[0].place == "bomb.npy"


def test_a_member_that_lies_about_its_size_gives_no_more_than_it_announced(tmp_path):
    """The directory says 80 bytes of data, the deflated stream holds 8 MB."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", member_bytes(np.zeros(10))[:-80] + b"\0" * 2**23)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    size = len(member_bytes(np.zeros(10)))
    at = content.rfind(b"PK\x01\x02")
    struct.pack_into("<I", content, at + 24, size)
    (tmp_path / "a.npz").write_bytes(content)
    found = tensors(tmp_path / "a.npz")
    assert not len(found) and "differs from the archive's" in found.problems[0].what


def test_overlapping_members_are_refused(tmp_path):
    """Two directory entries that share one body: the trick of the bombs that nest nothing."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member_bytes(np.ones(4)))
        archive.writestr("b.npy", member_bytes(np.ones(4)))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    struct.pack_into("<I", content, content.rfind(b"PK\x01\x02") + 42, 0)
    (tmp_path / "a.npz").write_bytes(content)
    found = tensors(tmp_path / "a.npz")
    assert len(found) == 1 and "overlaps" in found.problems[0].what


def test_a_duplicated_member_is_noted_and_the_first_kept(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member_bytes(np.ones(2)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", member_bytes(np.zeros(2)))
    found = tensors(tmp_path / "a.npz")
    assert found[0].load().tolist() == [1.0, 1.0] and "twice" in found.problems[0].what


def test_a_member_without_a_name_is_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member_bytes(np.ones(2)))
        archive.writestr(zipfile.ZipInfo(""), b"x")
    assert [t.name for t in tensors(tmp_path / "a.npz")] == ["a"]


def test_a_broken_member_does_not_take_the_others_with_it(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(999.0), b=np.arange(50.0))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    start = content.find(b"a.npy") + 60
    content[start : start + 20] = b"\xff" * 20
    (tmp_path / "a.npz").write_bytes(content)
    found = tensors(tmp_path / "a.npz")
    good = next(t for t in found if t.name == "b")
    assert good.load().tolist() == list(range(50))
    broken = [t for t in found if t.name == "a"]
    assert len(broken) + len(found.problems) == 1
    for tensor in broken:
        with pytest.raises(InputError, match=r"a\.npy"):
            tensor.load()


def test_an_archive_of_a_later_version_is_refused(tmp_path):
    """What zipfile raises for a version that it does not know is a RuntimeError, and reaches no reader's user."""
    np.savez(tmp_path / "a.npz", w=np.ones(2))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    needed = content.index(b"PK\x01\x02") + 6
    content[needed : needed + 2] = struct.pack("<H", 99)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"version 9\.9"):
        tensors(tmp_path / "a.npz")


def test_truncated_archives_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(999.0))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="directory"):
        tensors(tmp_path / "a.npz")


def write_safetensors(path, entries, data, raw=None):
    said = {n: {"dtype": d, "shape": s, "data_offsets": o} for n, (d, s, o) in entries.items()}
    header = raw if raw is not None else json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (("F32", [2], [0, 4]), "must span the 8 bytes"),
        (("F32", [9], [0, 36]), "within the 16 of data"),
        (("F32", [2], [8, 0]), "in order"),
        (("F32", [-2], [0, 8]), "counts"),
        (("F32", [2.0], [0, 8]), "counts"),
        (("F32", [True], [0, 4]), "counts"),
        (("F4", [2], [0, 1]), "is not read"),
        ((7, [2], [0, 8]), "must have dtype"),
        (("F32", [2], [4, 12]), "overlap"),
    ],
)
def test_a_malformed_entry_is_noted_and_the_rest_read(tmp_path, entry, what):
    write_safetensors(tmp_path / "a.safetensors", {"good": ("F32", [2], [0, 8]), "odd": entry}, b"\0" * 16)
    found = tensors(tmp_path / "a.safetensors")
    assert [t.name for t in found] == ["good"]
    assert len(found.problems) == 1 and what in str(found.problems[0]) and "odd" in str(found.problems[0])


def test_tensors_far_into_a_large_file(tmp_path):
    """A sparse file of 12 GB: places in it need more than 32 bits, and only what is touched is read."""
    step = 3 * 2**30
    entries = {f"w{i}": ("U8", [step], [i * step, (i + 1) * step]) for i in range(4)}
    write_safetensors(tmp_path / "a.safetensors", entries, b"")
    start = (tmp_path / "a.safetensors").stat().st_size
    with (tmp_path / "a.safetensors").open("r+b") as file:
        file.truncate(start + 4 * step)
        file.seek(start + 3 * step + 5)
        file.write(b"\7")
    found = tensors(tmp_path / "a.safetensors")
    assert len(found) == 4 and found.problems == ()
    assert found[3].load()[:7].tolist() == [0, 0, 0, 0, 0, 7, 0]


def test_hostile_safetensors_headers(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{" + b"\0" * 50)
    with pytest.raises(InputError):
        tensors(path)
    write_safetensors(path, {}, b"", raw=b'{"a":' + b"[" * 200_000)
    with pytest.raises(InputError, match="too deep"):
        tensors(path)
    twice = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
    write_safetensors(path, {}, b"\7\5", raw=twice)
    found = tensors(path)
    assert found[0].load().tolist() == [7] and "twice" in found.problems[0].what


def test_a_file_that_shrinks_after_its_header_was_read_fails_at_load(tmp_path):
    safetensors.numpy.save_file({"w": np.ones(1000)}, tmp_path / "a.safetensors")
    (tensor,) = tensors(tmp_path / "a.safetensors")
    os.truncate(tmp_path / "a.safetensors", 500)
    with pytest.raises(InputError, match="cannot be mapped"):
        tensor.load()


def test_pipes_and_missing_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(InputError, match="regular file"):
        tensors(tmp_path / "a.npy")
    with pytest.raises(InputError, match="cannot be read"):
        tensors(tmp_path / "none.npy")


def good_files():
    npz = io.BytesIO()
    np.savez_compressed(npz, a=np.arange(40.0), b=np.ones((2, 2), np.float32))
    return [
        (".npy", member_bytes(np.arange(12.0).reshape(3, 4))),
        (".npz", npz.getvalue()),
        (".safetensors", safetensors.numpy.save({"a": np.arange(8.0), "b": np.ones(3, np.float16)})),
        (".pt", (Path(__file__).parent / "torch_saved.pt").read_bytes()),
    ]


@given(st.sampled_from(good_files()), st.data())
def test_damaged_files_never_fail_in_another_way(tmp_path_factory, file, data):
    """Bytes changed or cut anywhere: refused, noted, or read; and nothing but InputError comes out."""
    suffix, content = file
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(len(damaged) // 2, len(damaged)))]
    path = tmp_path_factory.mktemp("damaged") / f"a{suffix}"
    path.write_bytes(damaged)
    try:
        for tensor in tensors(path):
            assert tensor.load().shape == tensor.shape
    except InputError as error:
        assert error.problems
