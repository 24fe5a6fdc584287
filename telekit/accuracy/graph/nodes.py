"""Rows of a comparison as operators in graph order: what went into each, what came out, and who made its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from telekit.accuracy.compared import (
    BACKWARD,
    FORWARD,
    INPUT,
    OPTIMIZER,
    PARAMETERS,
    PARAMETERS_GRAD,
    Compared,
)

_PHASES = ("forward", "backward", "parameters_grad")
_STATE = re.compile(r"(^|[._/])(exp_avg(_sq)?|optimizer|updated|after|master|adam)([._/]|$)", re.IGNORECASE)


@dataclass
class Node:
    """One call of an operator or module in one phase, with its tensors.

    ``base`` is the operator's name without phase and call, so that its forward and backward can find each other.
    """

    base: str
    call: str
    phase: str
    kind: str
    order: float
    step: int
    rank: int | None
    inputs: list[Compared] = field(default_factory=list)
    parameters: list[Compared] = field(default_factory=list)
    outputs: list[Compared] = field(default_factory=list)
    partner: Node | None = None
    before: list[Compared] = field(default_factory=list)

    @property
    def rows(self) -> list[Compared]:
        """All its own rows."""
        return [*self.inputs, *self.parameters, *self.outputs]


def split_api(row: Compared) -> tuple[str, str]:
    """Return the operator's name without phase and call, and the call."""
    text = row.api or row.name
    tokens = text.split(".")
    for at, token in enumerate(tokens):
        if token in _PHASES and at:
            return ".".join(tokens[:at]), ".".join(tokens[at + 1 :])
    return text, ""


def phase_of(row: Compared) -> str:
    """Phase of a row: what it says, else by its part and name."""
    if row.part == PARAMETERS_GRAD:
        return BACKWARD
    if row.phase:
        return row.phase
    lower = row.name.lower()
    if _STATE.search(lower):
        return OPTIMIZER
    if "grad" in lower or "backward" in lower:
        return BACKWARD
    return OPTIMIZER if not row.api else FORWARD


def nodes(rows: Iterable[Compared]) -> list[Node]:
    """Group rows by operator, call, phase, step and rank; in order of step, then golden's graph."""
    found: dict[tuple[object, ...], Node] = {}
    for row in rows:
        phase = phase_of(row)
        base, call = split_api(row)
        kind = "gradient" if row.part == PARAMETERS_GRAD else phase
        key = (row.step, row.rank, kind, base, call, row.name if not row.api else "")
        node = found.get(key)
        if node is None:
            node = Node(base, call, phase, kind, row.order, row.step or 0, row.rank)
            found[key] = node
        side = {INPUT: node.inputs, PARAMETERS: node.parameters}.get(row.part, node.outputs)
        side.append(row)
    _link(list(found.values()))
    late = {OPTIMIZER: 1}
    return sorted(found.values(), key=lambda n: (n.step, late.get(n.phase, 0), n.order))


def _link(found: Sequence[Node]) -> None:
    """Tell backwards of their forwards, gradients of both: what they also computed from."""
    forwards = {(n.step, n.rank, n.base, n.call): n for n in found if n.kind == FORWARD}
    calls: dict[tuple[object, ...], list[Node]] = {}
    for n in found:
        if n.kind in (FORWARD, BACKWARD):
            calls.setdefault((n.step, n.rank, n.base), []).append(n)
    for n in found:
        if n.kind == BACKWARD:
            n.partner = forwards.get((n.step, n.rank, n.base, n.call))
            if n.partner is not None:
                n.before = [*n.partner.inputs, *n.partner.parameters, *n.partner.outputs]
        elif n.kind == "gradient":
            own = calls.get((n.step, n.rank, n.base), [])
            n.partner = next((o for o in own if o.kind == FORWARD), None)
            n.before = [r for o in own for r in (o.inputs if o.kind == BACKWARD else o.rows)]


def containers(found: Sequence[Node]) -> set[str]:
    """Bases of modules that have other modules of the dump inside them."""
    names = {n.base: module_path(n.base) for n in found}
    paths = set(names.values())
    prefixes = {".".join(p.split(".")[:k]) for p in paths for k in range(1, p.count(".") + 1)}
    return {base for base, path in names.items() if path in prefixes}


def outputs_inside(found: Sequence[Node]) -> dict[int, list[Compared]]:
    """By the id of each module's node: outputs of the modules inside it, in the same phase and call, on its rank."""
    outer = containers(found)
    inside: dict[int, list[Compared]] = {}
    by_path: dict[tuple[str, str, int | None], list[Node]] = {}
    for node in found:
        if node.base in outer:
            by_path.setdefault((module_path(node.base), node.phase, node.rank), []).append(node)
    for node in found:
        tokens = module_path(node.base).split(".")
        for k in range(1, len(tokens)):
            for around in by_path.get((".".join(tokens[:k]), node.phase, node.rank), ()):
                if around.call == node.call and node.kind == around.kind:
                    inside.setdefault(id(around), []).extend(node.outputs)
    return inside


def module_path(base: str) -> str:
    """Return a module's dotted path: ``Module.fc.Linear`` is ``fc``."""
    tokens = base.split(".")
    if tokens[0] in ("Module", "Cell") and len(tokens) > 2:
        return ".".join(tokens[1:-1])
    return base


_MAKERS = (
    (("o_proj", "linear_proj", "out_proj", "to_out", "attn.dense", "wo"), "core attention output"),
    (("down_proj", "linear_fc2", "fc2", "w2", "4h_to_h"), "activation output"),
    (("q_proj", "k_proj", "v_proj", "linear_qkv", "qkv"), "input norm output"),
    (("gate_proj", "up_proj", "linear_fc1", "fc1", "w1", "w3", "router", "gate"), "norm before the MLP"),
    (("lm_head", "output_layer"), "final norm output"),
    (("norm", "layernorm"), "residual sum"),
)


def maker_of(base: str) -> str:
    """Say what usually makes an operator's input, by the operator's name; empty where no convention is known."""
    lower = module_path(base).lower()
    last = ".".join(lower.split(".")[-2:])
    words = re.split(r"[._]", last)
    return next(
        (what for names, what in _MAKERS if any(n in (words if len(n) < 3 else last) for n in names)), ""
    )
