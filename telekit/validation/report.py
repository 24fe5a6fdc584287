"""The scoreboard as a table: for a terminal, for README and for chapter 10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD = ("group", "rows", "held out", "error", "bias", "rank", "fitted rows", "their error")


SPEARMAN, REGRET = 0.9, 0.03
"""What a ranking should reach at least, and lose at most."""
EXACT = 0.02
"""Error up to which a pair of dry runs counts as met: what is left is how the source spread its layers."""


def lines(board: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table, one a group, under :data:`HEAD`; error and bias are of the rows held out."""
    found = [_line(group["name"], group, group["rank_correlation"]) for group in board["groups"]]
    return [*found, _line("all steps", board["all"], None)]


def _line(name: str, group: Mapping[str, Any], rank: float | None) -> tuple[str, ...]:
    held, fitted = group["held_out"], group["fitted"]
    return (
        name,
        str(group["rows"]),
        str(held["rows"]),
        _percent(held["mape"]),
        _percent(held["bias"], sign=True),
        "" if rank is None else f"{rank:.2f}",
        str(fitted["rows"] or ""),
        _percent(fitted["mape"]),
    )


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else (f"{value:+.1%}" if sign else f"{value:.1%}").replace("%", " %")


def markdown(board: Mapping[str, Any]) -> str:
    """Write the table as Markdown, as README and chapter 10 show it."""
    rows = [HEAD, ("---",) + ("---:",) * (len(HEAD) - 1), *lines(board)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def choosing(board: Mapping[str, Any]) -> str:
    """Say in Markdown how well estimates choose, with what falls short of the aims, as README does."""
    found = []
    for plan in board["planning"]:
        short = "" if plan["spearman"] >= SPEARMAN and plan["regret"] <= REGRET else "; short of the aim"
        odd = f" ({'; '.join(plan['odd'])})" if plan["odd"] else ""
        loss = f"{plan['regret']:.1%}".replace("%", " %")
        found.append(
            f"- {plan['id']}, {plan['plans']} measured plans: Spearman {plan['spearman']:.2f}, the one that "
            f"we choose loses {loss}{short}{odd.replace('%', ' %')}"
        )
    errors = [slope["error"] for slope in board["expert_slopes"]]
    wide = ", ".join(f"{error:+.1%}".replace("%", " %") for error in errors if abs(error) > EXACT)
    near = sum(abs(error) <= EXACT for error in errors)
    found.append(
        f"- memory of the experts over EP: {near} of {len(errors)} pairs of dry runs within 2 %; the others {wide}"
    )
    gaps = ", ".join(
        f"{gap['schedule']} {gap['mean']:.1%} on average, {max(gap['least'], gap['largest'], key=abs):.1%} at worst"
        for gap in board["closed_form"]
    ).replace("%", " %")
    found.append(f"- closed form of the search over the simulation of the answer, whole steps: {gaps}")
    return "\n".join(found) + "\n"


def _not_fitting(board: Mapping[str, Any]) -> list[str]:
    """Say of each group which runs, though they were measured, are said not to fit their device."""
    found = []
    for group in board["groups"]:
        names = [row["id"] for row in board["rows"] if row["group"] == group["name"] and not row["fits"]]
        if names:
            total = sum(row["group"] == group["name"] for row in board["rows"])
            said = f"{len(names)} of {total} measured runs are said not to fit"
            found.append(f"{group['name']}: {said}: {', '.join(names)}")
    return found


def text(board: Mapping[str, Any]) -> list[str]:
    """Sentences below the table: the split, runs said not to fit, the worst rows, the rankings, what is left out."""
    found = [board["split"], "", *_not_fitting(board)]
    for group in board["groups"]:
        for row in group["worst"]:
            found.append(f"{group['name']}: {row['id']} {row['error']:+.1%} ({row['reason']})")
        if group["unmapped"]:
            left = "; ".join(f"{count} {reason}" for reason, count in group["unmapped"].items())
            found.append(f"{group['name']}: left out {left}")
    for source in board["left_out"]:
        reasons = "; ".join(f"{count} {reason}" for reason, count in source["reasons"].items())
        found.append(f"{source['name']}: left out {reasons}")
    for plan in board["planning"]:
        found.append(
            f"ranking {plan['id']}: {plan['plans']} plans, Spearman {plan['spearman']:.2f}, regret {plan['regret']:.1%}"
        )
        found += [f"  measured, though no law of the layout gives it: {odd}" for odd in plan["odd"]]
    if board["best_plans"]:
        lost = sorted(plan["shortfall"] for plan in board["best_plans"])
        middle, mean = lost[len(lost) // 2], sum(lost) / len(lost)
        found.append(
            f"{len(lost)} published best plans among all layouts that fit: by our estimates they lose {middle:.1%} "
            f"to the quickest in the median, {mean:.1%} on average"
        )
    if board["expert_slopes"]:
        errors = [abs(slope["error"]) for slope in board["expert_slopes"]]
        near = sum(error <= EXACT for error in errors)
        found.append(
            f"memory of the experts over EP: {near} of {len(errors)} dry-run pairs within {EXACT:.0%}"
        )
    for gap in board["closed_form"]:
        found.append(
            f"closed form over simulation, {gap['schedule']}: {gap['mean']:+.1%} on average, {gap['least']:+.1%} to "
            f"{gap['largest']:+.1%}, of {gap['layouts']} layouts"
        )
    for row in board["columns"]:
        wrong = "; its PFLOP/s cell contradicts its MFU" if row["contradicts"] else ""
        found.append(f"MegaScale's MFU, {row['id']}: {row['points']:+.2f} points{wrong}")
    return found
