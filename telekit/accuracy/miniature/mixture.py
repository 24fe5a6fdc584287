"""The MoE layer: a router, a dispatcher over the ranks that hold experts, and the experts."""

from __future__ import annotations

from telekit.accuracy.miniature.blocks import TERMS, WHOLE, Blocks
from telekit.accuracy.miniature.communication import COPY, GATHER, WIDE_COPY, WIDE_GATHER
from telekit.accuracy.miniature.experts import (
    AUX_LOSS,
    GROUPED_LINEAR,
    PERMUTE,
    SEND,
    SEND_BACK,
    SOFTMAX,
    TOP_K,
    UNPERMUTE,
    Exchange,
    plan_exchange,
)
from telekit.accuracy.miniature.mesh import Place
from telekit.accuracy.miniature.operators import ADD, SWIGLU, WIDE_LINEAR
from telekit.accuracy.miniature.parameters import deal
from telekit.accuracy.miniature.tape import Value


def mixture(model: Blocks, name: str, x: Value) -> Value:
    """Send each token to its experts and add what they answer, and the shared expert's answer.

    Experts are split over tp inside, as a dense MLP is: each rank has a term of the output, and one reduction adds
    them after the tokens are back.
    """
    tape = model.tape
    with tape.module(name, "MoELayer", x) as m:
        x = m.inputs[0]
        weights, indices = _route(model, f"{name}.router", x)
        at = f"{name}.token_dispatcher"
        whole = model.gather(at, x)
        if model.layout.tp > 1:
            split = model.layout.splits_sequence
            weights = tape.op(f"{at}.probs", WIDE_GATHER if split else WIDE_COPY, weights, places=[WHOLE])
            indices = tape.op(f"{at}.indices", GATHER if split else COPY, indices, places=[WHOLE])
        plan, _ = tape.event(f"{at}.plan", "operator", "forward",
                             lambda i: plan_exchange(tape.mesh, i, tape.micro_batch), (indices.data,), {})  # fmt: skip
        rows = _experts(model, f"{name}.experts", _dispatch(model, at, whole, plan), plan)
        y = _combine(model, at, rows, weights, plan)
        if model.config.shared_ffn:
            y = tape.op(f"{name}.add_shared", ADD, y, _shared(model, f"{name}.shared_experts", whole))
        m.outputs = [model.reduce(name, y)]
    return m.outputs[0]


def _route(model: Blocks, name: str, x: Value) -> tuple[Value, Value]:
    """Choose experts; the balancing loss joins the model's losses."""
    tape, c = model.tape, model.config
    with tape.module(name, "TopKRouter", x, weight=model.weight(name)) as m:
        logits = tape.op(f"{name}.gating", WIDE_LINEAR, *m.inputs, m["weight"])
        p = tape.op(f"{name}.softmax", SOFTMAX, logits)
        replayed = None
        if model.routing is not None:
            whole = model.routing[tape.step, name]
            replayed = deal(whole, tape.mesh, tape.micro_batch, model.layout.splits_sequence)
        weights, indices = tape.op(f"{name}.top_k", TOP_K, p, places=[model.hidden] * 2, k=c.top_k, normalise=True,
                                   indices=replayed)  # fmt: skip
        m.outputs = [weights, indices]
    if c.aux_coefficient:
        place = Place("partial", "partial" if model.layout.splits_sequence else "same")
        model.losses.append(
            tape.op(f"{name}.aux_loss", AUX_LOSS, p, indices, places=[place], coefficient=c.aux_coefficient)
        )
    return weights, indices


def _dispatch(model: Blocks, name: str, x: Value, plan: Exchange) -> Value:
    tape, place = model.tape, Place("dealt", "same", keys=plan.keys)
    with tape.module(f"{name}.dispatch", "MoEAlltoAllTokenDispatcher", x) as m:
        rows = tape.op(f"{name}.permute", PERMUTE, *m.inputs, plan=plan)
        m.outputs = [tape.op(f"{name}.dispatch", SEND, rows, places=[place], plan=plan)]
    return m.outputs[0]


def _experts(model: Blocks, name: str, x: Value, plan: Exchange) -> Value:
    tape, keys = model.tape, plan.keys
    gated, terms = Place("dealt", "split", parts=2, keys=keys), Place("dealt", "partial", keys=keys)
    x = _grouped(model, f"{name}.linear_fc1", "ColumnParallelGroupedLinear", x, gated, plan)
    at = f"{name}.activation_func"
    with tape.module(at, "SwiGLU", x) as m:
        m.outputs = [tape.op(at, SWIGLU, *m.inputs, places=[Place("dealt", "split", keys=keys)])]
    return _grouped(model, f"{name}.linear_fc2", "RowParallelGroupedLinear", m.outputs[0], terms, plan)


def _grouped(model: Blocks, name: str, kind: str, x: Value, place: Place, plan: Exchange) -> Value:
    with model.tape.module(name, kind, x, weight=model.weight(name)) as m:
        m.outputs = [model.tape.op(name, GROUPED_LINEAR, *m.inputs, m["weight"], places=[place], plan=plan)]
    return m.outputs[0]


def _combine(model: Blocks, name: str, rows: Value, weights: Value, plan: Exchange) -> Value:
    tape = model.tape
    with tape.module(f"{name}.combine", "MoEAlltoAllTokenDispatcher", rows, weights) as m:
        back = tape.op(f"{name}.combine", SEND_BACK, m.inputs[0], places=[rows.place], plan=plan)
        m.outputs = [tape.op(f"{name}.unpermute", UNPERMUTE, back, m.inputs[1], places=[TERMS], plan=plan)]
    return m.outputs[0]


def _shared(model: Blocks, name: str, x: Value) -> Value:
    """Ask the expert that every token has; its terms are added together with the others'."""
    inner = model.activation(name, model.split_linear(f"{name}.linear_fc1", x))
    return model.term_linear(f"{name}.linear_fc2", inner)
