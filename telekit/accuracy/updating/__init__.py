"""Weights and states after a step, made again from gradients, states and weights before it."""
