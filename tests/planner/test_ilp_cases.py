"""Faults that people met with integer programs in public, each as a test of its own."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pulp
import pytest
from test_solver import machines

from telekit.planner import cbc, solver
from telekit.planner.integer_program import bottleneck_program
from telekit.planner.solver import solve
from telekit.planner.stages import EndLoad, LayerType, RecomputeOption, StageProblem, place

HERE = Path(__file__).parent
BOTH = pytest.mark.parametrize("name", ["highs", "cbc"])


@BOTH
def test_IL01_a_feasible_problem_is_not_called_infeasible(name):  # noqa: N802
    """coin-or/pulp#662: the bundled CBC says infeasible; the right answer is 0."""
    problem = pulp.LpProblem("il01", pulp.LpMinimize)
    x0, x1, x2, c0, c1 = (problem.add_variable(n, 0, 1, "Integer") for n in ("x0", "x1", "x2", "c0", "c1"))
    problem += c0 + c1
    problem += x0 + c1 == 1
    problem += x0 + c0 >= 1
    problem += x1 + c1 <= 1
    problem += c0 + c1 <= 1
    problem += x2 == 1
    problem += 9000 * x1 + 7200 * x2 + 10800 * c1 >= 16200
    found = solve(problem, name)
    assert (found.status, found.objective) == ("optimal", 0)
    assert dict(found.values) == {"x0": 1, "x1": 1, "x2": 1, "c0": 0, "c1": 0}


@BOTH
def test_IL02_a_solve_cut_short_is_not_called_optimal(name):  # noqa: N802
    """coin-or/pulp#711: 60 jobs on 8 machines in 3 s; PuLP's status is 1, 'Optimal'."""
    problem, weights = machines(60, 8)
    found = solve(problem, name, time_limit_s=3)
    assert found.status == "feasible"
    assert sum(weights) / 8 <= found.bound * (1 + 1e-9) < found.objective
    assert found.gap == pytest.approx((found.objective - found.bound) / found.objective)
    loads = [sum(w * found.values[f"x{j}_{m}"] for j, w in enumerate(weights)) for m in range(8)]
    assert max(loads) == pytest.approx(found.objective, rel=1e-6)


def test_IL05_without_cbc_highs_solves_says_so_once_and_the_plan_is_the_same(monkeypatch):  # noqa: N802
    """coin-or/pulp#866: the bundled CBC does not run on Apple silicon."""
    problem = identical_layers(12, 4)
    with_highs = place(problem, solver="highs")

    def bad_cpu(*args, **kwargs):
        raise OSError(86, "Bad CPU type in executable")

    cbc.executable.cache_clear()
    monkeypatch.setattr(cbc.subprocess, "run", bad_cpu)
    monkeypatch.setattr(solver, "_said_without_cbc", solver.threading.Event())
    try:
        assert not cbc.available()
        with pytest.warns(RuntimeWarning, match="CBC cannot run") as said:
            without_cbc = place(problem, solver="cbc")
            solve(bottleneck_program(problem).lp, "cbc")
    finally:
        cbc.executable.cache_clear()
    assert len(said) == 1
    assert without_cbc == with_highs
    assert without_cbc.proof.solver == "highs"


SOLVE = """
import signal, sys
sys.path.insert(0, {here!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
from test_solver import machines
from telekit.planner.solver import solve
print("begins", flush=True)
try:
    print(solve(machines({jobs}, 8)[0], {name!r}, 60).status)
except KeyboardInterrupt:
    print("interrupted")
"""


def solving(name, folder, jobs=60):
    """Start a solve in a process of its own, its temporary folder the given one."""
    code = SOLVE.format(here=str(HERE), name=name, jobs=jobs)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@BOTH
def test_IL07_a_space_in_the_temporary_folder_does_no_harm(tmp_path, name):  # noqa: N802
    """coin-or/pulp#811: PuLP cuts CBC's command line at spaces, and leaves an .mps behind."""
    folder = tmp_path / "sp ace"
    folder.mkdir()
    out, err = solving(name, folder, jobs=8).communicate(timeout=120)
    assert out.split() == ["begins", "optimal"], err
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_IL08_an_interrupted_solve_leaves_nothing(tmp_path, how):  # noqa: N802
    """meta-pytorch/autoparallel#421: killed solves fill /tmp."""
    process = solving("cbc", tmp_path)
    assert process.stdout.readline() == "begins\n"
    time.sleep(1.0)
    process.send_signal(how)
    out, _ = process.communicate(timeout=30)
    assert out == ("interrupted\n" if how == signal.SIGINT else "")
    assert list(tmp_path.iterdir()) == []


def test_IL08_ctrl_c_ends_a_highs_solve_at_once(tmp_path):  # noqa: N802
    process = solving("highs", tmp_path)
    assert process.stdout.readline() == "begins\n"
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)  # the solve itself would take 60
    assert out == "interrupted\n"


@pytest.mark.parametrize("fails", [True, False])
def test_IL08_where_dev_fd_is_missing_the_folder_goes_too(tmp_path, monkeypatch, fails):  # noqa: N802
    """Windows has no /dev/fd: files in a folder that is removed, also after an exception."""
    monkeypatch.setattr(cbc.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cbc, "_has_nameless_files", lambda: False)
    if fails:

        def interrupted(*args, **kwargs):
            assert list(tmp_path.rglob("*.mps"))
            raise KeyboardInterrupt

        monkeypatch.setattr(cbc, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            solve(machines(8, 2)[0], "cbc")
    else:
        assert solve(machines(8, 2)[0], "cbc").status == "optimal"
    assert list(tmp_path.iterdir()) == []


def identical_layers(count, stages, chunks=1):
    """Layers as DeepSeek-V3's MoE layers weigh, in milliseconds and MB; the cap makes some recompute."""
    options = (RecomputeOption("none", 0.0, 900.0), RecomputeOption("full", 10.0, 60.0))
    return StageProblem(
        layers=(LayerType("moe", count, 10.0, 20.0, 4000.0, options),),
        stages=stages,
        chunks=chunks,
        micro_batches=2 * stages,
        schedule="1f1b" if chunks == 1 else "interleaved-1f1b",
        head=EndLoad(1.0, 2.0, 3000.0),
        tail=EndLoad(7.0, 14.0, 4000.0),
        memory_cap_bytes=5_000.0 * (count / stages + 4),
    )


@pytest.mark.parametrize(("count", "stages", "chunks"), [(61, 16, 1), (94, 16, 1), (61, 16, 2), (94, 16, 4)])
def test_IL09_variables_are_per_kind_of_layer_not_per_layer(count, stages, chunks):  # noqa: N802
    """hpcaitech/ColossalAI#2853: solve time explodes with the layer count."""
    problem = identical_layers(count, stages, chunks)
    program = bottleneck_program(problem)
    assert program.counts.size == 2 * stages * chunks
    twice = identical_layers(2 * count, stages, chunks)
    assert len(bottleneck_program(twice).lp.variables()) == len(program.lp.variables())
    found = place(problem, time_limit_s=60 if chunks == 1 else 4)  # with one chunk it ends at the proof
    assert found.placement.layers.sum() == count
    assert max(found.peak_memory) <= problem.memory_cap_bytes
    assert found.proof.bound <= found.makespan
    assert chunks > 1 or found.proof.status == "optimal"


@BOTH
def test_NB07_no_banner_reaches_the_output(name, capfd):  # noqa: N802
    """coin-or/pulp#735: HiGHS prints two lines below Python's stdout although messages are off."""
    run = subprocess.run(
        [sys.executable, "-c", SOLVE.format(here=str(HERE), name=name, jobs=8)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert run.stdout.split() == ["begins", "optimal"]
    assert run.stderr == ""
    solve(machines(8, 2)[0], name)
    assert capfd.readouterr() == ("", "")


def test_IL11_ends_count_as_work():  # noqa: N802
    """ISEEKYAN/Megatron-LM#47: 6 layers on 4 stages, embedding and head each about a layer: [1, 2, 2, 1]."""
    run = LayerType("layer", 6, 1.0, 0.0, 0.0, (RecomputeOption("none", 0.0, 0.0),))
    one = EndLoad(1.0)
    found = place(StageProblem((run,), 4, 1, 8, head=one, tail=one), "bottleneck")
    assert found.placement.layers.tolist() == [[1, 2, 2, 1]]
    assert found.bottleneck == 2


def test_IL17_split_and_recompute_are_solved_together():  # noqa: N802
    """mindspore-ai/hyper-parallel#757: [4, 4, 4, 4] with recomputed [2, 1, 0, 0], slowest stage 14."""
    options = (RecomputeOption("none", 0.0, 1.0), RecomputeOption("full", 1.0, 0.1))
    problem = StageProblem((LayerType("layer", 16, 1.0, 2.0, 0.0, options),), 4, 1, 8, memory_cap_bytes=10.0)
    found = place(problem, "bottleneck")
    assert found.placement.layers.tolist() == [[4, 4, 4, 4]]
    assert found.placement.recompute(problem, "full").tolist() == [[2, 1, 0, 0]]
    assert (found.bottleneck, found.proof.status) == (14, "optimal")
    assert np.allclose(found.peak_memory, [8.8, 9.3, 8, 4])
    looser = place(replace(problem, memory_cap_bytes=16.0), "bottleneck")
    assert looser.bottleneck == 12
