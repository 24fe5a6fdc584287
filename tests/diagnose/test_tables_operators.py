"""Operator totals: what takes the time, on which unit, and which rank's operators take longer, and why."""

import pytest
from table_files import OPERATORS, write_operators

from telekit.diagnose.diagnosis import diagnose
from telekit.errors import InputError

USUAL = [("GroupedMatmul", "MIX_AIC", 80, 50_000.0), ("MatMulV3", "AI_CORE", 200, 30_000.0),
         ("FlashAttentionScore", "MIX_AIC", 40, 20_000.0), ("RmsNorm", "AI_VECTOR_CORE", 100, 4_000.0),
         ("hcom_allReduce_", "COMMUNICATION", 10, 9_000.0)]  # fmt: skip


def scaled(factors, extra=()):
    return [(n, u, c, t * factors.get(n, factors.get("*", 1.0))) for n, u, c, t in USUAL] + list(extra)


def test_what_takes_the_time(tmp_path):
    write_operators(tmp_path, [USUAL] * 4)
    found = diagnose(tmp_path)
    (table,) = found.tables
    assert found.healthy and table.says.startswith("4 ranks: GroupedMatmul takes 44%")
    first, whole = table.rows[0], sum(r[3] for r in USUAL)
    assert first["total_s"] == pytest.approx(4 * 0.05) and first["count"] == 320
    assert first["mean_s"] == pytest.approx(50_000e-6 / 80) and first["share"] == pytest.approx(
        50_000 / whole
    )
    assert sum(r["share"] for r in table.rows) == pytest.approx(1)


@pytest.mark.parametrize(
    ("factors", "kind", "cause"),
    [({"*": 1.3, "hcom_allReduce_": 1.0}, "slow device", "device"),
     ({"GroupedMatmul": 1.6}, "expert imbalance", "load"),
     ({"MatMulV3": 2.0}, "slow rank", "unknown"), ({"hcom_allReduce_": 9.0}, "healthy", "")],
)  # fmt: skip
def test_which_rank_and_why(tmp_path, factors, kind, cause):
    rows = [scaled({"*": 1 + 0.004 * r}) for r in range(8)]
    rows[5] = scaled(factors)
    write_operators(tmp_path, rows)
    found = diagnose(tmp_path)
    assert found.verdict == kind
    assert [(f.ranks, f.cause) for f in found.findings] == ([((5,), cause)] if cause else [])


def test_other_counts_are_more_work_and_no_slow_device(tmp_path):
    rows = [USUAL] * 7 + [[(n, u, int(1.3 * c), 1.3 * t) for n, u, c, t in USUAL]]
    write_operators(tmp_path, rows)
    assert diagnose(tmp_path).verdict == "slow rank"


def test_operators_on_the_ai_cpu(tmp_path):
    write_operators(tmp_path, [scaled({}, [("Index", "AI_CPU", 3, 1_000.0)])] * 2)
    assert diagnose(tmp_path).healthy, "1,000 of 114,000 us do not matter"
    write_operators(tmp_path, [scaled({}, [("NonZero", "AI_CPU", 3, 7_000.0)]), USUAL])
    (finding,) = diagnose(tmp_path).findings
    assert (finding.kind, finding.detail, finding.ranks, finding.scope) == (
        "AI CPU operators",
        "NonZero",
        (0,),
        "several",
    )
    assert finding.share == pytest.approx(7_000 / (2 * 113_000 + 7_000))


def test_damaged_tables(tmp_path):
    path = tmp_path / "op_statistic.csv"
    path.write_text(
        OPERATORS.replace("Core Type,", "") + "0,Add,3,oops,1,1,1,1\n0,Mul,3,30,1,10,1,99\n0,Cut,3"
    )
    found = diagnose(path)
    assert [r["operator"] for r in found.tables[0].rows] == ["Mul"]
    told = " ".join(map(str, found.problems))
    assert "an operator without a time" in told and "has not as many cells" in told
    path.write_text(OPERATORS + "0,Add,AI_CORE,3,,1,1,1,1\n")
    with pytest.raises(InputError, match="no operator has a time"):
        diagnose(path)


def test_two_tables_of_one_rank_count_once(tmp_path):
    write_operators(tmp_path, [USUAL] * 2)
    (tmp_path / "b").mkdir()
    write_operators(tmp_path / "b", [USUAL])
    found = diagnose(tmp_path)
    assert found.tables[0].rows[0]["count"] == 160
    assert any("a second table of rank 0" in str(p) for p in found.problems)
