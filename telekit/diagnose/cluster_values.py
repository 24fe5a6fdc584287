"""A cluster with what traces measured on it, as a file that a job names under ``cluster``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from telekit.cluster.config import ClusterConfig
from telekit.cluster.sourced import Provenance
from telekit.comm.summary import cluster_for
from telekit.comm.user_cluster import ClusterFit, write_cluster
from telekit.diagnose.fits import Measured, measure
from telekit.diagnose.trace import Trace
from telekit.errors import bad

FITTED = ("jitter", "host_launch_s")
"""Fields of ``device.kernels`` that :meth:`~telekit.diagnose.fits.Measured.kernels` may give."""


def fitted_cluster(
    traces: Sequence[Trace], cluster: ClusterConfig | str | Path, source: str = "traces"
) -> tuple[ClusterConfig, Measured]:
    """Put what traces say of hosts and devices into a cluster: ``device.kernels``' jitter and host time.

    Parameters
    ----------
    traces : sequence of Trace
        Ranks of one run.
    cluster : ClusterConfig, str or Path
        What it starts from: a cluster, its catalog name or file, or the catalog name of a device, then with as many
        nodes as the run's ranks need.
    source : str
        Where the traces lie, for the record.

    Returns
    -------
    ClusterConfig, Measured
        The cluster, each changed value with its source; and all that was measured.

    Raises
    ------
    InputError
        The traces show none of these values, or the cluster is not known.
    """
    ranks = max([len(traces), *(t.world_size or 0 for t in traces), *(1 + (t.rank or 0) for t in traces)])
    base = cluster if isinstance(cluster, ClusterConfig) else cluster_for(cluster, ranks)
    measured = measure(traces, base.devices_per_node)
    values = {name: value for name, value in measured.kernels().items() if value > 0}
    if not values:
        raise bad("traces", len(traces), "show neither what issuing costs nor how devices differ",
                  "give traces with launches tied to kernels, of two ranks or more that run the same")  # fmt: skip
    said = Provenance(source=f"fitted by telekit diagnose to {len(traces)} ranks of {source}", verified=True)
    kernels = base.device.kernels
    sources = kernels.sources | dict.fromkeys(values, said)
    record = kernels.model_dump() | values | {"sources": sources}
    device = base.device.model_copy(update={"kernels": type(kernels).model_validate(record)})
    return base.model_copy(update={"device": device}), measured


def write_fitted(path: str | Path, cluster: ClusterConfig) -> Path:
    """Write a cluster as JSON (``.json``) or YAML, for ``load_cluster`` and a job's ``cluster:`` to read.

    Raises
    ------
    InputError
        The name ends otherwise.
    """
    record = cluster.model_dump(mode="json", exclude_none=False)
    return write_cluster(path, ClusterFit(record | {"name": Path(path).stem}, {}, None, (), ()))
