"""All families by ``model_type``; a new one is a line in its module's ``FAMILIES``."""

from __future__ import annotations

from collections.abc import Iterable

from telekit.model.families import (
    allenai,
    ant,
    baidu,
    deepseek,
    glm,
    google,
    gpt,
    huawei,
    llama,
    microsoft,
    minimax,
    moonshot,
    nvidia,
    others,
    qwen,
    stepfun,
    tencent,
    xiaomi,
)
from telekit.model.families.parts import Family

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **qwen.FAMILIES,
    **deepseek.FAMILIES,
    **moonshot.FAMILIES,
    **glm.FAMILIES,
    **minimax.FAMILIES,
    **xiaomi.FAMILIES,
    **stepfun.FAMILIES,
    **google.FAMILIES,
    **nvidia.FAMILIES,
    **microsoft.FAMILIES,
    **allenai.FAMILIES,
    **tencent.FAMILIES,
    **baidu.FAMILIES,
    **huawei.FAMILIES,
    **ant.FAMILIES,
    **others.FAMILIES,
    **gpt.FAMILIES,
}
"""Adapters by ``model_type``."""


def by_architecture(architectures: Iterable[str]) -> str | None:
    """Return the ``model_type`` of the first family that names one of these classes."""
    wanted = set(architectures)
    found = (kind for kind, family in FAMILIES.items() if wanted.intersection(family.architectures))
    return next(found, None)


def resembling(kind: str) -> str:
    """Words that help who gave a ``model_type`` that is not known: those spelled like it, or a few."""
    from difflib import get_close_matches

    close = get_close_matches(kind, FAMILIES)
    few = ("deepseek_v3", "llama", "qwen3_moe")
    return (
        f"known and alike: {', '.join(close)}"
        if close
        else f"{len(FAMILIES)} are known, {', '.join(few)} among them"
    )
