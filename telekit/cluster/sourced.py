"""Records whose fields say where they come from."""

from __future__ import annotations

from pydantic import Field, model_validator

from telekit.model.attention import Frozen


class Provenance(Frozen):
    """Where one number comes from; ``verified`` is False for an assumption or a second-hand number."""

    source: str
    verified: bool


class Sourced(Frozen):
    """A record whose fields may each name a source of their own."""

    sources: dict[str, Provenance] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sources_name_fields(self) -> Sourced:
        unknown = sorted(set(self.sources) - set(type(self).model_fields))
        if unknown:
            raise ValueError(f"sources names {', '.join(unknown)}, which is no field of this record")
        return self
