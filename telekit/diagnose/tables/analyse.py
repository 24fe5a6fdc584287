"""Every kind of table has its analysis; tables of one kind are of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from telekit.diagnose.tables.machines import analyse_metrics
from telekit.diagnose.tables.operators import analyse_operators
from telekit.diagnose.tables.report import TableReport
from telekit.diagnose.tables.steps import analyse_steps
from telekit.diagnose.tables.timer_report import analyse_timers
from telekit.diagnose.trace import Table

ANALYSES: dict[str, Callable[..., TableReport]] = {
    "timers": analyse_timers,
    "steps": analyse_steps,
    "operators": analyse_operators,
    "metrics": analyse_metrics,
}


def analyse_tables(tables: Iterable[Table], ranks_per_node: int = 8) -> tuple[TableReport, ...]:
    """Analyse tables, all of one kind together.

    Parameters
    ----------
    tables : iterable of Table
        Of one run.
    ranks_per_node : int
        Ranks 0 to n - 1 share a node, and so on.
    """
    given = [t for t in tables if len(t)]
    reports = []
    for kind, analyse in ANALYSES.items():
        mine = [t for t in given if t.kind == kind]
        if mine:
            reports.append(analyse(mine, ranks_per_node))
    return tuple(reports)
