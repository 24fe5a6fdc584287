"""What a message suggests: values near by that make the whole layout valid, else values that keep one rule.

A change of one field comes first, ``dp`` following where nobody wrote it, and of two where a rule is about two; then
the same change with what must go along: a written ``dp``, written-out stages, the global batch. Every candidate is
checked against all rules, so that "works" is never said of a value that breaks another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import gcd, log2, prod
from typing import Any

from pydantic import ValidationError

from telekit.layout import repairs
from telekit.layout.case import Case
from telekit.layout.repairs import Repair, divisors
from telekit.layout.stages import reaches

Move = tuple[str, ...]
"""Fields changed together."""

Moves = tuple[Move, ...]

MOST_TOGETHER = 60
"""Values of several fields together that are tried, the nearest first."""

MOST_REBATCHED = 8
"""Changes for which another global batch is tried too."""

PIPELINE = ("interleaved-1f1b", "1f1b")
"""Schedules that are suggested instead of another."""


@dataclass(frozen=True)
class Suggestion:
    """Values by field (``layout.tp``), and whether the whole layout is ``valid`` with them."""

    fields: Repair
    valid: bool

    def __str__(self) -> str:
        """Say ``tp 2 works``, or ``tp 2 keeps this rule`` where another rule stays broken."""
        parts = [f"{field.split('.')[1]} {_plain(value)}" for field, value in self.fields.items()]
        if not parts:
            return ""
        many = "s" if len(parts) == 1 else ""
        named = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        return f"{named} {f'work{many}' if self.valid else f'keep{many} this rule'}"


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find(case: Case, moves: Moves, accepts: Callable[[Case], bool]) -> Repair | None:
    """Return the nearest change after which a layout is accepted; None where no move does it.

    Parameters
    ----------
    case : Case
        One layout.
    moves : tuple of tuple of str
        Fields to change, one after the other or together, the preferred ones first.
    accepts : callable
        Whether a changed case will do.
    """
    for extend, most in ((_plainly, None), (_with_the_rest, None), (_with_the_batch, MOST_REBATCHED)):
        for move in moves:
            for repair in islice(_repairs(case, move), most):
                found = next((r for r in extend(case, repair) if _accepted(case, r, accepts)), None)
                if found is not None:
                    return found
    return None


def _accepted(case: Case, repair: Repair, accepts: Callable[[Case], bool]) -> bool:
    try:
        return accepts(case.changed(repair))
    except ValidationError:  # beyond what a field may be
        return False


def _plainly(case: Case, repair: Repair) -> Iterator[Repair]:
    yield repair


def _with_the_rest(case: Case, repair: Repair) -> Iterator[Repair]:
    """Add what a written ``dp`` and written-out stages must become beside other degrees."""
    names = {field.split(".")[1] for field in repair}
    resized = names & {"tp", "cp", "pp"} and "dp" not in names and not case.dp_follows
    reshaped = names & {"pp", "vpp"} and "stages" not in names and case.layout.stages != "auto"
    if not (resized or reshaped):
        return
    changed = case.changed(repair)
    x = changed.layout
    left, rest = divmod(case.cluster.devices, x.tp * x.cp * x.pp)
    dp = {"layout.dp": left} if resized and not rest and left != x.dp else {}
    if dp:
        yield repair | dp
    if reshaped and reaches(case.model.num_layers, x.pp * x.vpp):
        yield repair | repairs.even_stages(changed) | dp


def _with_the_batch(case: Case, repair: Repair) -> Iterator[Repair]:
    """Add the nearest global batch that another ``dp`` or schedule takes."""
    if "train.global_batch" in repair:
        return
    for more in (repair, *_with_the_rest(case, repair)):
        changed = case.changed(more)
        batch = repairs.whole_batches(changed) if changed.dp_known else {}
        if batch and batch["train.global_batch"] != case.train.global_batch:
            yield more | batch


def _repairs(case: Case, move: Move) -> Iterable[Repair]:
    """List values of the fields of one move, the nearest first."""
    fields = [_path(name) for name in move]
    if len(move) == 1:
        return ({fields[0]: value} for value in nearby(case, move[0]))
    there = [case.value(field) for field in fields]
    found = (values for values in product(*(nearby(case, n) for n in move)) if _divide(case, move, values))
    ordered = sorted(found, key=lambda values: _distance(there, values))
    return (dict(zip(fields, values, strict=True)) for values in ordered[:MOST_TOGETHER])


def _divide(case: Case, move: Move, values: Iterable[Any]) -> bool:
    """Whether degrees that are changed together divide the devices with those that stay."""
    degrees = {name: getattr(case.layout, name) for name in ("tp", "cp", "pp")}
    degrees |= {name: value for name, value in zip(move, values, strict=True) if name in degrees}
    return bool(case.cluster.devices % prod(degrees.values()) == 0)


def _path(name: str) -> str:
    return f"train.{name}" if name == "global_batch" else f"layout.{name}"


def _distance(there: Iterable[Any], values: Iterable[Any]) -> float:
    """Sum how many times each degree is multiplied or divided by two; other fields count as equally near."""
    pairs = zip(there, values, strict=True)
    return sum(abs(log2(new / old)) for old, new in pairs if type(old) is type(new) is int)


def nearby(case: Case, name: str) -> list[Any]:
    """List values of a field that might be valid where the present one is not, the nearest first.

    No other value of a degree can be: each of these lists holds everything that divides what it must.
    """
    present = case.value(_path(name))
    if name in _OTHER:
        return [value for value in _OTHER[name](case) if value != present]
    return sorted({*_degrees(case, name)} - {present}, key=lambda value: (abs(value - present), value))


def _degrees(case: Case, name: str) -> Iterable[int]:
    x, devices, layers = case.layout, case.cluster.devices, case.model.num_layers
    match name:
        case "tp":
            return divisors(gcd(repairs.tensor_limit(case), devices))
        case "cp":
            return divisors(gcd(repairs.context_limit(case), devices))
        case "ep":
            return divisors(gcd(repairs.expert_limit(case), devices))
        case "etp":
            return divisors(gcd(repairs.expert_width_limit(case), devices))
        case "pp":
            return (d for d in divisors(devices) if reaches(layers, d))
        case "vpp":  # one, two, several, as many as written, or fewer than there are
            written = 1 if x.stages == "auto" else len(x.stages)
            return (v for v in (1, 2, written, (layers + 2) // x.pp) if v > 0)
        case "dp":
            left, rest = divmod(devices, x.tp * x.cp * x.pp)
            return () if rest else (left,)
        case _:  # micro_batch
            mine, rest = divmod(case.train.global_batch, x.dp)
            return () if rest else divisors(mine)


def _stages(case: Case) -> list[Any]:
    x = case.layout
    if not reaches(case.model.num_layers, x.pp * x.vpp):
        return []
    kept = [] if x.stages == "auto" else [repairs.recompute_choices(case)["layout.stages"]]
    return [*kept, repairs.even_stages(case)["layout.stages"], "auto"]


_OTHER: dict[str, Callable[[Case], list[Any]]] = {
    "global_batch": lambda case: list(repairs.whole_batches(case).values()),
    "sequence_parallel": lambda case: [True, False],
    "tp_comm_overlap": lambda case: [False],
    "cp_comm_type": lambda case: ["p2p", "a2a"],
    "dispatcher": lambda case: ["alltoall"],
    "moe_expert_capacity_factor": lambda case: [1.0, None],
    "schedule": lambda case: list(PIPELINE),
    "stages": _stages,
}
