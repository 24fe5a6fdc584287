"""The noun *cluster*: a device, how many of it, and the links between them.

Links come in tiers, innermost first: a tier reaches so many consecutive ranks, and two ranks talk over the
innermost tier that reaches both. Bandwidths are **one way and per device**, which is half of what a data
sheet's duplex figure says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from telekit import catalog
from telekit.cluster.curves import MEASURED, Curve
from telekit.cluster.kernels import Kernels
from telekit.cluster.ports import Ports, check_bandwidth, with_bandwidth
from telekit.cluster.sourced import Provenance as Provenance
from telekit.cluster.sourced import Sourced as Sourced
from telekit.documents import read_document
from telekit.errors import InputError, Problem, bad, from_pydantic
from telekit.model.attention import Frozen
from telekit.other_names import instead_of

MAX_DEVICES = 2**20

Dtype = Literal["fp4", "fp8", "int8", "fp16", "bf16", "tf32", "fp32"]
Positive = Annotated[float, Field(ge=1, le=1e19, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=1e-6, le=1, allow_inf_nan=False)]
Latency = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Devices = Annotated[int, Field(ge=1, le=MAX_DEVICES)]


class Device(Sourced):
    """One accelerator, as one rank sees it.

    Parameters
    ----------
    name, source : str
        Catalog name, and where the peaks, memory and links were read.
    verified : bool
        True when they were read in ``source``.
    peak_flops : dict of str to float
        Dense peak by dtype, FLOP/s.
    memory_bytes : int
        Device memory.
    memory_bandwidth_bytes_per_s : float
        Peak bandwidth of that memory.
    gemm_efficiency, grouped_gemm_efficiency, attention_efficiency : float
        Fraction of the peak that large shapes reach: dense matmul, experts' grouped matmul, and attention
        forward, its FLOPs counted for the causal half.
    memory_efficiency : float
        Fraction of the memory bandwidth that element-wise work reaches.
    kernels : Kernels
        How kernels of ordinary size fall short of these.
    power_w : float or None
        Board power.
    grade : str
        Speed grade, where one name covers several (Ascend 910B).
    notes : str
        What a reader must know before using the numbers.
    sources : dict of str to Provenance
        By field, where it does not come from ``source``.
    """

    name: str = Field(min_length=1)
    source: str = ""
    verified: bool = False
    peak_flops: dict[Dtype, Positive] = Field(min_length=1)
    memory_bytes: Annotated[int, Field(ge=2**20, le=2**50)]
    memory_bandwidth_bytes_per_s: Positive
    gemm_efficiency: Fraction
    grouped_gemm_efficiency: Fraction
    attention_efficiency: Fraction
    memory_efficiency: Fraction
    kernels: Kernels = Kernels()
    power_w: Positive | None = None
    grade: str = ""
    notes: str = ""

    def peak(self, dtype: str) -> float:
        """Dense peak of one dtype, FLOP/s.

        Raises
        ------
        InputError
            When the device has no such units, or the record does not know them.
        """
        for name, value in self.peak_flops.items():
            if name == dtype:
                return value
        known = ", ".join(sorted(self.peak_flops))
        raise bad("precision", dtype, f"no peak FLOP/s is recorded for it on {self.name}", f"known: {known}")


class LinkTier(Sourced):
    """Links of one reach.

    Parameters
    ----------
    name : str
        ``node``, ``supernode`` or ``cluster``.
    devices : int or None
        How many consecutive ranks it reaches; None is the whole cluster.
    bandwidth_bytes_per_s : float
        One way, per device.
    latency_s : float
        Time of a step of a collective that carries no bytes.
    efficiency : float
        Fraction of the bandwidth that collectives of 64 MiB and more reach.
    half_bytes : float
        Message that reaches half of that rate: x bytes go at x / (x + half_bytes) of it.
    ports : Ports or None
        The network card behind it; then the bandwidth may be left out, and must agree where it is said.
    curves : dict of str to Curve
        By collective: its time among ranks that lie inside this tier, where it was measured or derived.
    sources : dict of str to Provenance
        By field, where it does not come from the device's ``source``.
    """

    name: str = Field(min_length=1)
    devices: Devices | None
    bandwidth_bytes_per_s: Positive
    latency_s: Latency
    efficiency: Fraction
    half_bytes: Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)] = 0.0
    ports: Ports | None = None
    curves: dict[str, Curve] = Field(default_factory=dict)

    @property
    def rate_bytes_per_s(self) -> float:
        """What a device sends in a large message, one way."""
        return self.bandwidth_bytes_per_s * self.efficiency

    @property
    def message_s(self) -> float:
        """What every message costs besides its bytes over the rate: latency, and the way up to saturation."""
        return self.latency_s + self.half_bytes / self.rate_bytes_per_s

    @model_validator(mode="before")
    @classmethod
    def _bandwidth_of_ports(cls, record: Any) -> Any:
        return with_bandwidth(record)

    @model_validator(mode="after")
    def _ports_agree(self) -> LinkTier:
        if self.ports is not None:
            check_bandwidth(self.bandwidth_bytes_per_s, self.ports)
        return self

    @model_validator(mode="after")
    def _curves_name_collectives(self) -> LinkTier:
        unknown = sorted(set(self.curves) - set(MEASURED))
        if unknown:
            raise bad("curves", ", ".join(unknown), "no such collective", f"known: {', '.join(MEASURED)}")
        return self


class ClusterConfig(Frozen):
    """Where the model is trained: ``devices`` of one kind, in nodes, joined by ``tiers`` (innermost first).

    ``verified`` says that the size was read in ``source``; the device and each tier say so for themselves.
    """

    name: str = Field(min_length=1)
    source: str = ""
    verified: bool = False
    notes: str = ""
    device: Device
    devices: Devices
    devices_per_node: Devices
    tiers: Annotated[tuple[LinkTier, ...], Field(min_length=1, max_length=8, strict=False)]

    @model_validator(mode="after")
    def _shape(self) -> ClusterConfig:
        problems = [*self._node_problems(), *self._tier_problems()]
        if problems:
            raise InputError(problems)
        return self

    def _node_problems(self) -> list[Problem]:
        per_node = self.devices_per_node
        if self.devices < per_node or self.devices % per_node == 0:
            return []
        low = self.devices // per_node * per_node
        rule = f"must be a whole number of nodes of {per_node}, or less than one node"
        return [Problem("devices", self.devices, rule, f"{low} or {low + per_node} would work")]

    def _tier_problems(self) -> list[Problem]:
        reach = [tier.devices for tier in self.tiers]
        finite = [r for r in reach[:-1] if r is not None]
        if len(finite) < len(reach) - 1:
            return [Problem("tiers", reach, "only the last tier may reach the whole cluster (devices: null)")]
        last = math.inf if reach[-1] is None else reach[-1]
        problems = []
        if any(a >= b for a, b in zip(finite, [*finite[1:], last], strict=False)):
            problems.append(
                Problem("tiers", reach, "each tier must reach more devices than the one before it")
            )
        if last < self.devices:
            rule = f"the last tier must reach all {self.devices} devices"
            problems.append(Problem("tiers", reach, rule, "devices: null reaches the whole cluster"))
        for tier in self.tiers:
            if tier.name == "node" and tier.devices not in (None, self.devices_per_node):
                rule = f"the tier named node must reach devices_per_node={self.devices_per_node} devices"
                problems.append(Problem("tiers", tier.devices, rule))
        return problems

    @property
    def num_nodes(self) -> int:
        """Nodes, a started one counted whole."""
        return math.ceil(self.devices / self.devices_per_node)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Numbers of the device and its links that no source confirms, one line each."""
        device = self.device
        lines = [] if device.verified else [f"{device.name}: {device.source or 'no source given'}"]
        parts = [
            (device.name, device),
            (f"{device.name} kernels", device.kernels),
            *((f"{device.name} {tier.name} link", tier) for tier in self.tiers),
        ]
        for name, part in parts:
            for field, origin in part.sources.items():
                if not origin.verified:
                    lines.append(f"{name} {field} = {getattr(part, field)}: {origin.source}")
        return tuple(lines)


@cache
def device_names() -> tuple[str, ...]:
    """Catalog names of the devices, sorted."""
    return tuple(n for n in catalog.names("clusters") if not _is_cluster(n))


@cache
def cluster_names() -> tuple[str, ...]:
    """Catalog names of the clusters whose size is published, sorted."""
    return tuple(n for n in catalog.names("clusters") if _is_cluster(n))


def _is_cluster(name: str) -> bool:
    return "devices" in catalog.record("clusters", name)


def load_cluster(
    spec: str | Path | Mapping[str, Any], prefix: str = "cluster", source: str = ""
) -> ClusterConfig:
    """Make a cluster of whatever a person wrote.

    Parameters
    ----------
    spec : str, Path or mapping
        A catalog name (``deepseek-v3-h800-2048``), a path of a JSON or YAML record, or
        ``{device: h800, nodes: 256}`` or ``{device: h800, devices: 2048}``. ``device`` may also be a full
        record; ``devices_per_node`` and ``tiers`` override the device's usual ones.
    prefix, source : str
        Path of the field and file that held ``spec``, for error messages.

    Raises
    ------
    InputError
        All problems at once.
    """
    if isinstance(spec, Mapping):
        return _from_mapping(spec, prefix, source)
    if isinstance(spec, Path) or (isinstance(spec, str) and _looks_like_a_path(spec)):
        path = Path(spec)
        record = read_document(path)
        if not isinstance(record, Mapping):
            raise bad("cluster", record, "must be a mapping", _EXAMPLE, str(path))
        return _from_mapping({"name": path.stem} | dict(record), "", str(path))
    if not isinstance(spec, str):
        raise bad(prefix, spec, "must be a name, a path or a mapping", _EXAMPLE, source)
    if device := catalog.found(spec, device_names()):
        rule = "is a device, not a cluster: say how many"
        hint = f"write {{device: {device}, nodes: 2}} or {{device: {device}, devices: 16}}"
        raise bad(prefix, spec, rule, hint, source)
    if catalog.found(spec, cluster_names()) is None:
        rule = "not a name in the catalog of clusters (a path ends in .json, .yaml or .yml)"
        raise bad(prefix, spec, rule, catalog.suggested(spec, (*device_names(), *cluster_names())), source)
    return _from_mapping(catalog.record("clusters", spec), prefix, source)


_EXAMPLE = "for example {device: h800, nodes: 256}"
_FIELDS = (*ClusterConfig.model_fields, "nodes")


def _looks_like_a_path(spec: str) -> bool:
    return "/" in spec or spec.endswith((".json", ".yaml", ".yml"))


def _from_mapping(spec: Mapping[str, Any], prefix: str, source: str) -> ClusterConfig:
    dot = f"{prefix}." if prefix else ""
    problems = [
        Problem(f"{dot}{key}", value, "no such field", instead_of(str(key), _FIELDS, "cluster"))
        for key, value in spec.items()
        if key not in _FIELDS
    ]
    device = spec.get("device")
    base = _device_record(device, f"{dot}device", problems)
    record = base | {key: value for key, value in spec.items() if key in ClusterConfig.model_fields}
    record["device"] = base.get("device", device)
    per_node = record.get("devices_per_node")
    if "tiers" not in spec and base and _is_count(per_node):
        record["tiers"] = [t | {"devices": per_node} if t["name"] == "node" else t for t in base["tiers"]]
    record["devices"] = _size(spec, per_node, dot, problems)
    record["name"] = spec.get("name", f"{base.get('name', 'cluster')}-{record['devices']}")
    if not isinstance(record["device"], Mapping):
        raise InputError(problems, source)
    try:
        cluster = ClusterConfig.model_validate(record)
    except ValidationError as error:
        found = from_pydantic(error, prefix, kind=ClusterConfig).problems
        problems += [p if p.field.startswith(dot) else replace(p, field=dot + p.field) for p in found]
    if problems:
        raise InputError(problems, source)
    return cluster


def _device_record(spec: Any, field: str, problems: list[Problem]) -> dict[str, Any]:
    """Return the catalog record behind a device's name; nothing for an inline record or a bad name."""
    if isinstance(spec, Mapping):
        return {}
    if isinstance(spec, str) and catalog.found(spec, device_names()):
        return dict(catalog.record("clusters", spec))
    if spec is None:
        problems.append(Problem(field, "missing", "this field is required", _EXAMPLE))
    elif not isinstance(spec, str):
        problems.append(Problem(field, spec, "must be a device's name or a full record", _EXAMPLE))
    elif cluster := catalog.found(spec, cluster_names()):
        problems.append(Problem(field, spec, "is a whole cluster, not a device", f"write cluster: {cluster}"))
    else:
        hint = catalog.suggested(spec, device_names())
        problems.append(Problem(field, spec, "not a device of the catalog", hint))
    return {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_DEVICES


def _size(spec: Mapping[str, Any], per_node: Any, dot: str, problems: list[Problem]) -> int:
    """Return the number of devices asked for; 1 when it was said badly, so that the rest is still checked."""
    given = {key: spec[key] for key in ("nodes", "devices") if key in spec}
    broken = [key for key, value in given.items() if not _is_count(value)]
    for key in broken:
        rule = f"must be a whole number from 1 to {MAX_DEVICES:,}"
        problems.append(Problem(f"{dot}{key}", given[key], rule, "for example 16"))
    if not given:
        where = dot.rstrip(".") or "cluster"
        problems.append(Problem(where, "no size", "give nodes or devices", _EXAMPLE))
    if broken or not given or not _is_count(per_node):
        return 1
    from_nodes = given["nodes"] * per_node if "nodes" in given else None
    if from_nodes is None:
        return int(given["devices"])
    if given.get("devices", from_nodes) != from_nodes:
        rule = f"nodes={given['nodes']} of {per_node} devices are {from_nodes}"
        problems.append(Problem(f"{dot}devices", given["devices"], rule, "give nodes or devices, not both"))
    return int(from_nodes)
