"""The noun layout: what it accepts, what it derives, and that a table reads like its rows."""

import numpy as np
import pytest
from pydantic import ValidationError

from telekit.layout.config import ParallelConfig, StageLayers
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
