"""What every rank of a stage issues in one step, in order: operators, collectives, loading and synchronisation.

The order is Megatron-Core's non-interleaved 1F1B with batched point-to-point operations
(``forward_backward_pipelining_without_interleaving`` of ``megatron/core/pipeline_parallel/schedules.py``), gradients
reduced beside the last micro-batch's backward pass. Durations are illustrative, of the order of an H100's.
"""

from __future__ import annotations

from typing import NamedTuple

from telekit.diagnose.faults.job import TracedJob

MB = 2**20


class Op(NamedTuple):
    """One thing that the host issues.

    Attributes
    ----------
    what : str
        ``compute`` (a kernel), ``copy``, ``collective``, ``exchange`` (point to point), ``join`` (compute waits for
        a stream), ``data``, ``checkpoint`` (only where a fault writes one), ``sync`` (the host waits for the device).
    host, kernel : str
        Names of the host's operator and of the device's kernel.
    seconds : float
        Device time (``data``: host time).
    part : str
        ``dense``, ``expert`` or ``other``.
    group : str
        Kind of group (``tp dp ep edp world``) of a collective; the stream joined.
    operation : str
        Of a collective (:data:`telekit.diagnose.trace.OPERATIONS`).
    bytes : int
        Of a collective or copy.
    waits : bool
        Computing waits for the collective's end.
    peer : int
        Stages to the other one of a point-to-point operation, 1 or -1.
    backward : bool
        Issued by autograd's thread.
    """

    what: str
    host: str = ""
    kernel: str = ""
    seconds: float = 0.0
    part: str = "other"
    group: str = ""
    operation: str = ""
    bytes: int = 0
    waits: bool = True
    peer: int = 0
    backward: bool = False


_GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
_GROUPED = "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>> moe_grouped_gemm"
_NORM = "void transformer_engine::normalization::rmsnorm_{}_tuned_kernel<bf16>"
_POINTWISE = "void at::native::vectorized_elementwise_kernel<4, {}>"
_LAYER = (
    # host operator, kernel, seconds forward, part
    ("aten::rms_norm", _NORM, 15e-6, "dense"),
    ("aten::mm", _GEMM, 90e-6, "dense"),
    ("FlashAttnFunc", "flash_{}_kernel<Flash_traits<128, 128, 64, bf16>>", 160e-6, "dense"),
    ("aten::mm", _GEMM, 60e-6, "dense"),
    ("tp", "", 0.0, ""),
    ("aten::rms_norm", _NORM, 15e-6, "dense"),
    ("aten::mm", "nvjet_tst_64x64_64x8_router_TNN", 12e-6, "dense"),
    ("aten::topk", "void at::native::sbtopk::gatherTopK<float>", 10e-6, "dense"),
    ("moe::permute", "_permute_kernel", 20e-6, "dense"),
    ("ep", "", 0.0, ""),
    ("moe::grouped_gemm", _GROUPED, 140e-6, "expert"),
    ("aten::silu", _POINTWISE, 30e-6, "expert"),
    ("moe::grouped_gemm", _GROUPED, 100e-6, "expert"),
    ("ep", "", 0.0, ""),
    ("moe::unpermute", "_unpermute_kernel", 20e-6, "dense"),
)
BACKWARD = 2.0
"""Backward over forward time of a kernel."""
TP_BYTES, EP_BYTES, PP_BYTES, DENSE_BYTES, EXPERT_BYTES = 16 * MB, 4 * MB, 8 * MB, 48 * MB, 32 * MB


def stage_program(job: TracedJob, stage: int) -> list[Op]:
    """List what each rank of a stage issues in one step."""
    forward, backward = _forward(job), _backward(job, last=False)
    final = _backward(job, last=True)
    ops = [
        Op("data", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", seconds=job.data_s),
        Op("copy", "aten::copy_", "Memcpy HtoD (Pinned -> Device)", 20e-6, bytes=MB // 2),
    ]
    before, after, count = stage > 0, stage < job.pp - 1, job.micro_batches
    warm = min(job.pp - stage - 1, count)
    receive = [_exchange("recv", -1, False)] if before else []
    for _ in range(warm):
        ops += [*receive, *forward, _exchange("send", 1, False)]
    ops += receive if warm < count else []
    for step in range(count - warm):
        rest = step == count - warm - 1
        ops += forward
        ops += [_exchange("send_recv", 1, False)] if after else []
        ops += final if rest and not warm else backward
        ops += [_exchange("send" if rest else "send_recv", -1, True)] if before else []
    for step in range(warm):
        ops += [_exchange("recv", 1, True)]
        ops += final if step == warm - 1 else backward
        ops += [_exchange("send", -1, True)] if before else []
    return ops + _finish(job)


def _exchange(name: str, peer: int, backward: bool) -> Op:
    return Op("exchange", f"c10d::{name}", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
              operation="send-recv", bytes=PP_BYTES, peer=peer, group="pp", backward=backward)  # fmt: skip


def _collective(operation: str, group: str, size: int, waits: bool = True, backward: bool = False) -> Op:
    """One NCCL collective, named as PyTorch names it."""
    kernels = {
        "all-reduce": "AllReduce_Sum_bf16_RING_LL",
        "all-gather": "AllGather_RING_LL",
        "reduce-scatter": "ReduceScatter_Sum_bf16_RING_LL",
        "all-to-all": "SendRecv",
    }
    calls = {
        "all-reduce": "allreduce_",
        "all-gather": "_allgather_base_",
        "reduce-scatter": "_reduce_scatter_base_",
        "all-to-all": "alltoall_base_",
    }
    return Op("collective", f"c10d::{calls[operation]}",
              f"ncclDevKernel_{kernels[operation]}(ncclDevKernelArgsStorage<4096ul>)", group=group,
              operation=operation, bytes=size, waits=waits, backward=backward)  # fmt: skip


def _has(job: TracedJob, group: str) -> bool:
    sizes = {"tp": job.tp, "ep": job.ep, "dp": job.stage_ranks // job.tp, "edp": job.stage_ranks // job.ep}
    return sizes[group] > 1


def _layer(job: TracedJob, backward: bool) -> list[Op]:
    """One layer's forward or backward pass."""
    ops: list[Op] = []
    rows = _LAYER[::-1] if backward else _LAYER
    for host, kernel, seconds, part in rows:
        if host == "tp":
            if _has(job, "tp"):
                first, second = "all-gather", "reduce-scatter"
                ops += [_collective(second if not backward else first, "tp", TP_BYTES, backward=backward)]
                ops += [_collective(first if not backward else second, "tp", TP_BYTES, backward=backward)]
        elif host == "ep":
            if _has(job, "ep"):
                ops.append(_collective("all-to-all", "ep", EP_BYTES, backward=backward))
        else:
            way = "bwd" if backward else "fwd"
            scale = job.kernel_scale * (BACKWARD if backward else 1.0)
            name = (
                f"autograd::engine::evaluate_function: {host.split(':')[-1]}Backward0" if backward else host
            )
            ops.append(Op("compute", name, kernel.format(way), seconds * scale, part=part, backward=backward))
    return ops


def _forward(job: TracedJob) -> list[Op]:
    return _layer(job, False) * job.layers


def _backward(job: TracedJob, last: bool) -> list[Op]:
    """All layers' backward pass; after the last micro-batch's each layer's gradients are reduced beside the rest."""
    ops: list[Op] = []
    for _ in range(job.layers):
        ops += _layer(job, True)
        for group, size in (("dp", DENSE_BYTES), ("edp", EXPERT_BYTES)):
            if last and _has(job, group):
                ops.append(_collective("reduce-scatter", group, size, waits=False, backward=True))
    return ops


def _finish(job: TracedJob) -> list[Op]:
    """Gradients complete, norm over all ranks, optimizer, parameters gathered, loss read by the host."""
    adam = "void multi_tensor_apply_kernel<AdamFunctorMaster>"
    ops = [Op("join", group=group) for group in ("dp", "edp") if _has(job, group)]
    ops += [
        Op("compute", "aten::_foreach_norm", "void at::native::multi_tensor_l2norm", 30e-6 * job.kernel_scale)
    ]
    if job.ranks > 1:
        ops.append(_collective("all-reduce", "world", 4))
    ops += [Op("compute", "Optimizer.step#FusedAdam.step", adam, 300e-6 * job.kernel_scale)] * 2
    for group, size in (("dp", DENSE_BYTES), ("edp", EXPERT_BYTES)):
        if _has(job, group):
            ops.append(_collective("all-gather", group, size * job.layers))
    ops += [Op("copy", "aten::_local_scalar_dense", "Memcpy DtoH (Device -> Pinned)", 3e-6, bytes=4)]
    return [*ops, Op("sync", "cudaStreamSynchronize"), Op("checkpoint", "save_checkpoint")]
