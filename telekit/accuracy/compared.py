"""One tensor beside its golden: the row that comparing makes, and that locating and reports read."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

from telekit.accuracy.measures.metrics import Metrics
from telekit.accuracy.measures.summaries import SummaryErrors
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.standards.verdict import Part

INPUT, PARAMETERS, OUTPUT, PARAMETERS_GRAD = "input", "parameters", "output", "parameters_grad"
PARTS = (INPUT, PARAMETERS, OUTPUT, PARAMETERS_GRAD)  # msprobe's order inside an API
FORWARD, BACKWARD, OPTIMIZER, SETUP = "forward", "backward", "optimizer", "setup"


@dataclass(frozen=True)
class Compared:
    """A tensor (or scalar argument) of target and its golden, compared as far as both sides allow.

    Attributes
    ----------
    name : str
        Golden's name; target's where golden has none.
    target, golden : NamedTensor or None
        None on the side that has no such tensor.
    api : str
        Golden's operator or module as its dump wrote it, call and phase included (``Functional.conv2d.0.forward``,
        ``Module.fc.Linear.forward.0``); target's where golden has none; empty for plain tensors.
    part : str
        ``input``, ``parameters``, ``output``, ``parameters_grad``; empty for plain tensors.
    phase : str
        ``forward``, ``backward``, ``optimizer``, or empty where nothing says it.
    order : int
        Place in golden's graph: the order in which it was dumped, of the operator (all its tensors share it).
    target_order : int
        Place of the tensor in target's dump: msprobe's table has that order.
    step, rank : int or None
        Golden's.
    metrics : Metrics or None
        Where both sides have their elements.
    summary : SummaryErrors or None
        Where both sides have statistics (in a tensor dump beside the metrics).
    checksum_equal : bool or None
        Whether the dumped checksums are equal; None where a side has none.
    notes : tuple of str
        What a reader should know: how it was paired or merged, why something is missing.
    doubts : tuple of Part
        What counts in the verdict whatever the standard says of the pair: replicas that differ, ranks without it.
    """

    name: str
    target: NamedTensor | None
    golden: NamedTensor | None
    api: str = ""
    part: str = ""
    phase: str = ""
    order: int = 0
    step: int | None = None
    rank: int | None = None
    metrics: Metrics | None = None
    summary: SummaryErrors | None = None
    checksum_equal: bool | None = None
    notes: tuple[str, ...] = ()
    target_order: int = 0
    doubts: tuple[Part, ...] = ()

    @property
    def matched(self) -> bool:
        """Whether both sides have it."""
        return self.target is not None and self.golden is not None

    @property
    def scalars(self) -> tuple[object, object] | None:
        """Target's and golden's value, where both are scalar arguments (or None)."""
        t, g = self.target, self.golden
        if t is None or g is None or "tensor" in (t.kind, g.kind):
            return None
        return t.value, g.value

    @property
    def identical(self) -> bool | None:
        """Whether both sides hold the same values; None where what was dumped cannot tell.

        Elements tell, then checksums, then scalars. Statistics can only deny it: a permuted tensor has the same.
        """
        if self.metrics is not None:
            return self.metrics.identical
        if self.checksum_equal is not None:
            return self.checksum_equal
        if self.scalars is not None:
            return _same(*self.scalars)
        t, g = self.target, self.golden
        if t is not None and g is not None and t.shape != g.shape:
            return False
        if self.summary is not None and self.summary.target != self.summary.golden:
            pairs = [(self.summary.target[k], self.summary.golden[k]) for k in self.summary.target]
            if any(a is not None and b is not None and not _same(a, b) for a, b in pairs):
                return False
        return None


def _same(a: object, b: object) -> bool:
    both_nan = isinstance(a, float) and isinstance(b, float) and isnan(a) and isnan(b)
    return both_nan or a == b
