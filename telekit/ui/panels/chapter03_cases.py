"""Panels of chapter 3 with something hidden: a fault to find from curves and dumps, and a checklist to fill."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

from telekit.accuracy.causes import finding
from telekit.accuracy.compared import FORWARD, OPTIMIZER
from telekit.accuracy.curves.phase_items import PHASES
from telekit.accuracy.curves.phases import PhaseReport, RunFiles, check_phases
from telekit.accuracy.graph.graph_errors import GraphError
from telekit.accuracy.locating.phase_hint import phase_hint
from telekit.accuracy.miniature.faults import FAULTS
from telekit.ui import alignment as runs
from telekit.ui import alignment_charts as charts
from telekit.ui.alignment import CLEAN, LINE, ONE_RANK, SAME, Trial
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.panels.apart import figures_line

STEPS = 8
"""Steps of a case's curves."""
CASES: tuple[tuple[str, str, int], ...] = (
    ("residual-missing", "", 1), ("gradients-divided-by-dp", "", 2), ("rotary-base", "", 3), (CLEAN, "tp 4", 4),
    ("no-bias-correction", "", 5), ("row-parallel-sum-missing", "", 6), ("expert-gradients-times-ep", "", 1),
    ("gate-and-up-cut-as-one", "", 2), ("state-lost-on-resume", "", 3), ("norm-gradients-not-summed", "", 4),
    ("mask-sees-one-too-far", "", 5), (CLEAN, "cp 2", 6), ("router-gradient-not-summed", "", 1),
    ("last-micro-batch-only", "", 2),
)  # fmt: skip
"""Fault, layout of a clean case, seed; numbered from 1."""
OPEN = "?"
NOWHERE = "nowhere"
PLACE_OF = {
    "rotary-base": "rotary_pos_emb",
    "mask-sees-one-too-far": "core_attention",
    "row-parallel-sum-missing": "linear_proj",
    "gate-and-up-cut-as-one": "linear_fc1",
    "residual-missing": "mlp_bda",
    "router-gradient-not-summed": "router",
    "norm-gradients-not-summed": "gradients of norms",
    "expert-gradients-times-ep": "gradients of experts",
    "gradients-divided-by-dp": "gradients of all weights",
    "last-micro-batch-only": "gradients of all weights",
    "no-bias-correction": "optimizer",
    "state-lost-on-resume": "optimizer",
    CLEAN: NOWHERE,
}
PLACES = [
    OPEN, NOWHERE, "rotary_pos_emb", "core_attention", "linear_proj", "linear_fc1", "activation_func", "linear_fc2",
    "mlp_bda", "router", "gradients of norms", "gradients of experts", "gradients of all weights", "optimizer",
]  # fmt: skip
MARKS = {
    "gradients of norms": "layernorm.weight.reduced",
    "gradients of experts": "experts.linear_fc1.weight.reduced",
    "gradients of all weights": "weight.reduced",
    "optimizer": "weight.parameter",
}
"""What tells the labels of a place that is no operator's name."""
CAUSES = [
    OPEN, finding.NONE, finding.MISSING_REDUCTION, finding.DOUBLE_REDUCTION, finding.GRADIENT_SCALING,
    finding.PERMUTATION, finding.MASK, finding.ROTARY, finding.SOFTMAX_SCALE, finding.MISSING_TERM,
    finding.BIAS_CORRECTION, finding.OPTIMIZER_STATE, finding.LEARNING_RATE,
]  # fmt: skip
GIVEN = (
    "nothing", "settings", "weights and data", "training logs", "logs with lr 0", "golden's other runs",
)  # fmt: skip
WRONG = {
    "nothing": CLEAN,
    "dropout left on": "dropout",
    "forward: a sum is missing": "row-parallel-sum-missing",
    "backward: divided by dp twice": "gradients-divided-by-dp",
    "optimizer: no bias correction": "no-bias-correction",
}


# --- find the fault -----------------------------------------------------------------------------------------


def game_explorer(case: int = 1) -> Explorer:
    """Choose a hidden case, look at its curves and dumps, guess, and ask the locator."""
    controls = {
        "case": slide("case", list(range(1, len(CASES) + 1)), case, costly=True),
        "step": pick("dump of step", [1, 2], 1),
        "by": pick("dump holds", {"elements": "elements", "statistics": "norm"}, "elements"),
        "golden": pick("golden on", [ONE_RANK, SAME], SAME),
        "precision": pick("arithmetic", ["bf16", "fp32"], "fp32"),
        "rate": pick("curves with", {"lr as trained": 1.0, "lr 0": 0.0}, 1.0),
        "place": pick("where?", PLACES, OPEN),
        "cause": pick("what?", CAUSES, OPEN),
        "answer": pick("locator", {"keeps silent": False, "answers": True}, False),
    }
    views = [
        charts.graph_errors_chart(tuple(charts.PHASES)[:-1], 480, 250),
        charts.curve_chart(200, 220, few=True),
    ]
    return Explorer(controls, views, _game, _game_text, _game_titles, title="Find the fault")


def trial_of(case: int, golden: str = SAME, precision: Any = "fp32") -> Trial:
    """Return the runs of a case."""
    fault, layout, seed = CASES[case - 1]
    return Trial(fault, golden, precision, seed=seed, layout=layout or "tp 2, dp 2")


def _looked(
    case: int, step: int, by: Any, golden: str, precision: Any, **_: Any
) -> tuple[tuple[GraphError, ...], str]:
    trial = trial_of(case, golden, precision)
    return runs.errors(trial, step - 1, by), trial.epsilon_format


def _off(found: tuple[GraphError, ...], dtype: str) -> list[GraphError]:
    return [e for e in found if runs.is_off(e, dtype)]


def _game(case: int, golden: str, precision: Any, rate: float, answer: bool, **values: Any) -> Tables:
    found, dtype = _looked(case=case, golden=golden, precision=precision, **values)
    first = runs.first_off(found, dtype) if answer else None
    trial = trial_of(case, golden, precision)
    if not rate:
        trial = replace(trial, lr=0.0)
    target, own = runs.curves(trial, STEPS)
    series = {}
    for what, column in (("loss", "lm loss"), ("gradient norm", "grad norm")):
        share = target.columns[column] / own.columns[column] - 1
        series[what] = (target.steps.tolist(), share.tolist())
    return charts.graph_rows(found, (), dtype, LINE[dtype], first) | charts.curve_rows(series, 0.005)


def _game_titles(**values: Any) -> list[str]:
    found, dtype = _looked(**values)
    off = _off(found, dtype)
    step = f"step {values['step']}"
    said = f"Case {values['case']}: {len(off)} of {len(found)} outputs of {step} are off"
    if off and off[0].phase == OPTIMIZER:
        said = f"Case {values['case']}: the network's outputs of {step} agree, {len(off)} of the optimizer's do not"
    rows = _game(**values)["curves"]
    loss = [r for r in rows if r["what"] == "loss"]
    most = max(loss, key=lambda r: abs(float(str(r["share"]))))
    share = abs(float(str(most["share"])))
    if share < 1e-6:
        return [said, "The losses agree at every step"]
    return [said, f"The losses part by up to {share:.2%}, at step {most['step']}"]


def _game_text(
    case: int, golden: str, precision: Any, place: str, cause: str, answer: bool, **values: Any
) -> str:
    trial = trial_of(case, golden, precision)
    lines = [_layout_line(trial) + _hint_line(trial)]
    found, dtype = _looked(case=case, golden=golden, precision=precision, **values)
    if place != OPEN or cause != OPEN:
        lines.append(verdict_on(trial, place, cause, found, dtype))
    if answer:
        lines += _locators(trial)
    return "<br>".join(lines)


def _layout_line(trial: Trial) -> str:
    n = trial.target_layout
    degrees = " ".join(f"{name} {size}" for name, size in trial.sizes.items() if size > 1)
    parallel = ", sequence parallel" if n.splits_sequence else ""
    what = f"{trial.config.experts} experts" if trial.config.experts else "dense"
    cells = [(degrees.replace("micro_batches", "micro-batches") + parallel, "target"), (what, "model")]
    return figures_line(cells)


def _hint_line(trial: Trial) -> str:
    """Say which phase the decision tree arrives at, from the log alone."""
    target, golden = runs.target_run(trial), runs.golden_run(trial)
    epsilon = 2.0**-7 if trial.precision == "bf16" else 2.0**-23
    hint = phase_hint((target.losses, golden.losses), (target.grad_norms, golden.grad_norms), epsilon)
    said = hint.evidence[-1] if hint.evidence else "the first two losses and the first norm agree"
    return f"<span class='telekit-soft'>The log: {html.escape(said)}.</span>"


def verdict_on(trial: Trial, place: str, cause: str, found: tuple[GraphError, ...], dtype: str) -> str:
    """Say whether a guess is right, and if not, what speaks against it."""
    said = []
    right = PLACE_OF[trial.fault]
    if place == right:
        said.append("✓ the place is right")
    elif place != OPEN:
        own = [e for e in found if MARKS.get(place, place) in e.label]
        why = "rounding explains all that differs there" if right == NOWHERE else "something is off"
        if place != NOWHERE and right != NOWHERE:
            # of an operator its forward: on the way back all behind a fault is off
            off = _off(tuple(e for e in own if place in MARKS or e.phase == FORWARD), dtype)
            rest = "its outputs" if place in MARKS else "its forward outputs"
            why = "it is off, but so is what came before it" if off else f"{rest} are within rounding"
        said.append(f"✗ {place}: {why}")
    true = FAULTS[trial.fault].kind if trial.fault in FAULTS else finding.NONE
    if cause != OPEN:
        said.append("✓ the cause is right" if cause == true else f"✗ {cause}: it would look otherwise")
    return f"<b>{html.escape('; '.join(said))}</b>"


def _locators(trial: Trial) -> list[str]:
    """Say what the locator found and on what evidence, and what was planted; golden runs in the same layout."""
    found = runs.answer(replace(trial, golden=SAME))
    where = found.operator or "nothing"
    lines = [
        f"<b>Locator:</b> {html.escape(where)}; {html.escape(found.cause)}, confidence {found.confidence:.2f}"
    ]
    evidence = "".join(f"<li>{html.escape(line)}</li>" for line in found.evidence[:5])
    lines.append(
        f"<span class='telekit-soft'>Evidence:<ul>{evidence}</ul>Dump next: {html.escape(found.next_dump)}.</span>"
    )
    if trial.fault in FAULTS:
        fault = FAULTS[trial.fault]
        lines.append(f"<b>Planted:</b> {html.escape(fault.title)}. {html.escape(fault.lesson)}")
    else:
        lines.append("<b>Planted:</b> nothing. A change of layout alone.")
    return lines


# --- the checklist ------------------------------------------------------------------------------------------

_SETTINGS = {"lr": 1e-3, "hidden_dropout": 0.0, "warmup_steps": 0, "clip_grad": 1.0, "sequence": 16}
_ENVIRONMENT = {"HCCL_DETERMINISTIC": "true", "ASCEND_LAUNCH_BLOCKING": "1"}


def checklist_explorer() -> Explorer:
    """Give more and more files of a comparison, and see which items of the three phases fill."""
    controls = {
        "given": pick("given up to", {name: i for i, name in enumerate(GIVEN)}, 3),
        "wrong": pick("wrong is", WRONG, "row-parallel-sum-missing"),
    }
    views = [charts.verdict_chart(420, 390)]
    return Explorer(
        controls, views, _checklist, _checklist_text, _checklist_titles, title="Three phases, one checklist"
    )


def report(given: int, wrong: str) -> PhaseReport:
    """Fill the checklist from what is given so far."""
    fault = wrong if wrong in FAULTS else CLEAN
    both: dict[str, Any] = {}
    if given >= 1:
        both |= {"environment": _ENVIRONMENT, "packages": {"framework": "2.7.1"}, "hyperparameters": _SETTINGS,
                 "random_calls": {"seed_all": 1234}}  # fmt: skip
    if given >= 2:
        both |= {"dataset": {"first batch": "c1d0", "order": "1234"}, "weights": {"checkpoint": "9f3a"}}
    target, golden = dict(both), dict(both)
    if wrong == "dropout" and given >= 1:
        target["hyperparameters"] = _SETTINGS | {"hidden_dropout": 0.1}
    if given >= 3:
        seen = runs.logs(fault)
        target["losses"], golden["losses"] = seen.target, seen.golden
        if given >= 4:
            target["lr_zero"], golden["lr_zero"] = seen.target_zero, seen.golden_zero
        if given >= 5:
            golden["noise"] = seen.noise
    return check_phases(RunFiles(**target), RunFiles(**golden))


def _checklist(given: int, wrong: str) -> Tables:
    found = report(given, wrong)
    return charts.verdict_rows((item.phase, item.name, item.result, item.found) for item in found.items)


def _checklist_titles(given: int, wrong: str) -> list[str]:
    found = report(given, wrong)
    filled = sum(item.result != "open" for item in found.items)
    told = ", ".join(f"{phase}: {found.result(phase)}" for phase in PHASES)
    return [f"{filled} of {len(found.items)} items are filled; {told}"]


def _checklist_text(given: int, wrong: str) -> str:
    found = report(given, wrong)
    item = found.next
    ready = "yes" if found.ready else "no"
    cells = [(found.result(phase), phase) for phase in PHASES] + [(ready, "fit to compare numbers")]
    after = "Nothing is left to do." if item is None else f"Do next ({item.phase}): {item.name}; {item.how}."
    suspect = "" if found.verdict is None else f" Suspect: {found.verdict.suspect.cause}."
    whose = " Items and limits are msprobe's, MindFormers' and Megatron's practice; the report's own are not public."
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(after + suspect + whose)}</span>"
