"""What is done to an operator's right output, or to attention's scores, is named, and no number is made up."""

import numpy as np
import pytest

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.locating.walk.explain import explain

RANDOM = np.random.default_rng(29)
X, W = RANDOM.standard_normal((4, 12, 16)), RANDOM.standard_normal((24, 16)) / 4
PRODUCT = X @ W.T
Q, K, V = (RANDOM.standard_normal((4, 12, 4, 8)) for _ in range(3))
IDS, TABLE = RANDOM.integers(0, 32, (4, 12)) * 1.0, RANDOM.standard_normal((32, 16))
DISTANCE = np.arange(12)[:, None] - np.arange(12)
LATE = np.arange(12) >= 5
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])[:, None, None]


def attend(change=lambda s: s, weigh=lambda p: p, seen=None):
    q, k, v = (np.moveaxis(a, 2, 1) for a in (Q, K, V))
    mask = np.tri(12, dtype=bool) if seen is None else seen
    s = np.where(mask, change(q @ k.swapaxes(-1, -2) / 8**0.5), -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.moveaxis(weigh(p / p.sum(axis=-1, keepdims=True)) @ v, 1, 2)


def turn(x, positions=tuple(range(12)), base=1e4, width=8):
    half = width // 2
    angle = np.outer(positions, base ** -(np.arange(half) / half))[:, None]
    z = (x[..., :half] + 1j * x[..., half:width]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag, x[..., width:]], axis=-1)


def top(target, golden, inputs, parameters=(), name="Module.linear.Linear", sizes=None):
    known = [tuple(Known(f"{name}.{i}", a, a) for i, a in enumerate(some)) for some in (inputs, parameters)]
    case = Case(target, golden, f"{name}.forward.0.output.0", name, "forward", "output", sizes=sizes or {},
                inputs=known[0], parameters=known[1])  # fmt: skip
    return explain(case)[0]


def of_product(target, **more):
    return top(target, PRODUCT, (X,), (W,), **more)


def of_attention(**how):
    return top(attend(**how), attend(), (Q, K, V), name="Module.core_attention.Attention")


def of_rotary(target):
    return top(target, turn(Q), (Q,), name="Module.rotary_pos_emb.Rotary")


INPUT_KEPT = RANDOM.random(X.shape) >= 0.3
KEPT = RANDOM.random(PRODUCT.shape) >= 0.2
WEIGHTS_KEPT = RANDOM.random((4, 4, 12, 12)) >= 0.2


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        (PRODUCT * KEPT / 0.8, kinds.LOCAL, "dropout of 0.2"),
        (PRODUCT * KEPT, kinds.LOCAL, "the rest is right"),
        (np.clip(PRODUCT, -0.7, 0.7), kinds.ACTIVATION, "clamped to plus and minus 0.7"),
        (np.minimum(PRODUCT, 0.6), kinds.ACTIVATION, "clamped to at most 0.6"),
        (1.5 * np.tanh(PRODUCT / 1.5), kinds.ACTIVATION, "tanh at 1.5"),
        (np.maximum(PRODUCT, 0) ** 2, kinds.ACTIVATION, "relu squared"),
        (np.cbrt(PRODUCT), kinds.ACTIVATION, "a rising function of the right one"),
        (PRODUCT + RANDOM.standard_normal(24), kinds.EXTRA_TERM, "a bias too many"),
        (np.tanh(X) @ W.T, kinds.ACTIVATION, "goes through tanh first"),
        ((X * INPUT_KEPT / 0.7) @ W.T, kinds.LOCAL, "dropout of 0.3 left on before the product"),
        (PRODUCT.swapaxes(0, 1).reshape(PRODUCT.shape), kinds.PERMUTATION, "(1, 0, 2)"),
    ],
)
def test_what_is_done_to_a_product_is_named(target, kind, words):
    cause = of_product(target)
    assert cause.kind == kind and words in cause.text


def test_a_factor_is_no_function_and_no_cap():
    assert of_product(1.37 * PRODUCT).kind == kinds.SCALED


def test_noise_is_given_no_name_of_these():
    cause = of_product(PRODUCT + 0.1 * RANDOM.standard_normal(PRODUCT.shape))
    assert cause.kind not in (kinds.ACTIVATION, kinds.PERMUTATION, kinds.EXTRA_TERM, kinds.LOCAL)


def test_rows_that_are_lost_are_no_multiples():
    """Tokens 15 and 31 are the last of two shards of 32 rows."""
    golden = TABLE[IDS.astype(int)]
    lost = np.isin(IDS, (15, 31))
    assert lost.any()
    cause = top(
        np.where(lost[..., None], 0, golden),
        golden,
        (IDS,),
        (TABLE,),
        "Module.embedding.Embedding",
        {"tp": 2},
    )
    assert cause.kind == kinds.DROPPED and f"{int(lost.sum())} whole rows" in cause.text
    assert "the last id of a shard" in cause.text and "dealt to 2 (tp)" in cause.text


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ({"change": lambda s: s * 0.7}, kinds.SOFTMAX_SCALE, "scores times 0.7"),
        ({"change": lambda s: 0.9 * np.tanh(s / 0.9)}, kinds.ACTIVATION, "tanh at 0.9"),
        ({"change": lambda s: np.clip(s, -0.4, 0.4)}, kinds.ACTIVATION, "plus and minus 0.4"),
        ({"change": lambda s: s - SLOPES * DISTANCE}, kinds.EXTRA_TERM, "0.5, 0.25, 0.125, 0.0625 (by head)"),
        ({"change": lambda s: s + np.sin(DISTANCE)}, kinds.EXTRA_TERM, "goes with the distance"),
        ({"change": lambda s: s + np.sin(np.outer(range(12), range(12)))}, kinds.EXTRA_TERM, "pair of positions"),
        ({"seen": np.tri(12, dtype=bool) & (LATE[:, None] == LATE)}, kinds.MASK, "35 pairs"),
        ({"change": lambda s: s + 0.3 * s**3}, kinds.SOFTMAX_SCALE, "changed before the softmax"),
        ({"weigh": lambda p: p * WEIGHTS_KEPT / 0.8}, kinds.LOCAL, "dropout of 0.2 left on in attention"),
    ],
)  # fmt: skip
def test_what_is_done_to_the_scores_is_named(how, kind, words):
    cause = of_attention(**how)
    assert cause.kind == kind and words in cause.text


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (turn(Q, base=500.0), "a base of 500, golden's is 1e+04"),
        (turn(Q, np.arange(12) / 2.5), "interpolated by 2.5"),
        (turn(Q, np.arange(12) + 3), "+3 everywhere"),
        (turn(Q, np.r_[:7, :5]), "counted anew at [7]"),
        (turn(Q, width=4), "only the first 4 of a head's 8"),
        (1.2 * turn(Q), "times 1.2"),
    ],
)
def test_other_angles_are_told(target, words):
    cause = of_rotary(target)
    assert cause.kind in (kinds.ROTARY, kinds.SCALED) and words in cause.text
