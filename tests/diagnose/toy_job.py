"""A toy training job for the tests of the analysis: hosts launch, devices run in order, collectives end together.

Written apart from the package's generator of labelled traces, so that the rules are tried on two simulators.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from telekit.diagnose.trace import Group, Trace, TraceSet

NODE = 8


@dataclass
class Toy:
    """A job of ``tp * pp * dp`` ranks (tp varies fastest, then dp); ``faults`` maps a name to its parameters."""

    tp: int = 4
    pp: int = 1
    dp: int = 4
    steps: int = 6
    layers: int = 4
    seed: int = 0
    jitter: float = 0.01
    heavy: bool = False
    node_jitter: float = 0.0
    faults: dict = field(default_factory=dict)
    launch_s: float = 20e-6

    def __post_init__(self):
        self.count = self.tp * self.pp * self.dp
        self.random = np.random.default_rng(self.seed)
        self.host = np.zeros(self.count)
        self.device = np.zeros(self.count)
        self.woken, self.rested = np.full(self.count, -1.0), np.zeros(self.count)
        self.records = [[] for _ in range(self.count)]
        self.correlation = 0
        self.sequence = {}
        self.slow_node = 1 + self.node_jitter * self.random.standard_normal(self.count // NODE + 1)
        ranks = np.arange(self.count)
        self.stage = ranks // (self.tp * self.dp)
        self.group = {
            "tp": ranks // self.tp,
            "dp": self.stage * self.tp + ranks % self.tp,
        }

    def hit(self, name, rank, step):
        """Parameters of a fault where it strikes, else None."""
        fault = self.faults.get(name)
        if fault is None or rank not in fault.get("ranks", range(self.count)):
            return None
        return fault if step in fault.get("steps", range(self.steps)) else None

    def noise(self):
        if self.heavy:
            return 1 + self.jitter * (self.random.pareto(3) if self.random.random() < 0.5 else 0)
        return max(1 + self.jitter * self.random.standard_normal(), 0.5)

    def add(self, rank, name, kind, start, end, step, **more):
        self.records[rank].append(
            {"name": name, "kind": kind, "start_s": start, "end_s": end, "step": step, **more}
        )

    def launch(self, rank, step):
        cost = self.launch_s * max(0.3, self.noise())
        if fault := self.hit("launch", rank, step):
            cost *= fault["factor"]
        start = self.host[rank]
        self.correlation += 1
        self.add(rank, "cudaLaunchKernel", "launch", start, start + cost, step, correlation=self.correlation)
        self.host[rank] = start + cost
        return self.correlation

    def pause(self, rank, step, name, kind, fault):
        """The host stops, with the device drained as an allocation or a save does."""
        start = max(self.host[rank], self.device[rank])
        end = start + fault["seconds"]
        if name:
            self.add(rank, name, kind, start, end, step)
        self.host[rank] = end

    def kernel(self, rank, step, name, seconds, expert=False):
        c = self.launch(rank, step)
        start = max(self.host[rank], self.device[rank])
        seconds *= self.noise() * self.slow_node[rank // NODE]
        if fault := self.hit("device", rank, step):
            seconds *= fault["factor"]
        if expert and (fault := self.hit("experts", rank, step)):
            seconds *= fault["factor"]
        if start - self.rested[rank] > 4e-4:  # any rest, waits in collectives too
            self.woken[rank] = start
        self.rested[rank] = start + seconds
        if (fault := self.hit("frequency", rank, step)) and start - self.woken[rank] < fault["window"]:
            seconds *= fault["factor"]
        self.add(rank, name, "kernel", start, start + seconds, step, correlation=c)
        self.device[rank] = start + seconds

    def collective(self, step, which, ranks, seconds, size):
        start = {}
        for r in ranks:
            c = self.launch(r, step)
            start[r] = (max(self.host[r], self.device[r]), c)
        for g in np.unique(self.group[which][ranks]):
            members = [r for r in ranks if self.group[which][r] == g]
            moved = seconds * self.noise()
            if (fault := self.faults.get("nic")) and which == "dp":
                hit = [r for r in members if r in fault["ranks"] and self.hit("nic", r, step)]
                moved *= fault["factor"] if hit else 1
            end = max(start[r][0] for r in members) + moved
            key = (which, int(g))
            self.sequence[key] = self.sequence.get(key, -1) + 1
            for r in members:
                self.add(
                    r, f"ncclDevKernel_{which}", "communication", start[r][0], end, step,
                    correlation=start[r][1], group=Group(f"{which}{g}", len(members)), bytes=size,
                    sequence=self.sequence[key], operation="all-reduce",
                )  # fmt: skip
                self.device[r] = end

    def send(self, step, stage, back=False):
        """Each rank of a stage sends to the next stage's."""
        width = self.tp * self.dp
        for low in range(stage * width, (stage + 1) * width):
            pair = (low + width, low) if back else (low, low + width)
            moved = 1e-4 * self.noise()
            if (fault := self.faults.get("p2p")) and set(fault["ranks"]) == set(pair):
                moved *= fault["factor"]
            ids = {r: self.launch(r, step) for r in pair}
            begin = {r: max(self.host[r], self.device[r]) for r in pair}
            end = max(begin.values()) + moved
            for r, other, name in zip(pair, pair[::-1], ("ncclSend", "ncclRecv"), strict=True):
                self.add(
                    r, name, "communication", begin[r], end, step, correlation=ids[r], peer=other, bytes=1 << 20,
                    operation="send-recv", group=Group("pp", self.pp),
                )  # fmt: skip
                self.device[r] = end

    def step(self, step):
        everyone = range(self.count)
        begun = self.host.copy()
        for r in everyone:
            fault = self.hit("data", r, step)
            cost = 2e-4 + (fault["seconds"] if fault else 0)
            self.add(r, "enumerate(DataLoader)#next", "data", self.host[r], self.host[r] + cost, step)
            self.host[r] += cost
            if fault := self.hit("save", r, step):
                self.pause(r, step, "save_checkpoint", "host", fault)
        width = self.tp * self.dp
        for back in (False, True):
            for stage in range(self.pp)[:: -1 if back else 1]:
                ranks = range(stage * width, (stage + 1) * width)
                self.layers_of(step, ranks, back)
                if not back and stage + 1 < self.pp:
                    self.send(step, stage)
                if back and stage:
                    self.send(step, stage - 1, back=True)
        for stage in range(self.pp):
            self.collective(step, "dp", range(stage * width, (stage + 1) * width), 1.2e-3, 1 << 26)
        for r in everyone:
            self.kernel(r, step, "adam", 4e-4)
            end = max(self.host[r], self.device[r])
            self.add(r, "cudaDeviceSynchronize", "wait", self.host[r], end, step)
            self.host[r] = end
            self.add(r, f"ProfilerStep#{step}", "host", begun[r], end, step)

    def layers_of(self, step, ranks, back):
        scale, of = (2, "_backward") if back else (1, "")
        for layer in range(self.layers):
            for r in ranks:
                if layer == 1:
                    if fault := self.hit("pause", r, step):
                        self.pause(r, step, fault.get("name", ""), "host", fault)
                    if fault := self.hit("malloc", r, step):
                        self.pause(r, step, "cudaMalloc", "launch", fault)
                self.kernel(r, step, "attention" + of, 4e-4 * scale)
                self.kernel(r, step, "gemm" + of, 5e-4 * scale)
                self.kernel(r, step, "expert_grouped_gemm" + of, 3e-4 * scale, expert=True)
                self.kernel(r, step, "norm" + of, 1e-4 * scale)
            self.collective(step, "tp", ranks, 1e-4, 1 << 22)

    def run(self):
        for step in range(self.steps):
            self.step(step)
        clock = self.random.normal(0, 5, self.count)
        self.offsets = clock - clock[0]
        self.drifts = self.random.normal(0, 2e-5, self.count)
        self.drifts -= self.drifts[0]
        traces = []
        for r, records in enumerate(self.records):
            jump = self.faults.get("jump", {}).get("ranks", [])
            half = self.device.max() / 2
            for record in records:
                for key in ("start_s", "end_s"):
                    t = record[key]
                    t = t + self.drifts[r] * t
                    if r in jump and record[key] > half:
                        t += self.faults["jump"]["seconds"]
                    record[key] = t + 100 + clock[r]
            traces.append(Trace.of(records, rank=r, world_size=self.count))
        return TraceSet.of(traces)
