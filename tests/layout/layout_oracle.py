"""A layout built by hand: every rank gets its heads, experts, tokens, sequences and layers, or the build fails.

Nothing here divides one degree by another: things are dealt out one by one, and what cannot be dealt evenly fails.
"""

import random
from collections import Counter
from itertools import count, product

from telekit.cluster.config import load_cluster
from telekit.layout.case import Case
from telekit.layout.config import SCHEDULES, ParallelConfig
from telekit.model.config import FeedForward, GroupedQueryAttention, LayerKind, MixtureOfExperts, ModelConfig
from telekit.training.config import TrainConfig

WORLD = 64
CLUSTERS = {}


class NotDealtError(Exception):
    """Something could not be dealt out."""


def deal(things, hands):
    """Cut a list into ``hands`` runs of equal length, growing them one thing at a time."""
    length = 0
    while length * hands < len(things):
        length += 1
    if length * hands != len(things):
        raise NotDealtError(f"{len(things)} over {hands}")
    return [things[hand * length : (hand + 1) * length] for hand in range(hands)]


def buildable(case):
    """Whether every rank of the cluster can be given its share of everything."""
    try:
        build(case)
    except NotDealtError:
        return False
    return True


def build(case):
    model, train, x = case.model, case.train, case.layout
    places = list(product(range(x.pp), range(x.dp), range(x.cp), range(x.tp)))  # tensor ranks count up first
    if len(places) != case.cluster.devices:
        raise NotDealtError("ranks left over, or missing")
    tokens = deal_tokens(train.seq_len, x)
    for kind in model.kinds:
        deal_heads(kind.attention, x)
        deal_mlp(kind.mlp, x)
    moe = next((kind.mlp for kind in model.kinds if kind.mlp.kind == "moe"), None)
    for stage in range(x.pp):
        ranks = [place for place in places if place[0] == stage]
        blocks = deal_blocks(ranks, x)
        if moe is not None:
            dispatch_once(blocks, tokens, x)
            if x.dispatcher == "alltoall_deredundency":
                gather_between_nodes(blocks, places, case.cluster.devices_per_node)
        elif any(len(block) > 1 or len(block[0]) > 1 for block in blocks):
            raise NotDealtError("ranks side by side for experts that are not there")
    if x.tp_comm_overlap and (x.tp == 1 or not x.sequence_parallel):
        raise NotDealtError("nothing is gathered or scattered that could run beside a product")
    if x.moe_expert_capacity_factor is not None:
        fill_evenly(x.moe_expert_capacity_factor)
    rounds = deal_batch(train.global_batch, x)
    place_layers(model.num_layers, x)
    run_schedule(x, rounds)


def deal_heads(attention, x):
    """Each tensor rank (each context rank of it, where heads are dealt on) owns its key/value heads alone."""
    per_key = 0
    while per_key * attention.kv_heads < attention.heads:
        per_key += 1
    hands = deal(list(range(attention.heads)), x.tp)
    if x.cp_comm_type == "a2a":
        hands = [hand for mine in hands for hand in deal(mine, x.cp)]
    owners = Counter()
    for hand in hands:
        owners.update({head // per_key for head in hand})
    if set(owners.values()) != {1}:
        raise NotDealtError("a key/value head is needed on two ranks")


def deal_mlp(mlp, x):
    if mlp.kind == "dense":
        deal(range(mlp.ffn_hidden_size), x.tp)
        return
    deal(range(mlp.num_experts), x.ep)
    deal(range(mlp.expert_ffn_hidden_size), x.etp)
    deal(range(mlp.shared_ffn_hidden_size), x.tp)


def deal_tokens(seq_len, x):
    """Tokens of one sequence on each (context, tensor) rank: an early and a late piece, so that work is even."""
    whole = list(range(seq_len))
    if x.cp > 1:
        pieces = deal(whole, 2 * x.cp)
        shares = [pieces[i] + pieces[-1 - i] for i in range(x.cp)]
        assert len({sum(share) for share in shares}) == 1  # as many keys before the tokens of each rank
    else:
        shares = [whole]
    found = {}
    for c, share in enumerate(shares):
        slices = deal(share, x.tp) if x.sequence_parallel else [share] * x.tp
        found.update({(c, t): frozenset(mine) for t, mine in enumerate(slices)})
    return found


def deal_blocks(ranks, x):
    """Expert-parallel blocks of a stage, each a list of expert-tensor groups of ranks."""
    blocks, left = [], list(ranks)
    while left:
        block = []
        for _ in range(x.ep):
            group, left = left[: x.etp], left[x.etp :]
            if len(group) < x.etp:
                raise NotDealtError("ranks left over on the expert side")
            block.append(group)
        blocks.append(block)
    return blocks


def dispatch_once(blocks, tokens, x):
    """Every token is sent to its experts by one expert-tensor group: whole by each rank of it, or a slice by each."""
    sent = Counter()
    for block in blocks:
        for group in block:
            held = [{(d, token) for token in tokens[c, t]} for _, d, c, t in group]
            together = set().union(*held)
            if not (all(mine == held[0] for mine in held) or sum(map(len, held)) == len(together)):
                raise NotDealtError("some ranks of a group send a token that others of it send too")
            sent.update(together)
    if set(sent.values()) != {1}:
        raise NotDealtError("a token is sent twice")


def fill_evenly(capacity, tokens=120, experts=4):
    """Every token finds room with an expert where they come in turn."""
    room = [capacity * tokens / experts] * experts
    for token in range(tokens):
        room[token % experts] -= 1
    if min(room) < 0:
        raise NotDealtError("tokens are dropped though experts share them evenly")


def gather_between_nodes(blocks, places, per_node):
    """Each block fills whole nodes, so that every place of a node has one partner on each other node of the block."""
    node = {place: index // per_node for index, place in enumerate(places)}
    for block in blocks:
        held = Counter(node[rank] for group in block for rank in group)
        split = any(len({node[rank] for rank in group}) > 1 for group in block)
        if split or set(held.values()) != {per_node}:
            raise NotDealtError("a place without a partner on another node")


def deal_batch(global_batch, x):
    """Rounds in which each data rank takes a micro-batch, until no sequence is left."""
    left = global_batch
    for rounds in count():
        if left == 0:
            return rounds
        for _ in range(x.dp):
            if left < x.micro_batch:
                raise NotDealtError("a data rank gets no whole micro-batch")
            left -= x.micro_batch


def order_of_parts(x):
    """(chunk, stage) of each part: round and round, or down one side of a V and up the other."""
    rows = [[(v, s) for s in range(x.pp)] for v in range(x.vpp)]
    if x.schedule in ("zb-v", "dualpipe-v"):
        rows = [row if v % 2 == 0 else row[::-1] for v, row in enumerate(rows)]
    return [place for row in rows for place in row]


def place_layers(layers, x):
    order = order_of_parts(x)
    if x.stages == "auto":
        inner = order[1:-1]  # the input embedding and the output head may stand alone
        held = Counter(inner[i % len(inner)] for i in range(layers)) if inner else {}
        if len(held) < len(inner):
            raise NotDealtError("a part without a layer")
        return
    there = {(v, s) for v, row in enumerate(x.stages) for s in range(len(row))}
    if there != set(order) or not all(x.stages):
        raise NotDealtError("stages of another shape")
    left = layers
    for at, (v, s) in enumerate(order):
        cell = x.stages[v][s]
        if cell.layers == 0 and (0 < at < len(order) - 1 or len(order) == 1):
            raise NotDealtError("a part without a layer")
        if len(cell.options("none")) != cell.layers:
            raise NotDealtError("recompute choices of other layers")
        left -= cell.layers
    if left:
        raise NotDealtError("layers lost, or too many")


def run_schedule(x, m):
    """Chunks and micro-batches as each schedule hands them out."""
    name = x.schedule
    chunks = {"zb-v": {2}, "dualpipe-v": {2}, "interleaved-1f1b": set(range(2, 100))}.get(name, {1})
    if x.vpp not in chunks:
        raise NotDealtError("chunks")
    if name == "interleaved-1f1b":
        if x.pp == 1:
            raise NotDealtError("one stage has nobody to take turns with")
        while m > 0:  # a group of micro-batches passes chunk after chunk
            m -= x.pp
        if m < 0:
            raise NotDealtError("a group is not full")
    if name in ("dualpipe", "seqsmartvpp"):
        deal(range(x.pp), 2)  # stages stand in pairs
    if name == "dualpipe":
        ends = deal(range(m), 2)
        if len(ends[0]) < x.pp:
            raise NotDealtError("one end does not fill the pipeline")
    filled = {"dualpipe-v": 2 * x.pp, "zb-v": 2 * x.pp, "zb-h1": x.pp}.get(name, 1)
    if m < filled and name != "interleaved-1f1b":
        raise NotDealtError("the pipeline is not filled")


def cluster(devices, per_node):
    """Nodes of ``per_node``; one node where that does not divide the devices."""
    size = devices, devices if devices % per_node else per_node
    if size not in CLUSTERS:
        CLUSTERS[size] = load_cluster({"device": "h100", "devices": devices, "devices_per_node": size[1]})
    return CLUSTERS[size]


def random_node(rng, dispatcher, ep, etp, devices):
    """Devices of a node: all, or where it matters often some that hold whole expert-tensor groups."""
    if dispatcher != "alltoall_deredundency":
        return devices
    return rng.choice([etp * d for d in range(1, ep + 1) if ep % d == 0])


def random_case(rng: random.Random):
    """A layout that is valid but for up to three fields changed at random."""
    pick = rng.choice
    tp, cp, pp = pick([1, 1, 2, 3, 4]), pick([1, 1, 2, 3]), pick([1, 1, 2, 3, 4])
    dp = pick([d for d in (1, 2, 3, 4, 5, 6, 8) if tp * cp * pp * d <= WORLD])
    stage, schedule = tp * cp * dp, pick(SCHEDULES)
    ep = pick([d for d in (1, 2, 3, 4, 6, 8, 12, 16) if stage % d == 0])
    etp = pick([d for d in (1, 1, 2, 3, 4) if (stage // ep) % d == 0])
    sequence_parallel, moe = pick([True, True, False]), pick([True, True, False])
    if not moe:
        ep = etp = 1
    elif not sequence_parallel and tp > 1:
        sequence_parallel = etp != tp
    vpp = {"zb-v": 2, "dualpipe-v": 2, "interleaved-1f1b": pick([2, 3])}.get(schedule, 1)
    if schedule == "interleaved-1f1b" and pp == 1:
        schedule, vpp = "1f1b", 1
    if schedule in ("dualpipe", "seqsmartvpp") and pp % 2:
        schedule = "gpipe"
    overlap = sequence_parallel and tp > 1 and pick([True, False])
    micro, m = pick([1, 2, 3]), pick([pp, *[2 * pp] * 5, 4 * pp, 2 * pp + 1])
    layers = pp * vpp * pick([1, 2]) + pick([0, 0, 1, 2])
    layout = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "ep": ep, "etp": etp, "micro_batch": micro,
        "schedule": schedule, "sequence_parallel": sequence_parallel, "tp_comm_overlap": overlap,
        "cp_comm_type": pick(["p2p", "a2a"]), "stages": pick(["auto", "auto", "rows"]),
        "dispatcher": pick(["alltoall", "alltoall", "alltoall_deredundency"]),
    }  # fmt: skip
    sizes = {
        "kv_heads": tp * cp * pick([1, 2]), "queries": pick([1, 2, 4]), "ffn": tp * pick([4, 5, 7]),
        "shared": pick([0, tp * 3]), "experts": ep * pick([1, 2, 3]), "expert_ffn": etp * pick([2, 5]),
        "seq_len": 2 * cp * tp * pick([3, 5]) // pick([1] * 8 + [2, tp]), "global_batch": dp * micro * m,
        "layers": layers, "devices": tp * cp * pp * dp, "moe": moe,
        "per_node": random_node(rng, layout["dispatcher"], ep, etp, tp * cp * pp * dp),
    }  # fmt: skip
    for _ in range(pick([0, 0, 1, 1, 1, 1, 2, 3])):
        disturb(rng, layout, sizes)
    own = random.Random(str(layout))  # the other draws stay what they are
    layout["moe_expert_capacity_factor"] = own.choice([None] * 40 + [1.0, 1.5, 0.75])
    return as_case(rng, layout, sizes)


def disturb(rng, layout, sizes):
    """Change one thing; where a layout needs as many devices as it has, keep them in step half of the time."""
    degrees = ("tp", "cp", "pp", "dp", "vpp", "ep", "etp", "micro_batch")
    name = rng.choice((*degrees, *degrees, "schedule", "sequence_parallel", "tp_comm_overlap", "cp_comm_type",
                       "sizes", "sizes", "sizes", "sizes"))  # fmt: skip
    if name == "sizes":
        field = rng.choice(["kv_heads", "kv_heads", *(k for k in sizes if k not in ("moe", "queries"))])
        sizes[field] = max(1, rng.choice([sizes[field] // 2, sizes[field] + rng.choice([-2, -1, 1, 2, 3])]))
    elif name in degrees:
        layout[name] = rng.choice([1, 2, 3, 4, 6])
        if rng.random() < 0.7:
            sizes["devices"] = layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"]
    else:
        values = {"schedule": SCHEDULES, "cp_comm_type": ("p2p", "a2a")}.get(name, (True, False))
        layout[name] = rng.choice(values)


def as_case(rng, layout, sizes):
    attention = GroupedQueryAttention(
        heads=sizes["kv_heads"] * sizes["queries"], kv_heads=sizes["kv_heads"], head_dim=4
    )
    dense = LayerKind(name="dense", attention=attention, mlp=FeedForward(ffn_hidden_size=sizes["ffn"]))
    kinds = (dense,)
    if sizes["moe"]:
        experts = MixtureOfExperts(num_experts=sizes["experts"], top_k=1, expert_ffn_hidden_size=sizes["expert_ffn"],
                                   shared_ffn_hidden_size=sizes["shared"])  # fmt: skip
        kinds = (dense, LayerKind(name="moe", attention=attention, mlp=experts))
    model = ModelConfig(name="toy", hidden_size=8, vocab_size=rng.randint(16, 64), kinds=kinds,
                        pattern=tuple(i % len(kinds) for i in range(sizes["layers"])))  # fmt: skip
    if layout["stages"] == "rows":
        layout["stages"] = random_stages(rng, layout, sizes["layers"])
    train = TrainConfig(seq_len=sizes["seq_len"], global_batch=sizes["global_batch"])
    return Case(
        model, cluster(sizes["devices"], sizes["per_node"]), train, ParallelConfig.model_validate(layout)
    )


def random_stages(rng, layout, layers):
    """Layers dropped on parts at random, now and then one too few, a row too many, or recompute that does not fit."""
    rows = [[0] * layout["pp"] for _ in range(layout["vpp"])]
    places = [(v, s) for v, row in enumerate(rows) for s in range(len(row))]
    for i in range(max(0, layers - rng.choice([0, 0, 0, 0, 0, 1]))):
        v, s = places[i] if i < len(places) and rng.random() < 0.95 else rng.choice(places)
        rows[v][s] += 1
    cells = [[{"layers": n} for n in row] for row in rows]
    for row in cells:
        for cell in row:
            some = rng.randint(0, cell["layers"] + (rng.random() < 0.06))
            cell["recompute"] = rng.choice(
                [None, {"full": some}, ["full"] * some + ["none"] * (cell["layers"] - some)]
            )
    if rng.random() < 0.1:
        cells.append([{"layers": 0}] * len(cells[-1]))
    if rng.random() < 0.05:
        cells[-1] = cells[-1][1:]
    return cells
