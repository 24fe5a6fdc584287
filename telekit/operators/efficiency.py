"""How long an operator takes on a device: a roofline with the device's reachable fractions."""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.cluster.config import Device
from telekit.operators.layer import Operator
from telekit.training.config import TrainConfig


def times_s(operator: Operator, device: Device, train: TrainConfig) -> tuple[Any, Any]:
    """Forward and backward time of one operator.

    The longer of its arithmetic and its memory traffic, ``max(flops / (peak * efficiency), bytes / (bandwidth *
    memory_efficiency))``, and the casts of fp8 products on top. Attention computes in 16 bits whatever the
    precision of matrix products.

    Returns
    -------
    forward_s, backward_s : float or column
    """
    rate = _flops_per_s(operator.kind, device, train)
    stream = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    if rate is None:
        return operator.forward_bytes / stream, operator.backward_bytes / stream
    forward_s = np.maximum(operator.forward_flops / rate, operator.forward_bytes / stream)
    backward_s = np.maximum(operator.backward_flops / rate, operator.backward_bytes / stream)
    return (
        forward_s + operator.forward_cast_bytes / stream,
        backward_s + operator.backward_cast_bytes / stream,
    )


def _flops_per_s(kind: str, device: Device, train: TrainConfig) -> float | None:
    wide = "bf16" if train.precision == "fp8" else train.precision
    match kind:
        case "gemm":
            return device.peak(train.precision) * device.gemm_efficiency
        case "grouped_gemm":
            return device.peak(train.precision) * device.grouped_gemm_efficiency
        case "attention":
            return device.peak(wide) * device.attention_efficiency
        case _:
            return None
