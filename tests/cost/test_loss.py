"""Memory of the loss: as many micro-batches of it as the schedule holds on the last stage."""

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.cost.layers import Site, end_costs, layer_cost
from telekit.cost.loss import LOSSES_WAIT
from telekit.cost.step import step_cost
from telekit.layout.config import SCHEDULES, ParallelConfig
from telekit.layout.schedules import default_chunks
from telekit.layout.stages import part_positions
from telekit.model.huggingface import load_model
from telekit.pipeline.closed_form import peak_held
from telekit.training.config import TrainConfig

H800 = load_cluster({"device": "h800", "nodes": 256})


def memory(model, layout, **train):
    cost = step_cost(Site(model, H800, TrainConfig(**train), layout))
    return {k: np.broadcast_to(v, (layout.pp,)) for k, v in cost.memory.items()}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_losses_wait_only_where_the_last_stage_holds_more_than_one(schedule):
    chunks, stages = default_chunks(schedule), 4
    chunk, stage = part_positions(schedule, stages, chunks)[-1]
    place = np.zeros((chunks, stages))
    place[chunk, stage] = 1.0
    assert (peak_held(schedule, place, 16)[stage] > 1) == (schedule in LOSSES_WAIT)


@pytest.mark.parametrize(("fusion", "width"), [("none", 4), ("te", 2), ("linear", 0)])
def test_gpipe_holds_the_loss_of_every_micro_batch(fusion, width):
    """Each forward pass, loss included, runs before the first backward: m losses, where 1F1B holds one."""
    model = load_model("llama-3.1-8b")
    train = {"seq_len": 4096, "global_batch": 8, "cross_entropy_fusion": fusion}
    held = {
        name: memory(model, ParallelConfig(pp=2, dp=1, schedule=name), **train)["logits"]
        for name in ("gpipe", "1f1b")
    }
    stream = 2 * 4096 * 4096  # sums and norm at the head's input: two streams of 16 bits
    one = width * 4096 * 128256 + 2 * stream
    assert (held["gpipe"] - held["1f1b"]).tolist() == [0, 7 * one]


def test_zero_bubble_keeps_logit_gradients_until_their_weights():
    model = load_model("llama-3.1-8b")
    zb, plain = (
        memory(model, ParallelConfig(pp=4, dp=1, schedule=name), seq_len=4096, global_batch=8)["logits"]
        for name in ("zb-h1", "1f1b")
    )
    assert (zb - plain).tolist() == [0, 0, 0, 3 * (2 * 4096 * 128256 + 4 * 4096 * 4096)]


@pytest.mark.parametrize("modules", ["full", ("moe_act",)])
def test_an_mtp_module_is_recomputed_as_the_layers_are(modules):
    """Full: its two inputs are kept, and its norms, projection and block run again; in part: the block's modules."""
    model, train = load_model("deepseek-v3"), TrainConfig(seq_len=4096, global_batch=256)
    layouts = [ParallelConfig(pp=4, dp=8, ep=8, recompute=name) for name in ("none", modules)]
    plain, again = (end_costs(Site(model, H800, train, layout))[1] for layout in layouts)
    block = layer_cost(model.mtp_block, Site(model, H800, train, layouts[1]))
    option = 2 if modules == "full" else 1
    more = float(again.backward.total_s - plain.backward.total_s)
    repeated = float(block.repeat[option].total_s) - float(block.forward.times_s["host"]) * (option == 2)
    assert more >= repeated * (1 - 1e-9) and (option == 2 or more == pytest.approx(repeated))
    less = float(plain.activation_bytes[0] - again.activation_bytes[0])
    freed = float(block.activation_bytes[0] - block.activation_bytes[option])
    stream = 2 * 4096 * 7168
    # in full the entry frees the sum and norm and the norm's two halves, and keeps two inputs where a block keeps one
    assert less == pytest.approx(freed + (4 * stream - stream) * (option == 2))
