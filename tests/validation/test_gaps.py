"""Closed form of the search against the simulation of the answer, by schedule."""

import pytest

from telekit.pipeline.simulate import SIMULATED
from telekit.validation.gaps import closed_form_gaps


def test_every_simulated_schedule_is_compared():
    found = {gap.schedule: gap for gap in closed_form_gaps()}
    assert set(found) == set(SIMULATED)
    assert all(gap.layouts == 48 for gap in found.values())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_closed_forms_of_one_chunk_are_exact_here(schedule):
    found = next(gap for gap in closed_form_gaps() if gap.schedule == schedule)
    assert found.least == pytest.approx(0, abs=1e-12) and found.largest == pytest.approx(0, abs=1e-12)


def test_the_interleaved_one_is_a_little_low_and_never_high():
    found = next(gap for gap in closed_form_gaps() if gap.schedule == "interleaved-1f1b")
    assert -0.1 < found.least < found.mean < found.largest <= 1e-12
    assert found.mean > -0.01
