"""Same input, different output: which operator, whether it is allowed, and whether a rerun tells a broken device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from telekit.accuracy.compared import Compared
from telekit.accuracy.graph.nodes import nodes
from telekit.accuracy.graph.noise import error_of
from telekit.accuracy.measures.pairs import checked
from telekit.errors import InputError, Problem

TRANSIENT, PERSISTENT, CORRECT = "transient error", "persistent error", "correct result"
LARGE = 10.0
ABSENT = (
    "nothing differs in these dumps; dumping synchronises the device, so absence under dump is not absence: "
    "compare losses of runs without it too"
)


@dataclass(frozen=True)
class Nondeterministic:
    """An operator whose inputs are equal and whose output is not.

    ``output`` names the first such tensor; ``order_only`` says that both hold the same values in another order.
    """

    operator: str
    phase: str
    output: str
    step: int
    rank: int | None
    order_only: bool


@dataclass(frozen=True)
class DiffCheck:
    """What two dumps of one run say.

    Attributes
    ----------
    found : tuple of Nondeterministic
        In graph order; the first one is the place to look.
    undecided : int
        Operators whose inputs cannot be told equal with what was dumped.
    text : str
        In words.
    """

    found: tuple[Nondeterministic, ...]
    undecided: int
    text: str

    @property
    def first(self) -> Nondeterministic | None:
        """The first operator, or None."""
        return self.found[0] if self.found else None


def diff_check(rows: Sequence[Compared]) -> DiffCheck:
    """Find operators that are not deterministic in two dumps of the same run.

    An output counts only if all inputs are equal to the bit and the output is not, at equal shape.

    Parameters
    ----------
    rows : sequence of Compared
        Of two dumps of the same step: with elements or checksums.

    Notes
    -----
    msprobe's diff_check. A checksum tells -0.0 from 0.0, elements do not.
    """
    found, undecided = [], 0
    for node in nodes(rows):
        before = [r.identical for r in (*node.inputs, *node.parameters, *node.before)]
        if not before or any(v is None for v in before):
            undecided += bool(node.outputs)
            continue
        if not all(before):
            continue
        for row in node.outputs:
            same = row.target is not None and row.golden is not None and row.target.shape == row.golden.shape
            if row.identical is False and same:
                found.append(
                    Nondeterministic(node.base, node.phase, row.name, node.step, node.rank, _order_only(row))
                )
                break
    if not found:
        return DiffCheck((), undecided, ABSENT)
    one = found[0]
    how = "the same values in another order" if one.order_only else "other values"
    text = f"{one.operator} ({one.phase}) gives {how} for equal inputs: {one.output}"
    return DiffCheck(tuple(found), undecided, text)


def _order_only(row: Compared) -> bool:
    assert row.target is not None and row.golden is not None
    if not (row.target.has_data and row.golden.has_data) or not error_of(row):
        return False
    a, b = (np.sort(np.asarray(t.load()).ravel()) for t in (row.target, row.golden))
    return bool(np.array_equal(a, b))


def same_set(target: Any, golden: Any) -> bool:
    """Whether each row holds the same values in any order: what ``topk(sorted=False)`` promises."""
    a, b = checked(target, golden)
    return a.shape == b.shape and bool(np.array_equal(np.sort(a, axis=-1), np.sort(b, axis=-1)))


@dataclass(frozen=True)
class Scatter:
    """Whether results of a scatter with repeated indices are all allowed.

    ``repeated`` are the places written more than once; ``illegal`` those whose value nobody wrote there.
    """

    legal: bool
    repeated: tuple[int, ...]
    illegal: tuple[int, ...]
    text: str


def check_scatter(base: Any, index: Any, source: Any, results: Sequence[Any]) -> Scatter:
    """Check results of ``base[index] = source`` on several devices: any of the values written to a place may stay.

    Parameters
    ----------
    base, index, source : array_like, one dimension
        What was there, where and what was written.
    results : sequence of array_like
        One for each device.

    Raises
    ------
    InputError
        Lengths differ, or an index is outside.

    Notes
    -----
    PyTorch issue 88096: both answers are legal, and deterministic mode does not refuse them.
    """
    start, where, what = (np.asarray(x).ravel() for x in (base, index, source))
    problems = []
    if where.size != what.size:
        problems.append(Problem("index", where.size, f"must have source's length {what.size}"))
    elif where.size and (where.min() < 0 or where.max() >= start.size):
        problems.append(Problem("index", int(where.max()), f"must be from 0 to {start.size - 1}"))
    outs = [np.asarray(r).ravel() for r in results]
    problems += [
        Problem(f"results[{i}]", r.size, f"must have base's length {start.size}")
        for i, r in enumerate(outs)
        if r.size != start.size
    ]
    if problems:
        raise InputError(problems)
    allowed = [set(what[where == i].tolist()) or {start[i].item()} for i in range(start.size)]
    illegal = tuple(i for i in range(start.size) if any(r[i].item() not in allowed[i] for r in outs))
    count = np.bincount(where, minlength=start.size)
    repeated = tuple(int(i) for i in np.flatnonzero(count > 1))
    if illegal:
        text = f"places {illegal} hold what was never written there"
    elif repeated:
        text = f"places {repeated} are written more than once: undefined order, every answer is allowed"
    else:
        text = "no place is written twice: answers must be equal"
    return Scatter(not illegal, repeated, illegal, text)


@dataclass(frozen=True)
class Rerun:
    """The verdict of running a suspicious step again.

    ``verdict`` is transient error, persistent error or correct result; ``runs`` how many reruns it took.
    """

    verdict: str
    runs: int
    text: str


def rerun(
    suspicious: float, again: Callable[[], float], elsewhere: Callable[[], float] | None = None
) -> Rerun:
    """Tell silent corruption from a result that is odd but right, as Megatron's rerun machine does.

    Parameters
    ----------
    suspicious : float
        The result that was rejected.
    again : callable
        Does the step again in place.
    elsewhere : callable, optional
        Does it on another device, after a restart from a checkpoint.

    Returns
    -------
    Rerun
        Not the same in place: transient. The same in place and not elsewhere: persistent, of this device. The same
        elsewhere: a correct result. Without ``elsewhere`` a reproduced result stays open.

    Notes
    -----
    NVIDIA/Megatron-LM ``core/rerun_state_machine.py``; it needs a deterministic step.
    """
    if not _same(again(), suspicious):
        return Rerun(TRANSIENT, 1, "not reproduced in place: a transient fault of this device")
    if elsewhere is None:
        return Rerun(
            "reproduced", 1, "reproduced in place: run it on another device from a checkpoint to tell"
        )
    if not _same(elsewhere(), suspicious):
        return Rerun(PERSISTENT, 2, "reproduced in place, not on another device: this device is faulty")
    return Rerun(
        CORRECT, 2, "reproduced on another device: the result is right, the data or the model is odd"
    )


def _same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


@dataclass
class Watch:
    """Results so far, to call the next one unexpectedly large.

    Parameters
    ----------
    threshold : float
        Times the largest so far.
    """

    threshold: float = LARGE
    largest: float | None = None

    def unexpected(self, value: float) -> bool:
        """Whether a value is NaN, Inf or ``threshold`` times the largest before it; else it joins them."""
        if not isfinite(value):
            return True
        if self.largest is not None and abs(value) >= self.threshold * self.largest:
            return True
        self.largest = max(self.largest or 0.0, abs(value))
        return False


def first_stale(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Name gradients of a step that hold the step before's values to the bit: a buffer that was not refreshed.

    Parameters
    ----------
    before, after : dict of str to array_like
        Gradients by parameter, of two steps one after the other. All-zero ones are left out.
    """
    found = []
    for name, value in after.items():
        if name in before:
            a, b = np.asarray(before[name]), np.asarray(value)
            if a.shape == b.shape and b.any() and np.array_equal(a, b):
                found.append(name)
    return tuple(found)
