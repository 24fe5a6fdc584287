"""Sequence pipelines: a micro-batch's sequence is cut into pieces that follow each other through the stages.

A piece meets the keys and values of all pieces before it, so forwards run in their order and backwards in the
opposite one; among micro-batches the first to come is the first to go back. Pieces are smaller units than
micro-batches: the bubble is that of as many micro-batches as there are pieces, and stage s of 1F1B holds
``p - s + k - 1`` pieces of k to a micro-batch, where 1F1B holds ``p - s`` micro-batches.

What is known. Seq1F1B is published (arXiv 2406.03488; github.com/thunlp/Seq1F1B, ``get_pp_rank_microbatches``).
MindSpore's ``seqpipe`` and ``seqsmartvpp`` are not described anywhere, but their source is public
(``ccsrc/frontend/parallel/pipeline_transformer/seqpipe_scheduler.cc``): with one chunk both are Seq1F1B; with
more, ``seqpipe`` warms up by two forwards a stage, as Megatron-Core's interleaved order does, and ``seqsmartvpp``
by one, the less-memory way. That is all ``seqsmartvpp`` changes in the order; the early receives with which
MindSpore hides its communication are left out here (our reading: they move no pass).

The published TeleChat3-36B run (``mindformers_telechat3/research/telechat3/telechat3-36b/
finetune_telechat3_36b.yaml``: 2 stages, 2 chunks, 4 micro-batches, ``seqpipe``) leaves MindSpore's number of
pieces, ``seq_split_num``, at 1: ``seq_1f1b(2, 4, pieces=1, chunks=2)``, which is plain interleaved 1F1B. The
105B run's ``seqsmartvpp`` with one chunk and one piece is plain 1F1B.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from telekit.errors import InputError, Problem, bad
from telekit.pipeline.interleaved import alternating, ring
from telekit.pipeline.numbers import faults
from telekit.pipeline.order import Ints, Op
from telekit.pipeline.size_rules import Rule, raise_broken
from telekit.pipeline.sizes import no_count

EVEN_RULES: tuple[Rule, ...] = (
    ("stages", "seqsmartvpp needs an even number of stages", lambda of: of["stages"] % 2 == 0),
)
"""MindSpore's ``seqsmartvpp`` counts half the stages."""


def seq_1f1b(
    stages: int, micro_batches: int, pieces: int = 2, chunks: int = 1
) -> tuple[list[list[Op]], Ints]:
    """Seq1F1B; with more than one chunk, MindSpore's ``seqpipe``.

    Stage s warms up with ``(p - 1 - s) b + (v - 1) g k + k - 1`` forwards of k pieces, where b is 1 for one
    chunk and else 2, and g is the number of micro-batches of the first group. Groups are as in MindSpore: p
    micro-batches each, what remains spread over them one by one, the first group first; fewer than p are one
    group.

    Parameters
    ----------
    stages, micro_batches : int
        Devices, micro-batches of a step; any numbers from 1.
    pieces : int
        Slices of each sequence; 1 gives 1F1B, plain or interleaved.
    chunks : int
        Model parts a device holds.

    Returns
    -------
    operations : list (stages,) of list of Op
        What each device runs.
    part : array (chunks, stages)
        Chunk v of device s is part ``v * stages + s``.

    Raises
    ------
    InputError
        For sizes that are not whole or not positive, or too many operations.
    """
    raise_broken((), stages=stages, micro_batches=micro_batches, chunks=chunks, pieces=pieces)
    return _by_pieces(stages, micro_batches, pieces, chunks, 1 if chunks == 1 else 2)


def seqsmartvpp(
    stages: int, micro_batches: int, pieces: int = 1, chunks: int = 1
) -> tuple[list[list[Op]], Ints]:
    """MindSpore's ``seqsmartvpp``: as :func:`seq_1f1b`, with one forward less a stage in the warm-up.

    Stages must be even. With one chunk the two are the same order.
    """
    raise_broken(EVEN_RULES, stages=stages, micro_batches=micro_batches, chunks=chunks, pieces=pieces)
    return _by_pieces(stages, micro_batches, pieces, chunks, 1)


def _by_pieces(
    stages: int, micro_batches: int, pieces: int, chunks: int, a_stage: int
) -> tuple[list[list[Op]], Ints]:
    count = max(micro_batches // stages, 1)
    each, more = divmod(micro_batches, count)
    groups = [each + (group < more) for group in range(count)]
    first = (chunks - 1) * groups[0] * pieces + pieces - 1
    leads = [a_stage * (stages - 1 - s) + first for s in range(stages)]
    return alternating(groups, leads, chunks, pieces), ring(stages, chunks)


def piece_shares(pieces: int, attention_share: float) -> NDArray[np.float64]:
    """Share of a pass's time that each of several equally long pieces takes under causal attention.

    Piece k of K sees its own tokens and those before it: ``(1 - a) / K + a (2 k + 1) / K^2``, where a is the
    share of the pass that core attention takes (what grows with the square of the length).

    Parameters
    ----------
    pieces : int
        K.
    attention_share : float
        a, from 0 to 1. By FLOPs about ``S / (S + 12 h)``: S tokens, dense layers of width h and feed-forward 4 h.

    Returns
    -------
    array (pieces,)
        Sum 1: ``Times(piece=...)``.

    Raises
    ------
    InputError
        For a share outside 0 to 1, or pieces that are no count.
    """
    _check(pieces, attention_share)
    cuts = np.arange(pieces + 1) / pieces
    return np.diff((1 - attention_share) * cuts + attention_share * cuts**2)


def even_pieces(seq_len: int, pieces: int, attention_share: float, multiple: int = 1) -> list[int]:
    """Lengths of pieces that take equally long under causal attention, the first the longest.

    Seq1F1B's computation-wise partition: the time up to a share x of the sequence is ``(1 - a) x + a x^2``, and
    cut k lies where that is k / K.

    Parameters
    ----------
    seq_len, pieces : int
        Tokens of a sequence, pieces.
    attention_share : float
        As in :func:`piece_shares`.
    multiple : int
        What each length is rounded to a multiple of (tensor parallelism's size under sequence parallelism).

    Returns
    -------
    list (pieces,) of int
        Tokens, which sum to ``seq_len``.

    Raises
    ------
    InputError
        When pieces of at least one multiple do not fit, or ``seq_len`` is no multiple itself.
    """
    _check(pieces, attention_share)
    counts = no_count("seq_len", seq_len) + no_count("multiple", multiple)
    if counts:
        raise InputError(counts)
    if seq_len % multiple or seq_len < pieces * multiple:
        fits = -(-max(seq_len, pieces * multiple) // multiple) * multiple
        rule = f"must be a multiple of {multiple}, and hold {pieces} pieces of at least that"
        raise bad("seq_len", seq_len, rule, f"seq_len {fits} works")
    a, time, units = attention_share, np.arange(1, pieces + 1) / pieces, seq_len // multiple
    # The root of a x^2 + (1 - a) x = time, in a form that holds for a = 0 as well.
    cuts = 2 * time / (1 - a + np.sqrt((1 - a) ** 2 + 4 * a * time))
    number = np.arange(1, pieces + 1)
    ends = np.maximum.accumulate(np.maximum(np.rint(cuts * units).astype(np.int64) - number, 0)) + number
    ends = np.minimum(ends, units - pieces + number)
    return [int(length) * multiple for length in np.diff(ends, prepend=0)]


def _check(pieces: int, attention_share: float) -> None:
    problems = no_count("pieces", pieces)
    unread = faults("attention_share", attention_share)
    if unread:
        raise InputError(problems + unread)
    if not 0 <= attention_share <= 1:
        near = "1 works" if attention_share > 1 else "0 works"
        problems.append(Problem("attention_share", attention_share, "must be from 0 to 1", near))
    if problems:
        raise InputError(problems)
