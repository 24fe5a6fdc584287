"""Questions that users of comparators asked, each with its right answer: cases AC and the rows of complaints.

Sources are named in each docstring; inputs and answers are as published there.
"""

from __future__ import annotations

import json
import zlib

import ml_dtypes
import numpy as np
import pytest

from telekit.accuracy.compare import compare
from telekit.accuracy.comparing.table import row_of
from telekit.accuracy.readers import NamedTensor, Statistics, Tensors

BF16 = ml_dtypes.bfloat16


def named(name, array, **said):
    array = np.asarray(array)
    said = {"shape": array.shape, "dtype": array.dtype.name, "loader": lambda: array} | said
    return NamedTensor(name, place=name, **said)


def side(*items):
    return Tensors("made", "dump", items)


def one(target, golden, standard="msprobe", **said):
    """Compare one pair; return its row and verdict."""
    found = compare(side(named("x", target, **said)), side(named("x", golden, **said)), standard=standard)
    return found.rows[0], found.verdicts[0]


def cells(row, verdict, mode="tensor"):
    return row_of(row, verdict, mode)


def test_ac01_equal_zeros_have_no_relative_error():
    """github.com/sgl-project/sglang/pull/30655."""
    row, verdict = one(np.zeros(8), np.zeros(8))
    assert row.metrics.max_relative_error == 0 and row.identical and verdict.result == "pass"


def test_ac02_a_cosine_that_is_not_defined_decides_nothing():
    """github.com/pytorch/torchdynamo/pull/587: zeros by equality, infinities by their places."""
    row, verdict = one(np.zeros(4), np.zeros(4))
    assert verdict.result == "pass" and any("cosine is not defined" in m for m in row.metrics.messages)
    row, verdict = one([1, np.inf], [1, np.inf])
    assert row.identical and verdict.result == "pass" and row.metrics.target.infinite == 1
    row, verdict = one([1, np.inf], [np.inf, 1])
    assert row.metrics.cosine is None and verdict.result == "error"
    row, verdict = one([np.inf], [-np.inf])
    assert not row.identical and row.metrics.opposite_infinities == 1


def test_ac03_one_golden_near_zero_does_not_fail_the_tensor():
    """github.com/HazyResearch/HipKittens/pull/64: max relative 4.5e5 at one place, and it passes."""
    rng = np.random.default_rng(0)
    golden = rng.standard_normal(4096)
    golden[7] = 1e-8
    target = (golden + 4e-3 * rng.standard_normal(4096)).astype(BF16)
    row, verdict = one(target, golden.astype(np.float32))
    m = row.metrics
    assert m.cosine > 0.9999 and m.max_relative_error > 1e5 and m.max_relative_place == (7,)
    assert m.max_abs_place is not None and verdict.result == "pass"


def test_ac04_metrics_are_not_taken_in_bf16():
    """github.com/flashinfer-ai/flashinfer/pull/4105: 0.9702 would be 0.96875."""
    golden = np.array([1.0, 0.0])
    target = np.array([0.9702, np.sqrt(1 - 0.9702**2)])
    row, _ = one(target, golden)
    assert row.metrics.cosine == pytest.approx(0.9702, abs=1e-12) and float(BF16(0.9702)) == 0.96875


def test_ac06_a_factor_is_seen_and_named():
    """github.com/kendryte/nncase/pull/1110: y = 2x has a cosine of 1."""
    x = np.linspace(1e-5, 1e-4, 50)
    row, verdict = one(2 * x, x)
    assert row.metrics.cosine == pytest.approx(1.0)
    part = verdict.part("scale")
    assert verdict.result == part.result == "error" and part.value == pytest.approx(2.0)


def test_ac07_padding_is_one_note_not_21_failures():
    """github.com/sgl-project/sglang/pull/26996: golden [5, h], target [6, h] with one row of padding."""
    rng = np.random.default_rng(2)
    golden = [rng.normal(size=(5, 8)) for _ in range(21)]
    target = [np.vstack([x, np.full((1, 8), 9.0)]) for x in golden]
    sides = [side(*(named(f"t{i}", x) for i, x in enumerate(found))) for found in (target, golden)]
    found = compare(*sides)
    assert found.result == "pass" and all(row.identical for row in found.rows)
    assert len(found.notes) == 1 and "21 tensors have 6 rows in target and 5 in golden" in found.notes[0]
    refused = compare(*sides, align="never")
    assert refused.counts["error"] == 21
    lone = compare(side(named("x", target[0])), side(named("x", golden[0])))
    assert lone.result == "error", "one tensor alone of another shape is a wrong shape"
    two = [side(named("a", x), named("b", x.T)) for x in (target[0], golden[0])]
    assert compare(*two).result == "error", "not the same axis: no padding"


def test_ac18_fused_and_split_projections_are_listed_with_a_hint():
    """github.com/verl-project/verl-omni/issues/599: one matched, 3 + 1 not."""
    x = np.ones((4, 4))
    target = side(*(named(f"blocks.0.{n}.weight", x) for n in ("to_q", "to_k", "to_v", "to_out")))
    golden = side(named("blocks.0.qkv_proj.weight", np.ones((12, 4))), named("blocks.0.to_out.weight", x))
    found = compare(target, golden)
    assert [row.name.split(".")[2] for row in found.rows if row.matched] == ["to_out"]
    assert found.counts["unmatched"] == 4 and found.result == "error"
    assert any("to_q+to_k+to_v: qkv_proj" in note for note in found.notes)
    assert compare(target, golden, mapping={"to_q+to_k+to_v": "qkv_proj"}).result == "pass", (
        "as the hint says"
    )


def test_row_16_a_permutation_is_seen_by_elements_and_not_by_statistics():
    """NVIDIA/Megatron-LM PR 520: SwiGLU shards joined without interleaving."""
    rng = np.random.default_rng(4)
    golden = rng.normal(size=(8, 16))
    target = golden[[0, 1, 4, 5, 2, 3, 6, 7]]
    row, verdict = one(target, golden)
    assert (
        verdict.result == "error" and row.metrics.cosine < 0.9 and row.metrics.norm_ratio == pytest.approx(1)
    )
    s = Statistics(
        float(golden.max()), float(golden.min()), float(golden.mean()), float(np.linalg.norm(golden))
    )
    row, verdict = one(target, golden, statistics=s, loader=None)
    assert row.identical is None, "equal statistics prove nothing"


def test_row_18_layer_norm_in_bf16_is_as_expected():
    """NVIDIA/TransformerEngine/issues/2084: inside bf16's 1.6e-2."""
    x = np.linspace(0.5, 2, 256, dtype=np.float32)
    _, verdict = one(x.astype(BF16), (x * (1 + 2**-8)).astype(BF16), "torch")
    assert verdict.result == "pass"


@pytest.mark.parametrize("absent", [True, False], ids=["no such tensor", "None"])
def test_row_19_a_gradient_of_none_is_zeros(absent):
    """NVIDIA-NeMo/Automodel PR 2995: an expert without tokens."""
    name = "experts.3.down_proj.weight.grad"
    zeros = named(name, np.zeros((4, 4), np.float32))
    nothing = NamedTensor(name, None, "", "x", kind="none")
    other = named("experts.2.down_proj.weight.grad", np.ones((4, 4), np.float32))
    found = compare(side(other) if absent else side(nothing, other), side(zeros, other))
    row = next(r for r in found.rows if r.name == name)
    assert row.matched and row.identical and found.result == "pass" and "None" in row.notes[0]
    real = compare(side(other) if absent else side(nothing, other), side(named(name, np.ones((4, 4))), other))
    assert real.result == "error", "a gradient that is not zero is missing"


def test_row_22_fp16_zero_beside_zero():
    """Ascend/msprobe 78bf1bed."""
    row, verdict = one(np.zeros(4, np.float16), np.zeros(4, np.float16))
    assert row.metrics.max_relative_error == 0 and verdict.result == "pass"


def test_row_23_a_cosine_of_nan_fails_nothing_by_itself():
    """Ascend/msprobe ce9d0163: one side is all zeros."""
    row, verdict = one(np.full(4, 1e-7), np.zeros(4))
    assert row.metrics.cosine is None and cells(row, verdict)["Cosine"] == "Nan" and verdict.result == "pass"
    _, verdict = one(np.full(4, 2.0), np.zeros(4))
    assert verdict.result == "error", "the largest error decides"


def test_row_24_a_scalar_beside_one_element_is_another_shape():
    """Ascend/msprobe 0007cf2d: [] and [1]."""
    row, verdict = one(np.array(1.0), np.array([1.0]))
    assert verdict.result == "error" and cells(row, verdict)["MaxAbsErr"] == "shape unmatched"


def test_row_25_empty_beside_empty_is_skipped():
    """Ascend/msprobe 53b3b12d."""
    row, verdict = one(np.zeros((0, 3)), np.zeros((0, 3)))
    assert (
        row.identical
        and verdict.result in ("pass", "skip")
        and cells(row, verdict)["MaxAbsErr"] == "unsupported"
    )


@pytest.mark.parametrize("missing", [Statistics(), Statistics(1.0, None, None, None)])
def test_row_26_statistics_of_none_crash_nothing(missing):
    """Ascend/msprobe c4738039, 1f746c7e, Ascend/mstt e53d9aae1."""
    t = named("x", np.ones(2), statistics=missing, loader=None)
    g = named("x", np.ones(2), statistics=Statistics(1.0, 0.0, 0.5, 1.0), loader=None)
    found = compare(side(t), side(g))
    assert found.result != "error"
    assert cells(found.rows[0], found.verdicts[0], "statistics")["MeanRelativeErr"] == "N/A"


def test_row_27_golden_zero_has_no_relative_error(tmp_path):
    """Ascend/mstt 35a6d1227: the statistic is the string "0"."""
    for name, value in (("t", 1.5), ("g", "0")):
        (tmp_path / name).mkdir()
        item = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}
        item |= dict.fromkeys(("Max", "Min", "Mean", "Norm"), value)
        text = json.dumps({"task": "statistics", "data": {"Torch.a.0.forward": {"output": [item]}}})
        (tmp_path / name / "dump.json").write_text(text)
    found = compare(tmp_path / "t", tmp_path / "g")
    row = cells(found.rows[0], found.verdicts[0], "statistics")
    assert row["MaxRelativeErr"] == "N/A" and row["Max diff"] == 1.5
    assert found.result == "error", "and it is no pass"


def test_row_28_md5_three_beside_two():
    """Ascend/msprobe 4015ce87: two compared, one warning."""
    api = "Torch.cat.0.forward"

    def tensors(count):
        sums = [f"{zlib.crc32(bytes([i])):08x}" for i in range(count)]
        said = {"loader": None, "api": api, "part": "input"}
        return side(*(named(f"{api}.input.{i}", np.ones(2), md5=text, **said) for i, text in enumerate(sums)))

    found = compare(tensors(3), tensors(2))
    assert found.mode == "md5" and [v.result for v in found.verdicts] == ["pass", "pass", "warning"]


def test_row_29_fp32_and_bf16_are_a_pair_with_a_message():
    """Ascend/mstt 6a12642e9."""
    x = np.array([1.0, 2.0, 4.0], np.float32)
    row, verdict = one(x, x.astype(BF16))
    assert verdict.result == "pass" and "types differ" in row.metrics.messages[0]


def test_row_30_small_errors_are_not_rounded_away():
    """Ascend/msprobe 56309bbf: 3e-7."""
    row, verdict = one(np.array([1.0, 1.0 + 3e-7]), np.ones(2))
    assert cells(row, verdict)["MaxAbsErr"] == pytest.approx(3e-7, rel=1e-6)


def test_row_32_recomputed_forwards_do_not_shift_the_others():
    """Ascend/msprobe 9af9a704."""

    def call(i, value, recomputed=False):
        api = f"Torch.silu.{i}.forward"
        return named(f"{api}.output.0", np.full(2, value), api=api, part="output", is_recompute=recomputed)

    target = side(call(0, 1.0), call(1, 1.0, recomputed=True), call(2, 2.0))
    found = compare(target, side(call(0, 1.0), call(1, 2.0)))
    assert [row.identical for row in found.rows if row.matched] == [True, True]
    (left,) = [row for row in found.rows if not row.matched]
    assert left.target.is_recompute and found.result == "warning"


def test_row_33_bool_statistics_of_null_are_no_error():
    """msprobe's FAQ: a bool tensor has no mean and no norm."""
    said = {"statistics": Statistics(True, False, None, None), "loader": None}
    found = compare(side(named("m", [True, False], **said)), side(named("m", [True, False], **said)))
    assert found.result != "error" and found.rows[0].summary.difference["Mean"] is None


def test_row_34_top_k_without_order_is_a_set():
    """msprobe's FAQ: topk(sorted=False)."""
    api = "Torch.topk.0.forward"

    def outputs(order):
        found = (np.array([9.0, 7.0, 5.0])[order], np.array([4, 0, 2])[order])
        return side(*(named(f"{api}.output.{i}", a, api=api, part="output") for i, a in enumerate(found)))

    assert compare(outputs([2, 0, 1]), outputs([0, 1, 2])).result == "pass"
    wrong = side(*(named(f"{api}.output.{i}", a, api=api, part="output")
                   for i, a in enumerate((np.array([9.0, 7.0, 4.0]), np.array([4, 0, 1])))))  # fmt: skip
    assert compare(wrong, outputs([0, 1, 2])).result == "error"


def test_row_35_dropout_is_judged_by_its_share_of_zeros():
    """msprobe's FAQ."""
    api = "Functional.dropout.0.forward"
    x = np.linspace(1, 2, 4000).astype(np.float32)

    def dropped(seed, share):
        kept = np.random.default_rng(seed).random(x.size) >= share
        return side(
            named(f"{api}.input.0", x, api=api, part="input"),
            named(f"{api}.output.0", x * kept, api=api, part="output"),
        )

    assert compare(dropped(1, 0.3), dropped(2, 0.3)).result == "pass"
    assert compare(dropped(1, 0.6), dropped(2, 0.3)).result == "error"
