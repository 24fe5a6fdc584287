"""AMD's devices: stored links against RCCL's published rows, and steps against what AMD expects of a good machine.

The steps are floors: a run passes AMD's cluster validation when it is quicker. No training row was fitted.
"""

import pytest

from telekit import estimate, load_job
from telekit.cluster.config import load_cluster

BUS_GB_PER_S = (
    0.04, 0.07, 0.15, 0.29, 0.59, 1.13, 2.22, 4.18, 7.50, 13.01, 22.41, 43.41, 82.53, 131.57, 171.46, 230.35, 266.34,
    290.81, 302.80, 308.89, 313.92, 315.06, 314.85, 316.82,
)  # fmt: skip
"""Bus bandwidth of an all-reduce among 8 MI300X, from 1 KiB on, each message twice the one before: Azure's
ND_MI300X_v5_results.md (github:samuel-bohman/AI-benchmarking-guide@3de0c294fd)."""

LARGE = {"precision": "fp8", "fp8_recipe": "delayed"}
SMALL_STATES = {"master_dtype": "bf16", "state_dtype": "bf16", "grad_dtype": "bf16"}
FSDP = {"zero": 3, "micro_batch": 5, "recompute": "full"}
FLOORS = [
    ("mi300x", 962, {"global_batch": 40, **SMALL_STATES}, FSDP),
    ("mi300x", 1472, {"global_batch": 40, **LARGE, **SMALL_STATES}, FSDP),
    ("mi300x", 1000, {"global_batch": 128, **LARGE}, {"tp": 8}),
    ("mi325x", 1100, {"global_batch": 128, **LARGE}, {"tp": 8}),
]
"""Llama-3.1-70B, 8 devices, 8,192 tokens: least tokens a second and device (github:ROCm/cvs)."""


@pytest.mark.parametrize("step", range(len(BUS_GB_PER_S)))
def test_the_stored_all_reduce_is_what_was_measured(step):
    size_bytes = 2 ** (10 + step)
    measured_s = size_bytes * 1.75 / (BUS_GB_PER_S[step] * 1e9)
    curve = load_cluster({"device": "mi300x", "nodes": 1}).tiers[0].curves["all-reduce"]
    found_s = curve.time_s("all-reduce", size_bytes, 8)
    assert found_s == pytest.approx(measured_s, rel=0.09)
    assert size_bytes < 2**24 or found_s == pytest.approx(measured_s, rel=0.04)


@pytest.mark.parametrize("device", ["mi300x", "mi325x"])
def test_a_pair_has_one_link_and_all_eight_have_seven(device):
    curves = load_cluster({"device": device, "nodes": 1}).tiers[0].curves
    rate = curves["all-gather"].bus_bandwidth_bytes_per_s
    assert rate("all-gather", 2) == pytest.approx(rate("all-gather", 8) / 7, rel=0.1)
    assert rate("all-gather", 2) < rate("all-gather", 4) < rate("all-gather", 8)
    assert curves["send-recv"].bandwidth_bytes_per_s == pytest.approx(rate("all-gather", 8) / 7, rel=0.01)


@pytest.mark.parametrize(("device", "floor", "train", "layout"), FLOORS)
def test_a_step_is_over_the_floor_and_near_it(device, floor, train, layout):
    job = {
        "model": "llama-3.1-70b",
        "cluster": {"device": device, "nodes": 1},
        "train": {"seq_len": 8192, **train},
        "layout": layout,
    }
    found = estimate(load_job(job))
    assert found.valid and found.fits
    assert floor < found.tokens_per_s_per_device < 1.2 * floor


def test_deepseek_v2_lite_gains_over_h100_what_amd_says():
    """1.29 times the tokens: the whole model fits without recompute on MI300X alone (rocm-blogs, MI300-080)."""
    rates = {}
    for device, recompute in (("h100", "full"), ("mi300x", "none")):
        job = {
            "model": "deepseek-v2-lite",
            "cluster": {"device": device, "nodes": 1},
            "train": {"seq_len": 4096, "global_batch": 256},
            "layout": {"ep": 8, "micro_batch": 4, "recompute": recompute},
        }
        rates[device] = estimate(load_job(job)).tokens_per_s_per_device
    assert rates["mi300x"] / rates["h100"] == pytest.approx(1.29, rel=0.15)
