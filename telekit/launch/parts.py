"""What every launch file says first: the parts of the model in order, with what each layer recomputes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from telekit.errors import InputError
from telekit.job import Job
from telekit.layout.config import Module
from telekit.layout.stages import cells
from telekit.model.config import ModelConfig

SOFTMAX = ("gqa", "mla", "compressed")


@dataclass(frozen=True)
class Part:
    """Layers of one chunk of one stage; ``choices`` is what each recomputes, first to last."""

    chunk: int
    stage: int
    choices: tuple[str, ...]

    @property
    def layers(self) -> int:
        """How many layers stand here."""
        return len(self.choices)

    def covering(self, *wanted: str) -> int:
        """Length of the shortest run from the first layer on that holds every layer so recomputed."""
        return max((i + 1 for i, choice in enumerate(self.choices) if choice in wanted), default=0)


def mtp_modules(job: Job) -> int:
    """Multi-token-prediction modules that are trained; they stand with the output head."""
    return job.model.mtp_layers if job.train.mtp else 0


def parts(job: Job) -> tuple[Part, ...]:
    """Return the parts of the model, in the order of its layers.

    Raises
    ------
    InputError
        Every rule the layout breaks: no launch file is written for a layout that cannot run.
    """
    problems = job.problems()
    if problems:
        raise InputError(problems)
    acts = bool(modules(job))
    found = []
    for (chunk, stage), cell in cells(job.model, job.layout):
        choices = cell.options(job.layout.option)
        if not acts:  # the modules named are in no layer of this model
            choices = tuple("none" if choice == "selective" else choice for choice in choices)
        found.append(Part(chunk, stage, choices))
    return tuple(found)


def modules(job: Job) -> tuple[Module, ...]:
    """Modules that a selectively recomputed layer recomputes, without those that this model does not have."""
    attention = {kind.attention.kind for kind in job.model.kinds}
    mlp = {kind.mlp.kind for kind in job.model.kinds}
    shared = job.model.moe.shared_ffn_hidden_size if job.model.moe else 0
    has: dict[Module, bool] = {
        "core_attn": not attention.isdisjoint(SOFTMAX),
        "layernorm": True,
        "mla_up_proj": "mla" in attention,
        "mlp": "dense" in mlp,
        "mlp_act": "dense" in mlp,
        "moe": "moe" in mlp,
        "moe_act": "moe" in mlp,
        "shared_experts": shared > 0,
    }
    return tuple(name for name in job.layout.recompute_modules if has[name])


def attention_of(model: ModelConfig) -> Any:
    """Attention that stands for all layers' in a launch file: the last softmax attention, else the last mixer."""
    found = [layer.attention for layer in model.layers if layer.attention.kind in SOFTMAX]
    found = found or [layer.attention for layer in model.layers if layer.attention.heads]
    return (found or [model.layers[-1].attention])[-1]


def unlike_attention(model: ModelConfig) -> bool:
    """Whether softmax attention differs between layers, windows apart."""
    softmax = [kind.attention for kind in model.kinds if kind.attention.kind in SOFTMAX]
    return len({str(spec.model_dump(exclude={"window"})) for spec in softmax}) > 1


def header(job: Job, notes: Iterable[str]) -> str:
    """Comment lines for the top of a launch file: which job it is, and what the reader must know."""
    layout = job.layout
    degrees = ", ".join(
        f"{name} {getattr(layout, name)}" for name in ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
    )
    job_line = (
        f"{job.model.name} on {job.cluster.devices} x {job.cluster.device.name}: {degrees}; "
        f"{layout.schedule}, {job.micro_batches} micro-batches of {layout.micro_batch}"
    )
    lines = (" ".join(line.split()) for line in (job_line, *notes))  # a model's name cannot end its line
    return "".join(f"# {line}\n" for line in lines)
