"""WLB-LLM's schemes: queues by hand, conservation of tokens, and times against sums."""

import numpy as np
import pytest

from telekit.cost.packing_gain import setting_of
from telekit.packing.context import split, triangle
from telekit.packing.pack import concatenate
from telekit.packing.wlb import OutlierDelay, compare, fixed_length
from telekit.validation.readings import rows
from telekit.validation.wlb_llm import job_of


def test_long_documents_wait_for_one_a_micro_batch():
    delay = OutlierDelay((10, 100), 2)
    np.testing.assert_array_equal(delay.take(np.array([3, 12, 9, 150])), [3, 9])
    assert delay.tokens == 162
    np.testing.assert_array_equal(delay.take(np.array([10, 4])), [4, 12, 10])
    np.testing.assert_array_equal(delay.take(np.array([100, 5, 101])), [5, 150, 100])
    assert delay.waiting == [[], [101]]


def test_fixed_length_fills_every_sample_and_loses_nothing():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one = concatenate(rng.integers(1, 900, 60), 1000, drop_last=True)
        found = fixed_length(one, lambda n: n.astype(float) ** 2)
        assert [int(row.sum()) for row in found] == [1000] * one.samples
    pairs = [int(triangle(row).sum()) for row in found]
    before = [int(triangle(row).sum()) for row in one.rows()]
    assert max(pairs) <= max(before)


def test_one_document_a_sample_takes_what_its_operators_do():
    row = next(r for r in rows("packing") if r["id"] == "wlb_cfg_7B_65536") | {"cp": 1, "n_gpus": 16}
    setting = setting_of(job_of(row))
    runs = compare(setting, 1, np.full(16, 65536), 2, cap=1.0)
    forward, backward = (
        x.sum() / setting.plan.stages for x in setting.work.stages_s(concatenate([65536], 65536))
    )
    stage = forward + backward
    step = runs["plain-4d"].step_s
    # 1F1B of 4 equal micro-batches on 4 stages: 7 passes of the mean stage, a little more for the head's stage
    assert step[0] == pytest.approx(7 * stage, rel=0.05)
    for run in runs.values():
        np.testing.assert_allclose(run.work_imbalance, 1)
        np.testing.assert_allclose(run.pairs_imbalance, 1)
        assert run.tokens_per_s == pytest.approx(runs["plain-4d"].tokens_per_s)


def test_context_ranks_wait_for_the_busiest():
    row = next(r for r in rows("packing") if r["id"] == "wlb_cfg_550M_65536")
    setting = setting_of(job_of(row))
    mixed = np.tile([49152, 4096, 4096, 4096, 4096], 8)
    runs = compare(setting, 2, mixed, 1, levels=(2.0,), cap=1.0)
    assert split(mixed[:5], 2, "per-sequence").imbalance > 1.2
    # same samples in all three, so what WLB-LLM gains is the split by documents
    assert runs["wlb-llm"].tokens.sum() == runs["plain-4d"].tokens.sum()
    assert runs["wlb-llm"].tokens_per_s > 1.05 * runs["plain-4d"].tokens_per_s


def test_waiting_documents_are_not_lost():
    row = next(r for r in rows("packing") if r["id"] == "wlb_cfg_7B_65536")
    setting = setting_of(job_of(row))
    lengths = np.random.default_rng(1).integers(100, 40_000, 400)
    runs = compare(setting, 2, lengths, 20)
    plain, varied = (runs[s].tokens.sum() for s in ("plain-4d", "wlb-llm"))
    assert 0 <= plain - varied <= 2 * 4 * 65536  # at most what two queues and the rest hold
    assert runs["wlb-llm"].longest <= 2 * 65536
    assert runs["wlb-llm"].work_imbalance.mean() < runs["fixed-4d"].work_imbalance.mean()
