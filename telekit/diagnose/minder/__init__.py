"""Minder's method at work: the machine whose metrics stay unlike the others' is the faulty one.

Source: arXiv 2411.01791. One part is swapped, and said so: see :mod:`telekit.diagnose.minder.embedding`.
"""
