"""For each rule, the nearest values that keep it, whatever the other rules say.

A repair is a mapping of field to value (``{"layout.tp": 2}``), so that it can be applied as well as said. It keeps
its own rule for sure, and where it can the other rules of the same fields too: every repair of ``tp`` divides
everything that ``tp`` must divide. What makes a whole layout valid is sought by
:mod:`telekit.layout.suggestions`, which falls back on these.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from telekit.layout.case import Case, places
from telekit.layout.config import StageLayers
from telekit.layout.schedules import RULES as SCHEDULE_RULES
from telekit.layout.schedules import TWO_CHUNKS
from telekit.layout.stages import MOST_SHOWN, even_split, reaches

Repair = dict[str, Any]


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest_divisor(number: int, value: int) -> int:
    """Divisor of ``number`` nearest to ``value`` (the smaller of two equally near)."""
    return min(divisors(number), key=lambda d: (abs(d - value), d))


def tensor_limit(case: Case) -> int:
    """Return the number that every tensor-parallel degree must divide; 0 where anything goes."""
    names = ("heads", "kv_heads", "output_groups", "ffn_hidden_size")
    widths = [w for name in names for w in case.widths(name)]
    return gcd(*widths, *case.moe_width("shared_ffn_hidden_size"))


def context_limit(case: Case) -> int:
    """Return the number that every context-parallel degree must divide."""
    seq_len = case.train.seq_len
    return seq_len // 2 if seq_len % 2 == 0 else 1


def expert_limit(case: Case) -> int:
    """Return the number that every expert-parallel degree must divide."""
    return gcd(*case.moe_width("num_experts")) or 1


def expert_width_limit(case: Case) -> int:
    """Return the number that every expert-tensor degree must divide."""
    return gcd(*case.moe_width("expert_ffn_hidden_size")) or 1


def devices(case: Case) -> Repair:
    """Name a degree that lets the product divide the devices, or all three where one is not enough."""
    total, x, repair = case.cluster.devices, case.layout, Repair()
    limits = {"pp": total, "cp": context_limit(case), "tp": tensor_limit(case)}
    made = x.tp * x.cp * x.pp
    if total % made == 0:
        return {"layout.dp": total // made}
    alone = [name for name in limits if total % (made // getattr(x, name)) == 0]
    wrong = alone[:1] or list(limits)
    left = total // (made // prod(getattr(x, name) for name in wrong))
    for name in wrong:
        degree = nearest_divisor(gcd(left, limits[name]), getattr(x, name))
        left //= degree
        if degree != getattr(x, name):
            repair[f"layout.{name}"] = degree
    return repair if case.dp_follows else repair | {"layout.dp": left}


def tensor(case: Case) -> Repair:
    """Name the nearest ``tp`` that divides heads and widths alike."""
    return {"layout.tp": nearest_divisor(tensor_limit(case), case.layout.tp)}


def experts(case: Case) -> Repair:
    """Name the nearest ``ep`` that divides the experts, and folds over the stage's devices if ``etp`` allows any."""
    layout, limit = case.layout, expert_limit(case)
    if layout.stage_devices % layout.etp == 0:
        limit = gcd(limit, layout.stage_devices // layout.etp)
    return {"layout.ep": nearest_divisor(limit, layout.ep)}


def expert_width(case: Case) -> Repair:
    """Name the nearest ``etp`` that divides one expert's width and the stage's devices."""
    limit = gcd(expert_width_limit(case), case.layout.stage_devices)
    return {"layout.etp": nearest_divisor(limit, case.layout.etp)}


def expert_fold(case: Case) -> Repair:
    """Name the nearest ``ep`` that folds over the stage's devices; another ``etp`` where that is what does not."""
    if case.layout.stage_devices % case.layout.etp == 0:
        return experts(case)
    repair = expert_width(case)
    return repair | experts(case.changed(repair))


def plain_dispatcher(case: Case) -> Repair:
    """Name the dispatcher that asks for nothing."""
    return {"layout.dispatcher": "alltoall"}


def even_capacity(case: Case) -> Repair:
    """Name the capacity that drops no token where experts share them evenly."""
    return {"layout.moe_expert_capacity_factor": 1.0}


def sequence_over_cp(case: Case) -> Repair:
    """Name the nearest ``cp`` that cuts the sequence into 2 * cp equal pieces."""
    return {"layout.cp": nearest_divisor(context_limit(case), case.layout.cp)}


def sequence_over_tp(case: Case) -> Repair:
    """Name the nearest ``tp`` that cuts a context rank's tokens evenly; another ``cp`` where that is what does not."""
    repair = Repair() if case.train.seq_len % case.layout.cp == 0 else sequence_over_cp(case)
    tokens = case.train.seq_len // repair.get("layout.cp", case.layout.cp)
    return repair | {"layout.tp": nearest_divisor(gcd(tokens, tensor_limit(case)), case.layout.tp)}


def heads_over_cp(case: Case) -> Repair:
    """Name the nearest ``cp`` that deals out a tensor rank's heads; another ``tp`` where that is what does not."""
    heads = gcd(*case.widths("heads"), *case.widths("kv_heads"))
    repair = Repair() if heads % case.layout.tp == 0 else tensor(case)
    limit = heads // repair.get("layout.tp", case.layout.tp)
    return repair | {"layout.cp": nearest_divisor(gcd(limit, context_limit(case)), case.layout.cp)}


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
    nearest = min(possible_counts(case), key=lambda m: (abs(m - there), m))
    return {"train.global_batch": nearest * case.layout.dp * case.layout.micro_batch}


def least_batch(case: Case) -> int:
    """Return the smallest global batch whose micro-batches are whole and suit the schedule."""
    return int(possible_counts(case)[0] * case.layout.dp * case.layout.micro_batch)


def possible_counts(case: Case) -> list[int]:
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
    if not reaches(layers, parts):
        return fewer_parts(case)
    if parts > MOST_SHOWN:
        return {"layout.stages": "auto"}
    rows = [[0] * layout.pp for _ in range(layout.vpp)]
    for (chunk, stage), held in zip(places(layout), even_split(layers, parts), strict=True):
        rows[chunk][stage] = held
    return {"layout.stages": rows}


def fewer_parts(case: Case) -> Repair:
    """Name the most chunks that the layers fill; fewer stages where even the fewest chunks are too many."""
    layout, most = case.layout, case.model.num_layers + 2  # the two ends may be empty
    least = 2 if layout.schedule in (*TWO_CHUNKS, "interleaved-1f1b") else 1
    pp = min(layout.pp, most // least)
    vpp = least if layout.schedule in TWO_CHUNKS else max(min(layout.vpp, most // pp), least)
    changed = {"layout.pp": pp, "layout.vpp": vpp}
    auto = {} if layout.stages == "auto" else {"layout.stages": "auto"}
    return {k: v for k, v in changed.items() if v != case.value(k)} | auto


def recompute_choices(case: Case) -> Repair:
    """Keep the stages, each chunk's recompute choices cut (or filled up with none) to the layers it holds."""
    return {"layout.stages": [[_fitting(cell) for cell in row] for row in case.layout.stages]}


def say_choices(case: Case, valid: bool) -> str:
    """Name the first chunk whose choices do not fit, and what it could recompute."""
    rows = enumerate(case.layout.stages)
    cells = [(chunk, stage, cell) for chunk, row in rows for stage, cell in enumerate(row)]
    wrong = [place for place in cells if not choices_fit(place[2])]
    chunk, stage, cell = wrong[0]
    fitting = _fitting(cell)["recompute"]
    shown = fitting if len(fitting) <= MOST_SHOWN else f"{cell.layers} choices"
    others = f"; {len(wrong) - 1} more chunks alike" if len(wrong) > 1 else ""
    verb = "works" if valid and not others else "fits"
    return f"chunk {chunk} of stage {stage} holds {cell.layers} layers: recompute {shown} {verb}{others}"


def choices_fit(cell: StageLayers) -> bool:
    """Whether a chunk has the layers that its recompute choices are for."""
    if isinstance(cell.recompute, dict):
        return sum(cell.recompute.values()) <= cell.layers
    return cell.recompute is None or len(cell.recompute) == cell.layers


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
    return {"layout.pp": pp} | ({} if case.dp_follows else {"layout.dp": left // pp})
