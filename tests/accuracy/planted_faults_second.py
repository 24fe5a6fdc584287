"""A second table of planted faults, by another author, with the place and the class that are right.

Its author had not read the locator, and ran it only when the faults, seeds, places and classes were written down.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import planted_changes as change
from planted_changes import LAYER0, LAYER1
from planted_faults import (
    ANY_PARAMETER,
    BACKWARD,
    CP2,
    CP2_DP2,
    DENSE,
    DP2,
    DP4,
    EP2,
    EP2_TP2,
    FORWARD,
    KV2,
    KV4,
    MIXTURE,
    OPTIMIZER,
    PP2,
    PP2_TP2,
    SETUP,
    SP2,
    TIED,
    TP2,
    TP2_DP2,
    TP4,
    Planted,
    at,
    bf16,
    of,
)

from telekit.accuracy.causes import finding as f
from telekit.accuracy.miniature import Config, Fault, Layout, scaled, skip, twice, with_settings
from telekit.accuracy.miniature import attention as att

GROUPS = Config()
ONLY = Config(experts=8, ffn=32, aux_coefficient=0.05)
SP4, CP4 = Layout(tp=4, sequence_parallel=True), Layout(cp=4)
MB2, TP2_MB2 = Layout(micro_batches=2), Layout(tp=2, micro_batches=2)
MB4, TP2_MB4 = Layout(micro_batches=4), Layout(tp=2, micro_batches=4)
PP2_MB2, PP2_TP2_MB2 = Layout(pp=2, micro_batches=2), Layout(pp=2, tp=2, micro_batches=2)
PP2_DP2, DP4_EP2 = Layout(pp=2, dp=2), Layout(dp=4, ep=2)
CP2_EP2 = Layout(dp=2, cp=2, ep=2)

DATA = ("forward", "setup")
FACTOR = (f.SCALED, f.GRADIENT_SCALING)
TWICE = (f.DOUBLE_REDUCTION, *FACTOR)
SHARED = r"mlp(\.add_shared|\.shared_experts.*)?(\.MoELayer)?$"
LOSS, EMBEDDING, ADAM = r"\bloss\b", "embedding", ANY_PARAMETER
ANY_GRADIENT = r"[Gg]radient|all parameters|weight"
CORE = "self_attention.core_attention"
DISPATCHER = "mlp.token_dispatcher"


def both(point, forward, backward=None):
    """Change an operator and its backward."""
    return lambda: [Fault(point, forward), Fault(f"{point}.backward", backward or forward)]


def patched(name, value, of=att):
    return partial(change.swapped, of, name, value)


SECOND = (
    # attention and rotary
    Planted("rotary turns neighbours, not halves", at("*.rotary_pos_emb*", change.interleaved),
            of(0, "self_attention.rotary"), FORWARD, (f.ROTARY,), (TP2, CP2)),
    Planted("rotary on queries only", at("*.rotary_pos_emb*", change.only_queries), of(0, "self_attention.rotary"),
            FORWARD, (f.ROTARY,), (DP2, SP2)),
    Planted("no causal mask at all", at(f"{LAYER1}.*.core_attention", with_settings(offset=10**6)), of(1, CORE),
            FORWARD, (f.MASK,), (TP4, KV2)),
    Planted("sliding window of 8 left on", list, of(0, CORE), FORWARD, (f.MASK,), (DP2, TP2),
            patch=patched("_blocks", change.window_of_8)),
    Planted("softmax plus one (attention sink)", list, of(0, CORE), FORWARD, (f.NORMALISATION,), (TP2, DP4),
            patch=patched("_block", change.with_sink)),
    Planted("query heads read the wrong key group", both(f"{LAYER0}.{CORE}", change.tiled), of(0, CORE), FORWARD,
            (f.PERMUTATION,), (DP2, CP2), GROUPS),
    Planted("CP: gathered keys masked as if contiguous", at("*.core_attention", change.keys_in_order), of(0, CORE),
            FORWARD, (f.MASK, f.PERMUTATION), (KV2, KV4)),
    Planted("CP: value gradient averaged, not summed",
            at(f"{LAYER1}.{CORE}.value.backward.reduce_scatter", lambda e: e.call() / e.layout.cp), of(1, CORE),
            BACKWARD, FACTOR, (KV2, KV4)),
    Planted("attention backward without delta", list, of(1, CORE), BACKWARD, (f.MISSING_TERM, f.NORMALISATION),
            (TP2, DP2), patch=patched("backward", change.without_delta, att.ATTENTION)),
    Planted("dQ without the softmax scale", at(f"{LAYER0}.{CORE}.backward", change.unscaled_queries), of(0, CORE),
            BACKWARD, (f.SOFTMAX_SCALE, f.SCALED), (TP2, CP2)),
    Planted("GQA: key and value gradients of one head only", at(f"{LAYER1}.{CORE}.backward", change.first_head),
            of(1, CORE), BACKWARD, (f.MISSING_TERM, f.MISSING_REDUCTION), (DP2, TP2), GROUPS),
    # norms, residuals, linear layers, activations
    Planted("LayerNorm in place of RMSNorm", at(f"{LAYER1}.input_layernorm*", change.centred),
            of(1, "input_layernorm"), FORWARD, (f.NORMALISATION,), (TP2, DP2)),
    Planted("final norm left out", at("decoder.final_layernorm", skip), "final_layernorm", FORWARD,
            (f.NORMALISATION,), (DP2, PP2)),
    Planted("norm with another norm's weight", change.other_norm, of(1, "pre_mlp_layernorm"), FORWARD,
            (f.CHANNEL_WEIGHT, f.DIFFERENT_WEIGHTS), (TP2, CP2)),
    Planted("matmul in fp8",
            at(f"{LAYER1}.mlp.linear_fc1", lambda e: e.call(*(change.fp8(x) for x in e.inputs))),
            of(1, "mlp.linear_fc1"), FORWARD, (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("residual branch halved", at(f"{LAYER0}.mlp_bda", lambda e: e.call(0.5 * e.inputs[0], e.inputs[1])),
            of(0, "mlp_bda"), FORWARD, (f.SCALED, f.MISSING_TERM), (TP2, DP2)),
    Planted("residual taken after the norm", change.after_the_norm, of(1, "self_attn_bda"), FORWARD,
            (f.MISSING_TERM, f.EXTRA_TERM, f.DIFFERENT_INPUTS), (DP2, TP2)),
    Planted("output multiplier of muP", at("output_layer", scaled(0.25)), "output_layer", FORWARD, (f.SCALED,),
            (SP2, PP2)),
    Planted("norm's backward without its projection",
            at(f"{LAYER1}.pre_mlp_layernorm.backward", change.no_projection), of(1, "pre_mlp_layernorm"), BACKWARD,
            (f.MISSING_TERM, f.NORMALISATION), (TP2, DP2)),
    Planted("norm's weight gradient of the raw input", at("decoder.final_layernorm.backward", change.raw_input),
            "final_layernorm", BACKWARD, (f.NORMALISATION,), (DP2, TP2)),
    Planted("head detached from the tied weight",
            at("output_layer.backward", lambda e: (e.call()[0], 0 * e.call()[1])), "output_layer|embedding", BACKWARD,
            (f.ZERO, f.MISSING_TERM), (DP2, TP2), TIED),
    Planted("residual's gradient lost", at(f"{LAYER1}.mlp_bda.backward", lambda e: (e.call()[0], 0 * e.call()[1])),
            r"layers\.1(\.mlp_bda)?(\.|$)", BACKWARD, (f.ZERO, f.MISSING_TERM), (TP2, DP2)),
    Planted("SiLU's derivative without its second term",
            at(f"{LAYER0}.mlp.activation_func.backward", change.short_silu), of(0, "mlp.activation_func"), BACKWARD,
            (f.ACTIVATION, f.MISSING_TERM), (DP2, TP2)),
    Planted("loss scale too large: fp16 gradient overflows",
            at(f"{LAYER0}.mlp.linear_fc2.backward", change.fp16_overflow), of(0, "mlp.linear_fc2"), BACKWARD,
            (f.OVERFLOW,), (DP2, TP2)),
    Planted("recomputation restores another micro-batch's input", change.stale_input, of(0, "mlp.linear_fc2"),
            BACKWARD, (f.STALE, f.DUPLICATED, f.DIFFERENT_INPUTS), (MB2, TP2_MB2)),
    # embedding, tokens, loss
    Planted("embedding all-reduce missing", at("embedding.word_embeddings.all_reduce", skip), EMBEDDING, FORWARD,
            (f.MISSING_REDUCTION,), (TP2, TP4)),
    Planted("embedding times sqrt(hidden)", at("embedding.word_embeddings", scaled(32**0.5)), EMBEDDING, FORWARD,
            (f.SCALED,), (DP2, TP2)),
    Planted("tokens of other ranks look up row 0 (TP)", at("embedding.word_embeddings", change.row_0_added),
            EMBEDDING, FORWARD, (f.EXTRA_TERM,), (TP2, TP4)),
    Planted("token losses rounded to bfloat16", at("loss", lambda e: bf16(e.call())), LOSS, FORWARD,
            (f.WRONG_DTYPE,), (DP2, TP2)),
    Planted("labels not shifted", at("data.tokens", lambda e: (e.inputs[0], e.inputs[0])), LOSS, FORWARD,
            (f.DIFFERENT_INPUTS,), (DP2, TP2)),
    Planted("last position masked out of the loss", both("loss", change.last_masked, change.last_masked_back), LOSS,
            FORWARD, (f.LOCAL, f.MASK, f.MISSING_TERM, f.DROPPED), (DP2, TP2)),
    Planted("z-loss left on", both("loss", change.z_loss, change.z_loss_back), LOSS, FORWARD,
            (f.LOSS_TERM, f.EXTRA_TERM), (DP2, PP2)),
    Planted("predicted logit not reduced", at("loss.predicted.all_reduce", skip), LOSS, FORWARD,
            (f.MISSING_REDUCTION,), (TP2, TP4)),
    Planted("tokens cut contiguously, positions zigzag (CP)", at("data.tokens", change.cut_in_order), EMBEDDING,
            DATA, (f.PERMUTATION, f.DIFFERENT_INPUTS, f.DUPLICATED), (CP2, CP4)),
    Planted("DP ranks have each other's sequences",
            at("data.tokens", lambda e: tuple(x[::-1].copy() for x in e.inputs)), EMBEDDING, DATA,
            (f.PERMUTATION, f.DIFFERENT_INPUTS), (DP2, DP4)),
    Planted("a BOS token too many", at("data.tokens", change.one_token_more), EMBEDDING, DATA,
            (f.DIFFERENT_INPUTS, f.PERMUTATION), (DP2, TP2)),
    # weights
    Planted("tied head not synchronised over PP", at("initial.output_layer.weight", change.redrawn),
            "output_layer|embedding", ("setup", "forward"), (f.DIFFERENT_WEIGHTS,), (PP2, PP2_TP2), TIED),
    Planted("vocabulary shards one rank off",
            at("initial.output_layer.weight", lambda e: e.inputs[0].take([-1, *range(e.layout.tp - 1)], axis=2)),
            "output_layer", SETUP, (f.PERMUTATION, f.DUPLICATED), (TP4, TP2)),
    Planted("qkv converted without grouping",
            at(f"initial.{LAYER0}.self_attention.linear_qkv.weight", change.ungrouped_qkv),
            of(0, "self_attention.linear_qkv"), SETUP, (f.PERMUTATION,), (DP2, CP2), GROUPS),
    Planted("square weight transposed",
            at(f"initial.{LAYER1}.self_attention.linear_proj.weight", lambda e: e.inputs[0].swapaxes(-1, -2).copy()),
            of(1, "self_attention.linear_proj"), SETUP, (f.PERMUTATION, f.DIFFERENT_WEIGHTS), (DP2, PP2)),
    Planted("router initialised differently on a TP rank",
            at(f"initial.{LAYER0}.mlp.router.weight", change.other_on_rank_1), of(0, "mlp.router"),
            ("setup", "forward"), (f.DIFFERENT_WEIGHTS, f.ONE_SHARD), (TP2, TP2_DP2), MIXTURE),
    Planted("second step runs on the first step's weight", change.stale_weight, of(1, "mlp.linear_fc1"), FORWARD,
            (f.STALE, f.DIFFERENT_WEIGHTS), (DP2, TP2), late=True),
    # reductions and ranks
    Planted("head's input gradient reduced twice", at("output_layer.backward.all_reduce", twice), "output_layer",
            BACKWARD, TWICE, (TP2, TP4)),
    Planted("SP: gradient gathered in reverse order",
            at(f"{LAYER0}.self_attention.linear_proj.backward.all_gather", change.gathered_backwards),
            of(0, "self_attention.linear_proj"), BACKWARD, (f.PERMUTATION, f.DUPLICATED), (SP2, SP4)),
    Planted("SP: norm gradients averaged over TP",
            at("gradients.*layernorm.weight.sequence.all_reduce", lambda e: e.call() / e.layout.tp), "layernorm",
            BACKWARD, FACTOR, (SP2, SP4)),
    Planted("PP: stage 1 gets the micro-batch before", change.stale_output, r"layers\.(0|1\.input_layernorm)", FORWARD,
            (f.STALE, f.DUPLICATED, f.DIFFERENT_INPUTS), (PP2_MB2, PP2_TP2_MB2)),
    Planted("PP: tied gradient summed twice",
            at("gradients.embedding.all_reduce", lambda e: tuple(2 * x for x in e.call())), "embedding|output_layer",
            BACKWARD, TWICE, (PP2, PP2_DP2), TIED),
    Planted("main gradients accumulate in bfloat16", at("gradients.*.accumulate", lambda e: bf16(e.call())),
            ANY_GRADIENT, BACKWARD, (f.WRONG_DTYPE,), (MB4, TP2_MB4)),
    Planted("expert gradients not reduced over their replicas", at("gradients.*.experts.*.all_reduce", skip),
            r"mlp\.experts", BACKWARD, (f.MISSING_REDUCTION,), (DP4_EP2, CP2_EP2), MIXTURE),
    Planted("one weight's gradient reduced twice over DP",
            at(f"gradients.{LAYER1}.self_attention.linear_proj.weight.all_reduce", twice),
            of(1, "self_attention.linear_proj"), BACKWARD, TWICE, (DP2, DP4)),
    Planted("a DP rank's gradients are left out", at("gradients.*.weight.all_reduce", change.without_rank_1),
            ANY_GRADIENT, BACKWARD, (f.MISSING_TERM, f.MISSING_REDUCTION, f.ONE_SHARD), (DP2, DP4)),
    # experts
    Planted("aux loss detached", at("*.router.aux_loss.backward", lambda e: (0 * e.call()[0], None)), r"mlp\.router",
            BACKWARD, (f.LOSS_TERM, f.MISSING_TERM, f.ZERO), (EP2, TP2), ONLY),
    Planted("router scores by sigmoid", at(f"{LAYER0}.mlp.router.softmax*", change.by_sigmoid), of(0, "mlp.router"),
            FORWARD, (f.ROUTER, f.NORMALISATION, f.ACTIVATION), (EP2, TP2), MIXTURE),
    Planted("weights in the other order than experts", at(f"{LAYER1}.mlp.router.top_k", change.weights_reversed),
            of(1, "mlp.router"), FORWARD, (f.PERMUTATION, f.ROUTER), (EP2, EP2_TP2), MIXTURE),
    Planted("routed scaling factor 2.5", at("*.router.top_k", change.weights_times_2_5), of(0, "mlp.router"), FORWARD,
            (f.SCALED,), (EP2, TP2_DP2), ONLY),
    Planted("routing weights not applied",
            at(f"{LAYER0}.{DISPATCHER}.unpermute", lambda e: e.call(e.inputs[0], e.inputs[1] ** 0)),
            of(0, r"mlp.token_dispatcher\.(combine|unpermute)"), FORWARD, (f.NORMALISATION, f.ROUTER), (EP2, TP2),
            MIXTURE),
    Planted("shared expert left out", at(f"{LAYER0}.mlp.add_shared", skip), r"layers\.0\." + SHARED, FORWARD,
            (f.MISSING_TERM,), (EP2, TP2), MIXTURE),
    Planted("shared expert counted tp times",
            at(f"{LAYER1}.mlp.add_shared", lambda e: e.call(e.inputs[0], e.inputs[1] * e.layout.tp)),
            r"layers\.1\." + SHARED, FORWARD, (f.EXTRA_TERM, f.DOUBLE_REDUCTION, f.SCALED), (TP2, TP4),
            replace(MIXTURE, kv_heads=4)),
    Planted("token's gradient from its first expert only",
            at(f"{LAYER1}.{DISPATCHER}.permute.backward", change.one_choice), of(1, DISPATCHER), BACKWARD,
            (f.MISSING_TERM, f.DROPPED), (EP2, TP2), MIXTURE),
    Planted("grouped GEMM's offsets one row off", at(f"{LAYER0}.mlp.experts.linear_fc1", change.one_row_off),
            of(0, r"mlp.experts\.linear_fc1"), FORWARD, (f.LOCAL, f.PERMUTATION, f.ROUTER), (EP2, TP2), ONLY),
    Planted("first expert of each rank has no weight gradient",
            at(f"{LAYER1}.mlp.experts.linear_fc2.backward", change.no_first_expert),
            of(1, r"mlp.experts\.linear_fc2"), BACKWARD, (f.ZERO, f.MISSING_TERM, f.LOCAL, f.ONE_SHARD), (EP2, TP2),
            MIXTURE),
    Planted("MoE input gradient not reduced over TP", at(f"{LAYER0}.{DISPATCHER}.backward.all_reduce", skip),
            r"layers\.0\.mlp(\.token_dispatcher.*|\.router.*|\.shared_experts.*)?(\.MoELayer)?$", BACKWARD,
            (f.MISSING_REDUCTION,), (TP2, EP2_TP2), MIXTURE),
    Planted("aux loss counts not reduced over CP", at("*.router.aux_loss.all_reduce", skip), r"mlp\.router", BACKWARD,
            (f.LOSS_TERM, f.MISSING_REDUCTION), (CP2, CP2_DP2), ONLY),
    # optimizer
    Planted("schedule one step behind (lr)", at("*.adam", lambda e: e.call(lr=e.settings["lr"] * 0.8), steps=[1]),
            ADAM, OPTIMIZER, (f.LEARNING_RATE,), (TP2, DP2)),
    Planted("decay not times lr",
            at("*linear*.adam", lambda e: e.call(weight_decay=e.settings["weight_decay"] / e.settings["lr"])),
            f"{ADAM}|linear", OPTIMIZER, (f.WEIGHT_DECAY,), (DP2, TP2)),
    Planted("embedding not decayed", at("optimizer.embedding*.adam", with_settings(weight_decay=0.0)), EMBEDDING,
            OPTIMIZER, (f.WEIGHT_DECAY,), (TP2, DP2)),
    Planted("beta2 of the library's default", at("*.adam", with_settings(beta2=0.999)), ADAM, OPTIMIZER,
            (f.ADAM_BETA,), (DP2, TP2)),
    Planted("eps inside the root", at("*.adam", change.eps_inside), ADAM, OPTIMIZER, (f.ADAM_EPSILON,), (TP2, DP2)),
    Planted("step count one ahead", at("*.adam", lambda e: e.call(time=e.settings["time"] + 1)), ADAM, OPTIMIZER,
            (f.BIAS_CORRECTION, f.OPTIMIZER_STATE), (DP2, TP2)),
    Planted("norm not reduced over TP", at("optimizer.grad_norm.all_reduce", skip), "grad_norm|clip", OPTIMIZER,
            (f.CLIPPING, f.MISSING_REDUCTION), (TP2, TP4)),
    Planted("one weight left out of the norm",
            at("optimizer.grad_norm.output_layer.weight", lambda e: 0 * e.call()), "grad_norm|clip", OPTIMIZER,
            (f.CLIPPING, f.MISSING_TERM), (DP2, TP2)),
    Planted("a weight is not in the optimizer",
            at(f"optimizer.{LAYER1}.self_attention.linear_proj.weight.adam", lambda e: e.inputs[1:]),
            of(1, "self_attention.linear_proj"), OPTIMIZER, (f.LEARNING_RATE, f.STALE, f.ZERO), (TP2, DP2)),
    Planted("second moments in bfloat16", at("*.adam", change.bf16_second), ADAM, OPTIMIZER, (f.WRONG_DTYPE,),
            (DP2, TP2)),
    Planted("ZeRO: updated slices not gathered", at("*.adam", change.own_slice), ADAM, OPTIMIZER,
            (f.ONE_SHARD, f.STALE, f.LOCAL, f.MISSING_REDUCTION), (DP2, DP4)),
    # another result each time
    Planted("atomic adds in the embedding's gradient", change.atomics, EMBEDDING, BACKWARD, (f.NON_DETERMINISM,),
            (DP2, TP2), replace(DENSE, vocabulary=16), rerun=True),
    Planted("top-k slots in no fixed order", change.any_slots, of(0, "mlp.router"), FORWARD, (f.NON_DETERMINISM,),
            (EP2, DP2), MIXTURE, rerun=True),
)  # fmt: skip
