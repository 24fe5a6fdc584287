"""Panels of chapter 7 without a browser: bytes by hand, who decides, registers, a measurement."""

import pytest
from chart_checks import assert_draws

from telekit.fusion.prediction import Cpu
from telekit.fusion.subgraphs import SIZES
from telekit.ui import fusion_charts, fusion_code
from telekit.ui import known_fusion as known
from telekit.ui.known_fusion import On
from telekit.ui.panels import chapter07, chapter07_evidence

BANDWIDTH = 1759218604442 * 0.6


@pytest.fixture(scope="module")
def chain():
    return chapter07.chain_explorer()


@pytest.fixture(scope="module")
def layer():
    return chapter07.layer_explorer()


@pytest.fixture(scope="module")
def program():
    return chapter07.code_explorer()


@pytest.fixture(scope="module")
def measured():
    return chapter07_evidence.MeasurePanel(repeats=1)


@pytest.fixture(scope="module")
def step():
    return chapter07_evidence.step_explorer()


MAKE = {
    "chain": chapter07.chain_explorer,
    "layer": chapter07.layer_explorer,
    "program": chapter07.code_explorer,
    "measured": chapter07_evidence.MeasurePanel,
    "step": chapter07_evidence.step_explorer,
}


def begin(panel, name):
    return panel.set(**MAKE[name]().values)


def ends(panel):
    return {row["bar"]: row["us"] for row in panel.rows["ends"]}


@pytest.mark.parametrize("operators", [2, 8, 16])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_chain_is_priced_by_hand(chain, operators, dtype):
    begin(chain, "chain").set(operators=operators, dtype=dtype)
    size = 2**22 * {"bf16": 2, "fp32": 4}[dtype]
    found = ends(chain)
    assert found["unfused, device"] == pytest.approx(1e6 * operators * (2 * size / BANDWIDTH + 2e-6))
    assert found["fused, device"] == pytest.approx(1e6 * (2 * size / BANDWIDTH + 2e-6))
    assert found["unfused, host"] == pytest.approx(5 * operators) and found["fused, host"] == 5
    points = {row["variant"]: row["intensity"] for row in chain.rows["points"]}
    one = {"bf16": 1 / 4, "fp32": 1 / 8}[dtype]
    assert points["unfused"] == pytest.approx(one) and points["fused"] == pytest.approx(one * operators)


def test_few_numbers_leave_the_gain_to_the_host(chain):
    begin(chain, "chain")
    assert chain.titles[1] == "The device decides: 8 times as quick"
    chain.set(elements=2**10)
    assert chain.titles[1] == "The host decides: 8 times as quick, by fewer launches"
    chain.set(launch_us=0.5)
    assert (
        chain.titles[1] == "The device decides: 8 times as quick"
    )  # of the gaps, one byte in a thousand of it


def test_what_each_operator_reads_bounds_the_gain(chain):
    """8 operators, 4 Mi numbers: 3 tensors each unfused; fused ten (x, eight more, the result), or three."""
    begin(chain, "chain").set(gap_us=0.0)
    for reads, tensors in (("new", 10), ("same", 3)):
        chain.set(reads=reads)
        assert ends(chain)["unfused, device"] / ends(chain)["fused, device"] == pytest.approx(24 / tensors)


def test_a_bad_kernel_is_not_to_be_fused(chain):
    """Below 1/a of the bandwidth fusing loses, as the formula says."""
    begin(chain, "chain").set(fused=0.1, gap_us=0.0)
    assert chain.titles[1].startswith("Do not fuse: the fused kernel takes 1.25 times as long")
    assert "Do not fuse" not in chain.set(fused=0.2).titles[1]


def test_roofs_have_their_edge_where_peak_and_bandwidth_meet(chain):
    begin(chain, "chain")
    roof = chain.rows["roofs"]
    assert [row["intensity"] for row in roof] == pytest.approx([0.03, 294.9e12 / BANDWIDTH, 3000])
    assert roof[1]["rate"] == roof[2]["rate"] == pytest.approx(294.9)
    chain.set(device="h100")
    assert {row["roof"] for row in chain.rows["roofs"]} == {
        "products, 989 TFLOP/s",
        "vector units, 66.9 TFLOP/s",
    }


def test_kernels_of_a_block_and_their_bytes_by_hand(layer):
    begin(layer, "layer").set(name="swiglu")
    t, f = 4096, SIZES["F"]
    sums = {row["choice"]: row["MiB"] * 2**20 for row in layer.rows["sums"]}
    assert (
        sums["unfused"] == 5 * t * f * 2
    )  # silu reads one and writes one, the product reads two and writes one
    assert sums["patterns"] == sums["merging"] == sums["program"] == 3 * t * f * 2


def test_who_decides_is_where_the_curves_cross(layer):
    """Chapter: 14 operators fuse into four kernels; unfused the host decides up to 128 tokens, fused never."""
    begin(layer, "layer")
    assert layer.titles[0].startswith("14 kernels become 4")
    assert layer.titles[1] == "The host decides unfused up to 128 tokens"
    curves = {(r["variant"], r["side"], r["tokens"]): r["us"] for r in layer.rows["regimes"]}
    assert curves["unfused", "device", 128] < curves["unfused", "host", 128] == 70
    assert curves["unfused", "device", 256] > curves["unfused", "host", 256]
    assert layer.set(launch_us=20.0).titles[1].count("up to") == 2


def test_launch_times_move_the_host_alone(layer):
    begin(layer, "layer")
    before = {(r["variant"], r["side"], r["tokens"]): r["us"] for r in layer.rows["regimes"]}
    layer.set(launch_us=1.0)
    for row in layer.rows["regimes"]:
        was = before[row["variant"], row["side"], row["tokens"]]
        assert row["us"] == pytest.approx(was / 5 if row["side"] == "host" else was)


def test_a_small_core_takes_kernels_apart_or_reads_rows_again(layer):
    begin(layer, "layer").set(chip_kib=32)
    assert {row["choice"]: row["text"].split(",")[0] for row in layer.rows["sums"]}["program"] == "6 launches"
    layer.set(name="rms-norm", chip_kib=4)
    assert "2 passes over its rows" in layer.text
    layer.set(name="permute")
    assert layer.titles[0] == "Do not fuse: 1 kernel stays as it is"


def test_the_searches_say_do_not_fuse(layer):
    begin(layer, "layer").set(name="swiglu", fused=0.3)
    assert "do not fuse" in layer.text and layer.titles[0].startswith("Do not fuse: 2 kernels")
    assert layer.set(name="swiglu-backward").titles[0].startswith("8 kernels become")


def test_registers_hold_what_is_read_later(program):
    """RMSNorm by hand: r0 from the cast to the product, r1 for the mean alone, r2 for five small steps and a cast."""
    begin(program, "program")
    touches = {(row["operand"], row["step"]): row["what"] for row in program.rows["touches"]}
    held = {name: sorted(step for o, step in touches if o == name) for name in ("r0", "r1", "r2")}
    assert held == {"r0": [1, 2, 3, 4, 5, 6, 7, 8], "r1": [2, 3], "r2": [3, 4, 5, 6, 7, 8, 9]}
    assert (
        touches["t0", 1] == "read" and touches["t2", 9] == "written" and touches["r0", 4] == "holds a value"
    )
    assert program.titles[0] == "8 of 9 results stay in 3 registers"


def test_steps_mark_their_line_and_tiles_come_to_an_end(program):
    begin(program, "program").set(at=2)
    assert "mean.fp32" in program.text.split(chapter07.MARK)[1].split("</mark>")[0]
    assert program.rows["now"] == [{"step": 3}]
    last = program.controls["tile"].max
    program.set(tile=last)
    parts = {(row["tensor"], row["part"]): row["percent"] for row in program.rows["tiles"]}
    assert parts["t0 x", "to come"] == pytest.approx(0, abs=1e-9)
    assert parts["t0 x", "done"] > 99 and parts["t1 weight", "this tile"] == 100  # read again for every tile


def test_sliders_have_as_many_places_as_the_program(program):
    begin(program, "program").set(at=8, tile=100)
    program.set(name="swiglu", fused=False)
    assert program.error is None and program.controls["at"].max == 4 and program.values["at"] <= 4
    assert program.titles[0] == "No register: the kernel's one result goes to memory"
    assert program.values["tile"] <= program.controls["tile"].max
    assert program.set(at=0).titles[0].startswith("3 of 4 results")
    begin(program, "program")


def test_names_of_operands():
    said = [fusion_code.plain(o) for o in ("t0[i,j]", "r2[i,1]", "acc3[1]", "r1^T[j,i]", "1e-06")]
    assert said == ["t0", "r2", "acc3", "r1", ""]


def test_bytes_alone_by_hand():
    """Arithmetic of 12: of every four two read one tensor, two read two; each writes one. Fused: x, y, z."""
    assert chapter07_evidence.bytes_alone("arithmetic", 12) == pytest.approx(3 * (2 + 3 + 3 + 2) / 3)
    assert chapter07_evidence.bytes_alone("functions", 5) == pytest.approx((2 + 2 + 3 + 2 + 2) / 3)


def test_before_a_measurement_there_are_bytes_alone(measured):
    assert {row["source"] for row in measured.rows["gains"]} == {"bytes alone"} and measured.rows[
        "spent"
    ] == []
    assert "By bytes alone: 10 times for 12 operators" in measured.titles[0]


def test_what_is_measured_stands_beside_what_is_predicted(measured, monkeypatch):
    """The fast computer of the test is invented, so the prediction is known; what NumPy takes is not asserted."""
    flat = {(f, "fp32"): 1e-10 for f in ("multiply", "add", "absolute", "exp", "sqrt", "tanh")}
    cpu = Cpu(0.0, flat, 1e-10, 1e-10, 0.0)
    monkeypatch.setattr(chapter07_evidence, "measure_cpu", lambda *_, **__: cpu)
    monkeypatch.setattr(chapter07_evidence, "PREDICTED_FROM", 0)
    measured.set(elements=2**14)
    found = measured.start().wait(60)
    assert measured.task.error is None and set(found) == set(chapter07_evidence.LENGTHS)
    # unfused every call is bound by bytes: 8 or 12 an element; fused: 12, and 1e-10 s of arithmetic for each operator
    moved = 4 * 1e-10 * (2 + 3 + 3 + 2 + 2)
    assert found[5].predicted == pytest.approx(moved / (4 * 1e-10 * 3 + 5 * 1e-10))
    rows = {(row["operators"], row["source"]): row["gain"] for row in measured.rows["gains"]}
    assert rows[5, "predicted"] == found[5].predicted and rows[5, "measured"] == found[5].measured.gain
    assert "times as quick; predicted within" in measured.titles[0] and len(measured.rows["spent"]) == 12
    measured.set(elements=2**18)
    assert all(view.stale for view in measured.views)
    measured.set(elements=2**14)
    assert not any(view.stale for view in measured.views)


def test_nothing_is_predicted_for_what_stays_in_cache(measured):
    measured.set(elements=2**14)
    found = measured.start().wait(60)
    assert all(row.predicted is None for row in found.values())
    assert {row["source"] for row in measured.rows["gains"]} == {"bytes alone", "measured"}
    assert measured.titles[0].endswith("in cache there are no bytes to save")
    assert "Nothing is predicted" in measured.text


def test_a_step_adds_up_by_kind(step):
    begin(step, "step")
    found = known.saved(On())
    for one in (found.low, found.high):
        total = sum(row["ms"] for row in step.rows["parts"] if row["baseline"] == one.baseline)
        assert total == pytest.approx(1e3 * one.device_s)
    assert {row["kind"] for row in step.rows["parts"]} == set(known.KINDS)
    library = {row["kind"]: row["ms"] for row in step.rows["parts"] if row["baseline"] == "library"}
    assert {kind for kind, ms in library.items() if ms > 1e-9} == {"norms", "router", "loss"}


def test_shares_are_of_the_baselines_step(step):
    begin(step, "step").set(step=3.0)
    found = known.saved(On())
    rows = {row["bar"]: row["percent"] for row in step.rows["shares"]}
    assert rows["operators, device"] == pytest.approx(100 * found.high.device_s / (3 + found.high.device_s))
    step.set(launch_us=50.0)
    rows = {row["bar"]: row["percent"] for row in step.rows["shares"]}
    host = found.high.launches * 50e-6  # the bubble lengthens it for all but AdamW
    assert rows["operators, host"] > 100 * host / (3 + host)


def test_what_the_chapter_says_of_the_layer():
    rows = {row[0]: row[1:] for row in known.layer_on_910b().rows}
    assert "11 of 11 proved" in known.layer_on_910b().title
    assert all(row[1] == "1" for row in rows.values()) and rows["permute"][-1] == "1.00"
    assert rows["residual-rms-norm"][:4] == ("9", "1", "420.1", "80.0")
    assert rows["cross-entropy"][-1] == "5.50"
    cross = known.found("cross-entropy", "merging", 4096, On())
    assert [k.passes for k in cross.cost.kernels] == [3]


def test_what_the_chapter_says_of_choices_baselines_and_code():
    rows = {row[0]: row[1:] for row in known.feed_forward_choices().rows}
    assert rows["merging"][2] == "+3.9%" and rows["patterns"][2] == "+0.0%"
    assert [row[-1] for row in known.swiglu_norm_bounds().rows] == ["2.00", "1.67"]
    assert known.published_gains().rows[0][1:] == ("1.73", "1.02")
    kernel = known.program_of("rms-norm", True).decoded.kernels[0]
    assert len(kernel.body) == 9 and len({s.ref for s in kernel.slots if s.kind == "reg"}) == 3
    assert all(row[1] == "equal to the last bit" for row in known.one_program_many_shapes().rows)


def test_what_the_chapter_says_of_the_step():
    found = known.saved()
    assert f"{found.low.share:.1%} {found.high.share:.1%}" == "0.5% 12.6%"
    assert found.high.device_s / found.low.device_s > 20
    text = known.telechat3()
    assert "0.5%" in text and "12.6%" in text and "the host 5 us to issue: assumed" in text
    assert known.saved(On(share=0.4)).high.share / known.saved(On(share=0.8)).high.share < 3


@pytest.mark.parametrize("name", list(MAKE))
def test_charts_read_only_columns_that_their_rows_have(name, request):
    panel = request.getfixturevalue(name)
    charts = (
        [fusion_code.gain_bars(), fusion_code.spent_lines()]
        if name == "measured"
        else begin(panel, name)._charts
    )
    for view, chart in zip(panel.views, charts, strict=True):
        if any(view.datasets.values()):
            assert_draws(chart, view.datasets)


def test_colours_are_of_what_is_drawn():
    assert set(fusion_charts.BASELINES) == {"library", "operators"}
    assert len(set(fusion_code.TOUCHES.values())) == len(fusion_code.TOUCHES)
