"""Formulas of operators against numerical derivatives, and what is said of a change in them."""

from functools import partial

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.redoing.formula.formula import changed, proven, rounded
from telekit.accuracy.redoing.layers.gated import ACTIVATIONS
from telekit.accuracy.redoing.layers.norm import normed
from telekit.accuracy.redoing.redo import FORMULAS, kept_to

RANDOM = np.random.default_rng(11)
X, UP, WEIGHT = (RANDOM.standard_normal(shape) for shape in ((2, 8, 16), (2, 8, 16), (16,)))
Q, K, V, OUT_UP = (
    RANDOM.standard_normal(shape) for shape in ((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8), (2, 6, 4, 8))
)


def slope(function, x, up, step=1e-5):
    """Gradient of sum(up * function(x)) by central differences."""
    found = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        more, less = x.copy(), x.copy()
        more[at] += step
        less[at] -= step
        found[at] = (up * (function(more) - function(less))).sum() / (2 * step)
    return found


def attend(q, k, v):
    q, k, v = (np.moveaxis(a, 2, 1) for a in (q, np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)))
    scores = np.where(np.tri(q.shape[2], dtype=bool), q @ k.swapaxes(-1, -2) / 8**0.5, -np.inf)
    p = np.exp(scores)
    return np.moveaxis(p / p.sum(axis=-1, keepdims=True) @ v, 1, 2)


def gate(x):
    a, b = np.split(x, 2, axis=-1)
    return ACTIVATIONS["silu"](a) * b


def case(
    golden, inputs, parameters=(), target=None, name="Module.norm.RMSNorm", phase="backward", part="output"
):
    def known(pairs):
        return tuple(Known(f"{name}.{said}", a, a) for said, a in pairs)

    target = golden if target is None else target
    return Case(
        target,
        golden,
        f"{name}.{phase}.0",
        name,
        phase,
        part,
        inputs=known(inputs),
        parameters=known(parameters),
    )


@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_of_a_norm_is_its_derivative(centred):
    out = normed(X, WEIGHT, 1e-3, centred)
    golden = slope(lambda x: normed(x, WEIGHT, 1e-3, centred), X, UP)
    found = kept_to(case(golden, [("up", UP), ("x", X), ("out", out)], [("w", WEIGHT)]))
    assert found is not None and "gradient of" in found.formula.name and found.golden_error < 1e-7
    assert ("LayerNorm" in found.formula.name) == centred


def test_the_gradient_of_a_gated_activation_is_its_derivative():
    found = kept_to(
        case(slope(gate, X, UP[..., :8]), [("up", UP[..., :8]), ("x", X)], name="Module.act.SwiGLU")
    )
    assert found is not None and "silu" in found.formula.name and found.golden_error < 1e-7


@pytest.mark.parametrize("which", [0, 1, 2])
def test_attention_s_gradients_are_its_derivatives(which):
    def of(x):
        return attend(*(x if i == which else a for i, a in enumerate((Q, K, V))))

    inputs = [(f"forward.0.input.{i}", a) for i, a in enumerate((Q, K, V))] + [("backward.0.input.0", OUT_UP)]
    golden = slope(of, (Q, K, V)[which], OUT_UP)
    found = kept_to(case(golden, inputs, name="Module.core_attention.Attention"))
    assert found is not None and ("queries", "keys", "values")[which] in found.formula.name


CHANGES = [
    (lambda: normed(X, WEIGHT + 1, 1e-5, False), kinds.CHANNEL_WEIGHT, "1 + w"),
    (lambda: X - 0, kinds.NORMALISATION, "not normalised"),
    (lambda: normed(X, WEIGHT, 0.3, False), kinds.NORM_EPSILON, "0.3"),
    (
        lambda: normed(rounded(X, "bfloat16"), rounded(WEIGHT, "bfloat16"), 1e-5, False),
        kinds.WRONG_DTYPE,
        "bfloat16",
    ),
    (lambda: normed(np.flip(X, 1), WEIGHT, 1e-5, False), kinds.PERMUTATION, "reversed"),
]


@pytest.mark.parametrize(("target", "kind", "word"), CHANGES)
def test_the_change_that_gives_the_target_is_named(target, kind, word):
    golden = normed(X, WEIGHT, 1e-5, False)
    of = case(golden, [("x", X)], [("w", WEIGHT)], target(), phase="forward")
    found = proven(of, FORMULAS)
    causes = [] if found is None else list(changed(of, found))
    assert [c.kind for c in causes] == [kind] and word in causes[0].text


def test_what_the_inputs_are_off_by_does_not_count():
    """The target is right for inputs of its own that are 30 % off, so nothing is said."""
    own = X + 0.3 * RANDOM.standard_normal(X.shape)
    inputs = (Known("x", own, X),)
    of = Case(normed(own, WEIGHT, 1e-5, False), normed(X, WEIGHT, 1e-5, False), "norm", "norm", "forward", "output",
              inputs=inputs, parameters=(Known("w", WEIGHT, WEIGHT),))  # fmt: skip
    found = kept_to(of)
    assert found is not None and found.own_error < 1e-12 and not list(changed(of, found))


def test_an_operator_that_golden_does_not_keep_to_is_not_guessed_at():
    noise = partial(np.multiply, np.exp(0.2 * RANDOM.standard_normal(X.shape)))
    golden = noise(normed(X, WEIGHT, 1e-5, False))
    assert kept_to(case(golden, [("x", X)], [("w", WEIGHT)], X, phase="forward")) is None
