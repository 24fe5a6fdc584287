"""How a device's kernels fall short of its data sheet: few numbers, each with a source or fitted.

:mod:`telekit.operators.efficiency` turns them into times; :mod:`telekit.operators.fit` fits them on measured rows.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from telekit.cluster.sourced import Sourced
from telekit.errors import InputError, Problem

Share = Annotated[float, Field(ge=1e-6, le=2, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**20)]
Length = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


KNOWN = {"low_precision": ("fp8", "fp4"), "mixers": ("flash-2", "triton", "recurrence")}
"""Keys of a device's tables."""


class Kernels(Sourced):
    """What keeps kernels of ordinary size from a device's reachable rate. The defaults take nothing away.

    Parameters
    ----------
    units : int
        Compute units (SMs, cube cores) that work on tiles of a product side by side.
    tile : int
        Rows and columns of a product's tile.
    wave_share : float
        Part of an unfilled last wave of tiles that is lost: 1 is all, 0 none (kernels choose smaller tiles).
    half_inner : float
        Inner dimension at which a product reaches half of its rate: filling and emptying a unit's pipeline.
    low_precision : dict of str to float
        Share of the peak that fp8 and fp4 products reach, over that of 16-bit ones.
    attention_backward : float
        Rate of attention's backward pass over that of its forward pass.
    attention_half_keys : float
        Keys a query at which attention reaches half of its rate.
    mixers : dict of str to float
        Rate of other mixing kernels over that of flash attention: ``flash-2``, ``triton``, and ``recurrence``.
    launch_s : float
        Device time that each kernel costs besides its work.
    host_launch_s : float
        Host time to issue one operator; computing cannot go faster than the host issues it.
    backward_launches : float
        Operators that the host issues backward for one forward.
    overlap_share : float
        How much longer computing takes while traffic runs beside it, as a share: with 20 of an H800's 132 units taken,
        20/112 (DeepSeek-V3's kernels).
    host_link_bytes_per_s : float
        What the device moves to or from the host's memory, one way, for states and activations kept there.
    jitter : float
        Standard deviation of devices' times over their mean; all wait for the slowest.
    sources : dict of str to Provenance
        By field.
    """

    units: Count = 1
    tile: Count = 128
    wave_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    half_inner: Length = 0.0
    low_precision: dict[str, Share] = Field(default_factory=dict)
    attention_backward: Share = 1.0
    attention_half_keys: Length = 0.0
    mixers: dict[str, Share] = Field(default_factory=dict)
    launch_s: Seconds = 0.0
    host_launch_s: Seconds = 0.0
    backward_launches: Share = 1.5
    overlap_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 20 / 112
    host_link_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e13, allow_inf_nan=False)] = 25e9
    jitter: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.005

    @model_validator(mode="after")
    def _tables_name_what_is_known(self) -> Kernels:
        problems = [
            Problem(f"{table}.{key}", value, "nothing reads it", f"known: {', '.join(known)}")
            for table, known in KNOWN.items()
            for key, value in getattr(self, table).items()
            if key not in known
        ]
        if problems:
            raise InputError(problems)
        return self
