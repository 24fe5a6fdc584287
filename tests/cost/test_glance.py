"""A model at a glance: bytes against the sum of their formats, a published run against its device hours."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.cost.glance import LEAN, devices_to_hold, run_s, state_bytes_per_parameter
from telekit.errors import InputError
from telekit.model.huggingface import load_model
from telekit.model.utilization import flops_per_token
from telekit.training.config import TrainConfig


@pytest.mark.parametrize(
    ("train", "bytes_"),
    [
        (TrainConfig(), 2 + 4 + 4 + 4 + 4),
        (LEAN, 2 + 2 + 4 + 4 + 4),
        (TrainConfig(precision="fp32"), 4 + 4 + 4 + 4),
        (TrainConfig(precision="fp8", state_dtype="bf16"), 2 + 4 + 4 + 2 + 2),
    ],
)
def test_states_are_the_sum_of_their_formats(train, bytes_):
    assert state_bytes_per_parameter(train) == bytes_


@given(st.integers(1, 10**13), st.integers(2**20, 2**40))
def test_so_many_devices_hold_it_and_one_fewer_does_not(parameters, memory_bytes):
    devices = devices_to_hold(parameters, memory_bytes, TrainConfig())
    assert devices * memory_bytes >= 18 * parameters * (1 - 1e-12)
    assert (devices - 1) * memory_bytes < 18 * parameters


def test_DeepSeeks_run_takes_the_hours_it_published():  # noqa: N802
    # 14.8 T tokens took 2.664 M H800 hours (the repository's README); MFU by arXiv 2505.09343, table 4
    flops = flops_per_token(load_model("deepseek-v3"), 4096, "deepseek-causal")
    hours = run_s(flops, 14.8e12, 2048, 989e12, 0.3894) * 2048 / 3600
    assert hours == pytest.approx(2.664e6, rel=0.01)


def test_Llamas_run_takes_the_FLOPs_it_published():  # noqa: N802
    # 3.8e25 FLOPs for 15.6 T tokens (arXiv 2407.21783): at a peak of 1 FLOP/s they are as many seconds
    assert run_s(6 * 405e9, 15.6e12, 1, 1.0, 1.0) == pytest.approx(3.8e25, rel=0.01)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("at", range(5))
def test_what_is_not_positive_is_refused(wrong, at):
    numbers = [1e11, 1e12, 64, 1e15, 0.4]
    numbers[at] = wrong
    with pytest.raises(InputError, match="must be a positive number"):
        run_s(*numbers)


def test_a_share_above_one_is_refused():
    with pytest.raises(InputError, match="at most 1"):
        run_s(1e11, 1e12, 64, 1e15, 40)
    with pytest.raises(InputError, match="memory_bytes"):
        devices_to_hold(10, 0, TrainConfig())
