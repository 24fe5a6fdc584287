"""The mapping file: target's words for golden's, fused projections, shard rules, layouts, as a person writes them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.accuracy.readers.named import NamedTensor
from telekit.errors import InputError, Problem, bad

SECTIONS = frozenset(["names", "shards", "target_layout", "golden_layout", "heads", "groups"])
MAX_RULES = 100_000
_BY_GROUP = frozenset(["linear_qkv", "query_key_value"])  # Megatron-Core fuses q, k and v group by group
_FUSED = (
    (("q", "k", "v"), r"(?:to_|w|linear_)?{}(?:uery|ey|alue)?(?:_proj|_layer|_linear)?",
     r"(?:qkv_proj|to_qkv|linear_qkv|query_key_value|wqkv|Wqkv|qkv|in_proj|c_attn)"),
    (("gate", "up"), r"{}(?:_proj|_layer|_linear)?",
     r"(?:gate_up_proj|linear_fc1|gate_up|w13|dense_h_to_4h|up_gate_proj)"),
)  # fmt: skip


@dataclass(frozen=True)
class Join:
    """One fused tensor on a side, its pieces on the other, in order along the output dimension."""

    fused: str
    pieces: tuple[str, ...]
    pieces_in_target: bool


@dataclass(frozen=True)
class Mapping:
    """What a mapping file says.

    Attributes
    ----------
    exact : dict of str to str
        Target's full tensor names to golden's; also held in ``parts``, where a name is a run of words.
    parts : tuple of ((str, ...), (str, ...))
        Runs of words of a name and what golden calls them, longest first; ``*`` stands for one word.
    joins : tuple of Join
        Fused and split projections.
    shards : dict of str to str
        Name pattern (a regular expression) to a rule of `shards`; before the built-in ones.
    target_layout, golden_layout : dict of str to int
        tp, cp, dp, pp, ep, etp, vpp: which part of the model each rank of a dump holds.
    heads, groups : int
        Attention heads and query groups of the whole model; 0 where not said.
    """

    exact: dict[str, str] = field(default_factory=dict)
    parts: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    joins: tuple[Join, ...] = ()
    shards: dict[str, str] = field(default_factory=dict)
    target_layout: dict[str, int] = field(default_factory=dict)
    golden_layout: dict[str, int] = field(default_factory=dict)
    heads: int = 0
    groups: int = 0

    def translate(self, name: str) -> str:
        """Return golden's name for a name of target; the first (longest) rule that fits a place is used there once."""
        if name in self.exact:
            return self.exact[name]
        words = name.split(".")
        done: list[str] = []
        at = 0
        while at < len(words):
            for left, right in self.parts:
                run = words[at : at + len(left)]
                if len(run) == len(left) and all(x in ("*", y) for x, y in zip(left, run, strict=True)):
                    stars = iter([y for x, y in zip(left, run, strict=True) if x == "*"])
                    done += [next(stars, "*") if word == "*" else word for word in right]
                    at += len(left)
                    break
            else:
                done.append(words[at])
                at += 1
        return ".".join(done)

    def unused(self, target: Sequence[str], golden: Sequence[str]) -> list[str]:
        """Return a note for each line that fits no name: most likely it was mistyped."""
        words = [name.split(".") for name in target]
        said = []
        for left, _ in self.parts:
            name = ".".join(left)
            if name not in target and not any(_runs(left, w) for w in words):
                said.append(f"mapping: {name} is in no name of target: the line is not used")
        for join in self.joins:
            side, names = ("target", target) if join.pieces_in_target else ("golden", golden)
            alone = [p for p in join.pieces if not any(_around(n, p) is not None for n in names)]
            if alone:
                said.append(f"mapping: {', '.join(alone)} in no name of {side}: {join.fused} is not joined")
        for pattern in self.shards:
            if not any(re.search(pattern, n) for n in (*target, *golden)):
                said.append(f"mapping: shards {pattern} fits no name: the line is not used")
        return said

    def joined(self, tensors: Sequence[NamedTensor], *, target: bool) -> list[NamedTensor]:
        """Return one side's tensors with the pieces of fused ones joined, at the place of the first piece.

        Pieces of which one is missing, or whose shapes do not fit, stay as they are.
        """
        found = list(tensors)
        for join in (j for j in self.joins if j.pieces_in_target == target):
            found = _join(found, join, self.groups)
        return found


def _runs(left: Sequence[str], words: Sequence[str]) -> bool:
    n = len(left)
    return any(
        all(x in ("*", y) for x, y in zip(left, words[at : at + n], strict=True))
        for at in range(len(words) - n + 1)
    )


def read_mapping(source: str | Path | AnyMapping[str, Any] | Mapping | None) -> Mapping:
    """Read a mapping from a YAML or JSON file, or from what it would hold.

    Parameters
    ----------
    source : path, mapping or None
        ``target: golden`` lines, where each is a full name or a run of words between dots (``*`` for any one word); a
        list (or words joined by ``+``) stands for the pieces of a fused tensor. Or sections ``names`` (those lines),
        ``shards`` (pattern: rule), ``target_layout``, ``golden_layout``, ``heads`` and ``groups``.

    Raises
    ------
    InputError
        The file cannot be read, or a line is none of these; all are listed.
    """
    if source is None:
        return Mapping()
    if isinstance(source, Mapping):
        return source
    where = ""
    if isinstance(source, (str, Path)):
        from telekit.documents import read_document

        where, content = str(source), read_document(source)
    else:
        content = source
    problems: list[Problem] = []
    if not isinstance(content, AnyMapping) or len(content) > MAX_RULES:
        rule = f"must be lines of target: golden, at most {MAX_RULES:,}"
        kind = {str: "text", list: "a list", type(None): "nothing"}.get(type(content), f"{len(content):,} lines"
                if isinstance(content, AnyMapping) else "a number")  # fmt: skip
        raise InputError([Problem("mapping", kind, rule, "attention: self_attention")], where)
    sectioned = (
        bool(content) and set(content) <= SECTIONS and not all(isinstance(v, str) for v in content.values())
    )
    mapping = _sections(content, problems) if sectioned else _lines(content, problems)
    if problems:
        raise InputError(problems, where)
    return mapping


def _sections(content: AnyMapping[str, Any], problems: list[Problem]) -> Mapping:
    for name in ("names", "shards", "target_layout", "golden_layout"):
        if not isinstance(content.get(name, {}), AnyMapping):
            problems.append(Problem(name, content[name], "must be a mapping"))
    numbers = {f"{k}.{n}": v for k in ("target_layout", "golden_layout") for n, v in _items(content, k)}
    numbers |= {k: content[k] for k in ("heads", "groups") if k in content}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**20:
            problems.append(Problem(name, value, "must be a whole number from 1", "2"))
    for pattern, rule in _items(content, "shards"):
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(Problem("shards", pattern, f"is no regular expression: {error}"))
        if not isinstance(rule, str):
            problems.append(Problem(f"shards.{pattern}", rule, "must name a rule", "row"))
    names = content.get("names", {})
    mapping = _lines(names if isinstance(names, AnyMapping) else {}, problems)
    return replace(
        mapping,
        shards=dict(_items(content, "shards")),
        target_layout=dict(_items(content, "target_layout")),
        golden_layout=dict(_items(content, "golden_layout")),
        heads=content.get("heads", 0),
        groups=content.get("groups", 0),
    )


def _items(content: AnyMapping[str, Any], name: str) -> Sequence[tuple[str, Any]]:
    section = content.get(name, {})
    return [(str(k), v) for k, v in section.items()] if isinstance(section, AnyMapping) else []


def _lines(content: AnyMapping[str, Any], problems: list[Problem]) -> Mapping:
    exact, parts, joins = {}, [], []
    for key, value in content.items():
        left, right = ([s.strip() for s in str(key).split("+")], value)
        pieces = (
            right if isinstance(right, list) else str(right).split("+") if isinstance(right, str) else None
        )
        texts = pieces is not None and all(isinstance(p, str) and p.strip() for p in pieces) and all(left)
        if not texts or pieces is None or (len(left) > 1 and len(pieces) > 1):
            rule = "must be golden's name, or the pieces of a fused tensor on one side"
            problems.append(Problem(f"names.{key}", value, rule, "qkv_proj: [q_proj, k_proj, v_proj]"))
        elif len(left) > 1 or len(pieces) > 1:
            names = [p.strip() for p in pieces]
            joins.append(
                Join(names[0], tuple(left), True) if len(left) > 1 else Join(left[0], tuple(names), False)
            )
        else:
            exact[left[0]] = pieces[0].strip()
            parts.append((tuple(left[0].split(".")), tuple(pieces[0].strip().split("."))))
    # once target's pieces are joined they have golden's name; golden's joined pieces have target's
    parts.sort(key=lambda rule: -len(rule[0]))
    return Mapping(exact, tuple(parts), tuple(joins))


def _join(tensors: list[NamedTensor], join: Join, groups: int) -> list[NamedTensor]:
    places: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for i, tensor in enumerate(tensors):
        for k, piece in enumerate(join.pieces):
            if (split := _around(tensor.name, piece)) is not None:
                places[split].setdefault(k, i)
    made, gone = {}, set()
    for (head, tail), found in places.items():
        if len(found) < len(join.pieces):
            continue
        pieces = [tensors[found[k]] for k in range(len(join.pieces))]
        name = ".".join(w for w in (head, join.fused, tail) if w)
        joined = concatenated(pieces, name, _output_axis(pieces[0]))
        if joined is not None and groups and len(pieces) == 3 and join.fused.split(".")[-1] in _BY_GROUP:
            joined = replace(joined, loader=partial(_grouped, pieces, groups) if joined.has_data else None)
        if joined is not None:
            made[min(found.values())] = joined
            gone |= set(found.values())
    return [made.get(i, t) for i, t in enumerate(tensors) if i in made or i not in gone]


def _grouped(pieces: Sequence[NamedTensor], groups: int) -> NDArray[Any]:
    """Fuse q, k and v as Megatron-Core's ``linear_qkv``: for each query group its queries, its key, its value."""
    rows = []
    for piece in pieces:
        array = piece.load()
        if array.shape[0] % groups:
            raise bad(
                "groups", groups, f"must divide the {array.shape[0]} rows of {piece.name}", source=piece.place
            )
        rows.append(array.reshape(groups, -1, *array.shape[1:]))
    return np.concatenate(rows, axis=1).reshape(-1, *rows[0].shape[2:])


def _around(name: str, piece: str) -> tuple[str, str] | None:
    """Return what stands before and after a run of words in a name."""
    words, run = name.split("."), piece.split(".")
    for at in range(len(words) - len(run) + 1):
        if words[at : at + len(run)] == run:
            return ".".join(words[:at]), ".".join(words[at + len(run) :])
    return None


def _output_axis(tensor: NamedTensor) -> int:
    """Return the axis of a projection's outputs: the first of a parameter, the last of what it puts out."""
    return -1 if tensor.api and tensor.part in ("output", "input") else 0


def concatenated(
    pieces: Sequence[NamedTensor], name: str, axis: int, what: str = "joined from"
) -> NamedTensor | None:
    """Return one tensor made of several, loaded when it is asked for; None where shapes or types do not fit."""
    shapes = [p.shape for p in pieces]
    first = shapes[0]
    if first is None or not first or any(s is None or len(s) != len(first) for s in shapes):
        return None
    axis %= len(first)
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes if s is not None}
    if len(rest) > 1 or len({p.dtype for p in pieces}) > 1:
        return None
    shape = (*first[:axis], sum(s[axis] for s in shapes if s is not None), *first[axis + 1 :])

    def load() -> NDArray[Any]:
        return np.concatenate([p.load() for p in pieces], axis=axis)

    whole = all(p.has_data for p in pieces)
    place = f"{what} {', '.join(p.name for p in pieces)}"
    size = sum(p.nbytes for p in pieces) if prod(shape) else 0
    return replace(
        pieces[0], name=name, shape=shape, place=place, loader=load if whole else None, nbytes=size,
        statistics=None, md5=None, unread="; ".join(dict.fromkeys(p.unread for p in pieces if p.unread)),
    )  # fmt: skip


def hints(target: Sequence[str], golden: Sequence[str]) -> tuple[str, ...]:
    """Return lines for a mapping file that would pair fused and split projections left over on both sides."""
    found: dict[str, None] = {}
    for letters, pattern, fused in _FUSED:
        for split, whole, flipped in ((target, golden, True), (golden, target, False)):
            pieces = [_words(split, pattern.format(letter)) for letter in letters]
            one = _words(whole, fused)
            if one and all(pieces):
                names = [p[0] for p in pieces]
                line = f"{'+'.join(names)}: {one[0]}" if flipped else f"{one[0]}: [{', '.join(names)}]"
                found[f"fused on one side, split on the other; say so in the mapping: {line}"] = None
    return tuple(found)


def _words(names: Sequence[str], pattern: str) -> list[str]:
    """Words of the names that fit a pattern as a whole."""
    return [word for name in names for word in name.split(".") if re.fullmatch(pattern, word)]
