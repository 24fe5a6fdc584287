"""Tasks of chapter 5 and what they are checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from telekit.cluster.config import load_cluster
from telekit.cost.packing_gain import llama_like, setting_of, telechat3_36b
from telekit.errors import InputError
from telekit.exercises.check import Feedback, design, number
from telekit.job import Job
from telekit.layout.config import ParallelConfig
from telekit.model.count import count
from telekit.model.huggingface import load_model
from telekit.packing.balance import balanced, lower_bound
from telekit.packing.gain import ROOM, gain
from telekit.packing.policies import BY_WORK
from telekit.packing.work import WorkModel
from telekit.training.config import TrainConfig
from telekit.training.documents import distribution

SAMPLES = ((8,), (4, 4), (2, 2, 2, 2), (1,) * 8)
"""Documents of the samples of exercise 2, in Ki tokens."""
WORKS = (30, 10, 10, 10, 10, 10, 10, 10)
"""Work of the samples of exercise 3."""

DEVICES, HIDDEN, TOKENS = 32, 4096, 2**21
"""The design's devices, its model's hidden size, tokens of a step."""
WHOLE, ROOM_TOKENS, FEWEST_STAGES = 32768, 36864, 2
"""Longest document that must stay whole; tokens whose activations a device holds; stages from which states fit."""
SEQ_LENS, STAGES = (8192, 16384, 32768, 65536, 131072), (1, 2, 4, 8)
CHOICES = ("as given", "longest-first", "karmarkar-karp", "balanced", BY_WORK)
BATCHES, WITHIN = 5, 1.02


def causal_pairs(lengths: tuple[int, ...]) -> int:
    """Pairs of a token and one that it sees, itself included."""
    return sum(n * (n + 1) // 2 for n in lengths)


def one_or_two(answer: float | None) -> Feedback:
    """Causal pairs of one document of 1,024 tokens over those of two of 512."""
    ratio = causal_pairs((1024,)) / causal_pairs((512, 512))
    return number(
        answer,
        ratio,
        rel=2e-4,
        hint="A token sees itself and those before it: n (n + 1) / 2 pairs. Give four digits.",
        slips={
            "that is squares; a token sees itself too, and n tokens have n (n + 1) / 2 pairs": 2.0,
            "that is one document against one of half its length; there are two": 2 * ratio,
            "upside down: the one document over the two": 1 / ratio,
        },
    )


def work_ms(documents: tuple[int, ...]) -> float:
    """Work of a sample of exercise 2: 1 ms a Ki token, and a quarter of the square of each document."""
    return sum(documents) + sum(n * n for n in documents) / 4


def exchange(answer: float | None) -> Feedback:
    """Shortest step of two ranks with two samples each, in ms."""
    work = np.array([work_ms(documents) for documents in SAMPLES])
    best = balanced(work, 2, per_rank=2).largest
    return number(
        answer,
        best,
        rel=0.005,
        unit="ms",
        hint="Work out the four samples first: 8 ms each, and a quarter of each document's square.",
        slips={
            "that is the step as given": float(work[:2].sum()),
            "that is the mean, which whole samples do not meet here": float(work.sum() / 2),
            "that is heaviest with third: try heaviest with lightest": float(work[0] + work[2]),
            "a step is two samples a rank": float(work[0]),
            "that is the faster rank": float(work.sum() - best),
        },
    )


def bound(answer: float | None) -> Feedback:
    """Work below which no assignment of eight samples onto four ranks, two each, brings the busiest."""
    return number(
        answer,
        lower_bound(WORKS, 4, per_rank=2),
        rel=0.005,
        unit="units of work",
        hint="Where does the heaviest sample go, and with what?",
        slips={
            "that is the mean: the heaviest sample alone is above it": sum(WORKS) / 4,
            "that is the heaviest sample alone, and its rank takes two": max(WORKS),
            "that is all work": sum(WORKS),
        },
    )


@cache
def _work() -> WorkModel:
    """Work in TeleChat3-36B's published layout."""
    return setting_of(telechat3_36b()).work


def equal_tokens(answer: float | None) -> Feedback:
    """Time of a sample of one document of 32,768 tokens over that of 32 documents of 1,024, TeleChat3-36B."""
    times = _work().seconds([32768, 1024])
    return number(
        answer,
        float(times[0] / (32 * times[1])),
        hint="A document of n tokens takes as n c + n squared, with c the length at which attention is half.",
        slips={
            "that counts tokens alone": 1.0,
            "that counts pairs alone, and most of the work is not attention": causal_pairs((32768,))
            / causal_pairs((1024,) * 32),
            "the short documents have attention too": 1 + 32768 / _work().crossover,
        },
    )


def crossover(answer: float | None) -> Feedback:
    """Length at which attention takes as many FLOPs as the matrices of a layer, TeleChat3-36B, in tokens."""
    model = load_model("telechat3-36b")
    parts = count(model).by_component
    attention, mlp = (parts[name] / len(model.layers) for name in ("attention", "mlp"))
    h = model.hidden_size
    return number(
        answer,
        (attention + mlp) / h - 1,
        unit="tokens",
        hint="2 FLOPs a parameter; 4 h FLOPs a pair, and a token of n has (n + 1) / 2 pairs on average.",
        slips={
            "a token sees half of the others on average, not all": (attention + mlp) / h / 2,
            "the MLP's three matrices belong to the rest": attention / h - 1,
            "that is for the MLP alone": mlp / h - 1,
            "a pair takes 2 FLOPs by the key and 2 by the value, in each of h numbers": 2
            * (attention + mlp)
            / h,
            "that is what the chapter's model has, with kernels' speeds; the question counts FLOPs": _work().crossover,
        },
    )


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A reader's step.

    Attributes
    ----------
    seq_len, stages : int
        Tokens of a sample, pipeline stages.
    policy : str
        One of :data:`CHOICES`.
    """

    seq_len: int
    stages: int
    policy: str

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return DEVICES // self.stages

    @property
    def micro_batches(self) -> int:
        """Samples of a rank in a step; 0 where there are fewer samples than ranks."""
        return TOKENS // (self.seq_len * self.ranks)

    @property
    def held(self) -> float:
        """Tokens whose activations, of all layers, the first stage holds at most under 1F1B."""
        most = self.seq_len * (ROOM if self.policy == BY_WORK else 1.0)
        return min(self.stages, self.micro_batches) * most / self.stages

    @property
    def fits(self) -> bool:
        """Whether all but the time is met."""
        return (
            self.micro_batches > 0
            and self.stages >= FEWEST_STAGES
            and self.seq_len >= WHOLE
            and self.held <= ROOM_TOKENS
        )

    @property
    def step_s(self) -> float:
        """Seconds of a step of all tokens, the mean over batches."""
        return _steps(self.seq_len, self.stages)[self.policy]


@cache
def _steps(seq_len: int, stages: int) -> dict[str, float]:
    """Seconds of a step of the same tokens under each policy."""
    it = Choice(seq_len, stages, "balanced")
    train = TrainConfig(seq_len=seq_len, global_batch=it.ranks * it.micro_batches)
    cluster = load_cluster({"device": "h100", "devices": DEVICES})
    job = Job(load_model(llama_like(32, HIDDEN)), cluster, train, ParallelConfig(pp=stages, dp=it.ranks))
    found = gain(setting_of(job), distribution("wlb-llm"), CHOICES, BATCHES)
    given = found["as given"].step_s
    return {each.policy: float((given / each.speedup).mean()) for each in found.policies}


@cache
def shortest() -> Choice:
    """Find the shortest choice that fits, of all there are."""
    return min((it for it in _all() if it.fits), key=lambda it: it.step_s)


def _all() -> Iterator[Choice]:
    return (Choice(s, p, name) for s in SEQ_LENS for p in STAGES for name in CHOICES)


def _runs(it: Choice) -> bool | str:
    return it.micro_batches > 0 or f"{TOKENS // it.seq_len} samples do not go onto {it.ranks} ranks"


def _whole(it: Choice) -> bool | str:
    return it.seq_len >= WHOLE or f"samples of {it.seq_len:,} tokens cut longer ones"


def _room(it: Choice) -> bool | str:
    if it.stages < FEWEST_STAGES:
        return "one stage has no room for the states of all layers"
    larger = f", with samples of up to {ROOM:g} times the length" if it.policy == BY_WORK else ""
    return (
        it.held <= ROOM_TOKENS
        or f"the first stage holds {it.held:,.0f} tokens{larger}, and has room for {ROOM_TOKENS:,}"
    )


def _short(it: Choice) -> bool | str:
    ratio = it.step_s / shortest().step_s
    return ratio <= WITHIN or f"it takes {it.step_s:.2f} s, {ratio:.3f} times the shortest that fits"


DEMANDS: tuple[tuple[str, Callable[[Choice], bool | str]], ...] = (
    ("It must run", _runs),
    (f"Documents up to {WHOLE:,} tokens must fit a sample", _whole),
    ("It must fit", _room),
    (f"It may take {WITHIN - 1:.0%} longer than the shortest", _short),
)


def step(answer: Mapping[str, Any] | None) -> Feedback:
    """Check a step that a reader chose: tokens of a sample, stages, policy."""
    if answer is None:
        return design(None, (), 'Give a choice, such as {"seq_len": 8192, "pp": 1, "policy": "as given"}.')
    try:
        found = _read(answer)
    except InputError as error:
        return Feedback(False, f"It must run: {'; '.join(str(p) for p in error.problems)}.")
    except ValueError as error:
        return Feedback(False, f"{error}.")
    return design(found, DEMANDS)


def _read(answer: Any) -> Choice:
    """Read a choice.

    Raises
    ------
    ValueError
        With a sentence that says what is wrong with it.
    """
    if not isinstance(answer, Mapping) or set(answer) != {"seq_len", "pp", "policy"}:
        raise ValueError("A choice is seq_len, pp and policy, and no more")
    for name, allowed in (("seq_len", SEQ_LENS), ("pp", STAGES), ("policy", CHOICES)):
        value = answer[name]
        if isinstance(value, bool) or not any(value == each for each in allowed):
            raise ValueError(f"{name} is one of {', '.join(map(str, allowed))}")
    return Choice(int(answer["seq_len"]), int(answer["pp"]), answer["policy"])
