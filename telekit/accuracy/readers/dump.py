"""msprobe's dump folders: dump.json, stack.json, construct.json and the tensors beside them, of many steps and ranks.

Names and the order of rows follow msprobe (Ascend/msprobe, python/msprobe/core/compare): inputs, parameters, output,
gradients of parameters; ``input_args`` and ``input_kwargs`` are both ``input``, a nested list adds an index each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from telekit.accuracy.readers.arrays import npy_tensor
from telekit.accuracy.readers.mapped import checked_shape
from telekit.accuracy.readers.named import DumpInfo, NamedTensor, Number, Statistics, dtype_name, where
from telekit.accuracy.readers.problems import Problems, beside, read_json, shown
from telekit.accuracy.readers.torchfile import torch_tensors
from telekit.errors import InputError, bad

MAX_DEPTH = 16
"""Of lists and dictionaries inside an argument; msprobe itself stops at 400, real ones reach 4."""
_PARTS = (
    ("input_args", "input"), ("input_kwargs", "input"), ("input", "input"), ("parameters", "parameters"),
    ("output", "output"),
)  # fmt: skip
_SAID = frozenset(("input_args", "input_kwargs", "input", "parameters", "output", "is_recompute"))
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_SUMMARY = re.compile(r"[0-9a-fA-F]{1,64}")


@dataclass(frozen=True)
class _Context:
    """Where in a dump an item stands."""

    file: Path
    problems: Problems
    step: int | None
    rank: int | None
    shard: str
    data: str
    api: str = ""
    part: str = ""
    is_recompute: bool = False

    def note(self, place: str, what: str, *, lost: bool = False) -> None:
        self.problems.add(self.file, place, what, lost=lost or what.endswith("left out"))


def dump_tensors(file: Path, problems: Problems) -> tuple[list[NamedTensor], DumpInfo]:
    """Return what one ``dump.json`` lists, and what the files beside it say of it.

    Raises
    ------
    InputError
        The file cannot be parsed or is no dump; a malformed item is noted in ``problems`` and left out.
    """
    content = read_json(file, problems, lost=True)
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        raise bad("data", "missing", "this is not an msprobe dump.json", source=str(file))
    step, rank, shard = where(file.parts[:-1])
    context = _Context(file, problems, step, rank, shard, _data_folder(content))
    found: list[NamedTensor] = []
    for api, entry in data.items():
        if isinstance(entry, dict):
            found += _entry(entry, replace(context, api=api, is_recompute=entry.get("is_recompute") is True))
        else:
            context.note(shown(api), f"is {_kind(entry)}, not an object: left out")
    stack = _stack(file.parent / "stack.json", problems)
    parents = _parents(file.parent / "construct.json", problems)
    task, level, framework = (shown(content.get(key) or "") for key in ("task", "level", "framework"))
    return found, DumpInfo(str(file.parent), step, rank, task, level, framework, tuple(data), stack, parents)


def _data_folder(content: dict[str, Any]) -> str:
    """Return the name of the folder of tensors: the dumping machine's path is not this one's, its last part may be."""
    written = content.get("dump_data_dir")
    name = PurePosixPath(written.replace("\\", "/")).name if isinstance(written, str) else ""
    return name if name and name not in (".", "..") and name.isprintable() else "dump_tensor_data"


def _entry(entry: dict[str, Any], context: _Context) -> Iterator[NamedTensor]:
    """Yield the tensors of one operator or module."""
    if "parameters_grad" in context.api.split("."):
        yield from _items(entry, context.api, replace(context, part="parameters_grad"), 0)
        return
    for key, part in _PARTS:
        if key in entry:
            yield from _items(entry[key], f"{context.api}.{part}", replace(context, part=part), 0)
    if "parameters_grad" in entry:
        inner = replace(context, part="parameters_grad")
        yield from _items(entry["parameters_grad"], f"{context.api}.parameters_grad", inner, 0)
    for key in entry.keys() - _SAID - {"parameters_grad"}:
        context.note(
            f"{context.api}.{shown(key)}", "is not a field that is read", lost=_holds_tensors(entry[key])
        )


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether a field that is not read holds what looks like a tensor or a scalar."""
    if isinstance(value, dict) and ("type" in value or "shape" in value):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < MAX_DEPTH and any(_holds_tensors(child, depth + 1) for child in inner)


def _items(value: Any, name: str, context: _Context, depth: int) -> Iterator[NamedTensor]:
    """Yield the leaves of an argument: tensors, scalars, None."""
    if depth > MAX_DEPTH:
        context.note(name, f"is nested more than {MAX_DEPTH} deep: left out")
    elif value is None:
        yield _named(name, context, kind="none")
    elif isinstance(value, list):
        for index, child in enumerate(value):
            inner = name if context.part == "parameters_grad" else f"{name}.{index}"
            yield from _items(child, inner, context, depth + 1)
    elif isinstance(value, dict) and "class_type" in value and "tensor" in value:  # a P2POp of a batched send
        yield from _items(value["tensor"], name, context, depth + 1)
    elif isinstance(value, dict) and isinstance(value.get("type"), str):
        try:
            yield _leaf(value, name, context)
        except InputError as error:
            context.problems.refused(f"{context.file}: {shown(name)}", error)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _items(child, f"{name}.{key}", context, depth + 1)
    else:
        context.note(name, f"is {_kind(value)} where a tensor or a scalar should stand: left out")


def _named(name: str, context: _Context, **said: Any) -> NamedTensor:
    place = f"{context.file}: {shown(name)}"
    said = {"shape": None, "dtype": ""} | said
    return NamedTensor(
        name, place=place, api=context.api, part=context.part, is_recompute=context.is_recompute, step=context.step,
        rank=context.rank, shard=context.shard, **said,
    )  # fmt: skip


def _leaf(item: dict[str, Any], name: str, context: _Context) -> NamedTensor:
    """Read one item with a type: a tensor if it has a shape, else a scalar."""
    kind = item["type"]
    if "shape" not in item and "dtype" not in item:
        value = item.get("value")
        known = value is None or isinstance(value, (bool, int, float, str))
        return _named(name, context, kind="scalar", shape=(), written_dtype=kind, dtype=kind,
                      value=value if known else shown(value))  # fmt: skip
    written = item.get("dtype")
    if not isinstance(written, str):
        raise bad("dtype", shown(written, 60), "is not text")
    tensor = _named(
        name, context, shape=checked_shape(item.get("shape")), dtype=dtype_name(written), written_dtype=written,
        statistics=_statistics(item, name, context), md5=_summary(item, name, context),
        requires_grad=item["requires_grad"] if isinstance(item.get("requires_grad"), bool) else None,
        is_nan=bool(item["is_nan"]) if item.get("is_nan") in (0, 1) else None,
    )  # fmt: skip
    return _with_data(tensor, item.get("data_name"), context)


def _statistics(item: dict[str, Any], name: str, context: _Context) -> Statistics | None:
    if not any(key in item for key in _STATISTICS):
        return None
    values = [_number(item.get(key), f"{name}.{key}", context) for key in _STATISTICS]
    return Statistics(*values)


def _number(value: Any, place: str, context: _Context) -> Number | None:
    """Return a statistic as a number: dumps also hold ``"0"``, ``""``, ``"nan"`` and None."""
    if isinstance(value, str):
        try:
            value = float(value) if value not in ("", "N/A", "None") else None
        except ValueError:
            context.note(place, f"{shown(value, 60)!r} is not a number: read as none")
            return None
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, (int, float)) or (abs(value) > 2**64 and isinstance(value, int)):
        context.note(place, f"{shown(value, 60)} is not a number: read as none")
        return None
    if value != value or abs(value) == float("inf"):
        context.note(place, f"is {value}: kept, an overflow is what a dump is looked at for")
    return value


def _summary(item: dict[str, Any], name: str, context: _Context) -> str | None:
    value = item.get("md5")
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _SUMMARY.fullmatch(value):
        context.note(f"{name}.md5", f"{shown(value, 60)!r} is not hex digits: read as none")
        return None
    return value.lower()


def _with_data(tensor: NamedTensor, data_name: Any, context: _Context) -> NamedTensor:
    """Add the data of a tensor dump; a file that cannot be read leaves the tensor with what the json says of it."""
    if data_name is None or data_name in ("", "-1"):  # msprobe's marks for a tensor that it did not write
        return tensor
    try:
        path = beside(context.file.parent, context.data, data_name)
        loaded = _open(path, tensor, context.problems)
        if loaded.shape != tensor.shape:
            raise bad("shape", loaded.shape, f"differs from the {tensor.shape} of dump.json")
        if loaded.dtype != tensor.dtype and not _widened(tensor.dtype, loaded.dtype):
            raise bad("dtype", loaded.dtype, f"differs from the {tensor.written_dtype} of dump.json")
    except InputError as error:
        context.problems.refused(f"{context.file}: {shown(tensor.name)}: data_name", error, lost=False)
        reason = error.problems[0]
        return replace(tensor, unread=f"{reason.field} {shown(reason.value, 80)} {reason.rule}")
    return replace(tensor, nbytes=loaded.nbytes, loader=loaded.load)


def _open(path: Path, tensor: NamedTensor, problems: Problems) -> NamedTensor:
    if path.suffix == ".npy":
        hint = tensor.dtype if tensor.dtype.startswith(("bfloat16", "float8")) else ""
        return npy_tensor(path, tensor.name, problems, hint)
    if path.suffix != ".pt":
        raise bad("data_name", path.name, "is neither a .pt nor a .npy file")
    found = [tensor for tensor in torch_tensors(path, problems) if tensor.has_data]
    if len(found) != 1:
        raise bad("data_name", path.name, f"holds {len(found)} tensors, not one")
    return found[0]


def _widened(said: str, stored: str) -> bool:
    """Whether MindSpore's dump of a dtype NumPy lacks was cast to one it has: bf16 and fp8 are written as fp32."""
    return said.startswith(("bfloat16", "float8")) and stored in ("float32", "float16")


def _stack(path: Path, problems: Problems) -> dict[str, tuple[str, ...]]:
    """Read call stacks, old (name to lines) and new (number to names and lines)."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in _object(path, problems).items():
        if isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value):
            lines = tuple(str(line) for line in value[1])
            found |= {name: lines for name in value[0] if isinstance(name, str)}
        elif isinstance(value, list):
            found[key] = tuple(str(line) for line in value)
        else:
            found[key] = (str(value),) if isinstance(value, str) else ()
    return found


def _parents(path: Path, problems: Problems) -> dict[str, str | None]:
    """Read what stands around each operator: a name, or nothing (null, ``""``) at the top."""
    found: dict[str, str | None] = {}
    for child, parent in _object(path, problems).items():
        if isinstance(parent, list):  # newer dumps add the micro-batch: [parent, number]
            parent = parent[0] if parent else None
        if parent is not None and not isinstance(parent, str):
            problems.add(path, child, f"is {_kind(parent)}, not a name: read as none")
            parent = None
        found[child] = parent or None
    return found


def _object(path: Path, problems: Problems) -> dict[str, Any]:
    """Read a JSON object that may be missing; a broken one is noted."""
    if not path.exists():
        return {}
    try:
        content = read_json(path, problems)
    except InputError as error:
        problems.refused(path, error, lost=False)
        return {}
    if isinstance(content, dict):
        return content
    problems.add(path, "", f"is {_kind(content)}, not an object: ignored")
    return {}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
