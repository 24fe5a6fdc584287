"""What the traces say: where time goes on a rank, which rank the others wait for, and why."""
