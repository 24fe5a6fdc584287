"""Is it the same? Two dumps, two checkpoints or two loss curves, compared by named standards."""
