"""Raw records of ``data/`` by name, and what the catalog promises of each of them."""

import json
import re

import pytest

from telekit import catalog
from telekit.cluster.config import cluster_names, device_names
from telekit.errors import InputError
from telekit.model.count import count
from telekit.model.huggingface import read_model

MODELS = catalog.names("models")


def test_names_are_the_files():
    for kind in ("models", "clusters"):
        files = [path.stem for path in (catalog.root() / kind).iterdir()]
        assert catalog.names(kind) == tuple(sorted(files)), "only records lie there, one a name"
        assert catalog.names(kind)
    assert "deepseek-v3" in catalog.names("models") and "h800" in catalog.names("clusters")
    assert catalog.names("nothing") == ()


@pytest.mark.parametrize("kind", ["models", "clusters"])
def test_every_record_is_an_object_under_its_own_lower_case_name(kind):
    for name in catalog.names(kind):
        assert name == name.lower() and " " not in name
        assert catalog.record(kind, name)["name"] == name


def test_a_record_is_fresh_each_time():
    first = catalog.record("clusters", "h800")
    first["device"]["memory_bytes"] = 0
    assert catalog.record("clusters", "h800")["device"]["memory_bytes"] > 0


@pytest.mark.parametrize("name", ["deepseek-v33", "deepseekv3", "../clusters/h800", "", "h800.json"])
def test_an_unknown_name_is_refused_with_help(name):
    with pytest.raises(InputError, match="catalog of models"):
        catalog.record("models", name)


def test_close_names_are_suggested():
    with pytest.raises(InputError, match="did you mean deepseek-v3"):
        catalog.record("models", "DeepSeek-V33")
    with pytest.raises(InputError, match=r"`telekit models` lists all \d+"):
        catalog.record("models", "zzzz")


@pytest.mark.parametrize("name", ["DeepSeek-V3", "deepseek_v3", "DeepSeek V3", " deepseek-v3 "])
def test_a_name_is_found_without_regard_to_case_and_spaces(name):
    assert catalog.record("models", name)["name"] == "deepseek-v3"
    assert read_model(name).model.name == "deepseek-v3"


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [
        ("models", "llama3-8b", "did you mean llama-3.1-8b"),
        ("models", "deepseekv3", "did you mean deepseek-v3 or deepseek-v3.2?"),
        ("models", "Qwen3-235B", "did you mean qwen3-235b-a22b?"),
        ("models", "mixtral", "did you mean mixtral-8x22b or mixtral-8x7b?"),
        ("devices", "a100", "did you mean a100-40gb or a100-80gb?"),
        (
            "devices",
            "910B",
            "did you mean ascend-910b, ascend-910b-280t, ascend-910b-313t or ascend-910b-376t?",
        ),
        ("devices", "gaudi", "known: a100-40gb, "),
    ],
)
def test_what_is_suggested_begins_with_the_name_or_holds_it_or_is_spelled_like_it(kind, name, answer):
    known = device_names() if kind == "devices" else MODELS
    assert catalog.found(name, known) is None
    assert catalog.suggested(name, known).startswith(answer)


def test_every_name_of_every_kind_finds_itself():
    for kind in catalog.root().iterdir():
        for name in catalog.names(kind.name):
            assert catalog.found(name, catalog.names(kind.name)) == name
            assert catalog.record(kind.name, name) == catalog.load(kind / f"{name}.json")


def test_llama_3_is_llama_3_1():
    assert catalog.record("models", "Llama-3-8B")["name"] == "llama-3.1-8b"


def test_load_reads_what_stands_there(tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"µ": [1, 2.5, None]}), encoding="utf-8")
    assert catalog.load(path) == {"µ": [1, 2.5, None]}


def test_an_installed_package_brings_its_own_data(tmp_path, monkeypatch):
    package = tmp_path / "telekit"
    (package / "data").mkdir(parents=True)
    (package / "notebooks").mkdir()
    monkeypatch.setattr(catalog, "__file__", str(package / "catalog.py"))
    for place, name in ((catalog.root, "data"), (catalog.notebooks, "notebooks")):
        assert place.__wrapped__() == package / name
    for name in ("data", "notebooks"):
        (package / name).rmdir()
        assert (
            getattr(catalog, {"data": "root", "notebooks": "notebooks"}[name]).__wrapped__()
            == tmp_path / name
        )


# --- what the catalog holds ---------------------------------------------------------------------------------


def test_the_catalog_is_wide_enough():
    assert len(MODELS) >= 45
    assert len(cluster_names()) >= 14
    assert "tpu-v5p" in device_names()


# Tables of published sizes: what was published, and what an independent count of the published fields gives
# (billions; without MTP modules, vision towers and the routers' biases).
ROWS = {
    "deepseek-v3": (671, 671.0264),
    "deepseek-v2-lite": (15.7, 15.7065),
    "qwen3-235b-a22b": (235, 235.0936),
    "qwen3-8b": (8.2, 8.1907),
    "mixtral-8x7b": (46.7, 46.7028),
    "llama-3.1-8b": (8.03, 8.0303),
    "llama-3.1-70b": (70.6, 70.5537),
    "llama-3.1-405b": (405.85, 405.8534),
    "llama-2-13b": (13.02, 13.0159),
    "llama-2-70b": (68.98, 68.9766),
    "megatron-gpt-1.7b": (1.7, 1.6522),
    "megatron-gpt-7.5b": (7.5, 7.4678),
    "megatron-gpt-39.1b": (39.1, 39.096),
    "megatron-gpt-76.1b": (76.1, 76.0507),
    "megatron-gpt-310.1b": (310.1, 310.1305),
    "megatron-gpt-1008b": (1008, 1008.0388),
    "gpt3-175b": (174.6, 174.6158),
    "gpt-oss-120b": (116.83, 116.8292),
    "minimax-m2": (230, 228.6897),
    "telechat3-36b": (36, 36.2396),
    "telechat3-105b-a4.7b": (105, 102.2563),
    "telechat2-3b": (3, 3.0704),
    "telechat2-7b": (7, 7.6171),
    "telechat2-35b": (35, 35.4343),
    "telechat2-39b-a12b": (39, 39.328),
    "pangu-ultra-moe": (718, 719.0938),
    "dbrx": (132, 131.5965),
    "phi-3.5-moe": (41.9, 41.8731),
    "ling-flash-2.0": (103, 102.8897),
    "hunyuan-large": (389, 388.9603),
    "skywork-moe": (146, 146.3562),
    "llama-4-maverick": (400, 400.7118),
    "llama-4-scout": (109, 107.7699),
    "megascale-moe-352b": (352, 341.2905),
    "llama-7b": (6.74, 6.7384),
    "llama-13b": (13.02, 13.0159),
    "llama-33b": (32.53, 32.5289),
    "llama-65b": (65.29, 65.2857),
    "opt-175b": (175, 174.6044),
    "bloom-176b": (176.247, 176.2473),
    "gpt-neox-20b": (20.5546, 20.5546),
    "nemotron-4-15b": (15.7, 15.6288),
    "qwen2.5-32b": (32.5, 32.7639),
}
# Further off than 0.5 %: a name or a publication that rounds, or counts something else. Each record says which.
ROUNDED = {
    "megatron-gpt-1.7b", "minimax-m2", "telechat3-36b", "telechat3-105b-a4.7b", "telechat2-3b", "telechat2-7b",
    "telechat2-35b", "telechat2-39b-a12b", "llama-4-scout", "megascale-moe-352b",
    "qwen2.5-32b",
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_published_sizes(name):
    published, counted = ROWS[name]
    total = count(name).total / 1e9
    assert total == pytest.approx(counted, rel=1e-3)
    assert (abs(total / published - 1) > 0.005) == (name in ROUNDED)
    assert catalog.record("models", name)["published"]["total_b"] == published


@pytest.mark.parametrize(
    ("name", "parameters"), [("bloom-176b", 176_247_271_424), ("gpt-neox-20b", 20_554_567_680)]
)
def test_published_to_the_last_parameter(name, parameters):
    assert count(name).total == parameters


FIELDS = {"name", "source", "verified", "notes", "published", "config"}
PUBLISHED = {
    "total_b",
    "active_b",
    "active_convention",
    "total_includes_mtp",
    "mtp_b",
    "note",
    "source",
    "verified",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_where_it_comes_from(name):
    record = catalog.record("models", name)
    assert {"name", "source", "verified", "published", "config"} <= set(record) <= FIELDS
    published = record["published"]
    assert {"total_b", "active_b", "active_convention", "source", "verified"} <= set(published) <= PUBLISHED
    for part in (record, published):
        assert part["source"] and type(part["verified"]) is bool
        assert not (part["verified"] and part["source"].endswith("from memory"))
    assert record["config"]["model_type"] and record["config"]["architectures"]


@pytest.mark.parametrize("name", MODELS)
def test_every_field_of_a_model_is_read(name):
    assert read_model(name).ignored == ()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_as_large_as_was_published(name):
    published, counted = catalog.record("models", name)["published"], count(name)
    total = counted.total + (counted.mtp if published.get("total_includes_mtp") else 0)
    note = published.get("note", "")
    assert abs(total / 1e9 / published["total_b"] - 1) < 0.005 or note
    assert not note or _says(note, counted.total / 1e9), "a note says what the fields give"
    ends = counted.by_component["embedding"] + counted.by_component["head"]
    active = {
        "with input embedding and head": counted.active,
        "without the input embedding": counted.active_without_input_embedding,
        "without embedding and head": counted.active - ends,
        "dense: every parameter": counted.total,
        None: None,
    }[published["active_convention"]]
    if active is None:
        assert published["active_b"] is None
    else:
        assert abs(active / 1e9 / published["active_b"] - 1) < 0.03 or _says(note, active / 1e9)


def _says(text, billions):
    """Whether the text has this number, as exact as it is printed there: 1,026B, 0.596B."""
    numbers = [number.replace(",", "") for number in re.findall(r"([\d,]*\d(?:\.\d+)?)B", text)]
    return any(f"{billions:.{len(n.partition('.')[2])}f}" == n for n in numbers)


@pytest.mark.parametrize("name", catalog.names("clusters"))
def test_a_cluster_says_where_it_comes_from(name):
    record = catalog.record("clusters", name)
    assert record["source"]
    assert (name in device_names()) == ("devices" not in record)
    if name in cluster_names():
        assert record["verified"] is True, "its size was read"
        assert name.endswith(f"-{record['devices']}")
        assert record["device"] in device_names()
