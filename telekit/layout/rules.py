"""When a layout is valid: each rule a small predicate with its reason and a value that would work.

A predicate reads the layout's attributes, so it answers for one layout or for every row of a table. Reasons are
made for one layout only. Sources: Megatron-Core's argument checks and parallel-state construction
(``megatron/training/arguments.py``, ``megatron/core/parallel_state.py``), unless a rule names another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import Problem
from telekit.layout import repairs
from telekit.layout.case import Case as Case
from telekit.layout.case import empty_parts, facts, not_exchanged, placed_layers, shape_fits
from telekit.layout.repairs import Repair, choices_fit
from telekit.layout.schedules import RULES as SCHEDULE_RULES
from telekit.layout.schedules import Holds as ScheduleHolds
from telekit.layout.schedules import smallest_group
from telekit.layout.stages import reaches
from telekit.layout.suggestions import Moves, Suggestion, find

# What may be changed to keep a rule: one field after the other, then fields together.
DEGREES: Moves = (("dp",), ("pp",), ("cp",), ("tp",), ("tp", "pp"), ("cp", "pp"), ("tp", "cp"))
TENSOR: Moves = (("tp",),)
CONTEXT: Moves = (("cp",), ("tp",), ("cp_comm_type",), ("tp", "cp"))
EXPERTS: Moves = (("ep",), ("etp",), ("ep", "etp"))
NODE_EXPERTS: Moves = (("dispatcher",), ("ep",))
EXPERT_WIDTH: Moves = (("etp",), ("ep", "etp"))
SEQUENCE: Moves = (("tp",), ("cp",), ("sequence_parallel",), ("tp", "cp"))
BATCH: Moves = (("micro_batch",), ("global_batch",))
STAGES: Moves = (("stages",), ("vpp",), ("pp",), ("pp", "vpp"))
CHUNKS: Moves = (("vpp",), ("schedule",), ("schedule", "vpp"), ("pp",))
TWO_CHUNKS: Moves = (("vpp",),)
EVEN: Moves = (("pp",), ("tp", "pp"), ("schedule",))


@dataclass(frozen=True)
class Rule:
    """``holds(case)`` is True (or an array of bool) where the rule is kept.

    ``nearest(case)`` names values that keep it, by field; ``moves`` are the fields whose change may make the whole
    layout valid. ``say(case, suggestion)`` is how that is suggested. An empty ``field`` is the one that the
    suggestion changes; ``reads_dp`` says that the rule means nothing where ``dp`` is not known.
    """

    name: str
    field: str
    text: str
    holds: Callable[[Case], Any]
    nearest: Callable[[Case], Repair]
    moves: Moves
    say: Callable[[Case, Suggestion], str] | None = None
    reads_dp: bool = False

    def repair(self, case: Case) -> Repair:
        """Return values that make the layout valid, or where none near by do, that keep this rule."""
        return Search(case).suggestion(self).fields

    def problem(self, case: Case) -> Problem:
        """Return the broken rule, for one layout."""
        return Search(case).problem(self)


class Search:
    """Finds what to suggest for the broken rules of one layout, each change sought once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found: dict[Moves, Repair | None] = {}
        kept = {rule.name: _keeps(rule, case) for rule in RULES}
        self.rules = sorted(RULES, key=lambda rule: kept[rule.name])  # the broken ones first
        self.kept = [rule for rule in RULES if kept[rule.name] and (case.dp_known or not rule.reads_dp)]

    def suggestion(self, rule: Rule) -> Suggestion:
        """Return what makes the whole layout valid, else what keeps one rule, if it can be without breaking others."""
        if rule.moves not in self.found:
            self.found[rule.moves] = find(self.case, rule.moves, self._valid)
        found = self.found[rule.moves]
        if found is not None:
            return Suggestion(found, valid=True)
        found = find(self.case, rule.moves, lambda case: all(_keeps(r, case) for r in (rule, *self.kept)))
        return Suggestion(rule.nearest(self.case) if found is None else found, valid=False)

    def problem(self, rule: Rule) -> Problem:
        """Return a broken rule with its suggestion."""
        suggestion = self.suggestion(rule)
        hint = rule.say(self.case, suggestion) if rule.say else str(suggestion)
        field = rule.field or next(iter(suggestion.fields))
        return Problem(field, self.case.value(field), rule.text.format(**facts(self.case)), hint)

    def _valid(self, case: Case) -> bool:
        return all(_keeps(rule, case) for rule in self.rules)


def _keeps(rule: Rule, case: Case) -> bool:
    return bool(np.all(rule.holds(case)))


def say_batch(case: Case, suggestion: Suggestion) -> str:
    """Suggest the nearest global batch with the smallest of all, after a micro-batch that would do."""
    batch = Suggestion(repairs.whole_batches(case), suggestion.valid)
    least = repairs.least_batch(case)
    here = least == batch.fields["train.global_batch"]
    words = f"{batch}, the smallest {'that does' if here else f'is {least}'}"
    return f"{suggestion}; {words}" if "layout.micro_batch" in suggestion.fields else words


def say_groups(case: Case, suggestion: Suggestion) -> str:
    """As :func:`say_batch`, and what Megatron-Core makes of the present number of micro-batches."""
    m, hint = case.micro_batches, say_batch(case, suggestion)
    group = smallest_group(case.layout.pp, int(m)) if m == int(m) else None
    if group is None:
        return hint
    return f"{hint}; Megatron-Core takes M = {m:g} in groups of N = {group}, whose order is not modelled"


def _say_choices(case: Case, suggestion: Suggestion) -> str:
    kept = suggestion.fields.get("layout.stages") == repairs.recompute_choices(case)["layout.stages"]
    return repairs.say_choices(case, suggestion.valid) if kept else str(suggestion)


def _divides(values: list[int], degree: Any) -> Any:
    kept: Any = np.asarray(True)
    for value in values:
        kept = kept & (np.mod(value, degree) == 0)
    return kept


def _divides_widths(name: str) -> Callable[[Case], Any]:
    return lambda c: _divides(c.widths(name), c.layout.tp)


def _moe_needs_sequence_parallel(case: Case) -> Any:
    layout = case.layout
    return (case.model.moe is None) | layout.sequence_parallel | (layout.tp == 1) | (layout.etp == layout.tp)


def _whole_nodes_of_experts(case: Case) -> Any:
    layout, node = case.layout, case.node_devices
    whole = (np.mod(layout.ep * layout.etp, node) == 0) & (np.mod(node, layout.etp) == 0)
    return (case.model.moe is None) | (layout.dispatcher != "alltoall_deredundency") | whole


def _heads_over_cp(case: Case) -> Any:
    layout = case.layout
    dealt = _divides(case.widths("heads") + case.widths("kv_heads"), layout.tp * layout.cp)
    return (layout.cp_comm_type != "a2a") | (layout.cp == 1) | dealt


def _no_empty_chunk(case: Case) -> bool:
    layout = case.layout
    if layout.stages == "auto":
        return reaches(case.model.num_layers, layout.pp * layout.vpp)
    return not empty_parts(layout)


def _choices_fit(case: Case) -> bool:
    stages = case.layout.stages
    return stages == "auto" or all(choices_fit(cell) for row in stages for cell in row)


BASIC: tuple[Rule, ...] = (
    Rule(
        "devices",
        "",
        "{product}",
        lambda c: c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp == c.cluster.devices,
        repairs.devices,
        DEGREES,
    ),
    Rule(
        "heads",
        "layout.tp",
        "must divide the attention heads ({heads})",
        _divides_widths("heads"),
        repairs.tensor,
        TENSOR,
    ),
    Rule(  # newer releases of Megatron-Core take any tp that divides or is divided by the key/value heads
        "kv heads",
        "layout.tp",
        "must divide the key/value heads ({kv_heads}); {kv_copies} are not modelled",
        _divides_widths("kv_heads"),
        repairs.tensor,
        TENSOR,
    ),
    Rule(
        "output groups",
        "layout.tp",
        "must divide the groups of the attention's output projection ({output_groups})",
        _divides_widths("output_groups"),
        repairs.tensor,
        TENSOR,
    ),
    Rule(
        "ffn",
        "layout.tp",
        "must divide the feed-forward width ({ffn})",
        _divides_widths("ffn_hidden_size"),
        repairs.tensor,
        TENSOR,
    ),
    Rule(
        "shared experts",
        "layout.tp",
        "must divide the shared experts' width ({shared_ffn})",
        lambda c: _divides(c.moe_width("shared_ffn_hidden_size"), c.layout.tp),
        repairs.tensor,
        TENSOR,
    ),
    Rule(
        "experts",
        "layout.ep",
        "must divide the routed experts ({experts}; 0 means the model is dense)",
        lambda c: _divides(c.moe_width("num_experts") or [1], c.layout.ep),
        repairs.experts,
        EXPERTS,
    ),
    Rule(
        "expert ffn",
        "layout.etp",
        "must divide one expert's width ({expert_ffn}; 0 means the model is dense)",
        lambda c: _divides(c.moe_width("expert_ffn_hidden_size") or [1], c.layout.etp),
        repairs.expert_width,
        EXPERT_WIDTH,
    ),
    Rule(
        "expert fold",
        "layout.ep",
        "etp {etp} * ep {ep} = {fold} must divide the tp {tp} * cp {cp} * dp {dp} = {stage_devices} devices of a stage "
        "(with pp {pp}: {expert_side} must divide the {devices} devices)",
        lambda c: np.mod(c.layout.stage_devices, c.layout.ep * c.layout.etp) == 0,
        repairs.expert_fold,
        EXPERTS,
        reads_dp=True,
    ),
    Rule(  # MindFormers asks for ep >= npu_nums_per_device
        "experts over nodes",
        "layout.dispatcher",
        "alltoall_deredundency gathers tokens between nodes and exchanges them inside one: etp must divide the {node} "
        "devices of a node, and these ep {ep} * etp {etp} = {fold}",
        _whole_nodes_of_experts,
        repairs.plain_dispatcher,
        NODE_EXPERTS,
    ),
    Rule(
        "moe sequence parallel",
        "layout.sequence_parallel",
        "experts under tensor parallelism need it, else every tensor rank sends the same tokens (only with etp = tp "
        "would they not, which Megatron-Core and MindFormers refuse all the same)",
        _moe_needs_sequence_parallel,
        repairs.sequence_parallel,
        (("sequence_parallel",), ("tp",)),
    ),
    Rule(
        "expert capacity",
        "layout.moe_expert_capacity_factor",
        "below 1 tokens are dropped even when the experts share them evenly: part of the work is not done, while model "
        "FLOPs and MFU count every token",
        lambda c: (c.layout.moe_expert_capacity_factor or 1.0) >= 1.0,
        repairs.even_capacity,
        (("moe_expert_capacity_factor",),),
    ),
    Rule(
        "tp overlap",
        "layout.tp_comm_overlap",
        "needs sequence_parallel and tp above 1: only its all-gathers and reduce-scatters run beside products, an "
        "all-reduce does not",
        lambda c: (not c.layout.tp_comm_overlap) | (c.layout.sequence_parallel & (c.layout.tp > 1)),
        repairs.tensor_overlap,
        (("sequence_parallel",), ("tp_comm_overlap",)),
    ),
    Rule(
        "sequence over cp",
        "layout.cp",
        "2 * cp must divide the sequence ({seq_len}) so that causal work is shared evenly",
        lambda c: (c.layout.cp == 1) | (np.mod(c.train.seq_len, 2 * c.layout.cp) == 0),
        repairs.sequence_over_cp,
        (("cp",),),
    ),
    Rule(
        "sequence over tp",
        "layout.tp",
        "with sequence_parallel, cp * tp must divide the sequence ({seq_len})",
        lambda c: (
            (not c.layout.sequence_parallel) | (np.mod(c.train.seq_len, c.layout.cp * c.layout.tp) == 0)
        ),
        repairs.sequence_over_tp,
        SEQUENCE,
    ),
    Rule(  # Ulysses, arXiv 2309.14509, section 3.2
        "heads over cp",
        "layout.cp",
        "with cp_comm_type a2a, tp * cp = {head_ranks} must divide the attention heads ({heads}) and the key/value "
        "heads ({kv_heads}), which context ranks would get as {a2a_split}; p2p does not deal out heads",
        _heads_over_cp,
        repairs.heads_over_cp,
        CONTEXT,
    ),
    Rule(
        "context exchange",
        "layout.cp",
        "must be 1: how context ranks share {not_exchanged} is not modelled",
        lambda c: (not not_exchanged(c.model)) | (c.layout.cp == 1),
        repairs.one_context_rank,
        (("cp",),),
    ),
    Rule(
        "batch",
        "layout.micro_batch",
        "dp {dp} * micro_batch = {batch_unit} must divide the global batch ({global_batch})",
        lambda c: np.mod(c.train.global_batch, c.layout.dp * c.layout.micro_batch) == 0,
        repairs.whole_batches,
        BATCH,
        say_batch,
        reads_dp=True,
    ),
    Rule(
        "stages shape",
        "layout.stages",
        "must be {vpp} chunks (vpp) of {pp} stages (pp)",
        lambda c: shape_fits(c.layout),
        repairs.even_stages,
        STAGES,
    ),
    Rule(
        "stages sum",
        "layout.stages",
        "places {placed} layers; the model has {layers} (MTP modules stand with the output head and are not counted)",
        lambda c: c.layout.stages == "auto" or placed_layers(c.layout) == c.model.num_layers,
        repairs.even_stages,
        STAGES,
    ),
    Rule(
        "stages recompute",
        "layout.stages",
        "a chunk cannot recompute more layers than it holds, and a list needs one choice a layer",
        _choices_fit,
        repairs.recompute_choices,
        STAGES,
        _say_choices,
    ),
    Rule(  # Megatron-LM issue 1852: an empty part in between makes its pipeline wait for ever
        "empty chunk",
        "layout.stages",
        "{empty}; only the first and the last part may be empty",
        _no_empty_chunk,
        repairs.even_stages,
        STAGES,
    ),
)


def _holds_for(holds: ScheduleHolds) -> Callable[[Case], Any]:
    return lambda c: holds(c.layout.schedule, c.layout.pp, c.layout.vpp, c.micro_batches)


SCHEDULE: dict[str, tuple[Callable[[Case], Repair], Moves]] = {
    "one chunk": (repairs.one_chunk, CHUNKS),
    "two chunks": (repairs.two_chunks, TWO_CHUNKS),
    "interleaving": (repairs.interleaving, CHUNKS),
    "even stages": (repairs.even_pp, EVEN),
}
"""Repair of each rule of :data:`telekit.layout.schedules.RULES` that is not about micro-batches."""


def _schedule_rules() -> Iterator[Rule]:
    for name, field, text, holds in SCHEDULE_RULES:
        named, at, rule = f"schedule: {name}", f"layout.{field}", _holds_for(holds)
        if field == "micro_batch":
            say = say_groups if name.startswith("interleaved") else say_batch
            yield Rule(named, at, text, rule, repairs.whole_batches, BATCH, say, reads_dp=True)
        else:
            yield Rule(named, at, text, rule, *SCHEDULE[name])


RULES: tuple[Rule, ...] = (*BASIC, *_schedule_rules())


def check(case: Case) -> tuple[Problem, ...]:
    """Every rule that one layout breaks, in the order of :data:`RULES`.

    Where nobody wrote ``dp`` and the other degrees leave no whole one, rules about it are not asked.
    """
    broken = [rule for rule in RULES if not _keeps(rule, case)]
    if not broken:
        return ()
    search = Search(case)
    return tuple(search.problem(rule) for rule in broken if case.dp_known or not rule.reads_dp)


def broken_rows(case: Case) -> dict[str, NDArray[np.bool_]]:
    """Rows of a table that break each rule, shape (n,); rules that every row keeps are left out."""
    rows = len(case.layout)
    found: dict[str, NDArray[np.bool_]] = {}
    for rule in RULES:
        broken = ~np.broadcast_to(np.asarray(rule.holds(case)), (rows, 1))[:, 0]
        if broken.any():
            found[rule.name] = broken
    return found


def check_table(case: Case) -> tuple[Any, dict[str, int]]:
    """Which rows of a table are valid, and how many break each rule.

    Returns
    -------
    valid : ndarray of bool, shape (n,)
    rejected : dict
        Rows that break each rule; a row that breaks several is counted at each.
    """
    broken = broken_rows(case)
    valid = np.ones(len(case.layout), dtype=bool)
    for rows in broken.values():
        valid &= ~rows
    return valid, {name: int(rows.sum()) for name, rows in broken.items()}
