"""What hierarchical expert traffic gains end to end over a global all-to-all, what that hangs on, and its interval.

A study is a record of ``data/studies``: a job, two dispatchers, and every input that the answer could hang on, with its
range and where that comes from, written down before the answer was computed. Nothing here is fitted to the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit import catalog
from telekit.cluster.config import ClusterConfig, load_cluster
from telekit.cost.estimate import estimate
from telekit.errors import InputError, bad
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.huggingface import load_model
from telekit.training.config import TrainConfig

SAMPLES = 300
QUANTILES = (0.05, 0.5, 0.95)
EXPERTS_OVER_GEMM = 0.87
"""Grouped products beside plain ones, as in the records of devices (H800 rows of InferSim)."""


@dataclass(frozen=True)
class Input:
    """One thing the answer hangs on: its base value, and a range (``low`` to ``high``) or ``choices``."""

    name: str
    says: str
    source: str
    base: Any
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, Any]:
        """What a bar of the tornado spans."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    def draw(self, rng: np.random.Generator) -> Any:
        """One value: choices alike, a range evenly (evenly in the logarithm where it spans a factor of 5)."""
        if self.choices:
            return self.choices[int(rng.integers(len(self.choices)))]
        if self.low > 0 and self.high / self.low >= 5:
            return float(np.exp(rng.uniform(np.log(self.low), np.log(self.high))))
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class Study:
    """A frozen question: job, dispatchers, inputs, and the claim that the answer is held against."""

    name: str
    title: str
    frozen: str
    job: Mapping[str, Any]
    job_source: str
    flat: str
    inputs: tuple[Input, ...]
    claim: float
    claim_source: str

    @property
    def base(self) -> dict[str, Any]:
        """Base value of every input."""
        return {item.name: item.base for item in self.inputs}


@dataclass(frozen=True)
class Bar:
    """One bar of the tornado: the gain at both ends of one input, all others at their base."""

    input: Input
    gains: tuple[float, float]

    @property
    def span(self) -> float:
        """How far it moves the answer."""
        return abs(self.gains[1] - self.gains[0])


@dataclass(frozen=True)
class Gain:
    """The answer of a study. Gains are of throughput: flat step time over hierarchical, less 1.

    ``samples`` are gains with every input drawn from its range at once; their quantiles say how far the assumptions
    reach, not how sure a measurement is.
    """

    study: Study
    base: float
    steps_s: tuple[float, float]
    bars: tuple[Bar, ...]
    samples: NDArray[np.float64]

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """5 %, 50 % and 95 % quantiles of the samples."""
        low, middle, high = np.quantile(self.samples, QUANTILES).tolist()
        return low, middle, high

    @property
    def holds_claim(self) -> bool:
        """Whether the claim lies inside the interval."""
        return self.interval[0] <= self.study.claim <= self.interval[2]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        low, middle, high = self.interval
        return {
            "study": self.study.name,
            "gain": self.base,
            "interval": {"p5": low, "p50": middle, "p95": high},
            "claim": self.study.claim,
            "claim_inside": self.holds_claim,
            "step_time_s": {"flat": self.steps_s[0], "hierarchical": self.steps_s[1]},
            "inputs": [
                {"name": bar.input.name, "base": bar.input.base, "ends": bar.input.ends, "gains": bar.gains}
                | {"says": bar.input.says, "source": bar.input.source}
                for bar in self.bars
            ],
        }


def load_study(name: str) -> Study:
    """Read a study of the catalog.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    record = catalog.record("studies", name)
    inputs = tuple(
        Input(**(item | ({"choices": tuple(item["choices"])} if "choices" in item else {})))
        for item in record["inputs"]
    )
    claim = record["claim"]
    return Study(
        record["name"], record["title"], record["frozen"], record["job"], record["job_source"], record["flat"],
        inputs, claim["gain"], claim["source"],
    )  # fmt: skip


def study_job(study: Study, dispatcher: str, **values: Any) -> Job:
    """Make the job of a study under one dispatcher, with some inputs moved from their base.

    The global batch follows the data-parallel ranks, so that a rank keeps its number of micro-batches.

    Raises
    ------
    InputError
        For an input that the study does not have.
    """
    unknown = sorted(set(values) - set(study.base))
    if unknown:
        raise bad("input", unknown[0], f"not an input of {study.name}", f"known: {', '.join(study.base)}")
    v = study.base | values
    spec, written = study.job, study.job["layout"]
    layout = written | {
        "tp": v["tp"],
        "recompute": v["recompute"],
        "dispatcher": dispatcher,
        "expert_imbalance": v["expert_imbalance"],
        "overlap_moe_comm": v["overlap_moe_comm"],
    }
    train = spec["train"] | {
        "seq_len": v["seq_len"],
        "global_batch": spec["train"]["global_batch"] * written["tp"] // v["tp"],
    }
    return Job(
        model=load_model(spec["model"]),
        cluster=_cluster(spec["cluster"]["devices"], v),
        train=TrainConfig.model_validate(train),
        layout=ParallelConfig.model_validate(layout),
    )


def _cluster(devices: int, v: Mapping[str, Any]) -> ClusterConfig:
    record = load_cluster({"device": v["device"], "devices": devices}).model_dump()
    record["device"] |= {
        "gemm_efficiency": v["gemm_efficiency"],
        "grouped_gemm_efficiency": EXPERTS_OVER_GEMM * v["gemm_efficiency"],
        "attention_efficiency": v["attention_efficiency"],
        "memory_efficiency": v["memory_efficiency"],
    }
    node, network = record["tiers"][0], record["tiers"][-1]
    node["efficiency"] = v["node_efficiency"]
    network |= {"efficiency": v["network_efficiency"], "latency_s": v["network_latency_s"]}
    return ClusterConfig.model_validate(record)


def steps_s(study: Study, **values: Any) -> tuple[float, float]:
    """Step time with the global all-to-all and with the hierarchical form, seconds."""
    v = study.base | values
    found = []
    for dispatcher in (study.flat, v["hierarchical"]):
        answer = estimate(study_job(study, dispatcher, **values))
        if answer.step_time_s is None:
            raise InputError(answer.problems)
        found.append(answer.step_time_s)
    return found[0], found[1]


def gain(study: Study, samples: int = SAMPLES, seed: int = 0) -> Gain:
    """Answer a study: the gain at the base, a bar for each input, and the spread when all move at once.

    Parameters
    ----------
    study : Study
        From :func:`load_study`.
    samples : int
        Draws of all inputs.
    seed : int
        Of the draws.
    """
    base = steps_s(study)
    bars = [
        Bar(item, (_gain(study, **{item.name: item.ends[0]}), _gain(study, **{item.name: item.ends[1]})))
        for item in study.inputs
    ]
    bars.sort(key=lambda bar: bar.span, reverse=True)
    rng = np.random.default_rng(seed)
    drawn = [_gain(study, **{item.name: item.draw(rng) for item in study.inputs}) for _ in range(samples)]
    return Gain(study, base[0] / base[1] - 1, base, tuple(bars), np.array(drawn))


def _gain(study: Study, **values: Any) -> float:
    flat, hierarchical = steps_s(study, **values)
    return flat / hierarchical - 1
