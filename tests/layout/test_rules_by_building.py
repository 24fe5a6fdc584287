"""Must show: on 2,000 random small layouts, valid exactly when every rank can be given its share by hand."""

import dataclasses
import random

import numpy as np
import pytest
from layout_oracle import WORLD, buildable, random_case

from telekit.layout.rules import RULES, check

OTHER_KINDS = {"output groups", "context exchange"}
"""Rules about kinds of attention that no layout of plain attention breaks: they have tests of their own."""

IMPLIED = {"heads"}
"""Key/value heads divide the heads, so that what divides the former divides the latter: said for its own sake."""


@pytest.fixture(scope="module")
def built():
    """2,000 cases, which of them can be built, and the rules that each breaks."""
    rng = random.Random(20_002)
    cases = [random_case(rng) for _ in range(2000)]
    assert max(c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp for c in cases) >= WORLD
    broken = [{rule.name for rule in RULES if not np.all(rule.holds(case))} for case in cases]
    return list(zip(cases, [buildable(case) for case in cases], broken, strict=True))


def test_valid_exactly_when_every_rank_gets_its_share(built):
    for case, possible, broken in built:
        assert (not broken) == possible, (case.layout, case.train, case.model, broken)
    possible = sum(possible for _, possible, _ in built)
    assert 500 < possible < 1500


def test_check_lists_the_broken_rules(built):
    for case, _, broken in built:
        problems = check(case)
        assert len(problems) == len(broken)
        assert all(p.rule and "{" not in p.rule and p.suggestion for p in problems), problems


@pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.name not in OTHER_KINDS | IMPLIED])
def test_each_rule_is_missed_when_it_is_left_out(built, name):
    """Some layout cannot be built for this rule alone."""
    assert any(broken == {name} for _, _, broken in built)


MUTANTS = {
    "ep within dp": ("expert fold", lambda c: c.layout.dp % c.layout.ep == 0),
    "etp forgotten in the fold": ("expert fold", lambda c: c.layout.stage_devices % c.layout.ep == 0),
    "fold over all devices": ("expert fold", lambda c: c.cluster.devices % (c.layout.ep * c.layout.etp) == 0),
    "fold without context": (
        "expert fold",
        lambda c: (c.layout.tp * c.layout.dp) % (c.layout.ep * c.layout.etp) == 0,
    ),
    "key heads like query heads": ("kv heads", lambda c: c.widths("heads")[0] % c.layout.tp == 0),
    "key heads at least tp": ("kv heads", lambda c: c.widths("kv_heads")[0] >= c.layout.tp),
    "experts at least ep": (
        "experts",
        lambda c: c.model.moe is None or c.model.moe.num_experts >= c.layout.ep,
    ),
    "sequence over cp once": ("sequence over cp", lambda c: c.train.seq_len % c.layout.cp == 0),
    "two pieces without context": ("sequence over cp", lambda c: c.train.seq_len % (2 * c.layout.cp) == 0),
    "sequence over tp without cp": (
        "sequence over tp",
        lambda c: not c.layout.sequence_parallel or c.train.seq_len % c.layout.tp == 0,
    ),
    "sequence over tp always": (
        "sequence over tp",
        lambda c: c.train.seq_len % (c.layout.cp * c.layout.tp) == 0,
    ),
    "batch over dp": ("batch", lambda c: c.train.global_batch % c.layout.dp == 0),
    "batch over tp too": (
        "batch",
        lambda c: c.train.global_batch % (c.layout.dp * c.layout.micro_batch * c.layout.tp) == 0,
    ),
    "only query heads over cp": (
        "heads over cp",
        lambda c: c.layout.cp_comm_type == "p2p" or c.widths("heads")[0] % (c.layout.tp * c.layout.cp) == 0,
    ),
    "heads over cp, not tp": (
        "heads over cp",
        lambda c: c.layout.cp_comm_type == "p2p" or c.widths("kv_heads")[0] % c.layout.cp == 0,
    ),
    "heads over cp for rings too": (
        "heads over cp",
        lambda c: c.widths("kv_heads")[0] % (c.layout.tp * c.layout.cp) == 0,
    ),
    "experts need no sequence parallelism": (
        "moe sequence parallel",
        lambda c: c.model.moe is None or c.layout.sequence_parallel or c.layout.etp == 1,
    ),
    "overlap at one tensor rank": (
        "tp overlap",
        lambda c: not c.layout.tp_comm_overlap or c.layout.sequence_parallel,
    ),
    "groups of pp or more": (
        "schedule: interleaved micro-batches",
        lambda c: c.layout.schedule != "interleaved-1f1b" or c.micro_batches >= c.layout.pp,
    ),
    "one pipeline full for two ends": (
        "schedule: dualpipe micro-batches",
        lambda c: (
            c.layout.schedule != "dualpipe" or (c.layout.pp <= c.micro_batches and not c.micro_batches % 2)
        ),
    ),
    "odd micro-batches for two ends": (
        "schedule: dualpipe micro-batches",
        lambda c: c.layout.schedule != "dualpipe" or c.micro_batches >= 2 * c.layout.pp,
    ),
    "a V filled like zb-h1": (
        "schedule: V micro-batches",
        lambda c: c.layout.schedule not in ("zb-v", "dualpipe-v") or c.micro_batches >= c.layout.pp,
    ),
    "zb-h1 filled by one": ("schedule: zb-h1 micro-batches", lambda c: True),
    "both ends need a layer": (
        "empty chunk",
        lambda c: c.layout.stages != "auto" or c.layout.pp * c.layout.vpp <= c.model.num_layers,
    ),
    "three parts may be empty": (
        "empty chunk",
        lambda c: c.layout.stages != "auto" or c.layout.pp * c.layout.vpp - 3 <= c.model.num_layers,
    ),
    "as many parts as layers or more": (
        "empty chunk",
        lambda c: c.layout.stages != "auto" or c.layout.pp <= c.model.num_layers,
    ),
    "expert ranks of one node or more": (
        "experts over nodes",
        lambda c: (
            c.model.moe is None
            or c.layout.dispatcher != "alltoall_deredundency"
            or c.layout.ep * c.layout.etp >= c.node_devices
        ),
    ),
    "whole nodes for every dispatcher": (
        "experts over nodes",
        lambda c: c.model.moe is None or c.layout.ep * c.layout.etp % c.node_devices == 0,
    ),
    "devices divided": (
        "devices",
        lambda c: c.cluster.devices % (c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp) == 0,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(built, mutant):
    name, holds = MUTANTS[mutant]
    rule = dataclasses.replace(next(r for r in RULES if r.name == name), holds=holds)

    def valid(case, broken):
        return not (broken - {name}) and bool(rule.holds(case))

    assert any(valid(case, broken) != possible for case, possible, broken in built)


def test_each_suggestion_keeps_its_rule(built):
    suggested = set()
    for case, _, broken in built:
        for rule in (rule for rule in RULES if rule.name in broken):
            repair = rule.repair(case)
            assert repair, rule.name
            assert np.all(rule.holds(case.changed(repair))), (rule.name, repair, case)
            assert any(case.changed(repair).value(field) != case.value(field) for field in repair) or (
                rule.name == "stages recompute"
            )
            suggested.add(rule.name)
    assert suggested == {rule.name for rule in RULES} - OTHER_KINDS
