"""The time of collective communication."""
