"""Faults to learn from: each of a kind that has been reported of real training code, planted in the miniature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from telekit.accuracy.causes import finding
from telekit.accuracy.miniature.config import Config, Layout
from telekit.accuracy.miniature.events import Change, Event, Fault, scaled, skip, with_settings
from telekit.accuracy.miniature.mesh import Array
from telekit.accuracy.miniature.run import Run, run
from telekit.errors import bad

_LAYOUT, _CONFIG = Layout(tp=2, dp=2), Config()


@dataclass(frozen=True)
class TeachingFault:
    """A fault with its answer.

    Attributes
    ----------
    name : str
    title, story, lesson : str
        What a reader is told before (the symptom), and after.
    phase : str
        setup, forward, backward or optimizer: where it first shows.
    first : str
        Pattern of the operator whose tensors are the first to differ in a merged dump, in graph order.
    kind : str
        The cause, by the names of `telekit.accuracy.causes.finding`.
    layout : Layout
        A layout in which it can happen.
    config : Config
        A model in which it can happen.
    plant : callable
        Makes the fault for a layout.
    """

    name: str
    title: str
    story: str
    lesson: str
    phase: str
    first: str
    kind: str
    plant: Callable[[Layout], Change] = field(repr=False)
    layout: Layout = _LAYOUT
    config: Config = _CONFIG


def fault_named(name: str) -> TeachingFault:
    """Return a teaching fault.

    Raises
    ------
    InputError
        No such name; those there are are listed.
    """
    if name not in FAULTS:
        raise bad("fault", name, "is not planted here", f"one of {', '.join(FAULTS)}")
    return FAULTS[name]


def play(
    name: str, steps: int = 2, seed: int = 0, golden_layout: Layout | None = None, **config: Any
) -> tuple[Run, Run]:
    """Run a model with a fault and without.

    Parameters
    ----------
    name : str
        Of a teaching fault.
    steps, seed : int
    golden_layout : Layout, or None
        Of the clean run; default the same as the faulty one's, so that everything equal is equal to the bit. One rank
        makes it harder: rounding differs everywhere.
    **config
        Fields of `Config` to set otherwise (``precision="bf16"``).

    Returns
    -------
    (Run, Run)
        With the fault, and the golden one; the faulty run's routers take the golden run's experts where a fault does
        not forbid it, so that no token tips over by rounding alone.
    """
    fault = fault_named(name)
    model = replace(fault.config, **config)
    golden = run(model, golden_layout or fault.layout, steps, seed=seed)
    return run(model, fault.layout, steps, fault.plant(fault.layout), seed, routing=golden), golden


def _unsplit_gate(event: Event) -> Array:
    """Cut [gate; up] as one block: a rank gets gates only, or ups only, where it should get half of each."""
    weight: Array = event.inputs[0]
    gates, ups = np.split(weight, 2, axis=-2)
    whole = np.concatenate([*np.moveaxis(gates, 2, 0), *np.moveaxis(ups, 2, 0)], axis=-2)
    return np.stack(np.split(whole, weight.shape[2], axis=-2), axis=2)


def _forgotten_state(event: Event) -> Any:
    grad, master, first, second = event.inputs
    return event.call(grad, master, np.zeros_like(first), np.zeros_like(second))


_LIST = (
    TeachingFault(
        "row-parallel-sum-missing", "A row-parallel layer forgets its all-reduce",
        "The first loss is off by less than one per cent, and tensor-parallel ranks no longer hold the same norms.",
        "Ranks that must be equal after the collective are not: each kept its own term of the sum.",
        "forward", "*layers.1.self_attention.linear_proj.*forward*", finding.MISSING_REDUCTION,
        lambda n: Fault("decoder.layers.1.self_attention.linear_proj.all_reduce", skip),
    ),
    TeachingFault(
        "gradients-divided-by-dp", "Gradients are averaged over data parallel although the loss already is",
        "All losses are right; the norm of the gradient is not, at any step.",
        "A constant ratio of 1/dp over all parameters is a scaling, not noise. Adam hides it from every later loss.",
        "backward", "Gradient.*", finding.GRADIENT_SCALING,
        lambda n: Fault("gradients.*.weight.all_reduce", scaled(1 / n.dp)), Layout(dp=4), Config(clip_grad=0.0),
    ),
    TeachingFault(
        "norm-gradients-not-summed", "Norm gradients are not summed over sequence-parallel ranks",
        "The first loss is right; a few small weights get different gradients on tensor-parallel ranks.",
        "With sequence parallelism each rank's norms see a part of the tokens: their gradients need a sum over tp.",
        "backward", "Gradient.*layernorm*", finding.MISSING_REDUCTION,
        lambda n: Fault("gradients.*layernorm.weight.sequence.all_reduce", skip),
        Layout(tp=2, dp=2, sequence_parallel=True), Config(clip_grad=0.0),
    ),
    TeachingFault(
        "gate-and-up-cut-as-one", "The fused gate and up weight is split in two without interleaving",
        "Converted weights have the right shape, norm and histogram; the first loss is right to three digits only.",
        "Statistics cannot see a permutation, only values can: the checkpoint was cut as one block.",
        "forward", "*layers.0.mlp.linear_fc1.*forward*", finding.PERMUTATION,
        lambda n: Fault("initial.decoder.layers.0.mlp.linear_fc1.weight", _unsplit_gate),
    ),
    TeachingFault(
        "mask-sees-one-too-far", "A causal mask lets each token see the next one",
        "The first loss looks like noise; then the loss falls faster than it should.",
        "The model reads the answer. Only the last position of a sequence is right: it has nothing after it to see.",
        "forward", "*layers.0.self_attention.core_attention.*forward*", finding.MASK,
        lambda n: Fault("*.core_attention", with_settings(offset=1)),
    ),
    TeachingFault(
        "rotary-base", "A rotary base of another model",
        "The first loss is off by one per cent; nothing is scaled, nothing is missing.",
        "The first position is right and the error grows with it: look at positions before looking at weights.",
        "forward", "*layers.0.self_attention.rotary_pos_emb.*forward*", finding.ROTARY,
        lambda n: Fault("*.rotary_pos_emb*", with_settings(base=100.0)),
    ),
    TeachingFault(
        "residual-missing", "A layer forgets its residual",
        "The first loss is even better, the norm of the gradient more than twice too large, and the loss falls late.",
        "The output equals one of the two inputs: a term is missing.",
        "forward", "*layers.1.mlp_bda.*forward*", finding.MISSING_TERM,
        lambda n: Fault("decoder.layers.1.mlp_bda", skip),
    ),
    TeachingFault(
        "router-gradient-not-summed", "The gradient of the routing weights is not summed over tensor parallel",
        "The first loss is right to the bit, the norm of the gradient is one per cent off.",
        "The forward pass is right, one backward is not: compare gradients by name, the router's first.",
        "backward", "*mlp.router.*", finding.MISSING_REDUCTION,
        lambda n: Fault("*.token_dispatcher.probs.backward.all_reduce", skip),
        Layout(tp=2, dp=2), Config(experts=4),
    ),
    TeachingFault(
        "expert-gradients-times-ep", "Gradients of experts are too large by the size of expert parallel",
        "The first loss is right, the norm of the gradient a third too large, and dense weights agree.",
        "A constant ratio of ep, only for experts: they were scaled like weights that every rank has.",
        "backward", "Gradient.*experts*", finding.GRADIENT_SCALING,
        lambda n: Fault("gradients.*.experts.*.all_reduce", scaled(n.ep)), Layout(dp=4, ep=2),
        Config(experts=4, clip_grad=0.0),
    ),
    TeachingFault(
        "last-micro-batch-only", "Gradients of micro-batches overwrite each other",
        "Right with one micro-batch; with two the first loss is right and the norm of the gradient too small.",
        "Each micro-batch's own gradients are right, their sum is not: a buffer is written, not added to.",
        "backward", "Gradient.*", finding.MISSING_TERM,
        lambda n: Fault("gradients.*.accumulate", lambda event: event.inputs[1]),
        Layout(dp=2, micro_batches=2), Config(clip_grad=0.0),
    ),
    TeachingFault(
        "no-bias-correction", "Adam without bias correction",
        "The first loss and the first gradient norm are right; the second loss is not.",
        "Loss, then local gradient norm, then second loss: the first two clear the network and leave the optimizer.",
        "optimizer", "Optimizer.*", finding.BIAS_CORRECTION,
        lambda n: Fault("optimizer.*.adam", with_settings(time=10**6)),
    ),
    TeachingFault(
        "state-lost-on-resume", "A resumed run starts with empty optimizer states",
        "Step 1 is right to the bit, and so is the loss of step 2; what the second update writes is not.",
        "Weights were restored, moments were not. Their inputs to the update are what to look at after a resume.",
        "optimizer", "Optimizer.*", finding.OPTIMIZER_STATE,
        lambda n: Fault("optimizer.*.adam", _forgotten_state, steps=[1]),
    ),
)  # fmt: skip
FAULTS: dict[str, TeachingFault] = {fault.name: fault for fault in _LIST}
