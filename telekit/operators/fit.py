"""Fit the constants of a device to measured times: one routine for rows of single operators and for whole steps.

A constant is a field of :class:`telekit.cluster.config.Device`, ``kernels.FIELD``, or ``kernels.low_precision.DTYPE``.
Errors are relative, so that short rows count as long ones; large ones are dampened, so that a few rows cannot bend it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.cluster.config import Device
from telekit.cluster.kernels import Kernels
from telekit.errors import InputError, Problem, bad
from telekit.operators.attention import FLASH_BACKWARD
from telekit.operators.efficiency import operator_times
from telekit.operators.shapes import Operator, Product
from telekit.training.config import TrainConfig

Floats = NDArray[np.float64]
Predict = Callable[[Device], Any]

RANGES: dict[str, tuple[float, float]] = {
    "gemm_efficiency": (0.2, 1.0),
    "grouped_gemm_efficiency": (0.15, 1.0),
    "attention_efficiency": (0.1, 1.0),
    "memory_efficiency": (0.3, 1.0),
    "kernels.wave_share": (1e-3, 1.0),
    "kernels.half_inner": (1.0, 2000.0),
    "kernels.attention_backward": (0.5, 1.2),
    "kernels.attention_half_keys": (1.0, 4000.0),
    "kernels.launch_s": (1e-7, 5e-5),
    "kernels.host_launch_s": (1e-6, 2e-4),
    "kernels.mixers.flash-2": (0.3, 1.0),
    "kernels.mixers.triton": (0.2, 1.0),
    "kernels.mixers.recurrence": (0.005, 1.0),
    "kernels.low_precision.fp8": (0.3, 1.3),
    "kernels.low_precision.fp4": (0.2, 1.3),
}
"""What can be fitted, and where it is looked for."""
DAMPENED_FROM = 0.1
"""Relative error from which a row counts less."""
KINDS = ("gemm", "grouped_gemm", "attention", "memory")


@dataclass(frozen=True)
class Fitted:
    """What a fit found.

    Parameters
    ----------
    device : Device
        With the constants in place.
    constants : dict of str to float
        What was fitted.
    errors : array
        Predicted over measured, less 1, of each row.
    """

    device: Device
    constants: dict[str, float]
    errors: Floats

    @property
    def mape(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.errors).mean())

    @property
    def bias(self) -> float:
        """Mean error."""
        return float(self.errors.mean())


def fit_constants(device: Device, names: Sequence[str], predict: Predict, measured_s: Any) -> Fitted:
    """Fit constants of a device so that predicted times come near measured ones.

    Parameters
    ----------
    device : Device
        Where to start, and what is not fitted.
    names : sequence of str
        Of :data:`RANGES`.
    predict : callable
        Times that a device gives, seconds, shape (n,).
    measured_s : array_like (n,)
        Seconds.

    Raises
    ------
    InputError
        For a name that cannot be fitted, times that are not positive, or fewer rows than constants.
    """
    from scipy.optimize import least_squares

    measured = np.asarray(measured_s, dtype=float)
    _check(names, measured)
    low, high = np.log(np.array([RANGES[name] for name in names])).T if names else (np.zeros(0),) * 2
    start = np.clip(np.log([max(constant(device, name), 1e-9) for name in names]), low + 1e-6, high - 1e-6)

    def residuals(logs: Floats) -> Floats:
        trial = with_constants(device, dict(zip(names, np.exp(logs).tolist(), strict=True)))
        found: Floats = np.log(np.asarray(predict(trial), dtype=float) / measured)
        return found

    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=DAMPENED_FROM, diff_step=1e-3
    )
    constants = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    best = with_constants(device, constants)
    return Fitted(best, constants, np.asarray(predict(best), dtype=float) / measured - 1.0)


def fit_rows(device: Device, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Fitted:
    """Fit constants to rows of single operators, the published ones or a user's own table.

    Parameters
    ----------
    device, names
        As for :func:`fit_constants`.
    rows : sequence of mappings
        As :func:`row_operator` reads them, each with ``time_s``.

    Raises
    ------
    InputError
        As :func:`fit_constants` and :func:`row_operator`.
    """
    read = [(row_operator(row), row.get("dtype", "bf16"), row.get("backward", False)) for row in rows]
    return fit_constants(
        device, names, lambda trial: [_row_s(trial, *one) for one in read], [row["time_s"] for row in rows]
    )


def row_operator(row: Mapping[str, Any]) -> Operator:
    """Operator of a measured row, every number in one's own table.

    ``gemm`` and ``grouped_gemm`` rows have ``m`` (rows of one group), ``k``, ``n``, and ``groups``; ``attention`` rows
    ``tokens``, ``keys``, ``heads``, ``kv_heads`` and ``head_dim``, causal, ``backward`` true for both passes together;
    ``memory`` rows ``bytes``. ``dtype`` is that of the product (bf16 when nothing is said).

    Raises
    ------
    InputError
        For another kind, or numbers that are missing.
    """
    kind = row.get("kind")
    if kind not in KINDS:
        raise bad("kind", kind, "no such kind of row", f"known: {', '.join(KINDS)}")
    try:
        if kind == "memory":
            return Operator("row", kind, (), 0.0, 0.0, float(row["bytes"]), 0.0)
        return _attention_row(row) if kind == "attention" else _product_row(row, str(kind))
    except KeyError as missing:
        raise bad(str(missing.args[0]), "missing", f"a row of kind {kind} needs it") from None


def _product_row(row: Mapping[str, Any], kind: str) -> Operator:
    groups = float(row.get("groups", 1))
    m, k, n = groups * row["m"], float(row["k"]), float(row["n"])
    width = {"fp8": 1.0, "fp4": 0.5}.get(row.get("dtype", "bf16"), 2.0)
    flops, moved = 2.0 * m * k * n, width * (m * k + groups * k * n) + 2.0 * m * n
    return Operator("row", kind, (), flops, 0.0, moved, 0.0, product=Product(m, k, n, groups))


def _attention_row(row: Mapping[str, Any]) -> Operator:
    tokens, keys, heads, width = (float(row[name]) for name in ("tokens", "keys", "heads", "head_dim"))
    flops = 4.0 * tokens * keys / 2.0 * heads * width
    moved = 2.0 * tokens * width * (2.0 * heads + 2.0 * row.get("kv_heads", heads))
    return Operator("row", "attention", (), flops, FLASH_BACKWARD * flops, moved, 3.0 * moved, keys=keys)


def _row_s(device: Device, operator: Operator, dtype: str, backward: bool) -> float:
    found = operator_times(operator, device, TrainConfig(precision=dtype))  # type: ignore[arg-type]
    return float(found.forward_s + (found.backward_s if backward else 0.0))


def constant(device: Device, name: str) -> float:
    """Value of a constant by its name."""
    record: Any = device.model_dump()
    for part in name.split("."):
        record = record.get(part, 1.0)
    return float(record)


def with_constants(device: Device, values: Mapping[str, float]) -> Device:
    """Return the device with constants in place."""
    plain = {k: v for k, v in values.items() if "." not in k}
    kernels: dict[str, Any] = {k.split(".")[1]: v for k, v in values.items() if k.count(".") == 1}
    for table in ("low_precision", "mixers"):
        start = f"kernels.{table}."
        found = {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
        if found:
            kernels[table] = {**getattr(device.kernels, table), **found}
    changed = Kernels.model_validate({**device.kernels.model_dump(), **kernels})
    return device.model_copy(update=plain | {"kernels": changed})


def _check(names: Sequence[str], measured: Floats) -> None:
    problems = [
        Problem("constant", name, "cannot be fitted", f"known: {', '.join(RANGES)}")
        for name in names
        if name not in RANGES
    ]
    if measured.ndim != 1 or not np.all(np.isfinite(measured) & (measured > 0)):
        problems.append(Problem("measured_s", "times", "must be positive numbers, one a row"))
    elif measured.size < len(names):
        problems.append(Problem("measured_s", measured.size, f"too few rows for {len(names)} constants"))
    if problems:
        raise InputError(problems)
