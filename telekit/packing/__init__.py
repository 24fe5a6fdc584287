"""Documents packed into samples, and samples balanced over ranks, micro-batches and context ranks."""
