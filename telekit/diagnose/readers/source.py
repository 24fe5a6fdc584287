"""Text of a file in bounded pieces: plain or gzip, cut off or not, UTF-8 or nearly so."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from telekit.diagnose.builder import ProblemCounter
from telekit.documents import regular_size

Progress = Callable[[int, int, str], None]
"""Told how much is done, of how much, and what."""
PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def text_pieces(path: Path, problems: ProblemCounter, progress: Progress | None = None) -> Iterator[str]:
    """Yield the text of a file, some 1 MB at a time; bytes that are not UTF-8 stay as lone surrogates.

    A compressed file that ends early or is damaged yields what was readable, and that is noted.

    Raises
    ------
    InputError
        It cannot be read.
    """
    total, done = regular_size(path), 0
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    with path.open("rb") as file:
        expand = _Expander(problems) if file.read(2) == _GZIP else None
        file.seek(0)
        while raw := file.read(PIECE_BYTES if expand is None else PIECE_BYTES // 8):
            done += len(raw)
            for piece in (raw,) if expand is None else expand.pieces(raw):
                yield decoder.decode(piece)
            if progress:
                progress(done, total, f"reading {path.name}")
            if expand is not None and expand.failed:
                break
    if expand is not None:
        yield decoder.decode(expand.end())
    yield decoder.decode(b"", final=True)


def head(path: Path, size: int = 65_536) -> str:
    """Return the first text of a file, decompressed; nothing of a file that cannot be read."""
    text = ""
    for piece in text_pieces(path, ProblemCounter()):
        text += piece
        if len(text) >= size:
            break
    return text[:size]


class _Expander:
    """Decompresses gzip in bounded pieces, one member after the other."""

    def __init__(self, problems: ProblemCounter) -> None:
        self._problems = problems
        self._stream = zlib.decompressobj(31)
        self._open = True
        self.failed = False

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """Yield what these bytes decompress to."""
        while raw:
            try:
                yield self._stream.decompress(raw, PIECE_BYTES)
            except zlib.error as error:
                self._problems.add(f"the compressed file is damaged, what follows is not read: {error}")
                self.failed = True
                return
            raw, self._open = self._stream.unconsumed_tail, not self._stream.eof
            if self._stream.eof:
                raw = self._stream.unused_data.lstrip(b"\0")  # padding may stand between members
                self._stream = zlib.decompressobj(31)

    def end(self) -> bytes:
        """Return what was still held back; note a member that began and did not end."""
        if self.failed or not self._open:
            return b""
        self._problems.add("the compressed file ends early, what there is was read", lost=False)
        return self._stream.flush()
