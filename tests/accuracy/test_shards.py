"""Whole tensors out of shards: what a parallel model splits goes back to the bit, and what cannot be known is said."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.accuracy.compare import compare
from telekit.accuracy.comparing.shards import (
    Rule,
    join_segments,
    join_zigzag,
    merge,
    read_rule,
    rule_for,
    split_segments,
)
from telekit.accuracy.readers import NamedTensor, Tensors
from telekit.errors import InputError

RNG = np.random.default_rng(5)


def named(name, array, **said):
    array = np.asarray(array)
    return NamedTensor(
        name, array.shape, array.dtype.name, name, nbytes=array.nbytes, loader=lambda: array, **said
    )


def side(shards):
    """Tensors of ranks: {shard name or rank: {name: array}}."""
    items = []
    for key, found in shards.items():
        where = {"shard": key} if isinstance(key, str) else {"rank": key}
        items += [named(name, array, **where) for name, array in found.items()]
    return Tensors("made", "checkpoint", tuple(items))


def identical(target, golden, **options):
    found = compare(target, golden, **options)
    assert found.rows and all(row.matched and row.identical for row in found.rows), [
        (r.name, r.notes) for r in found.rows if not r.identical
    ]
    return found


# ---- one tensor ----


@given(
    st.sampled_from((1, 2, 4)),
    st.sampled_from(((1, 1), (2, 1, 1), (8, 1, 1), (1,))),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_segments_come_back_as_they_were(count, ratios, unit, axis):
    whole = RNG.normal(size=[sum(ratios) * count * unit if i == axis else 3 for i in (0, 1)])
    assert np.array_equal(join_segments(split_segments(whole, count, ratios, axis), ratios, axis), whole)


def test_swiglu_needs_its_halves_apart():
    """[gate; up] of each rank, one behind the other, is not [gate; up] of all: case row 16."""
    gate, up = np.arange(8.0).reshape(4, 2), 100 + np.arange(8.0).reshape(4, 2)
    parts = [np.concatenate([gate[:2], up[:2]]), np.concatenate([gate[2:], up[2:]])]
    assert np.array_equal(join_segments(parts, (1, 1), 0), np.concatenate([gate, up]))
    assert not np.array_equal(np.concatenate(parts), np.concatenate([gate, up]))


@given(st.integers(1, 4), st.integers(1, 3))
def test_zigzag_comes_back(ranks, length):
    chunks = np.split(np.arange(2.0 * ranks * length), 2 * ranks)
    parts = [np.concatenate([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]
    assert np.array_equal(join_zigzag(parts, 0), np.arange(2.0 * ranks * length))


@pytest.mark.parametrize(
    ("name", "shape", "said", "rule"),
    [
        ("layers.0.self_attention.linear_qkv.weight", (8, 4), {}, Rule("column", 0)),
        ("layers.0.self_attention.linear_proj.weight", (4, 8), {}, Rule("row", 1)),
        ("layers.0.self_attention.linear_proj.bias", (4,), {}, Rule("replicated")),
        ("layers.0.mlp.linear_fc1.weight", (8, 4), {}, Rule("swiglu", 0)),
        ("layers.0.input_layernorm.weight", (4,), {}, Rule("replicated")),
        ("embedding.word_embeddings.weight", (8, 4), {}, Rule("column", 0)),
        ("something.else", (4,), {}, None),
        *(
            (f"{api}.{part}.0", (3, 8), {"api": api, "part": part}, rule)
            for api, part, rule in (
                ("M.o_proj.Row.forward.0", "input", Rule("axis", -1)),
                ("M.o_proj.Row.forward.0", "output", Rule("replicated")),
                ("M.q_proj.Col.forward.0", "output", Rule("axis", -1)),
                ("M.q_proj.Col.backward.0", "input", Rule("axis", -1)),
            )
        ),
    ],
)  # fmt: skip
def test_rules_by_name(name, shape, said, rule):
    assert rule_for(named(name, np.zeros(shape), **said)) == rule


def test_own_rules_come_first_and_are_checked():
    tensor = named("layers.0.linear_qkv.weight", np.zeros((2, 2)))
    assert rule_for(tensor, {r"linear_qkv\.weight$": "axis 1"}) == Rule("axis", 1)
    assert read_rule("row") == Rule("row", 1) and read_rule("zigzag -1") == Rule("zigzag", -1)
    with pytest.raises(InputError, match="must be one of column"):
        read_rule("diagonal")


def test_grouped_queries_with_more_ranks_than_groups_take_each_key_once():
    heads, groups, width, ranks = 8, 2, 3, 4
    q, k, v = RNG.normal(size=(heads * width, 5)), *RNG.normal(size=(2, groups * width, 5))
    parts = [
        np.concatenate([
            np.split(q, ranks)[r], np.split(k, groups)[r * groups // ranks], np.split(v, groups)[r * groups // ranks]
        ])
        for r in range(ranks)
    ]  # fmt: skip
    made = merge([named("qkv_proj", p) for p in parts], Rule("qkv"), heads=heads, groups=groups)
    assert np.array_equal(made.tensor.load(), np.concatenate([q, k, v]))
    assert made.tensor.shape == (heads * width + 2 * groups * width, 5)


def test_fused_qkv_without_numbers_of_heads_is_not_guessed():
    made = merge([named("qkv_proj", np.zeros((4, 2)))] * 2, Rule("qkv"))
    assert not made.tensor.has_data and "heads and groups" in made.notes[0]


def test_golden_s_shape_decides_where_no_rule_does():
    parts = [named("odd", np.full((2, 3), i)) for i in range(2)]
    assert merge(parts, None, expected=(2, 6)).tensor.load().tolist() == [[0, 0, 0, 1, 1, 1]] * 2
    assert merge(parts, None, expected=(2, 3)).replicas
    assert "taken as replicas" in merge(parts, None).notes[0]
    square = [named("odd", np.zeros((2, 2)))] * 2
    assert merge(square, None, expected=(4, 4)).replicas, "no axis fits: pieces are not forced together"


def test_addends_are_summed():
    parts = [named("partial", np.full((2,), i, np.float16)) for i in (1, 2, 4)]
    assert merge(parts, Rule("sum")).tensor.load().tolist() == [7, 7]


# ---- whole models ----

H, F, V, HEADS, GROUPS, LAYERS, EXPERTS = 8, 12, 16, 4, 2, 4, 4


def model():
    """A model by Megatron-Core's names."""
    w = {"model.embedding.word_embeddings.weight": RNG.normal(size=(V, H))}
    for i in range(LAYERS):
        at = f"model.decoder.layers.{i}"
        w |= {
            f"{at}.input_layernorm.weight": RNG.normal(size=H),
            f"{at}.self_attention.linear_qkv.weight": RNG.normal(size=((HEADS + 2 * GROUPS) * 2, H)),
            f"{at}.self_attention.linear_proj.weight": RNG.normal(size=(H, HEADS * 2)),
            f"{at}.self_attention.linear_proj.bias": RNG.normal(size=H),
        }
        for e in range(EXPERTS):
            mlp = f"{at}.mlp.experts.local_experts.{e}"
            w |= {
                f"{mlp}.linear_fc1.weight": RNG.normal(size=(2 * F, H)),
                f"{mlp}.linear_fc2.weight": RNG.normal(size=(H, F)),
            }
    return w


def sharded(weights, tp, pp, ep, shard_name):
    """Split as Megatron-Core does, by a second path: slices of the whole, written out by hand."""
    ranks = {}
    for p in range(pp):
        for e in range(ep):
            for t in range(tp):
                found = {}
                for name, w in weights.items():
                    words = name.split(".")
                    if "layers" in words:
                        i = int(words[3])
                        if i // (LAYERS // pp) != p:
                            continue
                        words[3] = str(i % (LAYERS // pp))
                    elif p:
                        continue
                    if "local_experts" in words:
                        x = int(words[words.index("local_experts") + 1])
                        if x // (EXPERTS // ep) != e:
                            continue
                        words[words.index("local_experts") + 1] = str(x % (EXPERTS // ep))
                    if "linear_fc1" in words:
                        n = F // tp
                        w = np.concatenate([w[t * n : (t + 1) * n], w[F + t * n : F + (t + 1) * n]])
                    elif "linear_qkv" in words or "word_embeddings" in words:
                        w = np.split(w, tp)[t]
                    elif words[-2:] in (["linear_proj", "weight"], ["linear_fc2", "weight"]):
                        w = np.split(w, tp, axis=1)[t]
                    found[".".join(words)] = w
                ranks[shard_name(t, p, e)] = found
    return ranks


@pytest.mark.parametrize(
    ("tp", "pp", "ep", "name"),
    [
        (2, 1, 1, lambda t, p, e: f"mp_rank_{t:02d}"),
        (1, 2, 1, lambda t, p, e: f"mp_rank_{t:02d}_{p:03d}"),
        (2, 2, 1, lambda t, p, e: f"mp_rank_{t:02d}_{p:03d}"),
        (2, 2, 2, lambda t, p, e: f"mp_rank_{t:02d}_{p:03d}_{e:03d}"),
    ],
    ids=["tp2", "pp2", "tp2 pp2", "tp2 pp2 ep2"],
)  # fmt: skip
def test_megatron_s_folders_are_merged_to_the_bit(tp, pp, ep, name):
    weights = model()
    found = identical(side(sharded(weights, tp, pp, ep, name)), side({"mp_rank_00": weights}))
    assert len(found.rows) == len(weights) and found.result == "pass"
    assert "merged" in " ".join(found.notes)


def test_two_layouts_of_one_model_are_both_merged():
    weights = model()
    a = side(sharded(weights, 2, 1, 1, lambda t, p, e: f"mp_rank_{t:02d}"))
    b = side(sharded(weights, 4, 1, 1, lambda t, p, e: f"mp_rank_{t:02d}"))
    identical(a, b)


def test_a_rank_that_differs_is_seen_in_the_merged_tensor():
    weights = model()
    shards = sharded(weights, 2, 1, 1, lambda t, p, e: f"mp_rank_{t:02d}")
    name = "model.decoder.layers.2.self_attention.linear_proj.weight"
    shards["mp_rank_01"][name] = shards["mp_rank_01"][name] + 1.5
    found = compare(side(shards), side({"mp_rank_00": weights}))
    wrong = [row for row in found.rows if not row.identical]
    assert [row.name for row in wrong] == [name] and found.result == "error"
    assert wrong[0].metrics.max_abs_error == pytest.approx(1.5)


def test_replicas_that_differ_are_said_although_the_first_agrees():
    weights = model()
    shards = sharded(weights, 2, 1, 1, lambda t, p, e: f"mp_rank_{t:02d}")
    name = "model.decoder.layers.0.input_layernorm.weight"
    shards["mp_rank_01"][name] = weights[name] + 0.25
    found = compare(side(shards), side({"mp_rank_00": weights}))
    (row,) = [row for row in found.rows if row.name == name]
    assert row.identical and any(
        "replicas differ: mp_rank_01 from mp_rank_00, at most 0.25" in n for n in row.notes
    )


def test_ranks_of_a_dump_are_placed_by_the_layout_of_the_mapping():
    """tp 2, dp 2: ranks 0 and 1 hold the pieces, 2 and 3 the same again."""
    w = RNG.normal(size=(8, 4))
    ranks = {r: {"fc.linear_qkv.weight": np.split(w, 2)[r % 2]} for r in range(4)}
    layout = {"target_layout": {"tp": 2}}
    identical(side(ranks), side({0: {"fc.linear_qkv.weight": w}}), mapping=layout)
    unsaid = identical(side(ranks), side({0: {"fc.linear_qkv.weight": w}}))
    assert any("taken to run fastest" in note for row in unsaid.rows for note in row.notes)


def test_context_parallel_activations_are_merged_by_an_own_rule():
    x = RNG.normal(size=(8, 2, 4))
    c = np.split(x, 4)
    ranks = {0: {"core.out": np.concatenate([c[0], c[3]])}, 1: {"core.out": np.concatenate([c[1], c[2]])}}
    identical(
        side(ranks),
        side({0: {"core.out": x}}),
        mapping={"shards": {"core": "zigzag 0"}, "target_layout": {"tp": 2}},
    )


def test_a_layout_that_does_not_fit_the_ranks_is_refused():
    ranks = {r: {"w": np.ones(2)} for r in range(3)}
    with pytest.raises(InputError, match="must divide the 3 ranks"):
        compare(side(ranks), side({0: {"w": np.ones(2)}}), mapping={"target_layout": {"tp": 2}})


def test_virtual_stages_count_their_layers_in_turn():
    """pp 2, two chunks: stage 0 has layers 0 and 2, stage 1 layers 1 and 3 (one layer a chunk)."""
    w = [RNG.normal(size=(2, 2)) for _ in range(4)]
    ranks = {
        f"mp_rank_00_{p:03d}": {f"model{v}.decoder.layers.0.x.weight": w[2 * v + p] for v in range(2)}
        for p in range(2)
    }
    whole = {f"model.decoder.layers.{i}.x.weight": w[i] for i in range(4)}
    identical(side(ranks), side({"mp_rank_00": whole}))


def test_fused_and_split_projections_are_joined_by_the_mapping():
    q, k, v = RNG.normal(size=(HEADS * 2, H)), *RNG.normal(size=(2, GROUPS * 2, H))
    split = {"layers.0.q_proj.weight": q, "layers.0.k_proj.weight": k, "layers.0.v_proj.weight": v}
    fused = {"layers.0.qkv_proj.weight": np.concatenate([q, k, v])}
    identical(side({0: fused}), side({0: split}), mapping={"qkv_proj": ["q_proj", "k_proj", "v_proj"]})
    identical(side({0: split}), side({0: fused}), mapping={"q_proj+k_proj+v_proj": "qkv_proj"})
    by_group = np.concatenate(
        [np.concatenate([q[4 * g : 4 * g + 4], k[2 * g : 2 * g + 2], v[2 * g : 2 * g + 2]]) for g in (0, 1)]
    )
    mapping = {"names": {"linear_qkv": ["q_proj", "k_proj", "v_proj"]}, "heads": HEADS, "groups": GROUPS}
    identical(side({0: {"layers.0.linear_qkv.weight": by_group}}), side({0: split}), mapping=mapping)


def test_a_dump_of_two_tensor_ranks_against_one(tmp_path):
    """Through files: statistics are dropped, elements are merged."""
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    pieces = {"t": [x[:, :2], x[:, 2:]], "g": [x]}
    for which, arrays in pieces.items():
        for rank, array in enumerate(arrays):
            folder = tmp_path / which / "step0" / f"rank{rank}"
            (folder / "dump_tensor_data").mkdir(parents=True)
            api = "Module.mlp.q_proj.ColumnParallelLinear.forward.0"
            np.save(folder / "dump_tensor_data" / f"{api}.output.0.npy", array)
            item = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), "Max": 1, "Min": 0,
                    "Mean": 0, "Norm": 1, "data_name": f"{api}.output.0.npy"}  # fmt: skip
            data = {"task": "tensor", "level": "L0", "dump_data_dir": None, "data": {api: {"output": [item]}}}
            (folder / "dump.json").write_text(json.dumps(data))
    found = compare(tmp_path / "t", tmp_path / "g")
    (row,) = found.rows
    assert row.identical and row.target.shape == (3, 4) and found.result == "pass"
