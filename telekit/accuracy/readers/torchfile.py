"""Files of torch.save, read without torch: the tensors' bytes are mapped, and the pickle beside them is never run.

The zip format (torch 1.6 and later) holds ``data.pkl`` and one stored member for each storage. :mod:`pickled` reads
the pickle as data: nothing it names is imported or called, which is stricter than ``weights_only``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telekit.accuracy.readers.archive import Archive, Member
from telekit.accuracy.readers.mapped import checked_shape, counts, lazily, mapped
from telekit.accuracy.readers.named import NamedTensor, dtype_name, numpy_dtype, where
from telekit.accuracy.readers.pickled import Call, Name, Stored, read_pickle
from telekit.accuracy.readers.problems import Problems, shown
from telekit.errors import InputError, bad

MAX_PICKLE_BYTES = 128 * 2**20
"""Of ``data.pkl``: it holds names and shapes only; a million tensors take some 100 MB."""
MAX_DEPTH = 32
MAX_NODES = 5_000_000
"""Containers and values walked: a pickle of a few bytes can hold one list a billion times."""
MAX_REPEATED_BYTES = 2**32
"""Of an expanded tensor (stride 0), whose elements are more than its storage's."""
MAX_SCALARS = 16
"""Numbers of a list that are compared one by one; a longer list is one array."""
MAX_INSIDE = 100_000
_SCALARS = (bool, int, float, str)
_SUBCLASS = "torch._tensor._rebuild_from_type_v2"
_REBUILD = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")


def torch_tensors(path: Path, problems: Problems) -> list[NamedTensor]:
    """Return the tensors of a torch file, nested dictionaries and lists joined by dots, in the order saved.

    Numbers and text are scalars, long lists of numbers are arrays. Objects of other classes (an
    ``argparse.Namespace``, a sparse tensor) are left unread and noted by name; those that hold elements as lost.

    Raises
    ------
    InputError
        Not a zip file with a ``data.pkl``, or its pickle is malformed.
    """
    archive = Archive(path, problems)
    pickles = [m for m in archive.members if m.name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise bad("archive", f"{len(pickles)} data.pkl", "is not a file of torch.save", source=str(path))
    prefix = pickles[0].name.removesuffix("data.pkl")
    members = {m.name: m for m in archive.members}
    if (order := members.get(f"{prefix}byteorder")) and archive.read(order, 16) != b"little":
        raise bad("byteorder", "not little", "the file is from a big-endian machine", source=str(path))
    tree = read_pickle(archive.read(pickles[0], MAX_PICKLE_BYTES), str(path))
    found = []
    at = where((*path.parts[:-1], path.stem))
    for name, leaf in _leaves(tree, path, problems):
        place = f"{path}: {shown(name)}"
        try:
            if isinstance(leaf, Call):
                found.append(_tensor(archive, members, prefix, name or path.stem, leaf, place))
            else:
                found.append(_plain(leaf, name or path.stem, place, at))
        except InputError as error:
            problems.refused(place, error)
    return found


def _leaves(tree: Any, path: Path, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Walk containers down to tensors, numbers and text, in order; anything else that is an object is noted."""
    left: list[tuple[str, int, Any]] = [("", 0, tree)]
    for _ in range(MAX_NODES):
        if not left:
            return
        name, depth, value = left.pop()
        if isinstance(value, Call):
            value = _unwrapped(value)
        if (
            (isinstance(value, Call) and value.function in _REBUILD)
            or (isinstance(value, _SCALARS) and not isinstance(value, Name))
            or _numbers(value)
        ):
            yield name, value
        elif depth > MAX_DEPTH:
            problems.add(path, name, f"is nested more than {MAX_DEPTH} deep: left out", lost=True)
        elif isinstance(value, Name) or (isinstance(value, Call) and not _holds(value)):
            called = value if isinstance(value, Name) else value.function
            said = f"is an object of {shown(called)}: not read, nothing of it was run"
            problems.add(path, name, said, lost=isinstance(value, Call) and _has_elements(value))
        else:
            inner = [(f"{name}.{key}" if name and key != "" else f"{name}{key}", depth + 1, child)
                     for key, child in _children(value)]  # fmt: skip
            left += reversed(inner)
    raise bad("pickle", f"{MAX_NODES:,} values", "are walked at most", source=str(path))


def _unwrapped(value: Any) -> Any:
    """Return the tensor inside a tensor of a subclass, which is rebuilt by its base class's call."""
    while (
        isinstance(value, Call)
        and value.function == _SUBCLASS
        and len(value.args) >= 3
        and isinstance(value.args[0], Name)
        and isinstance(value.args[2], tuple)
        and value.args[0] != _SUBCLASS
    ):
        value = Call(str(value.args[0]), value.args[2])
    return value


def _numbers(value: Any) -> bool:
    """Whether a list is long and holds nothing but numbers: an array, not so many scalars."""
    if not isinstance(value, (list, tuple)) or len(value) <= MAX_SCALARS:
        return False
    return all((isinstance(v, (bool, int, float)) and abs(v) < 2**63) or v != v for v in value)


def _has_elements(call: Call) -> bool:
    """Whether an object holds a storage, or the bytes of a NumPy array: elements that are not compared."""
    if call.function.startswith("numpy."):
        return True
    left: list[Any] = [call]
    for _ in range(MAX_INSIDE):
        if not left:
            return False
        value = left.pop()
        if isinstance(value, Stored):
            return True
        if isinstance(value, Call):
            left += [*value.args, *value.items.values(), value.state]
        else:
            left += [child for _, child in _children(value)]
    return True  # too much to look through: it may


def _plain(value: Any, name: str, place: str, at: tuple[int | None, int | None, str]) -> NamedTensor:
    """Make a scalar of a number or text, an array of a list of numbers."""
    step, rank, shard = at
    if isinstance(value, _SCALARS):
        kind = type(value).__name__
        plain = value if not isinstance(value, int) or abs(value) < 2**64 else shown(value)
        return NamedTensor(name, (), kind, place, kind="scalar", written_dtype=kind, value=plain, step=step,
                           rank=rank, shard=shard)  # fmt: skip
    array = np.asarray(value)
    return NamedTensor(name, array.shape, array.dtype.name, place, written_dtype=array.dtype.name, step=step,
                       rank=rank, shard=shard, nbytes=array.nbytes, loader=lambda: array)  # fmt: skip


def _holds(call: Call) -> bool:
    return call.function == "collections.OrderedDict" or (call.function in _PARAMETERS and bool(call.args))


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Call):
        return (("", value.args[0]),) if value.function in _PARAMETERS else value.items.items()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _tensor(archive: Archive, members: dict[str, Member], prefix: str, name: str, call: Call,
            place: str) -> NamedTensor:  # fmt: skip
    stored, offset, shape, strides = _arguments(call)
    dtype = numpy_dtype(_dtype(call, stored))
    member = members.get(f"{prefix}data/{stored.key}")
    if member is None:
        raise bad("storage", shown(stored.key, 60), "is not in the archive")
    if not member.stored:
        raise bad("storage", shown(stored.key, 60), "is compressed, which torch.save never does")
    nbytes, span = math.prod(shape) * dtype.itemsize, _span(shape, strides) * dtype.itemsize
    if nbytes and offset * dtype.itemsize + span > member.size:
        raise bad("storage", f"{member.size:,} bytes", "ends before the tensor's last element")
    if nbytes > max(span, MAX_REPEATED_BYTES):
        raise bad("strides", strides, f"repeat {span:,} bytes into {nbytes:,}: refused")
    load = partial(_load, archive, member, dtype, offset, shape, strides)
    step, rank, shard = where((*archive.path.parts[:-1], archive.path.stem))
    return NamedTensor(name, shape, dtype.name, place, written_dtype=f"torch.{dtype.name}", step=step, rank=rank,
                       shard=shard, nbytes=nbytes, loader=lazily(load, place))  # fmt: skip


def _arguments(call: Call) -> tuple[Stored, int, tuple[int, ...], tuple[int, ...]]:
    """Return storage, offset in elements, shape and strides of a tensor's rebuild call."""
    if len(call.args) < 4 or not isinstance(call.args[0], Stored):
        raise bad(
            "tensor", shown(call.args, 60), "is not rebuilt from a storage, an offset, a shape and strides"
        )
    offset = call.args[1]
    if not isinstance(offset, int) or not 0 <= offset < 2**62:
        raise bad("offset", shown(offset, 60), "is not a count of elements")
    shape, strides = checked_shape(call.args[2]), counts(call.args[3], "strides")
    if len(shape) != len(strides):
        raise bad("strides", strides, f"are not as many as the dimensions of {shape}")
    return call.args[0], offset, shape, strides


def _dtype(call: Call, stored: Stored) -> str:
    """Return the dtype: of the seventh argument of v3 (fp8), or of ``torch.BFloat16Storage`` and its sisters."""
    if call.function.endswith("_v3"):
        if len(call.args) < 7 or not isinstance(call.args[6], Name):
            raise bad("dtype", "missing", "is required in the tensor's rebuild call")
        return dtype_name(call.args[6])
    return dtype_name(stored.kind.removeprefix("torch.").removesuffix("Storage"))


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements of the storage from the tensor's first to its last."""
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1


def _load(archive: Archive, member: Member, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...],
          strides: tuple[int, ...]) -> npt.NDArray[Any]:  # fmt: skip
    """Map the storage's needed bytes and view them as the tensor, strides and all."""
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    start = archive.data_start(member) + offset * dtype.itemsize
    raw = mapped(archive.path, start, np.dtype(np.uint8), (_span(shape, strides) * dtype.itemsize,))
    return np.ndarray(shape, dtype, buffer=raw, strides=[step * dtype.itemsize for step in strides])
