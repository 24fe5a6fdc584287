"""HiGHS in a process of its own: run as a script by :mod:`telekit.planner.highs`, it imports nothing of telekit.

Each line of standard input is one request, each line of standard output its answer, both JSON. The process
ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, TextIO


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business: it ends this process
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = _answers_alone()
    solver = None
    for line in sys.stdin:
        try:
            solver = solver or _Solver()
            answer = solver.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Solver:
    """One HiGHS model, replaced by each request that brings another."""

    def __init__(self) -> None:
        import highspy

        self._highspy: Any = highspy
        self._model: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load or extend the model, and solve it."""
        if "model" in request:
            self._model = self._highspy.Highs()
            for name, value in ({"output_flag": False} | request["options"]).items():
                self._model.setOptionValue(name, value)
            self._model.passModel(_model(self._highspy, request["model"]))
        model = self._model
        for row in request["rows"]:
            index, value = row["index"], row["value"]
            model.addRow(-self._highspy.kHighsInf, row["at_most"], len(index), index, value)
        if request["start"]:
            _start(model, request["start"])
        model.setOptionValue("time_limit", model.getRunTime() + request["time_limit_s"])
        model.run()
        return _answer(model)


def _answers_alone() -> TextIO:
    """Keep standard output for answers: HiGHS greets there from its constructor, before any option."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return answers


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _model(highspy: Any, columns: dict[str, Any]) -> Any:
    import numpy as np

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns["cost"]), len(columns["row_lower"])
    for ours, theirs in (
        ("cost", "col_cost_"),
        ("lower", "col_lower_"),
        ("upper", "col_upper_"),
        ("row_lower", "row_lower_"),
        ("row_upper", "row_upper_"),
    ):
        setattr(lp, theirs, np.array(columns[ours], dtype=np.float64))
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[whole] for whole in columns["whole"]] if any(columns["whole"]) else []
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = lp.num_col_, lp.num_row_
    lp.a_matrix_.start_ = np.array(columns["start"], dtype=np.int32)
    lp.a_matrix_.index_ = np.array(columns["index"], dtype=np.int32)
    lp.a_matrix_.value_ = np.array(columns["value"], dtype=np.float64)
    return lp


def _start(model: Any, start: dict[str, Any]) -> None:
    import numpy as np

    index = np.array(start["index"], dtype=np.int32)
    model.setSolution(len(index), index, np.array(start["value"], dtype=np.float64))


def _answer(model: Any) -> dict[str, Any]:
    info = model.getInfo()
    return {
        "status": model.getModelStatus().name,
        "has_point": int(info.primal_solution_status) == 2,
        "objective": info.objective_function_value,
        "bound": info.mip_dual_bound,
        "values": [float(x) for x in model.getSolution().col_value],
    }


if __name__ == "__main__":
    main()
