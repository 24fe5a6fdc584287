"""A layer as a list of operators and their time on a device."""
