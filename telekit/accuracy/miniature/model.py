"""The forward pass: what a transformer does, in the order it does it, with every rank's part."""

from __future__ import annotations

from telekit.accuracy.miniature.attention import ATTENTION
from telekit.accuracy.miniature.blocks import GATED, HEADS, SPLIT, TERMS, WHOLE, Blocks
from telekit.accuracy.miniature.communication import GATHER_CONTEXT
from telekit.accuracy.miniature.mesh import Array, Place
from telekit.accuracy.miniature.mixture import mixture
from telekit.accuracy.miniature.operators import (
    CROSS_ENTROPY,
    EMBEDDING,
    MEAN,
    MERGE_HEADS,
    ROTARY,
    SPLIT_QKV,
)
from telekit.accuracy.miniature.tape import Value


class Model(Blocks):
    """A network over a tape."""

    def forward(self, tokens: Array, labels: Array) -> list[Value]:
        """Return the losses of a micro-batch: the language model's, then those of each router."""
        tape, c = self.tape, self.config
        self.losses = []
        tape.stage = 0
        x = self.embed(tokens)
        for layer in range(c.layers):
            tape.stage = layer * self.layout.pp // c.layers
            x = self.layer(f"decoder.layers.{layer}", x)
        tape.stage = self.layout.pp - 1
        x = self.norm("decoder.final_layernorm", x)
        tied = c.tied and self.layout.pp == 1
        logits = self.column("output_layer", x, "embedding.word_embeddings" if tied else "output_layer")
        with tape.module("loss", "VocabParallelCrossEntropy", logits, data=(labels,)) as m:
            each = tape.op("loss", CROSS_ENTROPY, *m.inputs, places=[WHOLE], labels=labels)
            m.outputs = [each]
        mean = tape.op("loss.mean", MEAN, each, places=[Place("partial")], tokens=c.tokens)
        return [mean, *self.losses]

    def embed(self, tokens: Array) -> Value:
        """Look up the tokens; the ranks' parts of the vocabulary are added."""
        tape, name = self.tape, "embedding.word_embeddings"
        with tape.module(name, "VocabParallelEmbedding", data=(tokens,), weight=self.weight(name)) as m:
            x = tape.op(name, EMBEDDING, m["weight"], places=[TERMS], tokens=tokens)
            m.outputs = [self.reduce(name, x)]
        return m.outputs[0]

    def layer(self, name: str, x: Value) -> Value:
        """One transformer layer."""
        with self.tape.module(name, "TransformerLayer", x) as m:
            x = m.inputs[0]
            y = self.attention(f"{name}.self_attention", self.norm(f"{name}.input_layernorm", x))
            x = self.add(f"{name}.self_attn_bda", y, x)
            y = self.norm(f"{name}.pre_mlp_layernorm", x)
            y = mixture(self, f"{name}.mlp", y) if self.config.experts else self.mlp(f"{name}.mlp", y)
            m.outputs = [self.add(f"{name}.mlp_bda", y, x)]
        return m.outputs[0]

    def attention(self, name: str, x: Value) -> Value:
        """Causal grouped-query attention with rotary positions."""
        tape, c = self.tape, self.config
        with tape.module(name, "SelfAttention", x) as m:
            qkv = self.column(f"{name}.linear_qkv", m.inputs[0])
            q, k, v = tape.op(f"{name}.split_qkv", SPLIT_QKV, qkv, places=[HEADS] * 3,
                              groups=c.kv_heads // self.layout.tp, size=c.head_size)  # fmt: skip
            with tape.module(f"{name}.rotary_pos_emb", "RotaryEmbedding", q, k) as turned:
                turned.outputs = list(
                    tape.op(f"{name}.rotary_pos_emb", ROTARY, *turned.inputs, places=[HEADS] * 2,
                            positions=tape.mesh.positions, base=c.rotary_base)
                )  # fmt: skip
            q, k = turned.outputs
            m.outputs = [self.row(f"{name}.linear_proj", self.core(f"{name}.core_attention", q, k, v))]
        return m.outputs[0]

    def core(self, name: str, q: Value, k: Value, v: Value) -> Value:
        """Attend, over the keys of all context-parallel ranks."""
        tape, positions = self.tape, self.tape.mesh.positions
        ring = self.layout.cp_comm_type == "p2p"
        with tape.module(name, "DotProductAttention", q, k, v) as m:
            q, k, v = m.inputs
            seen = positions
            if self.layout.cp > 1 and not ring:
                k, v = (
                    tape.op(f"{name}.{which}", GATHER_CONTEXT, x, places=[HEADS])
                    for which, x in (("key", k), ("value", v))
                )
                seen = positions.reshape(1, -1).repeat(self.layout.cp, axis=0)
            out = tape.op(name, ATTENTION, q, k, v, places=[HEADS], scale=self.config.head_size**-0.5,
                          positions_q=positions, positions_k=seen, offset=0, ring=ring, rescale=True)  # fmt: skip
            m.outputs = [tape.op(f"{name}.merge_heads", MERGE_HEADS, out, places=[SPLIT])]
        return m.outputs[0]

    def mlp(self, name: str, x: Value) -> Value:
        """SwiGLU."""
        with self.tape.module(name, "MLP", x) as m:
            inner = self.activation(name, self.column(f"{name}.linear_fc1", m.inputs[0], place=GATED))
            m.outputs = [self.row(f"{name}.linear_fc2", inner)]
        return m.outputs[0]
