"""Tables of toy runs, written as the tools write them; all ranks end a step together, so the slow one waits least."""

from __future__ import annotations

import numpy as np

STEPS = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n"
)
CLUSTER = STEPS.replace("Device_id,Step,", "Step,Type,Index,")
OPERATORS = (
    "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
)


def step_times(ranks=16, steps=4, *, computing=600e3, transfer=100e3, free=50e3, preparing=5e3, jitter=0.01, seed=0,
               slow=None, late=None):  # fmt: skip
    """Microseconds by (rank, step): computing, exposed, overlapped, free, preparing; slow and late are factors."""
    random = np.random.default_rng(seed)
    compute = computing * (1 + jitter * random.standard_normal((ranks, steps)))
    compute *= np.ones(ranks)[:, None] if slow is None else np.asarray(slow)[:, None]
    idle = free * (1 + 0.05 * random.random((ranks, steps)))
    idle *= np.ones(ranks)[:, None] if late is None else np.asarray(late)[:, None]
    own = compute + idle
    exposed = own.max(axis=0) - own + transfer
    return compute, exposed, np.full((ranks, steps), 30e3), idle, np.full((ranks, steps), preparing)


def write_steps(folder, values, drop=()):
    """Write one file a rank, as torch_npu does; columns in ``drop`` are left out."""
    kept = [i for i, name in enumerate(STEPS.strip().split(",")) if name not in drop]
    for rank in range(len(values[0])):
        where = folder / f"host_{rank}_ascend_pt"
        (where / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        (where / f"profiler_info_{rank}.json").write_text("{}")
        text = ""
        for line in [STEPS, *(_line(0, s, [v[rank, s] for v in values]) for s in range(values[0].shape[1]))]:
            cells = line.strip().split(",")
            text += ",".join(cells[i] for i in kept) + "\n"
        (where / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv").write_text(text)


def write_cluster(path, values):
    """Write msprof-analyze's file of all ranks, with a row of a stage."""
    text = CLUSTER
    for rank in range(len(values[0])):
        for s in range(values[0].shape[1]):
            text += f"{s},rank,{rank},{_line(0, s, [v[rank, s] for v in values]).split(',', 2)[2]}"
    path.write_text(text + '0,stage,"(0, 1)",9e9,9e9,9e9,9e9,9e9,9e9,0,9e9,0\n')


def _line(device, step, parts):
    computing, exposed, overlapped, free, preparing = parts
    cells = (computing, exposed, overlapped, exposed + overlapped, free, computing + exposed + free, 0, exposed,
             preparing)  # fmt: skip
    return f"{device},{step}," + ",".join(f"{c:.3f}" for c in cells) + "\n"


def timer_log(values, option="all", elapsed=None, first=10, prefix=""):
    """A log of Megatron-LM: ``values`` maps a timer to milliseconds by (rank, iteration)."""
    count = next(iter(values.values())).shape[1]
    lines = []
    for i in range(count):
        total = 1000.0 if elapsed is None else elapsed[i]
        lines.append(f" [2026-01-01 00:00:{i % 60:02d}] iteration {first + i:8d}/    1000 | consumed samples: 5 | "
                     f"elapsed time per iteration (ms): {total:.1f} | learning rate: 1.0E-4 |")  # fmt: skip
        lines.append({"all": "times across ranks (ms):", "minmax": "(min, max) time across ranks (ms):",
                      "max": "max time across ranks (ms):"}[option])  # fmt: skip
        for name, times in values.items():
            column = times[:, i]
            if option == "all":
                lines.append(f"  {name}:")
                lines += [f"     rank {r:2d}: {t:.2f}" for r, t in enumerate(column)]
            elif option == "minmax":
                lines.append(f"    {(name + ' ').ljust(48, '.')}: ({column.min():.2f}, {column.max():.2f})")
            else:
                lines.append(f"    {(name + ' ').ljust(48, '.')}: {column.max():.2f}")
    return "".join(f"{prefix}{line}\n" for line in lines)


def timers(ranks=16, iterations=6, *, jitter=0.01, seed=0, forward=300.0, backward=500.0, optimizer=60.0, data=5.0,
           transfer=20.0, slow=None, slow_data=None):  # fmt: skip
    """Milliseconds of timers by (rank, iteration); all ranks meet in the gradients' all-reduce."""
    random = np.random.default_rng(seed)
    factor = np.ones((ranks, 1)) if slow is None else np.asarray(slow, float)[:, None]
    noise = lambda: 1 + jitter * random.standard_normal((ranks, iterations))  # noqa: E731
    loading = data * noise() * (1.0 if slow_data is None else np.asarray(slow_data, float)[:, None])
    f = forward * factor * noise() + loading
    b = backward * factor * noise()
    wait = (f + b).max(axis=0) - f - b + transfer
    return {
        "forward-backward": f + b + wait,
        "forward-compute": f,
        "backward-compute": b,
        "batch-generator": loading,
        "all-grads-sync": wait,
        "optimizer": optimizer * noise(),
        "optimizer-inner-step": 0.8 * optimizer * noise(),
    }


def write_operators(folder, rows):
    """Write one file a rank: ``rows[rank]`` lists (type, unit, count, total us)."""
    for rank, mine in enumerate(rows):
        whole = sum(r[3] for r in mine)
        text = OPERATORS
        for name, unit, count, total in mine:
            text += f"0,{name},{unit},{count},{total:.3f},1,{total / count:.3f},2,{100 * total / whole:.3f}\n"
        (folder / f"rank_{rank}_op_statistic.csv").write_text(text)
