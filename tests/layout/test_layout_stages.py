"""Where layers stand: even spreading, V-shaped schedules, and writing a placement back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.layout.config import ParallelConfig
from telekit.layout.stages import OPTIONS, assign, even_split, part_positions, reaches, with_counts
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig


def model(pattern):
    attention = GroupedQueryAttention(heads=4, kv_heads=4, head_dim=8)
    kinds = tuple(
        LayerKind(name=n, attention=attention, mlp=FeedForward(ffn_hidden_size=w))
        for n, w in (("thin", 32), ("wide", 64))
    )
    return ModelConfig(name="toy", hidden_size=32, vocab_size=64, kinds=kinds, pattern=tuple(pattern))


@given(st.integers(1, 200), st.integers(1, 64))
def test_even_split_uses_every_layer_and_differs_by_one(layers, parts):
    split = even_split(layers, parts)
    assert sum(split) == layers and len(split) == parts
    assert max(split) - min(split) <= 1
    if parts > 2 and layers % parts:  # the ends, which hold embedding and head, are the last to get one more
        assert split[-1] == min(split)


@given(st.integers(1, 200), st.integers(1, 210))
def test_layers_reach_parts_when_only_the_ends_stay_empty(layers, parts):
    inner = even_split(layers, parts)[1:-1]
    assert reaches(layers, parts) == all(inner)


def test_the_head_stands_alone_before_the_embedding_does():
    assert even_split(94, 96) == [0, *[1] * 94, 0]
    assert even_split(95, 96) == [*[1] * 95, 0]
    assert even_split(1, 2) == [1, 0] and even_split(1, 3) == [0, 1, 0]


def test_looped_and_v_shaped_positions():
    assert part_positions("interleaved-1f1b", 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert part_positions("zb-v", 3, 2) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]


def test_head_of_a_v_shape_stands_on_the_first_device():
    found = assign(model([0] * 8), ParallelConfig(pp=4, vpp=2, schedule="zb-v"))
    assert found.embedding == (0, 0) and found.head == (1, 0)


def test_kinds_follow_the_pattern():
    found = assign(model([0, 0, 0, 1, 1]), ParallelConfig.model_validate({"pp": 2, "stages": [[2, 3]]}))
    assert found.counts[:, OPTIONS.index("none"), 0].tolist() == [[2, 1], [0, 2]]


@st.composite
def placements(draw):
    pp, vpp = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 4), min_size=pp * vpp, max_size=pp * vpp))
    pattern = sorted(draw(st.lists(st.integers(0, 1), min_size=sum(sizes), max_size=sum(sizes))))
    layout = ParallelConfig(pp=pp, vpp=vpp, schedule="interleaved-1f1b" if vpp > 1 else "1f1b")
    counts = np.zeros((2, 3, vpp, pp), dtype=np.int64)
    depth = 0
    for size, (v, s) in zip(sizes, part_positions(layout.schedule, pp, vpp), strict=True):
        for kind in pattern[depth : depth + size]:
            counts[kind, draw(st.integers(0, 2)), v, s] += 1
        depth += size
    return model(pattern), layout, counts


@given(placements())
def test_a_placement_written_into_a_layout_reads_back(case):
    toy, layout, counts = case
    written = with_counts(layout, toy, counts)
    again = ParallelConfig.model_validate(written.model_dump(mode="json"))
    assert np.array_equal(assign(toy, again).counts, counts)


@pytest.mark.parametrize("layers, parts, want", [(61, 16, 4), (45, 8, 6)])
def test_published_uneven_splits_exist(layers, parts, want):
    assert max(even_split(layers, parts)) == want
