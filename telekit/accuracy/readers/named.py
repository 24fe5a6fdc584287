"""One tensor of a file that someone else wrote: what is said of it, and a way to load it when it is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from telekit.accuracy.readers.problems import ReadProblem
from telekit.errors import bad

Number = float | int | bool
Kind = Literal["tensor", "scalar", "none"]

_ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "bool_": "bool", "long": "int64", "int": "int32",
    "short": "int16", "char": "int8", "byte": "uint8", "cfloat": "complex64", "cdouble": "complex128",
    "complexfloat": "complex64", "complexdouble": "complex128",
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "c64": "complex64", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e8m0": "float8_e8m0fnu",
}  # fmt: skip
_NATIVE = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)
_EXTENDED = frozenset(
    ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
)


def dtype_name(written: str) -> str:
    """Return NumPy's or ml_dtypes' name of a dtype as torch, MindSpore or safetensors write it.

    ``torch.bfloat16``, ``BFloat16``, ``mindspore.bfloat16`` and ``BF16`` are all ``bfloat16``; a name that is not
    known is returned in lower case.
    """
    short = written.rsplit(".", 1)[-1].lower()
    return _ALIASES.get(short, short)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a canonical name, bf16 and fp8 from ml_dtypes.

    Raises
    ------
    InputError
        No dtype of that name is read.
    """
    if name in _NATIVE:
        return np.dtype(name)
    if name in _EXTENDED:
        import ml_dtypes

        if hasattr(ml_dtypes, name):
            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
            return dtype
    raise bad("dtype", name, "is not read", f"one of {', '.join(sorted(_NATIVE | _EXTENDED))}")


@dataclass(frozen=True)
class Statistics:
    """What a statistics dump keeps of a tensor; None where it kept nothing (a bool tensor has no mean)."""

    max: Number | None = None
    min: Number | None = None
    mean: Number | None = None
    norm: Number | None = None


@dataclass(frozen=True)
class NamedTensor:
    """One tensor, or one scalar argument, of a dump or a checkpoint.

    Parameters
    ----------
    name : str
        Its name; in a dump ``{api}.{call}.{forward|backward}.{input|output|parameters}.{index or key}``.
    shape : tuple of int, or None
        None where nothing is said of it (an argument that is None).
    dtype : str
        NumPy's or ml_dtypes' name; empty where there is none.
    place : str
        File and place in it.
    kind : {"tensor", "scalar", "none"}
        A scalar has a ``value``; "none" is an argument or gradient that was None.
    written_dtype : str
        The dtype as the file spells it (``torch.float32``, ``Float32``).
    statistics : Statistics, or None
        In a statistics dump, or beside the data in a tensor dump.
    md5 : str, or None
        msprobe's summary of the bytes (a CRC-32 in 8 hex digits), in an md5 dump.
    value : int, float, bool, str or None
        Of a scalar.
    requires_grad : bool, or None
        None where it is not said.
    is_nan : bool, or None
        What a ``nan_check`` dump says.
    api, part : str
        The operator or module, and which side of it: input, parameters, output or parameters_grad.
    is_recompute : bool
        Whether the operator ran in a recomputation.
    step, rank : int, or None
        From the folders' names.
    shard : str
        The part of a checkpoint it came from (``mp_rank_00_001``), where several hold the same names.
    nbytes : int
        Size in bytes once loaded; 0 without data.
    unread : str
        Why elements that the dump announces cannot be read; empty where it announces none, or they can.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    place: str
    kind: Kind = "tensor"
    written_dtype: str = ""
    statistics: Statistics | None = None
    md5: str | None = None
    value: Number | str | None = None
    requires_grad: bool | None = None
    is_nan: bool | None = None
    api: str = ""
    part: str = ""
    is_recompute: bool = False
    step: int | None = None
    rank: int | None = None
    shard: str = ""
    nbytes: int = 0
    unread: str = ""
    loader: Callable[[], npt.NDArray[Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def has_data(self) -> bool:
        """Whether :meth:`load` has elements to give."""
        return self.loader is not None

    def load(self) -> npt.NDArray[Any]:
        """Return the elements: mapped from the file where its format allows, read now otherwise; never kept.

        Raises
        ------
        InputError
            It has no data (statistics or md5 dump), or the file no longer holds what its header said.
        """
        if self.loader is None:
            raise bad(
                "tensor", self.name, "has no data to load, only what the dump says of it", source=self.place
            )
        return self.loader()


@dataclass(frozen=True)
class DumpInfo:
    """What an msprobe dump folder says beside its tensors.

    Parameters
    ----------
    folder : str
        Where its ``dump.json`` is.
    step, rank : int, or None
        From the folders' names.
    task, level, framework : str
        As written: statistics, tensor, ...; L0, L1, mix, ...; pytorch, mindspore.
    apis : tuple of str
        Operators and modules in the order they were dumped.
    stack : dict of str to tuple of str
        Operator to the lines of its call stack.
    parents : dict of str to str or None
        Operator or module to the module around it; empty for level L1.
    """

    folder: str
    step: int | None
    rank: int | None
    task: str
    level: str
    framework: str
    apis: tuple[str, ...]
    stack: dict[str, tuple[str, ...]] = field(repr=False)
    parents: dict[str, str | None] = field(repr=False)


@dataclass(frozen=True)
class Tensors(Sequence[NamedTensor]):
    """The tensors of a file or folder, in the order written, and what could not be read of it.

    Parameters
    ----------
    source : str
        The path asked for.
    kind : str
        npy, npz, safetensors, torch, dump or checkpoint.
    items : tuple of NamedTensor
        None is loaded yet. (step, rank, shard, name) are unique.
    problems : tuple of ReadProblem
        What was left out or doubtful.
    dumps : tuple of DumpInfo
        One for each rank and step of a dump.
    """

    source: str
    kind: str
    items: tuple[NamedTensor, ...] = field(repr=False)
    problems: tuple[ReadProblem, ...] = ()
    dumps: tuple[DumpInfo, ...] = field(default=(), repr=False)

    @overload
    def __getitem__(self, index: int) -> NamedTensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NamedTensor]: ...
    def __getitem__(self, index: int | slice) -> NamedTensor | Sequence[NamedTensor]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[NamedTensor]:
        return iter(self.items)

    def named(self, name: str) -> tuple[NamedTensor, ...]:
        """Return the tensors of that name: one for each step, rank and shard that has it."""
        return tuple(item for item in self.items if item.name == name)


_STEP = re.compile(r"(?:global_)?step_?(\d{1,15})|iter_(\d{1,15})")
_RANK = re.compile(r"rank_?(\d{1,9})")
_RANK_IN_STEM = re.compile(r"(?:^|[._-])rank_?(\d{1,9})(?=$|[._-])")
_SHARD = re.compile(r"mp_rank_\d+(?:_\d+)*|proc\d+")


def where(folders: Sequence[str]) -> tuple[int | None, int | None, str]:
    """Return step, rank and shard as the names of the folders (or the file's stem) around a file say them.

    ``step3``, ``iter_0000100`` and ``global_step5`` name a step; ``rank7`` and ``rank_7`` a rank; Megatron's
    ``mp_rank_00_001`` a shard (tensor, then pipeline, then expert rank), as does msprobe's
    ``proc2016`` (a process whose rank it did not know). The last of each counts. Inside the last name a rank may stand
    among other words (``weights_rank3``).
    """
    step = rank = None
    shard = ""
    for folder in folders:
        if found := _STEP.fullmatch(folder):
            step = int(found[1] or found[2])
        elif found := _RANK.fullmatch(folder):
            rank = int(found[1])
        elif _SHARD.fullmatch(folder):
            shard = folder
    if rank is None and not shard and folders and (found := _RANK_IN_STEM.search(folders[-1])):
        rank = int(found[1])  # model_rank3.npz, rank-3.safetensors
    return step, rank, shard
