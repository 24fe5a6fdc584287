"""Published times of single kernels (``op_efficiency.json``), as rows that :mod:`telekit.operators.fit` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from telekit.cluster.config import Device, device_names
from telekit.operators.efficiency import operator_times
from telekit.operators.fit import row_operator
from telekit.training.config import TrainConfig
from telekit.validation.readings import Row, cluster_of, rows
from telekit.validation.runs import UnmappedRow, odd, origin

MLA_HEADS, MLA_WIDTH = 128, (192 + 128) / 2
"""DeepSeek-V3's attention: heads, and the mean width of a key and a value."""

DOC_HEADS, DOC_KV_HEADS, DOC_WIDTH = 64, 4, 128
"""DistCA's attention, as its own notes infer."""


FLASH_2 = "compute-attn-H100.csv"
"""File of DistCA's forward passes, which run at a flat third of the peak."""


@dataclass(frozen=True)
class KernelRow:
    """A measured kernel.

    Attributes
    ----------
    id, group, source : str
        Of the row; kind and device; the source.
    device : str
        Catalog name.
    configuration : str
        Key of the split: the shape.
    row : mapping
        What :func:`telekit.operators.fit.row_operator` reads, with ``time_s``.
    in_fit : bool
        Constants may be fitted on it: each shape is a configuration (:func:`telekit.validation.runs.odd`).
    verified : bool
    """

    id: str
    group: str
    source: str
    device: str
    configuration: str
    row: Mapping[str, Any]
    in_fit: bool
    verified: bool

    @property
    def attention_kernel(self) -> str:
        """Kernel of an attention row: DistCA's forward passes alone run at FlashAttention-2's speed."""
        return "flash-2" if self.source.endswith(FLASH_2) else "flash"

    def estimated_s(self, device: Device | None = None) -> float:
        """Seconds that we say the kernel takes, on the catalog's device or on another record of it."""
        device = device or cluster_of(self.device, 1).device
        train = TrainConfig(precision=self.row.get("dtype", "bf16"), attention_kernel=self.attention_kernel)  # type: ignore[arg-type]
        found = operator_times(row_operator(self.row), device, train)
        return float(found.forward_s + (found.backward_s if self.row.get("backward") else 0.0))


@cache
def kernel_rows(group: str | None = None) -> tuple[KernelRow, ...]:
    """Every published kernel on a device of the catalog whose shape is stated."""
    return tuple(row for row in _read()[0] if group in (None, row.group))


@cache
def unmapped_kernels() -> tuple[UnmappedRow, ...]:
    """Every other row of the file, with the reason."""
    return _read()[1]


@cache
def _read() -> tuple[tuple[KernelRow, ...], tuple[UnmappedRow, ...]]:
    found: list[KernelRow] = []
    left: list[UnmappedRow] = []
    for row in rows("op_efficiency"):
        device = row["gpu"].lower()
        kind = {"gemm": "gemm", "grouped_gemm": "grouped-gemm"}.get(row["kind"], "attention")
        group = f"kernels-{kind}-{device}"
        if device not in device_names():
            left.append(UnmappedRow(row["id"], group, f"{row['gpu']} is not in the catalog"))
        elif row["kind"] == "layer_linear":
            left.append(UnmappedRow(row["id"], group, "the model's dimensions are not in the file"))
        else:
            found += [_kernel(row, group, device, part) for part in READERS[row["kind"]](row)]
    return tuple(found), tuple(left)


def _kernel(row: Row, group: str, device: str, part: Mapping[str, Any]) -> KernelRow:
    shape = " ".join(f"{k}={v}" for k, v in sorted(part.items()) if k != "time_s")
    in_fit = row["verified"] and odd(origin(row["source"]), shape)
    return KernelRow(row["id"], group, row["source"], device, shape, part, in_fit, row["verified"])


def _gemm(row: Row) -> list[dict[str, Any]]:
    sizes = {name: row[name] for name in ("m", "k", "n")}
    return [{"kind": "gemm", "dtype": "fp8", "time_s": row["latency_us"] * 1e-6, **sizes}]


def _grouped(row: Row) -> list[dict[str, Any]]:
    """Read the two products of an expert: gate and up together, and down."""
    shared = {
        "kind": "grouped_gemm",
        "dtype": "fp8",
        "m": row["tokens_per_expert"],
        "groups": row["num_local_experts"],
    }
    hidden, inner = row["hidden_size"], row["intermediate_size"]
    return [
        {**shared, "k": hidden, "n": 2 * inner, "time_s": row["up_proj_us"] * 1e-6},
        {**shared, "k": inner, "n": hidden, "time_s": row["down_proj_us"] * 1e-6},
    ]


def _mla(row: Row) -> list[dict[str, Any]]:
    length = row["seq_len"]
    sizes = {"tokens": length, "keys": length, "heads": MLA_HEADS, "head_dim": MLA_WIDTH}
    return [{"kind": "attention", "time_s": row["latency_us"] * 1e-6, **sizes}]


def _gqa(row: Row) -> list[dict[str, Any]]:
    heads, kv_heads, width = (int(part) for part in row["heads_kvheads_dim"].split("-"))
    sizes = {"tokens": row["seq_len"], "keys": row["seq_len"], "heads": heads, "kv_heads": kv_heads}
    return [{"kind": "attention", "head_dim": width, "time_s": row["latency_us"] * 1e-6, **sizes}]


def _document(row: Row) -> list[dict[str, Any]]:
    """Read attention of documents: forward of one that ``cp`` ranks share; or both passes of a packed batch."""
    shared = {"kind": "attention", "head_dim": DOC_WIDTH, "keys": row["doc_len"]}
    if "total_tokens" in row:
        documents = row["total_tokens"] / row["doc_len"]
        heads = {"heads": row["heads"], "kv_heads": row["kv_heads"], "tokens": row["total_tokens"]}
        return [{**shared, **heads, "backward": True, "time_s": row["latency_ms"] * 1e-3 * documents}]
    heads = {"heads": DOC_HEADS / row["tp"], "kv_heads": max(DOC_KV_HEADS / row["tp"], 1)}
    return [
        {**shared, **heads, "tokens": row["doc_len"] / row["cp"], "time_s": row["duration_ms_per_doc"] * 1e-3}
    ]


READERS = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention_mla": _mla,
    "attention_gqa": _gqa,
    "attention_doc": _document,
}
