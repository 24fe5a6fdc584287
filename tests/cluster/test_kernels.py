"""Tables of a device's kernels hold only what is read."""

import pytest

from telekit.cluster.kernels import KNOWN, Kernels


def test_unknown_keys_are_refused_together():
    with pytest.raises(ValueError, match="nothing reads it; known: fp8, fp4") as caught:
        Kernels(low_precision={"fp8": 1.0, "fp6": 0.5}, mixers={"flash2": 0.5})
    assert "mixers.flash2 = 0.5: nothing reads it; known: flash-2" in str(caught.value)


def test_known_keys_are_taken():
    made = Kernels(**{table: dict.fromkeys(keys, 0.5) for table, keys in KNOWN.items()})
    assert made.mixers["recurrence"] == 0.5 and made.low_precision["fp4"] == 0.5
