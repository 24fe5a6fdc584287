"""Scores made weights: softmax and sigmoid."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.measures.pairs import Floats


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(p / p.sum(axis=-1, keepdims=True))


def sigmoid(x: Floats) -> Floats:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))
