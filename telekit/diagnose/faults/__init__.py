"""Labelled traces: a training job simulated event by event, with faults put in on purpose."""

from telekit.diagnose.faults.generate import LabelledTraces, draw_job, generate
from telekit.diagnose.faults.job import TracedJob
from telekit.diagnose.faults.kinds import FAULT_KINDS, HEALTHY, Fault, Kind, Truth, draw_fault

__all__ = [
    "FAULT_KINDS", "HEALTHY", "Fault", "Kind", "LabelledTraces", "TracedJob", "Truth", "draw_fault", "draw_job",
    "generate",
]  # fmt: skip
