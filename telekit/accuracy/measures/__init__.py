"""Figures of two tensors: metrics by msprobe's rules, summaries, ULP, operator errors; blockwise, in float64."""
