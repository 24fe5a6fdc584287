"""How context ranks exchange and what runs beside products: written where a framework has a word for it."""

import shlex

import pytest
import yaml

from telekit.job import load_job
from telekit.launch import megatron, mindformers


def job(model="llama-3.1-8b", **layout):
    return load_job(
        {
            "model": model,
            "cluster": {"device": "h100", "devices": 16},
            "train": {"global_batch": 16},
            "layout": {"tp": 2, "dp": 4, "cp": 2} | layout,
        }
    )


def flags(job):
    """Options of Megatron-LM arguments, each with its words."""
    lines = [line for line in megatron.arguments(job).splitlines() if not line.startswith("#")]
    return {words[0]: words[1:] for words in map(shlex.split, lines)}


def test_megatron_is_told_of_an_all_to_all_and_of_overlap():
    found = flags(job(cp_comm_type="a2a", tp_comm_overlap=True))
    assert found["--cp-comm-type"] == ["a2a"] and found["--tp-comm-overlap"] == []


@pytest.mark.parametrize("layout", [{}, {"cp_comm_type": "p2p"}, {"cp": 1, "dp": 8, "cp_comm_type": "a2a"}])
def test_megatron_is_told_nothing_of_its_defaults(layout):
    assert not {"--cp-comm-type", "--tp-comm-overlap"} & set(flags(job(**layout)))


@pytest.mark.parametrize(
    "kind, model, algorithm, exchanges",
    [
        ("p2p", "llama-3.1-8b", "colossalai_cp", False),
        ("a2a", "llama-3.1-8b", "ulysses_cp", True),
        ("p2p", "mixtral-8x7b", "colossalai_cp", True),
    ],
)
def test_mindformers_has_two_algorithms(kind, model, algorithm, exchanges):
    """Ulysses wants ``enable_alltoall``, as experts do (MindSpore Transformers, long sequence training)."""
    written = yaml.safe_load(mindformers.config(job(model, cp_comm_type=kind)))
    assert written["parallel_config"]["context_parallel_algo"] == algorithm
    assert written["parallel"]["enable_alltoall"] is exchanges


def test_mindformers_says_what_it_does_not_set():
    notes = mindformers.config(job(tp_comm_overlap=True))
    assert "tp_comm_overlap is Megatron-Core's" in notes
    assert "tp_comm_overlap" not in mindformers.config(job())


def test_megatron_refuses_experts_without_sequence_parallelism():
    """``MoELayer.forward`` raises in training, also where etp is tp, which is a valid layout here."""
    refused = "refuses experts under tensor parallelism without sequence parallelism"
    assert refused in megatron.arguments(job("mixtral-8x7b", etp=2, sequence_parallel=False))
    assert refused not in megatron.arguments(job("mixtral-8x7b", etp=2))
    assert refused not in megatron.arguments(job(sequence_parallel=False))


def test_the_fields_are_written_into_a_job_and_read_back():
    base = job(cp_comm_type="a2a", tp_comm_overlap=True)
    written = base.to_dict()["layout"]
    assert written["cp_comm_type"] == "a2a" and written["tp_comm_overlap"] is True
    assert load_job(base.to_dict()).layout == base.layout
