"""Oracles of the placement tests: every placement of a small problem, and a seeded maker of problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from telekit.pipeline.simulate import makespan
from telekit.planner.stage_problem import EndLoad, LayerType, RecomputeOption, StageProblem, bottleneck


def compositions(total, parts, least=0):
    """Every way to write ``total`` as ``parts`` whole numbers of at least ``least``."""
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        for rest in compositions(total - first, parts - 1, least):
            yield (first, *rest)


def every_placement(problem):
    """All counts, shape (placements, columns, chunks, stages): cuts of the model times recompute mixes."""
    pattern = np.repeat(np.arange(len(problem.layers)), [run.count for run in problem.layers])
    for sizes in compositions(len(pattern), len(problem.positions), problem.min_layers):
        cuts = np.concatenate([[0], np.cumsum(sizes)])
        mixes = []
        for start, end in itertools.pairwise(cuts):
            held = np.bincount(pattern[start:end], minlength=len(problem.layers))
            choices = [
                compositions(int(n), len(run.options)) for n, run in zip(held, problem.layers, strict=True)
            ]
            mixes.append([sum(mix, ()) for mix in itertools.product(*map(list, choices))])
        chosen = np.array(list(itertools.product(*mixes)))
        counts = np.empty((len(chosen), len(problem.columns), problem.chunks, problem.stages), np.int64)
        for part, (v, s) in enumerate(problem.positions):
            counts[:, :, v, s] = chosen[:, part]
        yield counts


def best_of_all(problem):
    """Least makespan and least bottleneck over all placements that fit; infinite when none does."""
    best = np.array([np.inf, np.inf])
    forward, backward, activation, parameter = problem.rates
    for counts in every_placement(problem):
        held = np.einsum("c,ncvs->nvs", activation, counts)
        peak = np.einsum("kvs,nvs->nks", problem.profiles, held).max(axis=1)
        peak = peak + np.einsum("c,ncvs->ns", parameter, counts) + problem.fixed_bytes
        fits = (peak <= problem.cap_bytes * (1 + 1e-9)).all(axis=1)
        if fits.any():
            f = np.einsum("c,ncvs->nvs", forward, counts[fits]) + problem.end_times[0]
            b = np.einsum("c,ncvs->nvs", backward, counts[fits]) + problem.end_times[1]
            times = makespan(problem.schedule, f, b, problem.micro_batches, problem.comm_s)
            best = np.minimum(best, [times.min(), bottleneck(problem, f, b).min()])
    return best


def random_problem(seed, layers=(6, 24), stages=(2, 8), chunks=1, capped=True):
    """Make a problem of one to three runs; its cap lies where it often binds and sometimes nothing fits."""
    random = np.random.default_rng(seed)
    p = int(random.integers(*stages, endpoint=True))
    total = int(random.integers(max(layers[0], p * chunks), max(layers[1], p * chunks + 1), endpoint=True))
    runs = int(random.integers(1, 3, endpoint=True))
    cuts = np.sort(random.choice(np.arange(1, total), runs - 1, replace=False))
    counts = np.diff([0, *cuts, total])
    made = tuple(_random_run(random, f"run{t}", int(n)) for t, n in enumerate(counts))
    each = sum(run.count * (run.parameter_bytes + 0.5 * p * run.options[0].activation_bytes) for run in made)
    cap = each / p * random.uniform(0.5, 1.5) + 15
    return StageProblem(
        layers=made,
        stages=p,
        chunks=chunks,
        micro_batches=p * int(random.integers(1, 4)),
        schedule="1f1b" if chunks == 1 else "interleaved-1f1b",
        head=EndLoad(*random.integers(0, 20, 3).tolist()),
        tail=EndLoad(*random.integers(0, 40, 3).tolist()),
        memory_cap_bytes=float(cap) if capped else None,
        min_layers=int(random.integers(0, 2)),
    )


def _random_run(random, name, count):
    forward = float(random.integers(5, 40))
    activation = float(random.integers(4, 20))
    options = [RecomputeOption("none", 0.0, activation)]
    if random.random() < 0.85:
        options.append(RecomputeOption("full", forward, round(activation * 0.1, 3)))
    if random.random() < 0.5:
        options.insert(1, RecomputeOption("selective", round(forward * 0.2, 3), round(activation * 0.6, 3)))
    return LayerType(name, count, forward, 2 * forward, float(random.integers(3, 30)), tuple(options))


def in_units(problem, seconds, size):
    """Return the same problem with times and sizes in other units."""

    def end(load):
        return EndLoad(load.forward_s * seconds, load.backward_s * seconds, load.memory_bytes * size)

    def run(layer):
        options = tuple(
            RecomputeOption(o.name, o.extra_backward_s * seconds, o.activation_bytes * size)
            for o in layer.options
        )
        times = {"forward_s": layer.forward_s * seconds, "backward_s": layer.backward_s * seconds}
        return replace(layer, **times, parameter_bytes=layer.parameter_bytes * size, options=options)

    return replace(
        problem,
        layers=tuple(map(run, problem.layers)),
        head=end(problem.head),
        tail=end(problem.tail),
        memory_cap_bytes=problem.memory_cap_bytes * size,
        comm_s=problem.comm_s * seconds,
    )
