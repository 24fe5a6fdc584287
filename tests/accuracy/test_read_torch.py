"""Files of torch.save, read without torch.

``torch_saved.pt`` and ``torch_checkpoint.pt`` were written by torch 2.14.1 on a CPU from ``torch.manual_seed(0)``;
``torch_saved.npz`` holds what torch itself says the tensors of the first are (bf16 and fp8 widened to fp32):

    x = torch.randn(4, 6)
    w=x, t=x.t(), s=x[1:3, 2:5], b=x.bfloat16(), h=x.half(), i=torch.arange(5), e=torch.zeros(0, 3),
    sc=torch.tensor(3.5), ex=x[:1].expand(7, 6), f8=x.to(torch.float8_e4m3fn), f5=x.to(torch.float8_e5m2),
    bo=x > 0, u16=torch.arange(4).to(torch.uint16), c=torch.complex(x, x)
"""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from telekit.accuracy.readers import tensors
from telekit.accuracy.readers.pickled import read_pickle
from telekit.errors import InputError

HERE = Path(__file__).parent
GOLDEN = dict(np.load(HERE / "torch_saved.npz"))
DTYPES = {
    "w": "float32", "t": "float32", "s": "float32", "b": "bfloat16", "h": "float16", "i": "int64", "e": "float32",
    "sc": "float32", "ex": "float32", "f8": "float8_e4m3fn", "f5": "float8_e5m2", "bo": "bool", "u16": "uint16",
    "c": "complex64",
}  # fmt: skip


def test_each_tensor_is_what_torch_says_it_is():
    found = tensors(HERE / "torch_saved.pt")
    assert found.kind == "torch" and found.problems == ()
    assert [t.name for t in found] == list(GOLDEN)  # in the order saved
    assert {t.name: t.dtype for t in found} == DTYPES
    for tensor in found:
        loaded, golden = tensor.load(), GOLDEN[tensor.name]
        assert loaded.shape == tensor.shape == golden.shape
        assert np.array_equal(loaded.astype(golden.dtype), golden)


def test_a_real_checkpoint_gives_its_tensors_and_names_what_it_left_out():
    found = tensors(HERE / "torch_checkpoint.pt")
    assert [t.name for t in found if not t.name.startswith("optimizer")] == [
        "model.weight",
        "model.bias",
        "iteration",
        "rng.0",
    ]
    assert {t.name: t.value for t in found if t.kind == "scalar"}["optimizer.param_groups.0.betas.1"] == 0.999
    assert "optimizer.state.0.exp_avg_sq" in {t.name for t in found}
    assert {p.place: p.what.split(":")[0] for p in found.problems} == {
        "args": "is an object of argparse.Namespace",
        "conf": "is an object of torch.nn.modules.activation.ReLU",
        "d": "is an object of torch.float32",
        "dev": "is an object of torch.device",
        "sz": "is an object of torch.Size",
    }


def test_torch_agrees_where_it_is_installed(tmp_path):
    torch = pytest.importorskip("torch", reason="the extra torch is not installed")
    torch.save({"a": [torch.arange(6).reshape(2, 3).t()]}, tmp_path / "a.pt")
    (tensor,) = tensors(tmp_path / "a.pt")
    assert tensor.name == "a.0" and tensor.load().tolist() == [[0, 3], [1, 4], [2, 5]]


class Harm:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def torch_zip(path, pickled, storages=None, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)


def rebuild(shape, strides, offset=0, kind=b"FloatStorage", key=b"0"):
    """The opcodes torch writes for one tensor: protocol 2."""

    def ints(values):
        return b"(" + b"".join(b"\x8a\x08" + v.to_bytes(8, "little", signed=True) for v in values) + b"t"

    storage = b"(X\7\0\0\0storagectorch\n" + kind + b"\nX\1\0\0\0" + key + b"X\3\0\0\0cpuK\1tQ"
    ordered = b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + ints([offset])[1:-1] + ints(shape) + ints(strides)
        + b"\x89" + ordered + b"tR"
    )  # fmt: skip


def wrapped(*bodies):
    """A pickle of {"0": body, "1": body, ...}."""
    pairs = b"".join(b"X\1\0\0\0" + str(i).encode() + body for i, body in enumerate(bodies))
    return b"\x80\2}(" + pairs + b"u."


def test_the_opcodes_built_here_are_those_of_a_tensor(tmp_path):
    torch_zip(tmp_path / "a.pt", wrapped(rebuild([2, 2], [1, 2])), {"0": np.arange(4, dtype="f4").tobytes()})
    assert tensors(tmp_path / "a.pt")[0].load().tolist() == [[0, 2], [1, 3]]


def test_strides_of_many_dimensions_are_no_size(tmp_path):
    """The product of the strides of (64, 64, 64, 64, 64) is over 2**60, of what the tensor holds it says nothing."""
    body = rebuild([1, 1, 1, 1, 2], [2**48, 2**36, 2**24, 2**12, 1])
    torch_zip(tmp_path / "a.pt", wrapped(body), {"0": np.arange(2, dtype="f4").tobytes()})
    assert tensors(tmp_path / "a.pt")[0].load().ravel().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (rebuild([5], [1]), "ends before"),
        (rebuild([2], [4]), "ends before"),
        (rebuild([2], [1], offset=3), "ends before"),
        (rebuild([2], [1], offset=-1), "not a count"),
        (rebuild([2], [-1]), "not a list"),
        (rebuild([2, 2], [1]), "not as many"),
        (rebuild([2**40], [0]), "repeat 4 bytes"),
        (rebuild([2], [1], key=b"7"), "storage"),
        (rebuild([2], [1], kind=b"QInt8Storage"), "is not read"),
    ],
)
def test_a_tensor_that_reaches_out_of_its_storage_is_left_out(tmp_path, body, what):
    good = rebuild([4], [1])
    torch_zip(tmp_path / "a.pt", wrapped(body, good), {"0": np.arange(4, dtype="f4").tobytes()})
    found = tensors(tmp_path / "a.pt")
    assert [t.name for t in found] == ["1"] and found[0].load().tolist() == [0, 1, 2, 3]
    assert len(found.problems) == 1 and what in str(found.problems[0])


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "run"
    body = pickle.dumps({"x": Harm(mark)}, protocol=protocol)
    torch_zip(tmp_path / "a.pt", body)
    try:
        found = tensors(tmp_path / "a.pt")
        assert not len(found) and "nothing of it was run" in found.problems[0].what
    except InputError as error:
        assert "opcode" in str(error)
    assert not mark.exists()


def test_a_call_on_top_runs_nothing_and_tensors_beside_are_read(tmp_path):
    harm = b"cos\nsystem\n(X\4\0\0\0true" + b"tR"
    torch_zip(tmp_path / "a.pt", wrapped(harm, rebuild([4], [1])), {"0": np.ones(4, dtype="f4").tobytes()})
    found = tensors(tmp_path / "a.pt")
    assert [t.name for t in found] == ["1"] and "os.system" in found.problems[0].what


def test_one_list_held_a_billion_times_is_refused(tmp_path):
    """Each list holds the one before ten times: 10^9 leaves in 300 bytes."""
    body = b"\x80\2]q\0"
    for level in range(1, 10):
        body += b"](" + b"h" + bytes([level - 1])
        body += (b"h" + bytes([level - 1])) * 9 + b"e" + b"q" + bytes([level])
    torch_zip(tmp_path / "a.pt", body + b".")
    with pytest.raises(InputError, match="walked at most"):
        tensors(tmp_path / "a.pt")


def test_nested_tuples_as_keys_and_arguments_do_not_hang():
    """Hashing or printing a tuple of pairs of pairs takes 2^60 steps."""
    body = b"\x80\2)q\0"
    for level in range(1, 60):
        body += b"h" + bytes([level - 1]) + b"\x86q" + bytes([level])
        body = body.replace(b"h" + bytes([level - 1]) + b"\x86", (b"h" + bytes([level - 1])) * 2 + b"\x86")
    tree = read_pickle(body + b"}h\x3bNs.", "here")
    assert list(tree.values()) == [None]


def test_a_list_that_holds_itself_ends(tmp_path):
    torch_zip(tmp_path / "a.pt", b"\x80\2]q\0h\0a.")
    found = tensors(tmp_path / "a.pt")
    assert not len(found) and "deep" in found.problems[0].what


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\x80\2", "STOP|malformed|exhausted"),
        (b"\x80\2a.", "malformed"),
        (b"\x80\2t.", "malformed|mark"),
        (b"\x80\2X\xff\xff\xff\x7fab.", "expected"),
        (b"\x80\2h\x09.", "malformed"),
        (b"(.", "mark"),
        (b"\x80\2\x82\x01.", "opcode|not one"),
        (b"I" + b"9" * 5000 + b"\n.", "digits|limit"),
    ],
)
def test_malformed_pickles_are_refused_with_the_byte(tmp_path, body, what):
    torch_zip(tmp_path / "a.pt", body)
    with pytest.raises(InputError, match=what) as error:
        tensors(tmp_path / "a.pt")
    assert "byte" in str(error.value)


def test_compressed_storages_are_left_out(tmp_path):
    content = {"0": np.zeros(4, dtype="f4").tobytes()}
    torch_zip(tmp_path / "a.pt", wrapped(rebuild([4], [1])), content, zipfile.ZIP_DEFLATED)
    found = tensors(tmp_path / "a.pt")
    assert not len(found) and "compressed" in str(found.problems[0])


def test_a_zip_of_other_things_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("word/document.xml", "<a/>")
    found = tensors(tmp_path / "a.pt")  # read as an npz that holds no array
    assert not len(found) and "not an array" in str(found.problems[-1])


def test_plain_data_survives():
    value = {"a": [1, 2.5, None, True, "x", b"y", (1, 2), -(2**70)], "b": {}}
    for protocol in (2, 3, 4, 5):
        out = io.BytesIO()
        pickle.Pickler(out, protocol).dump(value)
        read = read_pickle(out.getvalue(), "here")
        if protocol > 2:  # before protocol 3 bytes are a call of codecs
            assert read == value
        assert read["b"] == {}
