"""The embedding of a window: a linear autoencoder in place of Minder's LSTM-VAE.

Minder trains an LSTM-VAE (hidden size 4, latent size 8) on windows of 8 samples of each metric. Here the encoder is
linear: the first principal axes of healthy windows, which is what a linear VAE finds up to scale. It keeps the shape
that healthy windows have and drops the rest as noise; distances between embeddings are those between windows so
cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LinearEmbedding:
    """Principal axes of healthy windows of one metric.

    Attributes
    ----------
    mean : array (window,)
        Mean healthy window.
    axes : array (latent, window)
        Orthonormal rows, most variance first.
    """

    mean: Floats
    axes: Floats

    @staticmethod
    def fit(windows: Floats, latent: int) -> LinearEmbedding:
        """Fit to healthy windows, shape (windows, window); latent is cut to the window's length."""
        mean = windows.mean(axis=0)
        centred = windows - mean
        _, axes = np.linalg.eigh(centred.T @ centred / len(windows))
        return LinearEmbedding(mean, axes[:, ::-1].T[:latent])

    def encode(self, windows: Floats) -> Floats:
        """Embed windows of shape (..., window) into (..., latent)."""
        return (windows - self.mean) @ self.axes.T
