"""One tensor that is off, with everything a closer look can use: what it was made from and what stood near."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from telekit.accuracy.compared import Compared
from telekit.accuracy.graph.nodes import Node
from telekit.accuracy.graph.noise import wide
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.measures.summaries import SummaryErrors
from telekit.accuracy.readers.named import NamedTensor

MAX_ELEMENTS = 1 << 24
"""Larger tensors are not loaded: only their statistics are looked at."""
_NEAR = 48


DEALT = {"dp": (0,), "micro_batches": (0,), "cp": (1,), "ep": (0,), "tp": (1, -1, -2), "etp": (0, -1, -2)}
"""Axes that a group may deal: sequences, positions, experts, features and heads."""


@dataclass(frozen=True)
class Known:
    """A tensor that may explain the difference: its name and both sides' elements."""

    name: str
    target: Floats | None
    golden: Floats | None


@dataclass(frozen=True)
class Case:
    """A tensor that is off.

    Attributes
    ----------
    target, golden : ndarray of float64 or None
        Elements; None in a dump of statistics.
    name, operator, phase, part : str
        What it is.
    epsilon : float
        Of the run's arithmetic.
    inputs_error : float
        Relative error of what it was made from.
    sizes : mapping of str to float
        Group sizes and counts.
    inputs, parameters, near : tuple of Known
        What it was made from (for a backward also its forward's tensors), and outputs that stand close before it.
    replicas : tuple of ndarray
        The target's own tensor of each rank, before merging; empty where they are not known.
    summary : SummaryErrors or None
        Where only statistics are known.
    target_dtype, golden_dtype : str
        As dumped.
    target_shape, golden_shape : tuple of int, or None
        As dumped.
    pool : callable or None
        Returns the tensors elsewhere in the dump whose rows pass a test, nearest first.
    """

    target: Floats | None
    golden: Floats | None
    name: str = ""
    operator: str = ""
    phase: str = ""
    part: str = ""
    epsilon: float = 2.0**-23
    inputs_error: float = 0.0
    sizes: Mapping[str, float] = field(default_factory=dict)
    inputs: tuple[Known, ...] = ()
    parameters: tuple[Known, ...] = ()
    near: tuple[Known, ...] = ()
    replicas: tuple[Floats, ...] = ()
    summary: SummaryErrors | None = None
    target_dtype: str = ""
    golden_dtype: str = ""
    target_shape: tuple[int, ...] | None = None
    golden_shape: tuple[int, ...] | None = None
    pool: Callable[[Callable[[Compared], bool]], tuple[Known, ...]] | None = None

    @property
    def same_shape(self) -> bool:
        """Whether elements of both sides are there, some, and in one shape."""
        t, g = self.target, self.golden
        return t is not None and g is not None and t.shape == g.shape and t.size > 0

    @property
    def noise(self) -> float:
        """Relative error that an explanation may leave: rounding, and what the inputs were off by."""
        return 3 * self.epsilon + 3 * self.inputs_error

    @property
    def summed(self) -> Mapping[str, float]:
        """Sizes of the groups that the tensor may be summed over: no activation is summed over data or stages.

        Empty where no size is known.
        """
        never = ("dp", "pp", "micro_batches") if self.phase == "forward" and "loss" not in self.words else ()
        return {name: size for name, size in self.sizes.items() if name not in never}

    @property
    def words(self) -> str:
        """Operator and tensor in lower case, for what a name tells."""
        return f"{self.operator} {self.name}".lower()


def case_of(
    row: Compared,
    node: Node,
    near: Sequence[Node],
    sizes: Mapping[str, float],
    ranks: Mapping[tuple[int | None, str], list[NamedTensor]],
    epsilon: float,
    inputs_error: float,
) -> Case:
    """Load what a closer look at a row needs; tensors above ``MAX_ELEMENTS`` stay on disk."""
    before = [r for r in node.before if r.part != "parameters"]
    parameters = [*node.parameters, *(r for r in node.before if r.part == "parameters")]
    outputs = [r for n in near if n is not node for r in (*n.inputs, *n.outputs)][-_NEAR:]
    own = [r for r in (*node.inputs, *node.outputs) if r is not row]
    replicas = tuple(a for t in ranks.get((row.step, row.name), []) if (a := loaded(t)) is not None)
    t, g = row.target, row.golden
    return Case(
        loaded(t), loaded(g), row.name, node.base, node.phase, row.part, epsilon, inputs_error, dict(sizes),
        known_rows([*(r for r in own if r.part == "input"), *before]), known_rows(parameters),
        known_rows([*(r for r in own if r.part != "input"), *outputs]), replicas, row.summary,
        t.dtype if t is not None else "", g.dtype if g is not None else "",
        t.shape if t is not None else None, g.shape if g is not None else None,
    )  # fmt: skip


def elsewhere(
    row: Compared, before: Sequence[Node], step: Sequence[Node], past: Sequence[Node]
) -> Callable[[Callable[[Compared], bool]], tuple[Known, ...]]:
    """Return a search through a dump: the same tensors of the step before, weights of the step, and outputs so far.

    Parameters
    ----------
    row : Compared
        Whose cause is looked for: itself it is not found.
    before, step, past : sequence of Node
        Operators before it, nearest last; all of its step; those of the step before.
    """

    def search(test: Callable[[Compared], bool]) -> tuple[Known, ...]:
        old = [r for n in past if n.base == before[-1].base for r in (*n.inputs, *n.parameters)]
        weights = [r for n in step if n.kind == "forward" for r in n.parameters]
        made = [r for n in reversed(before) for r in (*n.outputs, *n.inputs) if r is not row]
        found = list(known_rows([r for r in old if test(r)], EARLIER))
        return (*found, *known_rows([r for r in (*weights, *made) if test(r)][:_NEAR]))

    return search


EARLIER = " of the step before"
"""Ends the name of a tensor of the step before."""


def loaded(tensor: NamedTensor | None) -> Floats | None:
    """Load a tensor in float64; None where it has no elements, or more than ``MAX_ELEMENTS``."""
    if tensor is None or tensor.shape is None or int(np.prod(tensor.shape)) > MAX_ELEMENTS:
        return None
    return wide(tensor)


def known_rows(rows: Sequence[Compared], said: str = "") -> tuple[Known, ...]:
    """Load both sides of rows, those whose golden has elements; ``said`` is added to their names."""
    found = [Known(r.name + said, loaded(r.target), loaded(r.golden)) for r in rows]
    return tuple(k for k in found if k.golden is not None)


def fingerprint(tensor: NamedTensor | None) -> object:
    """Something equal for equal tensors and hardly else: shape and four statistics, or a checksum; None if unknown."""
    if tensor is None or tensor.shape is None or tensor.kind != "tensor":
        return None
    if tensor.md5:
        return tensor.shape, tensor.md5
    s = tensor.statistics
    if s is not None and s.norm is not None:
        return tensor.shape, s.max, s.min, s.mean, s.norm
    found = wide(tensor)
    if found is None or not found.size:
        return None
    return (
        tensor.shape,
        float(found.sum()),
        float(found.max()),
        float(found.min()),
        float(np.abs(found).sum()),
    )
