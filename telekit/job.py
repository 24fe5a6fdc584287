"""The four nouns together: one job, from and to a YAML file that a person can read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from telekit import catalog
from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.documents import read_document
from telekit.errors import InputError, Problem, bad, from_pydantic
from telekit.layout.case import filled
from telekit.layout.config import ParallelConfig
from telekit.layout.rules import Case, check
from telekit.layout.stages import stages_of
from telekit.model.config import ModelConfig
from telekit.model.huggingface import load_model
from telekit.other_names import instead_of_section
from telekit.training.config import TrainConfig

SECTIONS = ("model", "cluster", "train", "layout")


@dataclass(frozen=True)
class Job:
    """What is trained, where, how much, and how it is split.

    ``layout`` always has filled in what follows from the rest (:func:`telekit.layout.case.filled`): ``dp`` is what the
    device count leaves after ``tp * cp * pp``. ``written`` keeps how model and cluster were named, so that a job can be
    written back; ``fixed`` names the layout fields that were given.
    """

    model: ModelConfig
    cluster: ClusterConfig
    train: TrainConfig
    layout: ParallelConfig
    fixed: tuple[str, ...] | None = None
    written: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        layout, given = self.layout, self.fixed
        if given is None:
            given = tuple(name for name in ParallelConfig.model_fields if name in layout.model_fields_set)
        given = tuple(name for name in given if getattr(layout, name) is not None)
        object.__setattr__(self, "layout", filled(layout, given, self.cluster.devices))
        object.__setattr__(self, "fixed", given)

    @classmethod
    def read(cls, data: Any, source: str = "") -> Job:
        """Build a job from plain data (what a YAML file holds).

        Raises
        ------
        InputError
            Every fault of every section, at once.
        """
        if not isinstance(data, Mapping):
            raise bad("job", data, "a job is a mapping with model, cluster, train and layout", source=source)
        problems = [
            Problem(str(k), v, "no such section", instead_of_section(str(k), SECTIONS))
            for k, v in data.items()
            if k not in SECTIONS
        ]
        for name in ("model", "cluster"):
            if name not in data:
                problems.append(Problem(name, "missing", "this section is required"))
        base = Path(source).parent if source else None
        written = {name: _beside(data[name], base, name) for name in ("model", "cluster") if name in data}
        model = _try(problems, lambda: _model(written["model"])) if "model" in data else None
        cluster = _try(problems, lambda: load_cluster(written["cluster"])) if "cluster" in data else None
        train = _section(problems, TrainConfig, data, "train")
        layout = _section(problems, ParallelConfig, data, "layout")
        if model is not None and train is not None and layout is not None:
            text = (data.get("layout") or {}).get("stages")
            _try(problems, lambda: _check_string(text, layout.pp, model, train))
        if cluster is not None and train is not None and train.precision not in cluster.device.peak_flops:
            known = f"known for {cluster.device.name}: {', '.join(sorted(cluster.device.peak_flops))}"
            problems.append(
                Problem("train.precision", train.precision, "the device has no peak for it", known)
            )
        if problems or model is None or cluster is None or train is None or layout is None:
            raise InputError(problems, source)
        return cls(model, cluster, train, layout, tuple(data.get("layout") or {}), written)

    def with_layout(self, layout: ParallelConfig) -> Job:
        """Return the same job under another layout."""
        return replace(self, layout=layout, fixed=None)

    @property
    def given(self) -> tuple[str, ...]:
        """Layout fields that were given: a search keeps them."""
        return self.fixed or ()

    @property
    def case(self) -> Case:
        """The layout in its surroundings, as the rules read it."""
        return Case(self.model, self.cluster, self.train, self.layout, self.given)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one data-parallel rank in one step (rounded down when the rules are broken)."""
        assert self.layout.dp is not None
        return max(1, self.train.global_batch // (self.layout.dp * self.layout.micro_batch))

    def problems(self) -> tuple[Problem, ...]:
        """Every rule the layout breaks."""
        return check(self.case)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :meth:`read` accepts and that gives the same job."""
        written = {name: str(v) if isinstance(v, Path) else v for name, v in (self.written or {}).items()}
        layout = layout_dict(self.layout)
        return {
            "model": written.get("model", self.model.model_dump(mode="json")),
            "cluster": written.get("cluster", self.cluster.model_dump(mode="json")),
            "train": self.train.model_dump(mode="json"),
            "layout": {name: layout[name] for name in self.given if name in layout},
        }

    def to_yaml(self) -> str:
        """Return the job as YAML."""
        import yaml

        sections = self.to_dict().items()
        return "".join(
            yaml.safe_dump({name: value})
            if not isinstance(value, dict)
            else _wrapped(
                f"{name}: {yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=inf)}"
            )
            for name, value in sections
        )


def _wrapped(flow: str, width: int = 84) -> str:
    """Break a mapping of one line behind commas; YAML reads such a break as the one space it was."""
    lines = [""]
    for part in re.split("(?<=,) (?=[^ ])", flow):
        if lines[-1] and len(lines[-1]) + len(part) >= width:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def load_job(source: str | Path | Mapping[str, Any]) -> Job:
    """Read a job from a YAML or JSON file, or from plain data.

    Raises
    ------
    InputError
        With file, field, value, rule and what would work, for every fault at once.
    """
    if isinstance(source, Mapping):
        return Job.read(source)
    return Job.read(read_document(source), str(source))


def layout_dict(layout: ParallelConfig) -> dict[str, Any]:
    """Return a layout as plain data, the fields at their default left out (``dp`` and degrees always said)."""
    plain = layout.model_dump(mode="json")
    if layout.stages != "auto":
        plain["stages"] = [
            [cell["layers"] if cell["recompute"] is None else cell for cell in row] for row in plain["stages"]
        ]
    always = {"tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch", "recompute", "schedule"}
    default = ParallelConfig().model_dump(mode="json")
    return {k: v for k, v in plain.items() if k in always or v != default[k]}


def defaults() -> dict[str, dict[str, Any]]:
    """Every field of a job that has a default, with it."""
    return {
        name: {k: f.default for k, f in kind.model_fields.items() if not f.is_required()}
        for name, kind in (("train", TrainConfig), ("layout", ParallelConfig))
    }


def _section(problems: list[Problem], kind: type[BaseModel], data: Mapping[str, Any], name: str) -> Any:
    given = data.get(name)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        problems.append(Problem(name, given, "must be a mapping of fields"))
        return None
    return _try(problems, lambda: kind.model_validate(dict(given)), name, kind)


def _check_string(text: Any, pp: int, model: ModelConfig, train: TrainConfig) -> None:
    """Hold a layout string against the model: counts of layers no longer say where MTP modules stood."""
    if not isinstance(text, str) or text == "auto":
        return
    try:
        stages_of(text, pp, model.num_layers, model.mtp_layers if train.mtp else 0)
    except InputError as error:
        raise InputError(replace(p, field="layout.stages") for p in error.problems) from None


def _try(problems: list[Problem], make: Any, prefix: str = "", kind: type[BaseModel] | None = None) -> Any:
    try:
        return make()
    except ValidationError as error:
        problems += from_pydantic(error, prefix, kind=kind).problems
    except InputError as error:
        where = f" (in {error.source})" if error.source else ""
        problems += [replace(p, rule=p.rule + where) for p in error.problems]
    return None


def _model(spec: Any) -> ModelConfig:
    """Read a model: a name, a path, a Hugging Face config, or a model as :meth:`Job.to_dict` writes it."""
    if isinstance(spec, Mapping) and "kinds" in spec:
        try:
            return ModelConfig.model_validate_json(json.dumps(spec))
        except ValidationError as error:
            raise from_pydantic(error, "model", kind=ModelConfig) from None
        except (TypeError, ValueError) as error:
            raise bad("model", "record", str(error)) from None
    return load_model(spec)


def _beside(spec: Any, base: Path | None, kind: str) -> Any:
    """Read a relative path as the job's file means it: beside that file, when it is there and is no catalog name."""
    if not isinstance(spec, str) or base is None or spec in catalog.names(f"{kind}s"):
        return spec
    try:
        return base / spec if (base / spec).exists() else spec
    except (OSError, ValueError):  # too long, or not a path at all
        return spec
