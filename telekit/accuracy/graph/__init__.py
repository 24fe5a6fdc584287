"""A dump as operators in order: what each takes and gives, and how far rounding alone may carry them apart."""
