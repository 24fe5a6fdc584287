"""Clear differences that no rule of the default standard looks at: none of them passes."""

import csv

import ml_dtypes
import numpy as np
import pytest
from dump_files import dump, item, npz
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.compare import compare
from telekit.accuracy.comparing.judged import is_dropout
from telekit.accuracy.comparing.table import rows_of, write_csv
from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.operator_errors import count_different
from telekit.accuracy.measures.pairs import exact_distance
from telekit.accuracy.readers import NamedTensor, Tensors
from telekit.accuracy.standards.judge import judge, standards

RNG = np.random.default_rng(14)
X = RNG.standard_normal((8, 8)).astype(np.float32)
BIG = RNG.standard_normal((100, 10)).astype(np.float32)
SOUND = {"Max": 1.0, "Min": -1.0, "Mean": 0.1, "Norm": 3.0}


def side(**arrays):
    items = (
        NamedTensor(n, a.shape, a.dtype.name, n, loader=lambda a=a: a)
        for n, a in ((n, np.asarray(a)) for n, a in arrays.items())
    )
    return Tensors("made", "npz", tuple(items))


def lone(target, golden, **options):
    return compare(side(w=target), side(w=golden), **options)


# ---- one side is all zeros ----


@pytest.mark.parametrize("golden", [X, np.full(10, 0.5), np.full(10, 1e-5), np.full((3, 4), -7.0)])
def test_an_all_zero_tensor_is_an_error_where_golden_is_not(golden):
    found = lone(np.zeros_like(golden), golden)
    assert found.result == "error" and found.verdicts[0].part("zero").result == "error"
    assert judge(np.zeros_like(golden), golden).result == "error"


def test_what_the_type_cannot_hold_may_be_zero():
    assert lone(np.zeros(4, np.float16), np.full(4, 1e-9)).verdicts[0].part("zero").result == "pass"
    assert lone(np.zeros(4), np.zeros(4)).result == "pass"


# ---- a pair without inputs ----


@pytest.mark.parametrize("name", ["msprobe", "msprobe-coded"])
@pytest.mark.parametrize(
    ("target", "golden"),
    [(-X, X), (2 * X, X), (0 * X, X), (X[::-1], X), (1e9 * X, X), (np.float32(2), np.float32(1)), (X + 5, X)],
)
def test_judging_a_pair_by_msprobe_takes_its_inputs_for_equal(target, golden, name):
    assert judge(target, golden, name).result == "error"
    assert judge(compare_arrays(target, golden), standard=name).result == "error"
    assert judge(golden, golden, name).result == "pass"


@pytest.mark.parametrize("name", [s.name for s in standards() if s.needs != "device"])
def test_opposite_infinities_pass_no_standard(name):
    golden = np.array([1.0, np.inf, 3.0], np.float32)
    target = np.array([1.0, -np.inf, 3.0], np.float32)
    assert judge(target, golden, name).result == "error"
    assert all(p.name != "sign of infinities" for p in judge(golden, golden, name).parts)


# ---- padding ----


def test_a_shard_is_no_padded_tensor(tmp_path):
    shard = npz(tmp_path / "t.npz", q=X[:4], k=X[:4] + 1)
    found = compare(shard, npz(tmp_path / "g.npz", q=X, k=X + 1))
    assert {v.part("shape").result for v in found.verdicts} == {"error"}
    assert not any("padding" in n for n in found.notes)
    assert compare(tmp_path / "g.npz", shard).result == "error", (
        "and more rows of values are no padding either"
    )


def test_what_is_cut_is_looked_at():
    padded, noisy = (
        np.vstack([X, x]).astype(np.float32) for x in (np.zeros((2, 8)), RNG.normal(size=(2, 8)))
    )
    assert compare(side(a=padded, b=padded + 3), side(a=X, b=X + 3)).result == "pass"
    found = compare(side(a=padded, b=noisy), side(a=X, b=X))
    assert [v.result for v in found.verdicts] == ["pass", "error"]
    assert "more than one value" in found.rows[1].notes[-1]


def test_a_shorter_activation_may_stand_beside_a_padded_golden(tmp_path):
    longer = np.vstack([X, np.zeros((2, 8), np.float32)])
    golden = dump(tmp_path / "g", {"Torch.mul.0.forward": ([longer], [longer])}, task="tensor")
    target = dump(tmp_path / "t", {"Torch.mul.0.forward": ([X], [X])}, task="tensor")
    assert compare(target, golden).result == "pass"


# ---- operators of a dump ----


def operator(tmp_path, target, golden, api="Torch.mul.0.forward", task="tensor", inputs=None, **options):
    """Compare two dumps of one operator with equal inputs."""
    given_ = [X] if inputs is None else inputs
    sides = [dump(tmp_path / n, {api: (given_, [x])}, task=task) for n, x in (("t", target), ("g", golden))]
    return compare(*sides, **options)


@pytest.mark.parametrize(
    ("target", "golden", "part"),
    [
        (np.float32(2), np.float32(200), "relative error"),
        (np.float32(2), np.float32(-2), "relative error"),
        (np.float32([1, np.inf, 3]), np.float32([1, -np.inf, 3]), "sign of infinities"),
    ],
)
def test_outputs_that_msprobe_has_no_rule_for(tmp_path, target, golden, part):
    found = operator(tmp_path, target, golden)
    assert found.verdicts[-1].part(part).result == "error" and found.verdicts[-1].by_standard == "pass"
    (row,) = rows_of(found)[-1:]
    assert (row["Result"], row["Verdict"]) == ("pass", "error"), "msprobe's column keeps msprobe's value"
    (file,) = write_csv(found, tmp_path / "c.csv")
    with file.open(newline="") as lines:
        assert [r["Result"] for r in csv.DictReader(lines)] == ["pass", "pass"]


def test_a_small_miss_of_one_number_is_a_warning_and_none_is_none(tmp_path):
    assert operator(tmp_path / "a", np.float32(2.1), np.float32(2)).verdicts[-1].result == "warning"
    assert operator(tmp_path / "b", np.float32(2.001), np.float32(2)).verdicts[-1].result == "pass"


@pytest.mark.parametrize(
    ("change", "result", "part"),
    [
        ({"Norm": float("nan")}, "error", "NaN or Inf"),
        ({"Norm": float("inf")}, "error", "NaN or Inf"),
        ({"Mean": float("nan")}, "error", "NaN or Inf"),
        ({"Norm": None}, "warning", "missing statistics"),
        ({"Max": 1e9}, "warning", "Max"),
        ({"Max": 1.0, "Min": -1.0, "Mean": -0.1}, "error", "sign"),
        ({"Norm": 3.02, "Mean": 0.11}, "pass", None),
    ],
)
def test_statistics_that_say_it(tmp_path, change, result, part):
    golden = item(shape=[4], **SOUND)
    found = operator(
        tmp_path, item(shape=[4], **SOUND | change), golden, task="statistics", standard="msprobe"
    )
    assert found.verdicts[-1].result == found.result == result
    if part:
        assert found.verdicts[-1].part(part).own and found.verdicts[-1].by_standard == "pass"


def test_nan_in_golden_alone_is_a_warning_as_in_tensor_mode(tmp_path):
    nan = dict.fromkeys(SOUND, float("nan"))
    found = operator(tmp_path, item(shape=[4], **SOUND), item(shape=[4], **nan), task="statistics")
    assert found.verdicts[-1].part("golden's NaN or Inf").result == "warning"
    both = operator(tmp_path / "b", item(shape=[4], **nan), item(shape=[4], **nan), task="statistics")
    assert both.verdicts[-1].result == "pass"


def test_opposite_infinities_in_statistics(tmp_path):
    up, down = (
        {"Max": m, "Min": 0.0, "Mean": m, "Norm": float("inf")} for m in (float("inf"), -float("inf"))
    )
    found = operator(tmp_path, item(shape=[4], **up), item(shape=[4], **down), task="statistics")
    assert found.verdicts[-1].part("sign of infinities").result == "error"


def test_a_sign_flip_is_no_fault_of_an_operator_whose_input_was_flipped(tmp_path):
    api = "Torch.matmul.0.forward"
    sides = [dump(tmp_path / n, {api: ([s * X], [s * X + 1e-9])}) for n, s in (("t", -1), ("g", 1))]
    assert "sign" not in {p.name for p in compare(*sides).verdicts[-1].parts}


def test_a_checksum_of_one_side_does_not_hide_the_statistics(tmp_path):
    big = {k: 100 * v for k, v in SOUND.items()}
    found = operator(
        tmp_path, item(shape=[4], md5="deadbeef", **big), item(shape=[4], **SOUND), task="statistics"
    )
    assert found.result == "error" and found.verdicts[-1].part("checksum").result == "warning"


@pytest.mark.parametrize(
    ("target", "golden", "result"), [(1, 0, "error"), (0, 1, "warning"), (1, 1, "pass"), (0, 0, "pass")]
)
def test_a_nan_check_dump_is_judged(tmp_path, target, golden, result):
    sides = [item(shape=[4], is_nan=n) for n in (target, golden)]
    found = operator(tmp_path, *sides, task="nan_check", inputs=[])
    assert found.verdicts[-1].result == result


def test_nan_scalars_on_both_sides_are_equal(tmp_path):
    nan = {"type": "float", "value": float("nan")}
    found = operator(tmp_path, X, X, inputs=[X, nan])
    assert found.result == "pass" and found.first_divergence is None


# ---- a place that locating finds ----


def test_a_located_difference_is_no_pass_unless_the_standard_was_named(tmp_path):
    api = "Torch.relu.0.forward"
    found = [
        dump(tmp_path / n, {api: ([x], [y])}, task="tensor")
        for n, x, y in (("t", X, X[::-1].copy()), ("g", X[:, ::-1].copy(), X))
    ]
    unnamed, named = compare(*found), compare(*found, standard="msprobe")
    assert {v.result for v in unnamed.verdicts} == {"pass"}, "msprobe excuses what comes of other inputs"
    assert (unnamed.result, unnamed.located, unnamed.negative) == ("warning", True, True)
    assert (named.result, named.located, named.negative) == ("pass", True, False)
    same = compare(found[0], found[0])
    assert (same.result, same.located, same.negative) == ("pass", False, False)


def test_nothing_judged_is_no_pass(tmp_path):
    found = operator(tmp_path, X, X, task="statistics", standard="torch")
    assert (found.result, found.negative) == ("skip", True) and "nothing was judged" in found.notes[0]
    mixed = [
        dump(tmp_path / n, {"Torch.mul.0.forward": ([X, {"type": "int", "value": 2}], [X])}) for n in "ab"
    ]
    assert compare(*mixed, standard="torch").result == "skip", "a scalar that is equal is not the tensors"
    assert not lone(X, X).negative


# ---- integers ----


INTEGERS = [np.int64, np.uint64, np.dtype(">i8"), np.dtype(">u8"), np.int32, np.uint8]


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1)), min_size=1, max_size=6
    ),
    st.sampled_from(INTEGERS),
    st.sampled_from(INTEGERS),
)
def test_whole_numbers_are_compared_as_python_compares_them(pairs, one, other):
    def held(value, dtype):
        info = np.iinfo(dtype)
        return min(max(value, info.min), info.max)

    a = np.array([held(x, one) for x, _ in pairs], one)
    b = np.array([held(y, other) for _, y in pairs], other)
    truth = [abs(int(x) - int(y)) for x, y in zip(a, b, strict=True)]
    assert exact_distance(a, b).tolist() == pytest.approx([float(t) for t in truth], rel=1e-15)
    different = sum(t != 0 for t in truth)
    assert count_different(a, b) == different
    assert compare_arrays(a, b).identical == (different == 0)
    for name in ("binary", "torch", "jax"):
        assert judge(a, b, name).result == ("error" if different else "pass")


@pytest.mark.parametrize(
    "golden", [np.array([2**53], ">i8"), np.array([2**53], np.uint64), np.array([2**53])]
)
def test_one_more_than_2_to_the_53_is_an_error(golden):
    assert lone(np.array([2**53 + 1]), golden).result == "error"
    assert lone(np.array([2**53 + 1]), golden, standard="torch").result == "error"


# ---- dropout ----


@pytest.mark.parametrize(
    ("api", "true"),
    [
        ("Functional.dropout.0.forward", True), ("Torch.dropout_.0.forward", True),
        ("Torch.alpha_dropout.0.forward", True), ("NPU._npu_dropout.0.forward", True),
        ("Functional.dropout2d.3.forward", True), ("Module.mlp.drop.Dropout.forward.0", True),
        ("Module.mlp.drop.AlphaDropout.forward.0", True), ("Torch.native_dropout.0.forward", True),
        ("Module.bias_dropout_add.BiasDropoutAdd.forward.0", False), ("Module.dropout.LayerNorm.forward.0", False),
        ("Functional.fused_dropout_layer_norm.0.forward", False), ("Torch.bias_dropout_add.0.forward", False),
    ],
)  # fmt: skip
def test_dropout_is_a_word(api, true):
    assert is_dropout(api) == true


def test_what_both_sides_of_a_dropout_kept_is_compared(tmp_path):
    api, kept = "Functional.dropout.0.forward", [RNG.random(BIG.shape) > 0.3 for _ in range(2)]
    golden = BIG * kept[0]
    for n, (scale, result) in enumerate(
        [(1, "pass"), (100, "error"), (np.nan, "error"), (-1, "error"), (1e6, "error")]
    ):
        with np.errstate(all="ignore"):
            target = np.where(kept[1], BIG * np.float32(scale), np.float32(0))
        found = operator(tmp_path / str(n), target, golden, api=api, inputs=[BIG])
        assert found.verdicts[-1].result == found.result == result, scale
        assert found.verdicts[-1].part("zero share").result == "pass"


def test_a_fused_operator_with_dropout_in_its_name_is_judged_like_any(tmp_path):
    found = operator(
        tmp_path, 1e6 * BIG, BIG, api="Functional.fused_dropout_layer_norm.0.forward", inputs=[BIG]
    )
    assert found.verdicts[-1].by_standard == "error"


# ---- tiny tensors, complex numbers, gradients of zero ----


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 0, 2]])
def test_tensors_too_small_for_msprobe_s_cosine_have_a_direction(order):
    tiny = np.array([3e-18, -2e-17, 1e-17])
    assert lone(tiny[order], tiny).verdicts[0].part("direction").result == "warning"
    assert lone(-tiny, tiny).result == "warning" and lone(tiny, tiny).result == "pass"
    assert compare_arrays(-tiny, tiny).columns()["Cosine"] == 1.0, "msprobe's own column stands"


def test_complex_numbers_are_no_pairs_of_real_ones():
    z = np.array([1 + 2j, 3 + 4j])
    assert lone(np.array([[1.0, 2], [3, 4]]), z).result == "error"
    assert lone(z, z).result == "pass"


def test_torch_takes_the_modulus_of_complex_numbers():
    """|1e-4 of 100| is within 1.3e-6 * |golden|; the real part alone (5e-5 beside 0) is not."""
    target, golden = np.array([5e-5 + 100j], np.complex64), np.array([100j], np.complex64)
    assert lone(target, golden, standard="torch").result == "pass"
    assert lone(np.array([5e-3 + 100j], np.complex64), golden, standard="torch").result == "error"


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16])
def test_a_gradient_of_zeros_is_none_whatever_its_type(dtype):
    found = compare(side(w=X), side(w=X, **{"w.grad": np.zeros(3, dtype)}))
    assert found.result == "pass" and "zeros on the other" in found.rows[1].notes[0]
