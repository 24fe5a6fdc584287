"""The miniature against written-out loops, finite differences, and itself on other layouts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telekit.accuracy.miniature import Config, Fault, Layout, dump, points, run
from telekit.accuracy.miniature.mesh import Mesh, merge, reduce
from telekit.accuracy.miniature.parameters import make_tokens
from telekit.errors import InputError

DENSE = Config(precision="fp64", clip_grad=0.0)
MIXTURE = Config(precision="fp64", experts=4, shared_ffn=16, tied=True, clip_grad=0.0)


def tensors_of(result, **options):
    return {(t.step, t.name): t.load() for t in dump(result, **options)}


def weights(result):
    """Weights before the first update, by short name."""
    found = tensors_of(result, steps=[0])
    tail = ".weight.Adam.step.0.input.parameter"
    return {
        name.removeprefix("Optimizer.").removesuffix(tail): value
        for (_, name), value in found.items()
        if name.endswith(tail)
    }


# --- forward, token by token ------------------------------------------------------------------------------------


def norm(x, w, eps):
    return x / np.sqrt((x**2).mean() + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, position, base):
    """Rotary as a product of complex numbers."""
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * base ** (-np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag])


def attend(x, w, name, c):
    size, each = c.head_size, c.heads // c.kv_heads
    fused = (x @ w[f"{name}.linear_qkv"].T).reshape(len(x), c.kv_heads, each + 2, size)
    out = np.zeros((len(x), c.heads, size))
    for t, head in itertools.product(range(len(x)), range(c.heads)):
        group = head // each
        q = rotate(fused[t, group, head % each], t, c.rotary_base)
        keys = [rotate(fused[s, group, each], s, c.rotary_base) for s in range(t + 1)]
        power = np.exp([q @ k / np.sqrt(size) for k in keys])
        out[t, head] = sum(p * fused[s, group, each + 1] for s, p in enumerate(power)) / power.sum()
    return out.reshape(len(x), -1) @ w[f"{name}.linear_proj"].T


def swiglu(x, first, second):
    gate, up = np.split(first @ x, 2)
    return second @ (silu(gate) * up)


def mix(x, w, name, c):
    """Return the layer's output and, for the balancing loss, its shares and mean probabilities."""
    out, share, mean = np.zeros_like(x), np.zeros(c.experts), np.zeros(c.experts)
    for t, row in enumerate(x):
        p = np.exp(w[f"{name}.router"] @ row)
        p /= p.sum()
        best = np.argsort(-p)[: c.top_k]
        for e in best:
            answer = swiglu(row, w[f"{name}.experts.linear_fc1"][e], w[f"{name}.experts.linear_fc2"][e])
            out[t] += p[e] / p[best].sum() * answer
            share[e] += 1 / len(x) / c.top_k
        mean += p / len(x)
        if c.shared_ffn:
            shared = f"{name}.shared_experts"
            out[t] += swiglu(row, w[f"{shared}.linear_fc1"], w[f"{shared}.linear_fc2"])
    return out, c.aux_coefficient * c.experts * (share @ mean)


def loss_of(c, w, tokens):
    total = aux = 0.0
    for row in tokens:
        x = w["embedding.word_embeddings"][row[:-1]]
        for i in range(c.layers):
            name = f"decoder.layers.{i}"
            y = np.array([norm(r, w[f"{name}.input_layernorm"], c.norm_eps) for r in x])
            x = x + attend(y, w, f"{name}.self_attention", c)
            y = np.array([norm(r, w[f"{name}.pre_mlp_layernorm"], c.norm_eps) for r in x])
            if c.experts:
                y, balance = mix(y, w, f"{name}.mlp", c)
                aux += balance / c.batch
            else:
                first, second = w[f"{name}.mlp.linear_fc1"], w[f"{name}.mlp.linear_fc2"]
                y = np.array([swiglu(r, first, second) for r in y])
            x = x + y
        head = w["embedding.word_embeddings"] if c.tied else w["output_layer"]
        for r, label in zip(x, row[1:], strict=True):
            logits = head @ norm(r, w["decoder.final_layernorm"], c.norm_eps)
            total += np.log(np.exp(logits).sum()) - logits[label]
    return total / c.tokens, aux


@pytest.mark.parametrize("config", [DENSE, MIXTURE, Config(precision="fp64", kv_heads=4, experts=3, top_k=1)])
def test_the_losses_are_those_of_the_formulas(config):
    done = run(config, steps=1)
    lm, aux = loss_of(config, weights(done), make_tokens(config, 0, 0))
    assert done.losses[0] == pytest.approx(lm, rel=1e-12)
    assert done.aux_losses[0] == pytest.approx(aux, rel=1e-12, abs=1e-15)


# --- backward and update ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [DENSE, MIXTURE, Config(precision="fp64", experts=4, clip_grad=0.0)])
def test_gradients_are_the_slopes_of_the_loss(config):
    done = run(config, steps=1)
    grads = tensors_of(done)
    random = np.random.default_rng(1)
    for name in done.parameters:
        grad = grads[0, f"Optimizer.{name}.Adam.step.0.input.grad"]
        way = random.standard_normal(grad.shape)
        sides = []
        for h in (1e-5, -1e-5):
            moved = Fault(f"initial.{name}", lambda event, h=h, way=way: event.inputs[0] + h * way)
            there = run(config, steps=1, fault=moved, keep=False)
            sides.append(there.losses[0] + there.aux_losses[0])
        slope = (sides[0] - sides[1]) / 2e-5
        assert (grad * way).sum() == pytest.approx(slope, rel=1e-6, abs=1e-9), name


def test_an_update_is_adamw_with_the_gradient_clipped():
    config = Config(precision="fp64", clip_grad=0.5)
    done = run(config, steps=2)
    found = tensors_of(done)
    squares = 0.0
    for name in done.parameters:
        first, second = 0.0, 0.0
        for step in (0, 1):
            api = f"Optimizer.{name}.Adam.step.0"
            reduced = found[step, f"Gradient.{name}.reduce.step.0.output.0"]
            squares += (reduced**2).sum() if step == 0 else 0
            grad = reduced * 0.5 / (done.grad_norms[step] + 1e-6)
            w = found[step, f"{api}.input.parameter"]
            first = 0.9 * first + 0.1 * grad
            second = 0.95 * second + 0.05 * grad**2
            hat = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.95 ** (step + 1))
            decay = 0.0 if "norm" in name else 0.1
            w = w - 1e-3 * (hat[0] / (np.sqrt(hat[1]) + 1e-8) + decay * w)
            np.testing.assert_allclose(found[step, f"{api}.input.grad"], grad, rtol=1e-12, atol=1e-18)
            np.testing.assert_allclose(found[step, f"{api}.output.parameter"], w, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(found[step, f"{api}.output.exp_avg_sq"], second, rtol=1e-12)
    assert done.grad_norms[0] == pytest.approx(np.sqrt(squares), rel=1e-12)


def test_it_learns():
    losses = run(Config(lr=1e-2), steps=60, keep=False).losses
    assert np.mean(losses[-5:]) < 2 < np.log(64) < losses[0]


# --- layouts ----------------------------------------------------------------------------------------------------

LAYOUTS = [
    {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"dp": 4}, {"micro_batches": 4}, {"dp": 2, "micro_batches": 2},
    {"cp": 4}, {"cp": 2, "cp_comm_type": "all_gather"}, {"pp": 2}, {"cp": 4, "dp": 4, "reduce_order": "tree"},
    {"tp": 2, "cp": 2, "dp": 2, "pp": 2, "micro_batches": 2, "sequence_parallel": True},
    {"cp": 4, "dp": 2, "cp_comm_type": "all_gather", "reduce_order": "sequential"},
]  # fmt: skip
EXPERT_LAYOUTS = [
    {"dp": 2, "ep": 2}, {"dp": 4, "ep": 2}, {"cp": 2, "ep": 2},
    {"tp": 2, "cp": 2, "dp": 2, "pp": 2, "ep": 4, "sequence_parallel": True},
    {"tp": 2, "cp": 2, "dp": 2, "ep": 2, "micro_batches": 2},
]  # fmt: skip


def assert_same(target, golden, limit):
    """Every tensor of two merged dumps, and in the same order."""
    a, b = tensors_of(target), tensors_of(golden)
    assert list(a) == list(b)
    for key, value in b.items():
        assert a[key].shape == value.shape, key
        scale = np.abs(value).max() if value.size else 0
        assert np.abs(a[key].astype(float) - value.astype(float)).max(initial=0) <= limit * scale, key


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_changes_a_dense_model_by_rounding_only(layout):
    target, golden = run(DENSE, Layout(**layout)), run(DENSE)
    assert_same(target, golden, 1e-11)
    assert target.losses == pytest.approx(golden.losses, rel=1e-14)
    assert target.grad_norms == pytest.approx(golden.grad_norms, rel=1e-13)


@pytest.mark.parametrize("layout", LAYOUTS + EXPERT_LAYOUTS, ids=str)
def test_a_layout_changes_a_mixture_by_rounding_only(layout):
    target, golden = run(MIXTURE, Layout(**layout)), run(MIXTURE)
    if layout.get("pp", 1) > 1:  # copies of a tied weight have terms of their own: the sum is not told apart
        own = "Gradient.embedding.word_embeddings.weight.reduce.step.0.input.0"
        golden_names = [key for key in tensors_of(golden) if key[1] != own]
        assert list(tensors_of(target)) == golden_names
        assert target.losses == pytest.approx(golden.losses, rel=1e-14)
    else:
        assert_same(target, golden, 1e-11)
    assert target.aux_losses == pytest.approx(golden.aux_losses, rel=1e-13)
    assert target.grad_norms == pytest.approx(golden.grad_norms, rel=1e-13)
    for name in golden.parameters:
        np.testing.assert_allclose(target.weight(name), golden.weight(name), rtol=0, atol=1e-12)


@settings(max_examples=15)
@given(st.data())
def test_any_model_on_any_layout(data):
    def draw(*values):
        return data.draw(st.sampled_from(values))

    tp, cp, dp = draw(1, 2), draw(1, 2), draw(1, 2)
    experts = draw(0, 2, 4)
    ep = draw(*[n for n in (1, 2, 4) if (dp * cp) % n == 0 and (n == 1 or (experts and experts % n == 0))])
    config = Config(
        layers=draw(1, 2), hidden=16, heads=4, kv_heads=draw(2, 4), ffn=8, vocabulary=16, sequence=8, batch=4,
        experts=experts, top_k=draw(1, 2), shared_ffn=draw(0, 8) if experts else 0, tied=draw(True, False),
        precision="fp64",
    )  # fmt: skip
    layout = Layout(
        tp=tp, cp=cp, dp=dp, ep=ep, micro_batches=draw(1, 2), sequence_parallel=draw(True, False),
        cp_comm_type=draw("p2p", "all_gather"), reduce_order=draw("ring", "tree", "sequential"),
    )  # fmt: skip
    golden = run(config, seed=3)
    assert_same(run(config, layout, seed=3, routing=golden), golden, 1e-9)


def relative(target, golden):
    """Frobenius distances over the golden's norm, of every tensor of two dumps."""
    a, b = tensors_of(target), tensors_of(golden)
    sizes = {key: np.linalg.norm(value.astype(float)) for key, value in b.items()}
    return {
        key: np.linalg.norm(a[key].astype(float) - b[key].astype(float)) / sizes[key]
        for key in b
        if sizes[key]
    }


@pytest.mark.parametrize(
    "config", [Config(precision="bf16"), Config(precision="bf16", experts=4)], ids=["dense", "moe"]
)
@pytest.mark.parametrize(
    "layout",
    [{"tp": 2}, {"dp": 2}, {"cp": 2}, {"tp": 2, "cp": 2, "dp": 2, "sequence_parallel": True}],
    ids=str,
)
def test_in_bf16_a_layout_differs_by_a_few_roundings(config, layout):
    golden = run(config)
    errors = relative(run(config, Layout(**layout), routing=golden), golden)
    assert 2**-12 < max(errors.values()) < 16 * 2**-8
    looked_up = (0, "Module.embedding.word_embeddings.VocabParallelEmbedding.forward.0.output.0")
    assert errors[looked_up] == 0  # one rank has the token, the others add zero


def test_bf16_rounds_every_operator_and_keeps_masters_wide():
    import ml_dtypes

    done = run(Config(precision="bf16", experts=4), Layout(tp=2, dp=2))
    wide = []
    for tensor in dump(done):
        if tensor.dtype == "float32":
            wide.append(tensor.name)
            continue
        assert tensor.dtype in ("bfloat16", "int64")
        if tensor.dtype == "bfloat16":
            assert tensor.load().dtype == ml_dtypes.bfloat16
    words = [name.split(".") for name in wide if name.startswith("Module")]
    modules = {word[-4] if "parameters_grad" in word else word[-5] for word in words}
    assert modules <= {"TopKRouter", "VocabParallelCrossEntropy", "MoEAlltoAllTokenDispatcher"}
    master = done.weight("decoder.final_layernorm.weight")
    assert not np.array_equal(master, master.astype(ml_dtypes.bfloat16).astype(np.float32))
    fine = run(Config(experts=4))
    assert done.losses == pytest.approx(fine.losses, rel=5e-3)
    assert done.losses != fine.losses


def test_a_rounding_difference_can_tip_a_choice_and_replay_prevents_it():
    config = Config(precision="bf16", experts=4, shared_ffn=16)
    golden = run(config)
    free, held = run(config, Layout(tp=2)), run(config, Layout(tp=2), routing=golden)

    def changed(result):
        return sum((result.routing[key] != choice).any() for key, choice in golden.routing.items())

    assert changed(held) == 0
    assert max(relative(held, golden).values()) < 16 * 2**-8
    assert changed(free) > 0  # of this seed
    assert max(relative(free, golden).values()) > 0.1


# --- ranks and sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_reductions_add_in_their_order(n):
    def rnd(x):
        return np.asarray(x, np.float16).astype(np.float32)

    terms = rnd(np.random.default_rng(n).standard_normal((n, 3, 5)))

    def added(values):
        total = values[0]
        for value in values[1:]:
            total = rnd(np.float32(total + value))
        return total

    np.testing.assert_array_equal(reduce(terms, "sequential", rnd), added(list(terms)))
    flat, ring = terms.reshape(n, -1), []
    for i in range(15):
        start = i * n // 15 + 1
        ring.append(added([flat[(start + k) % n, i] for k in range(n)]))
    np.testing.assert_array_equal(reduce(terms, "ring", rnd).reshape(-1), ring)
    groups = np.stack([terms, rnd(terms[::-1] * 3)], axis=1)  # each group deals its own elements
    by_group = reduce(groups, "ring", rnd, 1)
    for g in (0, 1):
        np.testing.assert_array_equal(by_group[g], reduce(groups[:, g], "ring", rnd))
    level = list(terms)
    while len(level) > 1:
        pairs = [rnd(level[i] + level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + (level[-1:] if len(level) % 2 else [])
    np.testing.assert_array_equal(reduce(terms, "tree", rnd), level[0])


def test_orders_of_a_sum_differ_in_bf16_only_by_rounding():
    config = Config(precision="bf16", kv_heads=4)
    runs = [run(config, Layout(tp=4, reduce_order=order)) for order in ("ring", "sequential", "tree")]
    assert len({r.losses for r in runs}) == 3
    assert max(relative(runs[0], runs[1]).values()) < 16 * 2**-8


def test_positions_are_dealt_in_the_balanced_order():
    mesh = Mesh(Config(sequence=8), Layout(cp=2))
    np.testing.assert_array_equal(mesh.positions, [[0, 1, 6, 7], [2, 3, 4, 5]])


def test_groups_go_there_and_back():
    config, layout = Config(experts=4), Layout(dp=2, cp=2, tp=2, ep=2)
    mesh = Mesh(config, layout)
    ranks = np.arange(8).reshape(2, 2, 2)
    groups = {
        "tp": {(0, 1), (2, 3), (4, 5), (6, 7)}, "cp": {(0, 2), (1, 3), (4, 6), (5, 7)},
        "dp-cp": {(0, 2, 4, 6), (1, 3, 5, 7)}, "cp+tp": {(0, 1, 2, 3), (4, 5, 6, 7)},
        "ep": {(0, 2), (1, 3), (4, 6), (5, 7)}, "edp": {(0, 4), (1, 5), (2, 6), (3, 7)},
    }  # fmt: skip
    for axes, expected in groups.items():
        first = mesh.to_groups(ranks, axes)
        assert {tuple(g) for g in first.reshape(len(first), -1).T.tolist()} == expected, axes
        np.testing.assert_array_equal(mesh.from_groups(first, axes), ranks)
        wide = np.arange(8 * 6).reshape(2, 2, 2, 2, 3)
        np.testing.assert_array_equal(mesh.from_groups(mesh.to_groups(wide, axes), axes), wide)


def test_seeds_and_repeats():
    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    assert first.losses == again.losses != other.losses
    assert_same(first, again, 0)


def test_points_are_listed_once_and_name_what_a_layout_has():
    one, many = points(), points(Config(experts=4), Layout(tp=2, dp=2, ep=2))
    assert len({p.name for p in many}) == len(many)
    assert not [p for p in one if p.kind == "collective"]
    assert {p.name for p in one} - {p.name for p in points(layout=Layout(tp=2, dp=2))} == set()
    assert "decoder.layers.1.self_attention.linear_proj.all_reduce" in {p.name for p in many}
    assert {"eps"} == set(next(p.settings for p in many if p.name == "decoder.final_layernorm"))


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ({"tp": 4}, ["layout.tp"]),
        ({"dp": 3}, ["layout.dp"]),
        ({"cp": 3, "pp": 3}, ["layout.pp", "layout.cp"]),
        ({"dp": 2, "ep": 2}, ["layout.ep"]),
        ({"tp": 2, "cp": 8, "sequence_parallel": True, "dp": 8}, ["layout.dp"]),
    ],
)
def test_a_layout_that_does_not_divide_the_model_is_refused(layout, fields):
    with pytest.raises(InputError) as error:
        run(DENSE, Layout(**layout))
    assert [p.field for p in error.value.problems] == fields


def test_sizes_are_checked_at_the_door():
    with pytest.raises(InputError) as error:
        Config(layers=0, hidden=2.5, experts=True)
    assert [p.field for p in error.value.problems] == ["config.layers", "config.hidden", "config.experts"]
    with pytest.raises(InputError, match="rotary"):
        Config(hidden=36)
    with pytest.raises(InputError) as error:
        Layout(dp=2, ep=3)
    assert error.value.problems[0].field == "layout.ep"
    with pytest.raises(InputError):
        run(steps=0)


def test_a_whole_is_made_of_rows_by_their_keys():
    from telekit.accuracy.miniature.mesh import Place

    mesh = Mesh(Config(experts=2), Layout(dp=2))
    keys = np.array([[5, 1], [3, -1]]).reshape(2, 1, 1, 2)
    rows = np.array([[[50.0], [10.0]], [[30.0], [0.0]]]).reshape(2, 1, 1, 2, 1)
    np.testing.assert_array_equal(merge([(rows, Place(keys=keys))], mesh), [[10.0], [30.0], [50.0]])
