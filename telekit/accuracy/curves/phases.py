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
from telekit.accuracy.curves.curve_standards import curve_standard
from telekit.accuracy.curves.judge import CurveVerdict, judge_curves
from telekit.accuracy.curves.phase_items import (
    MEGATRON,
    MINDFORMERS,
    MSPROBE,
    OPEN,
    PHASES,
    PREPARATION,
    TELECHAT,
    Item,
    long_items,
    noise_item,
    short_items,
    zero_item,
)
from telekit.accuracy.readers.curve import LossCurve, as_number
from telekit.accuracy.readers.losses import losses
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, worst
from telekit.errors import InputError

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
    *("attention_dropout", "attention_dropout_rate", "attention_probs_dropout_prob", "dropout_rate"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop"),
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
        A file given cannot be read. Losses or tensors that can be read and not compared are an item that fails.
    """
    sheets = tuple(
        check_sheet(name, target.sheet(name), golden.sheet(name), expected=expected)
        for name in config_check.SHEETS
    )
    noise = [_curve(run) for run in golden.noise]
    zero_pair = _both(target.lr_zero, golden.lr_zero)
    # without the noise of ordinary training: those runs learn, these stand still
    zero, no_zero = _judged(zero_pair, standard, sizes=sizes)
    pair = _both(target.losses, golden.losses)
    usable = zero_pair if zero is not None else None
    verdict, no_verdict = _judged(pair, standard, noise=noise, sizes=sizes, lr_zero=usable)
    items = (
        *(_sheet_item(sheet) for sheet in sheets),
        _determinism(target, golden),
        _quiet(target, golden),
        *short_items(verdict, no_verdict),
        noise_item(verdict, bool(noise), no_verdict),
        zero_item(zero, no_zero),
        *long_items(verdict, no_verdict),
    )
    return PhaseReport(items, sheets, verdict, zero)


def _curve(given: str | Path | LossCurve) -> LossCurve:
    return given if isinstance(given, LossCurve) else losses(given)


def _both(
    target: str | Path | LossCurve | None, golden: str | Path | LossCurve | None
) -> tuple[LossCurve, LossCurve] | None:
    return None if target is None or golden is None else (_curve(target), _curve(golden))


def _judged(
    pair: tuple[LossCurve, LossCurve] | None, standard: str, **more: Any
) -> tuple[CurveVerdict | None, str]:
    """Return the verdict, or why there is none although both curves are there."""
    if pair is None:
        return None, ""
    curve_standard(standard)
    try:
        return judge_curves(*pair, standard=standard, **more), ""
    except InputError as error:
        return None, str(error)


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
    found = [
        (f"{who} {key}", value)
        for who, run in (("target", target), ("golden", golden))
        for key, value in _settings(run.hyperparameters).items()
        if str(key).rsplit(".", 1)[-1].replace("-", "_") in QUIET
    ]
    if not found:
        return Item(PREPARATION, name, MINDFORMERS, OPEN, "the settings do not say", how)
    loud = [(key, value) for key, value in found if not _off(value)]
    text = ", ".join(f"{key} = {value}" for key, value in loud or found)
    return Item(PREPARATION, name, MINDFORMERS, WARNING if loud else PASS, text, how if loud else "")


def _off(value: Any) -> bool:
    """Whether a rate or a count is 0, or not set; whatever is no number is not known to be off."""
    if isinstance(value, str):
        plain = value.strip().strip("\"'").lower()
        return plain in ("", "none", "null", "false", "off", "no") or as_number(plain) == 0
    if isinstance(value, (list, tuple)):
        return all(_off(item) for item in value)
    return value is None or value == 0
