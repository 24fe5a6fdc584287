"""Mycroft's method at work: ring collectives with three counters a flow, triggers, and the walk to the cause.

Source: arXiv 2509.03018. What is simulated instead of a cluster is said in :mod:`telekit.diagnose.mycroft.job`.
"""
