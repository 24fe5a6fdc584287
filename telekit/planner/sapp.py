"""What SAPP does, from the same file: layers and recompute onto stages, in its terms and its output form.

:func:`balance` finds a plan (by default of short simulated makespan; SAPP's own objective is a mode),
:func:`evaluate_sapp` simulates a plan given as SAPP's offsets and recompute lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from telekit.errors import InputError, Problem, bad
from telekit.planner.sapp_layers import RECOMPUTE, SappFile, read_layers, split_types
from telekit.planner.stage_problem import LayerType
from telekit.planner.stages import (
    NoFitError,
    Placement,
    Progress,
    Proof,
    StageProblem,
    bottleneck,
    peak_memory,
    place,
    simulated_makespan,
    stage_times,
)

Matrix = list[list[int]]
YAML_NAMES = {"recompute": ("FULL",), "select_recompute": ("SLCT", "BOTH", "FULL"),
              "select_comm_recompute": ("COMM", "BOTH", "FULL")}  # fmt: skip
"""SAPP's lists, and the recompute types each counts."""


@dataclass(frozen=True)
class Balance:
    """A plan in SAPP's terms: times in the file's unit, memory in MB.

    ``proof`` is None when the plan was given, not found.
    """

    problem: StageProblem
    placement: Placement
    bottleneck: float
    makespan: float
    peak_memory_mb: tuple[float, ...]
    proof: Proof | None

    @property
    def layers(self) -> Matrix:
        """Layers of each chunk and stage."""
        return _matrix(self.placement.layers)

    @property
    def offset(self) -> Matrix:
        """Layers above an even share of all layers, rounded down."""
        return _matrix(self.placement.layers - _even_share(self.problem))

    @property
    def recompute(self) -> dict[str, Matrix]:
        """Layers of each recompute type, over all kinds of layers."""
        counts = self._counts(None)
        return {r: _matrix(counts[r]) for r in RECOMPUTE}

    @property
    def bubble(self) -> dict[str, float]:
        """SAPP's decomposition of the idle time, each part over the time of all passes without recomputation.

        ``real = ideal + imbalance + recompute``: ideal is ``(p - 1) / (v m)``, recompute the extra backward
        time, imbalance the rest.
        """
        forward, backward = stage_times(self.problem, self.placement)
        none = sum(
            (run.forward_s + run.backward_s + _without_recompute(run))
            * float(self.placement.array[_of_run(self.problem, t)].sum())
            for t, run in enumerate(self.problem.layers)
        )
        m, p, v = self.problem.micro_batches, self.problem.stages, self.problem.chunks
        model = m * (none + sum(float(end.sum()) for end in self.problem.end_times))
        done = m * float(forward.sum() + backward.sum())
        real, ideal, extra = p * self.makespan / model - 1, (p - 1) / (v * m), done / model - 1
        return {"real": real, "ideal": ideal, "imbalance": real - ideal - extra, "recompute": extra}

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "layers": self.layers,
            "offset": self.offset,
            "recompute": self.recompute,
            "bottleneck": self.bottleneck,
            "makespan": self.makespan,
            "peak_memory_mb": list(self.peak_memory_mb),
            "bubble": self.bubble,
            "proof": None if self.proof is None else self.proof.to_dict(),
            "sapp": self.to_sapp(),
        }

    def to_sapp(self, run: int | None = None) -> dict[str, Matrix]:
        """``offset`` and the three recompute lists, as MindFormers' YAML takes them; of one kind of layers or all."""
        counts = self._counts(run)
        lists = {"offset": sum(counts.values()) - _even_share(self.problem, run)}
        for name, types in YAML_NAMES.items():
            lists[name] = sum(counts[r] for r in types)
        return {name: _matrix(rows) for name, rows in lists.items()}

    def to_sapp_yaml(self) -> str:
        """Return :meth:`to_sapp` as YAML."""
        return "\n".join(f"{name}: {rows}" for name, rows in self.to_sapp().items()) + "\n"

    def text(self) -> str:
        """Return what SAPP prints (a plan for each kind of layers, the bubble), then memory, time and proof."""
        lines = ["To put in yaml configuration:"]
        for t, run in enumerate(self.problem.layers):
            lines += [f" {run.name}:"] if len(self.problem.layers) > 1 else []
            lines += [f"  {name}: {rows}" for name, rows in self.to_sapp(t).items()]
        p, v, m = self.problem.stages, self.problem.chunks, self.problem.micro_batches
        lines += [
            f"————————————— pp:{p:>2}, vp:{v:>2}, micro:{m:>3} ————————————",
            "--------------------  bubble  --------------------",
            _cells(["real", "ideal", "imba", "recompute"]),
            _cells([f"{part:.4f}" for part in self.bubble.values()]),
            "--------------------  memory  --------------------",
            f"peak memory: {', '.join(f'{b:.2f}' for b in self.peak_memory_mb)}",
            "--------------------  time  ----------------------",
            f"makespan {self.makespan:.10g}, longest stage {self.bottleneck:.10g}",
        ]
        if self.proof is not None:
            lines.append(_in_words(self.proof))
        return "\n".join(lines)

    def _counts(self, run: int | None) -> dict[str, Any]:
        """Layers by recompute type, NONE too, each an array (chunks, stages)."""
        found = {
            r: np.zeros((self.problem.chunks, self.problem.stages), np.int64) for r in ("NONE", *RECOMPUTE)
        }
        for (t, o), counts in zip(self.problem.columns, self.placement.array, strict=True):
            if run in (None, t):
                found[self.problem.layers[t].options[o].name] += counts
        return found


def _without_recompute(run: LayerType) -> float:
    """Backward time that keeping all activations takes above the cheapest type: 0, but for an odd file."""
    return next((o.extra_backward_s for o in run.options if o.name == "NONE"), 0.0)


def _cells(cells: list[str]) -> str:
    first, *rest = (f"{cell:^11}" for cell in cells)
    return f"{first}={'+'.join(rest)}".rstrip()


def _in_words(proof: Proof) -> str:
    if proof.bound is None:
        return f"{proof.objective}: {proof.status}, without a bound ({proof.solver})"
    gap = "" if proof.status == "optimal" else f", gap {proof.gap:.2%}"
    return f"{proof.objective}: {proof.status}, none is below {proof.bound:.10g}{gap} ({proof.solver})"


def balance(
    source: str | Path | Mapping[str, Any],
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    memory_mb: float | None = None,
    objective: str = "makespan",
    less_memory: bool = False,
    time_limit_s: float = 10.0,
    solver: str = "highs",
    progress: Progress | None = None,
) -> Balance:
    """Put the layers of a SAPP file onto pipeline stages.

    Parameters
    ----------
    source : path or mapping
        Layer file, or its content.
    stages, micro_batches, chunks : int
        Pipeline stages, micro-batches of a step, chunks a stage holds (``vpp``).
    memory_mb : float, optional
        Cap of each stage, in the file's MB; it holds at every moment of the schedule. None: no cap.
    objective : {"makespan", "bottleneck"}
        Simulated time of a step, or SAPP's objective.
    less_memory : bool
        SAPP's less-memory order of chunks.
    time_limit_s, solver, progress
        As of :func:`telekit.planner.stages.place`.

    Raises
    ------
    InputError
        For a broken file (all broken fields at once), stages or chunks that the layers or the schedule do not
        allow, or a cap that nothing fits, with the smallest that would do.
    """
    problem = sapp_problem(source, stages, micro_batches, chunks, memory_mb, less_memory)
    try:
        found = place(problem, objective, time_limit_s, solver, progress)
    except NoFitError as error:
        first = error.problems[0]
        raise bad("memory_mb", memory_mb, first.rule, first.suggestion, _name(source)) from None
    return Balance(problem, found.placement, found.bottleneck, found.makespan, found.peak_memory, found.proof)


def evaluate_sapp(
    source: str | Path | Mapping[str, Any],
    plan: Mapping[str, Any],
    micro_batches: int,
    less_memory: bool = False,
    whole: bool = True,
) -> Balance:
    """Simulate a plan in SAPP's form.

    Parameters
    ----------
    source : path or mapping
        Layer file with one BODY layer (SAPP's lists do not tell several apart).
    plan : mapping
        ``offset`` and, optionally, ``recompute``, ``select_recompute``, ``select_comm_recompute``: each a list
        for every chunk of a number for every stage, or for one chunk that list itself; 0 or false is none.
    micro_batches : int
        Of a step.
    less_memory : bool
        SAPP's less-memory order.
    whole : bool
        Whether the plan must place all layers; SAPP itself does not ask.

    Raises
    ------
    InputError
        For a broken file or plan.
    """
    file = read_layers(source)
    body = file.of_type("BODY")
    if len(body) != 1:
        raise bad("layers_description", len(body), "a plan in SAPP's form is for one BODY layer", "1")
    lists = _plan_lists(plan)
    chunks, stages = lists["offset"].shape
    problem = sapp_problem(source, stages, micro_batches, chunks, None, less_memory)
    counts = _counts(problem, lists, body[0].nb_layer if whole else None)
    placement = Placement.from_array(problem, counts)
    longest = float(bottleneck(problem, *stage_times(problem, placement)))
    peak = tuple(float(b) for b in peak_memory(problem, placement))
    return Balance(problem, placement, longest, simulated_makespan(problem, placement), peak, None)


def sapp_problem(
    source: str | Path | Mapping[str, Any],
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    memory_mb: float | None = None,
    less_memory: bool = False,
) -> StageProblem:
    """Return the placement problem of a SAPP file: its times, and MB instead of bytes."""
    file = read_layers(source)
    name = _name(source)
    problems = _cap_problems(file, memory_mb)
    schedule = "1f1b"
    if chunks != 1:
        schedule = "interleaved-sapp-less-memory" if less_memory else "interleaved-sapp"
    try:
        problem = StageProblem(
            layers=file.runs(),
            stages=stages,
            chunks=chunks,
            micro_batches=micro_batches,
            schedule=schedule,
            head=file.end("HEAD"),
            tail=file.end("TAIL"),
            memory_cap_bytes=memory_mb if not problems else None,
            constant_bytes=file.stage_const_mem,
        )
    except InputError as error:
        raise InputError([*problems, *error.problems], name) from None
    if problems:
        raise InputError(problems, name)
    return problem


def _cap_problems(file: SappFile, memory_mb: float | None) -> list[Problem]:
    if memory_mb is None:
        return []
    if not isinstance(memory_mb, int | float) or isinstance(memory_mb, bool) or not 0 < memory_mb <= 1e12:
        return [Problem("memory_mb", memory_mb, "must be a positive number of MB", "use 60000")]
    rule = "a memory cap needs this of every BODY layer"
    return [
        Problem(f"layers_description.{i}.{field}", "missing", rule)
        for i, layer in enumerate(file.layers_description)
        if layer.type == "BODY"
        for field, has in (
            ("memory_parameter", layer.memory_parameter is not None),
            ("memory_activation", layer.memory(layer.considered[0]) > 0),
        )
        if not has
    ]


def _plan_lists(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Read the lists of a plan as arrays (chunks, stages), all of one shape."""
    known = ("offset", *YAML_NAMES)
    problems = [
        Problem(str(k), plan[k], "no such list", f"one of {', '.join(known)}") for k in plan if k not in known
    ]
    lists: dict[str, Any] = {}
    for name in known:
        value = plan.get(name)
        if value is None or value is False or (name != "offset" and isinstance(value, int) and value == 0):
            continue
        try:
            rows = np.atleast_2d(np.array(value))
        except ValueError:
            rows = np.zeros(0)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer) or not rows.size:
            problems.append(
                Problem(name, value, "must be a list for each chunk of whole numbers for each stage")
            )
        else:
            lists[name] = rows.astype(np.int64)
    if "offset" not in lists and not problems:
        problems.append(Problem("offset", "missing", "a plan has offsets", "[[0, 0, 0, 0]] for four stages"))
    shapes = {rows.shape for rows in lists.values()}
    if len(shapes) > 1:
        problems.append(Problem("plan", sorted(shapes), "all lists must have one shape (chunks, stages)"))
    if problems:
        raise InputError(problems)
    return {name: lists.get(name, np.zeros(shapes.copy().pop(), np.int64)) for name in known}


def _counts(problem: StageProblem, lists: Mapping[str, Any], total: int | None) -> Any:
    """Layers by column from SAPP's lists."""
    by_type = split_types(lists["recompute"], lists["select_recompute"], lists["select_comm_recompute"])
    layers = lists["offset"] + _even_share(problem)
    by_type["NONE"] = layers - sum(by_type.values())
    options = [option.name for option in problem.layers[0].options]
    problems = [
        Problem(r, int(counts.sum()), "this recompute type has no memory in the layer file")
        for r, counts in by_type.items()
        if r not in options and counts.any()
    ]
    if min(counts.min() for counts in by_type.values()) < 0:
        problems.append(
            Problem("plan", _matrix(by_type["NONE"]), "a chunk recomputes more layers than it has")
        )
    if total is not None and int(layers.sum()) != total:
        problems.append(Problem("offset", int(layers.sum()), f"the plan must place all {total} layers"))
    if problems:
        raise InputError(problems)
    return np.stack([by_type[name] for name in options])


def _even_share(problem: StageProblem, run: int | None = None) -> int:
    layers = problem.total_layers if run is None else problem.layers[run].count
    return layers // (problem.stages * problem.chunks)


def _of_run(problem: StageProblem, run: int) -> list[int]:
    return [i for i, (t, _) in enumerate(problem.columns) if t == run]


def _matrix(rows: Any) -> Matrix:
    return [[int(n) for n in row] for row in rows]


def _name(source: Any) -> str:
    return str(source) if isinstance(source, str | Path) else "layers"
