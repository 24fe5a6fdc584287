"""Every tensor of a checkpoint, listed from its config.json: the second way to count, for half of the families.

Written from the models' own modelling code, not from telekit. Names are transformers' (routed experts stacked as
it keeps them); what predicts further tokens is under ``mtp.``, without its copies of embedding and head. Vision
and audio parts, buffers, tables of hashes and scales of quantization are left out; router correction biases are in.
"""

from __future__ import annotations

from collections.abc import Callable

from tensors_a_grouped import GROUPED
from tensors_a_latent import LATENT
from tensors_a_parts import Config, Shapes

TENSORS: dict[str, Callable[[Config], Shapes]] = LATENT | GROUPED
