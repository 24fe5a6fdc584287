"""SAPP's own cases (T1, T2, memory decomposition, simulator documentation), and broken layer files."""

import json
import math

import numpy as np
import pytest
import yaml

from telekit.errors import InputError
from telekit.planner.sapp import balance, evaluate_sapp, sapp_problem
from telekit.planner.sapp_layers import MAX_LAYERS, read_layers, split_types
from telekit.planner.sapp_memory import decompose_memory

HEAD = {"name": "LlamaEmbedding", "type": "HEAD", "time": 30, "nb_layer": 1, "memory_parameter": 11000}
TAIL = {"name": "LlamaRMSNorm", "type": "TAIL", "time": 90, "nb_layer": 1, "memory_parameter": 2473}
BODY = {"name": "LLamaDecodeLayer", "type": "BODY", "model_name": "llama2_70b_prof", "time": 180, "nb_layer": 96,
        "memory_parameter": 1583, "memory_activation": 826, "memory_recompute": 32, "backward_coef": 0,
        "select_rec_coef": 0.125, "select_comm_coef": 0.25, "recompute_coef": 0.5}  # fmt: skip
T1 = {"name": "test", "layers_description": [HEAD, BODY, TAIL]}
T2_BODY = BODY | {"nb_layer": 192, "memory_select_rec": 614, "memory_select_comm": 426,
                  "memory_both_comm_select": 310, "select_comm_coef": 0.125,
                  "both_comm_select_coef": 0.165}  # fmt: skip
T2 = {"name": "sim", "layers_description": [HEAD, T2_BODY, TAIL]}
ZEROS = [0] * 14


def changed(**changes):
    """T1 with other fields in its BODY layer; a field set to ... is left out."""
    body = {k: v for k, v in (BODY | changes).items() if v is not ...}
    return T1 | {"layers_description": [HEAD, body, TAIL]}


def test_t1_in_sapp_s_mode():
    found = balance(T1, 16, 16, memory_mb=53_000, objective="bottleneck", time_limit_s=60)
    assert found.bottleneck == 3780
    assert found.proof.status == "optimal"
    assert found.makespan <= 110_610  # TeleChat3's published plan
    assert max(found.peak_memory_mb) <= 53_000


def test_t1_by_default():
    found = balance(T1, 16, 16, memory_mb=53_000, time_limit_s=60)
    assert (found.makespan, found.proof.status) == (107_460, "optimal")
    again = evaluate_sapp(T1, found.to_sapp(), 16)
    assert again.makespan == found.makespan
    assert again.peak_memory_mb == found.peak_memory_mb
    assert again.layers == found.layers
    assert again.proof is None


@pytest.mark.parametrize(
    ("stages", "micro_batches", "cap"), [(4, 8, 250_000), (8, 8, 80_000), (32, 32, 40_000)]
)
def test_other_sizes_keep_the_cap_and_all_layers(stages, micro_batches, cap):
    found = balance(T1, stages, micro_batches, memory_mb=cap, time_limit_s=20)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert sum(document["layers"][0]) == 96
    assert max(document["peak_memory_mb"]) <= cap
    share = 96 // stages
    assert document["offset"] == [[n - share for n in document["layers"][0]]]
    assert set(document["recompute"]) == {"SLCT", "COMM", "BOTH", "FULL"}
    assert set(document["proof"]) >= {"status", "bound", "gap"}
    assert document["proof"]["bound"] <= document["makespan"]


def test_t2_the_fixed_schedule():
    """TOOLKITS' published time of a given plan, p16 m16 v3 (the first 16 of its 21 columns, 189 layers)."""
    plan = {
        "offset": [
            [-2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
            [1, 0, 0, -2, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, -1, 0, 0],
        ],
        "recompute": [[1, 0, *ZEROS], [0, 1, *ZEROS], [0, 1, *ZEROS]],
        "select_recompute": [
            [1, 3, 3, 0, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 0, 0],
            [3, 3, 3, 1, 3, 3, 3, 3, 3, 3, 3, 1, 2, 2, 1, 0],
            [3, 3, 3, 1, 3, 3, 3, 3, 3, 3, 3, 1, 2, 2, 1, 0],
        ],
        "select_comm_recompute": [[1, 0, *ZEROS], [0, 2, *ZEROS], [0, 2, *ZEROS]],
    }
    for less_memory in (False, True):
        found = evaluate_sapp(T2, plan, 16, less_memory=less_memory, whole=False)
        assert found.makespan == pytest.approx(154_184.4, rel=1e-12)
    assert found.makespan / 3 == pytest.approx(51_394.8)  # the older convention: all times a third
    assert found.to_sapp() == plan
    assert found.recompute["BOTH"][1][1] == 1
    with pytest.raises(InputError, match="must place all 192 layers"):
        evaluate_sapp(T2, plan, 16)


def test_bubble_of_the_simulator_s_documentation():
    """``PipelineSimulator([[3] * 15, [3] * 8 + [4] * 6 + [4.2]], 16).run(comm=False)`` and its printed row."""
    body = {"name": "layer", "type": "BODY", "time": 1, "nb_layer": 96}
    tail = {"name": "tail", "type": "TAIL", "time": 1.2}
    offset = [[0] * 15, [0] * 8 + [1] * 6 + [0]]
    file = {"layers_description": [body, tail]}
    found = evaluate_sapp(file, {"offset": offset}, 16)
    assert {k: round(v, 4) for k, v in found.bubble.items()} == {
        "real": 0.5741, "ideal": 0.4375, "imbalance": 0.1366, "recompute": 0.0}  # fmt: skip
    text = found.text()
    assert "   real    =   ideal   +   imba    + recompute" in text
    assert "  0.5741   =  0.4375   +  0.1366   +  0.0000" in text
    assert "pp:15, vp: 2, micro: 16" in text
    assert f"offset: {offset}" in text


def test_bubble_with_recompute_adds_up():
    found = evaluate_sapp(T1, {"offset": [0] * 16, "recompute": [2] * 16}, 16)
    bubble = found.bubble
    assert bubble["real"] == pytest.approx(sum(v for k, v in bubble.items() if k != "real"))
    assert bubble["ideal"] == 15 / 16
    work = 96 * 540 + 90 + 270
    assert bubble["recompute"] == pytest.approx(32 * 180 / work)
    assert bubble["real"] == pytest.approx(16 * found.makespan / (16 * work) - 1)


def test_yaml_goes_back_in():
    found = balance(T2, 8, 8, chunks=2, memory_mb=200_000, time_limit_s=3)
    plan = yaml.safe_load(found.to_sapp_yaml())
    assert set(plan) == {"offset", "recompute", "select_recompute", "select_comm_recompute"}
    assert evaluate_sapp(T2, plan, 8).makespan == found.makespan
    assert (np.array(found.layers).sum(), np.shape(found.layers)) == (192, (2, 8))


def test_several_kinds_of_layers_in_order():
    dense = BODY | {"name": "dense", "nb_layer": 3, "time": 90, "memory_parameter": 800}
    moe = BODY | {"name": "moe", "nb_layer": 29}
    file = {"layers_description": [HEAD, dense, moe, TAIL]}
    found = balance(file, 4, 8, memory_mb=90_000, time_limit_s=20)
    first, second = (np.array(found.to_sapp(t)["offset"]) + n // 4 for t, n in enumerate((3, 29)))
    assert (first.sum(), second.sum()) == (3, 29)
    assert not (second[0, : np.flatnonzero(first[0])[-1]]).any()
    assert " dense:" in found.text() and " moe:" in found.text()
    with pytest.raises(InputError, match="one BODY layer"):
        evaluate_sapp(file, {"offset": [0, 0, 0, 0]}, 8)


def test_backward_times_and_defaults():
    bare = {"name": "b", "type": "BODY", "time": 100, "memory_activation": 5, "memory_select_rec": 4,
            "memory_select_comm": 3, "memory_both_comm_select": 2, "memory_recompute": 1}  # fmt: skip
    layer = read_layers({"layers_description": [bare]}).layers_description[0]
    assert [layer.backward(r) for r in layer.considered] == pytest.approx([200, 208, 225, 233, 300])
    timed = bare | {"forward_time": 70, "backward_time": 150, "recompute_time": 260, "backward_coef": None}
    layer = read_layers({"layers_description": [timed]}).layers_description[0]
    assert (layer.forward, layer.backward("NONE"), layer.backward("FULL")) == (70, 150, 260)
    only_none = read_layers({"layers_description": [{"name": "b", "type": "BODY", "time": 1}]})
    assert only_none.layers_description[0].considered == ["NONE"]


def test_head_and_tail_are_sums_and_constant_memory_counts():
    second = {"name": "norm", "type": "TAIL", "time": 10, "memory_parameter": 27}
    file = {"stage_const_mem": -100, "layers_description": [HEAD, BODY, TAIL, second]}
    problem = sapp_problem(file, 16, 16)
    assert (problem.tail.forward_s, problem.tail.backward_s, problem.tail.memory_bytes) == (100, 200, 2500)
    assert problem.fixed_bytes[[0, 1, 15]].tolist() == [10_900, -100, 2_400]


def test_lists_and_types():
    found = split_types(full=np.array([1, 0, 2]), select=np.array([3, 2, 2]), comm=np.array([2, 0, 4]))
    assert {k: v.tolist() for k, v in found.items()} == {
        "SLCT": [1, 2, 0], "COMM": [0, 0, 2], "BOTH": [1, 0, 0], "FULL": [1, 0, 2]}  # fmt: skip


def test_file_is_read(tmp_path):
    path = tmp_path / "test.json"
    path.write_text(json.dumps(T1))
    assert balance(path, 4, 4, time_limit_s=5).makespan == balance(T1, 4, 4, time_limit_s=5).makespan


BROKEN = [
    (changed(time=...), "layers_description.1.time = missing"),
    (changed(time=-1), "layers_description.1.time = -1"),
    (changed(time=math.nan), "layers_description.1.time = nan"),
    (changed(time=math.inf), "layers_description.1.time = inf"),
    (changed(time=None), "layers_description.1.time"),
    (changed(time="180"), "layers_description.1.time"),
    (changed(time=True), "layers_description.1.time"),
    (changed(time=0), "a BODY layer takes time"),
    (changed(time=1e300), "layers_description.1.time"),
    (changed(type="BODI"), "'HEAD', 'BODY' or 'TAIL'"),
    (changed(nb_layer=0), "layers_description.1.nb_layer = 0"),
    (changed(nb_layer=10**9), "layers_description.1.nb_layer"),
    (changed(nb_layer=2.5), "layers_description.1.nb_layer"),
    (changed(memory_recompte=3), "layers_description.1.memory_recompte = 3: no such field"),
    (changed(recompute_coef=-0.5), "layers_description.1.recompute_coef"),
    (changed(name=7), "layers_description.1.name"),
    ({"layers_description": [HEAD, TAIL]}, "at least one BODY"),
    ({"layers_description": []}, "at least one BODY"),
    ({"layers_description": [BODY, BODY]}, "two BODY layers have this name"),
    ({"layers_description": [BODY, HEAD | {"nb_layer": 2}]}, "one layer of each HEAD"),
    ({"layers_description": {"0": BODY}}, "layers_description"),
    ({"layers_description": [BODY | {"nb_layer": MAX_LAYERS}, BODY | {"name": "b"}]}, "at most"),
    ({"name": "x"}, "layers_description = missing"),
    ({"layer_description": [BODY], "layers_description": [BODY]}, "layer_description"),
]


@pytest.mark.parametrize(("file", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_broken_fields_are_named(file, says):
    with pytest.raises(InputError) as error:
        balance(file, 4, 4)
    assert says in str(error.value)


def test_all_broken_fields_are_named_at_once():
    body = {"type": "BODY", "time": -1, "nb_layer": 0, "memory_activation": math.nan, "wrong": 1}
    with pytest.raises(InputError) as error:
        balance({"layers_description": [body, HEAD | {"type": "FOOT"}]}, 4, 4)
    fields = {p.field.removeprefix("layers_description.") for p in error.value.problems}
    assert fields == {"0.name", "0.time", "0.nb_layer", "0.memory_activation", "0.wrong", "1.type"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"layers_description": [', "line 1"),
        ("[1, 2]", "must be an object"),
        ("null", "must be an object"),
        ('{"layers_description": ' + "[" * 100_000, "nested too deep"),
        ('{"layers_description": [{"name": "a", "type": "BODY", "time": NaN}]}', "NaN"),
        (" " * 11_000_000, "bytes"),
    ],
    ids=["cut", "list", "null", "deep", "nan", "large"],
)
def test_broken_files_are_refused(tmp_path, text, says):
    path = tmp_path / "layers.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        balance(path, 4, 4)
    assert "layers.json" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"stages": 97}, "use at most 96 stages"),
        ({"stages": 0}, "stages = 0"),
        ({"chunks": 0}, "chunks = 0"),
        ({"chunks": 25}, "chunks"),
        ({"micro_batches": 0}, "micro_batches = 0"),
        ({"micro_batches": 10**12}, "micro_batches"),
        ({"micro_batches": 2, "chunks": 2}, "at least pp = 4"),
        ({"memory_mb": 0}, "memory_mb = 0"),
        ({"memory_mb": math.nan}, "memory_mb = nan"),
        ({"memory_mb": "60000"}, "memory_mb"),
        ({"memory_mb": 9_000.0}, "would do"),
        ({"objective": "speed"}, "objective"),
        ({"time_limit_s": 0}, "time_limit_s"),
    ],
)
def test_arguments_are_checked(arguments, says):
    with pytest.raises(InputError) as error:
        balance(T1, **({"stages": 4, "micro_batches": 4} | arguments))
    assert says in str(error.value)


def test_the_smallest_cap_is_named_and_works():
    with pytest.raises(InputError, match=r"memory_mb = 9000: no placement fits.*13095 would do"):
        balance(T1, 16, 16, memory_mb=9000)
    assert balance(T1, 16, 16, memory_mb=13_095, time_limit_s=5).peak_memory_mb[0] == 13_095


def test_a_cap_needs_memory_in_the_file():
    with pytest.raises(InputError) as error:
        balance(
            changed(memory_parameter=..., memory_activation=..., memory_recompute=...), 4, 4, memory_mb=50_000
        )
    fields = {p.field for p in error.value.problems}
    assert fields == {"layers_description.1.memory_parameter", "layers_description.1.memory_activation"}


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({}, "offset = missing"),
        ({"offset": [[0, 0], [0]]}, "offset"),
        ({"offset": [0.5] * 4}, "offset"),
        ({"offset": [0] * 4, "recompute": [0] * 3}, "one shape"),
        ({"offset": [0] * 4, "recompute": [40, 0, 0, 0]}, "recomputes more layers than it has"),
        ({"offset": [1] * 4}, "must place all 96 layers"),
        ({"offset": [0] * 4, "select_recompute": [1, 0, 0, 0]}, "SLCT"),
        ({"offset": [0] * 4, "recompte": [1] * 4}, "recompte"),
    ],
)
def test_broken_plans_are_refused(plan, says):
    with pytest.raises(InputError) as error:
        evaluate_sapp(T1, plan, 4)
    assert says in str(error.value)


def test_memory_decomposition_by_hand():
    """TeleChat3 ``test_compute_memory.py``: 16 stages of 6 layers; SAPP prints whole numbers, cut off."""
    comm, full = [0] * 16, [0] * 16
    for stage, (c, f) in {0: (1, 1), 1: (0, 1), 2: (0, 1), 3: (0, 2), 9: (2, 0), 15: (0, 1)}.items():
        comm[stage], full[stage] = c, f
    peaks = {0: 80267, 1: 71519, 2: 67376, 3: 52962, 9: 39373, 15: 16386}
    found = decompose_memory(peaks, [6] * 16, {"COMM": comm, "FULL": full})
    assert (int(found.head), int(found.parameter), found.constant) == (9785, 1562, 0)
    assert {r: int(a) for r, a in found.activation.items()} == {"NONE": 822, "COMM": 498, "FULL": 32}
    assert found.tail == pytest.approx(2868, abs=1.0001)  # 2,869 exactly; rounding takes SAPP below it


def test_memory_decomposition_with_a_constant():
    """TeleChat3 ``mem.yaml``: offsets that alternate, four recompute types, const -1896."""
    layers = [5, 7] * 8
    types = split_types(
        np.zeros(16, int),
        np.array([1, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 2, 0, 0, 1]),
        np.array([1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 1, 1, 2, 0, 0, 1]),
    )
    peaks = {0: 77698, 15: 21822, 6: 49732, 9: 50435, 10: 32341, 11: 41228, 12: 23134, 13: 30998}
    found = decompose_memory(peaks, layers, types)
    assert (int(found.head), int(found.parameter), int(found.tail), int(found.constant)) == (
        4245,
        2141,
        1203,
        -1896,
    )
    assert {r: int(a) for r, a in found.activation.items()} == {
        "NONE": 852,
        "SLCT": 767,
        "COMM": 535,
        "BOTH": 511,
    }


def test_memory_decomposition_gives_back_what_peaks_were_made_of():
    layers, full = [4, 5, 6, 3, 7, 5, 4, 6], [1, 0, 2, 0, 3, 1, 0, 2]
    peaks = {
        s: 300 + 50 * n + (8 - s) * (9 * (n - r) + 2 * r) + (70 if s == 0 else 0) + (40 if s == 7 else 0)
        for s, (n, r) in enumerate(zip(layers, full, strict=True))
    }
    found = decompose_memory(peaks, layers, {"FULL": full})
    assert (found.parameter, found.constant) == pytest.approx((50, 300))
    assert found.activation == pytest.approx({"NONE": 9, "FULL": 2})
    assert (found.head, found.tail) == pytest.approx((370, 340))  # the constant stays in them, as in SAPP


@pytest.mark.parametrize(
    ("peaks", "recompute", "says"),
    [
        ({0: 1, 7: 1}, {}, "at least 2 stages between"),
        ({1: 1, 2: 1, 3: 1}, {}, "the first and the last stage"),
        ({0: 1, 2: 1, 3: 1, 9: 1, 7: 1}, {}, "stages are 0 to 7"),
        ({0: 1, 2: 1, 3: 1, 7: 1}, {"HALF": [0] * 8}, "HALF"),
        ({0: 1, 2: 1, 3: 1, 4: 1, 7: 1}, {}, "too alike"),
    ],
)
def test_memory_that_cannot_be_decomposed(peaks, recompute, says):
    layers = [6] * 8 if says == "too alike" else [4, 5, 6, 3, 7, 5, 4, 6]
    with pytest.raises(InputError, match=says):
        decompose_memory(peaks, layers, recompute)


def test_a_recompute_type_may_be_the_cheapest():
    """FULL's backward takes 2 * 10 * 1.5 = 30 where NONE's takes 40: the file's times are kept as they are."""
    body = {"name": "b", "type": "BODY", "time": 10, "nb_layer": 6, "memory_parameter": 10, "memory_activation": 10,
            "memory_recompute": 1, "backward_coef": 1.0, "recompute_coef": 0.5}  # fmt: skip
    head = {"name": "h", "type": "HEAD", "time": 30, "memory_parameter": 110}
    found = balance({"layers_description": [head, body]}, 2, 4)
    assert (found.makespan, found.proof.bound) == (830, 830)
    assert sum(map(sum, found.recompute["FULL"])) == 6
