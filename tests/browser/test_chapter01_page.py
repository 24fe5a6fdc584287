"""Chapter 1 in a real page, offline: Run All, sliders that redraw, another model, nothing from outside."""

import pytest
from pages import clean, drawn, redrawn

from telekit.model.count import count
from telekit.model.huggingface import load_model
from telekit.model.reshape import shape_of
from telekit.ui.panels.apart import LABELS
from telekit.ui.sizes import billions

pytestmark = pytest.mark.browser

NAME = "01_introduction.ipynb"


def test_more_experts_lengthen_one_bar_and_the_text_says_so(chapter, panel):
    apart = panel("explorer", "Take a model apart")
    captions, before = apart.locator("figcaption").all_inner_texts(), drawn(apart)
    assert captions[0] == "97% of the 102 B parameters are routed experts"
    slider = apart.get_by_role("slider", name="experts")
    slider.press("ArrowRight")  # 192 to 256
    redrawn(chapter, apart, before)
    apart.get_by_text("stored × 1.32, met by a token × 1.00, FLOPs × 1.00").wait_for()
    assert apart.locator("figcaption").first.inner_text() == "98% of the 135 B parameters are routed experts"
    assert apart.locator(".telekit-chart").first.locator(".mark-rect path[fill='#c8372d']").count() == 2
    clean(chapter)


def test_another_model_brings_its_own_sliders(chapter, panel):
    apart = panel("explorer", "Take a model apart")
    before = drawn(apart)
    apart.get_by_role("combobox", name="model").select_option("llama-3.1-8b")
    redrawn(chapter, apart, before)
    apart.get_by_text("One token meets all of them: the model is dense").wait_for()
    assert apart.locator(".noUi-target[disabled]").count() == 3
    clean(chapter)


# neighbours here have unlike shapes: the widest, the deepest, dense, hybrid, with the most experts, the smallest
WALK = (
    "nemotron-4-340b",
    "deepseek-v3",
    "megatron-gpt-1008b",
    "telechat3-105b-a4.7b",
    "nemotron-h-56b",
    "qwen3-next-80b-a3b",
    "llama-3.1-405b",
    "qwen3-0.6b",
    "gpt2-xl",
)


def readouts(panel):
    """What each slider of a panel says, by its label."""
    return dict(
        panel.evaluate("""p => [...p.querySelectorAll('.widget-hslider')].map(e =>
            [e.querySelector('.widget-label').textContent, e.querySelector('.widget-readout').textContent])""")
    )


@pytest.fixture(scope="module")
def sent(chapter):
    """Give, and forget, the moves that the page sent to the kernel, however they came about."""
    chapter.page.evaluate("""() => { window.__sent = [];
        const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        kernel.anyMessage.connect((_, { msg, direction }) => direction === 'send'
            && msg.header.msg_type === 'comm_msg' && window.__sent.push(msg.content.data.state)); }""")
    return lambda: chapter.page.evaluate("() => window.__sent.splice(0)")


def test_whatever_model_was_shown_before_the_next_comes_in_its_own_shape(chapter, panel, sent):
    apart = panel("explorer", "Take a model apart")
    model = apart.get_by_role("combobox", name="model")
    for i, name in enumerate((*WALK, *WALK[-2::-1])):
        if i == len(WALK):  # the way back begins with sliders at their ends
            for label in ("MLP width", "hidden size", "layers"):
                apart.get_by_role("slider", name=label).press("End")
            apart.get_by_text("Against the catalog").wait_for()
        chapter.idle()
        sent()
        before = drawn(apart)
        model.select_option(name)
        redrawn(chapter, apart, before)
        apart.get_by_text("As in the catalog.").wait_for()
        chapter.idle()
        assert len(sent()) == 1, f"{name}: the page sent a move that no reader made"
        shape = shape_of(load_model(name))
        assert {k: v for k, v in readouts(apart).items() if k in LABELS.values()} == {
            label: f"{getattr(shape, field):,}" for field, label in LABELS.items()
        }, name
        assert apart.get_by_text(f"{billions(count(name).total)} stored").count() == 1, name
    clean(chapter)


def test_a_device_without_bf16_is_timed_all_the_same(chapter, panel):
    apart = panel("explorer", "Take a model apart")
    apart.get_by_role("combobox", name="device").select_option("v100")
    apart.get_by_text("The time is at v100's fp16 peak: no bf16 peak is known for it.").wait_for()
    assert apart.locator(".telekit-chart.stale").count() == 0
    apart.get_by_role("combobox", name="device").select_option("ascend-910b")
    apart.get_by_text("fp16 peak").wait_for(state="hidden")
    clean(chapter)


def test_models_stand_side_by_side_by_the_measures_asked_for(chapter, panel):
    beside = panel("side-by-side", "Models side by side")
    before = drawn(beside)
    beside.get_by_role("combobox", name="show").select_option("layers against width")
    redrawn(chapter, beside, before)
    beside.get_by_text("hidden size").wait_for()
    assert beside.locator(".mark-symbol path").count() > 40
    clean(chapter)


# names over names, and over points, by more than a few pixels
COVERED = """p => { const found = [], svg = p.querySelector('.telekit-chart svg');
    const box = (e) => [e.textContent, e.getBoundingClientRect()];
    const texts = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim()).map(box);
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) =>
        over(a, b) && found.push(`${one} over ${other}`)));
    for (const [, point] of [...svg.querySelectorAll('.mark-symbol path')].map(box))
        for (const [one, a] of texts) if (over(a, point)) found.push(`${one} over a point`);
    return found; }"""


@pytest.mark.parametrize("family", ["deepseek", "qwen", "megatron", "nemotron"])
def test_no_name_stands_on_another_or_on_a_point(chapter, panel, family):
    beside = panel("side-by-side", "Models side by side")
    views = beside.get_by_role("combobox", name="show")
    before = drawn(beside)
    beside.get_by_role("combobox", name="highlight").select_option(family)
    redrawn(chapter, beside, before)
    for view in views.locator("option").evaluate_all("(all) => all.map((one) => one.value)"):
        if view != views.input_value():
            before = drawn(beside)
            views.select_option(view)
            redrawn(chapter, beside, before)
        assert beside.evaluate(COVERED) == [], view
    clean(chapter)


def test_a_longer_sequence_moves_the_mark_along_the_curve(chapter, panel):
    six_n = panel("six-n", "Where 6 N goes wrong")
    before = drawn(six_n)
    six_n.get_by_role("slider", name="sequence").press("ArrowRight")
    redrawn(chapter, six_n, before)
    caption = six_n.locator("figcaption").inner_text()
    assert (
        caption == "At 8,192 tokens 6 N is 14.3 times too much, 6 Nₐ 19.9% too little, 6 Nₘ 21.8% too little"
    )
    legend = six_n.locator(".role-legend-label text").all_text_contents()
    assert legend == ["N: all parameters", "Nₐ: what a token meets", "Nₘ: what it is multiplied by"]
    clean(chapter)
