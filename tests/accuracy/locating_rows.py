"""Rows of a comparison made by hand: a chain of operators whose arrays a test chooses."""

from __future__ import annotations

import numpy as np

from telekit.accuracy.compared import Compared
from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.summaries import compare_summaries
from telekit.accuracy.readers.named import NamedTensor
from telekit.accuracy.readers.named import Statistics as Said


def tensor(name, array, *, rank=None, step=0, statistics_only=False):
    """A NamedTensor that holds an array, or only what a statistics dump says of it."""
    array = np.asarray(array)
    said = None
    if statistics_only:
        wide = array.astype(np.float64)
        said = Said(float(wide.max()), float(wide.min()), float(wide.mean()), float(np.linalg.norm(wide)))
    loader = None if statistics_only else (lambda: array)
    return NamedTensor(
        name,
        array.shape,
        array.dtype.name,
        f"made: {name}",
        statistics=said,
        step=step,
        rank=rank,
        loader=loader,
    )


def row(api, phase, part, key, target, golden, order, *, step=0, rank=None, statistics_only=False):
    """One row; ``target`` or ``golden`` may be None."""
    name = f"{api}.{phase}.0.{part}.{key}" if part != "parameters_grad" else f"{api}.parameters_grad.0.{key}"
    sides = [
        None if a is None else tensor(name, a, rank=rank, step=step, statistics_only=statistics_only)
        for a in (target, golden)
    ]
    both = all(s is not None for s in sides)
    metrics = compare_arrays(target, golden) if both and not statistics_only else None
    summary = None
    if both and statistics_only:
        summary = compare_summaries(
            *(
                {k.capitalize(): getattr(s.statistics, k) for k in ("max", "min", "mean", "norm")}
                for s in sides
            )
        )
    said = "backward" if part == "parameters_grad" else phase
    middle = f"{api}.{phase}.0" if part != "parameters_grad" else f"{api}.parameters_grad.0"
    return Compared(name, *sides, middle, part, said, order, step, rank, metrics, summary)


def operator(api, order, inputs, outputs, *, parameters=(), phase="forward", **more):
    """Rows of one operator; tensors are (target, golden) pairs."""
    parts = (("input", inputs), ("parameters", parameters), ("output", outputs))
    return [
        row(api, phase, part, i, t, g, order, **more)
        for part, pairs in parts
        for i, (t, g) in enumerate(pairs)
    ]


def chain(names, *, wrong=None, change=lambda x: 2 * x, seed=0, size=(16, 32), dtype=np.float32, **more):
    """Linear layers one after the other; the output of ``wrong`` is changed, what follows is its consequence."""
    random = np.random.default_rng(seed)
    golden = target = random.standard_normal(size).astype(dtype)
    rows = []
    for order, name in enumerate(names):
        weight = (random.standard_normal((size[1], size[1])) / size[1] ** 0.5).astype(dtype)
        before = (target, golden)  # what follows a fault is made from it
        with np.errstate(invalid="ignore"):  # Inf less Inf, where a test asks for it
            golden, target = golden @ weight.T, target @ weight.T
        if name == wrong:
            target = np.asarray(change(target), dtype)
        rows += operator(
            f"Module.{name}.Linear",
            order,
            [before],
            [(target, golden)],
            parameters=[(weight, weight)],
            **more,
        )
    return rows
