"""Work of documents and of packed samples: what is the same for every token, and what grows with a document's length.

Everything but mixing tokens costs a sample the same whatever its documents, for a sample is always computed at its
full length. Mixing goes document by document, each at the roofline of its own (:mod:`telekit.packing.mixers`). Both
are those of :mod:`telekit.operators`, with transfers, recomputation and the layers of each pipeline stage, so that a
sample of one document takes what the cost of its layers says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from telekit.cluster.config import ClusterConfig
from telekit.comm.transfers import group, transfer_s
from telekit.errors import bad
from telekit.job import Job
from telekit.layout.case import filled
from telekit.layout.stages import OPTIONS, assign
from telekit.model.config import LayerKind, ModelConfig
from telekit.operators import host
from telekit.operators.efficiency import times_s
from telekit.operators.layer import (
    Operator,
    embedding_operators,
    head_operators,
    layer_operators,
    mtp_entry_operators,
)
from telekit.operators.transfers import (
    EXPERT_GROUPS,
    Transfer,
    embedding_transfers,
    head_transfers,
    layer_transfers,
)
from telekit.packing.inputs import Floats, Ints
from telekit.packing.mixers import MIXING, Mixer, mixers
from telekit.training.config import TrainConfig
from telekit.training.documents import checked_lengths

FURTHEST = 2**26
"""Tokens up to which a crossover is looked for."""
_RING = "core_attention"


@dataclass(frozen=True)
class Pass:
    """One pass of a layer over one sample, its mixing apart; seconds.

    Parameters
    ----------
    rest_s : float
        Operators that do not mix tokens.
    mixes : tuple of bool
        Which of the layer's mixers run in it.
    open_s, ring_s, expert_s : float
        Transfers that nothing hides; that hide behind attention; of tokens to experts.
    issue_s : float
        What the host takes to issue it all.
    """

    rest_s: float
    mixes: tuple[bool, ...]
    open_s: float
    ring_s: float
    expert_s: float
    issue_s: float = 0.0


@dataclass(frozen=True)
class Block:
    """One kind of layer, or an end of the model: mixers, passes, and whether computing hides experts' traffic."""

    name: str
    mixers: tuple[Mixer, ...]
    forward: Pass
    backward: Pass
    again: Pass
    overlap: bool
    overlap_share: float = 0.0
    launch_s: float = 0.0

    def passes(self, option: int) -> tuple[Pass, ...]:
        """List what the backward pass repeats of the forward pass, by recompute option."""
        return {"none": (), "selective": (self.again,), "full": (self.forward,)}[OPTIONS[option]]

    def seconds(self, found: Pass, mixed: list[Any], share: Any) -> Any:
        """Time of a pass; ``mixed`` is that of each mixer, ``share`` the part of a sample's tokens."""
        used = [m for m, runs in zip(mixed, found.mixes, strict=True) if runs]
        names = [m.name for m, runs in zip(self.mixers, found.mixes, strict=True) if runs]
        computing = found.rest_s * share + sum(used, 0.0)
        cover = sum((m for m, name in zip(used, names, strict=True) if name == _RING), 0.0)
        ring = np.maximum(found.ring_s * share - cover - names.count(_RING) * self.launch_s * share, 0.0)
        expert = found.expert_s * share
        if self.overlap:
            beside = np.minimum(expert, computing)
            expert = expert - beside + self.overlap_share * beside
        return np.maximum(computing + found.open_s * share + ring + expert, found.issue_s * share)


@dataclass(frozen=True)
class WorkModel:
    """Seconds of documents and of samples on a device of a pipeline stage, the mean over stages unless said.

    Parameters
    ----------
    blocks : tuple of Block
        Kinds of layers, then the ends of the model.
    counts : (blocks, options, chunks, stages) array
        Layers of each kind under each recompute option, by chunk and stage.
    seq_len : int
        Tokens of a sample.
    """

    blocks: tuple[Block, ...]
    counts: Floats
    seq_len: int

    @classmethod
    def of(
        cls,
        model: ModelConfig | Job,
        cluster: ClusterConfig | None = None,
        train: TrainConfig | None = None,
        layout: Any = None,
    ) -> WorkModel:
        """Read off the operators of a job, or of its four parts (one layout, not a table).

        Raises
        ------
        InputError
            When a part is missing.
        """
        if isinstance(model, Job):
            return cls.of(model.model, model.cluster, model.train, model.layout)
        if cluster is None or train is None or layout is None:
            raise bad("work", "parts missing", "needs a job, or a model, a cluster, training and a layout")
        layout = layout if layout.dp is not None else filled(layout, (), cluster.devices)
        placed = assign(model, layout)
        read = _Reader(model, cluster, train, layout)
        ends = (read.embedding(), read.head(), *((read.module(),) if train.mtp and model.mtp_layers else ()))
        counts = np.zeros((len(model.kinds) + len(ends), *placed.counts.shape[1:]))
        counts[: len(model.kinds)] = placed.counts
        first, last, modules = len(model.kinds), placed.head, model.mtp_layers if len(ends) > 2 else 0
        counts[(first, 0, *placed.embedding)] = 1
        counts[(first + 1, 0, *last)] = 1 + modules  # each module runs the head again
        if modules:
            counts[(first + 2, OPTIONS.index(layout.option), *last)] = modules
        kinds = [read.layer(kind, f"layer {at}") for at, kind in enumerate(model.kinds)]
        return cls((*kinds, *ends), counts, train.seq_len)

    def forward_s(self, lengths: ArrayLike) -> Floats:
        """Forward time of each document, with its share of what all tokens of a sample cost, shape (documents,).

        Raises
        ------
        InputError
            For lengths that are no positive whole numbers.
        """
        return self._of_documents(lengths)[0]

    def backward_s(self, lengths: ArrayLike) -> Floats:
        """Backward time of each document, recomputation included, shape (documents,); errors as ``forward_s``."""
        return self._of_documents(lengths)[1]

    def seconds(self, lengths: ArrayLike) -> Floats:
        """Forward and backward time of each document, shape (documents,); errors as ``forward_s``.

        These add up to :meth:`sample_s`, less what transfers hide behind the computing of other documents.
        """
        forward, backward = self._of_documents(lengths)
        return forward + backward

    def mixing_s(self, lengths: ArrayLike) -> tuple[Floats, Floats]:
        """Mixing alone: forward and backward time (recomputation included) of each document."""
        found = checked_lengths(lengths)
        forward, backward = np.zeros(found.shape), np.zeros(found.shape)
        for block, counts in zip(self.blocks, self._mean_counts, strict=True):
            for at, mixer in enumerate(block.mixers):
                once, back = mixer.seconds(found)
                repeats = sum(
                    n * p.mixes[at] for option, n in enumerate(counts) for p in block.passes(option)
                )
                forward += counts.sum() * once
                backward += counts.sum() * back + repeats * once
        return forward, backward

    def sample_s(self, packed: Any) -> Floats:
        """Forward and backward time of packed samples, shape (samples,).

        Parameters
        ----------
        packed : Packed
            Samples of the ``seq_len`` that this was made for; padding costs what tokens do, but mixes nothing.

        Raises
        ------
        InputError
            For samples of another length.
        """
        forward, backward = self.stages_s(packed)
        return np.asarray((forward + backward).sum(axis=1).mean(axis=1))

    def stages_s(self, packed: Any) -> tuple[Floats, Floats]:
        """Forward and backward time of packed samples by chunk and stage, both (samples, chunks, stages).

        Raises
        ------
        InputError
            As :meth:`sample_s`.
        """
        if packed.seq_len != self.seq_len:
            rule = f"the work was made for samples of {self.seq_len} tokens"
            raise bad("packed.seq_len", packed.seq_len, rule, f"{self.seq_len} works")

        def summed(each: Floats) -> Floats:
            return np.bincount(packed.sample, weights=each, minlength=packed.samples).astype(float)

        shape = (packed.samples, *self.counts.shape[2:])
        forward, backward = np.zeros(shape), np.zeros(shape)
        for block, counts in zip(self.blocks, self.counts, strict=True):
            found = [mixer.seconds(packed.lengths) for mixer in block.mixers]
            mixed = [summed(f) for f, _ in found], [summed(b) for _, b in found]
            once, options = _times(block, mixed, np.ones(packed.samples))
            forward += once[:, None, None] * counts.sum(axis=0)
            for option, time in enumerate(options):
                backward += time[:, None, None] * counts[option]
        return forward, backward

    @property
    def token_s(self) -> float:
        """Seconds of a token apart from mixing, in a sample of one document."""
        whole = np.array([self.seq_len])
        return float((self.seconds(whole) - np.add(*self.mixing_s(whole)))[0] / self.seq_len)

    @cached_property
    def crossover(self) -> float:
        """Length of document at which mixing takes as long as all else; infinite where it does at none."""
        rest = self.token_s

        def ahead(lengths: Ints) -> Any:
            return np.add(*self.mixing_s(lengths)) >= rest * lengths

        grid = np.unique(np.geomspace(1, FURTHEST, 4096).astype(np.int64))
        passed = np.flatnonzero(ahead(grid))
        if not passed.size:
            return float("inf")
        high = int(grid[passed[0]])
        low = int(grid[passed[0] - 1]) if passed[0] else 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if ahead(np.array([middle]))[0] else (middle, high)
        return float(high)

    @property
    def coefficient(self) -> float:
        """Tokens ``c`` for which a document of ``seq_len`` costs in proportion to ``c * length + length**2``.

        The linear seconds over the mixing seconds a squared token; it holds at other lengths as far as every key
        before a query is met. Infinite where mixing takes nothing.
        """
        mixing = float(np.add(*self.mixing_s(np.array([self.seq_len])))[0])
        return self.token_s * self.seq_len**2 / mixing if mixing else float("inf")

    def text(self) -> str:
        """Say the numbers in lines: seconds a token, seconds a pair of each mixer, the crossover."""
        forward, backward = (float(x[0]) for x in self._of_documents(np.array([self.seq_len])))
        mixing = self.mixing_s(np.array([self.seq_len]))
        lines = [
            f"One document of {self.seq_len:,} tokens, mean over stages: forward {forward * 1e3:.4g} ms, of it mixing "
            f"{float(mixing[0][0]) * 1e3:.4g} ms; backward {backward * 1e3:.4g} ms, of it mixing "
            f"{float(mixing[1][0]) * 1e3:.4g} ms.",
            f"All but mixing: {self.token_s * 1e9:.4g} ns a token.",
        ]
        for block, counts in zip(self.blocks, self._mean_counts, strict=True):
            lines += [f"{block.name} (x{counts.sum():g}), {_said(mixer)}" for mixer in block.mixers]
        length = f"{self.crossover:,.0f} tokens" if np.isfinite(self.crossover) else "at no length"
        lines.append(f"Mixing takes as long as all else: {length}.")
        lines.append(
            f"As c * length + length^2 at {self.seq_len:,} tokens: c = {self.coefficient:,.0f} tokens."
        )
        return "\n".join(lines)

    @property
    def _mean_counts(self) -> Floats:
        """Layers of each kind by option on a stage, the mean over stages, shape (blocks, options)."""
        return np.asarray(self.counts.sum(axis=2).mean(axis=2))

    def _of_documents(self, lengths: ArrayLike) -> tuple[Floats, Floats]:
        found = checked_lengths(lengths)
        if found.size > (longest := found.max(initial=1)):  # then each length once, and look up
            forward, backward = self._of_documents(np.arange(1, longest + 1))
            return forward[found - 1], backward[found - 1]
        share = found / self.seq_len
        forward, backward = np.zeros(found.shape), np.zeros(found.shape)
        for block, counts in zip(self.blocks, self._mean_counts, strict=True):
            times = [mixer.seconds(found) for mixer in block.mixers]
            once, options = _times(block, ([f for f, _ in times], [b for _, b in times]), share)
            forward += counts.sum() * once
            for option, time in enumerate(options):
                if counts[option]:
                    backward += counts[option] * time
        return forward, backward


def _times(block: Block, mixed: tuple[list[Any], list[Any]], share: Any) -> tuple[Any, list[Any]]:
    """Forward time, and backward time under each recompute option."""
    forward = block.seconds(block.forward, mixed[0], share)
    backward = block.seconds(block.backward, mixed[1], share)
    again = block.seconds(block.again, mixed[0], share)
    return forward, [backward, backward + again, backward + forward]


def _said(mixer: Mixer) -> str:
    unit = "token" if mixer.grows == "tokens" else "pair"
    f, b = mixer.forward, mixer.backward
    return (
        f"{mixer.name}: meets {mixer.grows}; {f.pair_s * 1e12:.4g} and {b.pair_s * 1e12:.4g} ps a {unit} forward and "
        f"backward, or its traffic, {f.token_traffic_s * 1e9:.4g} and {b.token_traffic_s * 1e9:.4g} ns a token"
        + (f" and {f.pair_traffic_s * 1e12:.4g} ps a pair" if f.pair_traffic_s else "")
    )


@dataclass(frozen=True)
class _Reader:
    """Reads blocks off the operators and transfers of one micro-batch, shared among its samples."""

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: Any

    @property
    def _parts(self) -> tuple[ModelConfig, TrainConfig, Any]:
        return self.model, self.train, self.layout

    def layer(self, kind: LayerKind, name: str) -> Block:
        operators = layer_operators(self.model, kind, self.train, self.layout)
        transfers = layer_transfers(self.model, kind, self.train, self.layout)
        return self._block(f"{name} ({kind.attention.kind})", operators, transfers, kind, by_host=True)

    def embedding(self) -> Block:
        return self._block("embedding", embedding_operators(*self._parts), embedding_transfers(*self._parts))

    def head(self) -> Block:
        return self._block("head", head_operators(*self._parts), head_transfers(*self._parts))

    def module(self) -> Block:
        """Read a multi-token-prediction module, its head apart."""
        kind = self.model.mtp_block
        block = layer_operators(self.model, kind, self.train, self.layout)
        transfers = layer_transfers(self.model, kind, self.train, self.layout)
        entry = mtp_entry_operators(*self._parts)
        found = self._block(f"MTP ({kind.attention.kind})", (*entry, *block), transfers, kind)
        return replace(found, again=self._block("MTP", block, transfers, kind).again)

    def _block(
        self,
        name: str,
        operators: Iterable[Operator],
        transfers: Iterable[Transfer],
        kind: LayerKind | None = None,
        by_host: bool = False,
    ) -> Block:
        """Read a layer or an end; the host issues ends while the device is busy with layers (``by_host`` False)."""
        found = mixers(self.model, kind, self.cluster, self.train, self.layout) if kind else ()
        operators, transfers = tuple(operators), tuple(transfers)
        forward, backward = (self._pass(side, operators, transfers, found) for side in (0, 1))
        modules = frozenset(self.layout.recompute_modules)
        again = self._pass(
            0,
            [op for op in operators if not modules.isdisjoint(op.modules)],
            [item for item in transfers if not modules.isdisjoint(item.modules)],
            found,
        )
        if not by_host:
            forward, backward, again = (replace(p, issue_s=0.0) for p in (forward, backward, again))
        share = self.cluster.device.kernels.overlap_share
        launch_s = self.cluster.device.kernels.launch_s / self.layout.micro_batch
        return Block(name, found, forward, backward, again, self.layout.overlap_moe_comm, share, launch_s)

    def _pass(
        self,
        side: int,
        operators: Iterable[Operator],
        transfers: Iterable[Transfer],
        found: tuple[Mixer, ...],
    ) -> Pass:
        rest = issued = 0.0
        running = set()
        kernels, graphs = self.cluster.device.kernels, self.layout.cuda_graphs
        for op in operators:
            issued += float(host.launches(op, graphs)) * (kernels.backward_launches if side else 1.0)
            if op.kind == MIXING:
                running.add(op.name)
                rest += kernels.launch_s
            else:
                rest += float(times_s(op, self.cluster.device, self.train)[side])
        sent = {"open": 0.0, "ring": 0.0, "expert": 0.0}
        for item in transfers:
            calls = (item.forward_calls, item.backward_calls)[side]
            where = "ring" if item.behind == _RING else "expert" if item.group in EXPERT_GROUPS else "open"
            issued += float(host.calls(item, group(self.layout, item.group)[0], graphs)[side])
            pieces = self.layout.tp if item.group == "tp" and self.layout.tp_comm_overlap else 1
            sent[where] += calls * float(transfer_s(item, self.layout, self.cluster)) / pieces
        each = 1.0 / self.layout.micro_batch
        mixes = tuple(m.name in running for m in found)
        issue_s = each * kernels.host_launch_s * issued
        return Pass(
            rest * each, mixes, sent["open"] * each, sent["ring"] * each, sent["expert"] * each, issue_s
        )
