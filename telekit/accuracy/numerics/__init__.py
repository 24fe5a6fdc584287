"""Operators in emulated formats and orders of summation; what a parallel layout does to rounding."""
