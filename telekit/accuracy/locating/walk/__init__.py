"""Golden's graph walked: what is off beyond rounding, what is known beside it, what kind of fault it looks like."""
