"""What a valid layout does that its author may not expect: each note a predicate with its sentence.

A note is no broken rule. It says what a framework will do silently, or which framework will not do it at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from telekit.layout.case import Case
from telekit.layout.stages import even_split, reaches

VOCABULARY_UNIT = 128
"""Megatron-LM's ``--make-vocab-size-divisible-by`` when nothing is said."""


@dataclass(frozen=True)
class Note:
    """``applies(case)`` is True where the sentence that ``text(case)`` makes is worth reading; one layout only."""

    name: str
    applies: Callable[[Case], bool]
    text: Callable[[Case], str]


def padded_vocabulary(vocab_size: int, tp: Any, unit: int = 1) -> Any:
    """Entries of the vocabulary after padding to a multiple of ``unit * tp``.

    Megatron-LM pads so before it splits the embedding (``vocab_size_with_padding`` of its tokenizer module).

    Parameters
    ----------
    vocab_size : int
        Entries as the checkpoint has them.
    tp : int or column
        Tensor-parallel ranks.
    unit : int
        Further factor; Megatron-LM's default is :data:`VOCABULARY_UNIT`.
    """
    multiple = unit * tp
    return vocab_size + np.mod(-vocab_size, multiple)


def _vocabulary(case: Case) -> str:
    vocab, tp = case.model.vocab_size, case.layout.tp
    least, usual = (int(padded_vocabulary(vocab, tp, unit)) for unit in (1, VOCABULARY_UNIT))
    return (
        f"the vocabulary of {vocab:,} is padded to {least:,} for tp {tp} (to {usual:,}, a multiple of "
        f"{VOCABULARY_UNIT} * tp, where Megatron-LM is left to its default); the estimate counts it unpadded"
    )


def _uneven(case: Case) -> bool:
    layers, parts = case.model.num_layers, case.layout.pp * case.layout.vpp
    return bool(case.layout.stages == "auto" and reaches(layers, parts) and layers % parts)


def _split(case: Case) -> str:
    layers, parts = case.model.num_layers, case.layout.pp * case.layout.vpp
    split = even_split(layers, parts)
    runs = [(held, len(list(same))) for held, same in groupby(split)]
    shown = ", ".join(f"{n} times {held}" if n > 3 else ", ".join([str(held)] * n) for held, n in runs)
    return (
        f"{layers} layers over {parts} parts are uneven: [{shown}], {max(split)} at most and {sum(split)} in all, the "
        "ends, which also hold embedding and head, the lighter ones"
    )


def _sharded_gradients(case: Case) -> str:
    zero, m = case.layout.zero, case.micro_batches
    each = f"each of the {m:g} micro-batches" if case.dp_known and m == int(m) else "each micro-batch"
    what = "gradients are scattered" if zero == 2 else "parameters are gathered and gradients scattered"
    return (
        f"zero {zero} under a pipeline: {what} for {each}, as counted here; DeepSpeed's "
        "pipeline engine refuses it, Megatron-Core's distributed optimizer is zero 1 and leaves it to Megatron-FSDP"
    )


NOTES: tuple[Note, ...] = (
    Note("vocabulary", lambda c: bool(c.model.vocab_size % c.layout.tp), _vocabulary),
    Note("uneven stages", _uneven, _split),
    Note("zero under a pipeline", lambda c: c.layout.zero >= 2 and c.layout.pp > 1, _sharded_gradients),
)
"""DeepSpeed's refusal: ``deepspeed/runtime/pipe/engine.py``; Megatron-FSDP: ``megatron/training/arguments.py``."""


def notes(case: Case) -> tuple[str, ...]:
    """Every note that applies to one layout, valid or not."""
    return tuple(note.text(case) for note in NOTES if note.applies(case))
