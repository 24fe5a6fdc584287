"""Small runs of the chapter: golden, clean and faulty ones of the miniature, each kept once it was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Literal

import numpy as np

from telekit.accuracy.causes.finding import Finding
from telekit.accuracy.compare import compare
from telekit.accuracy.compared import OPTIMIZER
from telekit.accuracy.graph.graph_errors import By, GraphError, graph_errors
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.miniature import Config, Fault, Layout, Run, dump, run, scaled
from telekit.accuracy.miniature.config import Precision
from telekit.accuracy.miniature.events import Change
from telekit.accuracy.miniature.faults import FAULTS
from telekit.accuracy.readers.curve import LossCurve

Order = Literal["ring", "sequential", "tree"]
FORMATS: dict[str, str] = {"bf16": "bfloat16", "fp32": "float32"}
LINE = {"bfloat16": 10.0, "float32": 50.0}
"""Epsilons above which the chapter calls an operator off: above every clean change of layout of up to 8 layers here.

In bf16 an operator sums in a wider format and rounds once; in fp32 each addition rounds, and clean runs are further
off, counted in their own epsilons. The published bound of a model of 32 layers is 10.6. ``locate`` has no such line:
it judges each output by its inputs.
"""
UPDATE = {"bfloat16": 60.0, "float32": 1e5}
"""The same line for what the optimizer did: a first step of Adam is little more than the gradient's sign, which noise
flips where the gradient is next to nothing. Clean changes of layout reach 51 and 2,200 epsilons."""
CLEAN, FACTOR = "none", "factor"
ONE_RANK, SAME = "one rank", "the same layout"
LAYOUTS: dict[str, Layout] = {
    "tp 2, dp 2": Layout(tp=2, dp=2),
    "tp 4": Layout(tp=4),
    "tp 4, sequence parallel": Layout(tp=4, sequence_parallel=True),
    "cp 2": Layout(cp=2),
    "dp 4": Layout(dp=4),
}


@dataclass(frozen=True)
class Trial:
    """A pair of runs: golden, and a target that may have a fault.

    Attributes
    ----------
    fault : str
        A teaching fault's name, ``none``, or ``factor``: the first layer's attention output is ``1 + size`` too large.
    golden : str
        ``one rank``, or ``the same layout`` as the target, in which all that is right is equal to the bit.
    precision, layers, seed, lr
        Of the miniature; ``lr`` None keeps its own.
    layout, order
        Of a target without a teaching fault; in which order its reductions add ranks.
    size : float
        Of ``factor``.
    """

    fault: str = CLEAN
    golden: str = ONE_RANK
    precision: Precision = "bf16"
    layers: int = 2
    size: float = 0.0
    seed: int = 0
    lr: float | None = None
    layout: str = "tp 2, dp 2"
    order: Order = "ring"

    @property
    def target_layout(self) -> Layout:
        """Layout of the target: where the fault can happen, or the chosen one."""
        own = FAULTS[self.fault].layout if self.fault in FAULTS else LAYOUTS[self.layout]
        return replace(own, reduce_order=self.order)

    @property
    def config(self) -> Config:
        """The model, as the fault needs it."""
        base = FAULTS[self.fault].config if self.fault in FAULTS else Config(kv_heads=4)
        own = replace(base, layers=self.layers, precision=self.precision)
        return own if self.lr is None else replace(own, lr=self.lr)

    @property
    def golden_layout(self) -> Layout:
        """Layout of golden."""
        return Layout() if self.golden == ONE_RANK else self.target_layout

    @property
    def epsilon_format(self) -> str:
        """Name of the arithmetic's format."""
        return FORMATS[self.precision]

    @property
    def sizes(self) -> Mapping[str, float]:
        """Parallel sizes of the target, for naming a constant ratio."""
        n = self.target_layout
        return {"tp": n.tp, "cp": n.cp, "dp": n.dp, "ep": n.ep, "micro_batches": n.micro_batches}


@lru_cache(maxsize=48)
def _run(
    config: Config, layout: Layout, fault: str, size: float, golden: Layout, steps: int, seed: int, keep: bool
) -> Run:
    """Run once; a router follows the experts of a golden run that was kept, so that no token tips over by rounding."""
    follows = None
    if keep and config.experts and layout != golden:
        follows = _run(config, golden, CLEAN, 0.0, golden, steps, seed, True)
    return run(config, layout, steps, _planted(fault, size, layout), seed, keep=keep, routing=follows)


def _planted(fault: str, size: float, layout: Layout) -> Change | None:
    if fault == FACTOR:
        return Fault("decoder.layers.0.self_attention.linear_proj", scaled(1 + size))
    return FAULTS[fault].plant(layout) if fault in FAULTS else None


def target_run(trial: Trial, steps: int = 2, keep: bool = True) -> Run:
    """Run the target, fault and all."""
    return _run(
        trial.config,
        trial.target_layout,
        trial.fault,
        trial.size,
        trial.golden_layout,
        steps,
        trial.seed,
        keep,
    )


def golden_run(trial: Trial, steps: int = 2, keep: bool = True) -> Run:
    """Run golden."""
    own = trial.golden_layout
    return _run(trial.config, own, CLEAN, 0.0, own, steps, trial.seed, keep)


def clean_run(trial: Trial, steps: int = 2) -> Run:
    """Run the target's layout without the fault."""
    return _run(trial.config, trial.target_layout, CLEAN, 0.0, trial.golden_layout, steps, trial.seed, True)


@lru_cache(maxsize=96)
def errors(trial: Trial, step: int = 0, by: By = "elements", clean: bool = False) -> tuple[GraphError, ...]:
    """Error of each operator of one step, the optimizer's too; of the clean run if asked."""
    target = clean_run(trial) if clean else target_run(trial)
    return graph_errors(dump(target, steps=[step]), dump(golden_run(trial), steps=[step]), by=by)


def network_errors(found: tuple[GraphError, ...]) -> tuple[GraphError, ...]:
    """Leave the optimizer out: Adam divides by the gradient's own size, and makes much of little."""
    return tuple(e for e in found if e.phase != OPTIMIZER)


def first_off(found: tuple[GraphError, ...], dtype: str) -> GraphError | None:
    """Return the first operator that is off by more than the line; updates have a line of their own."""
    return next((e for e in found if is_off(e, dtype)), None)


def is_off(error: GraphError, dtype: str) -> bool:
    """Whether an output is beyond its line."""
    return error.epsilons(dtype) > (UPDATE if error.phase == OPTIMIZER else LINE)[dtype]


def worst(found: tuple[GraphError, ...], dtype: str) -> float:
    """Return the largest error in epsilons."""
    return max((e.epsilons(dtype) for e in found), default=0.0)


@dataclass(frozen=True)
class Told:
    """What a training log alone tells: relative differences of step 1's loss and norm, and of step 2's loss."""

    first_loss: float
    first_norm: float
    second_loss: float


def told(trial: Trial) -> Told:
    """Take the three figures of the decision tree."""
    target, golden = target_run(trial), golden_run(trial)
    return Told(
        relative(target.losses[0], golden.losses[0]),
        relative(target.grad_norms[0], golden.grad_norms[0]),
        relative(target.losses[1], golden.losses[1]),
    )


def relative(target: float, golden: float) -> float:
    """Size of a difference over golden."""
    found = abs(target - golden) / abs(golden) if golden else abs(target)
    return found if isfinite(found) else np.inf


def curves(trial: Trial, steps: int) -> tuple[LossCurve, LossCurve]:
    """Losses and norms of a longer run, target's and golden's."""
    return target_run(trial, steps, False).curve, golden_run(trial, steps, False).curve


@lru_cache(maxsize=32)
def answer(trial: Trial, step: int | None = None) -> Finding:
    """Ask the locator: both steps (or one), losses and norms, and every rank's own tensors."""
    target, golden = target_run(trial), golden_run(trial)
    steps = None if step is None else [step]
    rows = compare(dump(target, steps=steps), dump(golden, steps=steps), locate=False).rows
    return locate(
        rows,
        losses=(target.losses, golden.losses),
        norms=(target.grad_norms, golden.grad_norms),
        sizes=trial.sizes,
        replicas=tuple(dump(target, merged=False, steps=steps)),
    )


@dataclass(frozen=True)
class Logs:
    """Logs of one comparison: the target's and golden's, both again with learning rate 0, and golden's further runs."""

    target: LossCurve
    golden: LossCurve
    target_zero: LossCurve
    golden_zero: LossCurve
    noise: tuple[LossCurve, ...]


@lru_cache(maxsize=8)
def logs(fault: str, steps: int = 24) -> Logs:
    """Run target and golden in bf16, in one layout; golden's ranks are added in another order in each of its runs.

    That order is what a run with determinism off leaves open, so its runs say how noisy golden is.
    """
    config, own = replace(Trial(fault).config, kv_heads=4), Layout(tp=4, dp=2)
    still = replace(config, lr=0.0)

    def curve(model: Config, order: Order, planted: str) -> LossCurve:
        layout = replace(own, reduce_order=order)
        return _run(model, layout, planted, 0.0, layout, steps, 0, False).curve

    return Logs(
        curve(config, "tree", fault), curve(config, "ring", CLEAN), curve(still, "tree", fault),
        curve(still, "ring", CLEAN), (curve(config, "tree", CLEAN), curve(config, "sequential", CLEAN)),
    )  # fmt: skip
