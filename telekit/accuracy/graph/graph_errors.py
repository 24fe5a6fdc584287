"""How far each operator of a step is from golden, in the order of the graph: one figure a tensor, nothing judged.

``compare`` judges and ``locate`` explains; this is what they start from, and quick enough to follow a hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from telekit.accuracy.compared import BACKWARD, FORWARD, INPUT, OPTIMIZER, PARAMETERS, PARAMETERS_GRAD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards.depth import in_epsilons

GRADIENT = "gradient"
"""Phase of what a weight's gradient is, before and after its reduction over ranks."""
By = Literal["elements", "norm"]
_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True)
class GraphError:
    """One output of an operator beside golden's.

    Attributes
    ----------
    tensor : str
        Its name in the dump.
    label : str
        Where it is, without what every name has (``layers.1.self_attention.linear_proj``).
    phase : str
        forward, backward, gradient (of a weight) or optimizer.
    layer : int or None
    error : float
        Norm of the difference over golden's norm; inf where golden is zero or the shapes differ, and the target is not.
        Of a parameter after the optimizer: of its update.
    dtype : str
        Of golden.
    """

    tensor: str
    label: str
    phase: str
    layer: int | None
    error: float
    dtype: str

    def epsilons(self, dtype: str) -> float:
        """Return the error in epsilons of a format: bfloat16's is 2**-7."""
        return in_epsilons(self.error, dtype)


def graph_errors(
    target: Iterable[NamedTensor], golden: Iterable[NamedTensor], *, by: By = "elements"
) -> tuple[GraphError, ...]:
    """Return the error of every output that both dumps have, in golden's order.

    Parameters
    ----------
    target, golden : iterable of NamedTensor
        Dumps with elements, of the same steps; inputs and weights are what other operators put out, and are left out.
    by : {"elements", "norm"}
        ``norm`` is what a dump of statistics can tell: the difference of the norms alone.
    """
    own, theirs = ({(t.step, t.rank, t.name): t for t in side} for side in (target, golden))
    rows = []
    for key, g in theirs.items():
        t = own.get(key)
        if t is None or g.part in (INPUT, PARAMETERS) or not g.dtype.startswith(("float", "bfloat")):
            continue
        phase = _phase(g)
        pair = [_wide(x) for x in (t, g)]
        if phase == OPTIMIZER and g.name.endswith(".parameter"):
            before = (g.step, g.rank, g.name.replace(".output.", ".input."))
            pair = [a - _wide(side[before]) for a, side in zip(pair, (own, theirs), strict=True)]
        layer = _LAYER.search(g.name)
        error = _relative(pair[0], pair[1], by)
        rows.append(GraphError(g.name, _label(g), phase, int(layer[1]) if layer else None, error, g.dtype))
    return tuple(rows)


def first_above(errors: Iterable[GraphError], limit: float) -> GraphError | None:
    """Return the first in graph order that is further from golden than a limit."""
    return next((e for e in errors if e.error > limit), None)


def _phase(tensor: NamedTensor) -> str:
    if tensor.part == PARAMETERS_GRAD or tensor.name.startswith("Gradient."):
        return GRADIENT
    if tensor.name.startswith("Optimizer."):
        return OPTIMIZER
    return BACKWARD if f".{BACKWARD}." in tensor.name else FORWARD


def _label(tensor: NamedTensor) -> str:
    """Name the operator as a reader would: without ``Module``, ``decoder``, class, phase and call."""
    words = tensor.name.split(".")
    kind = words[0]
    if kind == "Module":
        end = next(i for i, word in enumerate(words) if word in (FORWARD, BACKWARD, PARAMETERS_GRAD))
        words = words[1 : end - 1] + (["weight"] if tensor.part == PARAMETERS_GRAD else [])
    elif kind in ("Gradient", "Optimizer"):
        end = next((i for i, word in enumerate(words) if word in ("reduce", "Adam", "step")), len(words))
        words = words[1:end] + ([words[-1]] if kind == "Optimizer" else ["reduced"])
    return ".".join(word for word in words if word != "decoder")


def _wide(tensor: NamedTensor) -> Floats:
    return np.asarray(tensor.load(), np.float64)


def _relative(target: Floats, golden: Floats, by: By) -> float:
    if target.shape != golden.shape:
        return inf
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(golden.ravel()))
        if by == "norm":
            apart = abs(float(np.linalg.norm(target.ravel())) - size)
        else:
            apart = float(np.linalg.norm((target - golden).ravel()))
    if apart == 0:
        return 0.0
    return apart / size if size and np.isfinite(apart) else inf
