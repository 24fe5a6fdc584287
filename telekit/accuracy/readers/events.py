"""TensorBoard event files: the record format of TensorFlow, and of each event its scalars.

A record is a length (uint64), the masked CRC-32C of the length, the bytes, and their masked CRC-32C
(tensorflow, tsl/lib/io/record_writer.h); the bytes are an Event message (tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from telekit.accuracy.readers.curve import CurveBuilder
from telekit.accuracy.readers.problems import shown
from telekit.documents import regular_size
from telekit.errors import bad

MAX_RECORD_BYTES = 64 * 2**20
"""Scalars take a hundred bytes, images a megabyte."""
MAX_SCALAR_RECORD_BYTES = 2**20
"""Larger records hold images or histograms: skipped, their CRC not computed."""
_LITTLE = {1: ("<f", 4), 2: ("<d", 8)}  # DT_FLOAT, DT_DOUBLE of tensorflow/core/framework/types.proto


@cache
def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of ``data``, rotated and offset as TensorFlow stores it."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def is_events(head: bytes) -> bool:
    """Tell an event file by its first twelve bytes: a length and its CRC."""
    return len(head) >= 12 and struct.unpack_from("<I", head, 8)[0] == masked_crc32c(head[:8])


def read_events(path: Path, builder: CurveBuilder) -> None:
    """Add the scalars of an event file to a curve.

    A record whose data fails its CRC is noted and skipped; a length that fails its own ends the file, since nothing
    says where the next record starts; so does a record cut short, as a killed run leaves it.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    for at, record in _records(path, builder):
        try:
            _event(record, builder)
        except (ValueError, IndexError, struct.error) as error:
            what = f"the event is malformed and left out ({error})"
            builder.problems.add(path, f"byte {at}", what, lost=True)


def _records(path: Path, builder: CurveBuilder) -> Iterator[tuple[int, bytes]]:
    size, at = regular_size(path), 0
    with path.open("rb") as file:
        while at < size:
            head = file.read(12)
            if len(head) < 12:
                builder.problems.add(path, f"byte {at}", "the last record is cut short", lost=True)
                return
            length, crc = struct.unpack("<QI", head)
            if crc != masked_crc32c(head[:8]):
                what = "the CRC of a record's length is wrong: the rest is not read"
                builder.problems.add(path, f"byte {at}", what, lost=True)
                return
            end = at + 12 + length + 4
            if end > size:
                builder.problems.add(path, f"byte {at}", "the last record is cut short", lost=True)
                return
            if length > MAX_SCALAR_RECORD_BYTES:
                if length > MAX_RECORD_BYTES:
                    builder.problems.add(path, f"byte {at}", f"a record of {length:,} bytes is skipped")
                file.seek(end)
            else:
                data = file.read(length)
                if struct.unpack("<I", file.read(4))[0] == masked_crc32c(data):
                    yield at, data
                else:
                    what = "the CRC of a record is wrong: it is skipped"
                    builder.problems.add(path, f"byte {at}", what, lost=True)
            at = end


def _event(record: bytes, builder: CurveBuilder) -> None:
    """Read step (field 2) and summary (5) of an Event."""
    step, summaries = 0, []
    for number, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value if value < 2**63 else value - 2**64
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                tag, scalar = _value(value)
                if scalar is not None:
                    if step < 0:
                        raise ValueError(f"step {step}")
                    builder.add(tag, step, scalar)


def _value(message: bytes) -> tuple[str, float | None]:
    """Read tag (1), simple_value (2) or a scalar tensor (8) of a Summary.Value; None is not a scalar."""
    tag, scalar = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = shown(value.decode("utf-8", "replace"))
        elif number == 2 and isinstance(value, float):
            scalar = value
        elif number == 8 and isinstance(value, bytes):
            scalar = _scalar_tensor(value)
    return tag, scalar


def _scalar_tensor(message: bytes) -> float | None:
    """Read a TensorProto of one float or double: tensor_content (4), float_val (5) or double_val (6)."""
    dtype, content, listed = 0, b"", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6):
            listed = value
    if dtype not in _LITTLE:
        return None
    letter, width = _LITTLE[dtype]
    if isinstance(listed, float):
        return listed
    packed = listed if isinstance(listed, bytes) else content
    return float(struct.unpack(letter, packed)[0]) if len(packed) == width else None


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of a protobuf message: varints, 32 and 64 bit floats, and bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind in (1, 5):
            width, letter = (8, "<d") if kind == 1 else (4, "<f")
            yield key >> 3, float(struct.unpack_from(letter, message, at)[0])
        elif kind == 2:
            width, at = _varint(message, at)
            if at + width > len(message):
                raise ValueError(f"field {key >> 3} is cut short")
            yield key >> 3, message[at : at + width]
        else:
            raise bad("field", key >> 3, f"has the wire type {kind}, which is not read")
        at += width


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
