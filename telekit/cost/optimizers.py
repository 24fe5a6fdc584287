"""What an optimizer keeps: master copies, moments, and moments in factors.

==========  ==========================================================================================================
adamw       two moments a parameter (Kingma and Ba 2015)
adafactor   the second moment as a row and a column of every matrix (Shazeer and Stern 2018, without momentum)
came        one moment a parameter; second moment and confidence as rows and columns (Luo et al. 2023,
            arXiv 2307.02047; ``came_pytorch/CAME.py`` of github:yangluo7/CAME)
muon        one moment a parameter of the blocks' matrices; all else by AdamW (Jordan et al. 2024)
==========  ==========================================================================================================

Factors are fp32 whatever the moments' format; one-dimensional parameters are not factored, which is left out (norms).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from telekit.training.config import BYTES, MOMENTS, TrainConfig

FACTORS: dict[str, int] = {"adamw": 0, "adafactor": 1, "came": 2, "muon": 0}
"""How many moments of a matrix an optimizer keeps as a row and a column."""


@dataclass(frozen=True)
class Held:
    """Parameters of one device: ``dense`` and ``expert`` shards have different replicas.

    ``linear`` are those of the dense shard that are matrices of blocks (not embeddings, head, router, norms or biases);
    ``rows_and_columns`` sums both sides of every matrix, of either shard.
    """

    dense: Any
    expert: Any
    linear: Any = 0.0
    dense_rows_and_columns: Any = 0.0
    expert_rows_and_columns: Any = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: Any) -> Held:
        """Return so many of the same."""
        return Held(*(getattr(self, f.name) * factor for f in fields(self)))


def optimizer_state_bytes(train: TrainConfig, held: Held) -> Held:
    """Bytes of master copies and moments of some parameters, before ZeRO splits them: ``dense`` and ``expert``."""
    factors = 4.0 * FACTORS[train.optimizer]
    found = Held(
        held.dense * float(train.optimizer_bytes) + factors * held.dense_rows_and_columns,
        held.expert * float(train.optimizer_bytes) + factors * held.expert_rows_and_columns,
    )
    if train.optimizer != "muon":
        return found
    others = (MOMENTS["adamw"] - MOMENTS["muon"]) * float(BYTES[train.state_dtype])
    return Held(found.dense + others * (held.dense - held.linear), found.expert)
