"""Packed batches of the chapter as tables: the documents, policies on them, and published numbers beside ours."""

from __future__ import annotations

from functools import lru_cache

from telekit.cost.packing_gain import packing_gain, telechat3_36b
from telekit.packing.balance import lower_bound
from telekit.packing.context import HOWS, split
from telekit.packing.gain import Gain, gain
from telekit.packing.policies import BY_WORK, ORDERED
from telekit.training.documents import shares_below
from telekit.ui.packed import Documents, Shape, arranged, batch, standing
from telekit.ui.tables import Table
from telekit.validation.packing import PublishedRow, packing_rows

BATCHES = 100
"""Global batches of TeleChat3-36B that the chapter states gains over."""
LENGTHS = (8192, 32768, 131072)
"""Tokens of a sample that its layout is run with."""


@lru_cache(maxsize=64)
def telechat_gain(
    documents: Documents, policy: str = "balanced", seq_len: int = 8192, batches: int = 10
) -> Gain:
    """Gain of one policy in TeleChat3-36B's published layout, or the same stretched to longer sequences."""
    return packing_gain(telechat3_36b(seq_len), documents.lengths, policies=(policy,), batches=batches)


def documents_by_length() -> Table:
    """Say which share of the real documents, of their tokens and of their causal pairs is shorter than a length."""
    drawn = Documents().lengths.sample(100_000)
    rows = []
    for limit in (1024, 4096, 8192, 32768, 65536):
        below = shares_below(drawn, limit)
        rows.append((f"{limit:,}", *(f"{share:.1%}" for share in below)))
    title = f"{drawn.size:,} documents drawn; mean {drawn.mean():,.0f} tokens, longest {drawn.max():,}"
    return Table(title, ("shorter than", "documents", "tokens", "causal pairs"), tuple(rows))


def context_splits(lengths: tuple[int, ...] = (4, 12), cp: int = 2) -> Table:
    """Work of context ranks under each way to split a packed sample."""
    rows = []
    for how in HOWS:
        found = split(lengths, cp, how)
        sums = (found.pairs, found.tokens, found.stretches)
        rows.append((how, *(str(x.tolist()) for x in sums), f"{found.imbalance:.3f}"))
    header = ("way", "pairs of ranks", "tokens", "stretches", "max / mean")
    return Table(f"documents {list(lengths)} over {cp} context ranks", header, tuple(rows))


def policies_compared(shape: Shape | None = None, batches: int = 20) -> Table:
    """Compare policies on the real documents: how far above the bound, and what the step gains."""
    shape = shape or Shape(4096, 32768, 64, micro_batches=8)
    names = ("as given", "longest-first", "karmarkar-karp", "balanced", BY_WORK)
    found = gain(shape.setting, Documents().lengths, names, batches)
    rows = []
    for it in found.policies:
        above = "" if it.policy == BY_WORK else f"{100 * (it.imbalance / found.lower_bound - 1).mean():.2f}%"
        mean, low, high = standing(it.speedup)
        row = (f"{it.imbalance.mean():.3f}", above, f"{it.waiting_share.mean():.1%}")
        rows.append((it.policy, *row, f"{mean:.3f}", f"{low:.3f} to {high:.3f}"))
    bound = f"{found.lower_bound.mean():.3f}"
    rows.append(("no assignment below", bound, "", "", f"{found.even.mean():.3f}", ""))
    header = ("policy", "max / mean", "over bound", "waiting", "speed-up", "5 to 95 % of batches")
    title = (
        f"{batches} batches of {shape.dp} ranks x {shape.micro_batches} samples of {shape.seq_len:,} tokens, "
    )
    return Table(f"{title}hidden size {shape.hidden:,}", header, tuple(rows))


def proved(ranks: int = 4, micro_batches: int = 4, batches: int = 5, seq_len: int = 32768) -> Table:
    """Put policies beside the integer program on batches small enough to be proved."""
    of = Shape(4096, seq_len, ranks, 1, micro_batches).setting
    rows = []
    for number in range(batches):
        one = batch(Documents(), seq_len, ranks * micro_batches, number)
        found = {p: arranged(one, of, p) for p in ("as given", "longest-first", "balanced", "optimal")}
        work = found["as given"].sample_s
        bound = lower_bound(work, ranks, micro_batches) * ranks / work.sum()
        over = [f"{it.rank_s.max() / it.rank_s.mean():.4f}" for it in found.values()]
        rows.append((str(number), *over, f"{bound:.4f}"))
    header = ("batch", "as given", "longest-first", "balanced", "optimal", "lower bound")
    title = f"slowest rank over the mean; {ranks} ranks x {micro_batches} samples of {seq_len:,} tokens"
    return Table(title, header, tuple(rows))


def published(batches: int = 60) -> Table:
    """Put WLB-LLM's published figures beside ours: how far each is off, and of a speed-up how far what it gains is."""
    rows = []
    for row in packing_rows(batches):
        if row.id.startswith("wlb_") and row.published is not None and row.found is not None:
            off = "" if row.gain_error is None else f"{row.gain_error:+.0%}"
            low, high = row.between or (row.found, row.found)
            open_ = f"{low:.2f} to {high:.2f}" if high > low else ""
            figures = (f"{row.published:g}", f"{row.found:.3f}", f"{row.error:+.1%}", off, open_)
            what = (
                row.what.replace("_", " ")
                .replace("seconds of work", "seconds")
                .replace("causal pairs", "pairs")
            )
            rows.append((what, *figures, _verdict(row)))
    header = ("figure", "published", "ours", "error", "of gain", "by settings", "verdict")
    title = f"WLB-LLM, eight configurations, {batches} batches each; near: within 15 %, of a speed-up what it gains"
    return Table(title, header, tuple(rows))


def _verdict(row: PublishedRow) -> str:
    """Say a status by its direction."""
    assert row.published is not None and row.found is not None
    side = "too high" if row.found > row.published else "too low"
    said = {"reproduced": "near", "falls short": side, "wrong in sign": "loss, not gain"}
    return said.get(row.status, row.status.replace("by its", "its"))


def telechat_runs(batches: int = BATCHES, policy: str = "balanced") -> Table:
    """Gain in TeleChat3-36B's published layout, and the same stretched to longer sequences.

    *Balancing* moves samples between ranks, *ordering* only orders the micro-batches of each rank's pipeline.
    """
    columns = []
    for seq_len in LENGTHS:
        layout = telechat3_36b(seq_len).layout
        found = telechat_gain(Documents(), policy, seq_len, batches)
        it, before = found[policy], found["as given"]
        gains = (it.unordered, found[ORDERED].speedup, it.speedup)
        imbalance = (f"{each.imbalance.mean():.3f}" for each in (before, it))
        spread = ("{:.3f} ({:.3f} to {:.3f})".format(*standing(each)) for each in gains)
        columns.append((f"{layout.dp}, {layout.cp}", *imbalance, *spread, f"{found.even.mean():.3f}"))
    imbalances = ("busiest / mean, as given", f"busiest / mean, {policy}")
    gained = (
        "speed-up by balancing",
        "speed-up by ordering",
        "speed-up by both",
        "if all samples were alike",
    )
    title = f"TeleChat3-36B: TP 8, PP 2, 4 micro-batches; means of {batches} batches (5 to 95 % of them)"
    rows = tuple(zip(("dp, cp", *imbalances, *gained), *columns, strict=True))
    return Table(title, ("tokens of a sample", *(f"{seq_len:,}" for seq_len in LENGTHS)), rows)


def other_methods() -> Table:
    """Count what becomes of the published rows of other methods, which lack what a model would need."""
    rows = []
    every = packing_rows()
    for name, start in (("HBP", "hbp_"), ("FlexSP", "flexsp_"), ("ChunkFlow", "chunkflow_")):
        status = [row.status for row in every if row.id.startswith(start)]
        counts = [status.count(said) for said in ("reproduced", "consistent", "input", "left out")]
        rows.append((name, str(len(status)), *map(str, counts)))
    header = ("method", "figures", "modelled", "consistent", "inputs", "left out")
    title = "published figures of other methods; consistent: with each other, nothing modelled"
    return Table(title, header, tuple(rows))
