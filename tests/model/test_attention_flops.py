"""Keys met and FLOPs of mixers against loops that really walk the sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.model.attention import (
    CompressedAttention,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    MultiHeadLatentAttention,
    NoAttention,
)
from telekit.model.attention_flops import mean_blocks, mean_keys, mixer_flops

LENGTHS = st.integers(1, 70)
LIMITS = st.none() | st.integers(1, 80)


def walked(seq_len, sees):
    """Mean over queries of the keys that ``sees(query, key)`` lets through."""
    return sum(sees(q, k) for q in range(seq_len) for k in range(seq_len)) / seq_len


@given(LENGTHS, LIMITS, LIMITS)
def test_mean_keys_of_windows_and_chunks(seq_len, window, chunk):
    def sees(q, k):
        near = window is None or q - k < window
        return k <= q and near and (chunk is None or q // chunk == k // chunk)

    assert mean_keys(seq_len, window, chunk=chunk) == pytest.approx(walked(seq_len, sees))


@given(LENGTHS, st.integers(1, 9), LIMITS)
def test_mean_blocks_are_those_complete_at_the_query(seq_len, ratio, most):
    blocks = [range(b * ratio, (b + 1) * ratio) for b in range(seq_len // ratio)]
    met = [sum(block[-1] <= q for block in blocks) for q in range(seq_len)]
    mean = sum(min(n, most) if most is not None else n for n in met) / seq_len
    assert mean_blocks(seq_len, ratio, most) == pytest.approx(mean)
    whole = len(blocks) if most is None else min(most, len(blocks))
    assert mean_blocks(seq_len, ratio, most, "full") == whole


class Counter:
    """Counts the arithmetic done through it."""

    def __init__(self):
        self.flops = 0

    def dot(self, n):
        self.flops += 2 * n

    def scale(self, n):
        self.flops += n


def softmax_attention(heads, qk, v, pairs):
    c = Counter()
    for _ in range(heads):
        for _ in range(pairs):
            c.dot(qk)
            c.dot(v)
    return c.flops


def test_grouped_and_latent_attention():
    s = 12
    pairs = sum(q + 1 for q in range(s))
    spec = GroupedQueryAttention(heads=3, kv_heads=1, head_dim=5, v_head_dim=4)
    assert mixer_flops(spec, s) * s == softmax_attention(3, 5, 4, pairs)
    latent = {"heads": 3, "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 6,
              "qk_rope_head_dim": 2, "v_head_dim": 7}  # fmt: skip
    spec = MultiHeadLatentAttention(**latent)
    assert mixer_flops(spec, s) * s == softmax_attention(3, 8, 7, pairs)
    assert mixer_flops(spec, s, mla="absorbed") * s == softmax_attention(3, 16 + 2, 16, pairs)


def test_sparse_attention_scores_every_key_and_meets_the_chosen():
    s, top_k = 12, 4
    spec = MultiHeadLatentAttention(heads=3, q_lora_rank=8, kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=2,
                                    v_head_dim=7, indexer=Indexer(heads=2, head_dim=5, top_k=top_k))  # fmt: skip
    c = Counter()
    for q in range(s):
        for _ in range(q + 1):
            for _ in range(2):
                c.dot(5)
            c.dot(2)  # weighted sum over the indexer's heads
    chosen = sum(min(q + 1, top_k) for q in range(s))
    assert mixer_flops(spec, s) * s == pytest.approx(c.flops + softmax_attention(3, 8, 7, chosen))


def test_compressed_attention_meets_a_window_and_blocks():
    s, window, ratio, top_k = 23, 5, 4, 3
    shape = {
        "heads": 2,
        "head_dim": 6,
        "q_lora_rank": 8,
        "output_groups": 1,
        "output_lora_rank": 4,
        "window": window,
    }
    near = sum(min(q + 1, window) for q in range(s))
    complete = [(q + 1) // ratio for q in range(s)]
    plain = CompressedAttention(**shape)
    assert mixer_flops(plain, s) * s == pytest.approx(softmax_attention(2, 6, 6, near))
    heavy = CompressedAttention(**shape, compress_ratio=ratio)
    assert mixer_flops(heavy, s) * s == pytest.approx(softmax_attention(2, 6, 6, near + sum(complete)))
    sparse = CompressedAttention(**shape, compress_ratio=ratio, overlap=True,
                                 indexer=Indexer(heads=2, head_dim=3, top_k=top_k))  # fmt: skip
    chosen = sum(min(n, top_k) for n in complete)
    scores = sum(n * (2 * 2 * 3 + 2 * 2) for n in complete)
    assert mixer_flops(sparse, s) * s == pytest.approx(softmax_attention(2, 6, 6, near + chosen) + scores)


def recurrence(heads, keys, values, delta):
    """One token: decay the state, recall (delta rule), write, read."""
    c = Counter()
    for _ in range(heads):
        for _ in range(values):
            c.scale(keys)
            if delta:
                c.dot(keys)
            c.dot(keys)  # write: multiply and add
            c.dot(keys)  # read
    return c.flops


@pytest.mark.parametrize(
    ("spec", "work"),
    [
        (GatedDeltaNet(key_heads=2, value_heads=4, key_head_dim=3, value_head_dim=5, conv_kernel=4),
         recurrence(4, 3, 5, delta=True)),
        (KimiDeltaAttention(heads=4, head_dim=6, conv_kernel=4), recurrence(4, 6, 6, delta=True)),
        (LightningAttention(heads=4, head_dim=6, output_norm=24), recurrence(4, 6, 6, delta=False)),
        (Mamba2(heads=4, head_dim=6, groups=2, state_size=7, conv_kernel=4), recurrence(4, 7, 6, delta=False)),
        (NoAttention(), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seq_len", [1, 4096])
def test_states_cost_the_same_at_any_length(spec, work, seq_len):
    assert mixer_flops(spec, seq_len) == work
    assert mixer_flops(spec, seq_len, "full") == work
