"""The controls that describe a job, shared by panels: a published run to start from, the case, the layout."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import ipywidgets as W  # noqa: N812 (the library's own habit)

from telekit import catalog
from telekit.cluster.config import device_names
from telekit.cost.estimate import Estimate
from telekit.job import Job, load_job
from telekit.layout.config import SCHEDULES
from telekit.training.config import BYTES
from telekit.ui.controls import pick, slide
from telekit.units import format_seconds, gib

DEVICES = [2**i for i in range(3, 15)]
SEQUENCES = [2**i for i in range(11, 18)]
BATCHES = [*(2**i for i in range(4, 14)), 15360]
POWERS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
RECOMPUTE = {
    "none": "none",
    "norms, SwiGLU, MLA up": ("layernorm", "moe_act", "mla_up_proj"),
    "selective": "selective",
    "full": "full",
}
TRAIN = ("seq_len", "global_batch", "precision")
LAYOUT = ("micro_batch", "tp", "cp", "pp", "vpp", "ep", "etp", "zero", "recompute", "schedule")


def case_controls(start: str) -> dict[str, W.Widget]:
    """Make the controls of a model, a cluster and a training, at a published run's values."""
    titles = {catalog.record("jobs", name)["title"]: name for name in catalog.names("jobs")}
    given = values_of(start)
    return {
        "start": pick("start from", titles, start, columns=2),
        "model": pick("model", catalog.names("models"), given["model"]),
        "device": pick("device", device_names(), given["device"]),
        "devices": slide("devices", DEVICES, given["devices"]),
        "precision": pick("precision", list(BYTES), given["precision"]),
        "seq_len": slide("sequence", SEQUENCES, given["seq_len"]),
        "global_batch": slide("global batch", BATCHES, given["global_batch"]),
    }


def layout_controls(start: str) -> dict[str, W.Widget]:
    """Make the controls of a layout, at a published run's values."""
    given = values_of(start)
    return {
        "micro_batch": slide("micro-batch", POWERS[:5], given["micro_batch"]),
        "tp": slide("tp", POWERS[:6], given["tp"]),
        "cp": slide("cp", POWERS[:6], given["cp"]),
        "pp": slide("pp", POWERS[:7], given["pp"]),
        "vpp": slide("vpp", list(range(1, 9)), given["vpp"]),
        "ep": slide("ep", POWERS, given["ep"]),
        "etp": slide("etp", POWERS[:4], given["etp"]),
        "zero": slide("ZeRO", [0, 1, 2, 3], given["zero"]),
        "recompute": pick("recompute", RECOMPUTE, given["recompute"]),
        "schedule": pick("schedule", SCHEDULES, given["schedule"]),
    }


def values_of(start: str) -> dict[str, Any]:
    """Return the controls' values for a published run."""
    job = catalog.record("jobs", start)["job"]
    values = {"precision": "bf16"} | job["cluster"] | job["train"] | job["layout"]
    if not isinstance(values["recompute"], str):
        values["recompute"] = tuple(values["recompute"])
    return {"start": start, "model": job["model"]} | {
        name: values[name] for name in ("device", "devices", *TRAIN, *LAYOUT)
    }


def job_of(values: Mapping[str, Any]) -> Job:
    """Build the job that controls describe; for the published run's own model, what has no control stays as it was.

    Without the layout's controls its degrees are left open, and so is a schedule of "".
    """
    base = catalog.record("jobs", values["start"])["job"]
    chosen = {name: values[name] for name in LAYOUT if values.get(name, "") != ""}
    same = values["model"] == base["model"]
    kept = {name: value for name, value in base["layout"].items() if name not in LAYOUT} if same else {}
    return load_job(
        {
            "model": values["model"],
            "cluster": {"device": values["device"], "devices": values["devices"]},
            "train": (base["train"] if same else {}) | {name: values[name] for name in TRAIN},
            "layout": kept | chosen,
        }
    )


def figures(found: Estimate) -> str:
    """Write the figures of an estimate in one line of HTML."""
    assert found.step_time_s is not None and found.tokens_per_s_per_device is not None
    fits = "" if found.fits else " class='telekit-bad'"
    cells = [
        ("a step", format_seconds(found.step_time_s), ""),
        ("tokens/s a device", f"{found.tokens_per_s_per_device:,.0f}", ""),
        ("TFLOP/s a device", f"{found.model_tflops_per_device:.0f}", ""),
        ("MFU", f"{found.mfu:.1%}", ""),
        (f"of {gib(found.capacity_bytes):.1f} GiB", f"{gib(found.peak_bytes):.1f} GiB", fits),
    ]
    spans = "".join(f"<span><b{mark}>{value}</b> {html.escape(name)}</span>" for name, value, mark in cells)
    return f"<div class='telekit-figures'>{spans}</div>{_interval(found)}"


def _interval(found: Estimate) -> str:
    """Say where published runs like it would lie; nothing where no scoreboard is shipped."""
    if found.interval is None or found.step_time_interval_s is None:
        return ""
    low, high = (format_seconds(end) for end in found.step_time_interval_s)
    said = f"{low} to {high} a step, by eight of ten published runs like it ({found.interval.said}). "
    return f"<span class='telekit-soft'>{html.escape(said)}</span>"


def listed(found: Estimate) -> str:
    """List the assumptions of an estimate, folded away."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in found.assumptions)
    return f"<details><summary>{len(found.assumptions)} assumptions</summary><ul>{items}</ul></details>"
