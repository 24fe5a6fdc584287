"""What was done to an output that was right: rounding, factors, values changed, rows and columns moved."""
