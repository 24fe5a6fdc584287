"""Every kind of mixer and feed-forward block against the model floor's FLOPs, and what each keeps against a list.

The lists are written tensor by tensor, as the kernels' own code keeps them; numbers are per token.
"""

import pytest

from telekit import catalog
from telekit.layout.config import ParallelConfig
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
from telekit.model.attention_flops import mixer_flops, scored_keys
from telekit.model.config import (
    FeedForward,
    LayerKind,
    MixtureOfExperts,
    ModelConfig,
    NoFeedForward,
    PerLayerInputs,
)
from telekit.model.flops import forward_flops_per_token, layer_flops, mtp_flops
from telekit.model.huggingface import load_model
from telekit.operators.layer import (
    embedding_operators,
    entry_bytes,
    head_operators,
    layer_operators,
    mtp_operators,
)
from telekit.operators.shapes import boundary_width
from telekit.training.config import TrainConfig

H, S = 64, 96
TRAIN = TrainConfig(seq_len=S, global_batch=8)
ONE = ParallelConfig()

LATENT = {"heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
SHORT = {
    "heads": 4,
    "head_dim": 32,
    "q_lora_rank": 40,
    "output_groups": 2,
    "output_lora_rank": 20,
    "window": 16,
}
INDEXER = Indexer(heads=2, head_dim=8, top_k=10)
MIXERS = {
    "grouped": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16),
    "grouped, other value heads": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=24, v_head_dim=16),
    "grouped, bottleneck": GroupedQueryAttention(heads=4, kv_heads=1, head_dim=16, q_lora_rank=20, window=30),
    "grouped, gated": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16, output_gate="element", qk_norm="head"),
    "grouped, gated heads": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16, output_gate="head", chunk=32),
    "grouped, borrowed keys": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16, own_keys=False),
    "grouped, keys are values": GroupedQueryAttention(heads=4, kv_heads=2, head_dim=16, own_values=False),
    "latent": MultiHeadLatentAttention(q_lora_rank=None, **LATENT),
    "latent, bottleneck": MultiHeadLatentAttention(q_lora_rank=20, **LATENT),
    "latent, sparse": MultiHeadLatentAttention(q_lora_rank=20, bias=True, indexer=INDEXER, **LATENT),
    "compressed, window": CompressedAttention(**SHORT),
    "compressed, all blocks": CompressedAttention(compress_ratio=16, **SHORT),
    "compressed, sparse": CompressedAttention(compress_ratio=4, overlap=True, indexer=INDEXER, **SHORT),
    "gated delta": GatedDeltaNet(key_heads=2, value_heads=4, key_head_dim=16, value_head_dim=32, conv_kernel=4),
    "kimi delta": KimiDeltaAttention(heads=4, head_dim=16, conv_kernel=4),
    "lightning": LightningAttention(heads=4, head_dim=16, output_norm=64, qk_norm=True),
    "mamba": Mamba2(heads=8, head_dim=16, groups=2, state_size=12, conv_kernel=4),
    "none": NoAttention(),
}  # fmt: skip
EXPERTS = {"num_experts": 8, "top_k": 2, "expert_ffn_hidden_size": 40}
BLOCKS = {
    "dense": FeedForward(ffn_hidden_size=96, bias=True),
    "ungated": FeedForward(ffn_hidden_size=96, gated=False),
    "experts": MixtureOfExperts(**EXPERTS, shared_ffn_hidden_size=48, shared_gate=True, router_bias=True),
    "latent experts": MixtureOfExperts(**EXPERTS, shared_ffn_hidden_size=48, latent_size=16, gated=False),
    "none": NoFeedForward(),
}
TRUNKS = {
    "plain": {},
    "streams": {"residual_streams": 3},
    "own inputs": {"per_layer_inputs": PerLayerInputs(vocab_size=90, width=24), "embedding_norm": True},
}


def model(mixer="grouped", block="dense", norms=None, layers=2, **trunk):
    attention, mlp = MIXERS[mixer], BLOCKS[block]
    halves = (attention.kind != "none") + (mlp.kind != "none")
    kind = LayerKind(name="block", attention=attention, mlp=mlp, norms=halves if norms is None else norms)
    return ModelConfig(
        name="small", hidden_size=H, vocab_size=100, kinds=(kind,), pattern=(0,) * layers, **trunk
    )


def operators(mixer="grouped", block="dense", layout=ONE, **fields):
    made = model(mixer, block, **fields)
    return {op.name: op for op in layer_operators(made, made.kinds[0], TRAIN, layout)}


def flops(found):
    return sum(op.forward_flops for op in found)


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_operators_do_the_layers_flops(mixer, block, trunk):
    made = model(mixer, block, **TRUNKS[trunk])
    done = flops(layer_operators(made, made.kinds[0], TRAIN, ONE))
    assert done == pytest.approx(S * layer_flops(made, made.kinds[0], S).total, rel=1e-12)


@pytest.mark.parametrize("mixer", MIXERS)
def test_tensor_ranks_share_the_work_but_for_an_indexers(mixer):
    """An indexer chooses the same keys on each tensor rank: its queries, keys, weights and scores are repeated."""
    made, layout = model(mixer, "experts"), ParallelConfig(tp=2, micro_batch=3)
    done = 2 * flops(layer_operators(made, made.kinds[0], TRAIN, layout))
    spec = made.kinds[0].attention
    repeated = 0.0
    if getattr(spec, "indexer", None):
        width = spec.q_lora_rank or H
        matrices = width * 2 * 8  # queries
        if spec.kind == "mla":
            matrices += (
                H * 8 + H * 2
            )  # keys and weights from the block's input; of compressed blocks on the own shard
        repeated = 2 * matrices + 2 * 2 * 9 * scored_keys(spec, S)
    want = 3 * S * (layer_flops(made, made.kinds[0], S).total + repeated)
    assert done == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("name", catalog.names("models"))
def test_a_catalog_models_operators_do_its_flops(name):
    made, train = load_model(name), TrainConfig(seq_len=8192, global_batch=8)
    per_kind = [flops(layer_operators(made, kind, train, ONE)) for kind in made.kinds]
    done = sum(per_kind[kind] for kind in made.pattern)
    done += flops((*embedding_operators(made, train, ONE), *head_operators(made, train, ONE)))
    assert done == pytest.approx(8192 * forward_flops_per_token(made, 8192), rel=1e-12)
    if made.mtp_layers:
        module = made.mtp_layers * flops(mtp_operators(made, train, ONE))
        assert module == pytest.approx(8192 * mtp_flops(made, 8192), rel=1e-12)


def test_an_ends_flops_with_streams_and_own_inputs():
    """The head collapses three streams by three numbers of 3 H each; the first stage projects H to 24 a layer."""
    made = model(residual_streams=3, per_layer_inputs=PerLayerInputs(vocab_size=90, width=24))
    assert flops(head_operators(made, TRAIN, ONE)) == S * (2 * H * 100 + 2 * 3 * 3 * H)
    assert flops(embedding_operators(made, TRAIN, ONE)) == S * 2 * H * 24 * 2


# --- what is kept ------------------------------------------------------------------------------------------


def kept(mixer, block="none", layout=ONE, **fields):
    """Numbers a token that a block keeps, in 16 bits."""
    made = model(mixer, block, **fields)
    found = layer_operators(made, made.kinds[0], TRAIN, layout)
    return sum(op.saved_bytes + op.held_bytes for op in found) / (2 * S)


NORM = 2 * H  # the sum, and the norm of it that the projections read


def test_kept_of_a_gated_delta_net():
    """``fla`` keeps queries and keys once normed, once repeated for the value heads, values, and a triangle of 64."""
    keys, values, value_heads = 32, 128, 4
    projected = 2 * keys + 2 * values + 2 * value_heads  # convolution reads it, gate and decay are in it
    normed, repeated, triangle = 2 * keys, 2 * value_heads * 16, 64 * value_heads
    rule = normed + repeated + values + triangle
    assert kept("gated delta") == NORM + projected + rule + values + values  # output, and its gated norm


def test_kept_of_a_kimi_delta_attention():
    width, heads = 64, 4
    projected = 3 * width + heads + 16 + width + 16 + width  # q k v, beta, and two low-rank maps
    assert kept("kimi delta") == NORM + projected + 3 * width + 2 * 64 * heads + width + width


def test_kept_of_lightning_attention():
    """Projections and gate, their activations, the output, the gated output; no state."""
    assert kept("lightning") == NORM + 4 * 64 + 3 * 64 + 64 + 64


def test_kept_of_mamba():
    """``mamba_split_conv1d_scan_combined`` keeps its input and its output; convolution and states are rebuilt."""
    inner, maps, heads = 128, 24, 8
    assert kept("mamba") == NORM + (2 * inner + 2 * maps + heads) + inner + inner


def test_kept_of_grouped_attention_with_a_gate():
    """Queries, keys, values and gates; normed queries and keys; output and what flash keeps; the gated output."""
    queries, keys, values = 64, 32, 32
    flash = queries + 4 * 4 / 2  # fp32, one a head
    assert kept("grouped, gated") == NORM + (2 * queries + keys + values) + (queries + keys) + flash + queries


def test_borrowed_keys_are_kept_by_the_layer_that_made_them():
    queries, flash = 64, 64 + 4 * 4 / 2
    assert kept("grouped, borrowed keys") == NORM + queries + flash
    made = model("grouped, borrowed keys")
    assert entry_bytes(made, made.kinds[0], TRAIN, ONE) == 2 * S * (H + 2 * 2 * 16)


def test_kept_of_compressed_attention():
    """Queries before and after their norm, the key too, two blocks' worth of numbers, the output on its way out."""
    queries, window = 128, NORM + 2 * 40 + 2 * 128 + 2 * 32
    output = queries + 4 * 4 / 2 + queries + 2 * 20  # flash's, turned back, two groups of a bottleneck
    assert kept("compressed, window") == window + output
    blocks = 2 * 32 + 2 * 32 / 16  # key and gate of each token; a block before and after its norm
    assert kept("compressed, all blocks") == window + blocks + output
    both = 2 * (2 * 32 + 2 * 8) + 2 * (32 + 8) / 4  # twice as wide, and the indexer's
    chosen = 2 * 8 + 2 + 10 * 4 / 2  # queries, weights, four bytes for each chosen block
    assert kept("compressed, sparse") == window + both + chosen + output


def test_kept_of_an_indexer():
    """Its keys twice, weights, queries and four bytes a chosen key; under tensor parallelism its gathered input."""
    layouts = (ONE, ParallelConfig(tp=2))
    more = [kept("latent, sparse", layout=x) - kept("latent, bottleneck", layout=x) for x in layouts]
    indexer = 2 * 8 + 2 + 2 * 8 + 10 * 4 / 2
    assert more == [indexer, indexer + H]


def test_kept_of_residual_streams():
    """Each half keeps its streams, what they collapse to, the norm of it and its output (arXiv 2512.24880)."""
    plain, streams = kept("grouped", "dense"), kept("grouped", "dense", residual_streams=3)
    assert streams - (plain - 2 * NORM) == 2 * (3 * H + H + H + H)
    made = model(residual_streams=3)
    assert entry_bytes(made, made.kinds[0], TRAIN, ONE) == 2 * S * 3 * H
    assert boundary_width(made) == 3 * H


def test_kept_of_per_layer_inputs():
    own = PerLayerInputs(vocab_size=90, width=24)
    more = kept("grouped", "dense", per_layer_inputs=own) - kept("grouped", "dense")
    assert more == H + 24 + 24 + 24 + H  # stream, gate, embedding, their product, its projection
    made = model(per_layer_inputs=own, layers=5)
    assert entry_bytes(made, made.kinds[0], TRAIN, ONE) == 2 * S * (H + 24)
    assert boundary_width(made) == H + 5 * 24


@pytest.mark.parametrize("norms, added", [(0, 0), (1, 2 * H), (2, 4 * H), (4, 6 * H), (7, 9 * H)])
def test_norms_beyond_one_a_half_keep_what_they_read(norms, added):
    bare = kept("grouped", "dense", norms=0)
    assert kept("grouped", "dense", norms=norms) - bare == added
    made = model("grouped", "dense", norms=norms)
    names = [op.name for op in layer_operators(made, made.kinds[0], TRAIN, ONE)]
    assert sum(name.endswith("norm") for name in names) == norms


def test_a_half_that_is_not_there_does_nothing():
    assert layer_operators(model("none", "none"), model("none", "none").kinds[0], TRAIN, ONE) == ()
    assert set(operators("none", "dense")) == {"pre_mlp_norm", "fc1", "activation", "fc2"}
    assert not any("fc1" in name for name in operators("mamba", "none"))


def test_recompute_modules_name_no_part_of_a_mamba_layer():
    assert all(op.modules == () for op in operators("mamba", "none").values())
    assert operators("gated delta")["input_norm"].modules == ("layernorm",)


# --- experts on a latent width -----------------------------------------------------------------------------


def test_latent_experts_move_and_keep_latent_vectors():
    found = operators("none", "latent experts")
    copies = 2 * S
    assert found["permute"].saved_bytes == 2 * copies * 16
    assert found["expert_fc1"].forward_flops == 2 * copies * 16 * 40
    assert found["latent_down"].forward_flops == found["latent_up"].forward_flops == 2 * S * H * 16
    assert found["shared_fc1"].forward_flops == 2 * S * H * 48  # shared experts stay on the hidden width


# --- what kernels that work in chunks compute --------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, chunk, per_head",
    [
        # products of a chunk of c tokens, for each token and head: with keys k, values v and a state of k times v
        (GatedDeltaNet(key_heads=32, value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4), 64,
         lambda c, k, v: 2 * c * (3 * k + 2 * v) + 6 * k * v),
        (KimiDeltaAttention(heads=32, head_dim=128, conv_kernel=4), 64,
         lambda c, k, v: 2 * c * (3 * k + 2 * v) + 6 * k * v),
        (LightningAttention(heads=64, head_dim=128, output_norm=0), 256,
         lambda c, k, v: 2 * c * (k + v) + 4 * k * v),
        (Mamba2(heads=256, head_dim=64, groups=8, state_size=256, conv_kernel=4), 128,
         lambda c, k, v: 2 * c * (k / 32 + v) + 4 * k * v),
        (Mamba2(heads=64, head_dim=64, groups=8, state_size=128, conv_kernel=4), 128,
         lambda c, k, v: 2 * c * (k / 8 + v) + 4 * k * v),
    ],
)  # fmt: skip
def test_kernels_in_chunks_compute_up_to_two_and_a_half_times_the_recurrence(spec, chunk, per_head):
    keys = getattr(spec, "state_size", 0) or getattr(spec, "key_head_dim", 0) or spec.head_dim
    values = getattr(spec, "value_head_dim", 0) or spec.head_dim
    assert 1.0 < spec.heads * per_head(chunk, keys, values) / mixer_flops(spec, 8192) < 2.5
