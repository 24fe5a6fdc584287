"""Speed of dispatch: the issue asks for 1e5 configurations a second on one core."""

from __future__ import annotations

import numpy as np
import pytest

from telekit.cluster.config import load_cluster
from telekit.comm.dispatch import DISPATCHERS, dispatch
from telekit.comm.expert_links import expert_links
from telekit.comm.routing import Routing

CONFIGURATIONS = 100_000


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_a_hundred_thousand_configurations(benchmark, dispatcher):
    rng = np.random.default_rng(0)
    links = expert_links(load_cluster({"device": "h800", "nodes": 16}))
    tokens, hidden = rng.integers(1, 16_384, CONFIGURATIONS), rng.choice([2048, 4096, 7168], CONFIGURATIONS)
    ep, imbalance = rng.choice([8, 16, 32, 64, 128], CONFIGURATIONS), rng.uniform(1, 2, CONFIGURATIONS)
    routing = Routing(256, 8, 8, 4)
    found = benchmark(
        lambda: dispatch(dispatcher, tokens, hidden, 1, 2, routing, ep, 8, links, imbalance).time_s
    )
    assert found.shape == (CONFIGURATIONS,) and (found > 0).all()
