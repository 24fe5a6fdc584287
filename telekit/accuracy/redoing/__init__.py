"""Operators made again from a dump, as they should be and changed: the change that gives the target names the fault.

``redo`` lists all that is tried. Below it, the rooms, none of which uses one before it here: ``output`` (what was
done to an output that was right), ``attention``, ``experts`` (router, choice, exchange, grouped linear layers),
``loss``, ``layers`` (linear, norm, gated, embedding), and ``formula``, on which all stand.
"""
