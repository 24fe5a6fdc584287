"""NumPy's own files: .npy, and .npz archives of them."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telekit.accuracy.readers.archive import Archive, Member
from telekit.accuracy.readers.mapped import (
    MAX_NPY_HEADER,
    NPY_MAGIC,
    NpyHeader,
    lazily,
    mapped,
    read_npy_header,
)
from telekit.accuracy.readers.named import NamedTensor, where
from telekit.accuracy.readers.problems import Problems, shown
from telekit.documents import regular_size
from telekit.errors import InputError, bad


def npy_tensor(path: Path, name: str, problems: Problems, hint: str = "") -> NamedTensor:
    """Return the tensor of a .npy file, mapped when loaded.

    Raises
    ------
    InputError
        As :func:`read_npy_header`, and when the file is shorter than its header says.
    """
    size = regular_size(path)
    with path.open("rb") as file:
        header = read_npy_header(file, str(path), hint)
    end = header.start + header.nbytes
    if size < end:
        raise bad("data", f"{size:,} bytes", f"is truncated: the header announces {end:,}", source=str(path))
    if size > end:
        problems.add(path, f"byte {end}", f"{size - end:,} bytes after the array are ignored")
    load = partial(mapped, path, header.start, header.dtype, header.shape, header.order)
    return _tensor(name, header, str(path), where((*path.parts[:-1], path.stem)), load)


def npz_tensors(path: Path, problems: Problems) -> list[NamedTensor]:
    """Return the tensors of an .npz archive: stored members are mapped, compressed ones inflated when loaded.

    Raises
    ------
    InputError
        The archive itself cannot be read; a member that cannot is noted in ``problems`` and left out.
    """
    archive = Archive(path, problems)
    at = where((*path.parts[:-1], path.stem))
    found: list[NamedTensor] = []
    for member in archive.members:
        place = f"{path}: {shown(member.name)}"
        try:
            head = archive.head(member, MAX_NPY_HEADER + 12)
            if not member.name.endswith(".npy") and not head.startswith(NPY_MAGIC):
                problems.add(path, member.name, "is not an array and is left out", lost=True)
                continue
            header = read_npy_header(io.BytesIO(head), place)
            if header.start + header.nbytes != member.size:
                raise bad(
                    "data",
                    f"{member.size:,} bytes",
                    f"but the header announces {header.start + header.nbytes:,}",
                )
            load = partial(_load_member, archive, member, header)
            found.append(_tensor(member.name.removesuffix(".npy"), header, place, at, lazily(load, place)))
        except InputError as error:
            problems.refused(place, error)
    return found


def _load_member(archive: Archive, member: Member, header: NpyHeader) -> npt.NDArray[Any]:
    if member.stored:
        start = archive.data_start(member) + header.start
        return mapped(archive.path, start, header.dtype, header.shape, header.order)
    raw = np.empty(header.start + header.nbytes, np.uint8)
    done = 0
    for chunk in archive.chunks(member):
        raw[done : done + len(chunk)] = memoryview(chunk)
        done += len(chunk)
    return np.ndarray(header.shape, header.dtype, buffer=raw, offset=header.start,
                      order="F" if header.fortran else "C")  # fmt: skip


def _tensor(name: str, header: NpyHeader, place: str, at: tuple[int | None, int | None, str],
            load: Any) -> NamedTensor:  # fmt: skip
    step, rank, shard = at
    return NamedTensor(name, header.shape, header.dtype.name, place, written_dtype=header.dtype.name, step=step,
                       rank=rank, shard=shard, nbytes=header.nbytes, loader=load)  # fmt: skip
