"""Every chapter runs here: unanswered, with every control moved, and with its exercises solved."""

import nbformat
import pytest
from notebook_tools import CHAPTERS, NOTEBOOKS, code_cells, mime, read, run, settings, tags

from telekit.errors import InputError
from telekit.exercises.check import Feedback

# by chapter and cell id: a right answer, and wrong ones with a word that their feedback must hold
SOLUTIONS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "08_parallelization_framework": {
        "exercise-bubble": ("100 * 15 / 135", {"15 / 135": "a fraction or per cent", "12.5": "not it"}),
        "exercise-experts": (
            "16 * 3 * 7168 * 2048 * 2 / 2**30",
            {
                "16 * 3 * 7168 * 2048 * 2 / 1e9": "GB (1e9 bytes) is not GiB",
                "16 * 3 * 7168 * 2048 / 2**30": "bytes a number",
                "64 * 16 * 3 * 7168 * 2048 * 2 / 2**30": "Sixteen experts",
            },
        ),
        "exercise-objective": (
            "'depends'",
            {"'first'": "fills and drains", "'second'": "many micro-batches"},
        ),
        "exercise-design": (
            '{"pp": 2, "vpp": 4, "ep": 8}',
            {
                '{"tp": 3}': "must divide the attention heads",
                '{"tp": 1}': "It must fit",
                '{"tp": 8, "pp": 4, "ep": 2, "recompute": "full"}': "times the planner's best",
            },
        ),
    },
}

chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)


@pytest.fixture(scope="module")
def ran():
    """Each notebook, run once unanswered."""
    return {path: run(read(path)) for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs_and_shows_only_what_reads_well(path, ran):
    for cell, value in ran[path].shown:
        if value is not None:
            assert "object at 0x" not in mime(value)["text/plain"], f"{cell.id} needs a __repr__"


@chapter
def test_unanswered_exercises_are_silent(path, ran):
    verdicts = ran[path].values("exercise")
    assert len(verdicts) == sum("exercise" in tags(c) for c in code_cells(read(path)))
    assert all(isinstance(v, Feedback) and v.ok is None for v in verdicts)


@chapter
def test_every_panel_follows_every_control_over_its_range(path, ran):
    panels = dict(ran[path].panels)
    assert panels
    for name, panel in panels.items():
        start = panel.values
        for key, control in panel.controls.items():
            for value in settings(control):
                panel.set(**{key: value})
                told = isinstance(panel.error, InputError) and "telekit-bad" in panel.text
                assert panel.error is None or told, f"{name}: {key}={value}: {panel.error!r}"
            panel.set(**start)
        assert panel.error is None and panel.rows, name


@chapter
def test_right_answers_pass(path):
    solutions = SOLUTIONS[path.stem]
    notebook = read(path)
    exercises = {c.id for c in code_cells(notebook) if "exercise" in tags(c)}
    assert exercises == set(solutions), "every exercise has a solution here"
    verdicts = run(notebook, {cell: right for cell, (right, _) in solutions.items()}).values("exercise")
    assert all(verdict.ok for verdict in verdicts), verdicts


@chapter
def test_wrong_answers_hear_their_slip(path, ran):
    for cell_id, (_, slips) in SOLUTIONS[path.stem].items():
        notebook = read(path)
        assert slips, f"{cell_id}: name a common slip"
        for answer, word in slips.items():
            verdict = answer_one(notebook, cell_id, answer, ran[path].space)
            assert verdict.ok is False and word in verdict.message, f"{cell_id}: {answer} -> {verdict}"


def answer_one(notebook, cell_id, answer, space):
    """Run one exercise's cell with an answer, in the namespace of a chapter that already ran."""
    cell = next(c for c in code_cells(notebook) if c.id == cell_id)
    return run(nbformat.v4.new_notebook(cells=[cell]), {cell_id: answer}, dict(space)).shown[0][1]
