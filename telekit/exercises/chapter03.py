"""Tasks of chapter 3 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.accuracy.causes import finding
from telekit.accuracy.graph.graph_errors import GraphError, first_above, graph_errors
from telekit.accuracy.miniature import Config, Fault, Layout, Run, dump, run, twice
from telekit.accuracy.miniature.faults import fault_named, play
from telekit.accuracy.standards.depth import depth_bound, in_epsilons
from telekit.exercises.check import Feedback, choice, design, number

PUBLISHED = 1.14
"""Relative error of dQ behind a broken context-parallel attention (NVIDIA/Megatron-LM, issue 1464)."""


def phase(answer: str | None) -> Feedback:
    """Which phase to dump: step 1's loss agrees, its gradient norm is 36 % too large, step 2's loss agrees."""
    return choice(
        answer,
        "backward",
        {
            "forward": "The forward pass made the first loss, and that agrees.",
            "backward": "Right: the first loss clears the forward pass, the norm does not agree. That step 2's loss "
            "does is no excuse: Adam divides a gradient by its own size, and a scale is lost on the way.",
            "optimizer": "The norm is taken before the optimizer does anything.",
            "nothing": "A norm that is 36 % too large is not rounding; clipping would cut every step by it.",
        },
    )


def ratio(answer: str | None) -> Feedback:
    """Which size: experts' gradients are 2.000 times golden's, all others agree; tp 2, dp 4, ep 2, 2 micro-batches."""
    return choice(
        answer,
        "ep",
        {
            "ep": "Right: only what is split by expert is off. A factor says how much, the tensors' names by whom.",
            "tp": "tp is 2 as well, but the attention is split by it too, and its gradients agree.",
            "dp": "dp is 4, and the ratio is 2.000.",
            "micro batches": "There are 2, but a sum over micro-batches is alike for all weights, and others agree.",
        },
    )


def blind(answer: str | None) -> Feedback:
    """Which operator a statistics dump accuses first, where gate and up of the first layer were cut as one block."""
    right = blamed_by_norms()
    return choice(
        answer,
        "activation_func",
        {
            "linear_fc1": "Its weight and its output have the right values in another order: every statistic agrees.",
            "activation_func": f"Right: {right} is the first to combine two values that do not belong together. The "
            "fault is one operator earlier, in linear_fc1's weight; only elements (or a checksum) show that.",
            "linear_fc2": "Its input is wrong already: some operator before it mixed what does not belong together.",
            "none": "Gate times up of different channels is another number: from there on statistics differ.",
        },
    )


@cache
def blamed_by_norms() -> str:
    """Label of the first operator that the norms accuse."""
    target, golden = play("gate-and-up-cut-as-one", 1)
    found = first_above(graph_errors(dump(target), dump(golden), by="norm"), 1e-4)
    assert found is not None
    return found.label


def over_the_bound(answer: float | None) -> Feedback:
    """How many times the bound of layer 0 of 32 the published error of 1.14 is, in bf16."""
    bound = depth_bound(0)
    return number(
        answer,
        PUBLISHED / bound,
        unit="times",
        rel=0.015,
        hint="The bound is 4 times 1.03 to the power L + 1 - l, in epsilons of 2**-7.",
        slips={
            "those are epsilons; the bound is more than one of them": in_epsilons(PUBLISHED),
            "the gradient of layer 0 has come through all 33 steps, not through one": PUBLISHED
            / depth_bound(32),
            "bfloat16 stores 7 bits behind the point, and its epsilon is 2**-7, not 2**-8": 2
            * PUBLISHED
            / bound,
            "that is 4 epsilons at every depth: the bound grows": PUBLISHED / (4 * 2**-7),
        },
    )


# --- a hidden fault -----------------------------------------------------------------------------------------

MYSTERY = Fault("decoder.layers.0.mlp.linear_fc2.all_reduce", twice)
MYSTERY_LAYOUT = Layout(tp=2)


@cache
def mystery() -> tuple[Run, Run]:
    """Run the hidden fault, and golden in the same layout."""
    config = Config(precision="bf16")
    return run(config, MYSTERY_LAYOUT, 2, MYSTERY), run(config, Layout(), 2)


@cache
def mystery_errors() -> tuple[GraphError, ...]:
    """Error of every operator of the first step of the hidden fault."""
    target, golden = mystery()
    return graph_errors(dump(target, steps=[0]), dump(golden, steps=[0]))


def name_the_fault(answer: Mapping[str, str] | None) -> Feedback:
    """Check operator and cause of the hidden fault."""
    said = dict(answer) if isinstance(answer, Mapping) else answer
    hint = 'Write {"operator": "layers.0...", "cause": "..."}.'

    def form(it: Any) -> bool | str:
        return (isinstance(it, dict) and set(it) == {"operator", "cause"}) or hint

    def place(it: Any) -> bool | str:
        name = str(it["operator"]).strip().removeprefix("decoder.")
        if name == "layers.0.mlp.linear_fc2":
            return True
        why = {
            "layers.0.mlp": "it contains the operator: dump one level deeper",
            "layers.0.mlp.activation_func": "its output is within rounding",
            "layers.0.mlp_bda": "its input is off already: a consequence",
            "layers.1.input_layernorm": "it comes later",
        }
        return why.get(name, "its output is within rounding, or its input was off before")

    def cause(it: Any) -> bool | str:
        said = str(it["cause"]).strip().casefold().replace("-", " ")
        if said == finding.DOUBLE_REDUCTION:
            return True
        why = {
            finding.MISSING_REDUCTION: "without the sum each rank keeps its own half: the norm would be smaller, "
            "and the ranks unequal",
            finding.MISSING_TERM: "golden and target differ by golden itself: a ratio of 2, not a term less",
            finding.SCALED: "so it is, but by which operation? The layer is row-parallel over tp 2",
            finding.PERMUTATION: "a permutation keeps the norm",
        }
        return why.get(said, "the target's norm is twice golden's, and the ranks agree with each other")

    demands: tuple[tuple[str, Callable[[Any], bool | str]], ...] = (
        ("It must name both", form), ("The operator", place), ("The cause", cause),
    )  # fmt: skip
    return design(said, demands, hint)


# --- the design: a plan of dumps ----------------------------------------------------------------------------

SUSPECTS = (
    "rotary-base", "gate-and-up-cut-as-one", "row-parallel-sum-missing", "residual-missing",
    "norm-gradients-not-summed", "gradients-divided-by-dp", "no-bias-correction", "state-lost-on-resume",
)  # fmt: skip
NOTHING = "nothing"
FREE: dict[str, Callable[[Run, Run], bool]] = {
    "step-1 loss": lambda target, golden: target.losses[0] != golden.losses[0],
    "step-1 norm": lambda target, golden: target.grad_norms[0] != golden.grad_norms[0],
    "step-2 loss": lambda target, golden: target.losses[1] != golden.losses[1],
}
"""What the training log has anyway."""
DUMPS = {
    "layers.0 rotary_pos_emb": (0, "layers.0.self_attention.rotary_pos_emb.RotaryEmbedding.forward"),
    "layers.0 linear_fc1": (0, "layers.0.mlp.linear_fc1.ColumnParallelLinear.forward"),
    "layers.1 linear_proj": (0, "layers.1.self_attention.linear_proj.RowParallelLinear.forward"),
    "layers.1 mlp_bda": (0, "layers.1.mlp_bda.BiasDropoutAdd.forward"),
    "output_layer": (0, "Module.output_layer.ColumnParallelLinear.forward"),
    "gradient of word_embeddings": (0, "Gradient.embedding.word_embeddings.weight"),
    "gradient of input_layernorm": (0, "Gradient.decoder.layers.0.input_layernorm.weight"),
    "update of step 1": (0, "Optimizer.output_layer.weight.Adam"),
    "update of step 2": (1, "Optimizer.output_layer.weight.Adam"),
}
"""What can be dumped: its name, the step (from 0) and where it is."""
CHECKS = (*FREE, *DUMPS)


@cache
def seen(name: str) -> frozenset[str]:
    """Which checks differ from golden under a fault; both sides in one layout, so all that is right is equal."""
    target, golden = play(name, 2)
    off = {check for check, differs in FREE.items() if differs(target, golden)}
    for step in (0, 1):
        found = graph_errors(dump(target, steps=[step]), dump(golden, steps=[step]))
        off |= {
            check
            for check, (at, where) in DUMPS.items()
            if at == step and any(e.error > 0 and where in e.tensor for e in found)
        }
    return frozenset(off)


@dataclass(frozen=True)
class Followed:
    """Where a plan leads under one fault."""

    fault: str
    verdict: str
    dumps: tuple[str, ...]


def follow(plan: Any, fault: str) -> Followed:
    """Go through a plan as the checks answer.

    Raises
    ------
    ValueError
        The plan has another form, asks for what cannot be dumped, or asks for the same twice.
    """
    off = frozenset() if fault == NOTHING else seen(fault)
    asked: list[str] = []
    while not isinstance(plan, str):
        if not isinstance(plan, tuple | list) or len(plan) != 3 or not isinstance(plan[0], str):
            raise ValueError("a step is (check, next if it agrees, next if it differs)")
        check, agrees, differs = plan
        if check not in CHECKS:
            raise ValueError(f"{check!r} is no check; there are {', '.join(CHECKS)}")
        if check in asked:
            raise ValueError(f"{check} is asked for twice on one way")
        asked.append(check)
        plan = differs if check in off else agrees
    if plan not in (*SUSPECTS, NOTHING):
        raise ValueError(f"{plan!r} is no suspect; there are {', '.join((*SUSPECTS, NOTHING))}")
    return Followed(fault, plan, tuple(a for a in asked if a in DUMPS))


def _leaves(plan: Any) -> Iterator[str]:
    if isinstance(plan, str):
        yield plan
    elif isinstance(plan, tuple | list):
        for part in plan[1:]:
            yield from _leaves(part)


@cache
def fewest_dumps(suspects: frozenset[str] = frozenset((*SUSPECTS, NOTHING))) -> int:
    """Most dumps on any way of the best plan, by trying them all."""
    if len(suspects) == 1:
        return 0
    best = len(DUMPS) + 1
    for check in CHECKS:
        off = frozenset(s for s in suspects if s != NOTHING and check in seen(s))
        if off and off != suspects:
            rest = max(fewest_dumps(off), fewest_dumps(suspects - off))
            best = min(best, rest + (check in DUMPS))
    return best


def _named(plan: Any) -> bool | str:
    for fault in SUSPECTS:
        found = follow(plan, fault)
        if found.verdict != fault:
            return f"{fault} is taken for {found.verdict}"
    return True


def _innocent(plan: Any) -> bool | str:
    found = follow(plan, NOTHING)
    return found.verdict == NOTHING or f"a clean run is accused of {found.verdict}"


def _short(plan: Any) -> bool | str:
    ways = [follow(plan, fault) for fault in (*SUSPECTS, NOTHING)]
    longest = max(ways, key=lambda way: len(way.dumps))
    most, best = len(longest.dumps), fewest_dumps()
    return (
        most <= best or f"{longest.fault} takes {most} dumps ({', '.join(longest.dumps)}); {best} are enough"
    )


DEMANDS: tuple[tuple[str, Callable[[Any], bool | str]], ...] = (
    ("A clean run must pass", _innocent),
    ("It must name every suspect", _named),
    ("Nobody should dump more than needed", _short),
)


def dump_plan(answer: Any) -> Feedback:
    """Check a plan of checks that tells eight faults and a clean run apart."""
    if isinstance(answer, str):
        return Feedback(False, "A plan is (check, next if it agrees, next if it differs), not one name.")
    return design(answer, DEMANDS, 'Begin with ("step-1 loss", ..., ...): what a log has costs nothing.')


def suspects_told() -> tuple[tuple[str, str], ...]:
    """Names and symptoms of the suspects."""
    return tuple((name, fault_named(name).title) for name in SUSPECTS)
