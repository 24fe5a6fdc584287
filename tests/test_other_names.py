"""Other programs' names of a job's fields lead to its own."""

import pytest

from telekit.cluster.config import ClusterConfig
from telekit.errors import InputError
from telekit.job import SECTIONS, Job
from telekit.layout.config import ParallelConfig
from telekit.other_names import FIELD_OF, SECTION_OF, SENTENCE_OF, instead_of
from telekit.training.config import TrainConfig

GOOD = {"model": "llama-3.1-8b", "cluster": {"device": "h100", "nodes": 1}}
SCHEMAS = {"layout": ParallelConfig, "train": TrainConfig, "cluster": ClusterConfig}


def test_every_name_leads_to_a_field_that_there_is():
    for name, path in FIELD_OF.items():
        section, field = path.split(".")
        assert field in SCHEMAS[section].model_fields or path == "cluster.nodes", name
    assert set(SECTION_OF.values()) == set(SECTIONS)


def test_no_name_means_two_things():
    own = {field for schema in (ParallelConfig, TrainConfig) for field in schema.model_fields}
    assert all(FIELD_OF[field].endswith(f".{field}") for field in own), "every own name, by itself"
    assert not set(SENTENCE_OF) & set(FIELD_OF)


@pytest.mark.parametrize(
    ("section", "name", "value", "answer"),
    [
        ("layout", "mbs", 1, "here it is named micro_batch"),
        ("layout", "micro_batch_size", 1, "here it is named micro_batch"),
        ("layout", "micro-batch-size", 1, "here it is named micro_batch"),
        ("layout", "--tensor-model-parallel-size", 8, "here it is named tp"),
        ("layout", "pipeline_parallel_degree", 8, "here it is named pp"),
        ("layout", "context_parallel", 2, "here it is named cp"),
        ("layout", "expert_model_parallel_size", 8, "here it is named ep"),
        ("layout", "vp", 2, "here it is named vpp"),
        ("layout", "fsdp", 1, "write zero: 3 in layout"),
        ("layout", "use_distributed_optimizer", True, "write zero: 1 in layout"),
        ("layout", "num_microbatches", 8, "micro-batches follow: global_batch / (dp * micro_batch)"),
        ("layout", "gbs", 8, "here it is named global_batch, in train"),
        ("layout", "seq_len", 8, "write it in train"),
        ("layout", "tensor_model_paralel_size", 8, "here it is named tp"),
        ("layout", "shedule", "1f1b", "did you mean schedule?"),
        ("layout", "weight_decay", 0.1, "known: tp, cp, dp, ep"),
        ("train", "gbs", 8, "here it is named global_batch"),
        ("train", "seq_length", 8, "here it is named seq_len"),
        ("train", "mbs", 1, "here it is named micro_batch, in layout"),
        ("train", "bf16", True, "write precision: bf16 or precision: fp16 in train"),
        ("cluster", "gpus", 8, "here it is named devices"),
        ("cluster", "world_size", 8, "here it is named devices"),
        ("cluster", "gpu", "h100", "here it is named device"),
        ("cluster", "gpus_per_node", 8, "here it is named devices_per_node"),
    ],
)
def test_an_unknown_field_says_what_to_write(section, name, value, answer):
    with pytest.raises(InputError) as caught:
        Job.read(GOOD | {section: GOOD.get(section, {}) | {name: value}})
    assert f"{section}.{name} = {value}: no such field; {answer}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("parallel_config", "here it is named layout"),
        ("training", "here it is named train"),
        ("tp", "write it in layout"),
        ("gbs", "here it is named global_batch, in train"),
        ("world_size", "here it is named devices, in cluster"),
        ("lay_out", "did you mean layout?"),
        ("zzz", "known: model, cluster, train, layout"),
    ],
)
def test_an_unknown_section_says_what_to_write(name, answer):
    with pytest.raises(InputError) as caught:
        Job.read(GOOD | {name: 1})
    assert f"{name} = 1: no such section; {answer}" in str(caught.value)


def test_a_record_within_a_section_has_no_other_names():
    assert instead_of("gpus", ("name", "latency_s")) == "known: name, latency_s"
