"""Pairs by name: calls, recomputation, frameworks, mapping files, order, fuzzy; nothing is lost."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.comparing.mapping import read_mapping
from telekit.accuracy.comparing.names import Call, canonical, pair_tensors, phase_of, read_call
from telekit.accuracy.readers import NamedTensor, tensors
from telekit.errors import InputError

SAMPLES = os.environ.get("TELEKIT_SAMPLES", "")
needs_samples = pytest.mark.skipif(
    not SAMPLES, reason="TELEKIT_SAMPLES does not name a folder with samples/dumps"
)


def plain(*names, shape=(4,)):
    return [NamedTensor(name, shape, "float32", "here") for name in names]


def outputs(*apis, recomputed=()):
    return [
        NamedTensor(
            f"{a}.output.0", (4,), "float32", "here", api=a, part="output", is_recompute=a in recomputed
        )
        for a in apis
    ]


def matched(pairing):
    return {t.name: g.name for t, g, _ in pairing.pairs if t and g}


def alone(pairing):
    return [t.name for t, g, _ in pairing.pairs if g is None], [
        g.name for t, g, _ in pairing.pairs if t is None
    ]


@pytest.mark.parametrize(
    ("api", "call"),
    [
        ("Functional.conv2d.3.forward", Call("Functional.conv2d", "forward", 3)),
        ("Module.layers.0.fc.Linear.backward.2", Call("Module.layers.0.fc.Linear", "backward", 2)),
        ("Module.fc.Linear.parameters_grad", Call("Module.fc.Linear", "backward", 0)),
        ("Module.fc.Linear.parameters_grad.1", Call("Module.fc.Linear", "backward", 0)),
        ("weird", Call("weird", "", 0)),
        ("Module.forward.Linear.forward.0", Call("Module.forward.Linear", "forward", 0)),
    ],
)
def test_calls_are_taken_apart(api, call):
    assert read_call(api) == call


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("layers.0.weight", ""), ("layers.0.weight.grad", "backward"), ("w.main_grad", "backward"),
        ("optimizer.state.exp_avg", "optimizer"), ("gradient_norm_scale", ""), ("upgrade.weight", ""),
    ],
)  # fmt: skip
def test_phase_of_plain_names(name, phase):
    assert phase_of(plain(name)[0]) == phase


@given(
    st.lists(st.text("ab.", min_size=1, max_size=6), unique=True),
    st.data(),
    st.sampled_from(("name", "order", "fuzzy")),
)
def test_every_tensor_is_in_exactly_one_pair(names, data, match):
    some = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    target, golden = plain(*some), plain(*names)
    pairs = pair_tensors(target, golden, match=match).pairs
    assert sorted(t.name for t, _, _ in pairs if t) == sorted(some)
    assert [g.name for _, g, _ in pairs if g] == names, "golden's order is kept"
    if match == "name":
        assert all(t.name == g.name for t, g, _ in pairs if t and g and t.name in names)


def test_recomputed_forwards_do_not_shift_the_call_numbers():
    """Case row 32: 0 and 2 are the calls; 1 is 0 recomputed, so target's 2 is golden's 1."""
    target = outputs(*(f"Functional.silu.{i}.forward" for i in range(4)),
                     recomputed={"Functional.silu.1.forward", "Functional.silu.3.forward"})  # fmt: skip
    golden = outputs("Functional.silu.0.forward", "Functional.silu.1.forward")
    pairing = pair_tensors(target, golden)
    assert matched(pairing) == {
        "Functional.silu.0.forward.output.0": "Functional.silu.0.forward.output.0",
        "Functional.silu.2.forward.output.0": "Functional.silu.1.forward.output.0",
    }
    assert alone(pairing) == (
        ["Functional.silu.1.forward.output.0", "Functional.silu.3.forward.output.0"],
        [],
    )


def test_backwards_after_recomputation_pair_in_the_order_they_ran():
    target = outputs("Functional.silu.0.forward", "Functional.silu.1.forward", "Functional.silu.2.forward",
                     "Functional.silu.2.backward", "Functional.silu.3.forward", "Functional.silu.3.backward",
                     recomputed={"Functional.silu.2.forward", "Functional.silu.3.forward"})  # fmt: skip
    golden = outputs("Functional.silu.0.forward", "Functional.silu.1.forward",
                     "Functional.silu.1.backward", "Functional.silu.0.backward")  # fmt: skip
    found = matched(pair_tensors(target, golden))
    assert found["Functional.silu.2.backward.output.0"] == "Functional.silu.1.backward.output.0"
    assert found["Functional.silu.3.backward.output.0"] == "Functional.silu.0.backward.output.0"


def test_fuzzy_ignores_call_numbers_and_finds_ends():
    target = outputs("Torch.matmul.4.forward", "Torch.matmul.9.forward") + plain(
        "model.layers.0.mlp.up.weight"
    )
    golden = outputs("Torch.matmul.0.forward", "Torch.matmul.1.forward") + plain(
        "decoder.layers.0.mlp.up.weight"
    )
    assert len(matched(pair_tensors(target, golden))) == 0
    assert matched(pair_tensors(target, golden, match="fuzzy")) == {
        "Torch.matmul.4.forward.output.0": "Torch.matmul.0.forward.output.0",
        "Torch.matmul.9.forward.output.0": "Torch.matmul.1.forward.output.0",
        "model.layers.0.mlp.up.weight": "decoder.layers.0.mlp.up.weight",
    }


def test_fuzzy_does_not_choose_between_equals():
    target, golden = plain("x.weight"), plain("a.weight", "b.weight")
    assert not matched(pair_tensors(target, golden, match="fuzzy"))


def test_order_pairs_by_place():
    pairing = pair_tensors(plain("a", "b", "c"), plain("x", "y"), match="order")
    assert matched(pairing) == {"a": "x", "b": "y"} and alone(pairing) == (["c"], [])


def test_mapping_of_words_names_and_stars(tmp_path):
    file = tmp_path / "names.yaml"
    file.write_text("attention: self_attention\nstrange.one: other\nblocks.*.ffn: layers.*.mlp\n")
    target = plain("blocks.3.ffn.w", "blocks.3.attention.q", "strange.one", "reattention.q")
    golden = plain("layers.3.mlp.w", "blocks.3.self_attention.q", "other", "reattention.q")
    assert matched(pair_tensors(target, golden, mapping=read_mapping(file))) == dict(
        zip((t.name for t in target), (g.name for g in golden), strict=True)
    )


def test_a_mapping_that_is_none_lists_all_its_faults():
    with pytest.raises(InputError) as caught:
        read_mapping({"names": {"a": 3, "b+c": "d+e"}, "heads": 0, "shards": {"(": "row"}})
    text = str(caught.value)
    assert all(word in text for word in ("names.a", "names.b+c", "heads", "regular expression"))


def test_a_line_called_like_a_section_is_a_line():
    assert read_mapping({"heads": "tails"}).translate("heads.x") == "tails.x"


def test_unknown_match_is_refused():
    with pytest.raises(InputError, match="name, order, fuzzy"):
        pair_tensors([], [], match="near")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cell.network_with_loss.module.model.fc.Dense", "Module.module.module.model.fc.Linear"),
        ("Mint.cos", "Torch.cos"), ("Primitive.norm.RmsNorm", "NPU.npu_rms_norm"),
        ("Mint.logical_or", "Tensor.__or__"), ("Functional.flash_attention_score", "NPU.npu_fusion_attention"),
    ],
)  # fmt: skip
def test_frameworks_share_a_name(one, other):
    assert canonical(one) == canonical(other)


@needs_samples
def test_the_dumps_of_one_network_from_two_frameworks_pair_by_name():
    """Which operator of MindSpore is which of PyTorch, read by hand from the two files."""
    root = Path(SAMPLES, "samples/dumps/cross")
    target, golden = tensors(root / "mindspore"), tensors(root / "pytorch")
    mapping = read_mapping({"layers.*.attention": "layers.*.self_attention"})
    pairing = pair_tensors(target.items, golden.items, mapping=mapping)
    found = {t.api: g.api for t, g, _ in pairing.pairs if t and g}
    module = "language_model.encoder.layers.0"
    assert found == {
        "Tensor.__add__.0.forward": "Tensor.__add__.0.forward",
        "Tensor.__add__.1.forward": "Tensor.__add__.1.forward",
        "Mint.logical_or.0.forward": "Tensor.__or__.0.forward",
        "Distributed.all_reduce.0.forward": "Distributed.all_reduce.0.forward",
        "Cell.network_with_loss.module.language_model.embedding.word_embeddings.VocabParallelEmbedding.forward.0":
            "Module.module.module.language_model.embedding.word_embeddings.VocabParallelEmbedding.forward.0",
        "Primitive.norm.RmsNorm.0.forward": "NPU.npu_rms_norm.0.forward",
        f"Cell.network_with_loss.module.{module}.ParallelTransformerLayer.forward.0":
            f"Module.module.module.{module}.ParallelTransformerLayer.forward.0",
        f"Cell.network_with_loss.module.{module}.attention.ParallelAttention.forward.0":
            f"Module.module.module.{module}.self_attention.ParallelAttention.forward.0",
        "Mint.cos.0.forward": "Torch.cos.0.forward",
        "Functional.flash_attention_score.0.forward": "NPU.npu_fusion_attention.0.forward",
        "Functional.flash_attention_score.0.backward": "NPU.npu_fusion_attention.0.backward",
    }  # fmt: skip
    assert len(pairing.pairs) == len(target) + len(golden) - len([1 for t, g, _ in pairing.pairs if t and g])
