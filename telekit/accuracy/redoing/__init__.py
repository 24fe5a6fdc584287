"""Operators made again from a dump, as they should be and changed: the change that gives the target names the fault."""
