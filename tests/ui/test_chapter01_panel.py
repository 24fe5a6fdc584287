"""Panels of chapter 1 without a browser: what they show is what the package says."""

import pytest

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.flops import training_flops_per_token
from telekit.model.huggingface import load_model
from telekit.ui import style
from telekit.ui.known_models import RELEASED, all_known
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


def test_a_device_without_the_peak_is_said(apart):
    apart.set(model="mixtral-8x7b", device="v100")
    assert "bf16" in apart.text and isinstance(apart.error, InputError)
    apart.set(device="ascend-910b")


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
    assert f"Of {len(peers) - 1} sparse models" in comparison.titles[0]
    assert f"{deeper} have more layers" in comparison.titles[0]


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
        "At 4,096 tokens 6 N is 12.3% too little with what a token meets, 16.1 times too much with all"
    ]
    six_n.set(model="qwen3-0.6b")  # dense and tied: every N is one number
    assert "with all" not in six_n.titles[0] and [row["place"] for row in six_n.rows["here"]] == [
        "below",
        "",
        "",
    ]


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
