"""Published rows on packing: WLB-LLM's modelled, the others' own definitions held against each other."""

import numpy as np
import pytest

from telekit.packing.wlb import SCHEMES
from telekit.validation.packing import (
    TOLERANCE,
    flexsp_time_s,
    groups_of,
    idle_share,
    packing_rows,
    telechat3_36b_gains,
)
from telekit.validation.readings import rows
from telekit.validation.wlb_llm import configurations, mean_speedup, speedup_range


@pytest.fixture(scope="module")
def found():
    return packing_rows()


def test_every_row_is_there(found):
    assert {row.id for row in found} == {row["id"] for row in rows("packing")}
    for row in found:
        assert row.why
        assert row.to_dict()["error"] == row.error


@pytest.mark.parametrize(
    ("id_", "published", "status"),
    [
        ("wlb_avg_vs_plain4d", 1.23, "falls short"),
        ("wlb_avg_vs_fixed4d", 1.19, "reproduced"),
        ("wlb_fixed_vs_plain", 1.03, "wrong in sign"),
        ("wlb_avg_64k", 1.15, "reproduced"),
        ("wlb_avg_128k", 1.30, "falls short"),
    ],
)
def test_wlb_speedups_are_judged_by_what_they_gain(found, id_, published, status):
    row = next(row for row in found if row.id == id_)
    assert row.published == published
    assert row.status == status
    assert row.found == pytest.approx(published, rel=TOLERANCE)  # which says little of a speed-up
    assert row.gain_error == pytest.approx((row.found - 1) / (published - 1) - 1)
    assert (abs(row.gain_error) <= TOLERANCE) == (status == "reproduced")
    low, high = row.between
    assert low <= row.found <= high
    assert f"{low:.2f} to {high:.2f} under 35 settings" in row.why


@pytest.mark.parametrize("levels", [(), (0.125,), (0.125, 0.25, 0.5), (1.0,)])
@pytest.mark.parametrize("cap", [1.0, 1.5, 4.0])
def test_no_setting_that_is_left_open_leaves_the_range(levels, cap):
    for scheme, over, context in (("wlb-llm", "plain-4d", None), ("wlb-llm", "fixed-4d", None)):
        low, high = speedup_range(10, scheme, over, context)
        assert high - low > 0.05
        ours = mean_speedup(configurations(10, 0, levels, cap), scheme, over, context)
        assert low - 0.005 <= ours <= high + 0.005


def test_ordering_is_said_apart_from_balancing():
    rows = {row["seq_len"]: row for row in telechat3_36b_gains(4)}
    for row in rows.values():
        assert 1 < row["assignment"] < row["both"]
    assert rows[32768]["ordering_alone"] < 1.02 < rows[32768]["assignment"]
    assert rows[8192]["ordering_alone"] == pytest.approx(1, abs=1e-3)
    assert rows[32768]["assignment"] > rows[8192]["assignment"]


def test_wlb_imbalance_is_not_reproduced_by_its_own_words(found):
    by = {row.what: row for row in found if row.id == "wlb_imbalance"}
    for key in ("imbalance_before", "imbalance_after"):
        assert by[f"{key}, seconds of work"].status == "not by its own words"
    assert by["imbalance_before, seconds of work"].found == pytest.approx(1.44, rel=TOLERANCE)
    assert by["imbalance_after, seconds of work"].found == pytest.approx(1.05, rel=TOLERANCE)
    assert by["imbalance_before, causal pairs"].status == "falls short"
    assert by["imbalance_before, causal pairs"].found > 1.8


@pytest.mark.parametrize("free", [{"cap": 1.25}, {"levels": (0.5,)}, {"seed": 7}])
def test_what_the_rows_leave_open_does_not_decide(free):
    runs = configurations(30, **free)
    assert all(set(one.runs) == set(SCHEMES) for one in runs)
    for published, scheme, over, context in (
        (1.23, "wlb-llm", "plain-4d", None),
        (1.19, "wlb-llm", "fixed-4d", None),
        (1.03, "fixed-4d", "plain-4d", None),
        (1.15, "wlb-llm", "plain-4d", 65536),
        (1.30, "wlb-llm", "plain-4d", 131072),
    ):
        assert mean_speedup(runs, scheme, over, context) == pytest.approx(published, rel=TOLERANCE)


def test_other_papers_rows_agree_with_their_own_definitions(found):
    assert not [row.id for row in found if row.status == "not consistent"]
    hbp = {row.id: row for row in found if row.id.startswith("hbp_t")}
    assert hbp["hbp_t3_32k_packing"].found == pytest.approx(16.7 / 4.4)
    assert hbp["hbp_t5_llama-3.1-70b"].error == pytest.approx(44.4 / 31.1 / 1.42 - 1)
    # by hand: share s of attention from 4.51 / 3.73 = 1 + s (1 / 0.712 - 1 / 0.998), then 1 / 0.494 for the first row
    share = (4.51 / 3.73 - 1) / (1 / 0.712 - 1 / 0.998)
    assert hbp["hbp_t6_8b_0"].found == pytest.approx(3.73 * (1 + share * (1 / 0.494 - 1 / 0.998)))
    limit = next(row for row in found if row.id == "flexsp_vs_deepspeed_max")
    assert limit.error is None
    assert limit.published < limit.found == pytest.approx(1.34 * 1.42)
    left = {row.id for row in found if row.status == "left out"}
    assert {"chunkflow_max", "flexsp_commoncrawl_max", "hbp_overhead"} <= left


def test_idle_share_is_what_ranks_wait():
    assert idle_share([4.0, 2.0, 2.0]) == pytest.approx((0 + 0.5 + 0.5) / 3)
    assert idle_share([[1.0, 1.0], [2.0, 1.0]]) == pytest.approx((0 + 0.25) / 2)
    work = np.random.default_rng(0).uniform(1, 9, 16)
    assert 1 / (1 - idle_share(work)) == pytest.approx(work.max() / work.mean())


def test_flexsp_formulas_by_hand():
    assert flexsp_time_s([2, 3], 2, linear=10, quadratic=1, fixed=0.5) == (4 + 9 + 20 + 30) / 2 + 0.5
    assert groups_of("16x3,8x2") == (16, 16, 16, 8, 8)
    assert groups_of("8x8 (x2)") == (8,) * 8
    assert groups_of("64") == groups_of("1x64") == (64,)
