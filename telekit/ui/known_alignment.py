"""Tables of the chapter: what changes of layout cost, what faults cost, public curves, what the locator says."""

from __future__ import annotations

from typing import Any

import numpy as np

from telekit import catalog
from telekit.accuracy.causes.finding import NONE
from telekit.accuracy.curves.curve_standards import curve_standard
from telekit.accuracy.curves.judge import BAD_BOTH, BAD_FIRST, BAD_MEAN, GOOD
from telekit.accuracy.miniature import Run, dump
from telekit.accuracy.miniature.faults import FAULTS
from telekit.accuracy.numerics.parallel_numerics import column_parallel, linear_inputs, row_parallel
from telekit.accuracy.standards.depth import depth_bound, in_epsilons
from telekit.exercises.chapter03 import mystery, mystery_errors, suspects_told
from telekit.ui import alignment as runs
from telekit.ui.alignment import CLEAN, LAYOUTS, ONE_RANK, Trial
from telekit.ui.tables import Table

STUDY = (0.03125, 0.00195, 0.50, 0.416, 0.013)
"""Published: max, mean, shares above 1e-4, 1e-3 and 1e-2 of a row-parallel layer in bf16 (TP 4, K 4096)."""
REPORTED = (
    ("healthy, least", 0.4), ("healthy, most", 3.0), ("CP attention, dQ", 147.0), ("position embedding", 296.0),
)  # fmt: skip
"""Relative errors in epsilons that NVIDIA/Megatron-LM, issue 1464, found."""
SHOWN = (
    "mask-sees-one-too-far", "rotary-base", "row-parallel-sum-missing", "residual-missing", "gate-and-up-cut-as-one",
    "norm-gradients-not-summed",
)  # fmt: skip
ASKED = (
    "residual-missing", "mask-sees-one-too-far", "norm-gradients-not-summed", "last-micro-batch-only",
    "no-bias-correction",
)  # fmt: skip
"""Faults that the chapter asks the locator about."""
SHORT = {
    "gpt3_mcore_te_tp1_pp4_vp1_uneven_pipeline": "gpt3 pp4, uneven",
    "gpt3_mcore_te_tp2_pp2_resume_torch_dist": "gpt3 tp2 pp2",
    "gpt3_mcore_te_tp1_pp1_resume_torch_dist_uniform_full_recompute": "gpt3, recompute",
    "gpt3_mcore_te_tp4_pp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce": "gpt3 tp4",
    "gpt3_mcore_tp2_pp2_ep2_te_4experts2parallel": "MoE tp2 pp2 ep2",
    "gpt3_15b_8t_release_sm": "gpt3 15B *",
    "t5_release": "t5 *",
}


def row_parallel_study() -> Table:
    """Repeat the published study of a row-parallel layer, and its column-parallel twin."""
    x, w = linear_inputs()
    found = (
        ("row, ring in bf16", row_parallel(x, w, 4)),
        ("column", column_parallel(x, w, 4)),
    )
    rows = [("published, row", f"{STUDY[0]:.5f}", f"{STUDY[1]:.5f}", *(f"{s:.1%}" for s in STUDY[2:]), "")]
    rows += [
        (
            name,
            f"{d.max_abs:.5f}",
            f"{d.mean_abs:.5f}",
            *(f"{s:.1%}" for s in d.shares.values()),
            f"{d.epsilons:.2f}",
        )
        for name, d in found
    ]
    header = ("split over 4 ranks", "max", "mean", "> 1e-4", "> 1e-3", "> 1e-2", "error [ε]")
    return Table("1,024 tokens, K 4,096, N 256, bf16; difference from one rank", header, tuple(rows))


def clean_and_broken() -> Table:
    """Put clean changes of layout and faults on one scale, beside what was reported of a real system."""
    rows = [(f"reported: {what}", "", f"{size:g}", "") for what, size in REPORTED]
    for name in LAYOUTS:
        found = runs.network_errors(runs.errors(Trial(layout=name), clean=True))
        rows.append((f"clean: {name}", "", f"{runs.worst(found, 'bfloat16'):.2f}", "0"))
    for name in SHOWN:
        found = runs.network_errors(runs.errors(Trial(name)))
        first = runs.first_off(found, "bfloat16")
        assert first is not None
        off = sum(runs.is_off(e, "bfloat16") for e in found)
        rows.append((name, first.label, f"{first.epsilons('bfloat16'):.0f}", str(off)))
    header = ("bf16, golden on one rank", "first off", "ε", "outputs off")
    return Table("largest error of a clean run; of a fault, the first that is off", header, tuple(rows))


def what_the_log_says() -> Table:
    """Say what step 1's loss and norm and step 2's loss tell of each fault, in fp32."""
    rows = []
    for name, fault in FAULTS.items():
        told = runs.told(Trial(name, ONE_RANK, "fp32"))
        cells = (told.first_loss, told.first_norm, told.second_loss)
        rows.append((name, fault.phase, *(_share(cell) for cell in cells)))
    header = ("fault", "phase", "step-1 loss", "step-1 norm", "step-2 loss")
    return Table("relative difference from golden on one rank; = : below 1e-6", header, tuple(rows))


def _share(value: float) -> str:
    return "=" if value < 1e-6 else f"{value:.3%}"


def public_curves() -> Table:
    """Judge public pairs of loss curves by MindFormers' limits on the first step and on the mean."""
    standard = curve_standard("mindformers")
    assert standard.first is not None and standard.mean is not None
    rows = []
    for row in catalog.load(catalog.root() / "measurements" / "loss_pairs.json"):
        absolute = float("inf") if row["first_abs"] is None else row["first_abs"]
        first, mean = (
            standard.first.passes(absolute, row["first_rel"]),
            standard.mean.passes(row["mae"], row["mre"]),
        )
        shape = GOOD if first and mean else BAD_FIRST if mean else BAD_MEAN if first else BAD_BOTH
        pair = f"{row['target']} / {row['golden']}"
        rows.append(
            (
                SHORT[row["case"]],
                pair,
                str(row["steps"]),
                f"{row['first_rel']:.3%}",
                f"{row['mre']:.3%}",
                shape,
            )
        )
    header = ("Megatron-LM test", "target / golden", "steps", "first", "mean", "first step and mean")
    return Table(
        "limits: first < 0.005 or < 0.5 %, mean < 0.01 or < 1 %; * not recomputed here", header, tuple(rows)
    )


def bounds() -> Table:
    """Give the bound of a gradient's error by depth."""
    layers = (0, 1, 16, 32)
    rows = tuple(
        (f"layer {layer} of 32", f"{depth_bound(layer):.5f}", f"{in_epsilons(depth_bound(layer)):.2f}",
         f"{depth_bound(layer, 'float32'):.2e}")
        for layer in layers
    )  # fmt: skip
    return Table("k 4, C 1.03", ("gradient in", "bf16", "[ε]", "fp32"), rows)


def located() -> Table:
    """Ask the locator about some teaching faults, and about a clean change of layout."""
    rows = []
    for name in (CLEAN, *ASKED):
        found = runs.answer(Trial(name, ONE_RANK, "fp32"), 0)
        want = FAULTS[name].kind if name in FAULTS else NONE
        said = found.cause if found.cause == want else f"{found.cause} (is: {want})"
        rows.append((name, _short(found.operator), said, f"{found.confidence:.2f}"))
    header = ("planted", "locator: where", "what", "how sure")
    return Table("fp32, golden on one rank, dump of step 1 of every rank", header, tuple(rows))


def _short(operator: str) -> str:
    if not operator:
        return "nowhere"
    if operator.startswith("Optimizer step of all"):
        return "optimizer, all weights"
    words = operator.split(" ")[0].removeprefix("Module.").replace("decoder.", "").split(".")
    if words[0] == "Gradient":
        return ".".join(words[: words.index("reduce")])
    return ".".join(words[:-1])


def evidence() -> Table:
    """Show what is known of the exercise's hidden fault."""
    target, golden = mystery()
    log = (
        ("step-1 loss", f"{target.losses[0]:.4f}", f"{golden.losses[0]:.4f}"),
        ("step-1 norm", f"{target.grad_norms[0]:.4f}", f"{golden.grad_norms[0]:.4f}"),
    )
    rows = [(name, a, b, "", "") for name, a, b in log]
    sizes = norms(target, golden)
    for e in mystery_errors()[:20]:
        a, b = sizes[e.tensor]
        rows.append((e.label, f"{a:.3f}", f"{b:.3f}", f"{a / b:.3f}", f"{e.epsilons('bfloat16'):.2f}"))
    header = ("forward pass of step 1", "target", "golden", "ratio", "error [ε]")
    return Table(
        "losses, then norms of outputs; tp 2 against one rank; both ranks hold equal outputs",
        header,
        tuple(rows),
    )


def norms(target: Run, golden: Run) -> dict[str, tuple[float, float]]:
    """Norms of every tensor of step 1, the target's and golden's."""
    own = {x.name: x for x in dump(target, steps=[0])}
    return {g.name: (_norm(own[g.name].load()), _norm(g.load())) for g in dump(golden, steps=[0])}


def _norm(values: Any) -> float:
    return float(np.linalg.norm(np.asarray(values, np.float64).ravel()))


def suspects() -> Table:
    """List the suspects of the design, and the checks there are."""
    return Table("a clean run counts too: 'nothing'", ("suspect", "what it is"), suspects_told())
