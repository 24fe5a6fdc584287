"""WLB-LLM's published speed-ups and imbalance, from its configurations and the lengths of its documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from telekit.cluster.config import load_cluster
from telekit.cost.packing_gain import llama_like, setting_of
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.packing.wlb import CAP, LEVELS, SCHEMES, SchemeRun, compare
from telekit.training.config import TrainConfig
from telekit.training.documents import distribution
from telekit.validation.readings import rows

BATCHES = 60
"""Global batches that a configuration is run for."""
CORNERS = (((), 1.0), (LEVELS, CAP), (LEVELS, 4.0))
"""Outlier levels and caps, which the rows leave open, that give the least and the most speed-up of 35 settings: seven
sets of levels from none to three, caps from 1 to 4."""

MODELS: dict[str, Any] = {
    "550M": llama_like(16, 1536),
    "7B": "llama-2-7b",
    "30B": llama_like(48, 7168, inner=19456),
    "70B": "llama-65b",
}
"""Shapes that stand for the paper's models, which its rows name by size alone; all assumed.

Catalog models where one of the size can be split as the row says: Llama 2 70B's 8 key/value heads do not go over TP 16,
so Llama 65B stands for 70B; Llama 33B's 52 heads do not go over TP 8. The other two have Llama's proportions and count
551 million and 30.4 billion parameters.
"""


@dataclass(frozen=True)
class WlbConfiguration:
    """One configuration of the paper, run.

    Attributes
    ----------
    id, model, context
        As in its published row.
    runs : dict of str to SchemeRun
        By scheme.
    """

    id: str
    model: str
    context: int
    runs: dict[str, SchemeRun]

    def speedup(self, scheme: str = "wlb-llm", over: str = "plain-4d") -> float:
        """Tokens a second of one scheme over another's."""
        return self.runs[scheme].tokens_per_s / self.runs[over].tokens_per_s


def job_of(row: dict[str, Any]) -> Job:
    """Job of a published configuration: 1F1B, no recompute, a global batch of PP x DP sequences."""
    layout = ParallelConfig(**{name: row[name] for name in ("tp", "cp", "pp", "dp")})
    train = TrainConfig(seq_len=row["context"], global_batch=row["pp"] * row["dp"])
    cluster = load_cluster({"device": row["gpu"].lower(), "devices": row["n_gpus"]})
    return Job(load_model(MODELS[row["model"]]), cluster, train, layout)


@cache
def configurations(
    batches: int = BATCHES, seed: int = 0, levels: tuple[float, ...] = LEVELS, cap: float = CAP
) -> tuple[WlbConfiguration, ...]:
    """Run the three schemes on every published configuration; nothing in it is fitted to the speed-ups.

    Parameters
    ----------
    batches, seed : int
        Global batches of each, and what documents are drawn with.
    levels, cap
        As in :func:`telekit.packing.wlb.compare`.
    """
    documents = distribution("wlb-llm")
    found = []
    for row in rows("packing"):
        if row["kind"] == "config" and row["id"].startswith("wlb_"):
            setting = setting_of(job_of(row))
            needed = batches * setting.samples * setting.seq_len
            lengths = documents.sample(int(1.2 * needed / documents.mean) + 200, seed)
            runs = compare(setting, row["cp"], lengths, batches, levels, cap)
            found.append(WlbConfiguration(row["id"], row["model"], row["context"], runs))
    return tuple(found)


def mean_speedup(
    found: tuple[WlbConfiguration, ...], scheme: str, over: str, context: int | None = None
) -> float:
    """Mean over configurations of one context, or of all."""
    assert scheme in SCHEMES and over in SCHEMES
    return float(np.mean([c.speedup(scheme, over) for c in found if context in (None, c.context)]))


def speedup_range(batches: int, scheme: str, over: str, context: int | None = None) -> tuple[float, float]:
    """Least and most that :func:`mean_speedup` is under what the rows leave open (:data:`CORNERS`)."""
    found = [
        mean_speedup(configurations(batches, 0, levels, cap), scheme, over, context)
        for levels, cap in CORNERS
    ]
    return min(found), max(found)


def mean_imbalance(found: tuple[WlbConfiguration, ...], scheme: str, of: str) -> float:
    """Mean over batches and configurations of ``pairs_imbalance`` or ``work_imbalance``."""
    return float(np.mean([getattr(c.runs[scheme], of).mean() for c in found]))
