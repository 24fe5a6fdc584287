"""A transformer in NumPy that trains on emulated ranks: clean dumps of any layout, and faults planted at will."""

from telekit.accuracy.miniature.config import Config, Layout
from telekit.accuracy.miniature.dump import dump, write_dump
from telekit.accuracy.miniature.events import Event, Fault, Point, scaled, skip, twice, with_settings
from telekit.accuracy.miniature.replicas import Replicas, replicas
from telekit.accuracy.miniature.run import Run, points, run

__all__ = [
    "Config",
    "Event",
    "Fault",
    "Layout",
    "Point",
    "Replicas",
    "Run",
    "dump",
    "points",
    "replicas",
    "run",
    "scaled",
    "skip",
    "twice",
    "with_settings",
    "write_dump",
]
