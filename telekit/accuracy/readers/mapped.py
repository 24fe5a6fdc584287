"""Bytes of a file as an array, mapped and not copied; and the headers of NumPy's own format."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from telekit.accuracy.readers.named import numpy_dtype
from telekit.accuracy.readers.problems import shown
from telekit.errors import InputError, bad

NPY_MAGIC = b"\x93NUMPY"
MAX_NPY_HEADER = 10_000
"""Bytes; NumPy's own limit: a longer header is a structured dtype at best, an attack on the parser at worst."""
MAX_DIMS = 32
_ONE = "one raw byte an element"
_RAW = {
    "<V2": "bfloat16",
    "|V2": "bfloat16",
    "<V1": _ONE,
    "|V1": _ONE,
    "<f1": "float8_e5m2",
    "|f1": "float8_e5m2",
}
"""How NumPy writes the dtypes of ml_dtypes, of which it knows the size only."""


@dataclass(frozen=True)
class NpyHeader:
    """What stands before the elements of a .npy file: ``start`` is their offset in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes the elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def order(self) -> str:
        """NumPy's letter for the order of the elements."""
        return "F" if self.fortran else "C"


def mapped(path: Path, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...],
           order: str = "C") -> npt.NDArray[Any]:  # fmt: skip
    """Map ``shape`` elements at ``offset`` bytes of a file, read only; pages come in as they are touched.

    Raises
    ------
    InputError
        The file is gone or has become shorter than its header said.
    """
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    try:
        raw = np.memmap(
            path, dtype=np.uint8, mode="r", offset=offset, shape=(math.prod(shape) * dtype.itemsize,)
        )
    except (OSError, ValueError) as error:
        raise bad("data", f"byte {offset}", f"cannot be mapped: {error}", source=str(path)) from None
    return np.ndarray(shape, dtype, buffer=raw, order="F" if order == "F" else "C")


def counts(values: Any, field: str) -> tuple[int, ...]:
    """Return a list that someone wrote as a tuple of counts (a shape, strides, offsets), or refuse it."""
    good = isinstance(values, (list, tuple)) and len(values) <= MAX_DIMS
    if not good or any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 2**62 for n in values):
        raise bad(field, shown(values, 60), f"is not a list of at most {MAX_DIMS} counts")
    return tuple(values)


def checked_shape(values: Any) -> tuple[int, ...]:
    """Return a shape someone wrote, or refuse it; no file holds 2**62 elements."""
    shape = counts(values, "shape")
    if math.prod(n for n in shape if n) >= 2**62:
        raise bad("shape", shown(shape, 60), "has more elements than any file holds")
    return shape


def read_npy_header(file: BinaryIO, place: str, hint: str = "") -> NpyHeader:
    """Read and check the header of a .npy stream.

    Parameters
    ----------
    file : binary file
        At its start.
    place : str
        Named in errors.
    hint : str
        The dtype that a dump says of it: NumPy writes bf16 and fp8 as raw bytes. Without a hint two are bf16, the
        only two-byte type it writes so; one (``<V1``) may be several kinds of fp8 and is refused.

    Raises
    ------
    InputError
        Not a .npy stream, truncated, an overlong header, Python objects (never unpickled), fields, or text.
    """
    head = file.read(8)
    if len(head) < 8 or not head.startswith(NPY_MAGIC):
        raise bad("header", shown(head[:8]), "is not that of a .npy file", source=place)
    width = {1: 2, 2: 4, 3: 4}.get(head[6])
    if width is None:
        raise bad(
            "version", f"{head[6]}.{head[7]}", "of the .npy format is not read: 1, 2 and 3 are", source=place
        )
    count = file.read(width)
    if len(count) < width:
        raise bad("header", "truncated", "ends before its announced length", source=place)
    length = struct.unpack("<H" if width == 2 else "<I", count)[0]
    if length > MAX_NPY_HEADER:
        raise bad("header", f"{length:,} bytes", f"is too long: at most {MAX_NPY_HEADER:,}", source=place)
    text = file.read(length)
    if len(text) < length:
        raise bad("header", "truncated", "ends before its announced length", source=place)
    fields = _fields(text, place)
    try:
        dtype, shape = _npy_dtype(fields["descr"], place, hint), checked_shape(fields["shape"])
    except InputError as error:
        raise error.within(place) from None
    return NpyHeader(dtype, shape, fields["fortran_order"] is True, 8 + width + length)


def _fields(text: bytes, place: str) -> dict[str, Any]:
    try:
        fields = ast.literal_eval(text.decode("utf-8").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise bad("header", shown(text[:60]), "is not a Python literal", source=place) from None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise bad("header", shown(fields, 60), "must have descr, fortran_order and shape", source=place)
    return fields


def _npy_dtype(descr: Any, place: str, hint: str) -> np.dtype[Any]:
    if not isinstance(descr, str):
        raise bad("dtype", shown(descr, 60), "has fields: only plain numbers are read", source=place)
    if descr.lstrip("<>|=")[:1] == "O":
        raise bad("dtype", descr, "holds Python objects; a pickle is never loaded", source=place)
    if descr in _RAW:
        dtype = numpy_dtype(hint or _RAW[descr])
        if dtype.itemsize != int(descr[2]):
            raise bad("dtype", descr, f"does not hold {hint}", source=place)
        return dtype
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError):
        raise bad("dtype", shown(descr, 60), "is not known", source=place) from None
    if dtype.kind not in "biufc" or dtype.itemsize > 16:
        raise bad("dtype", shown(descr, 60), "is not a number: only numbers are read", source=place)
    return dtype


def lazily(load: Callable[[], npt.NDArray[Any]], place: str) -> Callable[[], npt.NDArray[Any]]:
    """Return a loader whose failures, whatever they are made of, are InputErrors that name the place."""

    def safe() -> npt.NDArray[Any]:
        try:
            return load()
        except InputError as error:
            raise error.within(place) from None
        except (OSError, ValueError, EOFError, MemoryError) as error:
            raise bad("data", type(error).__name__, f"cannot be loaded: {error}", source=place) from None

    return safe
