"""The noun layout: what it accepts, what it derives, and that a table reads like its rows."""

import numpy as np
import pytest
from pydantic import ValidationError

from telekit.errors import from_pydantic
from telekit.layout.config import MOST_CELLS, ParallelConfig, StageLayers
from telekit.layout.table import COLUMNS, LayoutTable


def test_expert_side_folds_over_the_dense_side():
    layout = ParallelConfig(tp=2, cp=2, dp=8, ep=8, etp=1, pp=4)
    assert layout.stage_devices == 32
    assert layout.edp * layout.ep * layout.etp == layout.stage_devices
    assert layout.dense_replicas == 16


def test_sequence_shards_need_the_flag():
    assert ParallelConfig(tp=4).sequence_shards == 4
    assert ParallelConfig(tp=4, sequence_parallel=False).sequence_shards == 1


@pytest.mark.parametrize(
    "field, value",
    [
        ("tp", 0),
        ("tp", -1),
        ("tp", 1.5),
        ("tp", True),
        ("tp", "8"),
        ("pp", 2**40),
        ("zero", 4),
        ("schedule", "2f2b"),
        ("recompute", "some"),
        ("cp_comm_type", "ring"),
        ("tp_comm_overlap", 1),
        ("tpp", 2),
        ("recompute", ["attention"]),
        ("expert_imbalance", 0.5),
        ("expert_imbalance", float("nan")),
        ("stages", [[-1]]),
        ("stages", "even"),
        ("stages", [["x"]]),
        ("stages", [[True]]),
    ],
)
def test_impossible_values_are_refused(field, value):
    with pytest.raises(ValidationError):
        ParallelConfig.model_validate({field: value})


def test_stages_take_bare_counts_and_choices():
    layout = ParallelConfig.model_validate(
        {"pp": 2, "stages": [[3, {"layers": 2, "recompute": {"full": 1}}]], "recompute": "selective"}
    )
    first, second = layout.stages[0]
    assert first.options(layout.option) == ("selective",) * 3
    assert second.options(layout.option) == ("full", "none")


def test_a_list_of_choices_is_taken_layer_by_layer():
    cell = StageLayers.model_validate({"layers": 3, "recompute": ["none", "full", "none"]})
    assert cell.options("selective") == ("none", "full", "none")


def test_table_rows_are_the_layouts_it_was_built_from():
    layouts = [ParallelConfig(tp=t, ep=e, dp=4) for t in (1, 2) for e in (1, 4)]
    table = LayoutTable.of(layouts)
    assert len(table) == 4 and table.tp.shape == (4, 1) and table.tp.dtype == np.float64
    for i, layout in enumerate(layouts):
        row = table.row(i, layouts[0])
        assert {n: getattr(row, n) for n in COLUMNS} == {n: getattr(layout, n) for n in COLUMNS}
    assert len(table.take(table.tp[:, 0] == 2)) == 2


def refused(**fields):
    with pytest.raises(ValidationError) as caught:
        ParallelConfig.model_validate(fields)
    return [str(problem) for problem in from_pydantic(caught.value, "layout", kind=ParallelConfig).problems]


@pytest.mark.parametrize(
    "stages, words",
    [
        ([[24, 24.0]], "layout.stages.0.1 = 24.0: chunk 0 of stage 1 must be a whole number of layers"),
        ([[-1, 49]], "layout.stages.0.0 = -1: chunk 0 of stage 0 must be a whole number of layers"),
        ([[1, 2], [3, None]], "layout.stages.1.1 = None: chunk 1 of stage 1"),
        ([[1, 2], 5], "layout.stages.1 = 5: must be a row of layers"),
        ([[24, {"layers": "x"}]], "layout.stages.0.1.layers = x"),
        (
            [[24, {"layers": 9, "recompute": {"ful": 1}}]],
            "layout.stages.0.1.recompute = {'ful': 1}: chunk 0 of",
        ),
        (5, "layout.stages = 5: must be auto, rows of layers"),
        ("even", "layout.stages = even: cannot be read from letter 1, 'e', on; auto, or E, t, m, L and |"),
        ("Et|tL|", "layout.stages = Et|tL|: has 3 parts, not whole rows of pp = 2"),
        ("tE|tL", "layout.stages = tE|tL: must begin with the one E"),
    ],
)
def test_one_fault_in_the_stages_is_one_problem_that_names_its_place(stages, words):
    (problem,) = refused(pp=2, stages=stages)
    assert words in problem and "StageLayers" not in problem and "tuple" not in problem


MODULES = "core_attn, layernorm, moe_act, mla_up_proj, mlp, mlp_act, moe or shared_experts"


@pytest.mark.parametrize(
    "recompute, problem",
    [
        (
            "selective_op",
            f"layout.recompute = selective_op: must be none, selective, full or a list of {MODULES}",
        ),
        (["attn"], f"layout.recompute.0 = attn: must be {MODULES}"),
    ],
)
def test_a_recompute_that_there_is_not_says_which_there_are(recompute, problem):
    assert refused(recompute=recompute) == [problem]


def test_every_bad_cell_is_named_up_to_a_number():
    assert len(refused(stages=[[None, 1.5, 2], ["x"]])) == 3
    many = refused(stages=[[None] * 1000])
    assert len(many) == MOST_CELLS + 1 and "1000 faults" in many[0]


def test_other_faults_are_listed_beside_those_of_the_stages():
    assert {p.split(" = ")[0] for p in refused(tp=0, stages=[[True]])} == {"layout.tp", "layout.stages.0.0"}
    assert [p.split(" = ")[0] for p in refused(pp="x", stages="Et|tL")] == ["layout.pp"]


def test_a_layout_string_is_kept_as_counts():
    """Megatron-LM issue 1852's first string: 32 parts on 16 stages."""
    found = ParallelConfig.model_validate({"pp": 16, "vpp": 2, "stages": "Et|(tt|)*30L"})
    written = ParallelConfig.model_validate({"pp": 16, "vpp": 2, "stages": [[1] + [2] * 15, [2] * 15 + [0]]})
    assert found == written
    assert ParallelConfig.model_validate({"pp": 2, "stages": "Et,t|tL"}).stages[0][0].layers == 2


def test_a_layout_string_needs_to_know_the_stages():
    (problem,) = refused(stages="Et|(tt|)*23tL")
    assert "has 25 parts, which pp says how to deal out; pp is 1; pp 25 makes each a stage" in problem
    assert ParallelConfig.model_validate({"stages": "Et*4L"}).stages[0][0].layers == 4
