"""Tasks of chapter 1: right answers worked out by hand, a design that is counted again from its config."""

import pytest

from telekit.exercises import chapter01 as tasks
from telekit.model.count import count

DESIGN = {
    "n_routed_experts": 384,
    "num_hidden_layers": 60,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 6,
}


def test_a_blocks_mtp_module_costs_what_its_matrices_do():
    hidden, attention = 7168, 187_105_280  # the attention's matrices, without norms
    experts = 9 * 3 * hidden * 2048 + 256 * hidden
    matrices = attention + experts + 2 * hidden**2 + 129280 * hidden
    mixing = 2 * 128 * 320 * 4097 / 2
    base = count("deepseek-v3").forward_flops_per_token
    assert tasks.mtp_share(100 * (2 * matrices + mixing) / base).ok


@pytest.mark.parametrize(
    "check", [tasks.mixtral_active, tasks.head_share, tasks.equal_length, tasks.mtp_share]
)
def test_silence_is_neither_right_nor_wrong(check):
    assert (
        check(None).ok is None
        and tasks.trillion(None).ok is None
        and tasks.active_convention(None).ok is None
    )


def test_a_design_is_counted_from_its_config():
    found, again = tasks.designed(DESIGN), count(tasks.base() | DESIGN)
    assert (found.count.total, found.count.active) == (again.total, again.active)
    flops = again.training_flops_per_token * 14.8e12
    assert found.days == pytest.approx(flops / (8192 * 294.9e12 * 0.35) / 86400)
    assert tasks.trillion(DESIGN).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n_routed_experts": 256}, "it has 681 B"),
        ({"num_experts_per_tok": 9}, "its top-k is 9"),
        ({"num_experts_per_tok": 7}, "46.8 days"),
        ({"n_routed_experts": 376}, "56 over"),
        ({"moe_intermediate_size": 1024, "n_routed_experts": 768}, "1,024 wide"),
        ({"num_experts_per_tok": 8}, "attention 11.2, routed experts 20.8"),
        ({"n_routed_experts": 0}, "must be from 1"),
        ({"first_k_dense_replace": 60}, "no layer has experts"),
    ],
)
def test_what_is_missed_is_said(change, said):
    verdict = tasks.trillion(DESIGN | change)
    assert verdict.ok is False and said in verdict.message


def test_the_share_that_the_question_prints_is_named_as_the_slip():
    verdict = tasks.mtp_share(1.7)
    assert verdict.ok is False and "share of the stored parameters" in verdict.message


def test_query_heads_taken_as_key_heads_are_named():
    hidden, kv = 4096, 8 * 128
    projections = 2 * (2 * hidden**2 + 2 * hidden * kv)
    wrong = 2 * projections / (2 * 2 * 8 * 128)  # 8 query heads of 128, once as a key and once as a value
    assert round(wrong) == 40960
    verdict = tasks.equal_length(wrong)
    assert verdict.ok is False and "queries have 32 heads" in verdict.message
    assert tasks.equal_length("10,239").ok


@pytest.mark.parametrize(
    "answer",
    [
        3,
        "384",
        [384],
        {"experts": 384},
        {"n_routed_experts": "many"},
        {1: 2},
        {None: 1, "a": 2},
        {"n_routed_experts": 10**400},
        {"hidden_size": 10**5000},
    ],
    ids=lambda a: type(a).__name__,
)
def test_what_is_no_model_is_refused_without_a_crash(answer):
    verdict = tasks.trillion(answer)
    assert verdict.ok is False and verdict.message.startswith("It must be a model")
