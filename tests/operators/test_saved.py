"""What a layer keeps: Korthikanti et al.'s formulas, recounts by hand, and what each recompute module frees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telekit.layout.config import ParallelConfig
from telekit.layout.table import LayoutTable
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, ModelConfig
from telekit.model.huggingface import load_model
from telekit.operators.saved import exchange_bytes, kept_bytes, saved_tensors, working_bytes
from telekit.training.config import TrainConfig

GPT_175B, GPT_1T = (12288, 96), (25600, 160)


def gpt(hidden, heads):
    attention = GroupedQueryAttention(heads=heads, kv_heads=heads, head_dim=hidden // heads)
    kind = LayerKind(
        name="gpt", attention=attention, mlp=FeedForward(ffn_hidden_size=4 * hidden, gated=False)
    )
    return ModelConfig(name="gpt", hidden_size=hidden, vocab_size=51200, kinds=(kind,), pattern=(0,))


def kept(model, layout, kind=-1, **train):
    found = kept_bytes(model, model.kinds[kind], TrainConfig(**train), layout)
    return [float(size) for size in found]


def korthikanti(hidden, heads, case, s=2048, b=1, t=8):
    """arXiv 2205.05198, table 2: bytes of a layer."""
    sbh, scores = s * b * hidden, 5 * heads * s / hidden
    return {
        "none": sbh * (34 + scores),
        "tp": sbh * (10 + 24 / t + scores / t),
        "tp_sp": sbh * (34 / t + scores / t),
        "tp_selective": sbh * (10 + 24 / t),
        "tp_sp_selective": sbh * 34 / t,
        "full": sbh * 2,
    }[case]


def unfused(hidden, heads, case, s=2048, b=1, t=8):
    layout = ParallelConfig(
        tp=1 if case == "none" else t,
        sequence_parallel="_sp" in case,
        micro_batch=b,
        recompute=("core_attn",),
    )
    option = 2 if case == "full" else int("selective" in case)
    return kept(gpt(hidden, heads), layout, seq_len=s, attention_kernel="unfused")[option]


@pytest.mark.parametrize("case", ["none", "tp", "tp_sp", "tp_selective", "tp_sp_selective", "full"])
@pytest.mark.parametrize("model", [GPT_175B, GPT_1T])
def test_korthikanti_formulas_are_exact(model, case):
    assert unfused(*model, case) == korthikanti(*model, case)


@pytest.mark.parametrize(
    "case, bytes_175b, bytes_1t",
    [("tp", 578813952, 1101004800), ("tp_sp", 358612992, 642252800), ("tp_selective", 327155712, 681574400),
     ("tp_sp_selective", 106954752, 222822400), ("full", 50331648, 104857600)],
)  # fmt: skip
def test_korthikanti_layers_as_evaluated(case, bytes_175b, bytes_1t):
    assert (unfused(*GPT_175B, case), unfused(*GPT_1T, case)) == (bytes_175b, bytes_1t)


@pytest.mark.parametrize(
    "model, share", [(GPT_175B, (62.04, 56.53, 18.49, 8.71)), (GPT_1T, (58.31, 62.04, 20.27, 9.42))]
)
def test_korthikanti_figure_7(model, share):
    """Percent of the tensor-parallel layer's bytes: read from a figure, half a point and more of it unsure."""
    cases = ("tp_sp", "tp_selective", "tp_sp_selective", "full")
    found = [100 * unfused(*model, case) / unfused(*model, "tp") for case in cases]
    assert found == pytest.approx(share, abs=0.6)


@given(
    heads=st.sampled_from([4, 8, 16]), width=st.sampled_from([64, 128]), s=st.sampled_from([512, 2048, 8192]),
    b=st.integers(1, 8), t=st.sampled_from([2, 4]), case=st.sampled_from(["none", "tp", "tp_sp", "tp_sp_selective"]),
)  # fmt: skip
def test_korthikanti_formulas_for_any_layer(heads, width, s, b, t, case):
    size = heads * width
    assert unfused(size, heads, case, s, b, t) == pytest.approx(
        korthikanti(size, heads, case, s, b, t), rel=1e-12
    )


def test_ma09_the_formula_is_bytes_and_fp32_about_doubles_it():
    """LLM-Tools issue 4: 34 sbh + 5 a s^2 b are bytes at 16 bits; the masks stay one byte at 32."""
    plain = unfused(*GPT_175B, "none")
    layout, model = ParallelConfig(), gpt(*GPT_175B)
    wide = kept(model, layout, seq_len=2048, attention_kernel="unfused", precision="fp32")[0]
    masks = 2 * 2048 * 12288 + 96 * 2048**2
    assert wide == 2 * (plain - masks) + masks


def test_ma02_with_flash_attention_recomputing_it_saves_next_to_nothing():
    """Megatron-LM issue 1225: the 5 a s / h term is never stored, so there are no 70 % to save."""
    model, layout = gpt(*GPT_175B), ParallelConfig(recompute=("core_attn",))
    none, selective, _ = kept(model, layout, seq_len=2048)
    assert none == 32 * 2048 * 12288 + 4 * 96 * 2048
    assert 0 < (none - selective) / none < 0.001


def test_a_llama_layer_recounted():
    """Numbers a token: two streams, two norms' outputs, queries, keys, values, output, 2 f and f; fp32 log-sum-exp."""
    model, t = load_model("llama-3.1-70b"), 4096
    numbers = 4 * 8192 + 2 * 8192 + 2 * 1024 + 3 * 28672
    assert kept(model, ParallelConfig(), seq_len=t)[0] == t * (2 * numbers + 4 * 64)
    halves = kept(model, ParallelConfig(tp=2), seq_len=t)[0]
    assert halves == t * (2 * numbers + 4 * 64) / 2


def test_a_deepseek_v3_layer_recounted_and_what_each_module_frees():
    model, t = load_model("deepseek-v3"), 4096
    h, qk, v, heads, f, k = 7168, 192, 128, 128, 2048, 8
    up = 1536 + 512 + heads * (2 * qk + v)  # outputs of both norms; queries, keys, values
    numbers = 4 * h + 1536 + 576 + up + heads * v + k * (h + 3 * f) + 3 * f
    found = kept(model, ParallelConfig(ep=64, dp=64), seq_len=t)
    assert found[0] == t * (2 * numbers + 4 * heads + 4 * 256)
    frees = {"mla_up_proj": 2 * up, "layernorm": 2 * 2 * h, "moe_act": 2 * k * f, "core_attn": 4 * heads,
             "shared_experts": 2 * 3 * f, "moe": 2 * (k * (h + 3 * f) + 3 * f) + 4 * 256}  # fmt: skip
    for module, numbers in frees.items():
        none, selective, full = kept(model, ParallelConfig(ep=64, dp=64, recompute=(module,)), seq_len=t)
        assert none - selective == t * numbers, module
        assert full == 2 * t * h


def test_savings_of_the_megatron_core_report():
    """arXiv 2603.07685, tables 3 and 4: 30.4 GB by MLA's up-projection, 26.3 GB by permuting without a copy."""
    frees, copies = 2 * (1536 + 512 + 128 * (2 * 192 + 128)), 2 * 8 * 7168
    assert frees / copies == pytest.approx(30.4 / 26.3, rel=0.03)


def test_modules_of_a_dense_layer():
    model, t, f = load_model("llama-3.1-8b"), 4096, 14336
    for module, numbers in {"mlp": 3 * f, "mlp_act": f, "layernorm": 2 * 4096}.items():
        none, selective, _ = kept(model, ParallelConfig(recompute=(module,)), seq_len=t)
        assert none - selective == 2 * t * numbers


def test_ma01_expert_parallelism_cancels():
    """Megatron-LM pull request 6782: 32,768 copies a rank at EP 8 and at EP 64, and their intermediates."""
    model = load_model("deepseek-v3")
    found = []
    for ep in (8, 64):
        tensors = saved_tensors(
            model, model.kinds[-1], TrainConfig(seq_len=4096), ParallelConfig(ep=ep, dp=64)
        )
        found.append({tensor.name: tensor.size_bytes for tensor in tensors})
    assert found[0] == found[1]
    assert found[0]["permute"] == 2 * 32768 * 7168 and found[0]["expert_fc1"] == 2 * 32768 * 2 * 2048


def test_ma14_the_busiest_rank_keeps_what_reaches_it():
    """Megablocks issue 154: 2.0 times the mean of 32,768 is 65,536; a capacity bounds it."""
    model = load_model("deepseek-v3")

    def copies(**layout):
        layout = ParallelConfig(ep=8, dp=8, **layout)
        tensors = saved_tensors(model, model.kinds[-1], TrainConfig(seq_len=4096), layout)
        sent = exchange_bytes(model, model.kinds[-1], TrainConfig(seq_len=4096), layout)
        return next(
            t.size_bytes for t in tensors if t.name == "permute"
        ) / 2 / 7168, sent - 2 * 2 * 4096 * 7168

    assert copies() == (32768, 4 * 2 * 32768 * 7168)
    assert copies(expert_imbalance=2.0) == (65536, 4 * 2 * 65536 * 7168)
    assert copies(expert_imbalance=2.0, moe_expert_capacity_factor=1.25)[0] == 1.25 * 32768


def test_ulysses_keeps_attentions_output_twice_and_a_ring_does_not():
    model = load_model("llama-3.1-70b")
    ring, ulysses = (
        kept(model, ParallelConfig(cp=8, cp_comm_type=kind), seq_len=32768)[0] for kind in ("p2p", "a2a")
    )
    assert ulysses - ring == 2 * 4096 * 8192
    assert ring == kept(model, ParallelConfig(), seq_len=4096)[0]


def test_fp8_halves_what_products_read():
    """Inputs of products are kept in 8 bits; the stream, attention and the activation function's input are not.

    Attention's output is kept in both, for attention and for the projection after it.
    """
    model, t = load_model("llama-3.1-8b"), 4096
    wide, low = (kept(model, ParallelConfig(), seq_len=t, precision=p)[0] for p in ("bf16", "fp8"))
    assert wide - low == t * (2 * 4096 + 14336 - 4096)
    less = kept(model, ParallelConfig(), seq_len=t, precision="fp8", activation_func_fp8_input_store=True)[0]
    assert low - less == t * 2 * 14336


def test_the_router_reads_16_bits_beside_fp8_experts():
    model = load_model("deepseek-v3")
    tensors = saved_tensors(
        model, model.kinds[-1], TrainConfig(seq_len=4096, precision="fp8"), ParallelConfig(ep=8, dp=8)
    )
    sizes = {t.name: t.size_bytes for t in tensors if t.modules == ("layernorm",)}
    assert sizes["router_input"] == 2 * 4096 * 7168 == 2 * sizes["pre_mlp_norm"]


def test_the_moment_of_a_layer():
    """Backward of SwiGLU: the stream's gradient and that of its input (2 f); gathered inputs where they are larger."""
    model, t = load_model("llama-3.1-70b"), 4096
    kind, train = model.kinds[0], TrainConfig(seq_len=t)
    assert working_bytes(model, kind, train, ParallelConfig()) == 2 * t * (8192 + 2 * 28672)
    split = working_bytes(model, kind, train, ParallelConfig(tp=8))
    assert split == 2 * t * (8192 / 8 + 2 * 8192 - 28672 / 8)
    assert working_bytes(model, kind, train, ParallelConfig(tp=8, sequence_parallel=False)) == 2 * t * (
        8192 + max(2 * 28672 / 8, 8192)
    )


@pytest.mark.parametrize(
    "name", ["deepseek-v3", "llama-3.1-70b", "gpt-oss-120b", "deepseek-v4-flash", "qwen3-next-80b-a3b"]
)
def test_recomputing_more_keeps_less_one_by_one_and_as_a_table(name):
    model, train = load_model(name), TrainConfig(seq_len=4096)
    rng = np.random.default_rng(3)
    base = ParallelConfig(dp=1, recompute="selective", cp_comm_type="a2a")
    columns = {c: rng.choice([1, 2, 4, 8], 20).astype(float) for c in ("tp", "cp", "dp", "ep", "micro_batch")}
    table = LayoutTable.build(base, **columns)
    for kind in model.kinds:
        none, selective, full = kept_bytes(model, kind, train, table)
        assert (full <= selective).all() and (selective <= none).all() and (none > 0).all()
        for row in range(20):
            one = table.row(row, base)
            for whole, single in zip(
                (none, selective, full), kept_bytes(model, kind, train, one), strict=True
            ):
                assert whole[row, 0] == pytest.approx(float(single), rel=1e-12)
            for part in (working_bytes, exchange_bytes):
                together = np.broadcast_to(part(model, kind, train, table), (20, 1))[row, 0]
                assert together == pytest.approx(float(part(model, kind, train, one)), rel=1e-12)
