"""What the traces say: steps, where time goes on a rank, clocks of the ranks, and who waited for whom."""
