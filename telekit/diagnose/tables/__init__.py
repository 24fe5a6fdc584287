"""What tables of a run say without its traces: timers, step times, operator totals, metrics of machines."""
