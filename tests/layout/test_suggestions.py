"""What a message suggests: "works" is never said of a layout that stays invalid, nor kept back where it is true."""

import json
import random
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from layout_oracle import random_case

from telekit import catalog
from telekit.cluster.config import load_cluster
from telekit.job import Job, load_job
from telekit.layout.case import Case
from telekit.layout.config import SCHEDULES, ParallelConfig
from telekit.layout.rules import RULES, check
from telekit.layout.schedules import default_chunks
from telekit.layout.suggestions import MOST_TOGETHER, find
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

MODELS = ("qwen3-30b-a3b", "deepseek-v2-lite", "mixtral-8x7b", "gpt-oss-20b", "glm-4.5-air", "llama-3.1-8b",
          "telechat3-105b-a4.7b", "nemotron-h-56b", "qwen3-next-80b-a3b")  # fmt: skip
NUMBERS = ("tp", "cp", "pp", "vpp", "ep", "etp", "micro_batch")


def job(model="qwen3-30b-a3b", devices=64, train=None, **layout):
    data = {"model": model, "cluster": {"device": "h100", "devices": devices}, "train": train or {}}
    return load_job(data | {"layout": layout})


def said(*args, **layout):
    return [str(problem) for problem in job(*args, **layout).problems()]


def promised(suggestion):
    """Changes that a message says will work, read from its words alone (recompute of one chunk apart)."""
    for clause in suggestion.split("; "):
        if clause.startswith("chunk "):
            continue
        words = re.match(r"(.*?) works?(?:, the smallest.*)?$", clause)
        if words:
            pairs = (part.split(" ", 1) for part in re.split(r", (?=[a-z])| and ", words[1]))
            yield {path(name): value_of(text) for name, text in pairs}


def path(name):
    return f"train.{name}" if name == "global_batch" else f"layout.{name}"


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def broken_rules(case):
    return [rule for rule in RULES if not np.all(rule.holds(case)) and (case.dp_known or not rule.reads_dp)]


def alone(case, name, most=64):
    """Values of one field that make a layout valid, found by trying them all."""
    values = [True, False] if name == "sequence_parallel" else range(1, most + 1)
    return [value for value in values if not broken_rules(case.changed({f"layout.{name}": value}))]


@cache
def cluster(devices):
    return load_cluster({"device": "h100", "devices": devices, "devices_per_node": devices})


def catalog_case(rng):
    """A layout of a published model, near a valid one; ``dp`` is written or left out."""
    pick, model = rng.choice, load_model(rng.choice(MODELS))
    tp, cp = pick([1, 1, 2, 3, 4, 6, 8]), pick([1, 1, 1, 2, 3, 4])
    pp, dp = pick([1, 2, 3, 4, 6]), pick([1, 2, 3, 4, 8])
    schedule = pick(SCHEDULES)
    vpp = default_chunks(schedule) if rng.random() < 0.9 else pick([1, 2, 3])
    micro = pick([1, 1, 2, 3])
    batch = dp * micro * pick([pp, 2 * pp, 4 * pp, 2 * pp + 1]) + (rng.random() < 0.1)
    parts = pp * vpp
    rows = [[model.num_layers // parts] * pp for _ in range(vpp)]
    rows[-1][-1] += model.num_layers % parts + pick([0] * 9 + [1])
    layout = {"tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "micro_batch": micro, "schedule": schedule,
              "sequence_parallel": rng.random() < 0.8, "cp_comm_type": pick(["p2p", "a2a"]),
              "ep": pick([1, 2, 3, 4, 8]) if model.moe else 1, "etp": pick([1, 1, 2, 3]) if model.moe else 1,
              "stages": pick(["auto", "auto", rows])}  # fmt: skip
    if rng.random() < 0.4:
        layout["dp"] = dp
    devices = max(1, tp * cp * pp * dp + pick([0] * 6 + [-2, 1, 2, 4]))
    train = TrainConfig(seq_len=pick([4096, 4096, 3072, 1000, 96]), global_batch=batch)
    return Job(model, cluster(devices), train, ParallelConfig.model_validate(layout)).case


@pytest.fixture(scope="module")
def faulty():
    """Faulty layouts, small toys and published models, with the rules that each breaks and what is said of them."""
    rng = random.Random(4)
    cases = [random_case(rng) for _ in range(350)] + [catalog_case(rng) for _ in range(700)]
    return [(case, rules, check(case)) for case in cases if (rules := broken_rules(case))]


def test_what_works_makes_the_whole_layout_valid(faulty):
    works = 0
    for case, _, problems in faulty:
        for problem in problems:
            for change in promised(problem.suggestion):
                assert not broken_rules(case.changed(change)), (case.layout, str(problem))
                works += 1
    assert works > 300


def test_most_single_faults_are_mended_by_their_suggestion(faulty):
    """A number of devices that nothing divides apart."""
    single = [problems for _, rules, problems in faulty if len(rules) == 1 and rules[0].name != "devices"]
    mended = [" work" in problem.suggestion for problems in single for problem in problems]
    assert len(single) > 120 and sum(mended) > 0.95 * len(single)


def test_a_chunk_whose_recompute_works_is_mended_by_it(faulty):
    mended = 0
    for case, rules, problems in faulty:
        for rule, problem in zip(rules, problems, strict=True):
            if rule.name == "stages recompute" and problem.suggestion.endswith(" works"):
                assert not broken_rules(case.changed(rule.repair(case)))
                mended += 1
    assert mended > 0


def test_what_keeps_a_rule_keeps_it_and_nothing_simple_would_work(faulty):
    """Every fifth, against all values of the field."""
    kept = [
        (case, rule, problem)
        for case, rules, problems in faulty
        for rule, problem in zip(rules, problems, strict=True)
        if "this rule" in problem.suggestion
    ]
    assert len(kept) > 300
    for case, rule, problem in kept[::5]:
        assert np.all(rule.holds(case.changed(rule.repair(case)))), (rule.name, problem)
        name = problem.field.removeprefix("layout.")
        if name in (*NUMBERS, "sequence_parallel"):
            assert alone(case, name) == [], (case.layout, str(problem))


def test_a_suggested_degree_is_the_nearest_that_works(faulty):
    seen = set()
    for case, _, problems in faulty:
        for problem in problems:
            name = problem.field.removeprefix("layout.")
            change = next(promised(problem.suggestion), {})
            if name in NUMBERS and set(change) == {problem.field}:
                there = case.value(problem.field)
                nearest = min((abs(value - there), value) for value in alone(case, name))
                assert change[problem.field] == nearest[1], str(problem)
                seen.add(name)
    assert seen == set(NUMBERS)


def test_stages_that_no_number_of_devices_allows():
    """48 layers on 64 devices: 48 stages would not divide them, 32 do."""
    (problem,) = said(pp=64)
    assert "48 layers do not reach 64 parts" in problem and problem.endswith("; pp 32 works")
    (problem,) = said(pp=49)
    assert problem.startswith("layout.pp = 49: ") and problem.endswith("; pp 32 works")
    assert check(job(pp=32).case) == ()


def test_pc15_four_tensor_ranks_do_not_divide_six_devices():
    problems = said("glm-4.5-air", 6, {"global_batch": 96}, tp=6)
    assert len(problems) == 3 and all(problem.endswith("; tp 2 works") for problem in problems)
    problems = said("glm-4.5-air", 6, {"global_batch": 64}, tp=6)
    assert all(problem.endswith("; tp 2 and global_batch 63 work") for problem in problems)


def test_following_suggestions_ends():
    """TeleChat3-105B on 24 devices went from pp 3 to pp 4 and back: two degrees must change."""
    layout = {"tp": 8, "pp": 8, "schedule": "seqsmartvpp"}
    (problem,) = said("telechat3-105b-a4.7b", 24, {"global_batch": 128}, **layout)
    assert problem.endswith("; tp 4 and pp 6 work")
    assert said("telechat3-105b-a4.7b", 24, {"global_batch": 128}, **layout | {"tp": 4, "pp": 6}) == []


def test_fewer_chunks_take_their_stages_along():
    written = {"pp": 2, "vpp": 2, "schedule": "gpipe", "stages": [[12, 12], [12, 12]]}
    (problem,) = said(**written)
    assert problem.endswith("; schedule interleaved-1f1b works")  # keeps the stages as they are
    (problem,) = said(train={"global_batch": 96}, **written)  # three micro-batches cannot be interleaved
    assert problem.endswith("; vpp 1 and stages [[24, 24]] work")


def test_context_ranks_that_are_suggested_cut_the_sequence():
    """5 context ranks on 6 devices: 6 and 3 divide them, but not a sequence of 1,000."""
    (problem,) = said(devices=6, train={"seq_len": 1000, "global_batch": 96}, cp=5)
    assert problem.startswith("layout.cp = 5: ") and problem.endswith("; cp 2 works")


def test_a_dp_that_nobody_wrote_breaks_no_rule():
    """3 stages on 64 devices: one problem, not one of 21 ranks whose batch of 63 would work."""
    problems = job(pp=3).problems()
    assert [problem.field for problem in problems] == ["layout.pp"]
    assert "tp 1 * cp 1 * pp 3 = 3 must divide the 64 devices" in problems[0].rule
    assert "dp is what remains" in problems[0].rule and problems[0].suggestion == "pp 2 works"
    assert [problem.field for problem in job(pp=3, ep=8, zero=2).problems()] == ["layout.pp"]
    assert [problem.field for problem in job(pp=3, ep=7).problems()] == ["layout.pp", "layout.ep"]
    written = job(pp=3, dp=21).problems()
    assert [problem.field for problem in written][1:] == ["layout.micro_batch"]  # what was written is held to


def test_the_degree_that_is_wrong_is_named():
    for layout, wrong, works in (
        ({"pp": 3, "dp": 16}, "layout.pp = 3: ", "; pp 4 works"),
        ({"pp": 4, "dp": 8}, "layout.dp = 8: ", "; dp 16 works"),
        ({"cp": 3}, "layout.cp = 3: ", "; cp 2 works"),
        ({"tp": 3}, "layout.tp = 3: ", "; tp 2 works"),
    ):
        problem = said(**layout)[0]
        assert problem.startswith(wrong) and problem.endswith(works), problem


def test_fields_left_out_follow_a_change():
    """A schedule that nobody wrote follows ``vpp``, and ``dp`` the rest."""
    case = job(pp=4, vpp=2).case
    assert case.layout.schedule == "interleaved-1f1b"
    changed = case.changed({"layout.vpp": 1, "layout.tp": 2})
    assert (changed.layout.schedule, changed.layout.dp) == ("1f1b", 8)
    written = replace(case, given=None).changed({"layout.vpp": 1, "layout.tp": 2})
    assert (written.layout.schedule, written.layout.dp) == ("interleaved-1f1b", 16)


def test_etp_is_not_offered_for_sequence_parallelism():
    """Frameworks refuse experts without it even then: the reason says so."""
    (problem,) = said(tp=2, sequence_parallel=False)
    assert "which Megatron-Core and MindFormers refuse all the same" in problem
    assert problem.endswith("; sequence_parallel true works")
    (odd,) = said(train={"seq_len": 1001}, tp=2, sequence_parallel=False)
    assert odd.endswith("; tp 1 works")


MICRO_BATCHES = (
    ("zb-v", 64, "zb-v needs at least 2 * pp = 8 micro-batches; there are 4;"),
    ("zb-h1", 32, "zb-h1 needs at least pp = 4 micro-batches; there are 2;"),
    ("dualpipe-v", 64, "dualpipe-v needs at least 2 * pp = 8 micro-batches; there are 4;"),
    (
        "dualpipe-v",
        24,
        "dualpipe-v needs at least 2 * pp = 8 micro-batches; there are 1.5 (24 sequences over dp 16 * micro_batch 1);",
    ),
    ("dualpipe", 144, "dualpipe needs an even number of micro-batches, at least 2 * pp = 8; there are 9;"),
)


@pytest.mark.parametrize(("schedule", "batch", "words"), MICRO_BATCHES)
def test_each_schedule_says_what_it_needs_itself(schedule, batch, words):
    problems = said(train={"global_batch": batch}, pp=4, schedule=schedule, vpp=default_chunks(schedule))
    assert any(words in problem for problem in problems), problems
    others = {"zb-v", "zb-h1", "dualpipe", "dualpipe-v"} - {schedule}
    assert not any(re.search(rf"\b{re.escape(other)} ", problem) for problem in problems for other in others)


def test_a_search_is_bounded():
    """An eight-fault layout on a much divided number of devices asks for a few hundred layouts at most."""
    layout = ParallelConfig(tp=3, pp=7, cp=3, ep=7, etp=3, vpp=2, micro_batch=3)
    given = ("tp", "pp", "cp", "ep")
    wide = Case(load_model("deepseek-v3"), cluster(55_440), TrainConfig(), layout, given)
    asked = []
    assert find(wide, (("tp", "pp"), ("cp", "pp"), ("tp", "cp")), lambda case: asked.append(case)) is None
    assert 0 < len(asked) <= 3 * (MOST_TOGETHER + 2 * 8)


def test_every_catalog_job_is_as_valid_as_it_was():
    for name in catalog.names("jobs"):
        assert load_job(catalog.record("jobs", name)["job"]).problems() == ()
