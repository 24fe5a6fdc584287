"""What layers are made of: norms, split linear layers, and where tensor-parallel ranks meet between them."""

from __future__ import annotations

from telekit.accuracy.miniature.communication import COPY, GATHER, REDUCE, SCATTER
from telekit.accuracy.miniature.mesh import Array, Place
from telekit.accuracy.miniature.operators import ADD, LINEAR, RMS_NORM, SWIGLU
from telekit.accuracy.miniature.parameters import Parameter
from telekit.accuracy.miniature.tape import Tape, Value

Routing = dict[tuple[int, str], Array]
WHOLE = Place("dealt", "same")
SPLIT = Place("dealt", "split")
GATED = Place("dealt", "split", parts=2)
TERMS = Place("dealt", "partial")
HEADS = Place("dealt", "split", axis=2)


class Blocks:
    """Parts of a network over a tape; each is a module of the dump.

    Parameters
    ----------
    tape : Tape
    parameters : dict of str to Parameter
    routing : dict, or None
        Choices of experts to take in place of the routers' own: (step, router) to (batch, sequence, k).
    """

    def __init__(self, tape: Tape, parameters: dict[str, Parameter], routing: Routing | None = None) -> None:
        self.tape, self.parameters, self.routing = tape, parameters, routing
        self.config, self.layout = tape.config, tape.layout
        self.losses: list[Value] = []
        self.hidden = Place("dealt", "sequence" if self.layout.splits_sequence else "same")

    def weight(self, name: str) -> Value:
        """Return a parameter's value."""
        return self.parameters[f"{name}.weight"].value

    def norm(self, name: str, x: Value) -> Value:
        """RMSNorm."""
        with self.tape.module(name, "RMSNorm", x, weight=self.weight(name)) as m:
            m.outputs = [self.tape.op(name, RMS_NORM, *m.inputs, m["weight"], eps=self.config.norm_eps)]
        return m.outputs[0]

    def add(self, name: str, x: Value, residual: Value) -> Value:
        """Add the residual."""
        with self.tape.module(name, "BiasDropoutAdd", x, residual) as m:
            m.outputs = [self.tape.op(name, ADD, *m.inputs)]
        return m.outputs[0]

    def gather(self, name: str, x: Value) -> Value:
        """Give every tensor-parallel rank all positions; on the way back their gradients are added."""
        if self.layout.tp == 1:
            return x
        region = GATHER if self.layout.splits_sequence else COPY
        out: Value = self.tape.op(name, region, x, places=[WHOLE])
        return out

    def reduce(self, name: str, x: Value) -> Value:
        """Add the terms of tensor-parallel ranks."""
        region = SCATTER if self.layout.splits_sequence else REDUCE
        out: Value = self.tape.op(name, region, x, places=[self.hidden])
        return out

    def column(self, name: str, x: Value, weight: str = "", place: Place = SPLIT) -> Value:
        """Linear layer whose outputs are split over tp."""
        with self.tape.module(name, "ColumnParallelLinear", x, weight=self.weight(weight or name)) as m:
            whole = self.gather(name, m.inputs[0])
            m.outputs = [self.tape.op(name, LINEAR, whole, m["weight"], places=[place])]
        return m.outputs[0]

    def row(self, name: str, x: Value) -> Value:
        """Linear layer whose inputs are split over tp, and its sum."""
        with self.tape.module(name, "RowParallelLinear", x, weight=self.weight(name)) as m:
            terms = self.tape.op(name, LINEAR, *m.inputs, m["weight"], places=[TERMS])
            m.outputs = [self.reduce(name, terms)]
        return m.outputs[0]

    def split_linear(self, name: str, x: Value) -> Value:
        """Apply a column-parallel layer whose input every rank already has."""
        with self.tape.module(name, "ColumnParallelLinear", x, weight=self.weight(name)) as m:
            m.outputs = [self.tape.op(name, LINEAR, *m.inputs, m["weight"], places=[GATED])]
        return m.outputs[0]

    def term_linear(self, name: str, x: Value) -> Value:
        """Apply a row-parallel layer whose terms are added later."""
        with self.tape.module(name, "RowParallelLinear", x, weight=self.weight(name)) as m:
            m.outputs = [self.tape.op(name, LINEAR, *m.inputs, m["weight"], places=[TERMS])]
        return m.outputs[0]

    def activation(self, name: str, x: Value) -> Value:
        """Gate."""
        with self.tape.module(f"{name}.activation_func", "SwiGLU", x) as m:
            m.outputs = [self.tape.op(f"{name}.activation_func", SWIGLU, *m.inputs, places=[SPLIT])]
        return m.outputs[0]
