"""Dumps of the miniature: msprobe's names and order, ranks' pieces, what the readers make of the files."""

import json

import numpy as np
import pytest

from telekit.accuracy.measures.summaries import checksum
from telekit.accuracy.miniature import Config, Fault, Layout, dump, replicas, run, write_dump
from telekit.accuracy.readers import tensors
from telekit.errors import InputError

SMALL = Config(layers=1, hidden=16, heads=2, kv_heads=2, ffn=8, vocabulary=16, sequence=4, batch=4)
EXPERTS = Config(
    layers=1, hidden=16, heads=2, kv_heads=2, ffn=8, vocabulary=16, sequence=4, batch=4, experts=4, shared_ffn=8,
    precision="bf16",
)  # fmt: skip


def test_modules_are_named_and_ordered_as_msprobe_does():
    found = dump(run(SMALL, steps=1))
    (info,) = found.dumps
    forward = [api for api in info.apis if ".forward." in api]
    assert forward == [
        "Module.embedding.word_embeddings.VocabParallelEmbedding.forward.0",
        "Module.decoder.layers.0.input_layernorm.RMSNorm.forward.0",
        "Module.decoder.layers.0.self_attention.linear_qkv.ColumnParallelLinear.forward.0",
        "Module.decoder.layers.0.self_attention.rotary_pos_emb.RotaryEmbedding.forward.0",
        "Module.decoder.layers.0.self_attention.core_attention.DotProductAttention.forward.0",
        "Module.decoder.layers.0.self_attention.linear_proj.RowParallelLinear.forward.0",
        "Module.decoder.layers.0.self_attention.SelfAttention.forward.0",
        "Module.decoder.layers.0.self_attn_bda.BiasDropoutAdd.forward.0",
        "Module.decoder.layers.0.pre_mlp_layernorm.RMSNorm.forward.0",
        "Module.decoder.layers.0.mlp.linear_fc1.ColumnParallelLinear.forward.0",
        "Module.decoder.layers.0.mlp.activation_func.SwiGLU.forward.0",
        "Module.decoder.layers.0.mlp.linear_fc2.RowParallelLinear.forward.0",
        "Module.decoder.layers.0.mlp.MLP.forward.0",
        "Module.decoder.layers.0.mlp_bda.BiasDropoutAdd.forward.0",
        "Module.decoder.layers.0.TransformerLayer.forward.0",
        "Module.decoder.final_layernorm.RMSNorm.forward.0",
        "Module.output_layer.ColumnParallelLinear.forward.0",
        "Module.loss.VocabParallelCrossEntropy.forward.0",
    ]
    backward = [api for api in info.apis if ".backward." in api]
    assert sorted(api.replace("backward", "forward") for api in backward) == sorted(forward)
    assert backward[0] == "Module.loss.VocabParallelCrossEntropy.backward.0"
    of_qkv = [
        t.name.split("linear_qkv.ColumnParallelLinear.")[1] for t in found if "linear_qkv.Column" in t.name
    ]
    assert of_qkv == [
        "forward.0.input.0", "forward.0.parameters.weight", "forward.0.output.0", "parameters_grad.0.weight",
        "backward.0.input.0", "backward.0.output.0",
    ]  # fmt: skip
    kinds = [api.split(".")[0] for api in info.apis]
    assert kinds.index("Gradient") > kinds.index("Module")
    assert kinds.index("Optimizer") > kinds.index("Gradient")
    assert info.parents[forward[2]] == forward[6]
    assert info.parents[forward[6]] == forward[14]
    assert info.parents[forward[14]] is None


def test_a_module_s_gradients_are_its_own():
    """A value that two modules use: each one's part, and together what goes back into the value."""
    found = {t.name: t.load() for t in dump(run(SMALL, steps=1))}
    layer = "Module.decoder.layers.0"
    through_norm = found[f"{layer}.pre_mlp_layernorm.RMSNorm.backward.0.output.0"]
    through_residual = found[f"{layer}.mlp_bda.BiasDropoutAdd.backward.0.output.1"]
    into = found[f"{layer}.self_attn_bda.BiasDropoutAdd.backward.0.input.0"]
    np.testing.assert_array_equal(np.float32(through_norm + through_residual), into)
    weight = found[f"{layer}.mlp.linear_fc2.RowParallelLinear.forward.0.parameters.weight"]
    x = found[f"{layer}.mlp.linear_fc2.RowParallelLinear.forward.0.input.0"].reshape(-1, weight.shape[1])
    up = found[f"{layer}.mlp.linear_fc2.RowParallelLinear.backward.0.input.0"].reshape(-1, weight.shape[0])
    back = found[f"{layer}.mlp.linear_fc2.RowParallelLinear.backward.0.output.0"]
    np.testing.assert_allclose(back.reshape(x.shape), up @ weight, rtol=1e-5, atol=1e-8)
    grad = found[f"{layer}.mlp.linear_fc2.RowParallelLinear.parameters_grad.0.weight"]
    np.testing.assert_allclose(grad, up.T @ x, rtol=1e-4, atol=1e-8)


def test_ranks_hold_their_own_pieces():
    done = run(SMALL, Layout(tp=2, dp=2, micro_batches=2), steps=1)
    whole = {t.name: t.load() for t in dump(done)}
    ranks = {(t.rank, t.name): t.load() for t in dump(done, merged=False)}
    assert {rank for rank, _ in ranks} == {0, 1, 2, 3}
    qkv = "Module.decoder.layers.0.self_attention.linear_qkv.ColumnParallelLinear.forward"
    weight = np.concatenate([ranks[rank, f"{qkv}.0.parameters.weight"] for rank in (0, 1)])
    np.testing.assert_array_equal(weight, whole[f"{qkv}.0.parameters.weight"])
    rows = []
    for call in (0, 1):
        for first in (0, 2):  # data-parallel rank 0 is ranks 0 and 1
            rows.append(np.concatenate([ranks[first + t, f"{qkv}.{call}.output.0"] for t in (0, 1)], axis=-1))
    np.testing.assert_array_equal(np.concatenate(rows), whole[f"{qkv}.0.output.0"])


def test_collectives_are_in_the_dumps_of_ranks():
    done = run(SMALL, Layout(tp=2, dp=2), steps=1)
    found = {(t.rank, t.name): t.load() for t in dump(done, merged=False)}
    assert not [t for t in dump(done) if t.name.startswith("Distributed")]
    reduced = sorted({name for _, name in found if name.startswith("Distributed.all_reduce.")})
    assert len(reduced) > 20
    first = "Distributed.all_reduce.0.forward"  # of the embedding, over tp
    for pair in ((0, 1), (2, 3)):
        terms = [found[rank, f"{first}.input.0"] for rank in pair]
        for rank in pair:
            np.testing.assert_array_equal(found[rank, f"{first}.output.0"], terms[0] + terms[1])
    parents = {info.rank: info.parents for info in dump(done, merged=False).dumps}
    assert parents[3][first] == "Module.embedding.word_embeddings.VocabParallelEmbedding.forward.0"


def test_stages_dump_their_own_layers():
    done = run(Config(), Layout(pp=2, tp=2), steps=1)
    by_rank = {info.rank: set(info.apis) for info in dump(done, merged=False).dumps}
    assert by_rank[0] == by_rank[1] and by_rank[2] == by_rank[3]
    norms = {
        rank: [api for api in apis if "input_layernorm.RMSNorm.forward" in api]
        for rank, apis in by_rank.items()
    }
    assert norms[0] == ["Module.decoder.layers.0.input_layernorm.RMSNorm.forward.0"]
    assert norms[2] == ["Module.decoder.layers.1.input_layernorm.RMSNorm.forward.0"]
    assert "Optimizer.clip_grad_norm.step.0" in by_rank[0] & by_rank[2]


def test_tokens_go_to_the_ranks_of_their_experts():
    done = run(EXPERTS, Layout(dp=2, ep=2), steps=1)
    ranks = {(t.rank, t.name): t for t in dump(done, merged=False)}
    layer = "Module.decoder.layers.0.mlp"
    chosen = np.concatenate(
        [ranks[r, f"{layer}.router.TopKRouter.forward.0.output.1"].load().reshape(-1) for r in (0, 1)]
    )
    rows = f"{layer}.experts.linear_fc1.ColumnParallelGroupedLinear.forward.0.input.0"
    assert [ranks[r, rows].shape[0] for r in (0, 1)] == [(chosen // 2 == r).sum() for r in (0, 1)]
    golden = {t.name: t.load() for t in dump(run(EXPERTS, steps=1))}
    whole = golden[rows]
    assert whole.shape == (2 * 16, 16)
    x = golden[f"{layer}.token_dispatcher.dispatch.MoEAlltoAllTokenDispatcher.forward.0.input.0"].reshape(
        16, 16
    )
    choice = golden[f"{layer}.router.TopKRouter.forward.0.output.1"].reshape(16, 2)
    expected = [x[t] for e in range(4) for t in range(16) if e in choice[t]]
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("config", [SMALL, EXPERTS], ids=["fp32 dense", "bf16 experts"])
@pytest.mark.parametrize("merged", [True, False])
def test_the_readers_read_back_what_is_written(config, merged, tmp_path):
    done = run(config, Layout(dp=2, tp=2, ep=2 if config.experts else 1))
    written = dump(done, merged=merged, statistics=True)
    read = tensors(write_dump(written, tmp_path / "dump"))
    assert read.problems == ()
    assert len(read) == len(written) > 300
    for a, b in zip(written, read, strict=True):
        for field in ("name", "shape", "dtype", "api", "part", "step", "rank", "statistics", "nbytes"):
            assert getattr(a, field) == getattr(b, field), (field, a.name)
        np.testing.assert_array_equal(a.load(), b.load())
        assert a.load().dtype == b.load().dtype
    for a, b in zip(written.dumps, read.dumps, strict=True):
        for field in ("apis", "parents", "step", "rank", "level", "task"):
            assert getattr(a, field) == getattr(b, field)


def test_statistics_and_checksums_can_be_written_instead(tmp_path):
    written = dump(run(SMALL, steps=1))
    numbers = tensors(write_dump(written, tmp_path / "a", task="statistics"))
    sums = tensors(write_dump(written, tmp_path / "b", task="md5"))
    for item, number, summed in zip(written, numbers, sums, strict=True):
        array = item.load().astype(np.float64)
        assert not number.has_data and not summed.has_data
        assert number.statistics.max == array.max()
        assert number.statistics.norm == pytest.approx(np.linalg.norm(array))
        assert summed.md5 == checksum(item.load())
    assert json.loads((tmp_path / "a/step0/dump.json").read_text())["task"] == "statistics"
    with pytest.raises(InputError, match="task"):
        write_dump(written, tmp_path, task="all")


def test_an_infinity_is_written_and_read(tmp_path):
    fault = Fault("*.mlp_bda", lambda event: event.call() * np.float32(np.inf))
    read = tensors(write_dump(dump(run(SMALL, steps=1, fault=fault)), tmp_path))
    (bad,) = read.named("Module.decoder.layers.0.mlp_bda.BiasDropoutAdd.forward.0.output.0")
    assert np.isinf(bad.load()).all()


def test_steps_that_were_not_run_are_refused():
    done = run(SMALL, steps=1)
    with pytest.raises(InputError, match="steps"):
        dump(done, steps=[1])
    with pytest.raises(InputError, match="not kept"):
        replicas(run(SMALL, steps=1, keep=False))


def test_replicas_are_equal_and_grouped_by_what_they_share():
    config = Config(experts=4, tied=True)
    done = run(config, Layout(tp=2, dp=2, cp=2, pp=2, ep=2, sequence_parallel=True))
    found = {r.name: r for r in replicas(done)}
    assert all(
        r.unequal == ()
        for what in ("parameter", "grad", "exp_avg", "exp_avg_sq")
        for r in replicas(done, what)
    )
    assert found["decoder.layers.0.input_layernorm.weight"].groups == (tuple(range(8)),)
    assert found["decoder.layers.1.self_attention.linear_qkv.weight"].groups == (
        (8, 10, 12, 14),
        (9, 11, 13, 15),
    )
    assert found["decoder.layers.0.mlp.experts.linear_fc1.weight"].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    both = (0, 2, 4, 6, 8, 10, 12, 14)
    assert found["embedding.word_embeddings.weight"].groups == (both, tuple(r + 1 for r in both))
    assert "output_layer.weight" not in found


def test_the_curve_is_one_of_the_readers():
    done = run(Config(experts=4), steps=3)
    curve = done.curve
    assert (curve.loss, curve.grad_norm) == ("lm loss", "grad norm")
    assert curve.steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(curve.series("lm loss")[1], done.losses)
    np.testing.assert_array_equal(curve.series("load_balancing_loss")[1], done.aux_losses)
