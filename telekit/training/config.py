"""The noun *training*: how much is trained, and in which number formats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["fp32", "bf16", "fp16", "fp8"]

BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one number by format."""


class TrainConfig(BaseModel):
    """How much is trained, and in which formats.

    Parameters
    ----------
    seq_len : int
        Tokens of one sequence.
    global_batch : int
        Sequences of one optimizer step, over all devices.
    precision : str
        Format of matrix products: bf16, fp16, or fp8 (products in fp8; attention, norms and router stay
        in bf16, as in DeepSeek-V3's recipe). fp32 trains everything in fp32.
    optimizer : str
        adamw: a master copy and two moments a parameter.
    grad_dtype, master_dtype, state_dtype : str
        Formats of the accumulated gradient, of the master parameters and of the optimizer's moments.
    mtp : bool
        Whether the model's multi-token-prediction modules are trained too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq_len: Annotated[int, Field(ge=1, le=2**27)] = 4096
    global_batch: Annotated[int, Field(ge=1, le=10**8)] = 1024
    precision: Dtype = "bf16"
    optimizer: Literal["adamw"] = "adamw"
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    master_dtype: Literal["fp32", "bf16"] = "fp32"
    state_dtype: Literal["fp32", "bf16"] = "fp32"
    mtp: bool = True

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation as it flows between operators (2, or 4 when all is fp32)."""
        return 4 if self.precision == "fp32" else 2

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as products read it (fp8 recipes keep 16 bits and cast)."""
        return 4 if self.precision == "fp32" else 2

    @property
    def optimizer_bytes(self) -> int:
        """Bytes that the optimizer keeps for one parameter: its moments, and a master copy unless all is fp32."""
        master = 0 if self.precision == "fp32" else BYTES[self.master_dtype]
        return master + 2 * BYTES[self.state_dtype]

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.seq_len * self.global_batch
