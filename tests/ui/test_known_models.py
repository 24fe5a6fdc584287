"""The catalog's models beside what was published of them."""

import pytest

from telekit import catalog
from telekit.ui import known_models
from telekit.ui.known_models import known

NAMES = catalog.names("models")


def cells(table):
    """Cells of a table by its first column."""
    return {row[0]: row[1:] for row in table.rows}


def test_parts_of_a_model_are_exact():
    shown = cells(known_models.components("deepseek-v3"))
    assert shown["routed experts"][0] == f"{58 * 256 * 3 * 7168 * 2048:,}"
    assert shown["routed experts"][2] == f"{58 * 8 * 3 * 7168 * 2048:,}"
    assert shown["embedding"][0] == shown["head"][0] == f"{129280 * 7168:,}"
    assert shown["together"] == ("671,026,419,200", "100%", "37,552,297,472", "100%")
    assert "head" not in cells(known_models.components("qwen3-0.6b"))  # tied: it is the embedding


def test_each_way_of_counting_stands_beside_the_published_number():
    shown = cells(known_models.beside_published("telechat3-105b-a4.7b", "deepseek-v3", "megascale-moe-352b"))
    assert shown["telechat3-105b-a4.7b *"] == (
        "104.58", "105", "-0.4%", "4.68", "4.34", "4.00", "4.7", "both",
    )  # fmt: skip
    assert shown["deepseek-v3"][-1] == "no input" and shown["megascale-moe-352b"][-2:] == ("not said", "")


@pytest.mark.parametrize("name", NAMES)
def test_every_published_active_count_can_be_shown(name):
    published = known(name).published
    shown = known_models.beside_published(name).rows[0][-2:]
    if published["active_b"] is None:
        assert shown == ("not said", "")
    else:
        assert shown == (f"{published['active_b']:g}", known_models.WHICH[published["active_convention"]])


def test_a_glance_is_the_formula():
    assert known_models.at_a_glance("mixtral-8x7b").header[4:7] == ("FLOPs/token", "6N", "6Nₘ")
    flops, every, met, states, devices = cells(known_models.at_a_glance("mixtral-8x7b"))["mixtral-8x7b"][3:]
    total, head = 46_702_792_704, 32000 * 4096
    active = 12_879_925_248 - head
    mixing = 32 * 2 * 32 * 256 * 4097 / 2
    assert float(flops) == pytest.approx((6 * (active - 65 * 4096) + 3 * mixing) / 1e9, abs=0.05)
    assert (every, met) == (f"{6 * total / 1e9:,.0f}", f"{6 * active / 1e9:,.1f}")
    assert (states, devices) == (f"{18 * total / 1e12:.2f}", "13")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nemotron-h-56b", "54 layers of Mamba (state space), 10 of softmax attention"),
        ("kimi-linear-48b-a3b", "20 layers of linear attention, 7 of softmax attention"),
        ("deepseek-v4-flash", ""),
        ("llama-3.3-nemotron-super-49b", ""),
    ],
)
def test_what_stands_in_the_place_of_attention_is_said(name, said):
    assert known_models.mixers(known(name).model) == said
    assert known_models.components(name).title.endswith(f"; attention: {said}") == bool(said)


def test_a_layer_times_layers_and_the_ends_are_the_model():
    it = known("llama-3.1-405b")
    assert it.layer * 126 + 2 * 128256 * 16384 == pytest.approx(it.count.total, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "family"),
    [("qwen3.5-122b-a10b", "qwen"), ("gpt2-xl", "gpt"), ("dots.llm1", "dots"), ("glm-5", "glm")],
)
def test_a_family_is_the_first_word_of_a_name(name, family):
    assert known(name).family == family


def test_every_model_has_its_place_in_the_picture_of_errors():
    still = known_models.error_picture()
    rows = still.spec["datasets"]["errors"]
    assert sum(row["models"] for row in rows) == len(NAMES)
    close = sum(abs(it.off) <= 0.005 for it in known_models.all_known())
    assert still.title.startswith(f"{close} of {len(NAMES)} models")
    assert [row["band"] for row in rows] == [
        "under 0.05 %", "0.05 to 0.5 %", "0.5 to 1 %", "1 to 3 %", "over 3 %",
    ]  # fmt: skip
    assert (
        sum(row["models"] for row in rows[:2]) == close
    )  # bars are apart: the title's models are the first two
    far = [it for it in known_models.all_known() if abs(it.off) > 0.03]
    assert rows[-1]["models"] == len(far) and all(
        f"{it.name} {it.off:+.2%}" in rows[-1]["text"] for it in far
    )
    assert known("telechat3-105b-a4.7b").off == pytest.approx(104_576_176_576 / 105e9 - 1, abs=1e-4)
