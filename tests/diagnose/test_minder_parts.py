"""Minder's parts: aligning and filling, the embedding, distances, z-scores, and the order of metrics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from telekit.diagnose.minder.detect import Rules, detect
from telekit.diagnose.minder.embedding import LinearEmbedding
from telekit.diagnose.minder.evaluate import Scores
from telekit.diagnose.minder.generate import FAULT_KINDS, METRICS, MachineFault, draw_fault, generate
from telekit.diagnose.minder.metrics import MachineMetrics, align
from telekit.diagnose.minder.model import mean_distances, moving_mean, train, z_scores
from telekit.diagnose.minder.priority import best_split, metric_order
from telekit.errors import InputError


def _one(values):
    return MachineMetrics(("m",), tuple("abcdef"[: len(values)]), np.array([values], dtype=float))


@given(arrays(float, (2, 30), elements=st.sampled_from([np.nan] * 12 + [1.0, 2.0])))
def test_filling_takes_the_nearest_sample_and_the_earlier_of_two(values):
    filled = _one(values).filled("m")
    for row, found in zip(values, filled, strict=True):
        known = np.flatnonzero(np.isfinite(row))
        for at in range(row.size):
            nearest = min(known, key=lambda k: (abs(k - at), k)) if known.size else 10**6
            if abs(nearest - at) <= 8:
                assert found[at] == row[nearest]
            else:
                assert np.isnan(found[at])


def test_align_rounds_to_the_grid_and_keeps_the_last_of_two():
    time_s = [10.2, 11.0, 12.4, 12.3, 14.0, 11.1, 13.0]
    machine = ["a", "a", "a", "a", "a", "b", "b"]
    found = align(time_s, machine, ["cpu"] * 7, [1, 2, 4, 3, 5, 7, np.nan])
    assert (found.names, found.machines, found.start_s, found.period_s) == (("cpu",), ("a", "b"), 10, 1)
    nan = np.nan
    np.testing.assert_array_equal(found.values[0], [[1, 2, 4, nan, 5], [nan, 7, nan, nan, nan]])
    np.testing.assert_array_equal(found.filled("cpu"), [[1, 2, 4, 4, 5], [7] * 5])
    part = found.between(11, 13)
    assert part.start_s == 11 and part.values.shape == (1, 2, 2)
    assert found.without({"a"}).machines == ("b",)


def test_align_refuses_what_it_cannot_place():
    with pytest.raises(InputError, match="one length"):
        align([1.0], ["a", "b"], ["m"], [1.0])
    with pytest.raises(InputError, match="period_s"):
        align([0.0, 1e12], ["a", "a"], ["m", "m"], [1.0, 1.0])
    with pytest.raises(InputError, match="2 problems"):
        align([np.inf], ["a"], ["m"], [1.0], period_s=0)


def test_embedding_is_the_leading_right_singular_vectors():
    windows = np.random.default_rng(0).normal(size=(200, 8)) * np.arange(1, 9)
    fitted = LinearEmbedding.fit(windows, 3)
    centred = windows - windows.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(abs((fitted.axes * axes[:3]).sum(axis=1)), 1, rtol=1e-9)
    rebuilt = fitted.encode(windows) @ fitted.axes + fitted.mean
    assert np.mean((rebuilt - windows) ** 2) == pytest.approx((sizes[3:] ** 2).sum() / windows.size)


def test_mean_distances_equal_brute_force():
    embedded = np.random.default_rng(1).normal(size=(5, 7, 3)) + 1000
    found = mean_distances(embedded)
    for window in range(5):
        for machine in range(7):
            apart = np.linalg.norm(embedded[window] - embedded[window, machine], axis=1)
            assert found[window, machine] == pytest.approx(apart.sum() / 6, rel=1e-9)


@pytest.mark.parametrize(("machines", "outliers"), [(4, 1), (10, 1), (16, 2), (40, 5)])
def test_equal_outliers_have_the_z_score_that_the_threshold_counts_on(machines, outliers):
    distances = np.zeros((1, machines))
    distances[0, :outliers] = 3.0
    top = z_scores(distances)[0, 0]
    assert top == pytest.approx(np.sqrt((machines - outliers) / outliers))
    if outliers <= 2:
        assert Rules(threshold=100).threshold_of(machines) < top


def test_z_scores_of_machines_all_alike_are_zero():
    assert not z_scores(np.full((3, 5), 0.7)).any()


def test_absent_machines_are_left_out_of_distances_and_scores():
    rng = np.random.default_rng(3)
    embedded = rng.normal(size=(6, 5, 3))
    gone = rng.random((6, 5)) < 0.3
    embedded[gone] = np.nan
    distances = mean_distances(embedded)
    scores = z_scores(distances)
    for window in range(6):
        here = np.flatnonzero(~gone[window])
        alone = mean_distances(embedded[window : window + 1, here])
        np.testing.assert_allclose(distances[window, here], alone[0])
        np.testing.assert_allclose(scores[window, here], z_scores(alone)[0])
    assert np.isnan(distances[gone]).all() and np.isnan(scores[gone]).all()


def test_silences_are_what_cannot_be_filled():
    values = np.ones((2, 3, 60))
    values[:, 0, 20:37] = np.nan  # 17 samples: the one in the middle is 9 away from both
    values[:, 1, 20:36] = np.nan
    values[0, 2, 10:50] = np.nan  # of one metric alone
    metrics = MachineMetrics(("a", "b"), ("x", "y", "z"), values, 100.0, 2.0)
    assert metrics.silences() == (("x", 140.0, 174.0),)
    assert np.isnan(metrics.filled("a")).sum(axis=1).tolist() == [1, 0, 24]
    values[:, 1, 41:] = np.nan
    assert MachineMetrics(("a", "b"), ("x", "y", "z"), values).silences() == (("x", 20, 37), ("y", 41, None))


def test_moving_mean_passes_over_what_is_missing():
    values = np.array([1.0, np.nan, 3.0, np.nan, np.nan, 5.0])[:, None]
    np.testing.assert_allclose(moving_mean(values, 2)[:, 0], [1, 3, 3, np.nan, 5])


def test_moving_mean_equals_brute_force():
    values = np.random.default_rng(2).normal(size=(20, 2))
    np.testing.assert_allclose(moving_mean(values, 6), [values[i : i + 6].mean(axis=0) for i in range(15)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_best_split_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    scores, faulty = rng.integers(0, 6, (25, 3)).astype(float), rng.random(25) < 0.5

    def gini(part):
        share = part.mean() if part.size else 0.0
        return 2 * part.size * share * (1 - share)

    gains = [0.0]
    for metric in range(3):
        for cut in np.unique(scores[:, metric])[:-1]:
            low = scores[:, metric] <= cut
            if 4 <= low.sum() <= 21:
                gains.append(gini(faulty) - gini(faulty[low]) - gini(faulty[~low]))
    gain, metric, threshold = best_split(scores, faulty, 4)
    assert gain == pytest.approx(max(gains), abs=1e-9)
    if gain:
        low = scores[:, metric] <= threshold
        assert gini(faulty) - gini(faulty[low]) - gini(faulty[~low]) == pytest.approx(gain)


def test_the_metric_that_tells_most_is_the_root():
    rng = np.random.default_rng(3)
    faulty = rng.random(600) < 0.5
    scores = rng.normal(2, 0.5, (600, 4))
    scores[:, 2] += 3 * faulty
    scores[:, 1] += 1 * faulty
    assert metric_order(scores, faulty)[0] == 2
    assert sorted(metric_order(scores, faulty)) == [0, 1, 2, 3]
    assert metric_order(scores, np.zeros(600, dtype=bool)) == [0, 1, 2, 3]


def test_published_f1_follows_from_published_precision_and_recall():
    precision, recall = 0.904, 0.883  # arXiv 2411.01791
    assert 2 * precision * recall / (precision + recall) == pytest.approx(0.893, abs=0.0005)
    ours = Scores(right=904 * 883, wrong=96 * 883, missed=904 * 117)
    assert (ours.precision, ours.recall) == (pytest.approx(precision), pytest.approx(recall))
    assert ours.f1 == pytest.approx(0.893, abs=0.0005)


def test_scores_without_anything_to_find():
    assert Scores(0, 0, 0).precision == Scores(0, 0, 0).recall == 1


def test_generator_is_its_seed_and_moves_only_the_faulty_machine_apart():
    fault = MachineFault("gpu-drop", 3, 100, 400)
    run, again = generate(6, 500, fault, seed=5), generate(6, 500, fault, seed=5)
    np.testing.assert_array_equal(run.metrics.values, again.metrics.values)
    assert run.faulty == {"machine-3"} and run.metrics.values.shape == (len(METRICS), 6, 500)
    assert set(draw_fault(s).kind for s in range(80)) == set(FAULT_KINDS)
    share = np.isnan(generate(6, 900, missing=0.2, seed=1).metrics.values).mean()
    assert share == pytest.approx(0.2, abs=0.02)


def test_every_effect_names_a_metric():
    assert {name for effects in FAULT_KINDS.values() for name in effects} <= set(METRICS)


def test_bad_inputs_are_named():
    with pytest.raises(InputError, match=r"fault\.kind.*\n.*fault\.machine"):
        generate(4, 100, MachineFault("rust", 9, 0, 10))
    with pytest.raises(InputError, match="healthy"):
        train([])
    model = train([generate(4, 100, seed=0).metrics])
    few = generate(2, 100, seed=0).metrics
    with pytest.raises(InputError, match="3 machines"):
        detect(model, few)
    with pytest.raises(InputError, match="known to the model"):
        detect(model, _one(np.zeros((4, 20))))
    with pytest.raises(InputError, match="shape"):
        MachineMetrics(("m",), ("a",), np.zeros((2, 1, 5)))
    with pytest.raises(InputError, match="rules"):
        Rules(steadiness=0)
