"""Planted faults against the locator, and layout changes that are none.

Authors planted faults without having read the locator. When they were fresh, 97 % of the first's cases were located and
74 % also named (39 of 59 faults in both precisions); of the second's 76 faults 75 and 67 were located in float32 and
bfloat16, 54 and 49 also named; of the third's 72 all were located in both, 58 and 56 also named. The fourth tables hold
only what was missed. The locator has since been improved on these very faults: what the tables say is how it does on
faults that it knows.

``TELEKIT_ALL_LAYOUTS=1`` tries 200 layout changes with the golden run's routing and 60 without, in place of a few.
"""

import os
import re
from dataclasses import replace

import numpy as np
import pytest
from planted_faults import PLANTED
from planted_faults_fifth_a import FIFTH_A
from planted_faults_fifth_b import FIFTH_B
from planted_faults_fourth_a import FOURTH_A
from planted_faults_fourth_b import FOURTH_B
from planted_faults_second import SECOND
from planted_faults_third import THIRD

from telekit.accuracy import compare as comparing
from telekit.accuracy.causes import finding as f
from telekit.accuracy.checks.determinism import diff_check
from telekit.accuracy.locating.locate import locate
from telekit.accuracy.miniature import Config, Layout, dump, run
from telekit.accuracy.miniature.config import check_layout
from telekit.errors import InputError

PRECISIONS = ("fp32", "bf16")
FIRST_SEED = {"fp32": 41000, "bf16": 52000}
SECOND_SEED = {"fp32": 873100, "bf16": 914600}
THIRD_SEED = {"fp32": 6407000, "bf16": 7719000}
FOURTH_A_SEED = {"fp32": 20300400, "bf16": 31500600}
FOURTH_B_SEED = {"fp32": 8502000, "bf16": 9614000}
FIFTH_A_SEED = {"fp32": 7301000, "bf16": 8412000}
FIFTH_B_SEED = {"fp32": 12405000, "bf16": 13516000}
SAID_IN_WORDS = {
    "gate and up swapped": (f.PERMUTATION, "gate and up are taken the wrong way round"),
    "a weight is not in the optimizer": (f.OPTIMIZER_STATE, "they are not updated"),
}
"""Classes nobody had written down, where the sentence beside them is the fault itself."""

KNOWN_MISSES: dict[tuple[str, str], tuple[str, str]] = {}
"""By fault and precision: operator and class that the locator gives in place of the right ones; '' names none."""


def sizes(config, layout):
    names = ("tp", "cp", "dp", "ep", "pp", "micro_batches")
    found = {name: float(getattr(layout, name)) for name in names}
    return found | {"etp": float(layout.tp), "tokens": float(config.tokens)}


def look(target, golden, steps=None):
    """Locate with all that a careful user has: dumps, losses, norms, each rank's own tensors, sizes."""
    return locate(
        comparing.compare(dump(target, steps=steps), dump(golden, steps=steps), locate=False).rows,
        losses=(target.curve, golden.curve),
        norms=(target.grad_norms, golden.grad_norms),
        sizes=sizes(golden.config, target.layout),
        replicas=tuple(dump(target, merged=False, steps=steps)),
    )


def answer(planted, precision, seed):
    """Return operator, phase, class and the sentences of what is found."""
    c, layout = replace(planted.config, precision=precision), planted.layouts[PRECISIONS.index(precision)]
    if planted.rerun:  # the same run dumped twice
        pair = [dump(run(c, layout, steps=1, seed=seed, fault=planted.make())) for _ in range(2)]
        first = diff_check(comparing.compare(*pair, locate=False).rows).found[0]
        return first.operator, first.phase, f.NON_DETERMINISM, ""
    golden = run(c, seed=seed)
    routing = golden if precision == "bf16" and c.experts else None
    with planted.patch():
        target = run(c, layout, seed=seed, fault=planted.make(), routing=routing)
    found = look(target, golden, planted.steps)
    return found.operator, found.phase, found.cause, " ".join(found.evidence)


CASES = [
    (planted, precision, seeds[precision] + at)
    for table, seeds in (
        (PLANTED, FIRST_SEED),
        (SECOND, SECOND_SEED),
        (THIRD, THIRD_SEED),
        (FOURTH_A, FOURTH_A_SEED),
        (FOURTH_B, FOURTH_B_SEED),
        (FIFTH_A, FIFTH_A_SEED),
        (FIFTH_B, FIFTH_B_SEED),
    )
    for at, planted in enumerate(table)
    for precision in PRECISIONS
]


@pytest.mark.parametrize(
    ("planted", "precision", "seed"), CASES, ids=[f"{p.name}-{precision}" for p, precision, _ in CASES]
)
def test_a_planted_fault_is_located_and_named(planted, precision, seed):
    operator, phase, cause, text = answer(planted, precision, seed)
    known = KNOWN_MISSES.get((planted.name, precision))
    if known is not None:
        assert (operator, cause) == known
        return
    assert re.search(planted.where, operator)
    assert phase in planted.phases
    also, sentence = SAID_IN_WORDS.get(planted.name, ("", ""))
    assert cause in planted.causes or (cause == also and sentence in text)


def test_the_tables_name_each_fault_once():
    names = [p.name for p in (*PLANTED, *SECOND, *THIRD, *FOURTH_A, *FOURTH_B, *FIFTH_A, *FIFTH_B)]
    assert (
        len(set(names))
        == len(names)
        == 59 + 76 + sum(map(len, (THIRD, FOURTH_A, FOURTH_B, FIFTH_A, FIFTH_B)))
    )
    assert {name for name, _ in KNOWN_MISSES} <= set(names)


# --- layouts that change nothing but rounding -------------------------------------------------------------------


def some_layout(seed, experts):
    """Draw a model and a layout that divides it and is not one rank's."""
    random = np.random.default_rng(seed)

    def pick(*values):
        return values[random.integers(len(values))]

    while True:
        try:
            config = Config(
                kv_heads=pick(2, 4), ffn=pick(16, 32), vocabulary=32, tied=bool(pick(0, 1)), precision="bf16",
                experts=pick(4, 8) if experts else 0, top_k=pick(1, 2, 3), shared_ffn=pick(0, 32) if experts else 0,
            )  # fmt: skip
            layout = Layout(
                tp=pick(1, 2, 4), cp=pick(1, 1, 2, 4), pp=pick(1, 2), dp=pick(1, 2, 4),
                ep=pick(1, 2, 4) if experts else 1, micro_batches=pick(1, 2), sequence_parallel=bool(pick(0, 1)),
                cp_comm_type=pick("p2p", "all_gather"), reduce_order=pick("ring", "sequential", "tree"),
            )  # fmt: skip
            check_layout(config, layout)
        except InputError:
            continue
        if layout.ranks * layout.micro_batches > 1:
            return config, layout


ALL = os.environ.get("TELEKIT_ALL_LAYOUTS") == "1"
LAYOUTS = [(10_000 + i, i % 2 == 1, True) for i in range(200 if ALL else 18)]
LAYOUTS += [(10_500 + i, True, False) for i in range(60 if ALL else 6)]


@pytest.mark.parametrize(("seed", "experts", "replay"), LAYOUTS)
def test_another_layout_is_no_fault(seed, experts, replay):
    config, layout = some_layout(seed, experts)
    golden = run(config, seed=seed)
    target = run(config, layout, seed=seed, routing=golden if experts and replay else None)
    found = look(target, golden, steps=None if ALL else [1])
    assert found.clean, (config, layout, found.operator, found.cause, found.evidence)
