"""Published rows on packing, one by one: what of them is reproduced, by how much, and what is left out and why.

Nothing here is fitted to a published speed-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from telekit.cost.packing_gain import packing_gain, telechat3_36b
from telekit.packing.policies import ORDERED
from telekit.training.documents import distribution
from telekit.validation.readings import rows
from telekit.validation.wlb_llm import (
    BATCHES,
    configurations,
    mean_imbalance,
    mean_speedup,
    speedup_range,
)

Status = Literal[
    "reproduced", "falls short", "wrong in sign", "not by its own words",
    "consistent", "not consistent", "input", "left out",
]  # fmt: skip
TOLERANCE = 0.15
"""Relative error up to which a modelled row counts as reproduced; of a speed-up, that of its gain (speed-up - 1)."""
ROUNDING = 0.03
"""Relative error that rounding of published figures explains: ratios of two figures of two digits."""


@dataclass(frozen=True)
class PublishedRow:
    """One published figure beside ours.

    Attributes
    ----------
    id : str
        Of the row in ``data/measurements/packing.json``.
    what : str
        Which figure.
    published, found : float or None
        As published, and as modelled or computed from other rows; None where there is none.
    status : str
        ``reproduced`` or ``falls short``: modelled, within 15 % or not, either way; of a speed-up its gain is.
        ``wrong in sign``: a gain that comes out as a loss. ``not by its own words``: another quantity than the row's,
        however near. ``consistent`` or not: rows agree with each other by their own definitions, nothing is modelled.
        ``input``: taken as given. ``left out``: see ``why``.
    why : str
        How, or why not.
    limit : bool
        Whether ``found`` is a limit that the published figure keeps, and not an estimate of it.
    gain_error : float or None
        Of a speed-up that is modelled: relative error of what it gains, speed-up - 1.
    between : (float, float) or None
        Least and most that is found under what the rows leave open.
    """

    id: str
    what: str
    published: float | None
    found: float | None
    status: Status
    why: str
    limit: bool = False
    gain_error: float | None = None
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Relative error of what was found, None where there is nothing to compare."""
        if self.published is None or self.found is None or self.limit:
            return None
        return self.found / self.published - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"error": self.error}


def idle_share(work: ArrayLike) -> float:
    """HBP's balance ratios: mean over ranks of the share of time that a rank waits for the busiest.

    ``1 - mean / max`` of attention work (ABR) or of tokens (DBR); ``1 / (1 - ABR)`` is max over mean.
    Source: arXiv 2503.07680.

    Parameters
    ----------
    work : array (..., ranks)
        Work of each rank; leading axes are micro-batches, whose mean is taken.
    """
    each = np.asarray(work, dtype=np.float64)
    return float((1 - each.mean(axis=-1) / each.max(axis=-1)).mean())


def flexsp_time_s(
    lengths: ArrayLike, degree: int, linear: float, quadratic: float, fixed: float = 0.0
) -> float:
    """FlexSP's computing time of sequences on a group: ``sum(a1 s^2 + a2 s) / d + b1``.

    a1 is ``quadratic``, a2 ``linear``, b1 ``fixed``, d ``degree``. Its all-to-all time ``sum(a3 s) / (d v) + b2`` is
    the same with ``quadratic`` 0 and ``linear`` a3 / v.
    Source: arXiv 2412.01523.
    """
    s = np.asarray(lengths, dtype=np.float64)
    return float((quadratic * s**2 + linear * s).sum() / degree + fixed)


def groups_of(plan: str) -> tuple[int, ...]:
    """Sequence-parallel groups of one micro-batch as FlexSP writes them: ``16x3,8x2`` is three of 16 and two of 8."""
    found: list[int] = []
    for part in re.sub(r"\(x\d+\)", "", plan).replace(" ", "").split(","):
        degree, _, count = part.partition("x")
        if degree == "1" and count == "64":  # written the other way round in its last micro-batch
            degree, count = "64", "1"
        found += [int(degree)] * int(count or 1)
    return tuple(found)


def packing_rows(batches: int = BATCHES) -> tuple[PublishedRow, ...]:
    """Every published row on packing, with what becomes of it.

    Parameters
    ----------
    batches : int
        Global batches that WLB-LLM's configurations are run for.
    """
    by_id = {row["id"]: row for row in rows("packing")}
    found = [*_wlb(by_id, batches), *_hbp(by_id), *_flexsp(by_id), *_chunkflow(by_id)]
    named = {row.id for row in found}
    assert named == set(by_id), named ^ set(by_id)
    return tuple(found)


def telechat3_36b_gains(batches: int = 20, policy: str = "balanced", seed: int = 0) -> list[dict[str, float]]:
    """Gain in TeleChat3-36B's layout, and the same stretched: of the assignment, of ordering, and of both.

    Nothing is published to hold these against; they are said apart so that neither passes for the other.

    Returns
    -------
    list of dict
        ``seq_len``; ``assignment``, samples moved between ranks; ``ordering_alone``, samples as given in the order
        that each pipeline takes best; ``both``; all speed-ups over samples as given, means over batches.
    """
    found = []
    for seq_len in (8192, 32768, 131072):
        options = {"policies": (policy,), "batches": batches, "seed": seed}
        it = packing_gain(telechat3_36b(seq_len), distribution("wlb-llm"), **options)
        row = {"seq_len": float(seq_len), "assignment": float(it[policy].unordered.mean())}
        row |= {"ordering_alone": float(it[ORDERED].speedup.mean()), "both": float(it[policy].speedup.mean())}
        found.append(row)
    return found


def _modelled(id_: str, what: str, published: float, found: float, why: str) -> PublishedRow:
    near = abs(found / published - 1) <= TOLERANCE
    return PublishedRow(id_, what, published, found, "reproduced" if near else "falls short", why)


def _speedup(
    id_: str, what: str, published: float, found: float, between: tuple[float, float], why: str
) -> PublishedRow:
    error = (found - 1) / (published - 1) - 1
    status: Status = "reproduced" if abs(error) <= TOLERANCE else "falls short"
    if (found - 1) * (published - 1) < 0:
        status = "wrong in sign"
    open_ = f"; {between[0]:.2f} to {between[1]:.2f} under 35 settings of outlier levels and cap"
    return PublishedRow(id_, what, published, found, status, why + open_, False, error, between)


def _agrees(
    id_: str, what: str, published: float, found: float, why: str, within: float = ROUNDING
) -> PublishedRow:
    near = abs(found / published - 1) <= within
    return PublishedRow(id_, what, published, found, "consistent" if near else "not consistent", why)


def _left_out(id_: str, what: str, published: float | None, why: str) -> PublishedRow:
    return PublishedRow(id_, what, published, None, "left out", why)


def _wlb(by_id: dict[str, Any], batches: int) -> Iterator[PublishedRow]:
    lengths = by_id["lengths_wlbllm"]
    drawn = distribution("wlb-llm")
    yield _modelled(
        "lengths_wlbllm", "mean length", lengths["mean"], drawn.mean, "straight lines between its quantiles"
    )
    for id_, row in by_id.items():
        if row["kind"] == "config":
            yield PublishedRow(id_, "configuration", None, None, "input", "run; the model's shape is assumed")
    found = configurations(batches)
    how = f"eight configurations, {batches} global batches each; 1F1B, tile of 128, no free factor"
    for id_, what, scheme, over, context in (
        ("wlb_avg_vs_plain4d", "speed-up over Plain-4D", "wlb-llm", "plain-4d", None),
        ("wlb_avg_vs_fixed4d", "speed-up over Fixed-4D", "wlb-llm", "fixed-4d", None),
        ("wlb_fixed_vs_plain", "Fixed-4D over Plain-4D", "fixed-4d", "plain-4d", None),
        ("wlb_avg_64k", "speed-up over Plain-4D, 64k", "wlb-llm", "plain-4d", 65536),
        ("wlb_avg_128k", "speed-up over Plain-4D, 128k", "wlb-llm", "plain-4d", 131072),
    ):
        ours = mean_speedup(found, scheme, over, context)
        between = speedup_range(batches, scheme, over, context)
        yield _speedup(id_, what, by_id[id_]["speedup"], ours, between, how + _BUT.get(id_, ""))
    row = by_id["wlb_imbalance"]
    for of, unit in (("work_imbalance", "seconds of work"), ("pairs_imbalance", "causal pairs")):
        why = f"{unit}, largest micro-batch over the mean; {_READINGS[of]}"
        for key, scheme in (("imbalance_before", "fixed-4d"), ("imbalance_after", "wlb-llm")):
            what, ours = f"{key}, {unit}", mean_imbalance(found, scheme, of)
            if of == "pairs_imbalance":
                yield _modelled(row["id"], what, row[key], ours, why)
            else:
                yield PublishedRow(row["id"], what, row[key], ours, "not by its own words", why)


_BUT = {
    "wlb_fixed_vs_plain": "; the direction differs: packing anew gains nothing here, for context ranks lose by it"
}
_READINGS = {
    "work_imbalance": "attention with all else that a micro-batch computes, what the scheme balances; the row says "
    "attention alone",
    "pairs_imbalance": "attention alone, which are the row's own words; it does not say on which of the models and "
    "contexts, and whether on the lengths that DistCA ships",
}


def _hbp(by_id: dict[str, Any]) -> Iterator[PublishedRow]:
    for length in ("4k", "32k"):
        base = by_id[f"hbp_t3_{length}_random"]["gpu_days"]
        for method in ("random", "sorted", "packing"):
            row = by_id[f"hbp_t3_{length}_{method}"]
            why = (
                "speed-up is the ratio of GPU days; ratios of balance need Tulu3's lengths, which no row has"
            )
            yield _agrees(row["id"], "speed-up", row["speedup"], base / row["gpu_days"], why)
    for id_ in ("hbp_t5_llama-3.1-8b", "hbp_t5_llama-3.1-70b"):
        row = by_id[id_]
        why = "ratio of GPU days; the lengths (Tulu3 with LongCite), batch and layout are in no row"
        yield _agrees(id_, "speed-up", row["speedup"], row["gpu_days_before"] / row["gpu_days_after"], why)
    naive, grouped, balanced = (by_id[f"hbp_t6_8b_{k}"] for k in range(3))
    waits = [1 / (1 - row["ABR"]) for row in (naive, grouped, balanced)]
    share = (grouped["gpu_days"] / balanced["gpu_days"] - 1) / (waits[1] - waits[2])
    predicted = balanced["gpu_days"] * (1 + share * (waits[0] - waits[2]))
    why = (
        f"attention takes max / mean = 1 / (1 - ABR); its share ({share:.2f} of the balanced run) is read off the two "
        "other rows; sequence-parallel traffic (CR) is left out"
    )
    yield _agrees(naive["id"], "GPU days of the unbalanced run", naive["gpu_days"], predicted, why, TOLERANCE)
    for row in (grouped, balanced):
        yield PublishedRow(
            row["id"], "GPU days", row["gpu_days"], None, "input", "the row above is read off it"
        )
    for id_, same in (("hbp_t11_isf", naive), ("hbp_t12_isf", naive), ("hbp_t12_hbp", balanced)):
        yield _agrees(id_, "ABR", by_id[id_]["ABR"], same["ABR"], f"repeats {same['id']}")
    yield _left_out("hbp_overhead", "time to choose groups and pack", None, "their program on their machine")


def _flexsp(by_id: dict[str, Any]) -> Iterator[PublishedRow]:
    why = "GitHub's, CommonCrawl's and Wikipedia's lengths are in no row, nor its fitted coefficients"
    product = {
        "flexsp_vs_deepspeed_max": "flexsp_batchada_vs_ds",
        "flexsp_vs_megatron_max": "flexsp_batchada_vs_mlm",
    }
    for id_, step in product.items():
        most = by_id[step]["speedup"] * by_id["flexsp_vs_batchada"]["speedup"]
        speedup = by_id[id_]["speedup"]
        status: Status = "consistent" if speedup <= most else "not consistent"
        also = f"a maximum over cases is at most the product of its two steps' maxima, {most:.2f}; {why}"
        yield PublishedRow(id_, "speed-up is not above", speedup, most, status, also, limit=True)
    for id_ in (
        "flexsp_commoncrawl_max",
        "flexsp_batchada_vs_ds",
        "flexsp_batchada_vs_mlm",
        "flexsp_vs_batchada",
    ):
        yield _left_out(id_, "speed-up", by_id[id_]["speedup"], why)
    row = by_id["flexsp_bucket_github"]
    yield _left_out(row["id"], "bucketing error, %", row["dp_bucketing_pct"], why)
    plan = by_id["flexsp_case2"]
    filled = {sum(groups_of(text)) for text in plan["flexsp"]}
    status = "consistent" if filled == {plan["n_gpus"]} else "not consistent"
    yield PublishedRow(
        plan["id"],
        "GPUs of each micro-batch",
        plan["n_gpus"],
        float(max(filled)),
        status,
        "groups summed; " + why,
    )
    cost = "its two formulas are here (flexsp_time_s) without coefficients; " + why
    yield _left_out("flexsp_cost", "error of its cost model, %", by_id["flexsp_cost"]["cost_error_pct"], cost)


def _chunkflow(by_id: dict[str, Any]) -> Iterator[PublishedRow]:
    why = "its batch, layout, recompute and baseline are in no row"
    yield _left_out("chunkflow_max", "speed-up", by_id["chunkflow_max"]["speedup"], why)
    small, large = by_id["chunkflow_2048_16"], by_id["chunkflow_8192_4"]
    kept = small["chunk_size"] * small["K"]
    same = f"both keep {kept:,} tokens of activations (chunk size times K); {why}"
    yield _agrees(small["id"], "tokens kept", float(large["chunk_size"] * large["K"]), float(kept), same)
    yield _left_out(large["id"], "iteration, ms", large["iteration_ms"], why)
    row, chat = by_id["chunkflow_lengths"], distribution("lmsys-chat")
    share = 100 * float(np.mean(chat.quantile(np.linspace(0, 1, 100_001)) <= 4096))
    drawn = "its summary; between its points the shape is assumed"
    yield _modelled(row["id"], "% of documents below 4K", row["share_below_4K_pct"], share, drawn)
    yield _modelled(row["id"], "longest document", row["longest"], float(chat.quantile(1.0)), drawn)
