"""The answer that ``telekit count`` prints."""

from __future__ import annotations

import json

import pytest

from telekit import catalog
from telekit.model.count import count
from telekit.model.flops import forward_flops_per_token, training_flops_per_token
from telekit.model.huggingface import read_model


@pytest.mark.parametrize("name", catalog.names("models"))
def test_the_answer_is_one_whole(name):
    reading = read_model(name)
    model, counted = reading.model, count(name)
    assert counted == count(reading) and counted.name == name
    assert sum(counted.by_component.values()) == counted.total
    assert 0 < counted.active_without_input_embedding <= counted.active <= counted.total
    assert counted.vision == (None if reading.towers else 0)
    assert counted.forward_flops_per_token == forward_flops_per_token(model, 4096)
    assert counted.training_flops_per_token == training_flops_per_token(model, 4096)
    assert type(counted.total) is type(counted.active) is type(counted.mtp) is int


def test_components_of_deepseek_v3():
    parts = count("deepseek-v3").by_component
    assert parts == {
        "embedding": 129280 * 7168,
        "attention": 61
        * 187_107_328,  # 7168x1536 + 1536 + 1536x24576 + 7168x576 + 512 + 512x32768 + 16384x7168
        "mlp": 3 * 3 * 7168 * 18432,
        "shared_experts": 58 * 3 * 7168 * 2048,
        "experts": 58 * 256 * 3 * 7168 * 2048,
        "router": 58 * (256 * 7168 + 256),
        "norms": (61 * 2 + 1) * 7168,
        "head": 129280 * 7168,
    }


def test_it_is_plain_data_that_json_keeps():
    plain = count("gpt-oss-120b", seq_len=8192, attention="full").to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert {
        "total", "active", "active_without_input_embedding", "mtp", "vision", "by_component",
        "training_flops_per_token", "forward_flops_per_token",
    } <= set(plain)  # fmt: skip
    assert (plain["seq_len"], plain["attention"]) == (8192, "full")


def test_the_convention_says_which_keys_were_counted():
    causal, full = (count("llama-3.1-8b", attention=a) for a in ("causal", "full"))
    assert "(s + 1) / 2" in causal.convention and "all keys" in full.convention
    assert full.forward_flops_per_token > causal.forward_flops_per_token
    assert full.total == causal.total
