"""When a layout is valid: each rule a small predicate with its reason and a value that would work.

A predicate reads the layout's attributes, so it answers for one layout or for every row of a table. Reasons are
made for one layout only. Sources: Megatron-Core's argument checks and parallel-state construction
(``megatron/training/arguments.py``, ``megatron/core/parallel_state.py``), unless a rule names another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.errors import Problem
from telekit.layout import repairs
from telekit.layout.case import Case as Case
from telekit.layout.case import empty_parts, facts, not_exchanged, placed_layers, shape_fits
from telekit.layout.repairs import Repair
from telekit.layout.schedules import RULES as SCHEDULE_RULES
from telekit.layout.schedules import Holds as ScheduleHolds


@dataclass(frozen=True)
class Rule:
    """``holds(case)`` is True (or an array of bool) where the rule is kept.

    ``repair(case)`` names nearby values that keep it, by field; ``say(case)`` is how they are suggested.
    """

    name: str
    field: str
    text: str
    holds: Callable[[Case], Any]
    repair: Callable[[Case], Repair]
    say: Callable[[Case], str] | None = None

    def problem(self, case: Case) -> Problem:
        """Return the broken rule, for one layout."""
        hint = self.say(case) if self.say else repairs.say(self.repair(case))
        return Problem(self.field, case.value(self.field), self.text.format(**facts(case)), hint)


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


def _heads_over_cp(case: Case) -> Any:
    layout = case.layout
    dealt = _divides(case.widths("heads") + case.widths("kv_heads"), layout.tp * layout.cp)
    return (layout.cp_comm_type != "a2a") | (layout.cp == 1) | dealt


def _no_empty_chunk(case: Case) -> bool:
    layout = case.layout
    if layout.stages == "auto":
        return bool(layout.pp * layout.vpp <= case.model.num_layers)
    return not empty_parts(layout)


def _choices_fit(case: Case) -> bool:
    layout = case.layout
    if layout.stages == "auto":
        return True
    for cell in (cell for row in layout.stages for cell in row):
        if isinstance(cell.recompute, dict) and sum(cell.recompute.values()) > cell.layers:
            return False
        if isinstance(cell.recompute, tuple) and len(cell.recompute) != cell.layers:
            return False
    return True


BASIC: tuple[Rule, ...] = (
    Rule(
        "devices",
        "layout.dp",
        "tp {tp} * cp {cp} * pp {pp} * dp {dp} = {dense} must be the {devices} devices (ep {ep} and etp {etp} fold "
        "over them); tp * cp * pp must divide them, and dp, left out, is what remains",
        lambda c: c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp == c.cluster.devices,
        repairs.devices,
    ),
    Rule(
        "heads",
        "layout.tp",
        "must divide the attention heads ({heads})",
        _divides_widths("heads"),
        repairs.tensor,
    ),
    Rule(  # newer releases of Megatron-Core take any tp that divides or is divided by the key/value heads
        "kv heads",
        "layout.tp",
        "must divide the key/value heads ({kv_heads}); {kv_copies} are not modelled",
        _divides_widths("kv_heads"),
        repairs.tensor,
    ),
    Rule(
        "output groups",
        "layout.tp",
        "must divide the groups of the attention's output projection ({output_groups})",
        _divides_widths("output_groups"),
        repairs.tensor,
    ),
    Rule(
        "ffn",
        "layout.tp",
        "must divide the feed-forward width ({ffn})",
        _divides_widths("ffn_hidden_size"),
        repairs.tensor,
    ),
    Rule(
        "shared experts",
        "layout.tp",
        "must divide the shared experts' width ({shared_ffn})",
        lambda c: _divides(c.moe_width("shared_ffn_hidden_size"), c.layout.tp),
        repairs.tensor,
    ),
    Rule(
        "experts",
        "layout.ep",
        "must divide the routed experts ({experts}; 0 means the model is dense)",
        lambda c: _divides(c.moe_width("num_experts") or [1], c.layout.ep),
        repairs.experts,
    ),
    Rule(
        "expert ffn",
        "layout.etp",
        "must divide one expert's width ({expert_ffn}; 0 means the model is dense)",
        lambda c: _divides(c.moe_width("expert_ffn_hidden_size") or [1], c.layout.etp),
        repairs.expert_width,
    ),
    Rule(
        "expert fold",
        "layout.ep",
        "etp {etp} * ep {ep} = {fold} must divide the tp {tp} * cp {cp} * dp {dp} = {stage_devices} devices of a stage "
        "(with pp {pp}: {expert_side} must divide the {devices} devices)",
        lambda c: np.mod(c.layout.stage_devices, c.layout.ep * c.layout.etp) == 0,
        repairs.expert_fold,
    ),
    Rule(
        "moe sequence parallel",
        "layout.sequence_parallel",
        "experts under tensor parallelism need it, or etp = tp: else every tensor rank sends the same tokens",
        _moe_needs_sequence_parallel,
        repairs.sequence_parallel,
        lambda c: "set it to true, or tp to 1, or etp to tp",
    ),
    Rule(
        "tp overlap",
        "layout.tp_comm_overlap",
        "needs sequence_parallel and tp above 1: only its all-gathers and reduce-scatters run beside products, an "
        "all-reduce does not",
        lambda c: (not c.layout.tp_comm_overlap) | (c.layout.sequence_parallel & (c.layout.tp > 1)),
        repairs.tensor_overlap,
    ),
    Rule(
        "sequence over cp",
        "layout.cp",
        "2 * cp must divide the sequence ({seq_len}) so that causal work is shared evenly",
        lambda c: (c.layout.cp == 1) | (np.mod(c.train.seq_len, 2 * c.layout.cp) == 0),
        repairs.sequence_over_cp,
    ),
    Rule(
        "sequence over tp",
        "layout.tp",
        "with sequence_parallel, cp * tp must divide the sequence ({seq_len})",
        lambda c: (
            (not c.layout.sequence_parallel) | (np.mod(c.train.seq_len, c.layout.cp * c.layout.tp) == 0)
        ),
        repairs.sequence_over_tp,
    ),
    Rule(  # Ulysses, arXiv 2309.14509, section 3.2
        "heads over cp",
        "layout.cp",
        "with cp_comm_type a2a, tp * cp = {head_ranks} must divide the attention heads ({heads}) and the key/value "
        "heads ({kv_heads}), which context ranks would get as {a2a_split}; p2p does not deal out heads",
        _heads_over_cp,
        repairs.heads_over_cp,
    ),
    Rule(
        "context exchange",
        "layout.cp",
        "must be 1: how context ranks share {not_exchanged} is not modelled",
        lambda c: (not not_exchanged(c.model)) | (c.layout.cp == 1),
        repairs.one_context_rank,
    ),
    Rule(
        "batch",
        "layout.micro_batch",
        "dp {dp} * micro_batch = {batch_unit} must divide the global batch ({global_batch})",
        lambda c: np.mod(c.train.global_batch, c.layout.dp * c.layout.micro_batch) == 0,
        repairs.whole_batches,
        repairs.say_batch,
    ),
    Rule(
        "stages shape",
        "layout.stages",
        "must be {vpp} chunks (vpp) of {pp} stages (pp)",
        lambda c: shape_fits(c.layout),
        repairs.even_stages,
    ),
    Rule(
        "stages sum",
        "layout.stages",
        "places {placed} layers; the model has {layers} (MTP modules stand with the output head and are not counted)",
        lambda c: c.layout.stages == "auto" or placed_layers(c.layout) == c.model.num_layers,
        repairs.even_stages,
    ),
    Rule(
        "stages recompute",
        "layout.stages",
        "a chunk cannot recompute more layers than it holds, and a list needs one choice a layer",
        _choices_fit,
        repairs.recompute_choices,
        repairs.say_choices,
    ),
    Rule(  # Megatron-LM issue 1852: an empty part in between makes its pipeline wait for ever
        "empty chunk",
        "layout.stages",
        "{empty}; only the first and the last part may be empty",
        _no_empty_chunk,
        repairs.even_stages,
    ),
)


def _holds_for(holds: ScheduleHolds) -> Callable[[Case], Any]:
    return lambda c: holds(c.layout.schedule, c.layout.pp, c.layout.vpp, c.micro_batches)


def _schedule_rules() -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"schedule: {name}",
            f"layout.{field}",
            text,
            _holds_for(holds),
            *repairs.SCHEDULE[name],
        )
        for name, field, text, holds in SCHEDULE_RULES
    )


RULES: tuple[Rule, ...] = BASIC + _schedule_rules()


def check(case: Case) -> tuple[Problem, ...]:
    """Every rule that one layout breaks, in the order of :data:`RULES`."""
    return tuple(rule.problem(case) for rule in RULES if not bool(np.all(rule.holds(case))))


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
