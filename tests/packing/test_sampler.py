"""The batch sampler: the same samples in every global batch, better shared; torch's rules kept; resumed exactly."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.errors import InputError
from telekit.packing.balance import as_given
from telekit.packing.pack import concatenate
from telekit.packing.sampler import BalancedBatchSampler, even_counts
from telekit.training.documents import distribution

PACKED = concatenate(distribution("wlb-llm").sample(9000, seed=7), 8192)
WORK = PACKED.per_sample(PACKED.lengths**2)[:4000]


def all_ranks(samples, work, batch_size, replicas, **settings_):
    return [
        BalancedBatchSampler(samples, work, batch_size, replicas, r, **settings_) for r in range(replicas)
    ]


def steps(samplers, micro_batches=1):
    """Lists of every rank, one optimizer step at a time."""
    lists = [list(s) for s in samplers]
    assert len({len(of_rank) for of_rank in lists}) == 1, "ranks would wait for each other for ever"
    assert all(len(of_rank) == len(s) for of_rank, s in zip(lists, samplers, strict=True))
    for i in range(0, len(lists[0]), micro_batches):
        yield [of_rank[i : i + micro_batches] for of_rank in lists]


def flat(step):
    return [index for of_rank in step for batch in of_rank for index in batch]


def test_each_global_batch_keeps_its_samples_and_is_better_shared():
    samplers = all_ranks(4000, WORK, 4, 16, seed=5, micro_batches=2)
    order = np.random.default_rng([5, 0]).permutation(4000)
    imbalance = []
    for i, step in enumerate(steps(samplers, 2)):
        drawn = order[i * 128 : (i + 1) * 128]
        assert sorted(flat(step)) == sorted(drawn)
        assert all(len(batch) == 4 for of_rank in step for batch in of_rank)
        loads = [WORK[flat([of_rank])].sum() for of_rank in step]
        given_loads = WORK[drawn].reshape(16, 8).sum(axis=1)
        assert max(loads) <= given_loads.max()
        imbalance.append((given_loads.max() / given_loads.mean(), max(loads) / np.mean(loads)))
    assert len(imbalance) == 31
    before, after = np.mean(imbalance, axis=0)
    assert before > 1.25 and after < 1.01


def test_micro_batches_come_heaviest_first():
    for batches in all_ranks(4000, WORK, 4, 8, micro_batches=3):
        for step in steps([batches], 3):
            works = [WORK[batch].sum() for batch in step[0]]
            assert works == sorted(works, reverse=True)


@settings(max_examples=60)
@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 4),
    replicas=st.integers(1, 5),
    micro_batches=st.integers(1, 3),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_nothing_is_lost_and_no_rank_is_left_without_a_list(
    samples, batch_size, replicas, micro_batches, shuffle, data
):
    work = np.array(data.draw(st.lists(st.integers(0, 50), min_size=samples, max_size=samples)), float)
    samplers = all_ranks(
        samples, work, batch_size, replicas, micro_batches=micro_batches, shuffle=shuffle, drop_last=False
    )
    seen = []
    for step in steps(samplers, micro_batches):
        assert all(1 <= len(batch) <= batch_size for of_rank in step for batch in of_rank)
        seen += flat(step)
    assert set(seen) == set(range(samples))
    repeated = len(seen) - samples
    assert 0 <= repeated < replicas
    if samples % replicas == 0:
        assert repeated == 0
    assert len(samplers[0]) == math.ceil(samples / (batch_size * replicas))


def test_a_last_batch_is_shared_evenly_without_repeating_where_every_rank_gets_a_list():
    samplers = all_ranks(9, np.ones(9), 3, 4, drop_last=False, shuffle=False)
    (step,) = steps(samplers)
    assert sorted(flat(step)) == list(range(9))
    assert sorted(len(of_rank[0]) for of_rank in step) == [2, 2, 2, 3]
    single = all_ranks(9, np.ones(9), 1, 4, drop_last=False, shuffle=False, micro_batches=4)
    (step,) = steps(single, 4)  # three lists of one on each rank: three samples are repeated
    assert sorted(flat(step)) == sorted([*range(9), 0, 1, 2])


def test_drop_last_leaves_out_what_torch_would():
    seen = [i for step in steps(all_ranks(10, np.ones(10), 2, 2, shuffle=False)) for i in flat(step)]
    assert sorted(seen) == list(range(8))
    with pytest.raises(InputError, match="none is full"):
        BalancedBatchSampler(3, np.ones(3), 2, 2)


def test_epochs_differ_and_repeat():
    sampler = BalancedBatchSampler(40, np.arange(40.0), 4)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    other = BalancedBatchSampler(40, np.arange(40.0), 4, seed=1)
    assert list(other) != first


def test_leaving_an_epoch_early_starts_it_anew():
    sampler = BalancedBatchSampler(40, np.arange(40.0), 4)
    whole = list(sampler)
    for _ in zip(range(3), sampler, strict=False):
        pass
    assert list(sampler) == whole


@pytest.mark.parametrize("done", range(8))
def test_resuming_goes_on_where_it_stopped(done):
    kept = {"micro_batches": 3, "drop_last": False, "seed": 2}
    sampler = BalancedBatchSampler(29, WORK[:29], 2, 2, 0, **kept)
    sampler.set_epoch(4)
    whole = list(sampler)
    assert len(whole) == 8
    going = iter(sampler)
    for _ in range(done):
        next(going)
    state = json.loads(json.dumps(sampler.state_dict()))
    for rank in range(2):
        resumed = BalancedBatchSampler(29, WORK[:29], 2, 2, rank, **kept)
        resumed.load_state_dict(state)
        resumed.set_epoch(4)  # as a training loop does at the start of each epoch
        rest = list(resumed)
        assert len(rest) == 8 - done
        if rank == 0:
            assert rest == whole[done:]
        assert len(list(resumed)) == 8  # the next time through is a whole epoch


def test_a_state_says_what_was_trained_on_and_not_what_workers_drew_ahead():
    sampler = BalancedBatchSampler(40, np.arange(40.0), 4)
    whole = list(sampler)
    state = sampler.state_dict(consumed=3)
    sampler.load_state_dict(state)
    assert list(sampler) == whole[3:]
    sampler.load_state_dict(state)
    sampler.set_epoch(1)  # another epoch is gone through whole
    assert len(list(sampler)) == len(whole)
    with pytest.raises(InputError, match="from 0 to 10"):
        sampler.state_dict(consumed=11)


def test_a_state_of_other_settings_is_refused():
    state = BalancedBatchSampler(40, np.arange(40.0), 4).state_dict()
    with pytest.raises(InputError) as error:
        BalancedBatchSampler(40, np.arange(40.0), 2, 2, seed=9).load_state_dict(state)
    assert [p.field for p in error.value.problems] == ["batch_size", "replicas", "seed"]
    for wrong in ({"done": -1}, {"done": 11}, {"done": "3"}, {"epoch": None}):
        with pytest.raises(InputError):
            BalancedBatchSampler(40, np.arange(40.0), 4).load_state_dict(state | wrong)
    with pytest.raises(InputError, match="missing"):
        BalancedBatchSampler(40, np.arange(40.0), 4).load_state_dict({})


def test_work_may_be_asked_for_and_the_policy_chosen():
    asked = []

    def work(indices):
        asked.append(len(indices))
        return WORK[indices]

    by_call = list(BalancedBatchSampler(64, work, 4, 4, 1))
    assert asked == [16] * 4, "only the samples at hand are asked for"
    assert by_call == list(BalancedBatchSampler(64, WORK[:64], 4, 4, 1))

    def blocks(work, ranks, per_rank):
        return as_given(np.zeros(ranks * per_rank), ranks)

    plain = all_ranks(64, np.zeros(64), 4, 4, policy=blocks, shuffle=False)
    assert [next(iter(s)) for s in plain] == [s.tolist() for s in np.arange(16).reshape(4, 4)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"samples": 0}, "samples"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"replicas": True}, "replicas"),
        ({"micro_batches": -1}, "micro_batches"),
        ({"rank": 2}, "one of the 2 replicas"),
        ({"rank": -1}, "rank = -1: must be a whole number of 0"),
        ({"seed": -1}, "seed"),
        ({"work": np.ones(39)}, "one entry for each of 40"),
    ],
)
def test_bad_settings(wrong, said):
    with pytest.raises(InputError, match=said):
        BalancedBatchSampler(**{"samples": 40, "work": np.ones(40), "batch_size": 4, "replicas": 2} | wrong)


def test_bad_work_and_epochs():
    with pytest.raises(InputError, match="work"):
        list(BalancedBatchSampler(8, lambda indices: indices[:3], 4))
    with pytest.raises(InputError, match="finite"):
        list(BalancedBatchSampler(8, np.full(8, np.nan), 4))
    with pytest.raises(InputError, match="epoch"):
        BalancedBatchSampler(8, np.ones(8), 4).set_epoch(-1)


@given(samples=st.integers(0, 200), parts=st.integers(1, 20))
def test_even_counts(samples, parts):
    counts = even_counts(samples, parts)
    assert counts.sum() == samples and counts.max() - counts.min() <= 1 and len(counts) == parts


def test_a_loader_of_one_s_own():
    """What any loop over a batch sampler does, without torch."""
    data = [f"document {i}" for i in range(64)]
    sampler = BalancedBatchSampler(len(data), WORK[:64], 4, 4, 2)
    batches = [[data[i] for i in batch] for batch in sampler]
    assert len(batches) == len(sampler) == 4
    assert all(type(i) is int for batch in sampler for i in batch)


def test_torch_s_loader():
    data = pytest.importorskip("torch.utils.data", reason="torch is an extra")
    loaders = [
        data.DataLoader(list(range(64)), batch_sampler=sampler, collate_fn=list)
        for sampler in all_ranks(64, WORK[:64], 4, 4)
    ]
    assert len(loaders[0]) == 4
    for step in zip(*loaders, strict=True):
        assert len({index for batch in step for index in batch}) == 16
    assert sorted(index for loader in loaders for batch in loader for index in batch) == list(range(64))


def test_work_and_states_that_are_none_are_refused():
    for work in ("abcd", [[1], [2, 3], 1, 1], [1, 2, 3, float("nan")], [1, 2, -3, 4]):
        with pytest.raises(InputError, match="work"):
            BalancedBatchSampler(4, work, 1)
    for state in (None, 3, []):
        with pytest.raises(InputError, match="state"):
            BalancedBatchSampler(4, [1, 2, 3, 4], 1).load_state_dict(state)


def test_numpy_counts_give_a_state_that_json_takes():
    whole = np.int64
    one = BalancedBatchSampler(
        whole(8), np.arange(1, 9), whole(1), whole(2), whole(0), whole(2), seed=whole(3)
    )
    one.set_epoch(whole(1))
    state = json.loads(json.dumps(one.state_dict(whole(2))))
    two = BalancedBatchSampler(8, np.arange(1, 9), 1, 2, 0, 2, seed=3)
    two.load_state_dict(state)
    one.load_state_dict(state)
    assert list(one) == list(two)
