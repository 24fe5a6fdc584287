"""Every subgraph against NumPy written by hand, unfused and as the search fuses it."""

import ml_dtypes
import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.errors import InputError
from telekit.fusion.bytecode import encode
from telekit.fusion.kernels import Fusion
from telekit.fusion.machine import run
from telekit.fusion.reference import run_unfused
from telekit.fusion.search import search
from telekit.fusion.subgraphs import SIZES, SUBGRAPHS, bias_dropout_add, router_scores, subgraph
from telekit.fusion.traffic import Target

T, H, F, E, K, N, A, R, V, P = 6, 16, 24, 12, 3, 18, 2, 4, 40, 50
SMALL = {"T": T, "H": H, "F": F, "E": E, "K": K, "N": N, "A": A, "R": R, "V": V, "P": P}
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.normal(size=shape).astype("f4").astype(BF16)


def wide(array):
    return array.astype("f8")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def case_rms_norm():
    x, w = normal(T, H), normal(H)
    return {"x": x, "weight": w}, {"y": _norm(wide(x), wide(w))}


def case_residual_rms_norm():
    x, r, w = normal(T, H), normal(T, H), normal(H)
    total = wide(x + r)
    return {"x": x, "residual": r, "weight": w}, {"sum": total, "y": _norm(total, wide(w))}


def case_rms_norm_backward():
    x, w, dy = normal(T, H), normal(H), normal(T, H)
    step, big = 1e-5, wide(x)
    dx = np.empty((T, H))
    for t, h in np.ndindex(T, H):
        one = np.zeros((T, H))
        one[t, h] = step
        change = _norm(big + one, wide(w)) - _norm(big - one, wide(w))
        dx[t, h] = (change * wide(dy)).sum() / (2 * step)
    return {"dy": dy, "x": x, "weight": w}, {"dx": dx, "dweight": (wide(dy) * _norm(big, 1.0)).sum(0)}


def case_residual_rms_norm_backward():
    inputs, want = case_rms_norm_backward()
    inputs["dsum"] = normal(T, H)
    return inputs, want | {"dx": want["dx"] + wide(inputs["dsum"])}


def case_swiglu():
    gate, up = normal(T, F), normal(T, F)
    return {"gate": gate, "up": up}, {"y": wide(gate) * sigmoid(wide(gate)) * wide(up)}


def case_swiglu_backward():
    dy, gate, up = normal(T, F), normal(T, F), normal(T, F)
    big, step = wide(gate), 1e-5
    slope = ((big + step) * sigmoid(big + step) - (big - step) * sigmoid(big - step)) / (2 * step)
    want = {"dgate": wide(dy) * wide(up) * slope, "dup": wide(dy) * big * sigmoid(big)}
    return {"dy": dy, "gate": gate, "up": up}, want


def _turned(sign, names):
    angle = RNG.uniform(0, 6, (T, 1, R))
    first, second = normal(T, A, R), normal(T, A, R)
    cos, sin = np.cos(angle).astype("f4").astype(BF16), np.sin(angle).astype("f4").astype(BF16)
    point = (wide(first) + 1j * wide(second)) * (
        wide(cos) + sign * 1j * wide(sin)
    )  # a rotation is a complex product
    inputs = {"first": first, "second": second, "cos": cos, "sin": sin}
    return inputs, dict(zip(names, (point.real, point.imag), strict=True))


def case_rotary():
    return _turned(1, ("first_turned", "second_turned"))


def case_rotary_backward():
    return _turned(-1, ("dfirst", "dsecond"))


def case_router_softmax():
    logits = RNG.normal(size=(T, E)).astype("f4")
    return {"logits": logits}, {"scores": softmax(logits.astype("f8"))}


def case_router_sigmoid():
    logits, bias = RNG.normal(size=(T, E)).astype("f4"), RNG.normal(size=E).astype("f4")
    scores = sigmoid(logits.astype("f8"))
    return {"logits": logits, "bias": bias}, {"scores": scores, "choice": scores + bias}


def case_router_weights():
    scores = RNG.random((T, E)).astype("f4")
    mask, weights = np.zeros((T, E), "f4"), np.zeros((T, E))
    for t in range(T):
        chosen = np.argsort(-scores[t])[:K]
        mask[t, chosen] = 1
        weights[t, chosen] = scores[t, chosen].astype("f8") / scores[t, chosen].sum() * 2.5
    return {"scores": scores, "mask": mask}, {"weights": weights}


def slope(function, x, dy):
    """Gradient of ``(function(x) * dy).sum()``, by differences."""
    found, step = np.empty_like(x), 1e-6
    for place in np.ndindex(x.shape):
        one = np.zeros_like(x)
        one[place] = step
        found[place] = ((function(x + one) - function(x - one)) * dy).sum() / (2 * step)
    return found


def _scores_backward(scores_of):
    logits, dy = RNG.normal(size=(T, E)), RNG.normal(size=(T, E)).astype("f4")
    return {"dscores": dy, "scores": scores_of(logits).astype("f4")}, {
        "dlogits": slope(scores_of, logits, dy)
    }


def case_router_softmax_backward():
    return _scores_backward(softmax)


def case_router_sigmoid_backward():
    return _scores_backward(sigmoid)


def case_router_weights_backward():
    inputs, _ = case_router_weights()
    mask, dy = inputs["mask"], RNG.normal(size=(T, E)).astype("f4")
    weights = lambda s: 2.5 * s * mask / (s * mask).sum(-1, keepdims=True)  # noqa: E731
    return inputs | {"dweights": dy}, {"dscores": slope(weights, wide(inputs["scores"]), dy)}


def case_bias_dropout_add():
    x, bias, residual = normal(T, H), normal(H), normal(T, H)
    mask = (RNG.random((T, H)) < 0.9).astype(BF16)
    want = wide(residual) + np.where(wide(mask) > 0, (wide(x) + wide(bias)) / 0.9, 0.0)
    return {"x": x, "bias": bias, "mask": mask, "residual": residual}, {"y": want}


def case_cross_entropy():
    logits, labels = normal(T, V), RNG.integers(0, V, T)
    chance = softmax(wide(logits))
    target = np.take_along_axis(logits.astype("f4"), labels[:, None], 1)
    loss = -np.log(chance[np.arange(T), labels])[:, None]
    return {"logits": logits, "target": target}, {"loss": loss, "softmax": chance}


def case_cross_entropy_backward():
    chance, dloss = softmax(RNG.normal(size=(T, V))).astype(BF16), RNG.normal(size=(T, 1)).astype("f4")
    return {"softmax": chance, "dloss": dloss}, {"dlogits": wide(chance) * dloss}


def case_adamw():
    master, first, gradient = (RNG.normal(size=P).astype("f4") for _ in range(3))
    second, step, rate = RNG.random(P).astype("f4"), 10, 0.01
    m, v = (
        0.9 * first.astype("f8") + 0.1 * gradient,
        0.95 * second.astype("f8") + 0.05 * gradient.astype("f8") ** 2,
    )
    shrunk = master * (1 - rate * 0.1)
    new = shrunk - rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
    numbers = {"rate": rate, "unbias1": 1 / (1 - 0.9**step), "unbias2": 1 / (1 - 0.95**step)}
    inputs = {"master": master, "first": first, "second": second, "gradient": gradient}
    inputs |= {name: np.array(value, "f4") for name, value in numbers.items()}
    return inputs, {"master_new": new, "first_new": m, "second_new": v, "parameter": new}


def case_permute():
    x, index = normal(T, H), RNG.integers(0, T, N)
    return {"x": x, "index": index}, {"y": np.stack([wide(x)[i] for i in index])}


def case_unpermute():
    x, index, weights = normal(N, H), RNG.integers(0, N, (T, K)), normal(T, K, 1)
    want = [
        [sum(wide(x)[index[t, k], h] * wide(weights)[t, k, 0] for k in range(K)) for h in range(H)]
        for t in range(T)
    ]
    return {"x": x, "index": index, "weights": weights}, {"y": np.array(want)}


def case_permute_backward():
    dy, tokens = normal(N, H), np.repeat(np.arange(T), K)
    RNG.shuffle(tokens)
    dx = np.zeros((T, H))
    np.add.at(dx, tokens, wide(dy))
    return {"dy": dy, "index": np.argsort(tokens, kind="stable").reshape(T, K)}, {"dx": dx}


def case_unpermute_backward():
    dy, x, weights, token = normal(T, H), normal(N, H), normal(N, 1), RNG.integers(0, T, N)
    dx = np.stack([wide(dy)[token[n]] * wide(weights)[n, 0] for n in range(N)])
    dweights = np.array([[wide(dy)[token[n]] @ wide(x)[n]] for n in range(N)])
    return {"dy": dy, "token": token, "x": x, "weights": weights}, {"dx": dx, "dweights": dweights}


def case_feed_forward():
    x, weight = normal(T, H), normal(H)
    gate, up, down = normal(H, F), normal(H, F), normal(F, H)
    normed = _norm(wide(x), wide(weight))
    inner = (normed @ wide(gate)) * sigmoid(normed @ wide(gate)) * (normed @ wide(up))
    inputs = {"x": x, "weight": weight, "w_gate": gate, "w_up": up, "w_down": down}
    return inputs, {"y": inner @ wide(down) + wide(x)}


CASES = {name[5:].replace("_", "-"): make for name, make in globals().items() if name.startswith("case_")}
PLACES = {"bf16": 0.03, "fp32": 3e-5}


def test_every_subgraph_has_a_case():
    assert set(CASES) == set(SUBGRAPHS)
    assert {size for name in SUBGRAPHS for size in subgraph(name).symbols()} <= set(SIZES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_subgraph_computes_what_plain_numpy_does(name):
    graph = subgraph(name)
    inputs, want = CASES[name]()
    target = Target.of(load_cluster({"device": "ascend-910b", "nodes": 1}).device)
    fusion = search(graph, SMALL, target).fusion
    assert len(fusion.groups) <= len(Fusion.none(graph).groups)
    for got in (run_unfused(graph, inputs), run(encode(graph, fusion), inputs)):
        assert set(got) == set(want)
        for key, value in want.items():
            rounding = PLACES[graph.nodes[graph.outputs[key]].dtype]
            np.testing.assert_allclose(
                wide(got[key]), value, rtol=rounding, atol=rounding * np.abs(value).max()
            )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: subgraph("layer-norm"), "name"),
        (lambda: router_scores("relu"), "score"),
        (lambda: bias_dropout_add(keep=0.0), "keep"),
    ],
)
def test_what_is_refused_names_the_field(make, field):
    with pytest.raises(InputError) as error:
        make()
    assert error.value.problems[0].field == field
