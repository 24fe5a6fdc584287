"""SAPP's layer file: one JSON document of HEAD, BODY and TAIL layers with times and memory.

SAPP is the pipeline balancer of MindFormers and mindspore-ai/toolkits (``toolkit/pipeline_balance``); TeleChat3's
repository ships it. Times are in any one unit, memory in MB. As in its current versions a forward takes ``time``
and a backward ``2 * time * (1 + coefficient)``; versions up to MindFormers 1.4.0 took thirds of that, so all
their times are a third of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from telekit.documents import read_document
from telekit.errors import InputError, Problem, bad, from_pydantic
from telekit.planner.stage_checks import MAX_LAYERS
from telekit.planner.stage_problem import EndLoad, LayerType, RecomputeOption

Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False, strict=True)]
Coefficient = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False, strict=True)]

RECOMPUTE = ("SLCT", "COMM", "BOTH", "FULL")
"""Selective, communication, both of them, full recomputation; NONE is without."""
FIELDS = {
    "NONE": ("memory_activation", "backward_coef", 0.0, "backward_time"),
    "SLCT": ("memory_select_rec", "select_rec_coef", 0.04, "select_rec_time"),
    "COMM": ("memory_select_comm", "select_comm_coef", 0.125, "select_comm_time"),
    "BOTH": ("memory_both_comm_select", "both_comm_select_coef", 0.165, "both_comm_select_time"),
    "FULL": ("memory_recompute", "recompute_coef", 0.5, "recompute_time"),
}
"""For each type: field of its memory, field and default of its coefficient, field of its backward time."""


class SappLayer(BaseModel):
    """One entry of ``layers_description``; what is null or missing takes SAPP's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    type: Literal["HEAD", "BODY", "TAIL"]
    time: Amount
    nb_layer: Annotated[int, Field(ge=1, le=MAX_LAYERS, strict=True)] = 1
    model_name: str | None = None
    memory_parameter: Amount | None = None
    memory_activation: Amount | None = None
    memory_select_rec: Amount | None = None
    memory_select_comm: Amount | None = None
    memory_both_comm_select: Amount | None = None
    memory_recompute: Amount | None = None
    backward_coef: Coefficient | None = None
    select_rec_coef: Coefficient | None = None
    select_comm_coef: Coefficient | None = None
    both_comm_select_coef: Coefficient | None = None
    recompute_coef: Coefficient | None = None
    forward_time: Amount | None = None
    backward_time: Amount | None = None
    select_rec_time: Amount | None = None
    select_comm_time: Amount | None = None
    both_comm_select_time: Amount | None = None
    recompute_time: Amount | None = None

    @property
    def forward(self) -> float:
        """Forward time of one layer."""
        return self.time if self.forward_time is None else self.forward_time

    def backward(self, recompute: str) -> float:
        """Backward time of one layer; a time of 0 counts as not given, as in SAPP."""
        _, coefficient, default, time = FIELDS[recompute]
        given = getattr(self, coefficient)
        return float(getattr(self, time) or 2 * self.time * (1 + (default if given is None else given)))

    def memory(self, recompute: str) -> float:
        """Activation memory of one layer and micro-batch; 0 when the file does not say."""
        return float(getattr(self, FIELDS[recompute][0]) or 0.0)

    @property
    def considered(self) -> list[str]:
        """Recompute types this layer has memory for; NONE alone when the file has no activation memory."""
        return [r for r in FIELDS if self.memory(r) > 0] or ["NONE"]


class SappFile(BaseModel):
    """A layer file. What SAPP writes there and does not read back is accepted, and where it comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    source: str = ""
    verified: Annotated[bool, Field(strict=True)] = False
    pre_defined_layer: Any = None
    auto_partition_layer: Any = None
    stage_const_mem: Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False, strict=True)] = 0.0
    layers_description: Annotated[tuple[SappLayer, ...], Field(max_length=1_000)]

    def of_type(self, kind: str) -> tuple[SappLayer, ...]:
        """Return the HEAD, BODY or TAIL layers, in the file's order."""
        return tuple(layer for layer in self.layers_description if layer.type == kind)

    def runs(self) -> tuple[LayerType, ...]:
        """BODY layers as runs to be placed; their recompute options carry SAPP's type names."""
        return tuple(_run(layer) for layer in self.of_type("BODY"))

    def end(self, kind: str) -> EndLoad:
        """All HEAD or TAIL layers together."""
        layers = self.of_type(kind)
        return EndLoad(
            sum(layer.forward for layer in layers),
            sum(layer.backward("NONE") for layer in layers),
            sum(layer.memory_parameter or 0.0 for layer in layers),
        )


def _run(layer: SappLayer) -> LayerType:
    considered = sorted(layer.considered, key=layer.backward)  # a file may make a recompute type the cheapest
    least = layer.backward(considered[0])
    options = tuple(RecomputeOption(r, layer.backward(r) - least, layer.memory(r)) for r in considered)
    return LayerType(layer.name, layer.nb_layer, layer.forward, least, layer.memory_parameter or 0.0, options)


def read_layers(source: str | Path | Mapping[str, Any]) -> SappFile:
    """Read a layer file, or a mapping of its content.

    Raises
    ------
    InputError
        Unreadable or malformed; or every field that is missing, unknown, negative or of a wrong type.
    """
    is_file = isinstance(source, str | Path)
    where = str(source) if is_file else "layers"
    content = read_document(source) if isinstance(source, str | Path) else dict(source)
    if not isinstance(content, dict):
        raise bad("layers", type(content).__name__, "must be an object with layers_description", source=where)
    try:
        found = SappFile.model_validate({_key(k): v for k, v in content.items()})
    except ValidationError as error:
        raise from_pydantic(error, source=where) from None
    problems = _problems(found)
    if problems:
        raise InputError(problems, where)
    return found


def split_types(full: Any, select: Any, comm: Any) -> dict[str, Any]:
    """Layers of each recompute type from MindFormers' three lists (arrays): each list counts FULL, too.

    What the selective and the communication list share beyond FULL is BOTH.
    """
    select, comm = np.asarray(select) - full, np.asarray(comm) - full
    both = np.maximum(np.minimum(select, comm), 0)
    return {
        "SLCT": np.maximum(select - both, 0),
        "COMM": np.maximum(comm - both, 0),
        "BOTH": both,
        "FULL": np.asarray(full),
    }


def _key(name: Any) -> str:
    return str(name).strip()


def _problems(found: SappFile) -> list[Problem]:
    problems = []
    body = found.of_type("BODY")
    if not body:
        problems.append(Problem("layers_description", "no BODY", "there must be at least one BODY layer"))
    for i, layer in enumerate(found.layers_description):
        at = f"layers_description.{i}"
        if layer.type == "BODY":
            if layer.forward + layer.backward("NONE") <= 0:
                problems.append(
                    Problem(f"{at}.time", layer.time, "a BODY layer takes time", "its forward time")
                )
            if [b.name for b in body].count(layer.name) > 1:
                problems.append(Problem(f"{at}.name", layer.name, "two BODY layers have this name"))
        elif layer.nb_layer != 1:
            problems.append(
                Problem(f"{at}.nb_layer", layer.nb_layer, f"SAPP has one layer of each {layer.type}", "1")
            )
    total = sum(layer.nb_layer for layer in body)
    if total > MAX_LAYERS:
        problems.append(Problem("layers_description", total, f"at most {MAX_LAYERS} layers are placed"))
    return problems
