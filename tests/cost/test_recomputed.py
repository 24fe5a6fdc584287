"""HFU beside MFU: what is recomputed, against the named conventions and by hand."""

import pytest

from telekit.cost.estimate import estimate
from telekit.cost.recomputed import recomputed_flops_per_token
from telekit.job import load_job
from telekit.model.flops import training_flops_per_token
from telekit.model.utilization import utilization


def job(model="deepseek-v3", recompute="none", **layout):
    sizes = {
        "pp": 4,
        "ep": 8 if model == "deepseek-v3" else 1,
        "tp": 2,
        "micro_batch": 2,
        "recompute": recompute,
    }
    return load_job({"model": model, "cluster": {"device": "h800", "devices": 64},
                     "train": {"seq_len": 4096, "global_batch": 512}, "layout": sizes | layout})  # fmt: skip


@pytest.mark.parametrize("model", ["deepseek-v3", "llama-3.1-8b"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_named_choices_are_those_of_the_convention(model, recompute):
    """All keys of the split, experts' imbalance and micro-batches leave a token's FLOPs as they are."""
    it = job(model, ["core_attn"] if recompute == "selective" else recompute)
    counted = {
        name: training_flops_per_token(it.model, 4096, recompute=name, include_mtp=True)
        for name in ("none", recompute)
    }
    assert recomputed_flops_per_token(it) == pytest.approx(counted[recompute] - counted["none"], rel=1e-12)
    found = estimate(it)
    again = utilization(
        it.model,
        4096,
        found.tokens_per_s_per_device,
        it.cluster.device.peak("bf16"),
        recompute=recompute,
        mtp=True,
    )
    assert (found.mfu, found.hfu) == pytest.approx((again.mfu, again.hfu), rel=1e-12)
    assert found.hfu >= found.mfu and (found.hfu > found.mfu) == (recompute != "none")


def test_modules_count_their_own_products():
    """A feed-forward block of Llama: three matrices of 4,096 by 14,336 in each of 32 layers."""
    assert recomputed_flops_per_token(job("llama-3.1-8b", ["mlp"])) == 32 * 2 * 3 * 4096 * 14336
    assert recomputed_flops_per_token(job("llama-3.1-8b", ["layernorm"])) == 0
