"""Read what someone else wrote: tensors of dumps and checkpoints, and loss curves; hostile files harm nothing."""

from telekit.accuracy.readers.curve import LossCurve
from telekit.accuracy.readers.folders import tensors
from telekit.accuracy.readers.losses import losses
from telekit.accuracy.readers.named import DumpInfo, NamedTensor, Statistics, Tensors
from telekit.accuracy.readers.problems import ReadProblem

__all__ = [
    "DumpInfo",
    "LossCurve",
    "NamedTensor",
    "ReadProblem",
    "Statistics",
    "Tensors",
    "losses",
    "tensors",
]
