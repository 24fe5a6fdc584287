"""When a layout is valid: each rule a small predicate with its reason and a value that would work.

A predicate reads the layout's attributes, so it answers for one layout or for every row of a table. Reasons are
made for one layout only. Sources: Megatron-Core's argument checks and parallel-state construction
(``megatron/training/arguments.py``, ``megatron/core/parallel_state.py``), unless a rule names another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from telekit.cluster.config import ClusterConfig
from telekit.errors import Problem
from telekit.layout.schedules import RULES as SCHEDULE_RULES
from telekit.layout.schedules import Holds as ScheduleHolds
from telekit.layout.stages import part_positions
from telekit.model.config import ModelConfig
from telekit.training.config import TrainConfig


@dataclass(frozen=True)
class Case:
    """A layout (one, or a table) in its surroundings."""

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: Any

    @property
    def micro_batches(self) -> Any:
        """Micro-batches of one data-parallel rank in one step."""
        return self.train.global_batch / (self.layout.dp * self.layout.micro_batch)

    def widths(self, name: str) -> list[int]:
        """Distinct values of an attention or feed-forward field over the model's layer kinds."""
        found = {getattr(part, name, 0) for kind in self.model.kinds for part in (kind.attention, kind.mlp)}
        return sorted(found - {0})


@dataclass(frozen=True)
class Rule:
    """``holds(case)`` is True (or an array of bool) where the rule is kept."""

    name: str
    field: str
    text: str
    holds: Callable[[Case], Any]
    suggest: Callable[[Case], str] = lambda case: ""

    def problem(self, case: Case) -> Problem:
        """Return the broken rule, for one layout."""
        value: Any = case.layout
        for part in self.field.split(".")[1:]:
            value = getattr(value, part)
        if self.field == "layout.stages" and value != "auto":
            value = [[cell.layers for cell in row] for row in value]
        return Problem(self.field, value, self.text.format(**_facts(case)), self.suggest(case))


def _facts(case: Case) -> dict[str, Any]:
    layout, moe = case.layout, case.model.moe
    return {
        "heads": _words(case.widths("heads")),
        "kv_heads": _words(case.widths("kv_heads")),
        "ffn": _words(case.widths("ffn_hidden_size")),
        "expert_ffn": moe.expert_ffn_hidden_size if moe else 0,
        "shared_ffn": moe.shared_ffn_hidden_size if moe else 0,
        "experts": moe.num_experts if moe else 0,
        "devices": case.cluster.devices,
        "layers": case.model.num_layers,
        "parts": layout.pp * layout.vpp,
        "seq_len": case.train.seq_len,
        "global_batch": case.train.global_batch,
        "model_parallel": layout.tp * layout.cp * layout.pp,
        "fold": layout.ep * layout.etp,
        "stage_devices": layout.tp * layout.cp * layout.dp,
        "batch_unit": layout.dp * layout.micro_batch,
        "micro_batches": f"{case.micro_batches:g}",
        "placed": _placed(layout),
        "schedule": layout.schedule,
        "pp": layout.pp,
        "vpp": layout.vpp,
    }


def _words(values: list[int]) -> str:
    return ", ".join(map(str, values)) or "none"


def _divides(values: list[int], degree: Any) -> Any:
    kept: Any = np.asarray(True)
    for value in values:
        kept = kept & (np.mod(value, degree) == 0)
    return kept


def _common(values: list[int]) -> int:
    return gcd(*values) if values else 1


def nearest_divisor(number: int, value: int) -> int:
    """Divisor of ``number`` nearest to ``value`` (the smaller of two equally near)."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return min({*small, *(number // d for d in small)}, key=lambda d: (abs(d - value), d))


def _tensor_limit(case: Case) -> int:
    """Return the number that every tensor-parallel degree must divide."""
    widths = [w for name in ("heads", "kv_heads", "ffn_hidden_size") for w in case.widths(name)]
    return _common(widths + _moe(case, "shared_ffn_hidden_size"))


def _try(name: str, number: Callable[[Case], int]) -> Callable[[Case], str]:
    def suggest(case: Case) -> str:
        limit = number(case)
        return f"{name} {nearest_divisor(limit, getattr(case.layout, name))} works" if limit else ""

    return suggest


def _placed(layout: Any) -> int:
    return 0 if layout.stages == "auto" else sum(cell.layers for row in layout.stages for cell in row)


def _shape_fits(case: Case) -> bool:
    layout = case.layout
    return layout.stages == "auto" or (
        len(layout.stages) == layout.vpp and all(len(row) == layout.pp for row in layout.stages)
    )


def _no_empty_chunk(case: Case) -> bool:
    layout = case.layout
    if layout.stages == "auto":
        return bool(layout.pp * layout.vpp <= case.model.num_layers)
    if not _shape_fits(case):
        return True
    positions = part_positions(layout.schedule, layout.pp, layout.vpp)
    inner = positions[1:-1] if len(positions) > 1 else positions
    return all(layout.stages[v][s].layers > 0 for v, s in inner)


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


def _moe(case: Case, name: str) -> list[int]:
    value = getattr(case.model.moe, name, 0) if case.model.moe else 0
    return [value] if value else []


def _moe_needs_sequence_parallel(case: Case) -> Any:
    layout = case.layout
    return (case.model.moe is None) | layout.sequence_parallel | (layout.tp == 1) | (layout.etp == layout.tp)


BASIC: tuple[Rule, ...] = (
    Rule(
        "devices",
        "layout.dp",
        "tp * cp * pp * dp must be the {devices} devices, and tp * cp * pp is {model_parallel}",
        lambda c: c.layout.tp * c.layout.cp * c.layout.pp * c.layout.dp == c.cluster.devices,
        lambda c: f"tp * cp * pp must divide {c.cluster.devices}; dp, left out, is then what remains",
    ),
    Rule(
        "heads",
        "layout.tp",
        "must divide the attention heads ({heads})",
        lambda c: _divides(c.widths("heads"), c.layout.tp),
        _try("tp", _tensor_limit),
    ),
    Rule(
        "kv heads",
        "layout.tp",
        "must divide the key/value heads ({kv_heads}); copies of them are not modelled",
        lambda c: _divides(c.widths("kv_heads"), c.layout.tp),
        _try("tp", _tensor_limit),
    ),
    Rule(
        "ffn",
        "layout.tp",
        "must divide the feed-forward width ({ffn})",
        lambda c: _divides(c.widths("ffn_hidden_size"), c.layout.tp),
        _try("tp", _tensor_limit),
    ),
    Rule(
        "shared experts",
        "layout.tp",
        "must divide the shared experts' width ({shared_ffn})",
        lambda c: _divides(_moe(c, "shared_ffn_hidden_size"), c.layout.tp),
        _try("tp", _tensor_limit),
    ),
    Rule(
        "experts",
        "layout.ep",
        "must divide the routed experts ({experts}; 0 means the model is dense)",
        lambda c: _divides(_moe(c, "num_experts") or [1], c.layout.ep),
        _try("ep", lambda c: _common(_moe(c, "num_experts"))),
    ),
    Rule(
        "expert ffn",
        "layout.etp",
        "must divide one expert's width ({expert_ffn}; 0 means the model is dense)",
        lambda c: _divides(_moe(c, "expert_ffn_hidden_size") or [1], c.layout.etp),
        _try("etp", lambda c: _common(_moe(c, "expert_ffn_hidden_size"))),
    ),
    Rule(
        "expert fold",
        "layout.ep",
        "ep * etp = {fold} must divide the {stage_devices} devices of a stage (tp * cp * dp)",
        lambda c: np.mod(c.layout.stage_devices, c.layout.ep * c.layout.etp) == 0,
        _try("ep", lambda c: c.layout.stage_devices // gcd(c.layout.stage_devices, c.layout.etp)),
    ),
    Rule(
        "moe sequence parallel",
        "layout.sequence_parallel",
        "experts under tensor parallelism need it, or etp = tp: else every tensor rank sends the same tokens",
        _moe_needs_sequence_parallel,
        lambda c: "set it to true, or tp to 1, or etp to tp",
    ),
    Rule(
        "sequence over cp",
        "layout.cp",
        "2 * cp must divide the sequence ({seq_len}) so that causal work is shared evenly",
        lambda c: (c.layout.cp == 1) | (np.mod(c.train.seq_len, 2 * c.layout.cp) == 0),
        _try("cp", lambda c: c.train.seq_len // 2),
    ),
    Rule(
        "sequence over tp",
        "layout.tp",
        "with sequence_parallel, cp * tp must divide the sequence ({seq_len})",
        lambda c: (
            (not c.layout.sequence_parallel) | (np.mod(c.train.seq_len, c.layout.cp * c.layout.tp) == 0)
        ),
        _try("tp", lambda c: c.train.seq_len // gcd(c.train.seq_len, c.layout.cp)),
    ),
    Rule(
        "batch",
        "layout.micro_batch",
        "dp * micro_batch = {batch_unit} must divide the global batch ({global_batch})",
        lambda c: np.mod(c.train.global_batch, c.layout.dp * c.layout.micro_batch) == 0,
        lambda c: f"a global_batch that is a multiple of {c.layout.dp * c.layout.micro_batch} works",
    ),
    Rule(
        "stages shape",
        "layout.stages",
        "must be {vpp} chunks (vpp) of {pp} stages (pp)",
        _shape_fits,
        lambda c: "or use auto",
    ),
    Rule(
        "stages sum",
        "layout.stages",
        "places {placed} layers; the model has {layers}",
        lambda c: c.layout.stages == "auto" or _placed(c.layout) == c.model.num_layers,
        lambda c: "MTP modules are not counted: they stand with the output head",
    ),
    Rule(
        "stages recompute",
        "layout.stages",
        "a chunk cannot recompute more layers than it holds, and a list needs one choice a layer",
        _choices_fit,
    ),
    Rule(
        "empty chunk",
        "layout.stages",
        "{layers} layers leave a chunk without one ({parts} chunks); only the first and last may be empty",
        _no_empty_chunk,
        lambda c: f"pp * vpp up to {c.model.num_layers} works",
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
        )
        for name, field, text, holds in SCHEDULE_RULES
    )


RULES: tuple[Rule, ...] = BASIC + _schedule_rules()


def check(case: Case) -> tuple[Problem, ...]:
    """Every rule that one layout breaks, in the order of :data:`RULES`."""
    return tuple(rule.problem(case) for rule in RULES if not bool(np.all(rule.holds(case))))


def check_table(case: Case) -> tuple[Any, dict[str, int]]:
    """Which rows of a table are valid, and how many break each rule.

    Returns
    -------
    valid : ndarray of bool, shape (n,)
    rejected : dict
        Rows that break each rule; a row that breaks several is counted at each.
    """
    rows = len(case.layout)
    valid = np.ones(rows, dtype=bool)
    rejected: dict[str, int] = {}
    for rule in RULES:
        kept = np.broadcast_to(np.asarray(rule.holds(case)), (rows, 1))[:, 0]
        if not kept.all():
            rejected[rule.name] = int((~kept).sum())
            valid &= kept
    return valid, rejected
