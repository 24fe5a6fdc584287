"""Two thousand mutated configs: each gives one clear error, or a model whose every tensor the oracle counts too."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
from contextlib import contextmanager
from math import prod
from pathlib import Path

import pytest
from tensors_a import TENSORS as ONE_HALF
from tensors_b import TENSORS as OTHER_HALF

from telekit import catalog
from telekit.errors import InputError
from telekit.model.count import count

ORACLES = ONE_HALF | OTHER_HALF
CASES = 2000
SECONDS = 10
MEMORY = 2**30

ODD = (None, True, False, 0, 1, -1, 2, 3, 7, 10**6, 10**7, 10**8, 2**63, 10**400, 1.0, 0.5, float("nan"), float("inf"),
       "", "8", "auto", "full_attention", [], [0], [1, 2], [None], {}, {"a": 1}, [[1]] * 9)  # fmt: skip
WORDS = ("attention_bias", "mlp_bias", "use_sliding_window", "sliding_window", "head_dim", "num_key_value_heads",
         "n_shared_experts", "num_nextn_predict_layers", "tie_word_embeddings", "layer_types", "index_topk",
         "moe_layer_freq", "decoder_sparse_step", "linear_key_head_dim", "attention_chunk_size", "v_head_dim",
         "num_kv_shared_layers", "use_qk_norm", "intermediate_size",
         "extra_projection_size", "adapter_rank", "per_layer_config", "sliding_window_size", "linear_num_heads",
         "d_model", "num_sliding_attention_heads", "_extra_layers")  # fmt: skip


def seeds() -> list[dict]:
    found = [catalog.record("models", name)["config"] for name in catalog.names("models")]
    samples = os.environ.get("TELEKIT_SAMPLES")
    if samples:
        files = sorted(Path(samples, "cases/hf_configs").glob("*.json"))
        found += [json.loads(file.read_text()) for file in files]
    return found


def mutate(config: dict, rng: random.Random) -> dict:
    config = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = config
        nested = [v for v in config.values() if isinstance(v, dict) and v]
        if nested and rng.random() < 0.6:
            place = rng.choice(nested)
        name = rng.choice(sorted(place))
        value = place[name]
        action = rng.random()
        if action < 0.1:
            del place[name]
        elif action < 0.2:
            place[rng.choice(WORDS)] = rng.choice(ODD)
        elif action < 0.7 and type(value) is int:
            place[name] = rng.choice((2 * value, value + 1, value // 2, 3 * value, value + 8))
        elif action < 0.7 and type(value) is bool:
            place[name] = not value
        elif action < 0.7 and isinstance(value, list) and value:
            place[name] = rng.choice((value[:-1], value[::-1], value + value[:1], [value[0]] * len(value)))
        elif action < 0.7 and isinstance(value, str) and len(value) > 20:
            place[name] = rng.choice((value[:-1], value[::-1], value + value[0], value + "?"))
        else:
            place[name] = rng.choice(ODD)
    return config


@contextmanager
def bounded():
    """Stop what hangs, and what takes over 1 GiB more than it had."""
    resource = pytest.importorskip("resource")

    def stop(*_):
        raise AssertionError(f"took over {SECONDS} s")

    held = next((int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines()
                 if line.startswith("VmData")), None)  # fmt: skip
    old, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_DATA)
    if held:
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def oracle(config: dict) -> tuple[int, int] | None:
    """Total and MTP by the list of tensors; None where no oracle knows the family."""
    listing = ORACLES.get(config.get("model_type"))
    if listing is None:
        return None
    sizes = {"main": 0, "mtp": 0}
    for name, shape in listing(config).items():
        sizes["mtp" if name.startswith("mtp.") else "main"] += prod(shape)
    return sizes["main"], sizes["mtp"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory limit needs /proc")
def test_mutated_configs_are_refused_or_counted_right():
    rng, starts = random.Random(20261130), seeds()
    counted = recounted = 0
    for case in range(CASES):
        config = mutate(rng.choice(starts), rng)
        with bounded():
            try:
                found = count(config)
            except InputError as error:
                assert error.problems and len(str(error)) < 20_000
                continue
            counted += 1
            expected = oracle(config)
        if expected is not None:
            recounted += 1
            assert (found.total, found.mtp) == expected, (case, config)
    assert counted > CASES / 5  # it is no test of refusing everything
    assert recounted > 0.9 * counted
