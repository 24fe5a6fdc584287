"""Likely reasons for an error: what a source is known for, what its row leaves open, what dominates our estimate."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN = {
    "zero-3-of-2021": "DeepSpeed's ZeRO-3 of 2021 fetched parameters late; its traffic over nodes hid little",
    "mt-nlg": "a production run: input, logging and stragglers are in its step",
    "megascale": "jitter of many nodes, and recompute and micro-batch that the table does not state",
    "megascale-moe": "recompute, chunks and expert imbalance of the baseline are not stated",
    "moe-folding": "micro-batch, recompute and chunks of each method are not stated",
    "torchtitan": "a 500 W part clocks below its peak; long sequences, full recompute",
    "memory-dry-run": "recompute and layers of the stages are not stated: only the slope over EP is judged",
    "memory-torchtitan": "the allocator's reserved memory, of a compiled graph",
    "kernels-attention-h100": "two kernels of one source: forward alone at a flat 339 TFLOP/s, both passes at 410",
    "telechat": "a tutorial's speed; which grade of 910B is not stated",
}
"""What is known of a source as a whole."""

PARTS = {
    "compute": "computing: the kernels' rates on this device",
    "recompute": "recomputation: which tensors are made again",
    "host": "time to issue kernels, which differs from host to host",
    "offload": "the way to the host's memory",
    "dp_comm": "data-parallel traffic that nothing hides",
    "ep_comm": "expert traffic: what hides, and how tokens chose, is not stated",
    "bubble": "the pipeline's bubble",
    "tp_comm": "tensor-parallel traffic",
    "cp_comm": "context-parallel traffic",
    "optimizer": "the optimizer's update",
    "waiting": "waiting for the slowest device",
}
"""Parts of a step, in words; holders of memory go by their names."""

OPEN = ("not stat", "does not say", "assumed", "not say", "unverified")


def likely_reason(group: str, notes: tuple[str, ...], parts: Mapping[str, float] | None) -> str:
    """Say what may explain an error: what is known of the source, what the row leaves open, what our answer is made of.

    Parameters
    ----------
    group : str
        Of the scoreboard.
    notes : tuple of str
        Of the row.
    parts : mapping or None
        Seconds of our step, or bytes of our fullest device, by part; the largest one that computing does not make up
        is named, with its share. None for a kernel.
    """
    if parts is None:
        return KNOWN.get(group, "this shape's kernel")
    said = [KNOWN[group]] if group in KNOWN else [n for n in notes if any(word in n for word in OPEN)]
    return "; ".join([*said, _largest(parts)])


def _largest(parts: Mapping[str, float]) -> str:
    """Name the largest part; where that is computing, the next one too."""
    whole, most = sum(parts.values()), sorted(parts, key=lambda part: -parts[part])
    named = most[:2] if most[0] == "compute" else most[:1]
    return "largest in ours: " + ", ".join(
        f"{PARTS.get(one, one)} ({parts[one] / whole:.0%})" for one in named
    )
