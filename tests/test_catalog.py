"""Raw records of ``data/`` by name."""

import json

import pytest

from telekit import catalog
from telekit.errors import InputError


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


@pytest.mark.parametrize("name", ["deepseek-v33", "DeepSeek-V3", "../clusters/h800", "", "h800.json"])
def test_an_unknown_name_is_refused_with_help(name):
    with pytest.raises(InputError, match="catalog of models"):
        catalog.record("models", name)


def test_close_names_are_suggested():
    with pytest.raises(InputError, match="did you mean deepseek-v3"):
        catalog.record("models", "DeepSeek-V33")
    with pytest.raises(InputError, match=r"known: .*deepseek-v3"):
        catalog.record("models", "zzzz")


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
