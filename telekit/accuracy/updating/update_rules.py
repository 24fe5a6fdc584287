"""AdamW's step done again in float64 from what went into it, as golden does it and in other ways.

Golden's own numbers (rate, betas, decay, eps) are read back from golden; the target's step is done again with them
from the target's own tensors. A rule with a number of its own (another eps, another rate) is solved for that number
at every element: it is named only where the elements agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.finding import Cause
from telekit.accuracy.graph.noise import representable
from telekit.accuracy.measures.pairs import FORMATS, Floats
from telekit.accuracy.updating.other_rules import other_rules, said
from telekit.accuracy.updating.stepping import RATE, Rule, Settings, Step, update, usual, without_decay

_HOLDS = 1e-4  # of the typical change: what a rule may leave beyond the rounding of the weight
_QUANTILE = 0.95
_LATEST = 12  # steps that a wrong count is looked for among
_LARGE = 100  # times the typical moment: beyond it eps is all there is of the denominator
_SOLVED = 64  # elements that must speak for a number


def left(s: Step, change: Floats, epsilon: float) -> float:
    """Return what a rule leaves: beyond the weight's rounding, over the typical change (0.95 quantile)."""
    real = np.abs(s.change)
    typical = float(np.median(real[real > 0])) if (real > 0).any() else 0.0
    typical = max(typical, float(np.median(np.abs(change))))
    if not typical:
        return 0.0
    rest = np.maximum(0.0, np.abs(s.change - change) - 1.5 * epsilon * np.abs(s.p))
    rest = np.where(np.isfinite(rest), rest, np.inf)
    return float(np.quantile(rest, _QUANTILE)) / typical


def weight_epsilon(weight: Floats) -> float:
    """Epsilon of the type a weight is kept in, as far as its values show it."""
    some = weight[np.isfinite(weight) & (weight != 0)][:4096]
    narrow = some.size > 16 and representable(some, "bfloat16")
    return FORMATS["bfloat16" if narrow else "float32"].epsilon


def rule_causes(t: Step, g: Step, golden: Settings, target: Settings) -> tuple[Cause, ...] | None:
    """Explain the target's change of the weight by rules.

    Parameters
    ----------
    t, g : Step
        Target's and golden's.
    golden, target : Settings
        Golden's numbers; the target's are golden's with its own betas.

    Returns
    -------
    tuple of Cause, or None
        Empty where the target steps as golden does; None where golden's step is not AdamW by its own numbers, or no
        rule gives the target's.
    """
    with np.errstate(all="ignore"):
        epsilon = weight_epsilon(g.p1)
        base = left(g, usual(g, golden), epsilon)
        if base > 5e-3:
            return None
        enough = max(3 * base, _HOLDS)
        now = left(t, usual(t, target), epsilon)
        if now <= max(enough, 1e-3):
            return ()
        if not t.change.any():
            return (Cause(kinds.STALE, 0.93, "the weight comes out as it went in: it is not updated"),)
        found: list[tuple[float, Cause]] = []
        for rule in _rules(target, golden):
            tried = _try(rule, t, target, epsilon)
            if tried is not None and tried[0] <= max(enough, min(1e-3, now / 20)):
                found.append(tried)
        if not found:
            return None
        best = min(f for f, _ in found)
        likely = [c for f, c in found if f <= max(3 * best, enough)]
        return tuple(sorted(likely, key=lambda c: -c.confidence))


def _try(rule: Rule, t: Step, k: Settings, epsilon: float) -> tuple[float, Cause] | None:
    number = 0.0
    if rule.solve is not None:
        solved = _agreed(rule.solve(t, k), t, epsilon)
        if solved is None:
            return None
        number = solved
    rest = left(t, rule.change(t, k, number), epsilon)
    text = rule.text(number, k) if np.isfinite(rest) else ""
    return (rest, Cause(rule.kind, rule.confidence, text)) if text else None


def _agreed(values: Floats, t: Step, epsilon: float) -> float | None:
    """Median of what elements say, those whose change is well above their weight's rounding."""
    clear = np.isfinite(values) & (np.abs(t.change) > 100 * epsilon * np.abs(t.p))
    if clear.sum() < min(_SOLVED, values.size // 4 + 1):
        clear = np.isfinite(values) & (t.change != 0)
    return float(np.median(values[clear])) if clear.any() else None


def _rules(k: Settings, golden: Settings) -> Iterator[Rule]:
    yield from _scales()
    yield from _epsilons()
    yield from _decays(golden)
    yield from _corrections(k, golden)
    yield from other_rules()


def _scales() -> Iterator[Rule]:
    """Rules with a factor on the whole step; what it is a factor of, ``step_causes._named_rate`` tells."""

    def said(number: float, k: Settings) -> str:
        if abs(number + 1) < 5e-3:
            return "the step has the opposite sign: the weight moves with the gradient, not against it"
        return f"the step is {number:.4g} times golden's at every element" if abs(number) > 0.01 else ""

    yield Rule(
        RATE, said, lambda s, k, x: -x * (k.decay * s.p + k.lr * update(s, k)),
        lambda s, k: s.change / -(k.decay * s.p + k.lr * update(s, k)),
    )  # fmt: skip
    yield Rule(
        RATE, lambda x, k: f"{said(x, k)}, its decay is not" if k.decay and said(x, k) else "",
        lambda s, k, x: -k.decay * s.p - x * k.lr * update(s, k),
        lambda s, k: without_decay(s, k) / (k.lr * update(s, k)),
        0.9,
    )  # fmt: skip


def _epsilons() -> Iterator[Rule]:
    def root(s: Step, k: Settings) -> tuple[Floats, Floats]:
        c1, c2 = k.corrections
        return s.m1 / c1, np.maximum(s.v1, 0) / c2

    def solve(s: Step, k: Settings, inside: bool) -> Floats:
        m, v = root(s, k)
        whole = k.lr * m / without_decay(s, k)
        found = whole**2 - v if inside else whole - np.sqrt(v)
        size = v if inside else np.sqrt(v)
        known = (
            (whole > 0)
            & (found > 1e-4 * size)
            & (found < _LARGE * float(np.median(size[v > 0]) if (v > 0).any() else 0))
        )
        return np.where(known, found, np.nan)

    def outside(s: Step, k: Settings, x: float) -> Floats:
        m, v = root(s, k)
        return -k.decay * s.p - k.lr * m / (np.sqrt(v) + x)

    def within(s: Step, k: Settings, x: float) -> Floats:
        m, v = root(s, k)
        return -k.decay * s.p - k.lr * m / np.sqrt(v + x)

    def said(x: float, k: Settings) -> str:
        before = k.eps / sqrt(k.corrections[1])
        if k.eps and abs(x / before - 1) < 0.05 and k.corrections[1] < 0.9:
            return f"eps {k.eps:.3g} is added before the bias correction, so that it counts {x / k.eps:.3g} times"
        raw = f"or {x * sqrt(k.corrections[1]):.3g}, added before the bias correction"
        return f"eps is {x:.3g} instead of {k.eps:.3g} ({raw})" if x > 0 else ""

    yield Rule(kinds.ADAM_EPSILON, said, outside, lambda s, k: solve(s, k, False), 0.92)
    yield Rule(
        kinds.ADAM_EPSILON,
        lambda x, k: f"eps stands inside the root: sqrt(v + {x:.3g}), not sqrt(v) + eps" if x > 0 else "",
        within, lambda s, k: solve(s, k, True), 0.94,
    )  # fmt: skip


def _decays(golden: Settings) -> Iterator[Rule]:
    def said(x: float, k: Settings) -> str:
        ratio = x / golden.decay if golden.decay else float("inf")
        tells = f"the weight decays by {x:.4g} a step, golden's by {golden.decay:.4g}"
        if golden.decay > 1e-9 and abs(ratio) < 5e-3:
            return f"the weight does not decay, golden's decays by {golden.decay:.4g} a step"
        if abs(ratio * golden.lr - 1) < 5e-3:
            return f"{tells}: the decay is not multiplied by the learning rate {golden.lr:.4g}"
        return f"{tells}{f', {ratio:.4g} times' if np.isfinite(ratio) else ', which has none'}"

    yield Rule(
        kinds.WEIGHT_DECAY, said, lambda s, k, x: -x * s.p - k.lr * update(s, k),
        lambda s, k: np.where(s.p != 0, -(s.change + k.lr * update(s, k)) / s.p, np.nan), 0.94,
    )  # fmt: skip

    def signed(s: Step, k: Settings, x: float) -> Floats:
        return -x * np.sign(s.p) - k.lr * update(s, k)

    yield Rule(
        kinds.WEIGHT_DECAY, lambda x, k: f"the decay is {x:.3g} times the weight's sign (L1), not the weight",
        signed, lambda s, k: -(s.change + k.lr * update(s, k)) * np.sign(s.p), 0.9,
    )  # fmt: skip


def _corrections(k: Settings, golden: Settings) -> Iterator[Rule]:
    """Rules of the bias corrections; at the first step a learning rate may look the same."""
    c1, c2 = golden.corrections

    def with_divisors(
        first: float, second: float, power: float = 0.5
    ) -> Callable[[Step, Settings, float], Floats]:
        def change(s: Step, k: Settings, x: float) -> Floats:
            size = np.sqrt(np.maximum(s.v1, 0)) / second**power + k.eps
            return np.asarray(-k.decay * s.p - k.lr * (s.m1 / first) / size)

        return change

    cases: list[tuple[str, float, float, float]] = [
        ("both bias corrections are left out", 1.0, 1.0, 0.5),
        ("the first moment's bias correction is left out", 1.0, c2, 0.5),
        ("the second moment's bias correction is left out", c1, 1.0, 0.5),
        ("the second moment's correction is not under the root", c1, c2, 1.0),
    ]
    for other in range(1, _LATEST):
        if other != k.time:
            a, b = 1 - k.beta1**other, 1 - k.beta2**other
            cases.append((f"the bias corrections count step {other} instead of {k.time}", a, b, 0.5))
            cases.append(
                (f"the first moment's bias correction counts step {other} instead of {k.time}", a, c2, 0.5)
            )
            cases.append(
                (f"the second moment's bias correction counts step {other} instead of {k.time}", c1, b, 0.5)
            )
    if (k.beta1, k.beta2) != (golden.beta1, golden.beta2):
        cases.append(("the bias corrections take golden's betas, the moments others", c1, c2, 0.5))
    for text, first, second, power in cases:
        yield Rule(
            kinds.BIAS_CORRECTION, said(text), with_divisors(first, second, power), confidence=0.9
        )  # fmt: skip


def with_betas(k: Settings, beta1: float, beta2: float) -> Settings:
    """Return the settings with other betas where they are betas at all."""
    return replace(k, beta1=beta1 if 0 <= beta1 < 1 else k.beta1, beta2=beta2 if 0 <= beta2 < 1 else k.beta2)
