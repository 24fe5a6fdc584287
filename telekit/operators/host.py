"""What the host issues: operators and calls, unless recorded graphs run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit.operators.shapes import Operator
from telekit.operators.transfers import Transfer

ROUTING = ("router", "top_k")
"""Parts of a layer of experts that partial graphs hold."""


def launches(op: Operator, graphs: str) -> Any:
    """Operators that the host issues for one forward pass: none in graphs, or those of experts in partial ones."""
    experts = "moe" in op.modules and op.name not in ROUTING
    return op.launches if graphs == "none" or (graphs == "partial" and experts) else 0.0


def calls(item: Transfer, ranks: Any, graphs: str) -> tuple[Any, Any]:
    """Count calls of a collective that the host issues forward and backward; none among one rank."""
    if graphs == "full" or (graphs == "partial" and item.expert is None):
        return 0.0, 0.0
    some = np.where(np.asarray(ranks) > 1, 1.0, 0.0)
    return item.forward_calls * some, item.backward_calls * some
