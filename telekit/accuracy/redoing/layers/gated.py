"""Formulas of gated activations (SwiGLU and its kin), forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from telekit.accuracy.causes import finding as kinds
from telekit.accuracy.causes.case import Case, Known
from telekit.accuracy.compared import BACKWARD, FORWARD
from telekit.accuracy.measures.pairs import Floats
from telekit.accuracy.redoing.formula.fit import plain, searched
from telekit.accuracy.redoing.formula.formula import Formula, Variant, own_side
from telekit.accuracy.redoing.formula.orders import counts
from telekit.accuracy.redoing.formula.softmax import sigmoid
from telekit.accuracy.redoing.layers.halves import READINGS, exchanged, in_pieces, of_pieces


def _silu(x: Floats) -> Floats:
    return np.asarray(x * sigmoid(x))


def _gelu(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _relu(x: Floats) -> Floats:
    return np.asarray(np.maximum(x, 0))


def _silu_slope(x: Floats) -> Floats:
    s = sigmoid(x)
    return np.asarray(s * (1 + x * (1 - s)))


def _gelu_slope(x: Floats) -> Floats:
    c = np.sqrt(2 / np.pi)
    tanh = np.tanh(c * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * c * (1 + 3 * 0.044715 * x * x))


def _relu_slope(x: Floats) -> Floats:
    return np.asarray((x > 0) * 1.0)


def _gelu_erf(x: Floats) -> Floats:
    from scipy.special import erf

    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu with erf": _gelu_erf, "relu": _relu, "sigmoid": sigmoid}
_SLOPES = {"silu": _silu_slope, "gelu": _gelu_slope, "relu": _relu_slope}


def gated(case: Case) -> Iterator[Formula]:
    """``act(gate) * up`` of ``[gate; up]``, and the gradient of what it is made from."""
    g = case.golden
    assert g is not None
    if not g.ndim:
        return
    for x in case.inputs:
        if x.golden is None or not x.golden.ndim or x.golden.shape[-1] % 2:
            continue
        half = (*x.golden.shape[:-1], x.golden.shape[-1] // 2)
        if case.phase == FORWARD and g.shape == half:
            for name in ("silu", "gelu", "gelu with erf", "relu"):
                yield Formula(
                    f"{name}(gate) * up",
                    (x,),
                    partial(_gate, ACTIVATIONS[name]),
                    partial(_gate_variants, name, x, case),
                )
        elif case.phase == BACKWARD and g.shape == x.golden.shape:
            for up in case.inputs:
                if up.golden is not None and up.golden.shape == half:
                    for name in _SLOPES:
                        yield Formula(
                            f"the gradient of {name}(gate) * up", (up, x), partial(_gate_back, name, name),
                            partial(_gate_back_variants, name, x, case),
                        )  # fmt: skip


def _gate(act: Callable[[Floats], Floats], x: Floats) -> Floats:
    a, b = np.split(x, 2, axis=-1)
    return np.asarray(act(a) * b)


def _gate_variants(name: str, known: Known, case: Case) -> Iterator[Variant]:
    act = ACTIVATIONS[name]
    for other, function in ACTIVATIONS.items():
        if other != name:
            yield kinds.ACTIVATION, f"{other} in place of {name}", partial(_gate, function)
    yield kinds.ACTIVATION, "silu with a slope of 1.702", partial(_gate, lambda a: a * sigmoid(1.702 * a))
    yield kinds.ACTIVATION, "the activation left out of the gate", lambda x: np.multiply(*_halves(x))
    yield kinds.ACTIVATION, "the gate left out", lambda x: _halves(x)[1]
    yield kinds.ACTIVATION, "up left out", lambda x: act(_halves(x)[0])
    yield from _readings(partial(_gate, act), known, case)
    for n, of in counts(case):
        if known.golden is not None and known.golden.shape[-1] % (2 * n) == 0:
            said = f"gate and up split inside each of {n} shards {of}: re-sharded without interleaving"
            yield (
                kinds.PERMUTATION,
                said,
                lambda x, n=n: np.concatenate([_gate(act, p) for p in np.split(x, n, axis=-1)], axis=-1),
            )
    yield kinds.ACTIVATION, "tanh in its place", partial(_gate, np.tanh)
    yield (
        kinds.ACTIVATION,
        "an activation of up as well",
        lambda x: act(_halves(x)[0]) * act(_halves(x)[1]),
    )
    yield kinds.ACTIVATION, "the activation of the product", lambda x: act(np.multiply(*_halves(x)))
    yield kinds.ACTIVATION, "one added to up", lambda x: act(_halves(x)[0]) * (1 + _halves(x)[1])
    yield kinds.ACTIVATION, "gate and up added, not multiplied", lambda x: act(_halves(x)[0]) + _halves(x)[1]
    yield from _limited(name, known, case)
    yield from _other_gates(name)
    yield from _exchanged(act, known, case.target)


def _readings(make: Callable[[Floats], Floats], known: Known, case: Case) -> Iterator[Variant]:
    """Gate and up read from the wrong places, of the whole or inside each rank's piece."""
    for n, where in in_pieces(case, own_side(known).shape[-1]):
        for text, read, _ in READINGS:

            def made(x: Floats, n: int = n, read: Callable[[Floats], Floats] = read) -> Floats:
                return make(of_pieces(read, n, x))

            yield kinds.PERMUTATION, f"gate and up {text}{where}", made


def _exchanged(act: Callable[[Floats], Floats], known: Known, target: Floats | None) -> Iterator[Variant]:
    """Return the product with the channels that the target's show."""
    own = own_side(known)
    fits = target is not None and target.shape == (*own.shape[:-1], own.shape[-1] // 2)
    found = exchanged(own, act, target) if fits and target is not None else None
    if found is not None:
        text, gate, up = found
        yield kinds.PERMUTATION, text, lambda x: np.asarray(act(x[..., gate]) * x[..., up])


def _readings_back(right: Callable[[Floats, Floats], Floats], known: Known, case: Case) -> Iterator[Variant]:
    """Do the same to a gradient: its input is read so, what it makes is written so, or both."""
    for n, where in in_pieces(case, own_side(known).shape[-1]):
        for text, read, write in READINGS:
            take, put = partial(of_pieces, read, n), partial(of_pieces, write, n)
            for said, made in (
                (f"gate and up {text}", lambda u, x, take=take: right(u, take(x))),
                (f"the gradients of gate and up {text}", lambda u, x, put=put: put(right(u, x))),
                (f"gate and up, and their gradients, {text}",
                 lambda u, x, take=take, put=put: put(right(u, take(x)))),
            ):  # fmt: skip
                yield kinds.PERMUTATION, f"{said}{where}", made


def _limited(name: str, known: Known, case: Case) -> Iterator[Variant]:
    """Clamp or soft-cap gate, up, the activated gate or the product, each at the limit that fits the target best."""
    t, act = case.target, ACTIVATIONS[name]
    if t is None:
        return
    own = own_side(known)
    some = own.reshape(-1, own.shape[-1])[:_FITTED_ROWS]
    of = t.reshape(-1, t.shape[-1])[:_FITTED_ROWS]
    top = float(np.abs(some).max())

    def clip(x: Floats, c: float) -> Floats:
        return np.clip(x, -c, c)

    def cap(x: Floats, c: float) -> Floats:
        return np.asarray(c * np.tanh(x / c))

    makes: dict[str, Callable[[Floats, Floats, float], Floats]] = {
        "gate clamped from above, up on both sides, at {:.4g}": lambda a, b, c: act(np.minimum(a, c)) * clip(b, c),
        "gate and up clamped to plus and minus {:.4g}": lambda a, b, c: act(clip(a, c)) * clip(b, c),
        "gate clamped to at most {:.4g}": lambda a, b, c: act(np.minimum(a, c)) * b,
        "gate clamped to plus and minus {:.4g}": lambda a, b, c: act(clip(a, c)) * b,
        "up clamped to plus and minus {:.4g}": lambda a, b, c: act(a) * clip(b, c),
        "up clamped to at most {:.4g}": lambda a, b, c: act(a) * np.minimum(b, c),
        "the activated gate clamped to at most {:.4g}": lambda a, b, c: np.minimum(act(a), c) * b,
        "gate soft-capped with tanh at {:.4g}": lambda a, b, c: act(cap(a, c)) * b,
        "up soft-capped with tanh at {:.4g}": lambda a, b, c: act(a) * cap(b, c),
        "a slope of {:.4g} in the gate's sigmoid": lambda a, b, c: a * sigmoid(c * a) * b,
        "{:.4g} added to up": lambda a, b, c: act(a) * (b + c),
        "gpt-oss's gate: clamped at {:.4g}, a slope of 1.702 and one added to up":
            lambda a, b, c: np.minimum(a, c) * sigmoid(1.702 * np.minimum(a, c)) * (1 + clip(b, c)),
    }  # fmt: skip
    for text, make in makes.items():

        def left(c: Floats, make: Callable[[Floats, Floats, float], Floats] = make) -> Floats:
            return np.array([float(np.square(make(*_halves(some), float(c[0])) - of).sum())])

        c = float(plain(searched(left, np.geomspace(1e-3 * top, 2 * top, 48), 1), left)[0])
        other = min(float(left(np.array([c * f]))[0]) for f in (0.9, 1.1))
        if other > 2 * float(left(np.array([c]))[0]):  # else nothing tells the limit
            yield kinds.ACTIVATION, text.format(c), lambda x, c=c, make=make: make(*_halves(x), c)


def _other_gates(name: str) -> Iterator[Variant]:
    """Put another activation in the place of golden's."""
    others: tuple[tuple[str, Callable[[Floats], Floats]], ...] = (
        ("quick-gelu", lambda a: a * sigmoid(1.702 * a)),
        ("relu squared", lambda a: np.maximum(a, 0) ** 2),
        ("softplus", lambda a: np.log1p(np.exp(a))),
        ("leaky relu of 0.01", lambda a: np.where(a > 0, a, 0.01 * a)),
        ("elu", lambda a: np.where(a > 0, a, np.expm1(np.minimum(a, 0)))),
        ("mish", lambda a: a * np.tanh(np.log1p(np.exp(a)))),
        ("hard-swish", lambda a: a * np.clip(a / 6 + 0.5, 0, 1)),
    )
    for text, function in others:
        yield kinds.ACTIVATION, f"{text} in place of {name}", partial(_gate, function)


_FITTED_ROWS = 2048


def _halves(x: Floats) -> tuple[Floats, Floats]:
    a, b = np.split(x, 2, axis=-1)
    return a, b


def _gate_back(slope: str, act: str, up: Floats, x: Floats) -> Floats:
    a, b = _halves(x)
    return np.concatenate([up * b * _SLOPES[slope](a), up * ACTIVATIONS[act](a)], axis=-1)


_Part = Callable[[Floats, Floats, Floats], Floats]
"""Gradient of gate, or of up, from the output's gradient, gate and up."""


def _joined(of_gate: _Part, of_up: _Part, up: Floats, x: Floats) -> Floats:
    a, b = _halves(x)
    return np.concatenate([of_gate(up, a, b), of_up(up, a, b)], axis=-1)


def _gate_back_variants(name: str, known: Known, case: Case) -> Iterator[Variant]:
    act, slope = ACTIVATIONS[name], _SLOPES[name]
    term, wrong = kinds.MISSING_TERM, kinds.ACTIVATION

    def gate(u: Floats, a: Floats, b: Floats) -> Floats:
        return u * b * slope(a)

    def up(u: Floats, a: Floats, b: Floats) -> Floats:
        return u * act(a)

    for kind, text, of_gate in (*(_SILU_GATES if name == "silu" else ()), *_gates(name)):
        yield kind, text, partial(_joined, of_gate, up)
    for kind, text, of_up in (
        (wrong, "the sigmoid alone in up's gradient", lambda u, a, b: u * sigmoid(a)),
        (wrong, "up's gradient not times the activation", lambda u, a, b: u),
        (wrong, "up's gradient times gate, not its activation", lambda u, a, b: u * a),
        (wrong, "up's gradient times up", lambda u, a, b: u * b),
        (term, "up's gradient left out", lambda u, a, b: 0 * u),
    ):
        yield kind, text, partial(_joined, gate, of_up)
    for other in _SLOPES:
        if other != name:
            yield wrong, f"{other}'s derivative in place of {name}'s", partial(_gate_back, other, name)
            yield wrong, f"the gradient of {other}", partial(_gate_back, other, other)
    yield from _readings_back(partial(_gate_back, name, name), known, case)


def _gates(name: str) -> tuple[tuple[str, str, _Part], ...]:
    act, slope = ACTIVATIONS[name], _SLOPES[name]
    wrong = kinds.ACTIVATION
    return (
        (wrong, "a derivative of one", lambda u, a, b: u * b),
        (wrong, "the activation in place of its derivative", lambda u, a, b: u * b * act(a)),
        (wrong, "gate's gradient not times up", lambda u, a, b: u * slope(a)),
        (wrong, "the derivative taken at up", lambda u, a, b: u * b * slope(b)),
        (kinds.MISSING_TERM, "gate's gradient left out", lambda u, a, b: 0 * u),
    )


_SILU_GATES: tuple[tuple[str, str, _Part], ...] = (
    (kinds.MISSING_TERM, "the derivative's second term, gate * s * (1 - s), left out",
     lambda u, a, b: u * b * sigmoid(a)),
    (kinds.MISSING_TERM, "the derivative's first term, s, left out",
     lambda u, a, b: u * b * a * sigmoid(a) * (1 - sigmoid(a))),
    (kinds.ACTIVATION, "the sigmoid's derivative in place of silu's",
     lambda u, a, b: u * b * sigmoid(a) * (1 - sigmoid(a))),
    (kinds.ACTIVATION, "a derivative of s * (1 + gate * s)", lambda u, a, b: u * b * sigmoid(a) * (1 + a * sigmoid(a))),
    (kinds.ACTIVATION, "a derivative of s * (1 + gate)", lambda u, a, b: u * b * sigmoid(a) * (1 + a)),
)  # fmt: skip
