"""Where a run can be interfered with: every operator, collective and update has a name, and a fault sees it happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from telekit.accuracy.miniature.config import Config, Layout
from telekit.accuracy.miniature.mesh import Array

Kind = Literal["config", "initial", "data", "operator", "collective", "gradient", "optimizer"]


@dataclass(frozen=True)
class Point:
    """A place where a fault can be planted.

    Attributes
    ----------
    name : str
        As ``decoder.layers.1.self_attention.linear_proj.all_reduce``.
    kind : str
        config, initial, data, operator, collective, gradient (its sum over micro-batches), optimizer.
    phase : str
        setup, forward, backward or optimizer.
    settings : tuple of str
        Keywords that ``event.call`` takes there (``eps``, ``scale``, ``base``, ...).
    """

    name: str
    kind: Kind
    phase: str
    settings: tuple[str, ...] = ()


@dataclass
class Event:
    """Something about to happen at a point; a fault decides what comes of it.

    Attributes
    ----------
    point, kind, phase : str
        As in `Point`.
    inputs : tuple
        What goes in: arrays ``[dp, cp, tp, ...]``, each rank's own piece behind the first three axes.
    settings : dict
        Keywords of the operator.
    step, micro_batch : int
        From 0.
    config, layout : Config, Layout
        Of the run.
    """

    point: str
    kind: Kind
    phase: str
    inputs: tuple[Any, ...]
    settings: dict[str, Any]
    step: int
    micro_batch: int
    config: Config
    layout: Layout
    _function: Callable[..., Any] = field(repr=False)
    used: tuple[tuple[Any, ...], dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.used = (self.inputs, self.settings)

    def call(self, *inputs: Any, **settings: Any) -> Any:
        """Do what the point does, with other inputs or settings if some are given; what was used goes backward too.

        Returns
        -------
        ndarray or tuple of ndarray
            An operator's backward returns a gradient for each input.
        """
        self.used = (inputs or self.inputs, self.settings | settings)
        return self._function(*self.used[0], **self.used[1])


Change = Callable[[Event], Any]
"""A fault: is shown every event, and returns what comes out of it, or None to let it happen."""


@dataclass(frozen=True)
class Fault:
    """A change at points whose name matches.

    Parameters
    ----------
    point : str
        Name with wildcards (``*.linear_proj.all_reduce``).
    change : callable
        Takes the `Event` and returns what comes out.
    steps, micro_batches : sequence of int, or None
        Only there.
    ranks : sequence of int, or None
        Only these ranks (of the pipeline stage that has the point) get the changed value; others the right one.
    """

    point: str
    change: Change
    steps: Sequence[int] | None = None
    micro_batches: Sequence[int] | None = None
    ranks: Sequence[int] | None = None

    def __call__(self, event: Event) -> Any:
        """Change the event if it is meant."""
        meant = (
            fnmatchcase(event.point, self.point)
            and (self.steps is None or event.step in self.steps)
            and (self.micro_batches is None or event.micro_batch in self.micro_batches)
        )
        if not meant:
            return None
        changed = self.change(event)
        if self.ranks is None or changed is None:
            return changed
        used, right = event.used, event.call()
        event.used = used
        n = event.layout
        here = np.isin(np.arange(n.dp * n.cp * n.tp), np.asarray(self.ranks) % (n.dp * n.cp * n.tp))
        return _only(changed, right, here.reshape(n.dp, n.cp, n.tp))


def _only(changed: Any, right: Any, here: Array) -> Any:
    if isinstance(right, tuple):
        return tuple(_only(a, b, here) for a, b in zip(changed, right, strict=True))
    if not isinstance(right, np.ndarray):
        return changed
    return np.where(here.reshape(here.shape + (1,) * (right.ndim - 3)), changed, right)


def skip(event: Event) -> Any:
    """Leave it out: the first input goes through as it is (a collective that is not called)."""
    return event.inputs[0]


def twice(event: Event) -> Any:
    """Do it, and do it again to the result (a collective called twice)."""
    return event.call(event.call())


def scaled(factor: float) -> Change:
    """Multiply what comes out."""

    def change(event: Event) -> Any:
        value = event.call()
        if isinstance(value, tuple):
            return tuple(v * factor if _real(v) else v for v in value)
        return value * factor

    return change


def _real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def with_settings(**settings: Any) -> Change:
    """Do it with other settings (``eps=1e-3``)."""
    return lambda event: event.call(**settings)
