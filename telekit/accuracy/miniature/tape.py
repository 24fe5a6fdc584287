"""One step being taken: operators run, are written down for the way back, and are shown to a fault first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from telekit.accuracy.miniature.config import Config, Layout
from telekit.accuracy.miniature.events import Change, Event, Kind, Point
from telekit.accuracy.miniature.mesh import Array, Mesh, Place, Round, reduce

_OWN = Place()
_API = {
    "all_gather": "all_gather_into_tensor", "all_reduce_max": "all_reduce", "reduce_scatter": "reduce_scatter_tensor",
}  # fmt: skip


@dataclass(eq=False)
class Value:
    """A tensor on every rank of a stage, and its gradient once it is known.

    ``wide`` ones are kept in float32 where activations are bfloat16 (router, loss). ``grad_terms`` says that every
    tensor-parallel rank has the same value, and a term of its gradient.
    """

    data: Array
    place: Place
    wide: bool = False
    grad_terms: bool = False
    grad: Array | None = None

    @property
    def grad_place(self) -> Place:
        """What a rank's piece is of the whole gradient: a term's is the same everywhere."""
        tensor = self.place.tensor
        if tensor == "partial" or (tensor == "same" and self.grad_terms):
            return replace(self.place, tensor="same" if tensor == "partial" else "partial")
        return self.place


@dataclass(frozen=True)
class Operator:
    """A pair of functions.

    ``forward(tape, *arrays, **settings)`` returns an array, or a tuple of them; ``backward(tape, grads, *arrays,
    **settings)`` takes the gradients of the outputs and returns one for each input, None where there is none.
    ``own_event`` is false for those that are nothing but a collective, which has a name of its own. One that ``saves``
    also returns what its backward wants to know, and is given it as ``saved``. One that ``fans_out`` gives every
    tensor-parallel rank what each makes a different use of.
    """

    forward: Callable[..., Any]
    backward: Callable[..., tuple[Array | None, ...]]
    wide: bool = False
    own_event: bool = True
    saves: bool = False
    fans_out: bool = False


Tensor = tuple[str, Array, Place, bool]
"""Key, every rank's piece, what that is of the whole, and whether it is wide."""
Parts = Mapping[str, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Record:
    """What a dump says of one module, collective or update: its tensors by part and key."""

    kind: str
    name: str
    phase: str
    step: int
    micro_batch: int
    stage: int
    parts: Parts
    parent: str | None = None


@dataclass(eq=False)
class Module:
    """A module between its beginning and its end: what went in, its own parameters, and what came out."""

    name: str
    stage: int
    parent: str | None
    outer: list[Value]
    inner: list[Value]
    parameters: dict[str, tuple[Value, Value]]
    outputs: list[Value] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)

    @property
    def inputs(self) -> list[Value]:
        """What the operators inside should use: their gradients are those that this module makes."""
        return self.inner

    def __getitem__(self, name: str) -> Value:
        return self.parameters[name][1]


class Tape:
    """A run's way forward and back.

    Parameters
    ----------
    config, layout : Config, Layout
    fault : callable, or None
        Shown every event before it happens.
    listen : list of Point, or None
        Where the points that are passed are written.
    """

    def __init__(self, config: Config, layout: Layout, fault: Change | None = None,
                 listen: list[Point] | None = None) -> None:  # fmt: skip
        self.config, self.layout, self.fault, self.listen = config, layout, fault, listen
        self.mesh = Mesh(config, layout)
        self.step = self.micro_batch = self.stage = 0
        self.records: list[Record] = []
        self._back: list[Callable[[], None]] = []
        self.at = ""
        self.phase = "forward"
        self._inside: list[str] = []

    def event(self, point: str, kind: Kind, phase: str, function: Callable[..., Any], inputs: tuple[Any, ...],
              settings: dict[str, Any]) -> tuple[Any, tuple[tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
        """Let something happen, or what the fault makes of it; also return the inputs and settings that were used."""
        if self.listen is not None:
            self.listen.append(Point(point, kind, phase, tuple(settings)))
        if self.fault is None:
            return function(*inputs, **settings), (inputs, settings)
        event = Event(point, kind, phase, inputs, settings, self.step, self.micro_batch, self.config, self.layout,
                      function)  # fmt: skip
        changed = self.fault(event)
        return (event.call() if changed is None else changed), event.used

    def op(self, point: str, operator: Operator, *values: Value, places: Sequence[Place] | None = None,
           **settings: Any) -> Any:  # fmt: skip
        """Run an operator; return a Value, or a tuple of them. ``places`` of outputs default to the first input's."""
        arrays = tuple(value.data for value in values)
        saved: dict[str, Any] = {}

        def forward(*inputs: Any, **kept: Any) -> Any:
            made = operator.forward(self, *inputs, **kept)
            if operator.saves:
                made, saved["saved"] = made
            return made

        self.at = point
        if operator.own_event:
            found, (arrays, settings) = self.event(point, "operator", "forward", forward, arrays, settings)
        else:
            found = forward(*arrays, **settings)
        several = isinstance(found, tuple)
        outputs = []
        for i, data in enumerate(found if several else (found,)):
            place = values[0].place if places is None else places[i]
            exact = operator.wide or data.dtype.kind != "f"
            terms = operator.fans_out or any(v.grad_terms and v.place.tensor == "same" for v in values)
            outputs.append(Value(data if exact else self.mesh.round(data), place, operator.wide, terms))

        def back() -> None:
            if any(out.grad is not None for out in outputs):
                self._backward(point, operator, values, outputs, arrays, settings, saved)

        self._back.append(back)
        return tuple(outputs) if several else outputs[0]

    def _backward(self, point: str, operator: Operator, values: Sequence[Value], outputs: Sequence[Value],
                  arrays: tuple[Any, ...], settings: dict[str, Any], saved: dict[str, Any]) -> None:  # fmt: skip
        """Run an operator's backward and add what it gives to the gradients of its inputs."""
        incoming = tuple(np.zeros_like(out.data) if out.grad is None else out.grad for out in outputs)

        def function(*inputs: Any, **kept: Any) -> tuple[Array | None, ...]:
            return operator.backward(self, *inputs, **kept, **saved)

        self.at = f"{point}.backward"
        inputs = (incoming if len(outputs) > 1 else incoming[0], *arrays)
        if operator.own_event:
            grads, _ = self.event(f"{point}.backward", "operator", "backward", function, inputs, settings)
        else:
            grads = function(*inputs, **settings)
        for value, grad in zip(values, grads, strict=True):
            if grad is not None:
                self.accumulate(value, grad)

    def accumulate(self, value: Value, grad: Array) -> None:
        """Add to a value's gradient; rounded, and the sum rounded again, unless the value is wide."""
        rnd = self.mesh.wide if value.wide else self.mesh.round
        value.grad = rnd(grad) if value.grad is None else rnd(value.grad + rnd(grad))

    def collective(self, kind: str, axes: str, value: Array, rnd: Round | None = None, axis: int = 3,
                   point: str = "") -> Array:  # fmt: skip
        """Run one collective, named after the operator that is running.

        Parameters
        ----------
        kind : {"all_reduce", "reduce_scatter", "all_gather", "all_reduce_max"}
        axes : str
            The group: tp, cp, dp-cp, edp, cp+tp.
        axis : int
            Of the array, ranks' axes counted, that is gathered or scattered.
        """
        if self.mesh.size(axes) == 1:
            return value
        rounding = rnd or self.mesh.round

        def function(array: Array, *, order: str) -> Array:
            return self._communicate(kind, axes, array, rounding, axis, order)

        return self.communicated(kind, _API.get(kind, kind), function, value, point, wide=rnd is not None,
                                 order=self.layout.reduce_order)  # fmt: skip

    def communicated(self, kind: str, api: str, function: Callable[..., Array], value: Array, point: str = "",
                     *, wide: bool = False, **settings: Any) -> Array:  # fmt: skip
        """Let ranks exchange something, and write it down as ``Distributed.{api}``."""
        name = point or f"{self.at}.{kind}"
        result, _ = self.event(name, "collective", self.phase, function, (value,), settings)
        result = np.asarray(result)
        self.record("collective", f"Distributed.{api}", self.phase, {
            "input": (("0", value, _OWN, wide),), "output": (("0", result, _OWN, wide),)
        }, self._inside[-1] if self._inside else None)  # fmt: skip
        return result

    def _communicate(self, kind: str, axes: str, value: Array, rnd: Round, axis: int, order: str) -> Array:
        terms = self.mesh.to_groups(value, axes)
        n, at = len(terms), axis - 3 + terms.ndim - (value.ndim - 3)
        if kind == "all_gather":
            whole = np.concatenate(list(terms), axis=at - 1)
            result = np.broadcast_to(whole, (n, *whole.shape))
        elif kind == "all_reduce_max":
            result = np.broadcast_to(terms.max(axis=0), terms.shape)
        else:
            total = reduce(terms, order, rnd, terms.ndim - 1 - (value.ndim - 3))
            if kind == "reduce_scatter":
                result = np.stack(np.split(total, n, axis=at - 1))
            else:
                result = np.broadcast_to(total, terms.shape)
        return np.ascontiguousarray(self.mesh.from_groups(result, axes))

    @contextmanager
    def module(self, name: str, kind: str, *inputs: Value, data: Sequence[Array] = (),
               **parameters: Value) -> Iterator[Module]:  # fmt: skip
        """Open a module: its inputs and outputs, and their gradients, go into the dump.

        Operators inside must use ``module.inputs`` and ``module[parameter]``. ``data`` are inputs that have no gradient
        (token ids, labels): they are dumped after the others.
        """
        dumped = f"{name}.{kind}"
        both = {key: (value, _again(value)) for key, value in parameters.items()}
        parent = self._inside[-1] if self._inside else None
        module = Module(dumped, self.stage, parent, list(inputs), [_again(value) for value in inputs], both)
        self._inside.append(dumped)
        self._back.append(lambda: self._leave(module))
        yield module
        self._inside.pop()
        self._back.append(lambda: self._enter(module))
        parts: Parts = {
            "input": (
                *_listed(module.inner),
                *((str(i), ids, _OWN, True) for i, ids in enumerate(data, len(module.inner))),
            ),
            "parameters": tuple((key, v.data, v.place, v.wide) for key, (v, _) in both.items()),
            "output": _listed(module.outputs),
        }
        self.record("module", dumped, "forward", parts, parent)

    def record(self, kind: str, name: str, phase: str, parts: Parts, parent: str | None = None,
               stage: int | None = None) -> None:  # fmt: skip
        """Write something down for the dump; at the stage that is running, or at another (-1: all)."""
        at = self.stage if stage is None else stage
        self.records.append(Record(kind, name, phase, self.step, self.micro_batch, at, parts, parent))

    def _enter(self, module: Module) -> None:
        """On the way back: keep the gradients that come into the module."""
        self.stage = module.stage
        self._inside.append(module.name)
        module.grads = [
            (str(i), out.grad, out.grad_place, out.wide)
            for i, out in enumerate(module.outputs)
            if out.grad is not None
        ]

    def _leave(self, module: Module) -> None:
        """On the way back: hand the module's gradients on, and write them down."""
        self._inside.pop()
        of_parameters = []
        for key, (outside, inside) in module.parameters.items():
            if inside.grad is not None:
                place = _gradient_place(inside.place, self.layout.splits_sequence)
                of_parameters.append((key, inside.grad, place, inside.wide))
                self.accumulate(outside, inside.grad)
        if of_parameters:
            self.record(
                "module",
                module.name,
                "parameters_grad",
                {"parameters_grad": tuple(of_parameters)},
                module.parent,
            )
        made = []
        for i, (outside, inside) in enumerate(zip(module.outer, module.inner, strict=True)):
            if inside.grad is not None:
                made.append((str(i), inside.grad, inside.grad_place, inside.wide))
                self.accumulate(outside, inside.grad)
        parts: Parts = {"input": tuple(module.grads), "output": tuple(made)}
        self.record("module", module.name, "backward", parts, module.parent)

    def backward(self, roots: Sequence[Value]) -> None:
        """Go back over everything since the last time, from scalars whose gradient is one."""
        self.phase = "backward"
        for root in roots:
            root.grad = np.ones_like(root.data)
        while self._back:
            self._back.pop()()
        self.phase = "forward"


def _gradient_place(place: Place, splits_sequence: bool) -> Place:
    """Place a parameter's gradient before any reduction: each rank that has other tokens has a term of it."""
    terms = splits_sequence and place.tensor == "same"
    return replace(place, data="partial", tensor="partial" if terms else place.tensor)


def _again(value: Value) -> Value:
    return Value(value.data, value.place, value.wide, value.grad_terms)


def _listed(values: Sequence[Value]) -> tuple[Tensor, ...]:
    return tuple((str(i), v.data, v.place, v.wide) for i, v in enumerate(values))
