"""A side checked by itself, exact in any precision: its inputs, its loss, its weights from step to step."""
