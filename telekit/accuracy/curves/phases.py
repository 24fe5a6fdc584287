"""The end-to-end workflow in three phases, as a checklist that fills itself from the files given.

That the workflow of the TeleChat3-MoE report (arXiv 2512.24157) has three phases is public; its thresholds are not.
The steps and limits here are MindFormers' and msprobe's, the same software stack's, and each item says whose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telekit.accuracy.curves import config_check
from telekit.accuracy.curves.config_check import Sheet, check_sheet
from telekit.accuracy.curves.curve_errors import relative
from telekit.accuracy.curves.curve_rules import BOUND, DRIFT, FIRST, LENGTH, MEAN, NORM, OUTLIERS
from telekit.accuracy.curves.judge import CurveVerdict, judge_curves
from telekit.accuracy.readers.curve import LossCurve
from telekit.accuracy.readers.losses import losses
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Part, worst

PREPARATION, SHORT, LONG = "preparation", "short alignment", "long stability"
PHASES = (PREPARATION, SHORT, LONG)
OPEN = "open"
"""An item for which nothing was given."""
TELECHAT = "TeleChat3-MoE report: three phases; its thresholds are not public"
MINDFORMERS = "MindFormers practice: precision_optimization.md"
MSPROBE = "msprobe practice: config check"
MEGATRON = "Megatron-LM practice: --deterministic-mode"

DETERMINISM = {
    "HCCL_DETERMINISTIC": ("true", "strict"),  # Ascend: reductions in one order
    "ASCEND_LAUNCH_BLOCKING": ("1",),  # Ascend: one operator after the other
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",),  # Transformer Engine: no atomics
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),  # cuBLAS: one workspace
    "NCCL_ALGO": ("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),  # NCCL: no tree
}
"""Variables that fix the order of operations, and the values that do."""
QUIET = (
    *("hidden_dropout", "hidden_dropout_prob", "hidden_dropout_rate", "dropout"),
    *("attention_dropout", "attention_dropout_rate"),
    *("lr_warmup_iters", "lr_warmup_steps", "warmup_steps", "warmup_ratio", "lr_warmup_fraction"),
)
"""Names of dropout and warm-up, which are off in a comparison."""


@dataclass(frozen=True)
class RunFiles:
    """What is known of one run; leave out what is not there.

    Attributes
    ----------
    environment, packages, dataset, weights, hyperparameters, random_calls : path or mapping, optional
        As ``config_check.check_sheet`` reads them.
    losses : path or LossCurve, optional
        The training run's log.
    lr_zero : path or LossCurve, optional
        The same with learning rate 0.
    noise : tuple of path or LossCurve
        Golden only: further runs of the same setup, determinism off.
    """

    environment: str | Path | Mapping[str, Any] | None = None
    packages: str | Path | Mapping[str, Any] | None = None
    dataset: str | Path | Mapping[str, Any] | None = None
    weights: str | Path | Mapping[str, Any] | None = None
    hyperparameters: str | Path | Mapping[str, Any] | None = None
    random_calls: str | Path | Mapping[str, Any] | None = None
    losses: str | Path | LossCurve | None = None
    lr_zero: str | Path | LossCurve | None = None
    noise: tuple[str | Path | LossCurve, ...] = ()

    def sheet(self, name: str) -> str | Path | Mapping[str, Any] | None:
        """Return what was given for a sheet."""
        found: str | Path | Mapping[str, Any] | None = getattr(self, name.replace(" ", "_"))
        return found


@dataclass(frozen=True)
class Item:
    """One line of the checklist.

    Attributes
    ----------
    phase, name : str
        Where it belongs, and what is asked.
    practice : str
        Whose practice it is.
    result : str
        pass, warning, error, or open.
    found : str
        What the files say.
    how : str
        What to do when it is open or bad.
    """

    phase: str
    name: str
    practice: str
    result: str
    found: str
    how: str = ""


@dataclass(frozen=True)
class PhaseReport:
    """The filled checklist.

    Attributes
    ----------
    items : tuple of Item
        In the order of the work.
    sheets : tuple of Sheet
        The config check.
    verdict, lr_zero : CurveVerdict or None
        Of the training runs, and of those with learning rate 0.
    """

    items: tuple[Item, ...]
    sheets: tuple[Sheet, ...]
    verdict: CurveVerdict | None
    lr_zero: CurveVerdict | None
    source: str = field(default=TELECHAT)

    @property
    def ready(self) -> bool:
        """Whether the first five sheets pass, which msprobe asks before any number is compared."""
        return all(sheet.result == PASS for sheet in self.sheets[:5])

    def result(self, phase: str) -> str:
        """Return the worst of a phase; open while an item of it is open and none is bad."""
        results = [item.result for item in self.items if item.phase == phase]
        bad = worst(r for r in results if r != OPEN)
        return bad if bad in (ERROR, WARNING) or OPEN not in results else OPEN

    @property
    def next(self) -> Item | None:
        """The first item that is bad or, where none is, open: what to do now."""
        bad = next((item for item in self.items if item.result == ERROR), None)
        return bad or next((item for item in self.items if item.result == OPEN), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "source": self.source,
            "ready": self.ready,
            "phases": {phase: self.result(phase) for phase in PHASES},
            "next": None if self.next is None else self.next.name,
            "items": [vars(item) for item in self.items],
        }


def check_phases(
    target: RunFiles,
    golden: RunFiles,
    *,
    standard: str = "mindformers",
    expected: Collection[str] = (),
    sizes: Mapping[str, float] | None = None,
) -> PhaseReport:
    """Fill the checklist of the three phases.

    Parameters
    ----------
    target, golden : RunFiles
        What is there of each run.
    standard : str
        For the losses; a name of ``CURVE_STANDARDS``.
    expected : collection of str
        Settings that may differ.
    sizes : mapping of str to float, optional
        For naming a constant ratio.

    Raises
    ------
    InputError
        A file given cannot be read, or losses without a common step.
    """
    sheets = tuple(
        check_sheet(name, target.sheet(name), golden.sheet(name), expected=expected)
        for name in config_check.SHEETS
    )
    noise = [_curve(run) for run in golden.noise]
    zero_pair = _both(target.lr_zero, golden.lr_zero)
    zero = (
        None if zero_pair is None else judge_curves(*zero_pair, standard=standard, noise=noise, sizes=sizes)
    )
    pair = _both(target.losses, golden.losses)
    verdict = (
        None
        if pair is None
        else judge_curves(*pair, standard=standard, noise=noise, sizes=sizes, lr_zero=zero_pair)
    )
    items = (
        *(_sheet_item(sheet) for sheet in sheets),
        _determinism(target, golden),
        _quiet(target, golden),
        *_short(verdict),
        _noise_item(verdict, bool(noise)),
        _zero_item(zero),
        *_long(verdict),
    )
    return PhaseReport(items, sheets, verdict, zero)


def _curve(given: str | Path | LossCurve) -> LossCurve:
    return given if isinstance(given, LossCurve) else losses(given)


def _both(
    target: str | Path | LossCurve | None, golden: str | Path | LossCurve | None
) -> tuple[LossCurve, LossCurve] | None:
    return None if target is None or golden is None else (_curve(target), _curve(golden))


def _sheet_item(sheet: Sheet) -> Item:
    result = OPEN if sheet.result == SKIP else sheet.result
    how = "give it for both runs" if result == OPEN else "make it alike, or name it as expected to differ"
    return Item(PREPARATION, f"same {sheet.name}", MSPROBE, result, str(sheet), "" if result == PASS else how)


def _settings(given: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else config_check.settings(Path(given))


def _determinism(target: RunFiles, golden: RunFiles) -> Item:
    """See in the environments whether each run fixes its order of operations."""
    name, how = (
        "randomness fixed",
        "set HCCL_DETERMINISTIC=true (Ascend), or --deterministic-mode's variables (CUDA)",
    )
    practice = f"{MINDFORMERS}; {MEGATRON}"
    said = []
    results = []
    for who, run in (("target", target), ("golden", golden)):
        there = _settings(run.environment)
        known = [(key, good) for key, good in DETERMINISM.items() if key in there]
        if not known:
            results.append(OPEN if run.environment is None else WARNING)
            said.append(
                f"{who}: no variable of it set" if run.environment is not None else f"{who}: not given"
            )
            continue
        wrong = [
            f"{key}={there[key]}"
            for key, good in known
            if str(there[key]).lower() not in map(str.lower, good)
        ]
        results.append(WARNING if wrong else PASS)
        said.append(f"{who}: {', '.join(wrong) or ', '.join(key for key, _ in known)}")
    result = OPEN if OPEN in results else worst(results)
    return Item(PREPARATION, name, practice, result, "; ".join(said), "" if result == PASS else how)


def _quiet(target: RunFiles, golden: RunFiles) -> Item:
    """See in the hyperparameters whether dropout and warm-up are off."""
    name, how = "dropout and warm-up off, learning rate constant", "set them to 0 for the comparison"
    sides = [_settings(run.hyperparameters) for run in (target, golden)]
    found = {
        key.rsplit(".", 1)[-1]: value
        for side in sides
        for key, value in side.items()
        if key.rsplit(".", 1)[-1].replace("-", "_") in QUIET
    }
    loud = {key: value for key, value in found.items() if isinstance(value, (int, float)) and value > 0}
    if not found:
        return Item(PREPARATION, name, MINDFORMERS, OPEN, "the settings do not say", how)
    text = ", ".join(f"{key} = {value}" for key, value in (loud or found).items())
    return Item(PREPARATION, name, MINDFORMERS, WARNING if loud else PASS, text, how if loud else "")


def _part(verdict: CurveVerdict | None, name: str) -> Part | None:
    return None if verdict is None else next((p for p in verdict.verdict.parts if p.name == name), None)


def _from_part(phase: str, name: str, part: Part | None, how: str) -> Item:
    if part is None or part.result == SKIP:
        note = "no losses given" if part is None else part.note
        return Item(phase, name, MINDFORMERS, OPEN, note, how)
    text = f"{part.note} ({part.rule})" if part.note else part.rule
    return Item(phase, name, MINDFORMERS, part.result, text, "" if part.result == PASS else how)


def _short(verdict: CurveVerdict | None) -> tuple[Item, ...]:
    """Fill step 1's loss, step 1's gradient norm and step 2's loss: forward, backward, optimizer."""
    return (
        _from_part(
            SHORT, "step-1 loss agrees (forward)", _part(verdict, FIRST), "dump the forward pass of step 1"
        ),
        _from_part(
            SHORT,
            "step-1 gradient norm agrees (backward)",
            _part(verdict, BOUND),
            "log the gradient norm; local norms by weight tell which",
        ),
        _second(verdict),
    )


def _second(verdict: CurveVerdict | None) -> Item:
    name, how = "step-2 loss agrees (optimizer)", "compare the parameters after the first update"
    loss = None if verdict is None else verdict.errors.loss
    if verdict is None or loss is None or loss.steps.size < 2 or not loss.finite[1]:
        return Item(SHORT, name, MINDFORMERS, OPEN, "no second step is given", how)
    error = abs(loss.target[1:2] - loss.golden[1:2])
    size, share = float(error[0]), float(relative(error, loss.golden[1:2])[0])
    limit = verdict.first_limit or verdict.mean_limit
    if limit is None:
        return Item(SHORT, name, MINDFORMERS, OPEN, "the standard has no limit for it", how)
    fine = limit.passes(size, share)
    text = f"step {int(loss.steps[1])}: off by {size:.4g}, {share:.4%} ({limit})"
    return Item(SHORT, name, MINDFORMERS, PASS if fine else ERROR, text, "" if fine else how)


def _noise_item(verdict: CurveVerdict | None, given: bool) -> Item:
    name = "golden's self-noise known"
    noise = None if verdict is None else verdict.errors.noise
    if not given or noise is None:
        how = "run golden twice with determinism off: noise above a limit is the limit"
        return Item(LONG, name, MINDFORMERS, OPEN, "no second run of golden is given", how)
    return Item(
        LONG, name, MINDFORMERS, PASS, f"{noise.runs} runs differ by {noise.mae:.4g}, {noise.mre:.4%}"
    )


def _zero_item(zero: CurveVerdict | None) -> Item:
    name, how = (
        "learning rate 0 for 1,000 steps agrees",
        "what differs without an update is forward pass or data",
    )
    if zero is None or zero.errors.mean is None:
        return Item(LONG, name, MINDFORMERS, OPEN, "no such pair of runs is given", how)
    mean = zero.errors.mean
    text = f"{mean.steps} steps: mean error {mean.mae:.4g}, {mean.mre:.4%} (published case: loss 0.001, norm 0.05)"
    result = WARNING if zero.passed and mean.steps < 1000 else PASS if zero.passed else ERROR
    return Item(LONG, name, MINDFORMERS, result, text, "" if result == PASS else how)


def _long(verdict: CurveVerdict | None) -> tuple[Item, ...]:
    rows: tuple[tuple[str, str, str], ...] = (
        ("mean loss error within its limit", MEAN, "isolate with learning rate 0"),
        ("gradient norm within 10 %", NORM, "log the gradient norm on both sides"),
        ("error around 0, no drift", DRIFT, "look where it leaves the noise band"),
        ("no steps out of line", OUTLIERS, "look for a resume or another batch there"),
        ("long enough", LENGTH, "run 5,000 steps or 12 h, 1,000 steps at least"),
    )
    return tuple(_from_part(LONG, name, _part(verdict, part), how) for name, part, how in rows)
