"""telekit: the infrastructure that trains Mixture-of-Experts models, worked through in numbers.

The public face is small; each name is imported where it is first used, so ``import telekit`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "ModelConfig": "telekit.model.config",
    "load_model": "telekit.model.huggingface",
    "count": "telekit.model.count",
    "ClusterConfig": "telekit.cluster.config",
    "TrainConfig": "telekit.training.config",
    "ParallelConfig": "telekit.layout.config",
    "LayoutTable": "telekit.layout.table",
    "Job": "telekit.job",
    "load_job": "telekit.job",
    "estimate": "telekit.cost.estimate",
    "plan": "telekit.planner.search",
    "balance": "telekit.planner.sapp",
    "TelekitError": "telekit.errors",
    "InputError": "telekit.errors",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'telekit' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from telekit.cluster.config import ClusterConfig as ClusterConfig
    from telekit.cost.estimate import estimate as estimate
    from telekit.errors import InputError as InputError
    from telekit.errors import TelekitError as TelekitError
    from telekit.job import Job as Job
    from telekit.job import load_job as load_job
    from telekit.layout.config import ParallelConfig as ParallelConfig
    from telekit.layout.table import LayoutTable as LayoutTable
    from telekit.model.config import ModelConfig as ModelConfig
    from telekit.model.count import count as count
    from telekit.model.huggingface import load_model as load_model
    from telekit.planner.sapp import balance as balance
    from telekit.planner.search import plan as plan
    from telekit.training.config import TrainConfig as TrainConfig
