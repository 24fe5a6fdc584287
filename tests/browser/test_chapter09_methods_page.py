"""Chapter 9's methods in a real page, offline: a machine that stands out, a walk to the cause, a straggler to find.

Times are recorded in ``test-results/latency09_methods.json``, not asserted: a busy machine is no fault of the code.
"""

import pytest
from pages import captions, choose, clean, drawn, pace, record, redrawn

pytestmark = pytest.mark.browser

NAME = "09_cluster_optimization.ipynb"


def test_minder_alerts_after_four_minutes_and_not_after_two(chapter, panel):
    minder = panel("minder-panel", "Minder at work")
    assert captions(minder)[1] == "Alert: machine-5, 3.9 min after the fault began"
    minder.get_by_text("alert: machine-5", exact=True).wait_for()
    assert minder.locator(".telekit-chart").first.locator(".mark-rect path").count() >= 16 * 45
    record("latency09_methods", {"lasts": pace(chapter, minder, "lasts [min]")})
    before = drawn(minder)
    minder.get_by_role("slider", name="lasts [min]", exact=True).press("Home")
    redrawn(chapter, minder, before)
    assert captions(minder)[1].startswith("No alert: ")
    choose(chapter, minder, "continuity", "off: one window")
    assert captions(minder)[1].startswith("Alert: ")
    clean(chapter)


def test_mycroft_walks_to_the_rank_at_fault(chapter, panel):
    mycroft = panel("mycroft-panel", "Mycroft at work")
    assert captions(mycroft)[0] == "11.0 s: 8 waits for 0, 0 for 1, 1 for 5: not transmitted"
    before = drawn(mycroft)
    mycroft.get_by_role("slider", name="on rank", exact=True).press("End")
    redrawn(chapter, mycroft, before)
    mycroft.get_by_text("rank 15: not transmitted").first.wait_for()
    choose(chapter, mycroft, "fault", "process-stuck: a process or its kernel never ends")
    mycroft.get_by_text("rank 15: not started").first.wait_for()
    clean(chapter)


def test_a_straggler_is_guessed_and_explained(chapter, panel):
    game = panel("straggler-panel", "Find the straggler")
    game.get_by_role("combobox", name="look at").select_option("the host")
    game.get_by_text("What the host does while its device idles").wait_for()
    game.get_by_role("combobox", name="who?").select_option("3")
    game.get_by_role("combobox", name="why?").select_option("data loading")
    game.get_by_text("✗ rank 3 waits").wait_for()
    assert "Planted" not in game.inner_text()
    game.get_by_role("combobox", name="who?").select_option("8")
    game.get_by_text("✓ who is right; ✓ why is right").wait_for()
    game.get_by_role("combobox", name="answer").select_option("shown")
    game.get_by_text("Planted:").wait_for()
    game.get_by_text("1 of 2").first.wait_for()
    clean(chapter)
