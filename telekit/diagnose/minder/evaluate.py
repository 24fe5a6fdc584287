"""How often the right machine is named: precision, recall and F1, counted as Minder's paper counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from telekit.diagnose.minder.detect import Rules, detect
from telekit.diagnose.minder.generate import MachineRun
from telekit.diagnose.minder.model import MinderModel


class Scores(NamedTuple):
    """Calls counted. A call names the machine of its first alert, or none.

    Attributes
    ----------
    right, wrong, missed : int
        Calls that name a faulty machine; that name another one, in a faulty or a healthy run; and faulty runs in
        which no faulty machine is named.
    """

    right: int
    wrong: int
    missed: int

    @property
    def precision(self) -> float:
        """Share of the alerts that are right; 1 without an alert."""
        named = self.right + self.wrong
        return self.right / named if named else 1.0

    @property
    def recall(self) -> float:
        """Share of the faulty runs that are found; 1 without one."""
        faulty = self.right + self.missed
        return self.right / faulty if faulty else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.right / max(2 * self.right + self.wrong + self.missed, 1)


def evaluate(
    model: MinderModel,
    runs: Iterable[MachineRun],
    rules: Rules | None = None,
    *,
    stride: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """Call Minder once on each run and count.

    Parameters
    ----------
    model : MinderModel
        What was learnt.
    runs : iterable of MachineRun
        Healthy and faulty ones, none of which it was trained on.
    rules, stride
        As for :func:`~telekit.diagnose.minder.detect.detect`.
    progress : callable, optional
        Called with the number of runs done.

    Returns
    -------
    Scores
    """
    right = wrong = missed = 0
    for done, run in enumerate(runs, 1):
        alerts = detect(model, run.metrics, rules, stride=stride).alerts
        first = min(alerts, key=lambda alert: alert.alert_s).machine if alerts else None
        right += first in run.faulty
        wrong += first is not None and first not in run.faulty
        missed += bool(run.faulty) and first not in run.faulty
        if progress:
            progress(done)
    return Scores(right, wrong, missed)
