"""Typed reading of a foreign config: every problem is kept, every default filled in is kept.

A reader asks for one field after another and goes on after a bad one, so a person sees all that is wrong at
once. What a bad field returns is a placeholder; nothing is built while :attr:`Fields.problems` is not empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from telekit.errors import Problem
from telekit.model.unread import objection, printable

LARGEST = 10**7
MOST_LAYERS = 10_000

_EXAMPLES = {
    "hidden_size": 4096,
    "vocab_size": 128256,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "n_routed_experts": 256,
    "num_local_experts": 8,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "sliding_window": 4096,
}


class Fields:
    """One config being read.

    Attributes
    ----------
    problems : list of Problem
        What was wrong so far.
    defaults : dict
        Fields that were absent or null, and the value taken instead.
    notes : list of str
        What a reader of the numbers should know besides.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.problems: list[Problem] = []
        self.defaults: dict[str, Any] = {}
        self.notes: list[str] = []
        self._seen: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._prefix = ""
        self._inner: list[Fields] = []

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.config.get(name) is not None

    def clean(self, *names: str) -> bool:
        """Whether none of these fields has a problem, so that rules between them make sense."""
        return not {p.field for p in self.problems}.intersection(self._prefix + name for name in names)

    def inside(self, name: str, index: int | None = None) -> Fields:
        """Fields of an object within this config (absent: of an empty one); problems and defaults are shared.

        With an ``index``, the object is that entry of a list.
        """
        self._seen.add(name)
        value = self.config.get(name)
        if index is not None and value is not None:
            value, name = value[index], f"{name}[{index}]"
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, f"must be an object of fields, not {_type_name(value)}")
        inner = Fields(value if isinstance(value, Mapping) else {})
        inner.problems, inner.defaults, inner.notes = self.problems, self.defaults, self.notes
        inner._prefix = f"{self._prefix}{name}."
        self._inner.append(inner)
        return inner

    def skip(self, *names: str) -> None:
        """Pass over fields that this family's code does not use, or that change no tensor and no FLOPs."""
        self._seen.update(names)

    def refuse(self, name: str, rule: str, suggestion: str = "", value: Any = None) -> None:
        """Keep one problem; the value is the field's own unless another is given."""
        shown = self.config.get(name, "missing") if value is None else value
        if (name, rule) not in self._told:  # a field may be asked for twice
            self._told.add((name, rule))
            self.problems.append(Problem(self._prefix + name[:60], printable(shown), rule, suggestion))

    def note(self, words: str) -> None:
        """Keep what a reader of the numbers should know."""
        if words not in self.notes:
            self.notes.append(words)

    def fill(self, name: str, value: Any) -> Any:
        """Take ``value`` for a field that says nothing, and remember it."""
        self.defaults[self._prefix + name] = value
        return value

    def assume(self, **values: Any) -> None:
        """Take what the family's class takes where these fields are absent, and remember it."""
        absent = {name: value for name, value in values.items() if name not in self.config}
        for name, value in absent.items():
            self.fill(name, value)
        self.config = {**self.config, **absent}

    def first(self, *names: str) -> str:
        """Return the name in use of several for one thing; two that disagree are a problem."""
        present = [name for name in names if self.has(name)]
        self._seen.update(names)
        if len({repr(printable(self.config[name])) for name in present}) > 1:
            self.refuse(present[1], f"must equal {present[0]} (another name of the same thing)", "give one")
        return next(iter([*present, *(name for name in names if name in self.config)]), names[0])

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number; absent or null means ``default``, or is a problem when there is none."""
        self._seen.add(name)
        if not self.has(name):
            if default is not None:
                return int(self.fill(name, default))
            rule = "must be a whole number, not null" if name in self.config else "this field is required"
            self.refuse(name, rule, _example(name, least, most))
            return max(least, 1)
        value = self.config[name]
        if type(value) is not int:
            self.refuse(name, f"must be a whole number, not {_type_name(value)}", _example(name, least, most))
        elif not least <= value <= most:
            self.refuse(name, f"must be from {least} to {most:,}", _example(name, least, most))
        else:
            return value
        return max(least, 1)

    def optional(self, name: str, *, key_required: bool = False, least: int = 1) -> int | None:
        """Return a whole number, or None for null (and for absent, unless the key must be there)."""
        self._seen.add(name)
        if self.has(name) or (key_required and name not in self.config):
            return self.count(name, least=least)
        return None

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a truth value; absent or null means ``default``, or is a problem when there is none."""
        self._seen.add(name)
        value = self.config.get(name)
        if value is None and default is not None:
            return bool(self.fill(name, default))
        if type(value) is not bool:
            self.refuse(name, "must be true or false", f"write {str(bool(default)).lower()}")
        return value is True

    def choice(self, name: str, options: Iterable[str], default: str) -> str:
        """Return one of the known words."""
        self._seen.add(name)
        if not self.has(name):
            return str(self.fill(name, default))
        value, known = self.config[name], sorted(options)
        if not isinstance(value, str) or value not in known:
            self.refuse(name, f"not modelled yet; known: {', '.join(known)}", f"for example {default}")
            return default
        return value

    def entries(self, name: str, kind: type, length: int | None = None) -> list[Any] | None:
        """Return a list whose entries are all of ``kind``, of this length if one is given; None if absent."""
        self._seen.add(name)
        if not self.has(name):
            return None
        value = self.config[name]
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.refuse(name, f"must be a list, not {_type_name(value)}")
        elif any(type(entry) is not kind for entry in value):
            wrong = next(entry for entry in value if type(entry) is not kind)
            self.refuse(name, f"its entries must be {kind.__name__}, not {_type_name(wrong)}")
        elif length is not None and len(value) != length:
            self.refuse(name, f"must have one entry a layer, {length} in all", value=f"{len(value)} entries")
        else:
            return list(value)
        return None

    def expect(self, name: str, value: Any, rule: str) -> None:
        """Accept the field only when absent, null, or equal to ``value``."""
        self._seen.add(name)
        given = self.config.get(name)
        if given is not None and (type(given) is not type(value) or given != value):
            self.refuse(name, rule, f"only {printable(value)} is modelled")

    def divides(self, part: str, size: int, whole: str, total: int, why: str = "") -> None:
        """Require that ``size`` divides ``total``; says which size would."""
        if self.clean(part, whole) and total % size:
            near = max(d for d in _divisors(total) if d <= size)
            self.refuse(part, f"must divide {whole}={total}{why}", f"for example {near}", size)

    def refuse_unread(self) -> tuple[str, ...]:
        """Refuse the fields nobody read that may change shapes; return the other unread ones that say something."""
        ignored = []
        for key, value in self.config.items():
            name = str(key)
            if name in self._seen:
                continue
            rule = objection(name, value, self.config, self._seen)
            if rule:
                self.refuse(name, rule)
            elif rule is not None:
                ignored.append(self._prefix + name)
        return (*ignored, *(name for inner in self._inner for name in inner.refuse_unread()))


def _type_name(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    names = {bool: "a truth value", str: "a text", float: "a fraction", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _example(name: str, least: int, most: int) -> str:
    known = _EXAMPLES.get(name)
    return f"for example {known}" if known else f"a whole number from {least} to {most:,}"


def _divisors(number: int) -> set[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return {*small, *(number // d for d in small)}
