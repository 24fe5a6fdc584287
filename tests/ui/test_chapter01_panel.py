"""Panels of chapter 1 without a browser: what they show is what the package says."""

import re

import pytest

from telekit import catalog
from telekit.cluster.config import device_names
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.flops import training_flops_per_token
from telekit.model.huggingface import load_model
from telekit.model.reshape import shape_of
from telekit.ui import style
from telekit.ui.known_models import RELEASED, all_known
from telekit.ui.panels import apart as apart_panel
from telekit.ui.panels import chapter01


@pytest.fixture(scope="module")
def apart():
    return chapter01.model_explorer()


def shown(panel):
    parts = panel.rows["parts"]
    return sum(row["stored"] for row in parts) * 1e9, sum(row["met"] for row in parts) * 1e9


def test_it_starts_at_the_catalogs_model(apart):
    apart.set(model="telechat3-105b-a4.7b")
    found = count("telechat3-105b-a4.7b")
    assert shown(apart) == pytest.approx((found.total, found.active), rel=1e-12)
    assert apart.rows["before"] == [] and "As in the catalog" in apart.text
    assert f"{found.training_flops_per_token / 1e9:.4g} GFLOP" in apart.text and "5.6 days" in apart.text


def test_twice_the_experts_are_twice_the_bytes_and_no_more_FLOPs(apart):  # noqa: N802
    apart.set(model="telechat3-105b-a4.7b", experts=384)
    config = dict(catalog.record("models", "telechat3-105b-a4.7b")["config"])
    found = count(config | {"n_routed_experts": 384})
    assert shown(apart) == pytest.approx((found.total, found.active), rel=1e-12)
    assert {row["part"] for row in apart.rows["before"]} == {"routed experts", "router, norms"}
    assert "stored × 1.97, met by a token × 1.00, FLOPs × 1.00" in apart.text
    states = found.total * 18 / 1e12
    assert f"to {states:.3g} TB" in apart.text and apart.titles[0].startswith("99% of the 202 B")


def test_picking_a_model_begins_anew_from_its_shape_in_one_drawing(apart):
    drawings = []
    apart.views[0].observe(lambda change: drawings.append(change.new), "datasets")
    apart.controls["model"].value = "mixtral-8x7b"
    assert len(drawings) == 1
    assert {k: apart.values[k] for k in ("layers", "experts", "top_k", "width")} == {
        "layers": 32, "experts": 8, "top_k": 2, "width": 14336,
    }  # fmt: skip
    assert shown(apart) == pytest.approx(
        (count("mixtral-8x7b").total, count("mixtral-8x7b").active), rel=1e-12
    )


@pytest.mark.parametrize("name", apart_panel.SHAPES)
def test_every_model_gives_a_slider_as_many_steps_its_own_value_among_them(name):
    """A page that gets fewer steps sends a handle beyond them back as a move of the reader's."""
    steps = set()
    for it in all_known():
        options, value = apart_panel.choices(shape_of(it.model), name)
        assert (
            value == getattr(shape_of(it.model), name)
            and value in options
            and options == sorted(set(options))
        )
        steps.add(len(options))
    assert steps == {len(apart_panel.SHAPES[name])}


def test_a_dense_model_has_no_experts_to_move(apart):
    apart.set(model="llama-3.1-8b")
    assert {n for n, c in apart.controls.items() if c.disabled} == {"dense_layers", "experts", "top_k"}
    assert "the model is dense" in apart.titles[1] and apart.error is None
    apart.set(model="deepseek-v3")
    assert not any(control.disabled for control in apart.controls.values())


def test_an_impossible_shape_is_said_and_the_next_move_recovers(apart):
    apart.set(model="mixtral-8x7b", top_k=16)
    assert isinstance(apart.error, InputError) and "must not exceed the 8 experts" in apart.text
    apart.set(experts=16)
    assert apart.error is None


@pytest.mark.parametrize("name", device_names())
def test_every_device_gives_a_time_at_a_peak_that_it_has(apart, name):
    apart.set(model="mixtral-8x7b", device=name)
    assert apart.error is None and " for 14.8 T tokens" in apart.text
    assert ("fp16 peak" in apart.text) == (name == "v100")


def test_a_device_without_bf16_is_timed_at_fp16_and_says_so(apart):
    apart.set(model="deepseek-v3", device="v100", devices=8192, mfu=40, tokens_t=14.8)
    days = count("deepseek-v3").training_flops_per_token * 14.8e12 / (8192 * 125e12 * 0.4) / 86400
    assert f"<b>{days:.0f} days</b>" in apart.text
    assert "at v100&#x27;s fp16 peak: no bf16 peak is known for it" in apart.text
    apart.set(device="ascend-910b")


def test_the_largest_and_the_smallest_shape_print_in_units_that_fit(apart):
    ends = {"experts": 1024, "width": 49152, "hidden_size": 16384, "layers": 120, "top_k": 16}
    apart.set(model="telechat3-105b-a4.7b", **ends, devices=64, mfu=10, tokens_t=30)
    found = count(
        dict(catalog.record("models", "telechat3-105b-a4.7b")["config"])
        | {"n_routed_experts": 1024, "moe_intermediate_size": 49152, "num_experts_per_tok": 16}
        | {"hidden_size": 16384, "num_hidden_layers": 120}
    )
    assert found.total > 2e14 and f"<b>{found.total / 1e12:.0f} T</b> stored" in apart.text
    assert f"{found.total * 16 / 1e15:.3g} to {found.total * 18 / 1e15:.3g} PB" in apart.text
    assert " years</b>" in apart.text and "stored × 2," in apart.text
    assert not re.search(r"e\+\d|\d{5}", re.sub(r"<[^>]*>", " ", apart.text))
    apart.set(
        model="qwen3-0.6b", layers=8, hidden_size=1024, devices=16384, mfu=70, tokens_t=0.1, device="gb300"
    )
    assert "under a minute" in apart.text and " GB</b> of states" in apart.text
    apart.set(devices=8192, mfu=40, tokens_t=14.8, device="ascend-910b")


def test_what_counts_as_attention_follows_the_layers(apart):
    apart.set(model="nemotron-h-56b")
    assert "Attention here: 54 layers of Mamba (state space), 10 of softmax attention." in apart.text
    apart.set(layers=20)
    assert "Attention here: 9 layers of Mamba" in apart.text
    apart.set(model="deepseek-v3")
    assert "Attention here" not in apart.text


def test_what_is_not_counted_is_said(apart):
    apart.set(model="llama-4-scout")
    assert "ot counted: vision_config" in apart.text
    apart.set(model="deepseek-v3")
    assert "Without MTP (11.6 B)" in apart.text


@pytest.fixture(scope="module")
def comparison():
    return chapter01.side_by_side()


@pytest.mark.parametrize("view", chapter01.VIEWS)
def test_every_model_stands_where_its_count_puts_it(comparison, view):
    comparison.set(view=view, kinds="all", least_b=0)
    rows = {row["model"]: row for row in comparison.rows["models"]}
    measure = chapter01.VIEWS[view]
    assert set(rows) == set(catalog.names("models"))
    for it in all_known():
        assert (rows[it.name]["x"], rows[it.name]["y"]) == (measure.x[1](it), measure.y[1](it))
    assert comparison.rows["axes"] == [{"x_title": measure.x[0], "y_title": measure.y[0]}]
    assert comparison.titles[0]


def test_the_released_models_are_ringed_whatever_is_highlighted(comparison):
    comparison.set(view=next(iter(chapter01.VIEWS)), kinds="all", least_b=0, family="qwen")
    assert {row["model"] for row in comparison.rows["named"] if row["ring"]} == set(RELEASED)
    kinds = {row["model"]: row["kind"] for row in comparison.rows["models"]}
    assert kinds["qwen3-8b"] == "highlighted" and kinds["telechat3-36b"] == "dense"
    assert kinds["telechat3-105b-a4.7b"] == "sparse"


def test_a_choice_of_kinds_and_sizes_is_kept(comparison):
    comparison.set(kinds="sparse", least_b=500)
    expected = {it.name for it in all_known() if it.sparse and it.count.total >= 500e9}
    assert {row["model"] for row in comparison.rows["models"]} == expected >= {"deepseek-v3", "kimi-k2"}
    assert f"{len(expected)} of " in comparison.text
    for view in chapter01.VIEWS:  # a finding needs no model of the report
        comparison.set(view=view)
        assert comparison.error is None and "telechat" not in comparison.titles[0]
    comparison.set(kinds="all", least_b=0)


def test_titles_count_what_they_say(comparison):
    comparison.set(view="layers against width", kinds="all", least_b=0)
    total = count("telechat3-105b-a4.7b").total
    peers = [it for it in all_known() if it.sparse and total / 1.5 <= it.count.total <= total * 1.5]
    deeper = sum(it.model.num_layers > 45 for it in peers)
    wider = sum(it.model.hidden_size > 2560 for it in peers)
    assert comparison.titles == [
        f"More layers: {deeper} of the {len(peers) - 1} sparse models from 2/3 to 3/2 of telechat3-105b-a4.7b's size;"
        f" a wider residual stream: {wider}"
    ]


def test_titles_of_dense_models_are_true_of_them(comparison):
    comparison.set(view="met by a token against stored", kinds="dense", least_b=0)
    assert comparison.titles == ["Without experts a token meets every parameter: 1 in 1"]
    assert all(it.count.total == it.count.active for it in all_known() if not it.sparse)
    comparison.set(view="FLOPs against what a token is multiplied by")
    assert "stored" not in comparison.titles[0] and "1.39 times 6 Nₘ" in comparison.titles[0]
    comparison.set(kinds="all")
    assert "not what is stored: 1.01 to 1.39 times 6 Nₘ" in comparison.titles[0]


def test_nothing_to_show_is_said(comparison):
    kept = chapter01._points(chapter01.VIEWS["layers against width"], [], "qwen")
    assert not kept["models"] and not kept["named"] and not kept["guides"]


@pytest.fixture(scope="module")
def six_n():
    return chapter01.six_n_explorer()


@pytest.mark.parametrize("attention", ["causal", "full"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_lines_are_FLOPs_over_six_N(six_n, attention, recompute):  # noqa: N802
    six_n.set(model="deepseek-v3", seq_len=8192, attention=attention, recompute=recompute, documents=0)
    flops = training_flops_per_token(
        load_model("deepseek-v3"), 8192, attention=attention, recompute=recompute
    )
    counted = count("deepseek-v3")
    numbers = (counted.total, counted.active, counted.active_without_input_embedding)
    here = {row["size"]: row["ratio"] for row in six_n.rows["here"]}
    assert here == pytest.approx({s: flops / 6 / n for s, n in zip(style.SIZES, numbers, strict=True)})
    assert {row["tokens"] for row in six_n.rows["ratio"]} == {2**i for i in range(9, 21)}


def test_the_title_says_how_far_it_is_off(six_n):
    six_n.set(model="deepseek-v3", seq_len=4096, attention="causal", recompute="none", documents=0)
    assert six_n.titles == [
        "At 4,096 tokens 6 N is 16.1 times too much, 6 Nₐ 10.0% too little, 6 Nₘ 12.3% too little"
    ]
    six_n.set(model="qwen3-0.6b")  # dense and tied: every N is one number
    assert six_n.titles == ["At 4,096 tokens 6 N is 28.3% too little"]
    assert [row["place"] for row in six_n.rows["here"]] == ["below", "", ""]
    six_n.set(model="llama-3.1-8b")  # dense, the head apart
    assert six_n.titles == ["At 4,096 tokens 6 N is 0.1% too little, 6 Nₘ 6.7% too little"]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "deepseek-v3", "telechat3-105b-a4.7b"])
def test_the_title_names_the_lines_of_the_legend(six_n, name):
    six_n.set(model=name, seq_len=4096, attention="causal", recompute="none", documents=0)
    counted = count(name)
    flops = counted.training_flops_per_token
    told = dict(re.findall(r"6 (N.?) (?:is )?([\d.]+(?:%| times) too \w+)", six_n.titles[0]))
    assert list(told) == [size.split(":")[0] for size in style.SIZES] == ["N", "Nₐ", "Nₘ"]
    for size, n in (("Nₐ", counted.active), ("Nₘ", counted.active_without_input_embedding)):
        much = "much" if 6 * n > flops else "little"
        assert told[size] == f"{abs(6 * n / flops - 1):.1%} too {much}"
    here = {row["size"][:2].strip(":"): row["ratio"] for row in six_n.rows["here"]}
    assert here["Nₐ"] == pytest.approx(flops / 6 / counted.active) and here["Nₘ"] > here["Nₐ"]


def test_documents_flatten_the_curve(six_n):
    six_n.set(model="deepseek-v3", seq_len=2**20, attention="causal", recompute="none", documents=0)
    long = six_n.rows["here"][2]["ratio"]
    six_n.set(documents=4096)
    packed = six_n.rows["here"][2]["ratio"]
    assert packed == pytest.approx(
        next(
            r["ratio"]
            for r in six_n.rows["ratio"]
            if r["tokens"] == 4096 and r["size"] == list(style.SIZES)[2]
        )
    )
    assert long > 20 * packed


def test_recomputing_is_said_apart_from_the_models_own(six_n):
    six_n.set(model="llama-3.1-8b", seq_len=512, attention="causal", recompute="full", documents=0)
    share = training_flops_per_token(load_model("llama-3.1-8b"), 512, recompute="full")
    share /= training_flops_per_token(load_model("llama-3.1-8b"), 512)
    assert f"{share - 1:+.1%}</b> computed again" in six_n.text
