"""How far a tensor is from its golden, and how far rounding alone may take it, given its inputs.

An output of clean inputs may be off by a few epsilons of the run's coarsest arithmetic, and by more where terms
cancel (epsilon times the norm of what was summed). Errors of inputs come out amplified, but by a bounded factor:
what exceeds both is not rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, sqrt

import numpy as np

from telekit.accuracy.compared import OUTPUT, Compared
from telekit.accuracy.measures.metrics import EMPTY
from telekit.accuracy.measures.pairs import FORMATS, Array, Floats, on_grid
from telekit.accuracy.readers.named import NamedTensor

FLOOR = 4.0  # epsilons that one operator's rounding and reduction order may cost (Megatron's bound has k = 4)
AMPLIFICATION = 8.0  # an input's error may come out so many times larger
CANCELLATION = 1.0  # epsilons of the inputs' norm, where an output is small because terms cancel
COARSE = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32")
"""Formats whose values a wider dump may hold, the coarsest first."""
_SAMPLE = 1 << 14
_DISTINCT = 16


def values(tensor: NamedTensor | None) -> Array | None:
    """Elements of a tensor, None where it has none to give."""
    if tensor is None:
        return None
    if tensor.has_data:
        return np.asarray(tensor.load())
    if tensor.kind == "scalar" and isinstance(tensor.value, (int, float)):
        return np.asarray(tensor.value, np.float64)
    return None


def wide(tensor: NamedTensor | None) -> Floats | None:
    """Elements in float64."""
    found = values(tensor)
    if found is None or found.dtype.kind in "cOSU":
        return None
    return np.asarray(found, np.float64)


def error_of(row: Compared) -> float | None:
    """Return the relative error of a row: 0 where identical, inf where it cannot be compared, None if not known.

    With elements it is the norm of the difference over golden's norm (of integers and truth values the share of
    elements that differ); with statistics the worst of their differences, each on the tensor's own scale.
    A gradient that is None on one side and zero on the other is the same.
    """
    if row.target is None or row.golden is None or "none" in (row.target.kind, row.golden.kind):
        return _absent(row)
    if row.metrics is not None:
        return _measured(row)
    if row.summary is not None:
        return _summed(row)
    if row.scalars is not None:
        return _scalar(*row.scalars)
    return 0.0 if row.identical else None


def _absent(row: Compared) -> float | None:
    t, g = row.target, row.golden
    there = g if t is None or t.kind == "none" else t
    if there is None or there.kind == "none":
        return 0.0
    if t is None or g is None:
        return 0.0 if _norm(there) == 0.0 else None
    return 0.0 if _norm(there) == 0.0 else inf


def _norm(tensor: NamedTensor) -> float | None:
    if tensor.statistics is not None and tensor.statistics.norm is not None:
        return float(tensor.statistics.norm)
    found = wide(tensor)
    return None if found is None else float(np.linalg.norm(found.ravel()))


def _measured(row: Compared) -> float | None:
    m = row.metrics
    assert m is not None
    if m.status == EMPTY or m.identical:
        return 0.0
    if m.relative_norm_error is None or m.max_abs_error is None:
        return inf
    if m.golden_dtype.startswith(("int", "uint", "bool")):
        t, g = values(row.target), values(row.golden)
        if t is not None and g is not None and t.shape == g.shape and t.size:
            return float(np.count_nonzero(t != g)) / t.size
    return m.relative_norm_error


def _summed(row: Compared) -> float | None:
    s = row.summary
    assert s is not None
    if row.target is not None and row.golden is not None and row.target.shape != row.golden.shape:
        return inf
    for k in s.golden:
        t, g = s.target[k], s.golden[k]
        if t is not None and g is not None and isfinite(t) != isfinite(g):
            return inf
    size = float(np.prod(row.golden.shape)) if row.golden is not None and row.golden.shape else 1.0
    norm, top, low = (s.golden[k] for k in ("Norm", "Max", "Min"))
    largest = max((abs(v) for v in (top, low) if v is not None and isfinite(v)), default=0.0)
    scale = {
        "Norm": norm or 0.0,
        "Max": largest,
        "Min": largest,
        "Mean": (norm or 0.0) / sqrt(max(size, 1.0)),
    }
    found = [
        abs(change) / scale[k] if scale[k] else (inf if change else 0.0)
        for k, change in s.difference.items()
        if change is not None
    ]
    return max(found, default=None)


def _scalar(target: object, golden: object) -> float:
    if target == golden or (target != target and golden != golden):  # NaN on both sides
        return 0.0
    if isinstance(target, (int, float)) and isinstance(golden, (int, float)) and golden:
        return abs(target - golden) / abs(golden) if isfinite(target) and isfinite(golden) else inf
    return inf


def resolution(tensor: NamedTensor | None) -> float | None:
    """Epsilon of the coarsest format that holds a sample of the values; of the type where there are no values.

    A dump in float32 of a bfloat16 run has bfloat16's: MindSpore widens what NumPy lacks.
    """
    if tensor is None or tensor.kind != "tensor" or tensor.dtype not in FORMATS:
        return None
    own = FORMATS[tensor.dtype].epsilon
    found = values(tensor)
    if found is None:
        return own
    sample = np.asarray(found.reshape(-1)[:_SAMPLE], np.float64)
    sample = sample[np.isfinite(sample) & (sample != 0)]
    if np.unique(np.abs(np.frexp(sample)[0])).size < _DISTINCT:
        return None
    for name in COARSE:
        if FORMATS[name].epsilon > own and representable(sample, name):
            return FORMATS[name].epsilon
    return own


def representable(sample: Floats, dtype: str) -> bool:
    """Whether every value has no more mantissa bits than a format stores."""
    return bool(on_grid(sample, dtype).all())


def run_epsilon(rows: Sequence[Compared]) -> float:
    """Epsilon of the arithmetic of a run: the coarsest that a tenth of golden's outputs, or a third of target's, show.

    One operator in a wrong type does not move it.
    """
    some = [r for r in rows if r.part == OUTPUT] or list(rows)
    some = some[:: max(1, len(some) // 200)]
    golden = sorted((e for e in (resolution(r.golden) for r in some) if e), reverse=True)
    target = sorted((e for e in (resolution(r.target) for r in some) if e), reverse=True)
    found = [s[int(len(s) * share)] for s, share in ((golden, 0.1), (target, 0.34)) if s]
    return max(found, default=FORMATS["float32"].epsilon)


def norm_of(row: Compared) -> float | None:
    """Golden's norm, where it is known."""
    if row.metrics is not None and row.metrics.golden is not None:
        return row.metrics.golden.l2norm
    if row.summary is not None:
        return row.summary.golden["Norm"]
    return None


def is_float(row: Compared) -> bool:
    """Whether golden (or target) holds floating-point numbers."""
    tensor = row.golden or row.target
    return tensor is not None and tensor.kind == "tensor" and tensor.dtype in FORMATS


def explained(epsilon: float, before: float) -> float:
    """Return the relative error that one operator's rounding explains, given that of what it was made from."""
    return FLOOR * epsilon + AMPLIFICATION * before


def limit_of(row: Compared, inputs: Sequence[Compared], inputs_error: float, epsilon: float) -> float:
    """Return what rounding explains at most of an output's relative error.

    Parameters
    ----------
    row : Compared
        The output.
    inputs : sequence of Compared
        What it was computed from.
    inputs_error : float
        Their worst relative error.
    epsilon : float
        Of the run's arithmetic.
    """
    limit = explained(epsilon, inputs_error)
    own = norm_of(row)
    size = _size(row)
    if own:
        for r in inputs:
            norm = norm_of(r)
            # an activation is no term of a gradient, nor is what is smaller than the sum, nor a mask's -1e9
            if (
                norm
                and r.phase == row.phase
                and is_float(r)
                and _size(r) >= size
                and norm / sqrt(max(_size(r), 1)) < 1e4
            ):
                limit = max(limit, CANCELLATION * (epsilon + inputs_error) * norm / own)
    return limit


def _size(row: Compared) -> int:
    shape = row.golden.shape if row.golden is not None else None
    return int(np.prod(shape)) if shape else 1
