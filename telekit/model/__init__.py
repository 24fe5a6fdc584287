"""What is trained: architectures, their parameters and FLOPs."""
