"""Fits behind the catalog: only rows for fitting, and the records hold what they find, or a value set by hand."""

import pytest

from telekit.cluster.config import load_cluster
from telekit.errors import InputError
from telekit.operators.fit import RANGES, constant
from telekit.validation import refit as fits
from telekit.validation.refit import FITS, powered, refit


@pytest.mark.parametrize("name", ["tiles", "flash-2"])
def test_records_hold_what_a_fit_of_kernels_finds(name):
    found = refit(name)
    assert found.after <= found.before
    for key, value in found.constants.items():
        assert found.recorded[key] == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize(("name", "rows"), [("hopper-triton", 24), ("ampere-triton", 28), ("hopper", 21)])
def test_a_fit_of_steps_runs_again_to_its_record(name, rows):
    found = refit(name)
    assert found.rows == rows
    for key, value in found.constants.items():
        assert found.recorded[key] == pytest.approx(value, rel=0.01), key


@pytest.mark.parametrize("name", FITS)
def test_no_fit_sees_a_row_that_is_held_out(name):
    fit = FITS[name]
    seen = fits.kernels_of(fit) if fit.groups[0].startswith("kernels") else fits.runs_of(fit)
    assert len(seen) >= 20 and all(row.in_fit and row.verified for row in seen)
    assert set(fit.constants) <= set(RANGES)


def test_blackwell_follows_its_power_rule():
    first = load_cluster({"device": "b200", "devices": 8}).device
    for name in fits.BLACKWELL:
        device = load_cluster({"device": name, "devices": 8}).device
        for rate in fits.RATES:
            expected = powered(getattr(first, rate), device.power_w, first.power_w)
            assert getattr(device, rate) == pytest.approx(expected, abs=1.5e-3)
        for shared in (
            "memory_efficiency",
            *(c for c in FITS["blackwell"].constants if c.startswith("kernels")),
        ):
            assert constant(device, shared) == constant(first, shared)


def test_an_unknown_fit_is_refused():
    with pytest.raises(InputError, match="known: tiles"):
        refit("nothing")
