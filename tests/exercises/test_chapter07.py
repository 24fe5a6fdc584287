"""Tasks of chapter 7: right answers from first principles, and a design that few choices of kernels meet."""

import pytest

from telekit.exercises import chapter07 as tasks
from telekit.fusion.kernels import Fusion
from telekit.fusion.subgraphs import SIZES
from telekit.fusion.traffic import cost

CHECKS = [
    tasks.bound_of_swiglu_norm,
    tasks.least_efficiency,
    tasks.host_bound_step,
    tasks.widest_row,
    tasks.gain_over_partly_fused,
    tasks.kernels,
]
NORM = [2, 3, 4, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("check", CHECKS)
def test_silence_is_neither_right_nor_wrong(check):
    assert check(None).ok is None


def test_right_answers_by_hand():
    # tensors of B x H: gate, up and the product; the product and the result. Fused: gate, up, the result
    assert tasks.bound_of_swiglu_norm(5 / 3).ok and tasks.bound_of_swiglu_norm("1.67").ok
    assert tasks.least_efficiency(39).ok and tasks.least_efficiency("39 %").ok
    assert tasks.host_bound_step(40 - (3091 - 1545) * 4.58e-3).ok
    assert tasks.gain_over_partly_fused(1.36 / 0.86).ok


def test_the_widest_row_is_three_tensors_and_two_vectors_of_256_bytes_at_least():
    """Row as read, exponentials and result, 4 bytes each; one number a row takes a vector."""
    room = 192 * 1024 - 256
    assert tasks._widest() == room // 12
    assert tasks.widest_row(192 * 1024 / 12).ok and not tasks.widest_row(20000).ok


def test_the_best_choice_is_bound_by_its_products():
    """Three products of 2 T H F FLOPs at 70 % of 294.9 TFLOP/s, the norm's bytes, and four gaps of 2 us."""
    product = 2 * 4096 * 2560 * 1536 / (294.9e12 * 0.7)
    norm = 2 * 4096 * 2560 * 2 / (1759218604442 * 0.6)
    assert tasks.best().step_s == pytest.approx(3 * product + norm + 4 * 2e-6, rel=2e-3)


@pytest.mark.parametrize("rest", [
    [[14], [12, 15, 16], [18, 19]],
    [[12], [14, 15, 16], [18, 19]],
    [[12, 15], [14, 16], [18, 19]],
    [[12, 15], [14], [16, 18, 19]],
])  # fmt: skip
def test_every_good_choice_is_accepted_in_any_order(rest):
    assert tasks.kernels([NORM, *rest]).ok
    assert tasks.kernels([*reversed(rest), tuple(reversed(NORM))]).ok


def test_doing_without_fusion_takes_nearly_twice_as_long():
    graph, on = tasks.block()
    plain = cost(graph, Fusion.none(graph), SIZES, on).step_s
    assert plain / tasks.best().step_s == pytest.approx(1.886, abs=1e-3)
    assert tasks.kernels([[i] for i in graph.operators]).ok is False


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (7, "list of lists"),
        ([2, 3], "list of lists"),
        ([["a"]], "list of lists"),
        ([[True]], "list of lists"),
        ([], "in no group"),
        ([NORM, [12], [14], [15, 16], [16, 18, 19]], "in two groups: 16"),
        ([NORM, [12], [14], [15, 16], [18, 19], [99]], "no operator: 99"),
        ([NORM, [12, 19], [14], [15, 16], [18]], "Every group must be a kernel"),
    ],
)
def test_a_strange_choice_hears_what_is_wrong_with_it(answer, said):
    feedback = tasks.kernels(answer)
    assert feedback.ok is False and said in feedback.message, feedback
