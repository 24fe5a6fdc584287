"""The panel that takes one model apart: its shape under a reader's hands, and what becomes of it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from telekit import catalog
from telekit.cluster.config import Device, device_names
from telekit.cost.glance import devices_to_hold, run_s
from telekit.model.config import ModelConfig
from telekit.model.count import Count, count
from telekit.model.reshape import Shape, reshape, shape_of
from telekit.training.config import TrainConfig
from telekit.ui import sizes
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide, spoken
from telekit.ui.explorer import Explorer
from telekit.ui.known_models import device, known, mixers, states_range
from telekit.ui.sizes import billions, byte_range, duration, figures, share, times
from telekit.units import format_flops

SHAPES: dict[str, tuple[int, ...]] = {
    "experts": (8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024),
    "top_k": (1, 2, 3, 4, 6, 8, 10, 12, 16),
    "width": (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
    "layers": (*range(8, 64, 4), *range(64, 129, 8)),
    "hidden_size": (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384),
    "dense_layers": (0, 1, 2, 3, 4, 6, 8),
}
"""Values that each slider offers; a model's own is put among them."""
LABELS = {
    "experts": "experts",
    "top_k": "top-k",
    "width": "MLP width",
    "layers": "layers",
    "hidden_size": "hidden size",
    "dense_layers": "dense first",
}
DEVICES = [2**i for i in range(6, 15)]
TOKENS_T = [0.1, 0.3, 1, 2, 5, 10, 14.8, 20, 30]
LENGTHS = [2**i for i in range(9, 18)]


class ModelExplorer(Explorer):
    """A model of the catalog, its shape under a reader's hands; picking another model begins anew from its shape."""

    def __init__(self, start: str) -> None:
        shape = shape_of(known(start).model)
        controls = {"model": pick("model", catalog.names("models"), start)}
        controls |= {name: slide(LABELS[name], *choices(shape, name)) for name in SHAPES}
        controls |= {
            "seq_len": slide("sequence", LENGTHS, 4096),
            "tokens_t": slide("tokens [T]", TOKENS_T, 14.8),
            "device": pick("device", device_names(), "ascend-910b"),
            "devices": slide("devices", DEVICES, 8192),
            "mfu": slide("MFU [%]", list(range(10, 75, 5)), 40),
        }
        # before the panel's own observer, so that a move is drawn once
        controls["model"].observe(self._begin, "value")
        charts = [sizes.parts("stored", "parameters stored [B]"), sizes.parts("met", "met by one token [B]")]
        super().__init__(controls, charts, _part_rows, _part_text, _part_titles, title="Take a model apart")
        self._offer(shape)

    def _begin(self, change: Any) -> None:
        held, self._held = self._held, True
        try:
            self._offer(shape_of(known(change.new).model))
        finally:
            self._held = held

    def _offer(self, shape: Shape) -> None:
        """Give the sliders a model's own values among those that they offer."""
        for name in SHAPES:
            control = self.controls[name]
            options, value = choices(shape, name)
            control.options, control.value = spoken(options), value
            control.disabled = not shape.experts and name in ("dense_layers", "experts", "top_k")


def choices(shape: Shape, name: str) -> tuple[list[int], int]:
    """Return the values that a slider offers for a model, and the model's own among them.

    There are as many for every model: a page that gets fewer steps moves a handle beyond the new end back to it, and
    sends that as the reader's move. The end farther from the model's own value makes room for it.
    """
    grid, value = SHAPES[name], getattr(shape, name)
    offered = sorted({*grid, value})
    if len(offered) > len(grid):
        offered.pop(0 if 2 * offered.index(value) >= len(grid) else -1)
    return offered, value


@dataclass(frozen=True)
class _Apart:
    """A model of the catalog, and its changed copy, both counted."""

    was: Count
    now: Count
    model: ModelConfig


@lru_cache(maxsize=16)
def _apart(name: str, shape: Shape, seq_len: int) -> _Apart:
    it = known(name)
    was = replace(count(it.model, seq_len), notes=it.count.notes)
    if shape == shape_of(it.model):
        return _Apart(was, was, it.model)
    model = reshape(it.model, shape)
    return _Apart(was, count(model, seq_len), model)


def _of(values: Mapping[str, Any]) -> _Apart:
    return _apart(values["model"], Shape(**{name: values[name] for name in SHAPES}), values["seq_len"])


def _part_rows(**values: Any) -> Tables:
    found = _of(values)
    return sizes.part_rows(found.now, found.was)


def _part_titles(**values: Any) -> list[str]:
    found = _of(values).now
    parts = sizes.parts_of(found)
    most = max(parts, key=lambda part: parts[part][0])
    met = max(parts, key=lambda part: parts[part][1])
    stored = f"{share(parts[most][0] / found.total)} of the {billions(found.total)} parameters are {most}"
    if found.active == found.total:
        return [stored, "One token meets all of them: the model is dense"]
    least = f"One token meets {billions(found.active)}, 1 in {figures(found.total / found.active)} of them"
    return [stored, f"{least}; {share(parts[met][1] / found.active)} are {met}"]


def _part_text(**values: Any) -> str:
    found, on = _of(values), device(values["device"])
    now, dtype = found.now, peak_dtype(on)
    time_s = run_s(
        now.training_flops_per_token,
        values["tokens_t"] * 1e12,
        values["devices"],
        on.peak(dtype),
        values["mfu"] / 100,
    )
    held = devices_to_hold(now.total, on.memory_bytes, TrainConfig())
    cells = [
        (billions(now.total), "stored"),
        (billions(now.active), "met by a token"),
        (format_flops(now.training_flops_per_token), "a token"),
        (byte_range(*states_range(now.total)), "of states"),
        (f"{held:,} × {on.memory_bytes / 2**30:.0f} GiB", "just hold them"),
        (duration(time_s), f"for {values['tokens_t']} T tokens"),
    ]
    said = [_change(found), *_asides(found)]
    if dtype != "bf16":
        said.append(f"The time is at {on.name}'s {dtype} peak: no bf16 peak is known for it.")
    return f"{figures_line(cells)}<span class='telekit-soft'>{html.escape(' '.join(said))}</span>"


def peak_dtype(on: Device) -> str:
    """Format at whose peak a run is timed: bf16, or fp16 on a device without it (V100)."""
    return "bf16" if "bf16" in on.peak_flops else "fp16"


def figures_line(cells: Sequence[tuple[str, str]]) -> str:
    """Write figures, each with what it is, in one line of HTML."""
    spans = "".join(f"<span><b>{html.escape(value)}</b> {html.escape(what)}</span>" for value, what in cells)
    return f"<div class='telekit-figures'>{spans}</div>"


def _change(found: _Apart) -> str:
    was, now = found.was, found.now
    if now is was:
        return "As in the catalog."
    pairs = (
        ("stored", now.total / was.total),
        ("met by a token", now.active / was.active),
        ("FLOPs", now.training_flops_per_token / was.training_flops_per_token),
    )
    said = ", ".join(f"{what} × {times(ratio)}" for what, ratio in pairs)
    return f"Against the catalog (red ticks): {said}."


def _asides(found: _Apart) -> list[str]:
    """Say what the count leaves out, and what it puts under attention."""
    said = [f"Without MTP ({billions(found.now.mtp)})."] if found.now.mtp else []
    said += [f"{note[0].upper()}{note[1:]}." for note in found.was.notes]
    mixed = mixers(found.model)
    return [*said, f"Attention here: {mixed}."] if mixed else said
