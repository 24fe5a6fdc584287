"""Policies and what they gain: against sums by hand, brute force and each other."""

from itertools import permutations, product

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cost.estimate import estimate
from telekit.cost.layers import Site
from telekit.cost.packing_gain import llama_like, packing_gain, resized, setting_of, telechat3_36b
from telekit.cost.step import step_cost
from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import SCHEDULES, ParallelConfig
from telekit.layout.schedules import TWO_CHUNKS
from telekit.model.huggingface import load_model
from telekit.packing.gain import gain, part_of
from telekit.packing.pack import concatenate
from telekit.packing.policies import POLICIES, arrange
from telekit.packing.step import Plan, run_step
from telekit.training.config import TrainConfig
from telekit.training.documents import distribution

WLB = distribution("wlb-llm")


@pytest.fixture(scope="module")
def small():
    """TeleChat3-36B on 4 data-parallel ranks."""
    return resized(telechat3_36b(), 8192, dp=4, micro_batches=4)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_sample_runs_once(policy):
    work = np.random.default_rng(1).lognormal(size=24)
    found = arrange(policy, work, 3, 4, 2)
    assert found.shape == (3, 4, 2)
    np.testing.assert_array_equal(np.sort(found.ravel()), np.arange(24))


def test_samples_as_given_keep_their_order():
    np.testing.assert_array_equal(arrange("as given", np.ones(8), 2, 2, 2).ravel(), np.arange(8))


def test_alike_is_the_best_where_ranks_meet_in_layers():
    rng = np.random.default_rng(2)
    for _ in range(20):
        work = rng.uniform(1, 9, 6)
        own = run_step(*[work[arrange("alike", work, 3, 2)[..., 0]]] * 2, Plan(meets="layer")).step_s
        every = np.array(list(permutations(work))).reshape(-1, 3, 2)
        assert own == pytest.approx(2 * every.max(axis=1).sum(axis=1).min())


def test_optimal_is_no_worse_than_all_others():
    work = np.random.default_rng(3).lognormal(size=12)
    largest = {p: work[arrange(p, work, 3, 4)].sum(axis=(1, 2)).max() for p in POLICIES}
    assert largest["optimal"] <= min(largest.values()) * (1 + 1e-9)
    assert largest["balanced"] <= largest["as given"]


def test_a_gain_is_the_ratio_of_two_steps(small):
    setting = setting_of(small)
    found = gain(setting, WLB, ("balanced",), batches=2, seed=5, order=False)
    lengths = WLB.sample(20_000, 5)[:200]  # the same seed's first documents
    one = part_of(concatenate(lengths, 8192), 0, 16)
    forward, backward = setting.work.stages_s(one)
    work = (forward + backward).sum(axis=1).mean(axis=1)
    steps = []
    for policy in ("as given", "balanced"):
        chosen = arrange(policy, work, 4, 4)[..., 0]
        steps.append(run_step(forward[chosen], backward[chosen], setting.plan, by_part=True))
    assert found["as given"].step_s[0] == pytest.approx(steps[0].step_s, rel=1e-12)
    assert found["balanced"].speedup[0] == pytest.approx(steps[0].step_s / steps[1].step_s, rel=1e-12)
    loads = work.reshape(4, 4).sum(axis=1)
    assert found["as given"].imbalance[0] == pytest.approx(loads.max() / loads.mean())


def test_one_document_a_sample_leaves_nothing_to_gain(small):
    found = packing_gain(small, np.full(64, 8192), batches=2)
    for row in found.rows():
        assert row["speedup"] == pytest.approx(1)
        assert row["imbalance"] == pytest.approx(1)
    # the step is then the estimate's own: the same operators, transfers and schedule
    own = estimate(small).step_time_s
    assert found["as given"].step_s[0] == pytest.approx(own, rel=1e-3)


def test_spreads_are_of_the_batches(small):
    found = packing_gain(small, WLB, policies=("balanced", "by work"), batches=6)
    row = found.to_dict()["policies"][2]
    speedup = found["balanced"].speedup
    assert row["speedup"] == pytest.approx(speedup.mean())
    assert row["speedup_std"] == pytest.approx(np.std(speedup, ddof=1))
    assert row["speedup_q05"] == pytest.approx(np.quantile(speedup, 0.05))
    assert (found["balanced"].imbalance >= found.lower_bound * (1 - 1e-12)).all()
    assert "balanced" in found.text() and "5 %" in found.text()


def test_telechat3_36b_gains_more_at_32k_than_at_8k():
    rows = {}
    for seq_len in (8192, 32768, 131072):
        job = telechat3_36b(seq_len)
        answer = estimate(job)
        assert answer.fits
        assert job.train.tokens == 512 * 8192
        rows[seq_len] = packing_gain(job, WLB, policies=("balanced",), batches=10)
    assert telechat3_36b().layout.dp == 128
    means = {seq_len: found["balanced"].speedup.mean() for seq_len, found in rows.items()}
    # an independent bound: with one sum a rank, no assignment beats imbalance before over the bound by more than the
    # pipeline's ends
    for seq_len, found in rows.items():
        before, bound = found["as given"].imbalance, found.lower_bound
        assert 1 <= means[seq_len] <= (before / bound).mean() * 1.05
    assert means[32768] > means[8192] > 1.03
    assert rows[131072]["as given"].imbalance.mean() > 1.05


def _balanced(hidden, seq_len, dp):
    """Gain of a dense model of 32 layers with 8 micro-batches a rank, each rank one device."""
    train = TrainConfig(seq_len=seq_len, global_batch=8 * dp)
    cluster = load_cluster({"device": "h100", "devices": dp})
    job = Job(load_model(llama_like(32, hidden)), cluster, train, ParallelConfig(dp=dp))
    return packing_gain(job, WLB, policies=("balanced",), batches=3)["balanced"].to_dict()["speedup"]


def test_it_matters_where_documents_are_long_and_models_narrow():
    by = {
        (seq_len, hidden, dp): _balanced(hidden, seq_len, dp)
        for hidden, seq_len, dp in product((2048, 8192), (4096, 32768), (8, 32))
    }
    for hidden in (2048, 8192):
        for dp in (8, 32):
            assert by[32768, hidden, dp] > by[4096, hidden, dp] > 1
    assert by[32768, 2048, 8] > by[32768, 8192, 8]
    assert by[32768, 8192, 32] > by[32768, 8192, 8]


def test_bad_input_is_named(small):
    setting = setting_of(small)
    with pytest.raises(InputError, match="fill 1 samples; 1 batches take 16"):
        gain(setting, np.array([8192, 10]), batches=1)
    with pytest.raises(InputError, match="batches 1 works"):
        gain(setting, np.full(20, 8192), batches=2)
    with pytest.raises(InputError, match="policy = quickest"):
        gain(setting, WLB, ("quickest",))
    with pytest.raises(InputError, match="batches = 0"):
        gain(setting, WLB, batches=0)
    for work in ([float("nan")] * 6, [-1.0] * 6, np.ones(6) * 1j):
        with pytest.raises(InputError, match="work"):
            arrange("alike", work, 3, 2)
    with pytest.raises(InputError, match="2 problems"):
        arrange("alike", np.ones(6), 0, 1.5)
    with pytest.raises(InputError, match="take 6 samples"):
        arrange("balanced", np.ones(5), 3, 2)
    with pytest.raises(InputError, match="8192 times"):
        telechat3_36b(9000)
    with pytest.raises(InputError, match="was not compared"):
        gain(setting, WLB, ("balanced",), batches=1)["optimal"]
    with pytest.raises(InputError, match=r"seq_len"):
        resized(small, 0, 4, 4)


def test_what_ordering_gains_is_apart(small):
    found = packing_gain(small, WLB, policies=("balanced",), batches=4, seed=2)
    plain = packing_gain(small, WLB, policies=("balanced",), batches=4, seed=2, order=False)
    assert [it.policy for it in found.policies] == ["as given", "as given, ordered", "balanced"]
    assert [it.policy for it in plain.policies] == ["as given", "balanced"]
    np.testing.assert_array_equal(found["balanced"].unordered, plain["balanced"].speedup)
    np.testing.assert_array_equal(found["as given, ordered"].unordered, 1)
    assert (found["as given, ordered"].speedup >= 1 - 1e-12).all()
    row = found["balanced"].to_dict()
    assert row["ordering"] == pytest.approx((found["balanced"].speedup / plain["balanced"].speedup).mean())
    assert "as given, ordered" in found.text()
    assert f"{row['speedup_unordered']:.4f}" in found.text()


def llama(schedule):
    chunks = 2 if schedule in ("interleaved-1f1b", *TWO_CHUNKS) else 1
    layout = ParallelConfig(pp=4, vpp=chunks, dp=2, schedule=schedule)
    cluster = load_cluster({"device": "h100", "devices": 8})
    return Job(load_model("llama-3.1-8b"), cluster, TrainConfig(seq_len=8192, global_batch=32), layout)


def deepseek(schedule, pp, chunks):
    layout = ParallelConfig(pp=pp, vpp=chunks, ep=64, dp=1024 // pp, schedule=schedule, dispatcher="deepep")
    cluster = load_cluster({"device": "h800", "devices": 1024})
    batch = 1024 // pp * 4 * pp
    return Job(load_model("deepseek-v3"), cluster, TrainConfig(seq_len=4096, global_batch=batch), layout)


@pytest.mark.parametrize(
    "job",
    [
        *(llama(schedule) for schedule in SCHEDULES),
        deepseek("dualpipe", 16, 1),
        deepseek("dualpipe-v", 8, 2),
        deepseek("zb-h1", 8, 1),
    ],
    ids=lambda job: f"{job.model.name}-{job.layout.schedule}",
)
def test_equal_samples_take_the_cost_models_step(job):
    assert not job.problems()
    setting = setting_of(job)
    cost = step_cost(Site(job.model, job.cluster, job.train, job.layout))
    whole = concatenate(np.full(setting.samples, setting.seq_len), setting.seq_len)
    chosen = arrange("as given", np.ones(setting.samples), setting.ranks, setting.micro_batches)[..., 0]
    forward, backward = (t[chosen] for t in setting.times_s(whole))
    found = run_step(forward, backward, setting.plan, by_part=True)
    assert found.step_s == pytest.approx(float(cost.step_s), rel=1e-12)
    assert found.step_s == pytest.approx(estimate(job).step_time_s, rel=1e-12)
    assert (found.bubble_s > 0).all()
    np.testing.assert_allclose(found.busy_s + found.waiting_s + setting.plan.fixed_s, found.step_s)
    np.testing.assert_allclose(found.layer_wait_s, 0, atol=1e-9)
    assert (float(np.max(cost.hidden_s)) > 0) == setting.plan.pairs
    assert setting.plan.pairs == (job.model.name == "deepseek-v3" and "dualpipe" in job.layout.schedule)
