"""Linear layers, sums, embeddings, norms and gated activations done again, and gradients that ranks hold in pieces."""
