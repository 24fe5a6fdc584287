"""For each rule, a nearby value that keeps it: what a message suggests.

A repair is a mapping of field to value (``{"layout.tp": 2}``), so that it can be applied as well as said. It keeps
its own rule for sure, and where it can the other rules of the same fields too: every repair of ``tp`` divides
everything that ``tp`` must divide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

from telekit.layout.case import MOST_SHOWN, Case, places
from telekit.layout.config import StageLayers
from telekit.layout.schedules import RULES as SCHEDULE_RULES
from telekit.layout.schedules import TWO_CHUNKS, smallest_group
from telekit.layout.stages import even_split

Repair = dict[str, Any]


def nearest_divisor(number: int, value: int) -> int:
    """Divisor of ``number`` nearest to ``value`` (the smaller of two equally near)."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return min({*small, *(number // d for d in small)}, key=lambda d: (abs(d - value), d))


def say(repair: Mapping[str, Any]) -> str:
    """Write a repair as a suggestion (``tp 2 works``)."""
    parts = [f"{field.split('.')[1]} {_plain(value)}" for field, value in repair.items()]
    return f"{' and '.join(parts)} work{'s' if len(parts) == 1 else ''}" if parts else ""


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _common(values: list[int]) -> int:
    return gcd(*values) if values else 1


def tensor_limit(case: Case) -> int:
    """Return the number that every tensor-parallel degree must divide."""
    names = ("heads", "kv_heads", "output_groups", "ffn_hidden_size")
    widths = [w for name in names for w in case.widths(name)]
    return _common(widths + case.moe_width("shared_ffn_hidden_size"))


def devices(case: Case) -> Repair:
    """Name the ``dp`` that uses every device, with the nearest ``tp``, ``pp`` and ``cp`` that allow one."""
    total, x, repair = case.cluster.devices, case.layout, Repair()
    left = total
    if total % (x.tp * x.cp * x.pp):
        limits = {"tp": tensor_limit(case), "pp": total, "cp": total}
        for name, limit in limits.items():
            degree = nearest_divisor(gcd(left, limit), getattr(x, name))
            left //= degree
            if degree != getattr(x, name):
                repair[f"layout.{name}"] = degree
    else:
        left //= x.tp * x.cp * x.pp
    return repair | {"layout.dp": left}


def tensor(case: Case) -> Repair:
    """Name the nearest ``tp`` that divides heads and widths alike."""
    return {"layout.tp": nearest_divisor(tensor_limit(case), case.layout.tp)}


def experts(case: Case) -> Repair:
    """Name the nearest ``ep`` that divides the experts, and folds over the stage's devices if ``etp`` allows any."""
    layout, limit = case.layout, _common(case.moe_width("num_experts"))
    if layout.stage_devices % layout.etp == 0:
        limit = gcd(limit, layout.stage_devices // layout.etp)
    return {"layout.ep": nearest_divisor(limit, layout.ep)}


def expert_width(case: Case) -> Repair:
    """Name the nearest ``etp`` that divides one expert's width and the stage's devices."""
    limit = gcd(_common(case.moe_width("expert_ffn_hidden_size")), case.layout.stage_devices)
    return {"layout.etp": nearest_divisor(limit, case.layout.etp)}


def expert_fold(case: Case) -> Repair:
    """Name the nearest ``ep`` that folds over the stage's devices; another ``etp`` where that is what does not."""
    if case.layout.stage_devices % case.layout.etp == 0:
        return experts(case)
    repair = expert_width(case)
    return repair | experts(case.changed(repair))


def sequence_over_cp(case: Case) -> Repair:
    """Name the nearest ``cp`` that cuts the sequence into 2 * cp equal pieces."""
    seq_len = case.train.seq_len
    return {"layout.cp": nearest_divisor(seq_len // 2 if seq_len % 2 == 0 else 1, case.layout.cp)}


def sequence_over_tp(case: Case) -> Repair:
    """Name the nearest ``tp`` that cuts a context rank's tokens evenly; another ``cp`` where that is what does not."""
    repair = Repair() if case.train.seq_len % case.layout.cp == 0 else sequence_over_cp(case)
    tokens = case.train.seq_len // repair.get("layout.cp", case.layout.cp)
    return repair | {"layout.tp": nearest_divisor(gcd(tokens, tensor_limit(case)), case.layout.tp)}


def heads_over_cp(case: Case) -> Repair:
    """Name the nearest ``cp`` that deals out a tensor rank's heads; another ``tp`` where that is what does not."""
    heads = _common(case.widths("heads") + case.widths("kv_heads"))
    repair = Repair() if heads % case.layout.tp == 0 else tensor(case)
    limit = heads // repair.get("layout.tp", case.layout.tp)
    fitting = nearest_divisor(gcd(limit, max(case.train.seq_len // 2, 1)), case.layout.cp)
    return repair | {"layout.cp": fitting}


def one_context_rank(case: Case) -> Repair:
    """Give up context parallelism."""
    return {"layout.cp": 1}


def sequence_parallel(case: Case) -> Repair:
    """Turn sequence parallelism on."""
    return {"layout.sequence_parallel": True}


def tensor_overlap(case: Case) -> Repair:
    """Turn sequence parallelism on, where there is anything to overlap."""
    return sequence_parallel(case) if case.layout.tp > 1 else {"layout.tp_comm_overlap": False}


def whole_batches(case: Case) -> Repair:
    """Name the nearest global batch whose micro-batches are whole and suit the schedule."""
    there = case.micro_batches
    nearest = min(_possible_counts(case), key=lambda m: (abs(m - there), m))
    return {"train.global_batch": nearest * case.layout.dp * case.layout.micro_batch}


def say_batch(case: Case) -> str:
    """Suggest the nearest global batch, and say the smallest of all."""
    nearest = whole_batches(case)
    least = _possible_counts(case)[0] * case.layout.dp * case.layout.micro_batch
    here = least == nearest["train.global_batch"]
    return f"{say(nearest)}, the smallest {'that does' if here else f'is {least}'}"


def say_groups(case: Case) -> str:
    """As :func:`say_batch`, and what Megatron-Core makes of the present number of micro-batches."""
    m, hint = case.micro_batches, say_batch(case)
    group = smallest_group(case.layout.pp, int(m)) if m == int(m) else None
    if group is None:
        return hint
    return f"{hint}; Megatron-Core takes M = {m:g} in groups of N = {group}, whose order is not modelled"


def _possible_counts(case: Case) -> list[int]:
    """List numbers of micro-batches that the schedule takes: the least one, and the nearest on both sides.

    Schedules ask for whole groups of ``pp``, for an even number, for ``pp`` or ``2 * pp`` at least.
    """
    layout, there = case.layout, int(case.micro_batches)
    group = there // layout.pp * layout.pp
    near = {there - 1, there, there + 1, there + 2, group, group + layout.pp}
    rules = [holds for _, field, _, holds in SCHEDULE_RULES if field == "micro_batch"]
    return [
        m
        for m in sorted(near | {1, layout.pp, 2 * layout.pp})
        if m > 0 and all(holds(layout.schedule, layout.pp, layout.vpp, m) for holds in rules)
    ]


def even_stages(case: Case) -> Repair:
    """Spread layers evenly, written out where that is short; fewer parts where there are not enough layers."""
    layout, layers = case.layout, case.model.num_layers
    parts = layout.pp * layout.vpp
    if parts > layers:
        return fewer_parts(case)
    if parts > MOST_SHOWN:
        return {"layout.stages": "auto"}
    rows = [[0] * layout.pp for _ in range(layout.vpp)]
    for (chunk, stage), held in zip(places(layout), even_split(layers, parts), strict=True):
        rows[chunk][stage] = held
    return {"layout.stages": rows}


def fewer_parts(case: Case) -> Repair:
    """Name the most chunks that the layers fill; fewer stages where even the fewest chunks are too many."""
    layout, layers = case.layout, case.model.num_layers
    least = 2 if layout.schedule in (*TWO_CHUNKS, "interleaved-1f1b") else 1
    if layers < least:
        return {"layout.schedule": "1f1b", "layout.pp": 1, "layout.vpp": 1} | _auto(layout)
    pp = min(layout.pp, layers // least)
    vpp = least if layout.schedule in TWO_CHUNKS else max(min(layout.vpp, layers // pp), least)
    changed = {"layout.pp": pp, "layout.vpp": vpp}
    return {k: v for k, v in changed.items() if v != case.value(k)} | _auto(layout)


def _auto(layout: Any) -> Repair:
    return {} if layout.stages == "auto" else {"layout.stages": "auto"}


def recompute_choices(case: Case) -> Repair:
    """Keep the stages, each chunk's recompute choices cut (or filled up with none) to the layers it holds."""
    return {"layout.stages": [[_fitting(cell) for cell in row] for row in case.layout.stages]}


def say_choices(case: Case) -> str:
    """Suggest what the first chunk whose choices do not fit could recompute."""
    for chunk, row in enumerate(case.layout.stages):
        for stage, cell in enumerate(row):
            fitting = _fitting(cell)["recompute"]
            if fitting != (list(cell.recompute) if isinstance(cell.recompute, tuple) else cell.recompute):
                shown = fitting if len(fitting) <= MOST_SHOWN else f"{cell.layers} choices"
                return f"chunk {chunk} of stage {stage} holds {cell.layers} layers: recompute {shown} works"
    return ""


def _fitting(cell: StageLayers) -> dict[str, Any]:
    chosen: Any = cell.recompute
    if isinstance(chosen, tuple):
        chosen = [*chosen[: cell.layers], *["none"] * (cell.layers - len(chosen))]
    elif isinstance(chosen, dict):
        left, cut = cell.layers, {}
        for option, count in chosen.items():
            cut[option] = min(count, left)
            left -= cut[option]
        chosen = cut
    return {"layers": cell.layers, "recompute": chosen}


def one_chunk(case: Case) -> Repair:
    """Hold one chunk a device."""
    return {"layout.vpp": 1}


def two_chunks(case: Case) -> Repair:
    """Hold two chunks a device."""
    return {"layout.vpp": 2}


def interleaving(case: Case) -> Repair:
    """Hold two chunks a device, or no interleaving where there is one stage."""
    if case.layout.pp > 1:
        return two_chunks(case)
    return {"layout.schedule": "1f1b"} | ({"layout.vpp": 1} if case.layout.vpp > 1 else {})


def even_pp(case: Case) -> Repair:
    """Name the nearest even number of stages, one that divides the devices where there is one."""
    layout, total = case.layout, case.cluster.devices
    left = total // (layout.tp * layout.cp)
    if total % (layout.tp * layout.cp) or left % 2:
        return {"layout.pp": layout.pp + 1}
    pp = 2 * nearest_divisor(left // 2, layout.pp // 2)
    return {"layout.pp": pp, "layout.dp": left // pp}


SCHEDULE: dict[str, tuple[Callable[[Case], Repair], Callable[[Case], str] | None]] = {
    "one chunk": (one_chunk, None),
    "two chunks": (two_chunks, None),
    "interleaving": (interleaving, None),
    "interleaved micro-batches": (whole_batches, say_groups),
    "even stages": (even_pp, None),
    "two-ended micro-batches": (whole_batches, say_batch),
    "zero-bubble micro-batches": (whole_batches, say_batch),
}
"""Repair of each rule of :data:`telekit.layout.schedules.RULES`, and its words where they are its own."""
