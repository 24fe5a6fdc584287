"""Made-up pairs of loss curves whose faults are known: an early offset, a drift, outliers, noise. Illustrative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from telekit.accuracy.curves.judge import CurveVerdict, judge_curves
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.readers.curve import LossCurve

STEPS, JUMP = 1000, 0.42
"""Steps of a curve; how far an outlier jumps, as two steps of a public file do (Megatron-LM, H100 resumed)."""
STANDARDS = ("msprobe-guide", "megatron-approximate", "megatron-deterministic", "deepseek-fp8")
"""Standards beside MindFormers', each with one or two parts."""


@dataclass(frozen=True)
class Shape:
    """What a target's curve differs by.

    Attributes
    ----------
    first : float
        Relative offset of step 1, gone after some 50 steps.
    drift : float
        Relative offset that the run ends with, growing from nothing.
    outliers : int
        Steps that jump.
    noise : float
        Of either run, relative, from step to step.
    runs : int
        Further runs of golden that say how noisy it is itself.
    """

    first: float = 0.0
    drift: float = 0.0
    outliers: int = 0
    noise: float = 0.001
    runs: int = 0


def _curve(values: Floats, name: str) -> LossCurve:
    steps = np.arange(1, values.size + 1, dtype=np.int64)
    return LossCurve(steps, {"lm loss": values}, {"lm loss": np.ones(values.size, np.bool_)}, name, "made up")


def _noisy(values: Floats, noise: float, seed: int) -> Floats:
    draw = np.random.default_rng(seed).standard_normal(values.size)
    return np.asarray(values * (1 + noise * draw))


@lru_cache(maxsize=64)
def pair(shape: Shape) -> tuple[LossCurve, LossCurve, tuple[LossCurve, ...]]:
    """Return target, golden, and golden's further runs."""
    step = np.arange(STEPS)
    base = 2.2 + 8.7 * np.exp(-((step / 60.0) ** 0.5))
    own = base * (1 + shape.first * np.exp(-step / 15.0) + shape.drift * (step / (STEPS - 1)) ** 2)
    target = _noisy(own, shape.noise, 1)
    target[(STEPS * np.linspace(0.3, 0.9, shape.outliers)).astype(int)] += JUMP
    others = tuple(_curve(_noisy(base, shape.noise, 3 + i), f"golden {i + 2}") for i in range(shape.runs))
    return _curve(target, "target"), _curve(_noisy(base, shape.noise, 2), "golden"), others


@lru_cache(maxsize=256)
def judged(shape: Shape, standard: str = "mindformers") -> CurveVerdict:
    """Judge the pair by one standard."""
    target, golden, others = pair(shape)
    return judge_curves(target, golden, noise=others or None, standard=standard)


def parts(shape: Shape) -> Iterator[tuple[str, str, str, str]]:
    """Yield group, name, result and what was found of every part, MindFormers' first, then the others' worst."""
    for part in judged(shape).verdict.parts:
        if part.result != "skip":
            yield "MindFormers", f"MindFormers: {part.name}", part.result, part.note or part.rule
    for name in STANDARDS:
        found = judged(shape, name)
        bad = [p for p in found.verdict.parts if p.result == found.result] or list(found.verdict.parts)
        yield (
            name,
            name,
            found.result,
            "; ".join(f"{p.rule}: {p.note}" if p.note else p.rule for p in bad[:1]),
        )
