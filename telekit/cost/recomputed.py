"""FLOPs that recomputation repeats: what HFU counts beside MFU."""

from __future__ import annotations

from collections.abc import Iterable

from telekit.job import Job
from telekit.layout.stages import OPTIONS, assign
from telekit.operators.layer import Operator, layer_operators, mtp_entry_operators


def recomputed_flops_per_token(job: Job) -> float:
    """Forward FLOPs of a token that a backward pass repeats, as the convention ``telekit`` counts them.

    Every matrix that a token is multiplied by and the keys it really meets, of whole layers or of the modules that the
    layout recomputes, over all stages; MTP modules as the layout's layers.
    """
    model, train, layout = job.model, job.train, job.layout
    alone = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "micro_batch": 1, "expert_imbalance": 1.0}
    whole = layout.model_copy(update=alone | {"moe_expert_capacity_factor": None})
    counts, modules = assign(model, layout).counts.sum(axis=(2, 3)), frozenset(layout.recompute_modules)
    found = 0.0
    for index, kind in enumerate(model.kinds):
        operators = layer_operators(model, kind, train, whole)
        for option, name in enumerate(OPTIONS):
            found += float(counts[index, option]) * _again(operators, name, modules)
    if train.mtp and model.mtp_layers:
        block = layer_operators(model, model.mtp_block, train, whole)
        entry = mtp_entry_operators(model, train, whole) if layout.option == "full" else ()
        found += model.mtp_layers * _again((*entry, *block), layout.option, modules)
    return found / train.seq_len


def _again(operators: Iterable[Operator], option: str, modules: frozenset[str]) -> float:
    """Forward FLOPs that one layer repeats under a recompute option."""
    if option == "none":
        return 0.0
    return sum(float(op.forward_flops) for op in operators if option == "full" or modules & set(op.modules))
