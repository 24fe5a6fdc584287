"""The noun *training*: how much is trained, and in which number formats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "fp4"]
LOW = ("fp8", "fp4")
"""Formats of products whose surroundings stay in 16 bits."""
DROPOUT = 0.1
"""What runs with unfused attention dropped: Megatron-LM's default, whose masks the memory model counts."""
Optimizer = Literal["adamw", "adafactor", "came", "muon"]
MOMENTS: dict[str, int] = {"adamw": 2, "adafactor": 0, "came": 1, "muon": 1}
"""Numbers as many as parameters that an optimizer keeps of a matrix; factored ones, a row and a column, come on top."""
Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]

BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one number by format, where they are whole."""


class TrainConfig(BaseModel):
    """How much is trained, and in which formats.

    Parameters
    ----------
    seq_len : int
        Tokens of one sequence.
    global_batch : int
        Sequences of one optimizer step, over all devices.
    precision : str
        Format of matrix products: bf16, fp16, fp8 or fp4 (NVFP4). With the last two, attention, norms, router,
        embedding and output head stay in bf16, as in DeepSeek-V3's recipe. fp32 trains everything in fp32.
    fp8_recipe : str
        How fp8 is scaled, by Megatron-Core's names: delayed or tensorwise (one scale a tensor, from the last steps or
        from itself), blockwise (DeepSeek-V3's), mxfp8 (one for 32 numbers). No effect on other precisions.
    attention_kernel : str
        flash (the quickest of the device), flash-2 and triton (older kernels, slower on newer devices), or unfused:
        scores are written to memory, masked, and dropped out (Megatron-LM of 2021 and 2022).
    optimizer : str
        adamw (a master copy and two moments a parameter), adafactor, came or muon
        (:mod:`telekit.cost.optimizers`).
    grad_dtype, master_dtype, state_dtype : str
        Formats of the accumulated gradient, of the master parameters and of the optimizer's moments.
    fp8_param_gather : bool
        Whether fp8 products' weights are stored in fp8 alone (Megatron-LM's flag), not as a copy of 16-bit ones.
    activation_func_fp8_input_store : bool
        Whether the MLP's activation function keeps its input in fp8 (Megatron-LM's flag; DeepSeek-V3's recipe does).
    cross_entropy_fusion : str
        What the loss keeps of its logits: none or native (Megatron-LM's kernels: fp32 softmax), te (its gradient in
        their place, in 16 bits), linear (fused with the head: a piece of them at a time); torch (PyTorch's own loss: an
        fp32 copy, its softmax and the gradient).
    wgrad_buffers : str
        kept: one 16-bit gradient of every weight's shape stays, though gradients are summed in place (Transformer
        Engine 2); transient: that of the product that runs.
    expert_weights : str
        each: a parameter for every expert's matrix; grouped: one for the same matrix of all experts of a rank, so that
        its gradient is as large (MindFormers, Megatron-LM's GroupedMLP).
    mtp : bool
        Whether the model's multi-token-prediction modules are trained too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq_len: Annotated[int, Field(ge=1, le=2**27)] = 4096
    global_batch: Annotated[int, Field(ge=1, le=10**8)] = 1024
    precision: Dtype = "bf16"
    fp8_recipe: Recipe = "blockwise"
    attention_kernel: Literal["flash", "flash-2", "triton", "unfused"] = "flash"
    optimizer: Optimizer = "adamw"
    grad_dtype: Literal["fp32", "bf16"] = "fp32"
    master_dtype: Literal["fp32", "bf16"] = "fp32"
    state_dtype: Literal["fp32", "bf16"] = "fp32"
    fp8_param_gather: bool = False
    activation_func_fp8_input_store: bool = False
    cross_entropy_fusion: Literal["none", "native", "te", "linear", "torch"] = "none"
    wgrad_buffers: Literal["kept", "transient"] = "kept"
    expert_weights: Literal["each", "grouped"] = "each"
    mtp: bool = True

    @property
    def wide(self) -> str:
        """Format of what a low-precision recipe leaves in 16 bits; the precision itself where it is no such recipe."""
        return "bf16" if self.precision in LOW else self.precision

    @property
    def product_bytes(self) -> float:
        """Bytes of a number that a product reads and keeps for its backward pass; fp4 has a scale for 16 numbers."""
        return 0.5 + 1 / 16 if self.precision == "fp4" else float(BYTES[self.precision])

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
        """Bytes that the optimizer keeps for one number of a matrix: its moments, and the master copy.

        Factored moments and what other parameters have are apart (:mod:`telekit.cost.optimizers`).
        """
        return self.master_bytes + MOMENTS[self.optimizer] * BYTES[self.state_dtype]

    @property
    def master_bytes(self) -> int:
        """Bytes of a parameter's master copy; none where all is fp32."""
        return 0 if self.precision == "fp32" else BYTES[self.master_dtype]

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.seq_len * self.global_batch
