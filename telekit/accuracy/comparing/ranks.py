"""What each rank of a run holds: steps and ranks of two sides set beside each other, merged where they differ."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from telekit.accuracy.comparing.mapping import Mapping as NameMapping
from telekit.accuracy.comparing.shards import (
    AXIS,
    EXPERTS,
    REPLICATED,
    SWIGLU,
    Merged,
    Rule,
    gated,
    merge,
    rule_for,
)
from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.readers import NamedTensor, ReadProblem, Tensors
from telekit.errors import InputError, Problem, bad

RankKey = tuple[int | None, str]
Shapes = Mapping[str, tuple[int, ...] | None]
_MEGATRON = re.compile(r"mp_rank_(\d{1,6})(?:_(\d{1,6}))?(?:_(\d{1,6}))?")


@dataclass
class Side:
    """The tensors of both sides at one step, of one rank or of all ranks merged."""

    target: list[NamedTensor]
    golden: list[NamedTensor]
    step: int | None
    rank: int | None
    merged: dict[int, Merged] = field(default_factory=dict)

    def checks(self, target: NamedTensor | None, golden: NamedTensor | None) -> tuple[str, ...]:
        """Return how a pair's tensors were merged, and where replicas that should be equal are not."""
        said: list[str] = []
        for side, tensor in (("target", target), ("golden", golden)):
            if tensor is not None and (made := self.merged.get(id(tensor))):
                said += [f"{side}: {note}" for note in (*made.notes, *_unequal(made))]
        return tuple(said)


def _unequal(made: Merged) -> list[str]:
    said = []
    for first, *others in made.replicas:
        for other in others:
            if first.kind != "tensor" or not (first.has_data and other.has_data):
                if first.statistics != other.statistics or first.md5 != other.md5:
                    said.append(
                        f"replicas differ by what was dumped of them: {_where(first)} and {_where(other)}"
                    )
                continue
            try:
                found = compare_arrays(other.load(), first.load())
            except InputError as error:
                said.append(f"replica of {_where(other)} not read: {error.problems[0].rule}")
                continue
            if not found.identical:
                size = "shapes" if found.max_abs_error is None else f"at most {found.max_abs_error:.6g}"
                said.append(f"replicas differ: {_where(other)} from {_where(first)}, {size}")
    return said


def _where(tensor: NamedTensor) -> str:
    return tensor.shard or (f"rank {tensor.rank}" if tensor.rank is not None else tensor.place)


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
        if not layout and (name := _MEGATRON.fullmatch(key[1])):
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


def sides(
    target: Tensors, golden: Tensors, mapping: NameMapping, notes: list[str], problems: list[ReadProblem]
) -> list[Side]:
    """Set both sides beside each other, step by step, and rank by rank where both have the same ranks.

    Where they do not, or where the mapping gives two layouts that differ, each side's ranks are merged first.

    Raises
    ------
    InputError
        No step is on both sides.
    """
    t, g = _by_step(target), _by_step(golden)
    steps: list[tuple[int | None, int | None]] = [(s, s) for s in g if s in t]
    if len(t) == len(g) == 1:
        steps = [(next(iter(t)), next(iter(g)))]
    if not steps and t and g:
        rule = f"no step is on both sides: golden has {', '.join(map(str, g))}"
        raise bad("steps", ", ".join(map(str, t)), rule, "compare one step's folder with one step's folder")
    for side, have, other in (("target", t, {a for a, _ in steps}), ("golden", g, {b for _, b in steps})):
        alone = [str(s) for s in have if s not in other]
        if alone and steps:
            problems.append(
                ReadProblem(side, "steps", f"{', '.join(alone)} are only in {side}: not compared")
            )
    return [side for a, b in steps for side in _step(t[a], g[b], b, mapping, notes)]


def _by_step(found: Tensors) -> dict[int | None, dict[RankKey, list[NamedTensor]]]:
    steps: dict[int | None, dict[RankKey, list[NamedTensor]]] = {}
    for tensor in found:
        steps.setdefault(tensor.step, {}).setdefault((tensor.rank, tensor.shard), []).append(tensor)
    return steps


def _step(
    t: dict[RankKey, list[NamedTensor]],
    g: dict[RankKey, list[NamedTensor]],
    step: int | None,
    mapping: NameMapping,
    notes: list[str],
) -> list[Side]:
    def joined(a: list[NamedTensor], b: list[NamedTensor], rank: int | None) -> Side:
        return Side(mapping.joined(a, target=True), mapping.joined(b, target=False), step, rank)

    as_written = mapping.target_layout == mapping.golden_layout
    if as_written and t.keys() == g.keys():
        return [joined(t[key], g[key], key[0]) for key in g]
    if as_written and len(t) == len(g) and not any(_MEGATRON.fullmatch(shard) for _, shard in (*t, *g)):
        if len(t) > 1:
            notes.append(f"step {step}: ranks paired in order, their names differ")
        return [joined(a, b, key[0]) for a, (key, b) in zip(t.values(), g.items(), strict=True)]
    made_g, merged_g = _merged(g, mapping.golden_layout, mapping, _shapes(t, mapping.translate))
    made_t, merged_t = _merged(
        t, mapping.target_layout, mapping, {x.name: x.shape for x in made_g}, mapping.translate
    )
    notes.append(f"step {step}: merged {len(t)} ranks of target and {len(g)} of golden before comparing")
    side = joined(made_t, made_g, None)
    side.merged = merged_t | merged_g
    return [side]


def _shapes(ranks: dict[RankKey, list[NamedTensor]], translate: Callable[[str], str]) -> Shapes:
    """Shapes of a side that is whole, by golden's names; nothing of one that is itself in shards."""
    if len(ranks) > 1:
        return {}
    return {translate(t.name): t.shape for found in ranks.values() for t in found}


def _merged(
    ranks: dict[RankKey, list[NamedTensor]],
    layout: Mapping[str, int],
    mapping: NameMapping,
    expected: Shapes,
    translate: Callable[[str], str] = str,
) -> tuple[list[NamedTensor], dict[int, Merged]]:
    """Merge one side's ranks into whole tensors, in the order of first appearance."""
    if len(ranks) == 1:
        return list(next(iter(ranks.values()))), {}
    keys = sorted(ranks, key=lambda k: (k[0] is None, k[0] or 0, k[1]))
    where = places(keys, layout)
    named = _global_names(ranks, where)
    local = {key: {t.name: t.shape for t in found} for key, found in ranks.items()}
    holders: dict[str, list[tuple[Place, NamedTensor, bool | None]]] = defaultdict(list)
    for key in keys:
        for name, tensor in zip(named[key], ranks[key], strict=True):
            is_gated = gated(tensor.name, local[key])
            holders[name].append(
                (where[key], replace(tensor, name=name, rank=key[0], shard=key[1]), is_gated)
            )
    found: list[NamedTensor] = []
    merged: dict[int, Merged] = {}
    for name, held in holders.items():
        made = _one(held, mapping, expected.get(translate(name)))
        found.append(made.tensor)
        merged[id(made.tensor)] = made
    return found, merged


def _one(
    held: Sequence[tuple[Place, NamedTensor, bool | None]],
    mapping: NameMapping,
    expected: tuple[int, ...] | None,
) -> Merged:
    """Merge the holders of one name: by tensor rank, then stacked experts by expert rank; all others are replicas."""
    tensors = [t for _, t, _ in held]
    rule, notes = rule_for(tensors[0], mapping.shards), []
    if rule is not None and rule.kind == SWIGLU and not mapping.shards:
        if held[0][2] is False:
            rule = Rule(AXIS, rule.axis)
        elif held[0][2] is None and len(tensors) > 1:
            notes.append("taken as [gate; up] of each rank")
    words = tensors[0].name.split(".")
    expert = "experts" in words or "local_experts" in words
    coordinates = [(p.etp if expert else p.tp, p.ep if expert else 0) for p, _, _ in held]
    if any(c is None for pair in coordinates for c in pair):
        return _unplaced(tensors, rule, mapping, expected, notes)
    by_rank: dict[int, dict[int, list[NamedTensor]]] = defaultdict(lambda: defaultdict(list))
    for (tp, ep), tensor in zip(coordinates, tensors, strict=True):
        by_rank[ep or 0][tp or 0].append(tensor)
    several = len(by_rank) > 1
    made: list[Merged] = []
    for ranks in by_rank.values():
        parts = [ranks[r][0] for r in sorted(ranks)]
        inner = None if several else expected
        made.append(merge(parts, rule, expected=inner, heads=mapping.heads, groups=mapping.groups))
    copies = tuple(tuple(same) for ranks in by_rank.values() for same in ranks.values() if len(same) > 1)
    whole = merge([m.tensor for m in made], Rule(EXPERTS, 0), expected=expected) if several else made[0]
    said = tuple(
        dict.fromkeys((*notes, *(n for m in made for n in m.notes), *(whole.notes if several else ())))
    )
    replicas = (*copies, *(r for m in made for r in m.replicas))
    return Merged(replace(whole.tensor, rank=None), said, replicas)


def _unplaced(
    tensors: Sequence[NamedTensor],
    rule: Rule | None,
    mapping: NameMapping,
    expected: tuple[int, ...] | None,
    notes: list[str],
) -> Merged:
    """Merge ranks of which nothing says where they stand: golden's shape tells shards from replicas."""
    count = len(tensors)
    if expected is not None and rule is not None and rule.kind != REPLICATED and tensors[0].shape != expected:
        shape, axis = tensors[0].shape or (), rule.axis
        if len(shape) == len(expected) and -len(shape) <= axis < len(shape) and shape[axis]:
            pieces = expected[axis] // shape[axis]
            if 0 < pieces < count and count % pieces == 0:
                notes = [*notes, f"{pieces} tensor ranks taken to run fastest, the others as their replicas"]
                made = merge(
                    tensors[:pieces], rule, expected=expected, heads=mapping.heads, groups=mapping.groups
                )
                copies = tuple(tuple(tensors[i::pieces]) for i in range(pieces))
                return Merged(replace(made.tensor, rank=None), (*notes, *made.notes), copies)
    made = merge(tensors, rule, expected=expected, heads=mapping.heads, groups=mapping.groups)
    return Merged(replace(made.tensor, rank=None), (*notes, *made.notes), made.replicas)


def _global_names(
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
            if experts and (spot := _expert_spot(words)) is not None:
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


def _expert_spot(words: Sequence[str]) -> tuple[int, str] | None:
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
            if ep is not None and (spot := _expert_spot(words)) is not None:
                i, head = spot
                counts[ep].add(int(words[i][len(head) :]))
    sizes = {len(seen) for seen in counts.values()}
    local = len(counts) > 1 and len(sizes) == 1 and all(min(seen) == 0 for seen in counts.values())
    return sizes.pop() if local else 0
