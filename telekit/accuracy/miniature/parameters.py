"""A run's parameters, dealt to ranks, and the text it learns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from telekit.accuracy.miniature.config import Config, Layout
from telekit.accuracy.miniature.mesh import Array, Mesh, Place, shard
from telekit.accuracy.miniature.tape import Tape, Value


@dataclass(eq=False)
class Parameter:
    """A weight on every rank of its stage, with what training keeps of it.

    Attributes
    ----------
    name : str
        As ``decoder.layers.0.self_attention.linear_qkv.weight``.
    place : Place
    stage : int
        Pipeline stage that holds it.
    value : Value
        What the operators use.
    master, exp_avg, exp_avg_sq : ndarray
        Float32 with bf16.
    sequence_terms : bool
        Whether tensor-parallel ranks each have a term of its gradient (its tokens were split between them).
    counted : bool
        False for the copy of a tied weight: a norm counts it once.
    """

    name: str
    place: Place
    stage: int
    value: Value
    master: Array
    exp_avg: Array
    exp_avg_sq: Array
    decays: bool
    sequence_terms: bool = False
    counted: bool = True
    main_grad: Array | None = None


@dataclass(frozen=True)
class _Plan:
    shape: tuple[int, ...]
    place: Place
    std: float
    stage: int = 0
    sequence_terms: bool = False


_SAME = Place("same")
_ROWS = Place("same", "split", axis=-2)
_COLUMNS = Place("same", "split", axis=-1)
_GATED = Place("same", "split", axis=-2, parts=2)


def _plans(c: Config, n: Layout) -> dict[str, _Plan]:
    """Say every parameter's whole shape, how it is dealt, and the scale it starts with."""
    sequence = n.splits_sequence
    small = 1 / np.sqrt(2 * c.layers)
    plans = {"embedding.word_embeddings.weight": _Plan((c.vocabulary, c.hidden), _ROWS, c.hidden**-0.5)}
    width = (c.heads + 2 * c.kv_heads) * c.head_size
    for i in range(c.layers):
        of_layer = {
            "input_layernorm.weight": _Plan((c.hidden,), _SAME, 0, 0, sequence),
            "self_attention.linear_qkv.weight": _Plan((width, c.hidden), _ROWS, c.hidden**-0.5),
            "self_attention.linear_proj.weight": _Plan(
                (c.hidden, c.hidden), _COLUMNS, small * c.hidden**-0.5
            ),
            "pre_mlp_layernorm.weight": _Plan((c.hidden,), _SAME, 0, 0, sequence),
            **(_mixture(c, sequence, small) if c.experts else _gated("mlp", c.hidden, c.ffn, small)),
        }
        stage = i * n.pp // c.layers
        plans |= {f"decoder.layers.{i}.{name}": replace(plan, stage=stage) for name, plan in of_layer.items()}
    last = n.pp - 1
    plans["decoder.final_layernorm.weight"] = _Plan((c.hidden,), _SAME, 0, last, sequence)
    if not c.tied or n.pp > 1:
        plans["output_layer.weight"] = _Plan((c.vocabulary, c.hidden), _ROWS, c.hidden**-0.5, last)
    return plans


def _gated(name: str, hidden: int, ffn: int, small: float) -> dict[str, _Plan]:
    return {
        f"{name}.linear_fc1.weight": _Plan((2 * ffn, hidden), _GATED, hidden**-0.5),
        f"{name}.linear_fc2.weight": _Plan((hidden, ffn), _COLUMNS, small * ffn**-0.5),
    }


def _mixture(c: Config, sequence: bool, small: float) -> dict[str, _Plan]:
    first, second = (replace(place, experts=True) for place in (_GATED, _COLUMNS))
    plans = {
        "mlp.router.weight": _Plan((c.experts, c.hidden), _SAME, c.hidden**-0.5, 0, sequence),
        "mlp.experts.linear_fc1.weight": _Plan((c.experts, 2 * c.ffn, c.hidden), first, c.hidden**-0.5),
        "mlp.experts.linear_fc2.weight": _Plan((c.experts, c.hidden, c.ffn), second, small * c.ffn**-0.5),
    }
    return plans | (_gated("mlp.shared_experts", c.hidden, c.shared_ffn, small) if c.shared_ffn else {})


def make_parameters(tape: Tape, seed: int) -> dict[str, Parameter]:
    """Draw the weights, the same for every layout, and deal them.

    Norms start near one and not at one, so that a norm that forgets its weight is seen.
    """
    found: dict[str, Parameter] = {}
    tied = tape.config.tied
    for index, (name, plan) in enumerate(_plans(tape.config, tape.layout).items()):
        if name == "output_layer.weight" and tied:
            full = _draw(seed, 0, next(iter(_plans(tape.config, tape.layout).values())))
        else:
            full = _draw(seed, index, plan)
        master = tape.mesh.wide(shard(full, plan.place, tape.mesh))
        master, _ = tape.event(f"initial.{name}", "initial", "setup", lambda x: x, (master,), {})
        value = Value(tape.mesh.round(master), plan.place)
        found[name] = Parameter(
            name, plan.place, plan.stage, value, value.data if tape.config.precision != "bf16" else master,
            np.zeros_like(master), np.zeros_like(master), plan.std > 0, plan.sequence_terms,
            not (name == "output_layer.weight" and tied),
        )  # fmt: skip
    return found


def _draw(seed: int, index: int, plan: _Plan) -> Array:
    random = np.random.default_rng([seed, 1, index])
    return (
        plan.std * random.standard_normal(plan.shape)
        if plan.std
        else 1 + 0.1 * random.standard_normal(plan.shape)
    )


def make_tokens(config: Config, seed: int, step: int) -> Array:
    """Return sequences that can be learned, (batch, sequence + 1): mostly 3 x + 7 of the token before."""
    random = np.random.default_rng([seed, 2, step])
    size = config.vocabulary
    tokens = random.integers(0, size, (config.batch, config.sequence + 1))
    follows = random.random(tokens.shape) < 0.8
    for at in range(1, config.sequence + 1):
        rule = (3 * tokens[:, at - 1] + 7) % size
        tokens[:, at] = np.where(follows[:, at], rule, tokens[:, at])
    return tokens


def deal(whole: Array, mesh: Mesh, micro_batch: int, splits_sequence: bool = False) -> Array:
    """Return every rank's sequences and positions of (batch, sequence, ...), shape (dp, cp, tp, ...)."""
    n = mesh.layout
    dealt = whole.reshape(n.micro_batches, n.dp, -1, *whole.shape[1:])[micro_batch]
    of_cp = np.moveaxis(dealt[:, :, mesh.positions], 2, 1)  # dp, cp, sequences, positions
    pieces = np.split(of_cp, n.tp, axis=3) if splits_sequence else [of_cp] * n.tp
    return np.stack(pieces, axis=2)


def deal_tokens(tokens: Array, mesh: Mesh, micro_batch: int) -> tuple[Array, Array]:
    """Return a micro-batch's tokens and labels on every rank, (dp, cp, tp, sequences, positions)."""
    return deal(tokens[:, :-1], mesh, micro_batch), deal(tokens[:, 1:], mesh, micro_batch)
