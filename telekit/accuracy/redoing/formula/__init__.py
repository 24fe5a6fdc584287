"""What redoing stands on: formulas that golden proves, orders of axes and pieces, numbers fitted to a target."""
