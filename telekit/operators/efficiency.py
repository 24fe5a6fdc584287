"""How long an operator takes on a device: a roofline whose ceiling depends on the operator's sizes.

Each kernel costs ``launch_s``, and the longer of its memory traffic and its arithmetic. Of a matrix product, the
arithmetic is that of whole tiles in waves over the device's units, and of ``half_inner`` more steps along its inner
dimension; of attention, that of ``attention_half_keys`` more keys a query. :class:`telekit.cluster.kernels.Kernels`
has these numbers, :mod:`telekit.operators.fit` fits them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from telekit.cluster.config import Device
from telekit.operators.shapes import Operator, Product
from telekit.training.config import TrainConfig


@dataclass(frozen=True)
class Times:
    """Device time of an operator's passes; ``weight_s`` is the part of ``backward_s`` that only weights need."""

    forward_s: Any
    backward_s: Any
    weight_s: Any = 0.0


def times_s(operator: Operator, device: Device, train: TrainConfig) -> tuple[Any, Any]:
    """Forward and backward time of one operator, as :func:`operator_times`."""
    found = operator_times(operator, device, train)
    return found.forward_s, found.backward_s


def operator_times(operator: Operator, device: Device, train: TrainConfig) -> Times:
    """Time of one operator on a device.

    Attention computes in 16 bits whatever the precision of matrix products, and so do products that the recipe leaves
    alone.

    Parameters
    ----------
    operator, device, train
        What is computed, where, and in which formats.

    Returns
    -------
    Times
        Seconds, numbers or columns.
    """
    stream = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    launch = device.kernels.launch_s
    if operator.product is not None:
        return _product_times(operator, operator.product, device, train, stream)
    if operator.kind != "attention":
        return Times(operator.forward_bytes / stream + launch, operator.backward_bytes / stream + launch)
    kernel = "recurrence" if operator.name == "recurrence" else train.attention_kernel
    rate = device.peak(train.wide) * device.attention_efficiency * device.kernels.mixers.get(kernel, 1.0)
    more: Any = 1.0
    if device.kernels.attention_half_keys:
        keys = np.where(np.asarray(operator.keys) > 0, operator.keys, np.inf)
        more = 1.0 + device.kernels.attention_half_keys / keys
    forward = more * operator.forward_flops / rate
    backward = more * operator.backward_flops / (rate * device.kernels.attention_backward)
    return Times(
        np.maximum(forward, operator.forward_bytes / stream) + launch,
        np.maximum(backward, operator.backward_bytes / stream) + launch,
    )


def _product_times(
    operator: Operator, product: Product, device: Device, train: TrainConfig, stream: float
) -> Times:
    """Time of a product forward, and of its two products backward, each with its casts."""
    rows, inner, outer, groups, wide = product
    rate = product_flops_per_s(device, train.wide if wide else train.precision, operator.kind, groups)
    launch = device.kernels.launch_s
    each = rows / groups
    share = operator.forward_flops / (2.0 * rows * inner * outer)
    sizes = ((each, inner, outer), (each, outer, inner), (inner, each, outer))
    forward, back, weight = (share * tiled_flops(*size, groups, device) / rate for size in sizes)
    moved = operator.backward_bytes - operator.weight_bytes
    return _with_casts(
        operator,
        np.maximum(forward, operator.forward_bytes / stream) + launch,
        np.maximum(back, moved / stream) + launch,
        np.maximum(weight, operator.weight_bytes / stream) + launch,
        stream,
    )


def _with_casts(operator: Operator, forward: Any, back: Any, weight: Any, stream: float) -> Times:
    casts = operator.backward_cast_bytes / stream
    return Times(forward + operator.forward_cast_bytes / stream, back + weight + casts, weight)


def product_flops_per_s(device: Device, dtype: str, kind: str = "gemm", groups: Any = 1) -> Any:
    """Rate of a product that is large in every dimension; a grouped product of one matrix is a plain one."""
    share: Any = device.gemm_efficiency
    if kind == "grouped_gemm":
        share = np.where(np.asarray(groups) > 1, device.grouped_gemm_efficiency, share)
    return device.peak(dtype) * share * device.kernels.low_precision.get(dtype, 1.0)


def tiled_flops(rows: Any, inner: Any, outer: Any, groups: Any, device: Device) -> Any:
    """FLOPs that the device is busy for: whole tiles, started waves, and the way into and out of the inner loop.

    ``rows`` are those of one of ``groups`` matrices.
    """
    k = device.kernels
    if k.units == 1:
        return 2.0 * groups * rows * (inner + k.half_inner) * outer
    waves = groups * np.ceil(rows / k.tile) * np.ceil(outer / k.tile) / k.units
    busy = waves + k.wave_share * (np.ceil(waves) - waves)
    return 2.0 * k.tile * k.tile * k.units * busy * (inner + k.half_inner)
