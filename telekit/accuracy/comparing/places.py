"""Where in the model's split each rank stands, and what its tensors are called over the whole model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from telekit.accuracy.readers import NamedTensor
from telekit.errors import InputError, Problem

RankKey = tuple[int | None, str]
MEGATRON = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")


@dataclass(frozen=True)
class Place:
    """Where in the model's split a rank stands; None where nothing says it."""

    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    etp: int | None = None
    cp: int | None = None


def places(keys: Sequence[RankKey], layout: Mapping[str, int]) -> dict[RankKey, Place]:
    """Return each rank's place: of Megatron's folder names, or of the rank under a layout.

    Ranks count up through tensor, context, data and pipeline ranks (on the expert side expert tensor, expert, expert
    data), as in `telekit.layout.groups`.

    Raises
    ------
    InputError
        The layout does not divide the ranks.
    """
    found: dict[RankKey, Place] = {}
    sizes = {name: layout.get(name, 1) for name in ("tp", "cp", "pp", "ep")}
    sizes["etp"] = layout.get("etp", sizes["tp"])
    stage = len(keys) // sizes["pp"]
    if layout:
        one, expert = sizes["tp"] * sizes["cp"] * sizes["pp"], sizes["ep"] * sizes["etp"] * sizes["pp"]
        wrong = [
            Problem("layout", dict(layout), f"{what} = {size} must divide the {len(keys)} ranks of the dump")
            for what, size in (("tp * cp * pp", one), ("ep * etp * pp", expert))
            if len(keys) % size
        ]
        if wrong:
            raise InputError(wrong)
    for nth, key in enumerate(keys):
        if not layout and (name := MEGATRON.fullmatch(key[1])):
            tp, pp, ep = (int(x) if x is not None else None for x in name.groups())
            found[key] = Place(tp, pp or 0, ep or 0, tp)
        elif layout:
            inner = nth % stage
            found[key] = Place(
                inner % sizes["tp"], nth // stage, inner // sizes["etp"] % sizes["ep"], inner % sizes["etp"],
                inner // sizes["tp"] % sizes["cp"],
            )  # fmt: skip
        else:
            found[key] = Place()
    return found


def global_names(
    ranks: Mapping[RankKey, Sequence[NamedTensor]], where: Mapping[RankKey, Place]
) -> dict[RankKey, list[str]]:
    """Return names with the layers of pipeline stages and the experts of expert ranks counted over the whole model.

    Only where every stage counts from 0 (then the numbers are its own); so for experts.
    """
    layers, chunks = _layer_offsets(ranks, where)
    experts = _expert_counts(ranks, where)
    named: dict[RankKey, list[str]] = {}
    for key, tensors in ranks.items():
        place, found = where[key], []
        for tensor in tensors:
            words = tensor.name.split(".")
            chunk = _chunk(words)
            if (place.pp, chunk) in layers and (i := _after(words, ("layers",))) is not None:
                words[i] = str(int(words[i]) + layers[place.pp, chunk])
            if chunks and words[0] == f"model{chunk}":
                words[0] = "model"
            if experts and (spot := expert_spot(words)) is not None:
                i, head = spot
                words[i] = f"{head}{int(words[i][len(head) :]) + (place.ep or 0) * experts}"
            found.append(".".join(words))
        named[key] = found
    return named


def _chunk(words: Sequence[str]) -> int:
    """Return the virtual stage of Megatron's ``model1.decoder...``; 0 elsewhere."""
    name = re.fullmatch(r"model(\d{1,4})", words[0])
    return int(name[1]) if name else 0


def _after(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the place of a number that follows one of some words."""
    for i, word in enumerate(words[:-1]):
        if word in names and words[i + 1].isdecimal() and len(words[i + 1]) < 7:
            return i + 1
    return None


def expert_spot(words: Sequence[str]) -> tuple[int, str] | None:
    """Return where a name counts experts: ``experts.3``, or ``experts.linear_fc1.weight3`` of grouped ones."""
    if (i := _after(words, ("experts", "local_experts"))) is not None:
        return i, ""
    if "experts" in words:
        for i, word in enumerate(words):
            if re.fullmatch(r"(weight|bias)\d{1,6}", word) and i > words.index("experts"):
                return i, word.rstrip("0123456789")
    return None


def _layer_offsets(
    ranks: Mapping[RankKey, Sequence[NamedTensor]], where: Mapping[RankKey, Place]
) -> tuple[dict[tuple[int | None, int], int], bool]:
    counts: dict[tuple[int, int], set[int]] = defaultdict(set)  # (chunk, stage): the order of layers
    chunks = False
    for key, tensors in ranks.items():
        pp = where[key].pp
        for tensor in tensors:
            words = tensor.name.split(".")
            chunks = chunks or bool(re.fullmatch(r"model\d{1,4}", words[0]))
            if pp is not None and (i := _after(words, ("layers",))) is not None:
                counts[_chunk(words), pp].add(int(words[i]))
    if len(counts) < 2 or any(0 not in seen for seen in counts.values()):
        return {}, chunks
    offsets: dict[tuple[int | None, int], int] = {}
    total = 0
    for chunk, pp in sorted(counts):
        offsets[pp, chunk] = total
        total += len(counts[chunk, pp])
    return offsets, chunks


def _expert_counts(ranks: Mapping[RankKey, Sequence[NamedTensor]], where: Mapping[RankKey, Place]) -> int:
    """Return how many experts each expert rank counts for itself; 0 where they count over the whole model."""
    counts: dict[int, set[int]] = defaultdict(set)
    for key, tensors in ranks.items():
        ep = where[key].ep
        for tensor in tensors:
            words = tensor.name.split(".")
            if ep is not None and (spot := expert_spot(words)) is not None:
                i, head = spot
                counts[ep].add(int(words[i][len(head) :]))
    sizes = {len(seen) for seen in counts.values()}
    local = len(counts) > 1 and len(sizes) == 1 and all(min(seen) == 0 for seen in counts.values())
    return sizes.pop() if local else 0
