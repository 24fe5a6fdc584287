"""Compare two dumps, checkpoints or files of tensors: pair by pair, with the memory of one pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from telekit.accuracy.causes.finding import NEAR_ZERO, NONE, Finding
from telekit.accuracy.compared import Compared
from telekit.accuracy.comparing.judged import (
    judge_arrays,
    judge_compared,
    judged_any,
    not_judged,
    result_of,
    special,
)
from telekit.accuracy.comparing.mapping import Mapping as NameMapping
from telekit.accuracy.comparing.mapping import read_mapping
from telekit.accuracy.comparing.names import Pair, is_gradient, pair_tensors, phase_of
from telekit.accuracy.comparing.padding import Lengths, paddings, trimmed
from telekit.accuracy.comparing.ranks import Side, sides
from telekit.accuracy.locating.first_divergence import first_divergence
from telekit.accuracy.measures.metrics import compare_arrays
from telekit.accuracy.measures.summaries import NAMES, SummaryErrors, compare_summaries
from telekit.accuracy.readers import NamedTensor, ReadProblem, Tensors, tensors
from telekit.accuracy.standards import msprobe
from telekit.accuracy.standards.beside import as_pairs
from telekit.accuracy.standards.depth import LAYERS
from telekit.accuracy.standards.judge import standard as named_standard
from telekit.accuracy.standards.profiles import Standard
from telekit.accuracy.standards.tolerances import LIBRARIES
from telekit.accuracy.standards.verdict import ERROR, PASS, SKIP, WARNING, Verdict
from telekit.errors import InputError, bad

Progress = Callable[[int, int, str], None]
ALIGN = ("auto", "never")
MOST_LAYERS = 1000
"""A number in a name beyond this counts no layers; a bound that grows with them would say nothing."""


@dataclass(frozen=True)
class Comparison:
    """What comparing answers.

    Attributes
    ----------
    rows : tuple of Compared
        By step and rank, in golden's graph order; every tensor of both sides is in one row.
    verdicts : tuple of Verdict
        One a row.
    result : str
        The worst of them: pass, warning or error; error where nothing was compared, ``skip`` where nothing was
        judged. No pass where tensors were lost in reading, and none where the sides part (``located``) and no
        standard was named.
    first_divergence : Finding or None
        Where the sides first part beyond rounding, and what that looks like (`locate.locate`). None where nothing
        fails, and where rounding explains every difference: a note then says which row misses the standard.
    problems : tuple of ReadProblem
        What could not be read, loaded or compared.
    standard : str
        The standard's own name.
    mode : str
        ``tensor``, ``statistics`` or ``md5``: the most that both sides hold.
    notes : tuple of str
        What holds for many rows: shards merged, padding cut, lines for a mapping file.
    located : bool
        Whether the sides part beyond rounding at a known place, whatever the standard says of it. Not where the place
        is a random or unordered output that was judged as one.
    """

    rows: tuple[Compared, ...]
    verdicts: tuple[Verdict, ...]
    result: str
    first_divergence: Finding | None
    problems: tuple[ReadProblem, ...]
    standard: str
    mode: str
    target: str = ""
    golden: str = ""
    notes: tuple[str, ...] = ()
    stacks: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    located: bool = False

    @property
    def negative(self) -> bool:
        """Whether the answer is no: a miss, nothing judged, or sides that part where no named standard passes them."""
        judged = judged_any(self.rows, self.verdicts)
        return not judged or self.result in (ERROR, SKIP) or (self.located and self.result != PASS)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by result, and those without a partner."""
        found = Counter(v.result for v in self.verdicts)
        unmatched = sum(not row.matched for row in self.rows)
        return {k: found[k] for k in (PASS, WARNING, ERROR, SKIP)} | {"unmatched": unmatched}


def compare(
    target: str | Path | Tensors,
    golden: str | Path | Tensors,
    *,
    standard: str | None = None,
    mapping: str | Path | Mapping[str, Any] | NameMapping | None = None,
    match: str = "name",
    align: str = "auto",
    progress: Progress | None = None,
    locate: bool = True,
) -> Comparison:
    """Compare all tensors of two sides.

    Shards of several ranks are merged before they are compared, where the sides have different numbers of them (see
    `ranks.sides`). One pair is in memory at a time.

    Parameters
    ----------
    target, golden : path or Tensors
        What `readers.tensors` reads: files of tensors, msprobe dumps of any number of steps and ranks, checkpoints.
    standard : str, optional
        See `standards.standards`; those that need a third, trusted device are refused. msprobe's where none is named;
        then a difference beyond rounding that it has no rule for is a warning. A standard that is named has the last
        word.
    mapping : path or mapping, optional
        See `mapping.read_mapping`.
    match : {"name", "order", "fuzzy"}
        How tensors find each other; see `names.pair_tensors`.
    align : {"auto", "never"}
        Whether rows of padding are cut: where several tensors, and no others, differ from golden in the length of
        one axis before the last, all by the same two lengths, and what the longer one has more is one value repeated.
        Tensors of no operator (weights) are never cut to a shorter target.
    progress : callable, optional
        Called with pairs done, pairs in all, and the name at hand.
    locate : bool
        Whether to look for ``first_divergence``; leave it to `locate.locate` where that is called with more.

    Raises
    ------
    InputError
        A path cannot be read at all, or an option is wrong. What fails for single tensors is in ``problems``.
    """
    chosen = _standard(standard or "msprobe")
    if align not in ALIGN:
        raise bad("align", align, f"must be one of {', '.join(ALIGN)}")
    lines = read_mapping(mapping)
    t, g = (side if isinstance(side, Tensors) else tensors(side) for side in (target, golden))
    if t.kind == g.kind == "npy" and match == "name":
        match = "order"  # such a file holds one tensor and no name
    work = _Work(chosen, lines, progress)
    work.notes += lines.unused([x.name for x in t], [x.name for x in g])
    pairs = _paired(t, g, lines, match, work)
    cut = paddings([p for _, found in pairs for p in found], work.notes) if align == "auto" else {}
    work.layers = _layers(p for _, found in pairs for p in found)
    for side, found in pairs:
        work.run(side, found, cut, sum(len(f) for _, f in pairs))
    verdicts = judge_compared(work.rows, chosen, work.done)
    several = any(side.merged for side, _ in pairs)
    replicas = t if several else None
    first, said = (
        first_divergence(work.rows, verdicts, replicas, lines.target_layout) if locate else (None, ())
    )
    problems = (*t.problems, *g.problems, *work.problems)
    stacks = {name: lines for info in t.dumps for name, lines in info.stack.items()}
    located = (
        first is not None and first.cause not in (NONE, NEAR_ZERO) and first.tensor not in work.unordered
    )
    doubt = any(p.lost for p in problems) or (located and standard is None)
    return Comparison(
        tuple(work.rows), verdicts, result_of(work.rows, verdicts, doubt), first, problems, chosen.name,
        _mode(work.rows), t.source, g.source, (*work.notes, *not_judged(work.rows, verdicts), *said), stacks, located,
    )  # fmt: skip


def _paired(
    t: Tensors, g: Tensors, lines: NameMapping, match: str, work: _Work
) -> list[tuple[Side, list[Pair]]]:
    """Pair the tensors of each side of a comparison by name, order or likeness."""
    pairs: list[tuple[Side, list[Pair]]] = []
    for side in sides(t, g, lines, work.notes, work.problems):
        paired = pair_tensors(side.target, side.golden, match=match, mapping=lines)
        work.notes += [h for h in paired.hints if h not in work.notes]
        pairs.append((side, _none_is_zero(paired.pairs)))
    return pairs


def _standard(name: str) -> Standard:
    chosen = named_standard(name)
    if chosen.needs == "device":
        rule = "compares the errors of two devices against a third result; two sides will not do"
        raise bad("standard", name, rule, "msprobe, or telekit.accuracy.standards.judge.judge with device=")
    return chosen


def _mode(rows: Sequence[Compared]) -> str:
    if any(row.metrics is not None and row.target and row.target.has_data for row in rows):
        return "tensor"
    return "md5" if any(row.checksum_equal is not None for row in rows) else "statistics"


class _Work:
    """The rows of a comparison as they are made."""

    def __init__(self, chosen: Standard, mapping: NameMapping, progress: Progress | None) -> None:
        self.chosen, self.mapping, self.progress = chosen, mapping, progress
        self.rows: list[Compared] = []
        self.done: dict[int, Verdict] = {}
        self.notes: list[str] = []
        self.problems: list[ReadProblem] = []
        self.layers = LAYERS
        self.unordered: set[str] = set()

    def run(self, side: Side, pairs: Sequence[Pair], cut: dict[Lengths, int], total: int) -> None:
        """Compare the pairs of one step and rank."""
        places = {id(t): i for i, t in enumerate(side.target)}
        for (target, golden, notes), order in zip(pairs, _orders(pairs), strict=True):
            if self.progress:
                self.progress(len(self.rows), total, (golden or target or _nameless()).name)
            both = golden or target or _nameless()
            said, doubts = side.checks(target, golden)
            row = Compared(
                both.name, target, golden, both.api, both.part, phase_of(both), order, side.step, side.rank,
                notes=(*notes, *said), target_order=places.get(id(target), len(places)), doubts=doubts,
            )  # fmt: skip
            self._compare(row, cut)

    def _compare(self, row: Compared, cut: dict[Lengths, int]) -> None:
        """Fill in what both sides allow, and judge what needs the elements."""
        t, g = row.target, row.golden
        if t is None or g is None or "scalar" in (t.kind, g.kind) or t.kind == g.kind == "none":
            self.rows.append(row)
            return
        try:
            row = replace(
                row, summary=_summary(t, g), checksum_equal=t.md5 == g.md5 if t.md5 and g.md5 else None
            )
            if _loadable(t, g):
                self._elements(row, cut)
                return
        except InputError as error:
            self.problems += [ReadProblem(t.place, p.field, f"{p.value}: {p.rule}") for p in error.problems]
            why = (
                f"{error.problems[0].value}: {error.problems[0].rule}"  # and nobody after us should try again
            )
            t, g = (replace(x, loader=None, unread=x.unread or why) for x in (t, g))
            row = replace(
                row, target=t, golden=g, notes=(*row.notes, f"not compared: {error.problems[0].rule}")
            )
        self.rows.append(row)

    def _elements(self, row: Compared, cut: dict[Lengths, int]) -> None:
        t, g = row.target, row.golden
        assert t is not None and g is not None
        a, b = _arrays(t, g)
        row, a, b = trimmed(row, a, b, cut)
        pair = [as_pairs(x) if x.dtype.kind == "c" else x for x in (a, b)]
        row = replace(row, metrics=compare_arrays(*pair))
        assert row.metrics is not None
        verdict = special(row, pair[0], pair[1], self.chosen)
        if verdict is not None and verdict.result == PASS:
            self.unordered.add(row.name)
        if verdict is None and self.chosen.name not in msprobe.OUTPUT_SHARE:
            if self.chosen.name not in LIBRARIES:  # which take complex numbers as they are
                a, b = pair
            verdict = judge_arrays(a, b, row.metrics, self.chosen, _layer(row.name), self.layers)
        if verdict is not None:
            self.done[len(self.rows)] = verdict
        self.rows.append(row)


def _nameless() -> NamedTensor:
    raise AssertionError("a pair has at least one side")


def _orders(pairs: Sequence[Pair]) -> Iterator[int]:
    """Yield each pair's place in golden's graph: one an operator; what only target has shares its predecessor's."""
    seen: dict[str, int] = {}
    order = -1
    for _, golden, _ in pairs:
        if golden is not None:
            order = seen.setdefault(golden.api or f"{golden.name}\n{len(seen)}", len(seen))
        yield max(order, 0)


def _loadable(t: NamedTensor, g: NamedTensor) -> bool:
    return all(x.has_data or x.kind == "none" for x in (t, g))


def _arrays(t: NamedTensor, g: NamedTensor) -> list[NDArray[Any]]:
    """Load both sides; None is zeros of the other side's shape and type.

    Raises
    ------
    InputError
        A side cannot be loaded, or one is complex and the other is not.
    """
    known = t if t.kind == "tensor" else g
    whole = known.load()
    found = [whole if x is known else x.load() if x.has_data else np.zeros_like(whole) for x in (t, g)]
    if (found[0].dtype.kind == "c") != (found[1].dtype.kind == "c"):
        rule = f"cannot stand beside golden's {found[1].dtype}: only one side is complex"
        raise bad("target", str(found[0].dtype), rule)
    return found


def _summary(t: NamedTensor, g: NamedTensor) -> SummaryErrors | None:
    zero = dict.fromkeys(NAMES, 0.0)
    values = []
    for side in (t, g):
        s = side.statistics
        if side.kind != "none" and (s is None or (s.max is None and s.norm is None)):
            return None
        values.append(zero if s is None else {"Max": s.max, "Min": s.min, "Mean": s.mean, "Norm": s.norm})
    return compare_summaries(*values)


def _layer(name: str) -> int:
    """Return the layer a name belongs to (``layers.3.mlp``), 0 where it names none."""
    words = name.split(".")
    for before, word in pairwise(words):
        if before in ("layers", "layer", "h", "blocks") and word.isdecimal():
            return int(word[:6])
    return 0


def _layers(pairs: Iterable[Pair]) -> int:
    """Return the highest layer that both sides have, and no fewer than the bound that grows with depth is made for."""
    found = (_layer(golden.name) for target, golden, _ in pairs if target is not None and golden is not None)
    return max([LAYERS, *(n for n in found if n <= MOST_LAYERS)])


def _none_is_zero(pairs: Sequence[Pair]) -> list[Pair]:
    """Give a gradient that one side does not have at all, and that is zero on the other, its None.

    An expert without a token has no gradient on one side and zeros on the other: the same update. A None beside a
    tensor that is no gradient (or is not zero) stays what it is: two different things.
    """
    found: list[Pair] = []
    for target, golden, notes in pairs:
        lone = target if golden is None else golden if target is None else None
        if lone is not None and lone.kind == "tensor" and is_gradient(lone) and _all_zero(lone):
            absent = replace(lone, kind="none", loader=None, statistics=None, md5=None, place="absent")
            pair = (target or absent, golden or absent)
            found.append((*pair, ("None on one side, zeros on the other: the same",)))
        elif target is not None and golden is not None and {target.kind, golden.kind} == {"tensor", "none"}:
            one = target if target.kind == "tensor" else golden
            said = "the same" if _all_zero(one) else "different"
            found.append((target, golden, (*notes, f"None on one side, taken as zeros: {said}")))
        else:
            found.append((target, golden, notes))
    return found


def _all_zero(tensor: NamedTensor) -> bool:
    s = tensor.statistics
    if s is not None and s.max is not None and s.min is not None:
        return s.max == s.min == 0
    if not tensor.has_data:
        return False
    try:
        return not np.any(tensor.load())
    except InputError:
        return False
