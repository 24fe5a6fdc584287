"""Panels of chapter 1: one model apart, all models side by side, and where 6 N goes wrong."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from telekit import catalog
from telekit.model.flops import head_flops, training_flops_per_token
from telekit.ui import sizes, style
from telekit.ui.charts import Tables
from telekit.ui.controls import pick, slide
from telekit.ui.explorer import Explorer
from telekit.ui.known_models import RELEASED, Known, all_known, known
from telekit.ui.panels.apart import ModelExplorer, figures_line
from telekit.ui.sizes import BILLION, billions, share
from telekit.units import format_flops

DOCUMENTS = {"one a sequence": 0} | {f"of {2**i:,} tokens": 2**i for i in (9, 10, 12, 14)}


def model_explorer(start: str = RELEASED[1]) -> ModelExplorer:
    """Take a model of the catalog apart, and change its shape."""
    return ModelExplorer(start)


# --- side by side -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """Two measures of a model against each other, lines of one ratio, and what the picture says."""

    x: tuple[str, Callable[[Known], float]]
    y: tuple[str, Callable[[Known], float]]
    guides: Mapping[str, tuple[float, int]]
    finding: Callable[[Sequence[Known]], str]


def _stored(it: Known) -> float:
    return it.count.total / BILLION


def _met(it: Known) -> float:
    return it.count.active / BILLION


def _flops(it: Known) -> float:
    return it.count.training_flops_per_token / 1e9


def _sparsity(it: Known) -> float:
    return it.count.total / it.count.active


def _sparsest(shown: Sequence[Known]) -> str:
    if not any(it.sparse for it in shown):
        return "Without experts a token meets every parameter: 1 in 1"
    most = max(shown, key=_sparsity)
    said = f"Sparsest: {most.name}, a token meets 1 in {_sparsity(most):.0f} parameters"
    ours = [it for it in shown if it.name in RELEASED and it.sparse and it is not most]
    return said + "".join(f"; {it.name}: 1 in {_sparsity(it):.0f}" for it in ours)


def _peers(shown: Sequence[Known]) -> tuple[Known | None, list[Known]]:
    """Return the report's sparse model, and other sparse ones of its size: from two thirds of it to one and a half."""
    ours = next((it for it in shown if it.name in RELEASED and it.sparse), None)
    if ours is None:
        return None, []
    near = [it for it in shown if it.sparse and 2 / 3 <= it.count.total / ours.count.total <= 3 / 2]
    return ours, [it for it in near if it is not ours]


def _shallow(shown: Sequence[Known]) -> str:
    ours, peers = _peers(shown)
    if ours is None or not peers:
        most = max(shown, key=lambda it: it.model.hidden_size / it.model.num_layers)
        ratio = most.model.hidden_size / most.model.num_layers
        return f"The widest for its depth is {most.name}: {ratio:.0f} of width a layer"
    deeper = sum(it.model.num_layers > ours.model.num_layers for it in peers)
    wider = sum(it.model.hidden_size > ours.model.hidden_size for it in peers)
    size = f"sparse models from 2/3 to 3/2 of {ours.name}'s size"
    return f"More layers: {deeper} of the {len(peers)} {size}; a wider residual stream: {wider}"


def _thick(shown: Sequence[Known]) -> str:
    most = max(shown, key=lambda it: it.layer)
    said = f"{most.name} stores the most in a layer: {billions(most.layer)}"
    ours, _ = _peers(shown)
    return said if ours is None or ours is most else f"{said}; {ours.name} stores {billions(ours.layer)}"


def _price(shown: Sequence[Known]) -> str:
    ratios = [it.count.training_flops_per_token / (6 * it.multiplied) for it in shown]
    said = f"{min(ratios):.2f} to {max(ratios):.2f} times 6 Nₘ"
    if not any(it.sparse for it in shown):
        return f"A token of training costs {said}"
    return f"FLOPs follow what a token is multiplied by, not what is stored: {said}"


VIEWS = {
    "met by a token against stored": View(
        ("parameters stored [B]", _stored),
        ("met by a token [B]", _met),
        {"1 in 1": (1.0, 1), "1 in 10": (0.1, 1), "1 in 30": (1 / 30, 1)},
        _sparsest,
    ),
    "layers against width": View(
        ("hidden size", lambda it: it.model.hidden_size),
        ("layers", lambda it: it.model.num_layers),
        {"width 50 a layer": (1 / 50, 1), "100": (1 / 100, 1), "200": (1 / 200, 1)},
        _shallow,
    ),
    "layers against what one stores": View(
        ("parameters stored in a layer [B]", lambda it: it.layer / BILLION),
        ("layers", lambda it: it.model.num_layers),
        {"10 B": (10.0, -1), "100 B": (100.0, -1), "1,000 B": (1000.0, -1)},
        _thick,
    ),
    "FLOPs against what a token is multiplied by": View(
        ("Nₘ: what a token is multiplied by [B]", lambda it: it.multiplied / BILLION),
        ("training FLOPs of a token, at 4,096 [GFLOP]", _flops),
        {"6 Nₘ": (6.0, 1), "12 Nₘ": (12.0, 1)},
        _price,
    ),
}


def side_by_side() -> Explorer:
    """Put all models of the catalog side by side, by two measures."""
    models = all_known()
    families = sorted({it.family for it in models})

    def shown(kinds: str, least_b: float, **_: Any) -> list[Known]:
        kept = [it for it in models if it.count.total >= least_b * BILLION]
        return [it for it in kept if kinds == "all" or it.sparse == (kinds == "sparse")]

    def rows(view: str, family: str, **values: Any) -> Tables:
        return _points(VIEWS[view], shown(**values), family)

    def titles(view: str, **values: Any) -> list[str]:
        some = shown(**values)
        return [VIEWS[view].finding(some) if some else "No model of the catalog is like that"]

    def readout(**values: Any) -> str:
        said = f"{len(shown(**values))} of {len(models)} models; ringed: the released ones of the report's series."
        return f"<span class='telekit-soft'>{html.escape(said)}</span>"

    controls = {
        "view": pick("show", list(VIEWS), next(iter(VIEWS)), columns=2),
        "family": pick("highlight", families, "telechat" if "telechat" in families else families[0]),
        "kinds": pick("kinds", ["all", "sparse", "dense"], "all"),
        "least_b": slide("from [B]", [0, 1, 3, 10, 30, 50, 100, 200, 300, 500], 0),
    }
    return Explorer(controls, sizes.side_by_side(), rows, readout, titles, title="Models side by side")


def _points(view: View, shown: Sequence[Known], family: str) -> Tables:
    points = []
    for it in shown:
        kind = "highlighted" if it.family == family else "sparse" if it.sparse else "dense"
        size = f"{billions(it.count.total)} stored, {billions(it.count.active)} met"
        text = f"{size}; {it.model.num_layers} layers of {it.model.hidden_size:,}"
        x, y = view.x[1](it), view.y[1](it)
        points.append(
            {"model": it.name, "kind": kind, "x": x, "y": y, "text": text, "ring": it.name in RELEASED}
        )
    axes: Tables = {"axes": [{"x_title": view.x[0], "y_title": view.y[0]}]}
    if not points:
        return axes | {"models": [], "named": [], "guides": []}
    points.sort(key=lambda p: list(style.MODELS).index(str(p["kind"])))
    chosen = [p for p in points if p["ring"] or p["kind"] == "highlighted"]
    room = sizes.Room(points)
    guides = sizes.guide_rows(room, points, view.guides)
    named = sizes.named_rows(room, sorted(chosen, key=lambda p: not p["ring"]))
    return axes | {"models": points, "named": named, "guides": guides}


# --- where 6 N goes wrong -----------------------------------------------------------------------------------


def six_n_explorer(start: str = "deepseek-v3") -> Explorer:
    """Compare the FLOPs of a token with 6 N, by what N counts, over the length of the sequence."""
    controls = {
        "model": pick("model", catalog.names("models"), start),
        "seq_len": slide("sequence", sizes.LENGTHS, 4096),
        "attention": pick(
            "attention", {"causal: keys before it": "causal", "full: all keys": "full"}, "causal"
        ),
        "recompute": pick("recompute", ["none", "selective", "full"], "none"),
        "documents": pick("documents", DOCUMENTS, 0),
    }
    return Explorer(
        controls, sizes.against_six_n(), _ratio_rows, _ratio_text, _ratio_titles, title="Where 6 N goes wrong"
    )


@lru_cache(maxsize=512)
def _training(name: str, seq_len: int, attention: Any, recompute: Any, document: int) -> float:
    """Training FLOPs of a token; documents of one length fill the sequence."""
    inside = [document] * (seq_len // document) if document and document < seq_len else []
    return training_flops_per_token(
        known(name).model, seq_len, attention=attention, recompute=recompute, documents=inside
    )


def _ratios(name: str, flops: float) -> dict[str, float]:
    counted = known(name).count
    values = (counted.total, counted.active, counted.active_without_input_embedding)
    return {size: flops / (6 * value) for size, value in zip(style.SIZES, values, strict=True)}


def _ratio_text(model: str, seq_len: int, attention: str, recompute: str, documents: int) -> str:
    flops, bare, selective = (
        _training(model, seq_len, attention, again, documents) for again in (recompute, "none", "selective")
    )
    mixing, head = 3 * (selective - bare), 3 * head_flops(known(model).model)
    cells = [
        (format_flops(bare), "a token of training, of which"),
        (share(mixing / bare), "mix tokens and"),
        (share(head / bare), "are the head's"),
    ]
    if flops > bare:
        cells.append((f"{flops / bare - 1:+.1%}", "computed again"))
    return figures_line(cells)


def _ratio_rows(model: str, seq_len: int, attention: str, recompute: str, documents: int) -> Tables:
    found = {n: _ratios(model, _training(model, n, attention, recompute, documents)) for n in sizes.LENGTHS}
    lines = [{"tokens": n, "ratio": r, "size": s} for n, ratios in found.items() for s, r in ratios.items()]
    every, met, less = found[seq_len].values()
    places = ("below", "below" if met != every else "", "above" if less != every else "")
    here = [row for row in lines if row["tokens"] == seq_len]
    texts = [{"text": f"{row['ratio']:.3g}", "place": p} for row, p in zip(here, places, strict=True)]
    return {"ratio": lines, "here": [row | text for row, text in zip(here, texts, strict=True)]}


def _ratio_titles(model: str, seq_len: int, attention: str, recompute: str, documents: int) -> list[str]:
    ratios = _ratios(model, _training(model, seq_len, attention, recompute, documents))
    distinct: dict[float, str] = {}
    for size, ratio in ratios.items():
        distinct.setdefault(ratio, f"6 {size.split(':')[0]}")  # a dense model's are one, or two
    said = ", ".join(
        f"{name} {'' if i else 'is '}{_off(ratio)}" for i, (ratio, name) in enumerate(distinct.items())
    )
    return [f"At {seq_len:,} tokens {said}"]


def _off(ratio: float) -> str:
    """Say how far 6 N is off, where the truth is ``ratio`` times 6 N."""
    much = "much" if ratio < 1 else "little"
    if 0.5 < ratio < 2:
        return f"{abs(1 / ratio - 1):.1%} too {much}"
    return f"{sizes.figures(max(ratio, 1 / ratio))} times too {much}"
