"""Attention done again: rotary embedding, scores, masks, biases, and the gradients of queries, keys and values."""
