"""Tasks of chapter 8 and what they are checked against."""

from __future__ import annotations

from telekit.exercises.check import Feedback, choice, number

OBJECTIVES = {
    "first": "Not always: the steady part is shorter, but the pipeline also fills and drains, through every stage.",
    "second": "Not always: with many micro-batches the slowest stage sets the pace, and filling hardly counts.",
    "depends": "Right: the step is about the sum of all stages and m - 1 times the slowest; m decides.",
}
MIXTRAL = {
    "model": "mixtral-8x7b",
    "cluster": {"device": "h100", "devices": 64},
    "train": {"seq_len": 4096, "global_batch": 512},
}


def bubble(answer: float | None) -> Feedback:
    """Bubble of 1F1B with 16 equal stages and 15,360 / 128 micro-batches, in per cent of the pipeline's time."""
    stages, micro_batches = 16, 15360 // 128
    want = 100 * (stages - 1) / (micro_batches + stages - 1)
    return number(answer, want, unit="%", hint="First the micro-batches of one rank.")


def expert_weights(answer: float | None) -> Feedback:
    """Routed experts of four layers on one of 64 ranks, 16-bit weights, in GiB."""
    want = 4 * 256 / 64 * 3 * 7168 * 2048 * 2 / 2**30
    return number(answer, want, unit="GiB", hint="Sixteen experts.")


def shorter_step(answer: str | None) -> Feedback:
    """Which of two placements has the shorter step."""
    return choice(answer, "depends", OBJECTIVES)
