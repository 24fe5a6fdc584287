"""What overlaps with what: task lists for :func:`telekit.comm.overlap.simulate` from plain durations in seconds.

Durations are of full speed, without interference; whole numbers and fractions stay exact. Communication is on the
stream ``comm`` unless said otherwise. Every list is in the order of launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from telekit.comm.overlap import COMPUTE, Number, Task, as_number
from telekit.errors import InputError, Problem, bad

COMM = "comm"
TP_KINDS = ("all-gather", "reduce-scatter")
_MOST_PARTS = 10_000


def shared_expert(
    dispatch_s: Number, expert_s: Number, combine_s: Number, shared_up_s: Number, shared_down_s: Number
) -> list[Task]:
    """Shared expert beside dispatch and combine.

    Its first projection and activation (``shared_up_s``) run beside the dispatch, its second projection beside the
    combine; the routed experts (``expert_s``) run between them.

    Source: Megatron-Core, ``--moe-shared-expert-overlap`` (``core/transformer/moe/shared_experts.py``).
    """
    return [
        Task("dispatch", COMM, dispatch_s),
        Task("shared up", COMPUTE, shared_up_s),
        Task("experts", COMPUTE, expert_s, ("dispatch",)),
        Task("combine", COMM, combine_s, ("experts",)),
        Task("shared down", COMPUTE, shared_down_s, ("shared up",)),
    ]


def chunked(
    dispatch_s: Number,
    expert_s: Number,
    combine_s: Number,
    chunks: int,
    start_s: Number = 0,
    efficiency: Number = 1,
    both_ways: bool = False,
) -> list[Task]:
    """Experts and their two all-to-alls, split into equal chunks of tokens.

    A chunk's experts run beside the dispatch of later chunks and the combine of earlier ones. All dispatches are
    launched before the first combine, which never ends later on one stream.

    Parameters
    ----------
    dispatch_s, combine_s : number
        Seconds of the whole all-to-all without its start.
    expert_s : number
        Seconds of the whole grouped GEMM.
    chunks : int
        Parts; 1 overlaps nothing.
    start_s : number
        What each all-to-all of a chunk costs on top of its share.
    efficiency : number
        Speed of a chunk's GEMM over that of the whole, in (0, 1]: smaller GEMMs fill the device less.
    both_ways : bool
        Give combines a stream of their own, ``comm back``, for links that carry both at full speed.

    Returns
    -------
    list of Task

    Notes
    -----
    Source: Tutel (arXiv 2206.03382, adaptive pipelining); MindFormers ``comp_comm_parallel`` (two chunks).
    """
    _check_parts("chunks", chunks)
    _check_efficiency(efficiency)
    back = "comm back" if both_ways else COMM
    piece = _part(expert_s, chunks * as_number(efficiency))
    tasks = [
        Task(f"dispatch {i}", COMM, _part(dispatch_s, chunks) + as_number(start_s)) for i in range(chunks)
    ]
    tasks += [Task(f"experts {i}", COMPUTE, piece, (f"dispatch {i}",)) for i in range(chunks)]
    return tasks + [
        Task(f"combine {i}", back, _part(combine_s, chunks) + as_number(start_s), (f"experts {i}",))
        for i in range(chunks)
    ]


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of a transformer layer with experts, forward and backward, of one micro-batch.

    Attributes
    ----------
    attention_s, dispatch_s, mlp_s, combine_s : number
        Forward.
    combine_backward_s, mlp_backward_s, mlp_weight_s, dispatch_backward_s, attention_backward_s, \
attention_weight_s : number, optional
        Backward for inputs and for weights. Each is as long as its forward when left out.
    """

    attention_s: Number
    dispatch_s: Number
    mlp_s: Number
    combine_s: Number
    combine_backward_s: Number = None
    mlp_backward_s: Number = None
    mlp_weight_s: Number = None
    dispatch_backward_s: Number = None
    attention_backward_s: Number = None
    attention_weight_s: Number = None

    def __post_init__(self) -> None:
        for part in ("combine", "mlp", "dispatch", "attention"):
            for suffix in ("backward_s", "weight_s"):
                if getattr(self, f"{part}_{suffix}", 0) is None:
                    object.__setattr__(self, f"{part}_{suffix}", getattr(self, f"{part}_s"))


_PARTS = {
    "ATTN(F)": (COMPUTE, "attention_s", "forward"),
    "DISPATCH(F)": (COMM, "dispatch_s", "forward"),
    "MLP(F)": (COMPUTE, "mlp_s", "forward"),
    "COMBINE(F)": (COMM, "combine_s", "forward"),
    "COMBINE(B)": (COMM, "combine_backward_s", "input gradient"),
    "MLP(B)": (COMPUTE, "mlp_backward_s", "input gradient"),
    "MLP(W)": (COMPUTE, "mlp_weight_s", "weight gradient"),
    "DISPATCH(B)": (COMM, "dispatch_backward_s", "input gradient"),
    "ATTN(B)": (COMPUTE, "attention_backward_s", "input gradient"),
    "ATTN(W)": (COMPUTE, "attention_weight_s", "weight gradient"),
}
_FORWARD = ("ATTN(F)", "DISPATCH(F)", "MLP(F)", "COMBINE(F)")
_BACKWARD = ("COMBINE(B)", "MLP(B)", "DISPATCH(B)", "ATTN(B)")
_WEIGHT = {"MLP(W)": "MLP(B)", "ATTN(W)": "ATTN(B)"}


def one_f_one_b(times: LayerTimes, layers: int = 1) -> list[Task]:
    """Forward of one micro-batch beside the backward of another, layer by layer.

    Per layer, what is launched on the two streams::

        comm     COMBINE(B) | DISPATCH(F)  DISPATCH(B)  | COMBINE(F)
        compute  ATTN(F)    | MLP(B)  MLP(W)  MLP(F)    | ATTN(B)  ATTN(W)

    Each micro-batch keeps its own order (forward: attention, dispatch, MLP, combine; backward: the reverse), so what
    hides its transfers is the computing of the other.

    Source: Megatron-Core ``--overlap-moe-expert-parallel-comm`` with ``--delay-wgrad-compute``
    (``core/models/common/model_chunk_schedule_plan.py``); MindSpore's 1b1f (``pp_1f1b_overlap``) overlaps the same.
    """
    launch = (
        "COMBINE(B)", "ATTN(F)", "DISPATCH(F)", "MLP(B)", "DISPATCH(B)", "MLP(W)", "MLP(F)",
        "COMBINE(F)", "ATTN(B)", "ATTN(W)",
    )  # fmt: skip
    return _two_micro_batches(times, layers, launch)


def dualpipe_pair(times: LayerTimes, layers: int = 1, pp_s: Number = 0) -> list[Task]:
    """Pair of a forward and a backward chunk of DualPipe, whose block boundaries are not aligned.

    Per layer, what is launched on the two streams::

        compute  MLP(B)  MLP(W)  MLP(F)  ATTN(B)  ATTN(W)  ATTN(F)
        comm     DISPATCH(F)  DISPATCH(B)  COMBINE(F)  PP  COMBINE(B)

    The forward enters with its attention done and leaves after the next layer's attention; the backward enters with
    its combine done and leaves after the combine of the layer below. ``pp_s`` is the transfer to the next stage, once,
    in the last layer of the pair; nothing waits for it.

    Source: arXiv 2412.19437, 3.2.1 and figure 4 (the four components, two backward parts, PP). The order within the
    figure is our reading of the picture, which gives no times.
    """
    launch = (
        "DISPATCH(F)", "MLP(B)", "DISPATCH(B)", "MLP(W)", "MLP(F)", "COMBINE(F)", "ATTN(B)",
        "COMBINE(B)", "ATTN(W)", "ATTN(F)",
    )  # fmt: skip
    tasks = _two_micro_batches(times, layers, launch)
    if pp_s != 0:
        last = tasks.index(next(task for task in reversed(tasks) if task.name.startswith("COMBINE(B)")))
        done = next(task.name for task in reversed(tasks) if task.name.startswith("COMBINE(F)"))
        tasks.insert(last, Task("PP", COMM, pp_s, (done,)))
    return tasks


def _two_micro_batches(times: LayerTimes, layers: int, launch: tuple[str, ...]) -> list[Task]:
    """Launch each layer's parts in an order; what belongs to one micro-batch waits for its part before."""
    _check_parts("layers", layers)
    tasks: list[Task] = []
    last: dict[tuple[str, ...], str] = {}
    for layer in range(layers):
        for part in launch:
            stream, field, kind = _PARTS[part]
            name = part if layers == 1 else f"{part} {layer}"
            if part in _WEIGHT:
                after: tuple[str, ...] = (name.replace(part, _WEIGHT[part]),)
            else:
                way = _FORWARD if part in _FORWARD else _BACKWARD
                after = (last[way],) if way in last else ()
                last[way] = name
            tasks.append(Task(name, stream, getattr(times, field), after, kind))
    return tasks


def tp_overlap(
    gemm_s: Number,
    comm_s: Number,
    tp: int,
    kind: str = "all-gather",
    start_s: Number = 0,
    efficiency: Number = 1,
) -> list[Task]:
    """GEMM in ``tp`` pieces beside the ring steps of its all-gather or reduce-scatter.

    All-gather: a rank starts on the piece it holds; each of ``tp - 1`` steps brings the next one. Reduce-scatter:
    each piece but the rank's own, computed last, is sent on when it is done.

    Parameters
    ----------
    gemm_s, comm_s : number
        Seconds of the whole GEMM and of the whole collective without its starts.
    tp : int
        Ranks; 1 has no communication.
    kind : str
        ``all-gather`` or ``reduce-scatter``.
    start_s : number
        What each step costs on top of its share.
    efficiency : number
        Speed of a piece's GEMM over that of the whole, in (0, 1].

    Returns
    -------
    list of Task

    Notes
    -----
    Source: Transformer Engine's userbuffers, which Megatron-Core's ``--tp-comm-overlap`` calls (ring exchange).
    """
    _check_parts("tp", tp)
    _check_efficiency(efficiency)
    if kind not in TP_KINDS:
        raise bad("kind", kind, f"must be one of {', '.join(TP_KINDS)}", TP_KINDS[0])
    piece = _part(gemm_s, tp * as_number(efficiency))
    step = _part(comm_s, tp - 1) + as_number(start_s) if tp > 1 else 0
    first = kind == "all-gather"
    tasks = [Task("gemm 0", COMPUTE, piece)]
    for i in range(1, tp):
        after = () if first else (f"gemm {i - 1}",)
        tasks.append(Task(f"{kind} {i}", COMM, step, after))
        tasks.append(Task(f"gemm {i}", COMPUTE, piece, (f"{kind} {i}",) if first else ()))
    return tasks


def dp_buckets(
    backward_s: Number, reduce_s: Number, buckets: int | Sequence[Number], start_s: Number = 0
) -> list[Task]:
    """Gradient buckets, each reduced as soon as the backward has made it; the last one is exposed.

    With gradient accumulation only the last micro-batch's backward has this, so give that one's seconds.

    Parameters
    ----------
    backward_s, reduce_s : number
        Seconds of the whole backward, and of reducing all gradients without the starts.
    buckets : int or sequence of numbers
        How many equal ones, or the share of the gradients in each, in the order they are made. A bucket takes the
        same share of the backward.
    start_s : number
        What each bucket's reduction costs on top of its share.

    Returns
    -------
    list of Task

    Notes
    -----
    Source: Megatron-Core ``--overlap-grad-reduce``, ``--ddp-bucket-size``; PyTorch DDP (arXiv 2006.15704).
    """
    tasks: list[Task] = []
    for i, share in enumerate(_shares(buckets)):
        tasks.append(Task(f"backward {i}", COMPUTE, share * as_number(backward_s), (), "backward"))
        work = share * as_number(reduce_s) + as_number(start_s)
        tasks.append(Task(f"reduce {i}", COMM, work, (f"backward {i}",), "backward"))
    return tasks


def dp_gather(
    forward_s: Number,
    gather_s: Number,
    buckets: int | Sequence[Number],
    start_s: Number = 0,
    prefetched: bool = False,
) -> list[Task]:
    """Parameter buckets gathered ahead of the forward that needs them; the first one is exposed.

    ``prefetched``: the first gather ran before this (beside data loading, as in MegaScale) and is left out. Else as
    :func:`dp_buckets`. Source: Megatron-Core ``--overlap-param-gather``; MegaScale (arXiv 2402.15627, 3.2).
    """
    tasks: list[Task] = []
    for i, share in enumerate(_shares(buckets)):
        after: tuple[str, ...] = ()
        if i or not prefetched:
            tasks.append(Task(f"gather {i}", COMM, share * as_number(gather_s) + as_number(start_s)))
            after = (f"gather {i}",)
        tasks.append(Task(f"forward {i}", COMPUTE, share * as_number(forward_s), after))
    return tasks


def bucket_shares(total_bytes: int, bucket_bytes: int) -> list[Fraction]:
    """Shares of full buckets and, last, of the one that holds the rest (the layers nearest to the input)."""
    for field, value in (("total_bytes", total_bytes), ("bucket_bytes", bucket_bytes)):
        if value < 1:
            raise bad(field, value, "must be 1 byte or more")
    full, rest = divmod(int(total_bytes), int(bucket_bytes))
    if full >= _MOST_PARTS:
        needed = -(-int(total_bytes) // _MOST_PARTS)
        rule = f"makes more than {_MOST_PARTS} buckets"
        raise bad("bucket_bytes", bucket_bytes, rule, f"{needed} or more")
    return [Fraction(int(bucket_bytes), int(total_bytes))] * full + [Fraction(rest, int(total_bytes))] * (
        rest > 0
    )


def _part(whole: Number, parts: Number) -> Number:
    return as_number(whole) / parts


def _shares(buckets: int | Sequence[Number]) -> list[Number]:
    if isinstance(buckets, int | Integral):
        _check_parts("buckets", int(buckets))
        return [Fraction(1, int(buckets))] * int(buckets)
    shares = [as_number(share) for share in buckets]
    problems = [
        Problem(f"buckets[{i}]", share, "a bucket's share must be above 0 and at most 1", "0.5")
        for i, share in enumerate(shares)
        if not 0 < share <= 1
    ]
    if not problems and abs(sum(shares) - 1) > 1e-9:
        problems.append(Problem("buckets", float(sum(shares)), "the shares must add up to 1", "[0.5, 0.5]"))
    if problems:
        raise InputError(problems)
    return shares


def _check_parts(field: str, parts: int) -> None:
    if not isinstance(parts, Integral) or not 1 <= parts <= _MOST_PARTS:
        raise bad(field, parts, f"must be a whole number from 1 to {_MOST_PARTS}", "2")


def _check_efficiency(efficiency: Number) -> None:
    if not 0 < as_number(efficiency) <= 1:
        raise bad("efficiency", efficiency, "must be above 0 and at most 1 (the whole GEMM's speed)", "1")
