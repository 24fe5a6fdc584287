"""A model at a glance, before anything is laid out: bytes of its states, devices that hold them, days of a run."""

from __future__ import annotations

import math

from telekit.errors import InputError, Problem
from telekit.training.config import BYTES, TrainConfig

LEAN = TrainConfig(grad_dtype="bf16")
"""Gradients in 16 bits: 16 bytes a parameter, where the default keeps them in 32 and takes 18."""


def state_bytes_per_parameter(train: TrainConfig) -> int:
    """Bytes that training keeps for one parameter: itself, its gradient, and what the optimizer holds."""
    return train.parameter_bytes + BYTES[train.grad_dtype] + train.optimizer_bytes


def devices_to_hold(parameters: int, memory_bytes: int, train: TrainConfig) -> int:
    """Devices whose memory just holds the states of so many parameters, and nothing else.

    Parameters
    ----------
    parameters : int
        All stored ones.
    memory_bytes : int
        Memory of one device.
    train : TrainConfig
        Formats of the states.

    Raises
    ------
    InputError
        A count that is not positive.
    """
    _positive(parameters=parameters, memory_bytes=memory_bytes)
    return math.ceil(parameters * state_bytes_per_parameter(train) / memory_bytes)


def run_s(flops_per_token: float, tokens: float, devices: int, peak_flops_per_s: float, mfu: float) -> float:
    """Time of a training run, in seconds: all its FLOPs over what the devices do in a second.

    Parameters
    ----------
    flops_per_token : float
        Training FLOPs of a token, counted as ``mfu`` counts them.
    tokens : float
        Tokens of the run.
    devices : int
        Devices at work.
    peak_flops_per_s : float
        Peak of one device.
    mfu : float
        Share of the peak that becomes model FLOPs, from 0 to 1.

    Raises
    ------
    InputError
        A number that is not positive, or an MFU above 1.
    """
    _positive(
        flops_per_token=flops_per_token, tokens=tokens, devices=devices,
        peak_flops_per_s=peak_flops_per_s, mfu=mfu,
    )  # fmt: skip
    if mfu > 1:
        raise InputError([Problem("mfu", mfu, "must be a share of the peak, at most 1", "for example 0.4")])
    return flops_per_token * tokens / (devices * peak_flops_per_s * mfu)


def _positive(**numbers: float) -> None:
    wrong = [Problem(n, v, "must be a positive number") for n, v in numbers.items() if not 0 < v < math.inf]
    if wrong:
        raise InputError(wrong)
