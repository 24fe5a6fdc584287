"""safetensors files: a bounded JSON header, then plain data that is mapped, never parsed."""

from __future__ import annotations

import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

from telekit.accuracy.readers.mapped import checked_shape, counts, mapped
from telekit.accuracy.readers.named import NamedTensor, dtype_name, numpy_dtype, where
from telekit.accuracy.readers.problems import Problems, parse_json, shown
from telekit.documents import regular_size
from telekit.errors import InputError, bad

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (huggingface/safetensors, README)."""


def safetensors_tensors(path: Path, problems: Problems) -> list[NamedTensor]:
    """Return the tensors of a safetensors file in the order of their data.

    An entry that is malformed, overlaps another or reaches past the end is noted and left out.

    Raises
    ------
    InputError
        The header is truncated, too large, or not a JSON object.
    """
    entries, start, size = _header(path, problems)
    found = []
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        place = f"{path}: {shown(name)}"
        try:
            found.append(_tensor(path, name, entry, start, size - start))
        except InputError as error:
            problems.refused(place, error)
    found.sort(key=lambda pair: pair[0])
    kept, end = [], 0
    for (first, last), tensor in found:
        if first < end:
            problems.add(
                path, tensor.name, f"bytes {first} to {last} overlap another tensor's: left out", lost=True
            )
            continue
        end = max(end, last)
        kept.append(tensor)
    return kept


def _header(path: Path, problems: Problems) -> tuple[dict[str, Any], int, int]:
    size = regular_size(path)
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise bad("header", f"{len(head)} bytes", "is truncated: its length takes 8", source=str(path))
        length = struct.unpack("<Q", head)[0]
        if length > min(MAX_HEADER_BYTES, size - 8):
            limit = "the file's own length" if length > size - 8 else f"{MAX_HEADER_BYTES:,} bytes"
            raise bad("header", f"{length:,} bytes", f"is over {limit}: truncated, or not safetensors",
                      source=str(path))  # fmt: skip
        text = file.read(length)
    entries = parse_json(text, path, problems, lost=True)
    if not isinstance(entries, dict):
        raise bad("header", shown(entries, 60), "is not a JSON object", source=str(path))
    return entries, 8 + length, size


def _tensor(path: Path, name: str, entry: Any, start: int,
            room: int) -> tuple[tuple[int, int], NamedTensor]:  # fmt: skip
    place = f"{path}: {shown(name)}"
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise bad("entry", shown(entry, 60), "must have dtype, shape and data_offsets")
    dtype = numpy_dtype(dtype_name(entry["dtype"]))
    shape = checked_shape(entry.get("shape"))
    offsets = counts(entry.get("data_offsets"), "data_offsets")
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise bad(
            "data_offsets", shown(offsets, 60), f"must be two bytes in order, within the {room:,} of data"
        )
    nbytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise bad(
            "data_offsets", shown(offsets, 60), f"must span the {nbytes:,} bytes of {entry['dtype']} {shape}"
        )
    step, rank, shard = where((*path.parts[:-1], path.stem))
    tensor = NamedTensor(
        name, shape, dtype.name, place, written_dtype=entry["dtype"], step=step, rank=rank, shard=shard,
        nbytes=nbytes, loader=partial(mapped, path, start + offsets[0], dtype, shape),
    )  # fmt: skip
    return (offsets[0], offsets[1]), tensor
