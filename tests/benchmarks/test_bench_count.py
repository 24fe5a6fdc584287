"""Speed of counting: the issue asks for under 1 ms a model."""

from __future__ import annotations

import pytest

from telekit.model.count import count
from telekit.model.huggingface import load_model


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"])
def test_counting_a_model(benchmark, name):
    assert benchmark(count, load_model(name)).total > 0
