"""Notes: what a framework does silently, said only where it happens."""

import numpy as np
import pytest

from telekit.cost.assumptions import assumptions
from telekit.cost.estimate import estimate
from telekit.job import load_job
from telekit.layout.notes import notes, padded_vocabulary


def job(layout, model="llama-3.1-8b", **train):
    return load_job(
        {
            "model": model,
            "cluster": {"device": "h100", "devices": 32},
            "train": {"global_batch": 64} | train,
            "layout": layout,
        }
    )


def said(layout, **more):
    return " | ".join(notes(job(layout, **more).case))


def padded_step_by_step(size, multiple):
    while size % multiple:
        size += 1
    return size


def test_padding_is_that_of_adding_one_token_after_the_other():
    rng = np.random.default_rng(0)
    for _ in range(100):
        size, tp, unit = (
            int(rng.integers(1, 300_000)),
            int(rng.integers(1, 17)),
            int(rng.choice([1, 64, 128])),
        )
        assert padded_vocabulary(size, tp, unit) == padded_step_by_step(size, tp * unit)
    column = np.array([[1.0], [6.0], [8.0]])
    assert padded_vocabulary(151_552, column).tolist() == [[151_552.0], [151_554.0], [151_552.0]]


def test_a_plain_layout_has_nothing_to_note():
    assert said({"tp": 8, "pp": 4}) == ""


@pytest.mark.parametrize(
    "layout, words",
    [
        ({"tp": 8, "pp": 4, "zero": 2}, "gradients are scattered for each of the 64 micro-batches"),
        ({"tp": 8, "pp": 4, "zero": 3}, "parameters are gathered and gradients scattered for each of the 64"),
        ({"tp": 8, "tp_comm_overlap": True}, ""),
        ({"pp": 5, "tp": 2}, "32 layers over 5 parts are uneven: [6, 7, 7, 6, 6], 7 at most and 32 in all"),
        ({"pp": 16}, ""),
        ({"pp": 20}, "20 parts are uneven: [1, 12 times 2, 7 times 1], 2 at most and 32 in all"),
    ],
)
def test_each_note(layout, words):
    found = said(layout)
    assert words in found if words else found == ""


def test_zero_without_a_pipeline_needs_no_note():
    assert said({"tp": 8, "zero": 3}) == ""


def test_notes_stand_among_the_assumptions_of_an_estimate():
    found = estimate(job({"tp": 8, "pp": 4, "zero": 2}))
    assert any("DeepSpeed's pipeline engine refuses it" in line for line in found.assumptions)
    assert assumptions(found.job) == found.assumptions


def test_ends_without_a_layer_are_noted():
    """Thirty layers on 32 stages."""
    found = said({"pp": 32}, model="telechat2-7b")
    assert "30 layers over 32 parts are uneven: [0, 30 times 1, 0], 1 at most and 30 in all" in found


def test_micro_batches_that_are_not_known_are_not_counted():
    """3 stages on 32 devices leave no whole dp."""
    assert "scattered for each micro-batch, as counted" in said({"pp": 3, "zero": 2})
