"""The cluster noun: what the catalog holds, what the door accepts, and what it says when it does not."""

import copy
import json
import math
import statistics

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from telekit import catalog
from telekit.cluster.config import ClusterConfig, cluster_names, device_names, load_cluster
from telekit.errors import InputError

# From vendors' data sheets: bf16 TFLOP/s (fp16 for V100), memory, TB/s, one-way GB/s of each tier. NVLink
# figures (600, 900, 1800, and 400 for the cut A800 and H800) are halved here by hand.
PUBLISHED = {
    "a100-40gb": (312, 40 * 2**30, 1.555, (300, 25)),
    "a100-80gb": (312, 80 * 2**30, 2.039, (300, 25)),
    "a800": (312, 80 * 2**30, 2.0, (200, 12.5)),
    "h100": (989, 80 * 2**30, 3.35, (450, 50)),
    "h800": (989, 80 * 2**30, 3.4, (200, 50)),
    "h200": (989, 141 * 2**30, 4.8, (450, 50)),
    "b200": (2250, 180 * 2**30, 7.7, (900, 100)),
    "gb200": (2500, 198674743296, 8.0, (900, 900, 100)),
    "ascend-910b-376t": (353.9, 64 * 2**30, 1.6 * 1.0995, (196, 25)),
    "ascend-910b-313t": (294.9, 64 * 2**30, 1.6 * 1.0995, (196, 25)),
    "ascend-910b-280t": (245.8, 64 * 2**30, 1.6 * 1.0995, (196, 25)),
    "ascend-910c": (353.9, 64 * 2**30, 1.6 * 1.0995, (196, 196, 24.5)),
    "v100": (125, 32 * 2**30, 0.9, (150, 12.5)),
    "tpu-v4": (275, 32 * 2**30, 1.2, (300, 6.25)),
    "tpu-v5p": (459, 95 * 2**30, 2.765, (600, 6.25)),
    "tpu-v6e": (918, 32 * 10**9, 1.638, (400, 12.5)),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_catalog_equals_the_published_figures(name):
    tflops, memory_bytes, tb_per_s, tiers_gb_per_s = PUBLISHED[name]
    cluster = load_cluster({"device": name, "nodes": 2})
    device = cluster.device
    assert device.peak("fp16" if name == "v100" else "bf16") == pytest.approx(tflops * 1e12)
    assert device.memory_bytes == memory_bytes
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(tb_per_s * 1e12, rel=1e-4)
    assert [t.bandwidth_bytes_per_s / 1e9 for t in cluster.tiers] == pytest.approx(list(tiers_gb_per_s))


# InferSim at f2293dab6d, H800, FP8: (m, k, n, µs) of matmuls; MFU of experts, 2048 tokens each and more.
MATMULS = [
    (32768, 2048, 7168, 725.032), (1024, 7168, 36864, 373.066), (4096, 7168, 36864, 1489.0),
    (8192, 7168, 36864, 2981.0), (16384, 7168, 36864, 6136.0), (32768, 7168, 36864, 12848.0),
    (4096, 18432, 7168, 730.312), (8192, 18432, 7168, 1470.0), (16384, 18432, 7168, 2986.0),
    (32768, 18432, 7168, 6139.0),
]  # fmt: skip
EXPERTS = [
    0.624324, 0.603829, 0.635128, 0.607872, 0.647307, 0.617406, 0.657608, 0.621977, 0.669028, 0.633381,
    0.665061, 0.635905, 0.644314, 0.604423, 0.66935, 0.633418, 0.67439, 0.640541, 0.668516, 0.640903,
]  # fmt: skip


def test_h800_reaches_in_training_what_kernels_reach_alone():
    """Shares fitted on whole steps lie within a fifth of the medians of kernels measured by themselves."""
    device = load_cluster({"device": "h800", "nodes": 1}).device
    fp8 = device.kernels.low_precision["fp8"]
    reached = [2 * m * k * n / (time_us * 1e-6) / device.peak("fp8") for m, k, n, time_us in MATMULS]
    assert 0.8 < fp8 * device.gemm_efficiency / statistics.median(reached) < 1.05
    assert 0.8 < fp8 * device.grouped_gemm_efficiency / statistics.median(EXPERTS) < 1.05


@pytest.mark.parametrize("name", device_names())
def test_every_device_loads_and_names_its_sources(name):
    record = catalog.record("clusters", name)
    cluster = load_cluster({"device": name, "nodes": 4})
    assert cluster.device.name == name == record["name"]
    assert cluster.num_nodes == 4 and cluster.devices == 4 * cluster.devices_per_node
    assert cluster.device.source
    measured = {"gemm_efficiency", "grouped_gemm_efficiency", "attention_efficiency", "memory_efficiency"}
    assert measured <= set(cluster.device.sources), "an efficiency never stands on the data sheet"
    for tier in cluster.tiers:
        assert {"latency_s", "efficiency"} <= set(tier.sources)


@pytest.mark.parametrize("name", cluster_names())
def test_every_named_cluster_loads(name):
    cluster = load_cluster(name)
    assert cluster.name == name and cluster.source and cluster.verified
    assert name.endswith(str(cluster.devices))
    assert cluster.num_nodes * cluster.devices_per_node == cluster.devices


def test_machines_with_links_of_their_own():
    # Jean Zay: four links of 100 Gb/s for the 8 GPUs of a node, where a DGX has 200 Gb/s a GPU
    bloom, dgx = load_cluster("bloom-a100-384"), load_cluster("megatron-sc21-a100-3072")
    assert bloom.tiers[1].bandwidth_bytes_per_s == 4 * 100e9 / 8 / 8
    assert dgx.tiers[1].bandwidth_bytes_per_s == 200e9 / 8
    assert bloom.device == dgx.device and bloom.tiers[0] == dgx.tiers[0]
    # PaLM: two pods of 3,072 chips; elsewhere a TPU v4 pod has 4,096
    assert [t.devices for t in load_cluster("palm-tpu-v4-6144").tiers] == [3072, None]
    assert load_cluster({"device": "tpu-v4", "nodes": 2}).tiers[0].devices == 4096


def test_the_grade_of_telechat_machines_is_an_assumption_that_shows():
    cluster = load_cluster("telechat3-910b-256")
    assert cluster.device.grade == "313T"
    assert any("grade" in line for line in cluster.assumptions)
    named = load_cluster({"device": "ascend-910b-313t", "devices": 256})
    assert not any("grade" in line for line in named.assumptions)


def test_assumptions_list_exactly_the_unverified_numbers():
    lines = load_cluster({"device": "h100", "nodes": 2}).assumptions
    assert any(line.startswith("h100 memory_efficiency = 0.75") for line in lines)
    assert not any("node link efficiency" in line for line in lines), "it is measured"
    assert load_cluster({"device": "v100", "nodes": 1}).assumptions[0].startswith("v100: ")


def test_sizes_by_nodes_and_by_devices_agree():
    by_nodes = load_cluster({"device": "h800", "nodes": 256})
    by_devices = load_cluster({"device": "h800", "devices": 2048})
    both = load_cluster({"device": "h800", "nodes": 256, "devices": 2048})
    assert by_nodes == by_devices == both
    assert by_nodes.name == "h800-2048"
    assert load_cluster({"device": "h800", "devices": 4}).num_nodes == 1


def test_smaller_nodes_take_the_node_links_with_them():
    cluster = load_cluster({"device": "h100", "nodes": 6, "devices_per_node": 4})
    assert cluster.devices == 24
    assert [t.devices for t in cluster.tiers] == [4, None]


@pytest.mark.parametrize("name", ["h800", "gb200", "ascend-910c", "tpu-v5p"])
def test_round_trip_through_plain_json(name):
    cluster = load_cluster({"device": name, "nodes": 3})
    assert load_cluster(json.loads(json.dumps(cluster.model_dump(mode="json")))) == cluster


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_records_from_files(tmp_path, suffix):
    short = {"device": "h200", "nodes": 2}
    path = tmp_path / f"lab.{suffix}"
    path.write_text(json.dumps(short) if suffix == "json" else yaml.safe_dump(short))
    expected = load_cluster({"name": "lab", **short})
    assert load_cluster(path) == load_cluster(str(path)) == expected


def test_a_faulty_file_is_named(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("device: h200\nnodes: 0\n")
    with pytest.raises(InputError, match=r"lab\.yaml: nodes = 0"):
        load_cluster(path)
    path.write_text("- h200\n")
    with pytest.raises(InputError, match="mapping"):
        load_cluster(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_cluster(tmp_path / "none.yaml")


REFUSED = [
    ("h800", "write {device: h800, nodes: 2}"),
    ("h801", "did you mean h800"),
    ("deepseek-v3-h800", "did you mean deepseek-v3-h800-2048"),
    (None, "must be a name, a path or a mapping"),
    (17, "must be a name, a path or a mapping"),
    ([], "must be a name, a path or a mapping"),
    ({}, "cluster.device = missing"),
    ({"nodes": 2}, "cluster.device = missing"),
    ({"device": None, "nodes": 2}, "cluster.device = missing"),
    ({"device": 7, "nodes": 2}, "cluster.device = 7"),
    ({"device": "H80O", "nodes": 2}, "did you mean h800"),
    ({"device": "A100", "nodes": 2}, "did you mean a100-40gb or a100-80gb?"),
    ("H800", "write {device: h800, nodes: 2}"),
    ({"device": "llama3-h100-8192", "nodes": 2}, "write cluster: llama3-h100-8192"),
    ({"device": "h800"}, "give nodes or devices"),
    ({"device": "h800", "devices": 17}, "16 or 24 would work"),
    ({"device": "h800", "nodes": 2, "devices": 17}, "give nodes or devices, not both"),
    ({"device": "h800", "nodes": 2, "cards": 8}, "cluster.cards = 8: no such field"),
    ({"device": "h800", "nodes": 2, "device_per_node": 8}, "did you mean devices_per_node"),
    ({"device": "h800", "nodes": 2, "devices_per_node": "8"}, "cluster.devices_per_node = 8"),
    ({"device": "h800", "nodes": 2, "tiers": []}, "cluster.tiers"),
    ({"device": "h800", "nodes": 2, "tiers": 3}, "cluster.tiers"),
    ({"device": "h800", "nodes": 2, "verified": "yes"}, "cluster.verified"),
    ({"device": {"name": "x"}, "nodes": 2}, "cluster.device.peak_flops = missing"),
]
REFUSED += [
    ({"device": "h800", field: value}, f"cluster.{field} = ")
    for field in ("nodes", "devices")
    for value in (0, -8, 8.0, 8.5, math.nan, math.inf, True, "8", None, 10**9, 10**30, [8])
]


@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=repr)
def test_refused(spec, message):
    with pytest.raises(InputError) as caught:
        load_cluster(spec)
    assert message in str(caught.value)
    assert all(problem.rule for problem in caught.value.problems)


def test_names_are_matched_without_regard_to_case_and_spaces():
    expected = load_cluster({"device": "ascend-910b", "nodes": 2})
    assert load_cluster({"device": "Ascend 910B", "nodes": 2}) == expected
    assert load_cluster({"device": "ascend_910B", "nodes": 2}) == expected
    assert load_cluster("DeepSeek-V3-H800-2048") == load_cluster("deepseek-v3-h800-2048")


def test_all_problems_at_once():
    with pytest.raises(InputError) as caught:
        load_cluster({"device": "h80", "nodes": -1, "cards": 8, "verified": 3})
    assert [p.field for p in caught.value.problems] == ["cluster.cards", "cluster.device", "cluster.nodes"]
    with pytest.raises(InputError) as caught:
        load_cluster({"device": "h800", "nodes": -1, "cards": 8, "verified": 3}, "job.cluster", "job.yaml")
    assert [p.field for p in caught.value.problems] == [
        "job.cluster.cards",
        "job.cluster.nodes",
        "job.cluster.verified",
    ]
    assert str(caught.value).startswith("job.yaml: 3 problems")


def _full():
    return load_cluster({"device": "gb200", "nodes": 36}).model_dump(mode="json")


def _set(record, path, value):
    *parents, last = path
    for key in parents:
        record = record[key]
    record[last] = value


FAULTS = [
    (("device", "memory_bytes"), -1, "cluster.device.memory_bytes"),
    (("device", "memory_bytes"), 1e300, "cluster.device.memory_bytes"),
    (("device", "memory_bandwidth_bytes_per_s"), math.nan, "cluster.device.memory_bandwidth_bytes_per_s"),
    (("device", "peak_flops"), {}, "cluster.device.peak_flops"),
    (("device", "peak_flops"), {"bf17": 1e12}, "cluster.device.peak_flops"),
    (("device", "peak_flops"), {"bf16": math.inf}, "cluster.device.peak_flops.bf16"),
    (("device", "peak_flops"), {"bf16": True}, "cluster.device.peak_flops.bf16"),
    (("device", "gemm_efficiency"), 1.2, "cluster.device.gemm_efficiency"),
    (("device", "gemm_efficiency"), 0, "cluster.device.gemm_efficiency"),
    (("device", "sources"), {"gem_efficiency": {"source": "x", "verified": True}}, "cluster.device"),
    (("device", "cores"), 132, "cluster.device.cores"),
    (("tiers", 0, "latency_s"), -1e-6, "cluster.tiers.0.latency_s"),
    (("tiers", 0, "devices"), 8, "cluster.tiers"),
    (("tiers", 0, "devices"), None, "cluster.tiers"),
    (("tiers", 1, "devices"), 4, "cluster.tiers"),
    (("tiers", 2, "devices"), 100, "cluster.tiers"),
    (("devices",), 142, "cluster.devices"),
]


@pytest.mark.parametrize(("path", "value", "field"), FAULTS)
def test_a_full_record_with_one_fault(path, value, field):
    record = copy.deepcopy(_full())
    assert load_cluster(record).devices == 144
    _set(record, path, value)
    with pytest.raises(InputError) as caught:
        load_cluster(record)
    assert any(p.field.startswith(field) for p in caught.value.problems), caught.value


def test_peaks_by_dtype():
    device = load_cluster("telechat3-910b-256").device
    assert device.peak("bf16") == 294.9e12
    with pytest.raises(InputError, match=r"precision = fp8.*known: bf16, fp16, fp32, int8"):
        device.peak("fp8")


def test_configs_are_frozen():
    cluster = load_cluster("deepseek-v3-h800-2048")
    with pytest.raises(ValidationError):
        cluster.devices = 8


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from([*ClusterConfig.model_fields, "nodes"])


@given(st.dictionaries(fields | st.text(max_size=6), plain | st.sampled_from(device_names()), max_size=5))
def test_whatever_comes_in_is_a_cluster_or_one_clear_error(spec):
    try:
        cluster = load_cluster(spec)
    except InputError as error:
        assert error.problems and all(p.field and p.rule for p in error.problems)
    else:
        assert cluster.devices >= 1
        assert cluster.tiers[-1].devices is None or cluster.tiers[-1].devices >= cluster.devices


@given(st.sampled_from(device_names()), st.integers(1, 2000))
def test_any_number_of_nodes_of_any_device(name, nodes):
    cluster = load_cluster({"device": name, "nodes": nodes})
    assert cluster.num_nodes == nodes
    reach = [t.devices for t in cluster.tiers[:-1]]
    assert reach == sorted(reach)
