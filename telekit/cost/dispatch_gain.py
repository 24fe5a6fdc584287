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

SAMPLES = 512
EDGE = 0.1
"""Share of the draws beyond the claim under which it lies at the edge, though inside the 5 to 95 % interval."""
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

    def at(self, share: float) -> Any:
        """Value at a share of the range (evenly, in the logarithm where it spans a factor of 5), or of the choices."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.low > 0 and self.high / self.low >= 5:
            return float(self.low * (self.high / self.low) ** share)
        return float(self.low + (self.high - self.low) * share)


@dataclass(frozen=True)
class Study:
    """A frozen question: job, dispatchers, inputs, and the claim that the answer is held against.

    ``held`` says what is no input and stays as the job has it, and why.
    """

    name: str
    title: str
    frozen: str
    job: Mapping[str, Any]
    job_source: str
    flat: str
    inputs: tuple[Input, ...]
    held: Mapping[str, str]
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

    ``samples`` are gains with every input drawn from its range at once (Sobol points); their quantiles say how far the
    assumptions reach, not how sure a measurement is. ``overlapped`` marks those that hide expert traffic behind
    computing: the cost model lets it hide whole in both forms, so that nothing is left to gain there.
    """

    study: Study
    base: float
    steps_s: tuple[float, float]
    bars: tuple[Bar, ...]
    samples: NDArray[np.float64]
    overlapped: NDArray[np.bool_]

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """5 %, 50 % and 95 % quantiles of the samples."""
        return _quantiles(self.samples)

    @cached_property
    def interval_in_the_open(self) -> tuple[float, float, float]:
        """The same of the samples without overlap, where all expert traffic counts."""
        return _quantiles(self.samples[~self.overlapped])

    @property
    def share_beyond(self) -> float:
        """Share of the samples that reach the claim."""
        return float(np.mean(self.samples >= self.study.claim))

    @property
    def holds_claim(self) -> bool:
        """Whether the claim lies inside the interval."""
        return self.interval[0] <= self.study.claim <= self.interval[2]

    @property
    def verdict(self) -> str:
        """Where the claim lies: inside, at the edge, or outside; the edge is no yes."""
        beyond = min(self.share_beyond, 1.0 - self.share_beyond)
        if beyond < 0.01:
            return "outside"
        return "at the edge" if beyond < EDGE else "inside"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        low, middle, high = self.interval
        return {
            "study": self.study.name,
            "gain": self.base,
            "interval": {"p5": low, "p50": middle, "p95": high},
            "claim": self.study.claim,
            "claim_inside": self.holds_claim,
            "verdict": self.verdict,
            "share_beyond_claim": self.share_beyond,
            "interval_without_overlap": dict(
                zip(("p5", "p50", "p95"), self.interval_in_the_open, strict=True)
            ),
            "held": dict(self.study.held),
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
        inputs, record["held"], claim["gain"], claim["source"],
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
        Draws of all inputs; as many as the next power of 2.
    seed : int
        Of the scrambling of Sobol's points.
    """
    base = steps_s(study)
    bars = [
        Bar(item, (_gain(study, **{item.name: item.ends[0]}), _gain(study, **{item.name: item.ends[1]})))
        for item in study.inputs
    ]
    bars.sort(key=lambda bar: bar.span, reverse=True)
    from scipy.stats import qmc

    points = qmc.Sobol(len(study.inputs), seed=seed).random_base2(int(np.ceil(np.log2(max(samples, 2)))))
    drawn = [
        {item.name: item.at(float(u)) for item, u in zip(study.inputs, point, strict=True)}
        for point in points
    ]
    gains = np.array([_gain(study, **values) for values in drawn])
    hidden = np.array([bool(values["overlap_moe_comm"]) for values in drawn])
    return Gain(study, base[0] / base[1] - 1, base, tuple(bars), gains, hidden)


def _quantiles(samples: NDArray[np.float64]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(samples, QUANTILES).tolist()
    return low, middle, high


def _gain(study: Study, **values: Any) -> float:
    flat, hierarchical = steps_s(study, **values)
    return flat / hierarchical - 1
