"""Which metric to look at first: the splits of a decision tree, root first.

The tree tells windows with a faulty machine from windows without one by each metric's largest z-score over machines.
Source: arXiv 2411.01791. The tree is grown by Gini impurity here, to a small depth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def metric_order(scores: Floats, faulty: Bools, depth: int = 4, least: int = 20) -> list[int]:
    """Order metrics by where they first split the tree, then those it does not use by what a split would bring.

    Parameters
    ----------
    scores : array (windows, metrics)
        Largest z-score over machines.
    faulty : array (windows,) of bool
        Whether a machine is faulty in the window.
    depth, least : int
        Levels of splits, and windows that a leaf has at least.

    Returns
    -------
    list of int
        All metrics.
    """
    splits: list[tuple[int, float, int]] = []
    _grow(scores, faulty, 0, depth, least, splits)
    order: list[int] = []
    for _, _, metric in sorted(splits, key=lambda split: (split[0], -split[1])):
        if metric not in order:
            order.append(metric)
    alone = [best_split(scores[:, [metric]], faulty, least)[0] for metric in range(scores.shape[1])]
    rest = (int(metric) for metric in np.argsort(-np.array(alone), kind="stable"))
    return order + [metric for metric in rest if metric not in order]


def _grow(
    scores: Floats, faulty: Bools, level: int, depth: int, least: int, splits: list[tuple[int, float, int]]
) -> None:
    if level == depth or faulty.all() or not faulty.any():
        return
    gain, metric, threshold = best_split(scores, faulty, least)
    if gain <= 0:
        return
    splits.append((level, gain, metric))
    below = scores[:, metric] <= threshold
    for side in (below, ~below):
        _grow(scores[side], faulty[side], level + 1, depth, least, splits)


def best_split(scores: Floats, faulty: Bools, least: int) -> tuple[float, int, float]:
    """Find the split that lowers Gini impurity, times windows, most: gain, metric, threshold; gain 0 when none does."""
    count, best = len(faulty), (0.0, 0, 0.0)
    ways = np.arange(1.0, count)
    whole = _impurity(float(faulty.sum()), count)
    for metric in range(scores.shape[1]):
        by_score = np.argsort(scores[:, metric], kind="stable")
        sorted_scores, below = scores[by_score, metric], np.cumsum(faulty[by_score], dtype=np.float64)
        left = _impurity(below[:-1], ways)
        right = _impurity(below[-1] - below[:-1], count - ways)
        gain = whole - left - right
        usable = (sorted_scores[1:] > sorted_scores[:-1]) & (ways >= least) & (count - ways >= least)
        gain[~usable] = 0.0
        at = int(gain.argmax()) if gain.size else 0
        if gain.size and gain[at] > best[0] + 1e-9:
            best = (float(gain[at]), metric, float(sorted_scores[at : at + 2].mean()))
    return best


def _impurity(faulty: Floats | float, count: Floats | float) -> Floats:
    """Gini impurity times windows: 2 n p (1 - p)."""
    return np.asarray(2.0 * np.asarray(faulty) * (np.asarray(count) - faulty) / count)
