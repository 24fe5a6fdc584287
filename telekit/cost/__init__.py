"""What one step takes: memory and time."""
