"""Operator fusion: a graph of operators, which of them share a kernel, and a small machine that runs kernels."""
