"""A model from a catalog name, a Hugging Face ``config.json``, or the dict such a file holds.

What is not modelled is refused by name: a wrong count is worse than none. Layouts of the files follow the
configuration classes of Hugging Face transformers and of the models' own repositories.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from telekit import catalog
from telekit.documents import parse, read_text
from telekit.errors import InputError, Problem, bad, from_pydantic
from telekit.model.config import ModelConfig
from telekit.model.families.parts import Family
from telekit.model.families.registry import FAMILIES, by_architecture, resembling
from telekit.model.fields import Fields
from telekit.model.unread import foreign_parts, printable

_TEXT = ("text_config", "llm_config", "language_config")
"""Where multimodal wrappers keep their text model."""

_TIED = ("gemma3", "gemma4")
"""Wrappers whose own class ties the head where the file does not say."""

_TEXT_TIES = ("llama4",)
"""Wrappers whose own word on a tied head nobody reads: their text model's class asks its own fields alone."""

_TOWER = re.compile(r"(vision|visual|vit|audio|image|speech|video)\w*_config")

_REPEATED = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "layer_types", "sliding_window", "num_nextn_predict_layers",
)  # fmt: skip
"""Fields of the text model that some wrappers repeat."""

_ALWAYS_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class Reading:
    """A model, and what its file left open.

    Attributes
    ----------
    model : ModelConfig
        What was read.
    defaults : dict
        Fields that were absent or null, with the value taken instead.
    ignored : tuple of str
        Fields with names unknown here that say something, but not as if it changed any shape.
    within : str
        Where in a multimodal wrapper the text model was found; empty for a plain file.
    towers : tuple of str
        The wrapper's other models (vision, audio), which are not read.
    notes : tuple of str
        What a reader of the numbers should know besides.
    """

    model: ModelConfig
    defaults: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    within: str = ""
    towers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_model(spec: str | Path | Mapping[str, Any] | ModelConfig) -> ModelConfig:
    """Return the model that ``spec`` names.

    Parameters
    ----------
    spec : str, Path, mapping or ModelConfig
        A catalog name (``deepseek-v3``), a path to a ``config.json``, a folder with one, or its content.

    Raises
    ------
    InputError
        Unknown name; unreadable file; every missing, impossible or wrongly typed field; every part of the
        model that is not modelled yet.
    """
    return read_model(spec).model


def defaults_filled(spec: str | Path | Mapping[str, Any] | ModelConfig) -> dict[str, Any]:
    """Fields that the file left out or null, with the value that was taken (by the file's own names)."""
    return dict(read_model(spec).defaults)


def read_model(spec: str | Path | Mapping[str, Any] | ModelConfig) -> Reading:
    """Read as :func:`load_model` does, and say what was filled in and what was passed over."""
    if isinstance(spec, ModelConfig):
        return Reading(spec, {})
    if isinstance(spec, Mapping):
        return _read(spec, "", "")
    if not isinstance(spec, str | Path):
        rule = "must be a catalog name, a path or an object"
        raise bad("model", printable(spec), rule, "for example deepseek-v3")
    if isinstance(spec, str) and (spec in catalog.names("models") or not _exists(spec)):
        record = catalog.record("models", spec)
        return _read(record["config"], record["name"], record["source"])
    path = Path(spec)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise bad("model", str(spec), "neither a config.json nor a folder with one", source=str(path))
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _read(parse(read_text(path), str(path), is_json=True, infinite=True), name, str(path))


def from_huggingface(config: Mapping[str, Any], name: str = "", source: str = "") -> ModelConfig:
    """Return the model that the content of a ``config.json`` describes; raises as :func:`load_model` does."""
    return _read(config, name, source).model


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or with a zero byte: a name then
        return False


def _read(config: Any, name: str, source: str) -> Reading:
    if not isinstance(config, Mapping):
        raise bad("config", printable(config), "must be a JSON object of fields", source=source)
    try:
        within, text = _text_model(config)
        towers = _towers(config)
        fields = Fields(text)
        if within and "model_type" in text and config[within].get("model_type") is None:
            fields.fill("model_type", text["model_type"])
        try:
            parts = _family(fields, nested=bool(within)).read(fields)
            ignored = fields.refuse_unread()
            if fields.problems:
                raise InputError(fields.problems)
            model = parts.build(name or _own_name(config), source)
        except ValidationError as error:  # a product of fields that is out of bounds
            raise from_pydantic(error, source=source) from None
        except InputError as error:
            raise _inside(error, within) from None
    except InputError as error:
        raise error.within(source) from None
    return Reading(model, fields.defaults, ignored, within, towers, tuple(fields.notes))


def _towers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the wrapper's models of other kinds than text."""
    given = {str(n): value for n, value in config.items() if _TOWER.fullmatch(str(n)) and value is not None}
    rule = "must be an object of fields"
    wrong = [
        Problem(n, printable(v), rule, "leave it out") for n, v in given.items() if not isinstance(v, Mapping)
    ]
    if wrong:
        raise InputError(wrong)
    return tuple(given)


def _text_model(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Take the text model out of a multimodal wrapper: its place, and its fields."""
    places = [n for n in _TEXT if isinstance(config.get(n), Mapping)]
    if not places:
        return "", config
    if len(places) > 1:
        raise bad(
            places[1], printable(config[places[1]]), f"must be the only text model; {places[0]} is one too"
        )
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise bad("model_type", printable(kind), "must be a text: the name of the family")
    text = dict(config[places[0]])
    _agree(config, text, places[0])
    tied = config.get("tie_word_embeddings")
    if tied is None and config.get("model_type") in _TIED:
        tied = True
    if text.get("tie_word_embeddings") is None and tied is not None:
        if config.get("model_type") not in _TEXT_TIES:
            text["tie_word_embeddings"] = tied
    elif tied is not None and tied != text["tie_word_embeddings"]:
        rule = f"must equal {places[0]}.tie_word_embeddings ({printable(text['tie_word_embeddings'])})"
        raise bad("tie_word_embeddings", printable(tied), rule)
    if text.get("model_type") is None:  # the wrapper's class says the text model's
        named = next((name for name in (f"{kind}_text", kind) if name in FAMILIES), None)
        text |= {"model_type": named} if named else {}
    return places[0], text


def _agree(config: Mapping[str, Any], text: Mapping[str, Any], place: str) -> None:
    """Refuse a wrapper that says something else of its text model than the text model does."""
    apart = [n for n in _REPEATED if None not in (config.get(n), text.get(n)) and config[n] != text[n]]
    rule = "must equal {}.{}, {}: which is the text model's?"
    if apart:
        raise InputError(
            [Problem(n, printable(config[n]), rule.format(place, n, printable(text[n]))) for n in apart]
        )


def _inside(error: InputError, place: str) -> InputError:
    if not place:
        return error
    return InputError([replace(p, field=f"{place}.{p.field}") for p in error.problems])


def _family(fields: Fields, *, nested: bool) -> Family:
    """Choose the adapter, and refuse a config whose classes are not of that family.

    A text model inside a wrapper that names no family is Llama's, as in LLaVA's configuration class.
    """
    config = fields.config
    classes = fields.entries("architectures", str) or []
    kind = config.get("model_type")
    if kind is None:
        kind = fields.fill("model_type", by_architecture(classes) or ("llama" if nested else None))
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise InputError([_no_family(kind), *_missing(config, kind), *foreign_parts(config)])
    if family.architectures and not set(classes) <= set(family.architectures):
        known = ", ".join(family.architectures)
        fields.refuse("architectures", f"not modelled yet as a {kind} model", f"known: {known}", classes)
    return family


def _no_family(kind: Any) -> Problem:
    if kind is None:
        rule = "this field is required: it names the family"
        return Problem("model_type", "missing", rule, "for example llama")
    known = resembling(kind if isinstance(kind, str) else "")
    return Problem("model_type", printable(kind), "not modelled yet: this family of models", known)


def _missing(config: Mapping[str, Any], kind: Any) -> list[Problem]:
    if kind is not None or any(isinstance(value, Mapping) for value in config.values()):
        return []
    return [Problem(n, "missing", "this field is required") for n in _ALWAYS_NEEDED if n not in config]


def _own_name(config: Mapping[str, Any]) -> str:
    path = config.get("_name_or_path")
    return Path(path).name if isinstance(path, str) and path else str(config.get("model_type", "model"))
