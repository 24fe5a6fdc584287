"""Any file or folder of tensors: told by what it holds, not by what it is called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from telekit.accuracy.readers.archive import Archive
from telekit.accuracy.readers.arrays import npy_tensor, npz_tensors
from telekit.accuracy.readers.dump import dump_tensors
from telekit.accuracy.readers.mapped import NPY_MAGIC
from telekit.accuracy.readers.named import DumpInfo, NamedTensor, Tensors
from telekit.accuracy.readers.problems import Problems, inside, plain_name, read_json, shown
from telekit.accuracy.readers.safetensor import safetensors_tensors
from telekit.accuracy.readers.torchfile import torch_tensors
from telekit.documents import regular_size
from telekit.errors import InputError, bad

MAX_DEPTH = 8
MAX_FILES = 200_000
_SUFFIXES = {
    ".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch",
}  # fmt: skip
_OTHERS = {
    ".distcp": "torch's distributed checkpoint: convert it with torch.distributed.checkpoint.format_utils",
    ".ckpt": "a MindSpore checkpoint: save it as safetensors (mindspore.ckpt_to_safetensors)",
}
_TEXTS = frozenset((".json", ".jsonl", ".txt", ".md", ".yaml", ".yml", ".py", ".csv", ".log", ".html"))


def tensors(path: str | Path) -> Tensors:
    """Read what tensors a file or folder holds; none is loaded yet.

    Parameters
    ----------
    path : str or Path
        A .npy, .npz, .safetensors or torch file; an msprobe ``dump.json``, or a folder of them by step and rank; a
        checkpoint folder.

    Returns
    -------
    Tensors
        The tensors in the order written, and the problems: a file or an item that is malformed or hostile is noted
        there and left out, the rest is read.

    Raises
    ------
    InputError
        There is no such path, or a single file that cannot be read at all.
    """
    path, problems = Path(path), Problems()
    if path.is_dir():
        found, kind, dumps = _folder(path, problems)
    elif path.suffix == ".json":
        found, info = dump_tensors(path, problems)
        kind, dumps = "dump", (info,)
    else:
        kind, dumps = sniff(path), ()
        found = _file(path, path.stem, kind, problems)
    return Tensors(str(path), kind, tuple(_unique(found, problems)), problems.listed(), tuple(dumps))


def sniff(path: Path) -> str:
    """Return the kind of a tensor file from its first bytes.

    Raises
    ------
    InputError
        Not a kind that is read; a bare pickle is named as such.
    """
    size = regular_size(path)
    with path.open("rb") as file:
        head = file.read(9)
    if head.startswith(NPY_MAGIC):
        return "npy"
    if head.startswith(b"PK"):
        return "npz" if _suffix(path) == ".npz" or not _has_pickle(path) else "torch"
    if len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        raise bad("file", path.name, "is a bare pickle (torch before 1.6, or another program's) and is never loaded; "
                  "save it again with torch.save", source=str(path))  # fmt: skip
    rule = "is empty" if not size else "is no tensor file that is read, or is truncated in its header"
    raise bad(
        "file", shown(head), rule, "npy, npz, safetensors or a zip file of torch.save", source=str(path)
    )


def _has_pickle(path: Path) -> bool:
    return any(member.name.endswith("/data.pkl") for member in Archive(path, Problems()).members)


def _file(path: Path, name: str, kind: str, problems: Problems) -> list[NamedTensor]:
    """Read a file of a known kind; ``name`` is the tensor's where the file itself has none."""
    named = _SUFFIXES.get(_suffix(path))
    if named and named != kind:
        problems.add(path, "", f"is called {path.suffix} but is {kind}: read as what it is")
    match kind:
        case "npy":
            return [npy_tensor(path, name, problems)]
        case "npz":
            return npz_tensors(path, problems)
        case "safetensors":
            return safetensors_tensors(path, problems)
        case _:
            return torch_tensors(path, problems)


def _folder(root: Path, problems: Problems) -> tuple[list[NamedTensor], str, Sequence[DumpInfo]]:
    files = list(_walk(root, problems))
    dumps = [path for path in files if path.name == "dump.json"]
    found: list[NamedTensor] = []
    infos = []
    for path in dumps:
        try:
            more, info = dump_tensors(path, problems)
        except InputError as error:
            problems.refused(path, error)
            continue
        found += more
        infos.append(info)
    if dumps:
        beside = [path for path in files if _suffix(path) in _SUFFIXES or _suffix(path) in _OTHERS]
        for path in beside:
            problems.add(path, "", "stands beside a dump and is not read: compare it by itself", lost=True)
        return found, "dump", infos
    for path in files:
        found += _checkpoint_file(path, root, problems)
    for index in (path for path in files if path.name.endswith(".safetensors.index.json")):
        _check_index(index, found, problems)
    if not files:
        problems.add(root, "", "holds no dump and no tensor file")
    return found, "checkpoint", ()


def _walk(folder: Path, problems: Problems, depth: int = 0) -> Iterator[Path]:
    """Yield the files of interest, step 2 before step 10; links to folders are not followed, dumped data not listed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: _natural(entry.name))
    except OSError as error:
        problems.add(folder, "", f"cannot be listed: {error.strerror}")
        return
    is_dump = any(entry.name == "dump.json" for entry in entries)
    wanted = {*_SUFFIXES, *_OTHERS}
    reached = False
    for count, entry in enumerate(entries):
        if count >= MAX_FILES:
            said = f"and what follows is left out: {MAX_FILES:,} files are read at most"
            problems.add(folder, entry.name, said, lost=True)
            return
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if depth < MAX_DEPTH and not is_dump:
                yield from _walk(path, problems, depth + 1)
            elif not is_dump and not reached:
                reached = True
                problems.add(
                    path, "", f"is more than {MAX_DEPTH} folders deep and is not looked into", lost=True
                )
        elif entry.is_dir():
            problems.add(path, "", "is a link to a folder and is not followed", lost=not is_dump)
        elif (
            entry.name == "dump.json"
            or entry.name.endswith(".safetensors.index.json")
            or _suffix(path) in wanted
        ):
            yield path
        elif (
            not is_dump
            and _suffix(path) not in _TEXTS
            and entry.is_file(follow_symlinks=False)
            and (kind := _kind(path))
        ):
            problems.add(
                path, "", f"looks like {kind} but has no suffix of tensor files: not read", lost=True
            )


def _suffix(path: Path) -> str:
    return path.suffix.lower()


def _kind(path: Path) -> str:
    """Return what a file of no known suffix looks like by its first bytes; nothing where it is no tensor file."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
        if head.startswith(b"PK"):
            names = [m.name for m in Archive(path, Problems()).members]
            return "an archive of arrays" if any(n.endswith((".npy", "/data.pkl")) for n in names) else ""
        if head[:1] == b"\x80" and head[1:2] <= b"\x05":
            return "a bare pickle"
        return sniff(path)
    except (InputError, OSError):
        return ""


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _checkpoint_file(path: Path, root: Path, problems: Problems) -> list[NamedTensor]:
    """Read one file of a checkpoint folder; a file that cannot be read is noted."""
    if _suffix(path) in _OTHERS:
        problems.add(path, "", f"is not read: {_OTHERS[_suffix(path)]}", lost=True)
    if _suffix(path) not in _SUFFIXES:
        return []
    try:
        if path.is_symlink() and not _stays(path, root):
            raise bad("file", path.name, "is a link out of the folder and is not followed")
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        return _file(path, name, sniff(path), problems)
    except (InputError, OSError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None)}"
        wrong = error if isinstance(error, InputError) else bad("file", path.name, reason)
        problems.refused(path, wrong)
        return []


def _stays(path: Path, root: Path) -> bool:
    """Whether a link ends in the folder read, or in the Hugging Face cache it belongs to.

    There ``snapshots/<revision>/file`` links to ``blobs/<hash>``, two folders up.
    """
    if inside(path, root):
        return True
    target, base = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    return base.parent.name == "snapshots" and target.parent == base.parent.parent / "blobs"


def _check_index(index: Path, found: list[NamedTensor], problems: Problems) -> None:
    """Note tensors and shards that the index names and that are not there."""
    try:
        content = read_json(index, problems, lost=True)
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise bad("weight_map", "missing", "is required")
        for shard in sorted({value for value in names.values() if isinstance(value, str)}):
            if not (index.parent / plain_name(shard, index.parent)).exists():
                problems.add(index, shard, "is named by the index and is not there", lost=True)
    except InputError as error:
        problems.refused(index, error, lost=False)
        return
    present = {tensor.name for tensor in found}
    for name in names:
        if name not in present:
            said = "is named by the index and is in no file that could be read"
            problems.add(index, name, said, lost=True)


def _unique(found: list[NamedTensor], problems: Problems) -> Iterator[NamedTensor]:
    """Keep the first of each (step, rank, shard, name)."""
    seen: set[tuple[int | None, int | None, str, str]] = set()
    for tensor in found:
        key = (tensor.step, tensor.rank, tensor.shard, tensor.name)
        if key in seen:
            problems.add(tensor.place, tensor.name, "stands twice: the first is kept", lost=True)
            continue
        seen.add(key)
        clean = tensor.name if tensor.name.isprintable() else shown(tensor.name)
        yield tensor if clean == tensor.name else replace(tensor, name=clean)
