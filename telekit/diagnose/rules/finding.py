"""What is wrong, on which ranks, by how much, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CAUSES = ("device", "link", "host", "data", "load", "unknown")
"""Where a fault lies: the device, a link, the host, the loading of data, or work that is not evenly shared; tables do
not always tell."""
KINDS = {
    "slow device": "device",
    "slow device in some steps": "device",
    "frequency drop after idle": "device",
    "slow link": "link",
    "slow point-to-point": "link",
    "slow launch": "host",
    "pause": "host",
    "checkpoint": "host",
    "memory": "host",
    "late": "host",
    "stuck": "host",
    "slow data loading": "data",
    "expert imbalance": "load",
    "uneven work": "load",
    "host bound": "host",
    "AI CPU operators": "device",
    "slow rank": "unknown",
    "slow iterations": "unknown",
    "unlike machine": "unknown",
}
"""Kinds of finding and the cause of each; those after ``expert imbalance`` come from tables only."""


@dataclass(frozen=True)
class Evidence:
    """Something a person can look up in a trace.

    Parameters
    ----------
    text : str
        What it shows, with the numbers compared.
    rank : int or None
        Whose trace.
    event : mapping
        The event there (:meth:`Trace.event`); empty where the evidence is a sum or a gap.
    start_s, end_s : float or None
        Times by the rank's own clock.
    """

    text: str
    rank: int | None = None
    event: dict[str, Any] = field(default_factory=dict)
    start_s: float | None = None
    end_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        found: dict[str, Any] = {"text": self.text, "rank": self.rank}
        if self.event:
            found["event"] = self.event
        if self.start_s is not None:
            found |= {"start_s": self.start_s, "end_s": self.end_s}
        return found


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    scope : str
        Who has it: ``rank``, ``node``, ``group``, ``several`` or ``all``.
    ranks : tuple of int
        Ranks at fault, the worst first; all of the run where the scope is ``all``.
    steps : tuple of int
        Numbers of the steps that show it.
    share : float
        Time lost to it over the time of the run, as seen on the worst rank: of a mean loss a step by
        :meth:`~telekit.diagnose.analysis.features.Run.share`.
    score : float
        How far from chance: robust standard deviations, or minus the logarithm of a probability; larger is surer.
    evidence : tuple of Evidence
        Events and numbers.
    detail : str
        A subdivision in words (``garbage collection``, ``monitoring``, ``rotates over ranks``).
    advice : str
        What to do.
    machines : tuple of str
        Machines at fault, where metrics name them.
    """

    kind: str
    scope: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    share: float
    score: float
    evidence: tuple[Evidence, ...] = ()
    detail: str = ""
    advice: str = ""
    machines: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """One of :data:`CAUSES`."""
        return KINDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "cause": self.cause,
            "kind": self.kind,
            "detail": self.detail,
            "scope": self.scope,
            "ranks": list(self.ranks),
            "machines": list(self.machines),
            "steps": list(self.steps),
            "share": self.share,
            "score": self.score,
            "advice": self.advice,
            "evidence": [e.to_dict() for e in self.evidence],
        }

    def __str__(self) -> str:
        """One line."""
        named = self.ranks or self.machines
        shown = ", ".join(map(str, named[:8])) + (", …" if len(named) > 8 else "")
        what = "machine" if self.machines and not self.ranks else "rank"
        who = f"{what}{'s' if len(named) > 1 else ''} {shown}" if named else "some ranks"
        who = "all ranks" if self.scope == "all" else who
        detail = f" ({self.detail})" if self.detail else ""
        cost = f", {self.share:.1%} of the time" if self.ranks or self.share or not self.machines else ""
        return f"{self.kind}{detail}: {who}{cost}"
