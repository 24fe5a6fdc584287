"""Constants of the code, each by its name, so that one can be moved while an answer is made again.

A formula reads such a constant by :func:`now`; outside :func:`moved` that is its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_FACTORS: ContextVar[Mapping[str, float]] = ContextVar("factors", default=MappingProxyType({}))


def now(name: str, value: float) -> float:
    """Value of a constant where it is used: as it stands, unless this context has moved it."""
    return value * _FACTORS.get().get(name, 1.0)


@contextmanager
def moved(name: str, factor: float) -> Iterator[None]:
    """Multiply one constant, for what this context computes meanwhile; other threads see none of it."""
    before = _FACTORS.set({**_FACTORS.get(), name: factor})
    try:
        yield
    finally:
        _FACTORS.reset(before)
