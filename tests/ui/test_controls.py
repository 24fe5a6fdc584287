"""Controls: what they offer, and when they speak."""

import pytest

from telekit.ui.controls import pick, slide


def test_a_mapping_shows_its_keys_and_gives_its_values():
    control = pick("model", {"DeepSeek-V3": "deepseek-v3", "Mixtral": "mixtral-8x7b"}, "mixtral-8x7b")
    assert control.label == "Mixtral" and control.value == "mixtral-8x7b"
    assert pick("device", ["h800", "h100"], "h100").value == "h100"


@pytest.mark.parametrize("costly", [False, True])
def test_a_costly_slider_waits_for_the_hand_to_let_go(costly):
    control = slide("batch", [1024, 15360], 15360, costly)
    assert control.continuous_update is not costly
    assert (control.label, control.value) == ("15,360", 15360)
