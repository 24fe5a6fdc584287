"""Tasks with self-checks, without widgets."""
