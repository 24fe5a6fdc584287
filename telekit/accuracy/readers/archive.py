"""A zip archive from someone else: its directory checked against the file before anything is inflated."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telekit.accuracy.readers.problems import Problems, shown
from telekit.documents import regular_size
from telekit.errors import bad

MAX_INFLATED_BYTES = 512 * 2**20
"""A compressed member that inflates beyond this is only read up to ``MAX_RATIO`` times its compressed size."""
MAX_RATIO = 100
"""Trained tensors compress less than 10-fold; a zip bomb's member 1000-fold."""
MAX_DIRECTORY_BYTES = 64 * 2**20
"""Of the archive's directory, which Python's reader holds in memory: some 500,000 members."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """One member: sizes in bytes, and where its local header starts."""

    name: str
    size: int
    compressed: int
    start: int
    stored: bool
    crc: int


class Archive:
    """The members of a zip file that are safe to read; the others are noted and left out.

    Parameters
    ----------
    path : Path
        The file.
    problems : Problems
        Takes duplicated names, bombs, overlaps, encrypted members and odd names.

    Raises
    ------
    InputError
        Not a zip file, truncated, or with a directory over ``MAX_DIRECTORY_BYTES``.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path = path
        self._size = regular_size(path)
        _check_directory(path, self._size)
        try:
            with zipfile.ZipFile(path) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, IndexError, struct.error) as error:
            # a RuntimeError: zipfile knows the directory's version or flags, but cannot read them
            raise bad("archive", path.name, f"cannot be read: {error}", source=str(path)) from None
        self.members = tuple(self._checked(infos, problems))

    def _checked(self, infos: list[zipfile.ZipInfo], problems: Problems) -> Iterator[Member]:
        seen: set[str] = set()
        end = 0
        for info in sorted(infos, key=lambda i: i.header_offset):
            name = info.filename
            if fault := self._fault(info, seen, end):
                problems.add(self.path, name, fault, lost=True)
                continue
            seen.add(name)
            end = info.header_offset + 30 + info.compress_size
            if name.endswith("/") and info.file_size:
                problems.add(self.path, name, "is called a folder but holds data: left out", lost=True)
            elif not name.endswith("/"):
                stored = info.compress_type == zipfile.ZIP_STORED
                yield Member(name, info.file_size, info.compress_size, info.header_offset, stored, info.CRC)

    def _fault(self, info: zipfile.ZipInfo, seen: set[str], end: int) -> str:
        stored = info.compress_type == zipfile.ZIP_STORED
        match info:
            case _ if info.filename in seen:
                return "stands twice in the archive: the first is kept"
            case _ if info.flag_bits & 0x1:
                return "is encrypted and is left out"
            case _ if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                return "is compressed by a method that is not read (stored and deflated are)"
            case _ if info.header_offset < end or info.header_offset + 30 + info.compress_size > self._size:
                return "overlaps another member or the end of the file: refused"
            case _ if stored and info.file_size != info.compress_size:
                return "is stored but its two sizes differ: refused"
            case _ if info.file_size > max(MAX_INFLATED_BYTES, MAX_RATIO * info.compress_size):
                return (f"would inflate from {info.compress_size:,} to {info.file_size:,} bytes: refused as a zip "
                        "bomb; if it is not one, save it uncompressed (numpy.savez)")  # fmt: skip
        return ""

    def chunks(self, member: Member) -> Iterator[bytes]:
        """Yield a member's bytes, inflated if need be, never more than announced; at the end its CRC is checked.

        Raises
        ------
        InputError
            It is truncated, longer than announced, or its CRC-32 differs.
        """
        left, crc = member.size, 0
        inflate = None if member.stored else zlib.decompressobj(-zlib.MAX_WBITS)
        with self.path.open("rb") as file:
            file.seek(self.data_start(member))
            unread, pending = member.compressed, b""
            while left:
                if not pending and unread:
                    pending = file.read(min(_CHUNK, unread))
                    unread -= len(pending)
                data, pending = _step(inflate, pending, left, self._place(member))
                if not data and not pending:
                    raise bad("data", f"{member.size - left:,} bytes", f"is truncated: {member.size:,} were announced",
                              source=self._place(member))  # fmt: skip
                left, crc = left - len(data), zlib.crc32(data, crc)
                yield data
        if crc != member.crc:
            raise bad("CRC-32", f"{crc:08x}", f"differs from the archive's {member.crc:08x}",
                      source=self._place(member))  # fmt: skip

    def _place(self, member: Member) -> str:
        return f"{self.path}: {shown(member.name)}"

    def head(self, member: Member, count: int) -> bytes:
        """Return a member's first ``count`` bytes, or all of it when it is shorter."""
        found = b""
        for chunk in self.chunks(member):
            found += chunk
            if len(found) >= count:
                break
        return found[:count]

    def read(self, member: Member, limit: int) -> bytes:
        """Return a small member's bytes; over ``limit`` it is refused."""
        if member.size > limit:
            raise bad("member", f"{member.size:,} bytes", f"is too large: at most {limit:,} are read",
                      source=self._place(member))  # fmt: skip
        return b"".join(self.chunks(member))

    def data_start(self, member: Member) -> int:
        """Return the offset in bytes of a stored member's data in the archive."""
        with self.path.open("rb") as file:
            file.seek(member.start)
            header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise bad(
                shown(member.name), f"byte {member.start}", "has no local header there", source=str(self.path)
            )
        _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        start: int = member.start + _LOCAL_HEADER.size + name_bytes + extra_bytes
        if start + member.compressed > self._size:
            raise bad(
                shown(member.name), f"byte {start}", "reaches past the end of the file", source=str(self.path)
            )
        return start


def _step(inflate: Any, pending: bytes, left: int, place: str) -> tuple[bytes, bytes]:
    """Return the next bytes of the member, ``left`` at most, and what is not yet used of ``pending``."""
    if inflate is None:
        return pending[:left], pending[left:]
    try:
        data = inflate.decompress(pending, min(left, _CHUNK))
    except zlib.error as error:
        raise bad("data", "deflated", f"is broken: {error}", source=place) from None
    return data, b"" if inflate.eof else inflate.unconsumed_tail


def _check_directory(path: Path, size: int) -> None:
    """Refuse a directory that would fill memory before it is parsed: its size stands in the last record."""
    with path.open("rb") as file:
        file.seek(max(0, size - 65_557))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        raise bad("archive", path.name, "has no directory: truncated, or not a zip file", source=str(path))
    announced = struct.unpack_from("<I", tail, at + 12)[0]
    if announced == 0xFFFFFFFF:
        announced = 0  # a 64-bit record says it; the file itself is then over 4 GB
    if announced > MAX_DIRECTORY_BYTES:
        raise bad("directory", f"{announced:,} bytes", f"is too large: at most {MAX_DIRECTORY_BYTES:,}",
                  source=str(path))  # fmt: skip
