"""A run as a dump: msprobe's names in graph order, of each rank or merged over ranks and micro-batches."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from telekit.accuracy.measures.summaries import checksum
from telekit.accuracy.miniature.mesh import Array, Place, merge
from telekit.accuracy.miniature.run import Run
from telekit.accuracy.miniature.tape import Record
from telekit.accuracy.readers.named import DumpInfo, NamedTensor, Statistics, Tensors
from telekit.errors import bad

_Item = tuple[str, Array, bool]
_Entry = tuple[str, str | None, dict[str, list[_Item]]]


def dump(
    run: Run, *, merged: bool = True, steps: Sequence[int] | None = None, statistics: bool = False
) -> Tensors:
    """Return the tensors of a run.

    Parameters
    ----------
    run : Run
    merged : bool
        One dump of whole tensors, in which layouts can be compared: ranks' pieces are put together, terms of a sum are
        added (in float64), of replicas (and of the copies of a tied weight) the first is taken, micro-batches are
        joined (call 0). Otherwise one dump for
        each rank with its own pieces, a call number for each micro-batch, and its collectives
        (``Distributed.all_reduce.3.forward``).
    steps : sequence of int, or None
        From 0; default all.
    statistics : bool
        Whether items say Max, Min, Mean and Norm too.

    Returns
    -------
    Tensors
        Modules are called ``Module.decoder.layers.0.mlp.linear_fc1.ColumnParallelLinear.forward.0``; as in msprobe a
        backward's input is the gradient of the module's output. Token ids are the embedding's input, labels the last of
        the loss. ``Gradient.{parameter}.reduce.step.0`` has the sum over micro-batches before and after its reduction
        over ranks; ``Optimizer.{parameter}.Adam.step.0`` has inputs grad (reduced and clipped), parameter, exp_avg,
        exp_avg_sq, and outputs without grad.
    """
    wanted = range(len(run.losses)) if steps is None else steps
    by_step: dict[int, list[Record]] = defaultdict(list)
    for record in run.records:
        by_step[record.step].append(record)
    items: list[NamedTensor] = []
    infos: list[DumpInfo] = []
    for step in wanted:
        if step not in by_step:
            raise bad("steps", step, "was not run, or its records were not kept", "0")
        for rank in [None] if merged else range(run.layout.ranks):
            entries = _merged(run, by_step[step]) if rank is None else _of_rank(run, by_step[step], rank)
            found, info = _tensors(entries, run, step, rank, statistics)
            items += found
            infos.append(info)
    return Tensors("miniature", "dump", tuple(items), (), tuple(infos))


def _api(record: Record, call: int) -> str:
    if record.kind == "module":
        return f"Module.{record.name}.{record.phase}.{call}"
    return f"{record.name}.{call}.forward" if record.kind == "collective" else f"{record.name}.step.{call}"


def _parent(record: Record, call: int) -> str | None:
    if record.parent is None:
        return None
    phase = "backward" if record.phase == "parameters_grad" else record.phase
    return f"Module.{record.parent}.{phase}.{call}"


def _merged(run: Run, records: Iterable[Record]) -> Iterable[_Entry]:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    copy = ".output_layer.weight." if run.config.tied else " "
    for record in records:
        if record.kind != "collective" and copy not in record.name:
            groups[record.name, record.phase].append(record)
    for same in groups.values():
        first = same[0]
        parts: dict[str, list[_Item]] = {}
        for part, tensors in first.parts.items():
            parts[part] = []
            for key, _, _, wide in tensors:
                pieces = [_piece(record, part, key) for record in same]
                parts[part].append((key, merge([p for p in pieces if p is not None], run.mesh), wide))
        yield _api(first, 0), _parent(first, 0), parts


def _piece(record: Record, part: str, key: str) -> tuple[Array, Place] | None:
    return next(((array, place) for name, array, place, _ in record.parts[part] if name == key), None)


def _of_rank(run: Run, records: Iterable[Record], rank: int) -> Iterable[_Entry]:
    n = run.layout
    inner, stage = rank % (n.tp * n.cp * n.dp), rank // (n.tp * n.cp * n.dp)
    at = (inner // (n.tp * n.cp), inner // n.tp % n.cp, inner % n.tp)
    calls: Counter[str] = Counter()
    for record in records:
        if record.stage not in (stage, -1):
            continue
        call = record.micro_batch
        if record.kind == "collective":
            call = calls[record.name]
            calls[record.name] += 1
        parts = {
            part: [(key, _own(array, place, at), wide) for key, array, place, wide in tensors]
            for part, tensors in record.parts.items()
        }
        yield _api(record, call), _parent(record, record.micro_batch), parts


def _own(array: Array, place: Place, at: tuple[int, int, int]) -> Array:
    piece = array[at]
    return np.asarray(piece if place.keys is None else piece[place.keys[at] >= 0])


def _tensors(
    entries: Iterable[_Entry], run: Run, step: int, rank: int | None, statistics: bool
) -> tuple[list[NamedTensor], DumpInfo]:
    found: list[NamedTensor] = []
    apis: list[str] = []
    parents: dict[str, str | None] = {}
    for api, parent, parts in entries:
        apis.append(api)
        parents[api] = parent
        for part, items in parts.items():
            for key, array, wide in items:
                name = f"{api}.{key}" if part == "parameters_grad" else f"{api}.{part}.{key}"
                found.append(_named(name, array, wide, run, api, part, step, rank, statistics))
    return found, DumpInfo("miniature", step, rank, "tensor", "L0", "pytorch", tuple(apis), {}, parents)


def _named(name: str, array: Array, wide: bool, run: Run, api: str, part: str, step: int, rank: int | None,
           statistics: bool) -> NamedTensor:  # fmt: skip
    narrow = run.config.precision == "bf16" and not wide and array.dtype.kind == "f"
    dtype = "bfloat16" if narrow else array.dtype.name
    return NamedTensor(
        name, array.shape, dtype, f"miniature: {name}", written_dtype=f"torch.{dtype}",
        statistics=_summary(_given(array, narrow)) if statistics else None, api=api, part=part, step=step, rank=rank,
        nbytes=array.size * (2 if narrow else array.itemsize), loader=partial(_given, array, narrow),
    )  # fmt: skip


def _given(array: Array, narrow: bool) -> Array:
    return array.astype(ml_dtypes.bfloat16) if narrow else array


def _summary(array: Array) -> Statistics:
    if not array.size:
        return Statistics()
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        return Statistics(
            float(wide.max()), float(wide.min()), float(wide.mean()), float(np.linalg.norm(wide))
        )


def write_dump(tensors: Tensors, folder: str | Path, *, task: str = "tensor") -> Path:
    """Write a dump of `dump` as msprobe would: ``step0/rank0/dump.json``, construct.json and the tensors beside them.

    Parameters
    ----------
    tensors : Tensors
    folder : str or Path
        Merged dumps have no rank folder.
    task : {"tensor", "statistics", "md5"}
        What is kept of a tensor: all of it, four numbers, or a checksum.

    Raises
    ------
    InputError
        Another task, or tensors that are not of a dump.
    """
    if task not in ("tensor", "statistics", "md5"):
        raise bad("task", task, "is not written", "tensor, statistics or md5")
    root = Path(folder)
    for info in tensors.dumps:
        here = root / f"step{info.step}"
        here = here if info.rank is None else here / f"rank{info.rank}"
        (here / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
        own = [item for item in tensors if (item.step, item.rank) == (info.step, info.rank)]
        data: dict[str, dict[str, Any]] = {api: {} for api in info.apis}
        for item in own:
            _put(data[item.api], item, _said(item, here / "dump_tensor_data", task))
        head = {"task": "statistics" if task == "md5" else task, "level": info.level, "framework": info.framework,
                "dump_data_dir": "dump_tensor_data" if task == "tensor" else None, "data": data}  # fmt: skip
        (here / "dump.json").write_text(json.dumps(head), encoding="utf-8")
        (here / "construct.json").write_text(json.dumps(info.parents), encoding="utf-8")
    return root


def _said(item: NamedTensor, folder: Path, task: str) -> dict[str, Any]:
    array = item.load()
    said: dict[str, Any] = {"type": "torch.Tensor", "dtype": item.written_dtype, "shape": list(array.shape)}
    summary = _summary(array)
    said |= {"Max": summary.max, "Min": summary.min, "Mean": summary.mean, "Norm": summary.norm}
    if task == "md5":
        said["md5"] = checksum(array)
    if task == "tensor":
        said["data_name"] = f"{item.name}.npy"
        np.save(folder / said["data_name"], array)
    return said


def _put(entry: dict[str, Any], item: NamedTensor, said: dict[str, Any]) -> None:
    """Put an item where msprobe has it: numbered ones in lists, named ones by their key."""
    key = item.name.rsplit(".", 1)[-1]
    if item.part == "parameters_grad":
        entry[key] = [said]
    elif item.part == "input" and ".forward." in f"{item.api}.":
        entry.setdefault("input_args", []).append(said)
    elif key.isdecimal():
        entry.setdefault(item.part, []).append(said)
    else:
        entry.setdefault(item.part, {})[key] = said
