"""A pickle read as data: its opcodes build containers and numbers; what it names is kept as text, never run."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from telekit.accuracy.readers.problems import shown
from telekit.errors import bad

MAX_OPCODES = 20_000_000


class Name(str):
    """A function or class that the pickle names (``torch._utils._rebuild_tensor_v2``); it is not looked up."""


@dataclass
class Call:
    """A call that the pickle asks for and that is not made; ``items`` and ``state`` are what it would then set."""

    function: str
    args: tuple[Any, ...]
    items: dict[Any, Any] = field(default_factory=dict)
    state: Any = None


@dataclass(frozen=True)
class Stored:
    """A torch storage: its class's name and its key in the archive."""

    kind: str
    key: str


_MARK = object()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    ]
)
_IGNORED = frozenset(("PROTO", "FRAME"))


def read_pickle(content: bytes, source: str) -> Any:
    """Return the object a pickle describes, with each call in it left as a :class:`Call`.

    Raises
    ------
    InputError
        Truncated or malformed, or an opcode that torch.save does not write.
    """
    machine = _Machine()
    position = 0
    try:
        for count, (opcode, argument, at) in enumerate(pickletools.genops(content)):
            position = at or 0
            if opcode.name == "STOP":
                return machine.pop()
            if count > MAX_OPCODES:
                raise ValueError(f"has more than {MAX_OPCODES:,} opcodes")
            machine.step(opcode.name, argument)
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        what = str(error) if isinstance(error, ValueError) else f"is malformed ({type(error).__name__})"
        raise bad("pickle", f"byte {position}", shown(what), source=source) from None
    raise bad("pickle", f"byte {position}", "ends without its STOP", source=source)


class _Machine:
    """A stack and a memo, as the pickle format describes them (Python's Lib/pickletools.py)."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark stands where a value should")
        return value

    def to_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name not in _IGNORED:
            action = _ACTIONS.get(name)
            if action is None:
                raise ValueError(f"the opcode {name} is not one that torch.save writes")
            action(self, argument)


def _push(value: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(value())


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: Any) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return act


def _name(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(Name(f"{module}.{name}"))


def _stack_name(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise ValueError("a class is named by something other than text")
    machine.stack.append(Name(f"{module}.{name}"))


def _call(machine: _Machine, _: Any) -> None:
    args, function = machine.pop(), machine.pop()
    if not isinstance(args, tuple):
        raise ValueError("a call's arguments are not a tuple")
    called = function if isinstance(function, Name) else type(function).__name__
    machine.stack.append(Call(str(called), args))


def _build(machine: _Machine, _: Any) -> None:
    state = (
        machine.pop()
    )  # that an object would take: hooks and metadata of a state_dict, the bytes of an array
    if machine.stack and isinstance(machine.stack[-1], Call):
        machine.stack[-1].state = state


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    into = target.items if isinstance(target, Call) else target
    if not isinstance(into, dict) or len(items) % 2:
        raise ValueError("items are set on something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        plain = key is None or isinstance(key, (str, int, float))  # hashing nested tuples can take for ever
        into[key if plain else f"<{type(key).__name__} {len(into)}>"] = value


def _extend(machine: _Machine, items: list[Any]) -> None:
    if isinstance(machine.stack[-1], list):
        machine.stack[-1].extend(items)
    elif not isinstance(machine.stack[-1], Call):
        raise ValueError("items are appended to something that is not a list")


def _persistent(machine: _Machine, _: Any) -> None:
    """Torch's persistent ids: ("storage", class, key, location, count)."""
    value = machine.pop()
    if (
        not isinstance(value, tuple)
        or len(value) < 3
        or value[0] != "storage"
        or not isinstance(value[1], Name)
    ):
        raise ValueError("a persistent id is not a torch storage")
    machine.stack.append(Stored(str(value[1]), str(value[2])))


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else argument] = machine.stack[-1]


def _one(machine: _Machine) -> list[Any]:
    value = machine.pop()
    return [machine.pop(), value]


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _push(lambda: _MARK),
    "EMPTY_DICT": _push(dict),
    "EMPTY_LIST": _push(list),
    "EMPTY_TUPLE": _push(tuple),
    "EMPTY_SET": _push(list),  # read as a list: a set holds no tensors
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.to_mark())),
    "LIST": lambda machine, _: machine.stack.append(machine.to_mark()),
    "GLOBAL": _name,
    "STACK_GLOBAL": _stack_name,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
    "SETITEM": lambda machine, _: _set_items(machine, _one(machine)),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.to_mark()),
    "APPEND": lambda machine, _: _extend(machine, [machine.pop()]),
    "APPENDS": lambda machine, _: _extend(machine, machine.to_mark()),
    "ADDITEMS": lambda machine, _: _extend(machine, machine.to_mark()),
    "BINPERSID": _persistent,
    "PUT": _memoize,
    "BINPUT": _memoize,
    "LONG_BINPUT": _memoize,
    "MEMOIZE": _memoize,
    "GET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "POP": lambda machine, _: machine.stack.pop() and None,
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
}
