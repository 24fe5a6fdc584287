"""Train the miniature for a few steps and keep everything that was seen on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from telekit.accuracy.miniature.blocks import Routing
from telekit.accuracy.miniature.config import Config, Layout, check_layout
from telekit.accuracy.miniature.events import Change, Event, Point
from telekit.accuracy.miniature.mesh import Array, Mesh, Place, merge
from telekit.accuracy.miniature.model import Model
from telekit.accuracy.miniature.optimizer import gather_gradients, reduce_gradients, update
from telekit.accuracy.miniature.parameters import Parameter, deal_tokens, make_parameters, make_tokens
from telekit.accuracy.miniature.tape import Record, Tape, Value
from telekit.accuracy.readers.curve import LossCurve
from telekit.errors import bad

MAX_STEPS = 10_000
Faults = Change | Sequence[Change] | None


@dataclass(frozen=True)
class Run:
    """What a run left.

    Attributes
    ----------
    config, layout, seed
        What was run.
    losses, aux_losses, grad_norms : tuple of float
        By step: the language model's loss over the global batch, the routers' (0 for a dense model), the norm of the
        gradient before clipping.
    records : tuple of Record
        Every module, collective and update with its tensors, in order; `telekit.accuracy.miniature.dump` reads them.
    parameters : dict of str to Parameter
        At the end, every rank's own.
    """

    config: Config
    layout: Layout
    seed: int
    losses: tuple[float, ...]
    aux_losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    records: tuple[Record, ...] = field(repr=False)
    parameters: dict[str, Parameter] = field(repr=False)
    mesh: Mesh = field(repr=False)

    @property
    def curve(self) -> LossCurve:
        """Loss and gradient norm by step, steps counted from 1 as training logs do; names are Megatron-LM's."""
        steps = np.arange(1, len(self.losses) + 1, dtype=np.int64)
        columns = {"lm loss": np.array(self.losses), "grad norm": np.array(self.grad_norms)}
        if self.config.experts:
            columns["load_balancing_loss"] = np.array(self.aux_losses)
        here = {name: np.ones(steps.size, np.bool_) for name in columns}
        return LossCurve(steps, columns, here, "miniature", "miniature")

    @property
    def routing(self) -> Routing:
        """What the routers chose: (step, router) to (batch, sequence, k); `run` can replay it."""
        found: dict[tuple[int, str], list[tuple[Array, Place]]] = {}
        for record in self.records:
            if record.phase == "forward" and record.name.endswith(".TopKRouter"):
                _, indices, place, _ = record.parts["output"][1]
                found.setdefault((record.step, record.name.rsplit(".", 1)[0]), []).append((indices, place))
        return {key: merge(pieces, self.mesh) for key, pieces in found.items()}

    def weight(self, name: str) -> Array:
        """Return a parameter merged over ranks, as the optimizer keeps it."""
        p = self.parameters[name]
        return merge([(p.master, p.place)], self.mesh)


def run(config: Config | None = None, layout: Layout | None = None, steps: int = 2, fault: Faults = None,
        seed: int = 0, *, keep: bool = True, routing: Run | None = None) -> Run:  # fmt: skip
    """Train a few steps.

    Parameters
    ----------
    config, layout : Config, Layout
        Default: a small dense model in float32 on one rank.
    steps : int
    fault : callable, or sequence of callables
        Sees every `Event` and returns what comes of it, or None; of several the first that answers counts.
        `Fault` restricts one to points, steps and ranks; `points` lists the points.
    seed : int
        Of weights and text: the same for every layout and precision.
    keep : bool
        Whether records are kept (for a long curve they are not wanted).
    routing : Run, or None
        Take the experts that this run chose: in bf16 a rounding difference can tip a choice between two nearly equal
        experts, after which a token's numbers have nothing in common. Weights still come from the router.

    Raises
    ------
    InputError
        The layout does not divide the model, or steps is no small count.
    """
    config, layout = config or Config(), layout or Layout()
    check_layout(config, layout)
    if not 1 <= steps <= MAX_STEPS:
        raise bad("steps", steps, f"must be from 1 to {MAX_STEPS}", "2")
    replayed = routing.routing if routing is not None and config.experts else None
    return _run(config, layout, steps, _first(fault), seed, keep, None, replayed)


def points(config: Config | None = None, layout: Layout | None = None) -> tuple[Point, ...]:
    """Return every point that a step of this model and layout passes, in order, each once."""
    config, layout = config or Config(), layout or Layout()
    check_layout(config, layout)
    passed: list[Point] = []
    _run(config, layout, 1, None, 0, False, passed)
    return tuple({point.name: point for point in passed}.values())


def _first(fault: Faults) -> Change | None:
    if fault is None or callable(fault):
        return fault
    several = tuple(fault)

    def change(event: Event) -> object:
        for one in several:
            if (found := one(event)) is not None:
                return found
        return None

    return change


def _run(config: Config, layout: Layout, steps: int, fault: Change | None, seed: int, keep: bool,
         listen: list[Point] | None, routing: Routing | None = None) -> Run:  # fmt: skip
    """Run; NaN and Inf are results here, not accidents."""
    with np.errstate(all="ignore"):
        tape = Tape(config, layout, fault, listen)
        changed, _ = tape.event("config", "config", "setup", lambda c: c, (config,), {})
        if changed is not config:
            check_layout(changed, layout)
            tape = Tape(changed, layout, fault, listen)
        parameters = make_parameters(tape, seed)
        model = Model(tape, parameters, routing)
        losses, aux, norms = [], [], []
        for step in range(steps):
            tape.step = step
            lm, balance, norm = _step(tape, model, parameters, seed)
            losses.append(lm)
            aux.append(balance)
            norms.append(norm)
            if not keep:
                tape.records.clear()
    return Run(tape.config, layout, seed, tuple(losses), tuple(aux), tuple(norms), tuple(tape.records), parameters,
               tape.mesh)  # fmt: skip


def _step(
    tape: Tape, model: Model, parameters: dict[str, Parameter], seed: int
) -> tuple[float, float, float]:
    """Take one step; return its loss, its routers' losses and the gradient's norm."""
    text = make_tokens(tape.config, seed, tape.step)
    lm = np.zeros(tape.mesh.shape, tape.mesh.dtype)
    aux = np.zeros_like(lm)
    for micro_batch in range(tape.layout.micro_batches):
        tape.micro_batch = micro_batch
        dealt = deal_tokens(text, tape.mesh, tape.micro_batch)
        (tokens, labels), _ = tape.event("data.tokens", "data", "forward", lambda a, b: (a, b), dealt, {})
        roots: list[Value] = model.forward(tokens, labels)
        lm = lm + roots[0].data
        for root in roots[1:]:
            aux = aux + root.data
        tape.backward(roots)
        gather_gradients(tape, parameters.values())
    tape.micro_batch = 0
    reported = tape.collective("all_reduce", "dp-cp", lm, tape.mesh.wide, point="loss.all_reduce")
    reduce_gradients(tape, parameters)
    norm = update(tape, parameters)
    terms = aux if tape.layout.splits_sequence else aux[:, :, :1]  # other tensor-parallel ranks have replicas
    return float(reported[0, 0, 0]), float(terms.sum()), norm
