"""What each rank of a run holds: steps and ranks of two sides set beside each other, merged where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from telekit.accuracy.compared import PARAMETERS, PARAMETERS_GRAD
from telekit.accuracy.comparing.mapping import Mapping as NameMapping
from telekit.accuracy.comparing.places import MEGATRON, Place, RankKey, expert_spot, global_names, places
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
from telekit.accuracy.standards.verdict import ERROR, WARNING, Part, check
from telekit.errors import InputError, bad

Shapes = Mapping[str, tuple[int, ...] | None]


@dataclass
class Side:
    """The tensors of both sides at one step, of one rank or of all ranks merged."""

    target: list[NamedTensor]
    golden: list[NamedTensor]
    step: int | None
    rank: int | None
    merged: dict[int, Merged] = field(default_factory=dict)
    lacking: dict[int, list[str]] = field(default_factory=dict)

    def checks(
        self, target: NamedTensor | None, golden: NamedTensor | None
    ) -> tuple[tuple[str, ...], tuple[Part, ...]]:
        """Return how a pair's tensors were merged, and the parts that replicas and ranks without them make."""
        said: list[str] = []
        parts: list[Part] = []
        differ: dict[str, list[str]] = {"target": [], "golden": []}
        for side, tensor in (("target", target), ("golden", golden)):
            if tensor is not None and (made := self.merged.get(id(tensor))):
                differ[side] = _unequal(made)
                said += [f"{side}: {note}" for note in (*made.notes, *differ[side])]
                parts += _lacking(side, self.lacking.get(id(tensor), []))
        known = golden is not None and id(golden) in self.merged and bool(self.merged[id(golden)].replicas)
        return tuple(said), (*parts, *_replicas(target, differ["target"], differ["golden"], known))


def _lacking(side: str, ranks: Sequence[str]) -> list[Part]:
    if not ranks:
        return []
    note = f"{side}: {', '.join(ranks[:4])} and others" if len(ranks) > 4 else f"{side}: {', '.join(ranks)}"
    rule = "on every rank that holds the tensors beside it"
    return [check("ranks without it", len(ranks), False, rule, level=WARNING, note=note, own=True)]


def _replicas(
    tensor: NamedTensor | None, target: Sequence[str], golden: Sequence[str], golden_has_replicas: bool
) -> list[Part]:
    """Judge replicas: weights are equal on all ranks; activations too, if they are so in golden."""
    if tensor is None or not (target or golden):
        return []
    weight = not tensor.api or tensor.part in (PARAMETERS, PARAMETERS_GRAD)
    sure = target and not golden and (weight or golden_has_replicas)
    rule = "equal on all ranks that hold them"
    return [check("replicas", len(target), False, rule, level=ERROR if sure else WARNING, note=(*target, *golden)[0],
                  own=True)]  # fmt: skip


def _unequal(made: Merged) -> list[str]:
    said = []
    for first, *others in made.replicas:
        for other in others:
            if first.kind != "tensor" or not (first.has_data and other.has_data):
                if (
                    repr(first.statistics) != repr(other.statistics) or first.md5 != other.md5
                ):  # NaN equals NaN
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
                size = found.status if found.max_abs_error is None else f"at most {found.max_abs_error:.6g}"
                said.append(f"replicas differ: {_where(other)} from {_where(first)}, {size}")
    return said


def _where(tensor: NamedTensor) -> str:
    return tensor.shard or (f"rank {tensor.rank}" if tensor.rank is not None else tensor.place)


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
            said = f"{', '.join(alone)} only in {side}: not compared"
            problems.append(ReadProblem(side, "steps", said, lost=True))
    for a, b in steps:
        if a != b and None not in (a, b):
            problems.append(ReadProblem("target", "steps", f"{a}, set beside step {b} of golden", lost=True))
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
    if as_written and len(t) == len(g) and not any(MEGATRON.fullmatch(shard) for _, shard in (*t, *g)):
        if len(t) > 1:
            notes.append(
                f"{'' if step is None else f'step {step}: '}ranks paired in order, their names differ"
            )
        return [joined(a, b, key[0]) for a, (key, b) in zip(t.values(), g.items(), strict=True)]
    made_g, merged_g, lacking_g = _merged(g, mapping.golden_layout, mapping, _shapes(t, mapping.translate))
    made_t, merged_t, lacking_t = _merged(
        t, mapping.target_layout, mapping, {x.name: x.shape for x in made_g}, mapping.translate
    )
    at = "" if step is None else f"step {step}: "
    notes.append(f"{at}merged {len(t)} ranks of target and {len(g)} of golden before comparing")
    side = joined(made_t, made_g, None)
    side.merged = merged_t | merged_g
    side.lacking = lacking_t | lacking_g
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
) -> tuple[list[NamedTensor], dict[int, Merged], dict[int, list[str]]]:
    """Merge one side's ranks into whole tensors, in the order of first appearance; and say which ranks lack which."""
    if len(ranks) == 1:
        return list(next(iter(ranks.values()))), {}, {}
    keys = sorted(ranks, key=lambda k: (k[0] is None, k[0] or 0, k[1]))
    where = places(keys, layout)
    named = global_names(ranks, where)
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
    lacking: dict[int, list[str]] = {}
    names = {key: set(named[key]) for key in keys}
    for name, held in holders.items():
        made = _one(held, mapping, expected.get(translate(name)))
        found.append(made.tensor)
        merged[id(made.tensor)] = made
        if without := _without(name, names):
            lacking[id(made.tensor)] = [key[1] or f"rank {key[0]}" for key in without]
    return found, merged, lacking


def _without(name: str, names: Mapping[RankKey, set[str]]) -> list[RankKey]:
    """Return the ranks that lack a name though they hold most of what a holder of it holds.

    Ranks of another pipeline stage hold other names, and those of another expert rank other experts.
    """
    if expert_spot(name.split(".")) is not None or "experts" in name.split("."):
        return []
    groups: dict[frozenset[str], list[RankKey]] = defaultdict(list)  # few: ranks of a stage hold the same
    for key, held in names.items():
        groups[frozenset(held)].append(key)
    holders = [held for held in groups if name in held]
    return [
        key
        for held, keys in groups.items()
        if name not in held and any(2 * len(held & other) >= len(held | other) for other in holders)
        for key in keys
    ]


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
